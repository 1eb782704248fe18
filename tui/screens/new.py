"""A new session: its first message, model, workers, limit, tools and parameters; it begins with the last choice."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Final

import msgspec
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.timer import Timer
from textual.widgets import Input, Label, Static, TextArea

from daemon.client import ApiFailure
from daemon.plain import line
from daemon.protocol import api
from tui import attach, choice, workertext
from tui.choice import LIMITS, Choice, Wrong
from tui.desk import Chip
from tui.keymap import key
from tui.messages import RosterChanged
from tui.screens.base import DaemonScreen
from tui.widgets.banner import Banner
from tui.widgets.composer import Composer
from tui.widgets.fields import LimitFields, WorkerPick
from tui.widgets.hints import Hints
from tui.widgets.models import ModelPicker
from tui.widgets.tick import Tick

KEEP: Final = 0.5  # seconds of writing after which the message is kept
DRAFT: Final = "new"  # the draft that is kept for the session that is not made yet
INVALID: Final = 422
FIELDS: Final = {  # of a form, and the widget that gets the focus where one is wrong
    "message": "composer",
    "model": "model-name",
    "workers": "",
    "context": "context",
    "limits": "steps",
    "tools": "tools",
    "instructions": "instructions",
    "params": "params",
    "": "",
}


CONTEXT: Final = "tokens: 200k; empty: the model's own limit"
TOOLS: Final = "default, patch, or names: run read; empty: what suits the model"
INSTRUCTIONS: Final = "for this session alone, beside the message: answer in French"
PARAMS: Final = "the provider's own settings, as TOML or JSON: temperature = 0.2"


class FirstMessage(Composer):
    """The composer, where escape leads back, and what is sent stays until the session is made."""

    BINDINGS: ClassVar[list[BindingType]] = [key("composer.leave", "escape", "leave", "Back", show=True)]

    def action_send(self) -> None:
        text, chips = self.text, self.chips
        super().action_send()
        if not self.text and not self.chips:  # it was sent, and not a new line begun
            self.put(text, chips, self.posts)


class NewScreen(DaemonScreen):
    """Enter in the message makes the session and posts it; what is written stays when the screen is left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("new.make", "f2,ctrl+enter", "make", "Make it", show=True),
        key("new.back", "escape", "leave", "Back", show=True),
    ]
    DEFAULT_CSS = """
    NewScreen #form { padding: 0 1; height: 1fr; scrollbar-size-vertical: 1; }
    NewScreen .field { height: auto; margin-bottom: 1; }
    NewScreen .field > Label { width: 13; color: $text-muted; }
    NewScreen .field > Vertical { height: auto; width: 1fr; }
    NewScreen .wrong { color: $text-error; height: auto; display: none; }
    NewScreen #workers { height: auto; }
    NewScreen Composer { min-height: 4; }
    NewScreen .text { height: auto; min-height: 2; max-height: 8; border: none; padding: 0; }
    NewScreen #chips { display: none; height: auto; color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._making = False
        self._ready = False  # the draft stands in the composer
        self._keeping: Timer | None = None  # the draft is about to be kept

    def compose(self) -> ComposeResult:
        last = self.outrider.prefs.choice
        yield Static("New session", id="bar", markup=False)
        yield Banner(id="banner")
        with VerticalScroll(id="form", can_focus=False):
            for name, made in (
                ("message", (FirstMessage(id="composer"), Static("", id="chips", markup=False))),
                ("model", (ModelPicker(last.model),)),
                ("workers", (Vertical(id="workers"),)),
                ("context", (Input(last.context, placeholder=CONTEXT, id="context", compact=True),)),
                ("limits", (LimitFields(last),)),
                ("tools", (Input(last.tools, placeholder=TOOLS, id="tools", compact=True),)),
                ("instructions", (_text("instructions", last.instructions, INSTRUCTIONS),)),
                ("params", (_text("params", last.params, PARAMS),)),
            ):
                with Horizontal(classes="field"):
                    yield Label(name)
                    with Vertical():
                        yield from made
                        yield Static("", id=f"wrong-{name}", classes="wrong", markup=False)
            yield Static("", id="wrong-", classes="wrong", markup=False)
        yield Hints()

    @property
    def composer(self) -> Composer:
        return self.query_one(Composer)

    def on_mount(self) -> None:
        draft = self.outrider.desk.draft(DRAFT)
        self.composer.put(draft.text, draft.chips, draft.history)
        self._ready = True
        self.composer.focus()
        self._look()

    def _look(self) -> None:
        """How the daemon stands, and what it serves."""
        self.query_one(Banner).tell(self.outrider.lost)
        self._show_workers()
        if self.arrived():
            self.outrider.work(self._load, "models", exclusive=True)

    async def _load(self) -> None:
        found = await self.outrider.client.providers()
        if self.is_attached:
            self.query_one(ModelPicker).load(found)

    # ---- the workers

    def on_roster_changed(self, event: RosterChanged) -> None:
        self._look()

    def _show_workers(self) -> None:
        app = self.outrider
        there = {pick.worker: pick for pick in self.query(WorkerPick)}
        last = app.prefs.choice.workers
        for name, cwd, ticked in choice.offered(workertext.ordered(app.roster.workers.values()), last):
            if name in there:
                there[name].say(app.roster.workers.get(name))
                continue
            here = name == workertext.LOCAL and app.given.here
            pick = WorkerPick(name, app.given.cwd if here else cwd, ticked)
            self.query_one("#workers", Vertical).mount(pick)
            pick.call_after_refresh(pick.say, app.roster.workers.get(name))

    # ---- what is written

    def _choice(self) -> Choice:
        refs = [pick.ref for pick in self.query(WorkerPick)]
        return Choice(
            self.query_one(ModelPicker).field.value.strip(),
            tuple(ref for ref in refs if ref is not None),
            self.query_one("#context", Input).value.strip(),
            self.query_one("#tools", Input).value.strip(),
            self.query_one("#params", TextArea).text,
            **{name: self.query_one(f"#{name}", Input).value.strip() for name in LIMITS},
            instructions=self.query_one("#instructions", TextArea).text,
        )

    def keep(self) -> None:
        """Keep the message as it is now; it is written a little later."""
        self._keeping = None
        if self._ready and self.is_attached and self.query(Composer):
            self.outrider.desk.write(DRAFT, self.composer.written, self.composer.chips)
            self.outrider.keep()

    def on_text_area_changed(self) -> None:
        if self._keeping is None:
            self._keeping = self.set_timer(KEEP, self.keep)

    def on_composer_attached(self) -> None:
        self.keep()
        chips = self.query_one("#chips", Static)
        chips.display = bool(self.composer.chips)
        chips.update("  ".join(f"▣ {line(chip.name)}" for chip in self.composer.chips))

    def on_composer_tells(self, event: Composer.Tells) -> None:
        self.outrider.tell(event.text, event.bad)

    def on_composer_editor(self) -> None:
        self.outrider.work(self._edit, "editor", exclusive=True)

    async def _edit(self) -> None:
        await self.composer.rewrite(self.outrider.edited)

    def on_composer_left(self) -> None:
        self.action_leave()

    def action_leave(self) -> None:
        """Back; the message is kept for the next time."""
        self.keep()
        self.dismiss()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "stop"  # the composer's key for it: nothing runs here

    # ---- making it

    def on_composer_sent(self) -> None:
        self.action_make()

    def on_input_submitted(self) -> None:
        self.action_make()

    def on_model_picker_picked(self) -> None:
        picks = self.query(WorkerPick)
        (picks.first().query_one(Tick) if picks else self.query_one("#context", Input)).focus()

    def action_make(self) -> None:
        if self._making:
            return
        written, text, chips = self._choice(), self.composer.text, self.composer.chips
        try:
            create = choice.create(written)
        except Wrong as error:
            self._say(error.fields)
            return
        self._say({})
        self._making = self.composer.read_only = True
        self.keep()
        self.outrider.work(partial(self._make, create, written, text, chips), "new session")

    async def _make(self, create: api.Create, written: Choice, text: str, chips: tuple[Chip, ...]) -> None:
        app = self.outrider
        try:
            parts = await asyncio.to_thread(attach.parts, text, chips)
            id = await app.client.create(create)
        except attach.NotPostable as error:
            self._say({"message": str(error)})
            return
        except ApiFailure as error:
            field, why = choice.field_of(error.message) if error.status == INVALID else ("", error.message)
            self._say({field if field in FIELDS else "": line(why, 1000)})
            return
        finally:
            self._making = False
            if self.is_attached:
                self.composer.read_only = False
        app.desk.prefer(msgspec.structs.replace(app.prefs, choice=written))
        app.desk.write(DRAFT, "")
        if self.is_attached:
            self.composer.put("")
        if parts:
            app.post(id, text, parts, chips)
        app.keep()
        app.roster.take(await app.client.info(id))
        if self.is_current:
            self.dismiss()
        app.open_session(id)

    def _say(self, wrong: Mapping[str, str]) -> None:
        """What is wrong, each at its field; the first of them gets the focus."""
        if not self.is_attached:
            if wrong:
                self.outrider.tell("; ".join(wrong.values()), bad=True)
            return
        first = ""
        for name, widget in FIELDS.items():
            said = self.query_one(f"#wrong-{name}", Static)
            said.display = name in wrong
            said.update(wrong.get(name, ""))
            if name in wrong:
                first = first or next((one for one in LIMITS if wrong[name].startswith(f"{one}:")), widget)
                said.scroll_visible(animate=False)
        if first:
            self.query_one(f"#{first}").focus()


def _text(id: str, text: str, empty: str) -> TextArea:
    return TextArea(text, id=id, classes="text", tab_behavior="focus", compact=True, placeholder=empty)
