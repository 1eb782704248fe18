"""Settings of the terminal UI (colours, what it tells of, its keys) and the keys of the daemon's providers."""

from typing import ClassVar, Final

import msgspec
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from daemon.client import ApiFailure
from daemon.plain import line
from daemon.protocol import api
from tui import keymap, places
from tui.keymap import key
from tui.messages import RosterChanged
from tui.screens.base import DaemonScreen, Dialog
from tui.widgets.banner import Banner
from tui.widgets.hints import Hints
from tui.widgets.models import ModelList
from tui.widgets.rows import Line, NamedRows
from tui.widgets.tick import Tick
from tui.workertext import Tone

HEAD: Final = ("PROVIDER", "KEY", "MODELS", "KIND", "ADDRESS")
KEYS_HEAD: Final = ("ID", "KEYS", "WHAT", "WHERE")
REHEARSAL: Final = "rehearsal"  # the kind of a provider that asks nobody
CHANGE: Final = (
    "outrider.toml changes them, from the next start on: [tui.keys], then 'ID' = 'key', or '' for none"
)


class SettingsScreen(DaemonScreen):
    """What is changed here is kept at once, and holds at once."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("settings.key", "enter,p", "set_key", "Set a provider's key", show=True),
        key("settings.keys", "e", "app.show('keys')", "Keys", show=True),
        key("settings.back", "escape,q", "dismiss", "Back", show=True),
    ]
    DEFAULT_CSS = """
    SettingsScreen #form { padding: 0 1; height: 1fr; scrollbar-size-vertical: 1; }
    SettingsScreen .head { margin-top: 1; text-style: bold; color: $text-primary; }
    SettingsScreen #themes { height: 5; border: none; background: $surface; }
    SettingsScreen NamedRows { max-height: 14; }
    SettingsScreen .note { color: $text-muted; height: auto; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._providers: dict[str, api.ProviderInfo] = {}

    def compose(self) -> ComposeResult:
        prefs, given = self.outrider.prefs, self.outrider.given
        yield Static("Settings", id="bar", markup=False)
        yield Banner(id="banner")
        with VerticalScroll(id="form", can_focus=False):
            yield Static("Providers", classes="head", markup=False)
            yield NamedRows(HEAD, id="providers")
            yield Static("…", id="said", classes="note", markup=False)
            yield Static("Telling", classes="head", markup=False)
            yield Tick("tell of sessions that fail, wait for a worker or close", not prefs.quiet, id="tell")
            yield Tick("ring the terminal's bell with it", prefs.bell, id="bell")
            yield Static("Colours", classes="head", markup=False)
            yield ModelList(
                *(Option(Content(name), id=name) for name in self.app.available_themes),
                id="themes",
                compact=True,
            )
            if given.theme:
                yield Static(
                    f"outrider.toml has tui.theme = {given.theme!r}, which goes before what is picked here "
                    "the next time",
                    classes="note",
                    markup=False,
                )
            yield Static("Keys", classes="head", markup=False)
            changed = f"[tui.keys] in outrider.toml changes {len(given.keys) or 'none'} of them"
            yield Static(f"e shows every key with its id; {changed}", classes="note", markup=False)
        yield Hints()

    def on_mount(self) -> None:
        themes = self.query_one("#themes", OptionList)
        if self.app.theme in self.app.available_themes:
            themes.highlighted = themes.get_option_index(self.app.theme)
        self.query_one(NamedRows).focus()

    def on_screen_resume(self) -> None:
        self.arrived()
        self.look()

    def on_roster_changed(self, event: RosterChanged) -> None:
        self.query_one(Banner).tell(self.outrider.lost)
        if self.arrived():
            self.look()

    # ---- providers

    def look(self) -> None:
        """Ask for the providers again."""
        self.query_one(Banner).tell(self.outrider.lost)
        if not self.outrider.lost:
            self.outrider.work(self._look(), "look at providers", exclusive=True)

    async def _look(self) -> None:
        found = await self.outrider.client.providers()
        if not self.is_attached:
            return
        self._providers = {one.name: one for one in found.providers}
        self.query_one(NamedRows).show([_row(one) for one in found.providers])
        default = f"new sessions have {line(found.default)} where none is named" if found.default else ""
        self.query_one("#said", Static).update(default)

    def on_data_table_row_selected(self) -> None:
        self.action_set_key()

    def action_set_key(self) -> None:
        provider = self._providers.get(self.query_one(NamedRows).named)
        if provider is not None and provider.kind == REHEARSAL:
            self.outrider.tell(f"{line(provider.name)} plays from a script and needs no key")
        elif provider is not None:
            self.app.push_screen(KeyDialog(provider))

    # ---- what is kept here

    def on_checkbox_changed(self, event: Tick.Changed) -> None:
        if event.checkbox.id == "tell":
            self._prefer(quiet=not event.value)
        else:
            self._prefer(bell=event.value)

    def _prefer(self, **changed: bool) -> None:
        app = self.outrider
        app.desk.prefer(msgspec.structs.replace(app.prefs, **changed))
        app.keep()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        if event.option.id:
            self.app.theme = event.option.id


def _row(provider: api.ProviderInfo) -> Line:
    known = "yes" if provider.has_key else "-"
    models = str(len(provider.models)) if provider.served else "not served"
    cells = (
        line(provider.name),
        known,
        models,
        line(provider.kind),
        line(provider.url) or ("-" if provider.kind == REHEARSAL else "the vendor's own"),
    )
    return Line(provider.name, cells, ((1, "good" if provider.has_key else "dim"),))


class KeyDialog(Dialog[None]):
    """A provider's key goes in and is shown nowhere, here neither."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("provider-key.leave", "escape", "dismiss", "Leave it", show=True),
    ]
    DEFAULT_CSS = """
    KeyDialog { align: center middle; }
    KeyDialog #wrong { color: $text-error; height: auto; }
    """

    def __init__(self, provider: api.ProviderInfo) -> None:
        super().__init__()
        self._provider = provider
        self._setting = False

    def compose(self) -> ComposeResult:
        name, has = line(self._provider.name), self._provider.has_key
        now = "It has one; empty and enter takes out the one that was set here." if has else "It has none."
        with Vertical(id="dialog"):
            yield Static(f"The key of {name}, for requests that begin from now on. {now}", markup=False)
            yield Input(placeholder="paste it; it is not shown", password=True, id="key", compact=True)
            yield Static("", id="wrong", markup=False)
            yield Static("enter: set it    esc: leave it as it is", classes="dim", markup=False)

    def on_mount(self) -> None:
        self._say("")

    def _say(self, wrong: str) -> None:
        said = self.query_one("#wrong", Static)
        said.display = bool(wrong)
        said.update(wrong)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        given = event.value.strip()
        if not given and not self._provider.has_key:
            self._say("key: paste one, or leave it with esc")
        elif not self._setting:
            self._setting = True
            self.outrider.work(self._set(given), "set key")

    async def _set(self, given: str) -> None:
        name = line(self._provider.name)
        try:
            await self.outrider.client.set_provider(self._provider.name, api.ProviderSetting(key=given))
        except ApiFailure as error:
            if not self.is_attached:
                raise
            self._say(line(error.message, 1000))
            return
        finally:
            self._setting = False
        self.outrider.tell(f"{name} has its key" if given else f"the key of {name} that was set here is out")
        if self.is_current:
            self.dismiss()


class KeysScreen(DaemonScreen):
    """Every key with the id by which outrider.toml changes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("keys.copy", "y", "copy", "Copy a line for outrider.toml", show=True),
        key("keys.back", "escape,q", "dismiss", "Back", show=True),
    ]
    DEFAULT_CSS = "KeysScreen NamedRows { max-height: 100%; height: 1fr; }"

    def compose(self) -> ComposeResult:
        yield Static(CHANGE, id="bar", markup=False)
        yield NamedRows(KEYS_HEAD, id="keys")
        yield Hints()

    def on_mount(self) -> None:
        given = self.outrider.given.keys
        lines: dict[str, Line] = {}
        for place in places.places():
            for one in keymap.shown(place, given):
                tones: tuple[tuple[int, Tone], ...] = ((1, "warn"),) if one.id in given else ()
                lines.setdefault(
                    one.id, Line(one.id, (one.id, one.keys or "none", one.description, place.name), tones)
                )
        self.query_one(NamedRows).show(list(lines.values()))
        self.query_one(NamedRows).focus()

    def action_copy(self) -> None:
        text = f"[tui.keys]\n{msgspec.json.encode(self.query_one(NamedRows).named).decode()} = ''\n"
        self.app.copy_to_clipboard(text)
        self.outrider.tell("copied a line for outrider.toml; write the key between the quotes")
