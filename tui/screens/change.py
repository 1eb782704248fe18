"""A session's model, workers, context, limits, tools and parameters, to be changed; they hold from its next step on."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Input, Label, Static, TextArea

from daemon.client import ApiFailure
from daemon.plain import line
from daemon.protocol import api
from tui import change, choice, workertext
from tui.change import Change
from tui.choice import LIMITS, Choice, Wrong
from tui.keymap import key
from tui.messages import RosterChanged
from tui.outbox import VIA
from tui.roster import RETRIED
from tui.screens.base import DaemonScreen
from tui.screens.new import CONTEXT, INVALID, PARAMS, TOOLS
from tui.widgets.banner import Banner
from tui.widgets.fields import LimitFields, WorkerPick
from tui.widgets.hints import Hints
from tui.widgets.models import ModelPicker
from tui.widgets.tick import Tick

FIELDS: Final = {  # of the form, and the widget that gets the focus where one is wrong
    "model": "model-name",
    "workers": "",
    "context": "context",
    "limits": "steps",
    "tools": "tools",
    "params": "params",
    "": "",
}


class ChangeScreen(DaemonScreen):
    """Enter changes what differs; what is left as it is, stays as it is."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("change.set", "f2,ctrl+enter", "set", "Change it", show=True),
        key("change.back", "escape", "dismiss", "Back", show=True),
    ]
    DEFAULT_CSS = """
    ChangeScreen #form { padding: 0 1; height: 1fr; scrollbar-size-vertical: 1; }
    ChangeScreen .field { height: auto; margin-bottom: 1; }
    ChangeScreen .field > Label { width: 13; color: $text-muted; }
    ChangeScreen .field > Vertical { height: auto; width: 1fr; }
    ChangeScreen .wrong { color: $text-error; height: auto; display: none; }
    ChangeScreen #workers { height: auto; }
    ChangeScreen #params { height: auto; min-height: 2; max-height: 8; border: none; padding: 0; }
    """

    def __init__(self, info: api.Info) -> None:
        super().__init__()
        self._session = info.id
        self._called = line(info.title or info.id, 60)
        self._config = info.config
        self._setting = False

    def compose(self) -> ComposeResult:
        now = change.written(self._config)
        params = TextArea(now.params, id="params", tab_behavior="focus", compact=True, placeholder=PARAMS)
        yield Static(f"{self._called}, from its next step on", id="bar", markup=False)
        yield Banner(id="banner")
        with VerticalScroll(id="form", can_focus=False):
            for name, made in (
                ("model", ModelPicker(now.model)),
                ("workers", Vertical(id="workers")),
                ("context", Input(now.context, placeholder=CONTEXT, id="context", compact=True)),
                ("limits", LimitFields(now)),
                ("tools", Input(now.tools, placeholder=TOOLS, id="tools", compact=True)),
                ("params", params),
            ):
                with Horizontal(classes="field"):
                    yield Label(name)
                    with Vertical():
                        yield made
                        yield Static("", id=f"wrong-{name}", classes="wrong", markup=False)
            yield Static("", id="wrong-", classes="wrong", markup=False)
        yield Hints()

    def on_mount(self) -> None:
        self.query_one("#context", Input).focus()
        self._look()

    def on_roster_changed(self, event: RosterChanged) -> None:
        self._look()

    def _look(self) -> None:
        """How the daemon stands, and what it serves."""
        app = self.outrider
        self.query_one(Banner).tell(app.lost)
        there = {pick.worker: pick for pick in self.query(WorkerPick)}
        workers = workertext.ordered(app.roster.workers.values())
        for name, cwd, ticked in change.offered(workers, self._config):
            pick = there.get(name)
            if pick is None:
                pick = WorkerPick(name, cwd, ticked)
                self.query_one("#workers", Vertical).mount(pick)
            pick.call_after_refresh(pick.say, app.roster.workers.get(name))
        if self.arrived():
            app.work(self._load, "models", exclusive=True)

    async def _load(self) -> None:
        found = await self.outrider.client.providers()
        if self.is_attached:
            self.query_one(ModelPicker).load(found)

    # ---- changing it

    def on_input_submitted(self) -> None:
        self.action_set()

    def on_model_picker_picked(self) -> None:
        picks = self.query(WorkerPick)
        (picks.first().query_one(Tick) if picks else self.query_one("#context", Input)).focus()

    def _form(self) -> Choice:
        return Choice(
            self.query_one(ModelPicker).field.value.strip(),
            tuple(ref for pick in self.query(WorkerPick) if (ref := pick.ref) is not None),
            self.query_one("#context", Input).value.strip(),
            self.query_one("#tools", Input).value.strip(),
            self.query_one("#params", TextArea).text,
            **{name: self.query_one(f"#{name}", Input).value.strip() for name in LIMITS},
        )

    def action_set(self) -> None:
        if self._setting:
            return
        try:
            wanted = change.change(self._config, self._form())
        except Wrong as error:
            self._say(error.fields)
            return
        self._say({})
        if not wanted:
            self.dismiss()
            return
        self._setting = True
        self.outrider.work(partial(self._set, wanted), "change session")

    async def _set(self, wanted: Change) -> None:
        app = self.outrider
        try:
            if wanted.patch != api.ConfigPatch():
                await app.client.patch_config(self._session, wanted.patch, VIA)
            if wanted.workers is not None:
                await app.client.set_workers(self._session, wanted.workers, VIA)
        except ApiFailure as error:
            field, why = choice.field_of(error.message) if error.status == INVALID else ("", error.message)
            self._say({field if field in FIELDS else "": line(why, 1000)})
            return
        finally:
            self._setting = False
            info = await app.client.info(self._session)
            self._config = info.config  # of two changes the first may have held
            app.roster.take(info)
        retry = "; ctrl+r retries" if info.status in RETRIED else ""
        app.tell(f"{self._called}: it holds from the next step on{retry}")
        if self.is_current:
            self.dismiss()

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
