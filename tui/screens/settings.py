"""Settings of the terminal UI (colours, what it tells of, its keys) and the keys of the daemon's providers."""

from typing import ClassVar, Final

import msgspec
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from daemon.plain import line
from daemon.protocol import api
from daemon.view import key_in_words
from tui import keymap, places
from tui.keymap import key
from tui.messages import RosterChanged
from tui.screens.base import DaemonScreen
from tui.screens.provider import KeyDialog
from tui.widgets.banner import Banner
from tui.widgets.hints import Hints
from tui.widgets.models import ModelList
from tui.widgets.rows import Line, NamedRows
from tui.widgets.tick import Tick
from tui.workertext import Tone

HEAD: Final = ("PROVIDER", "KEY", "MODELS", "KIND", "ADDRESS")
KEYS_HEAD: Final = ("ID", "KEYS", "WHAT", "WHERE")
TONES: Final[dict[str, Tone]] = {"yes": "good", "none": "warn", "missing": "bad", "-": "dim"}  # of KEY
CHANGE: Final = (
    "outrider.toml changes them, from the next start on: [tui.keys], then 'ID' = 'key', or '' for none"
)


class SettingsScreen(DaemonScreen):
    """What is changed here is kept at once, and holds at once."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("settings.key", "enter,p", "set_key", "Set up a provider", show=True),
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
        self._providers: dict[str, api.ProviderInfo | api.Offer] = {}

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
            self.outrider.work(self._look, "look at providers", exclusive=True)

    async def _look(self) -> None:
        found = await self.outrider.client.providers()
        if not self.is_attached:
            return
        self._providers = {one.name: one for one in found.offered}
        self._providers |= {one.name: one for one in found.providers}
        real, others = ([one for one in found.providers if bool(one.asks) is asks] for asks in (True, False))
        self.query_one(NamedRows).show([*map(_row, real), *map(_offer, found.offered), *map(_row, others)])
        said = [f"new sessions have {line(found.default)} where none is named"] if found.default else []
        said += [f"{line(one.name)}: {line(one.problem, 500)}" for one in found.providers if one.problem]
        self.query_one("#said", Static).update("\n".join(said))

    def on_data_table_row_selected(self) -> None:
        self.action_set_key()

    def action_set_key(self) -> None:
        provider = self._providers.get(self.query_one(NamedRows).named)
        if provider is not None and not provider.asks:
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
    known = key_in_words(provider)
    models = str(len(provider.models)) if provider.served else "not served"
    vendors = "no region" if "region" in provider.asks else "the vendor's own" if provider.asks else "-"
    where = line(provider.url) or line(provider.region) or vendors
    cells = (line(provider.name), known, models, line(provider.kind), where)
    return Line(provider.name, cells, ((1, TONES[known]),))


def _offer(offer: api.Offer) -> Line:
    cells = (line(offer.name), "not set up", "-", line(offer.name), "enter sets it up")
    return Line(offer.name, cells, tuple((at, "dim") for at in range(len(cells))))


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
        self.outrider.copy(text, "a line for outrider.toml; write the key between the quotes")
