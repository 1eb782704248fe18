"""The workers: which are here, refused or gone, and why; cordoning and removing them; the way to the join tokens."""

from functools import partial
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Static

from daemon.client import ApiFailure, Unreachable
from daemon.plain import count, line
from daemon.protocol import api
from tui import workertext
from tui.keymap import key
from tui.messages import RosterChanged
from tui.screens.base import DaemonScreen
from tui.screens.confirm import Confirm
from tui.screens.tokens import NewTokenDialog, TokensScreen
from tui.widgets.banner import Banner
from tui.widgets.facts import Facts
from tui.widgets.hints import Hints
from tui.widgets.rows import Line, NamedRows

TICK: Final = 1.0  # seconds between two drawings of the ages
LOOK: Final = 15.0  # seconds between two looks at the traffic and the mesh, of which no event tells
WIDE: Final = 110  # columns from which a row has every cell
NARROW: Final = 6  # cells of a row below that; the facts have the others
FORBIDDEN: Final = 403


class WorkersScreen(DaemonScreen):
    """Live: the daemon tells of workers that come and go."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("workers.invite", "a", "invite", "New join token", show=True),
        key("workers.tokens", "t", "tokens", "Tokens", show=True),
        key("workers.cordon", "c", "cordon", "Cordon", show=True),
        key("workers.remove", "x,delete", "remove", "Remove", show=True),
        key("workers.copy", "y", "copy", "Copy its name"),
        key("workers.back", "escape,q", "dismiss", "Back", show=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._mesh: api.MeshInfo | None = None
        self._refused = ""  # why this key may only look on

    def compose(self) -> ComposeResult:
        yield Static("", id="bar", markup=False)
        yield Banner(id="banner")
        yield Static("", id="note", markup=False)
        yield NamedRows(workertext.HEAD, id="workers")
        yield Facts(id="facts")
        yield Hints()

    @property
    def rows(self) -> NamedRows:
        return self.query_one(NamedRows)

    @property
    def worker(self) -> api.WorkerInfo | None:
        """The one that the cursor is on."""
        return self.outrider.roster.workers.get(self.rows.named)

    def on_mount(self) -> None:
        self.query_one("#note").display = False
        self.rows.focus()
        self.set_interval(TICK, self._show)
        self.set_interval(LOOK, self._look_again)
        self._show()
        self._look_again()

    def on_roster_changed(self, event: RosterChanged) -> None:
        self._show()
        if self.arrived() or not event.ids:  # the link, or the workers
            self._look_again()

    def on_screen_resume(self) -> None:
        self._show()

    def on_resize(self) -> None:
        self._show()

    def on_data_table_row_highlighted(self) -> None:
        self._show()

    # ---- what no event tells

    def _look_again(self) -> None:
        if self.is_current and not self.outrider.lost:
            self.outrider.work(self._look, "look at workers", exclusive=True)

    async def _look(self) -> None:
        client = self.outrider.client
        try:
            self._mesh = await client.mesh()
            self.outrider.roster.set_workers(await client.workers())
        except Unreachable:
            return  # the banner says so
        try:
            await client.tokens()
            self._refused = ""
        except ApiFailure as error:
            if error.status != FORBIDDEN:
                raise
            self._refused = error.message
        self._show()

    # ---- what is shown

    def _show(self) -> None:
        app = self.outrider
        if not self.is_mounted:
            return
        now, workers = app.now(), workertext.ordered(app.roster.workers.values())
        self.rows.show(
            [Line(one.name, workertext.cells(one, now), ((1, workertext.state(one)[1]),)) for one in workers],
            None if self.size.width >= WIDE else NARROW,
        )
        here = sum(one.state == "connected" for one in workers)
        parts = [f"{count(len(workers), 'worker')}, {here} connected" if app.roster.loaded else "workers"]
        parts += [workertext.mesh_line(self._mesh)[0]] if self._mesh else []
        self.query_one("#bar", Static).update(" · ".join(parts))
        self.query_one(Banner).tell(app.lost)
        note = self.query_one("#note", Static)
        note.display = bool(self._refused)
        note.update(f"Read only: {line(self._refused, 400)}")
        worker = self.worker
        none = workertext.NONE if app.roster.loaded and not workers else ()
        self.query_one(Facts).show(workertext.facts(worker, now) if worker else none)
        self.refresh_bindings()

    # ---- keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("invite", "tokens"):
            return None if self._refused else True
        if action in ("cordon", "remove", "copy"):
            if self.worker is None:
                return False
            return None if self._refused and action != "copy" else True
        return True

    def action_invite(self) -> None:
        self.app.push_screen(NewTokenDialog())

    def action_tokens(self) -> None:
        self.app.push_screen(TokensScreen())

    def action_copy(self) -> None:
        self.outrider.copy(self.rows.named, self.rows.named)

    def action_cordon(self) -> None:
        if (worker := self.worker) is not None:
            self.outrider.work(partial(self._cordon, worker), "cordon")

    async def _cordon(self, worker: api.WorkerInfo) -> None:
        client = self.outrider.client
        if worker.cordoned:
            await client.uncordon(worker.name)
            self.outrider.tell(f"{line(worker.name)} takes calls again")
        else:
            await client.cordon(worker.name)
            going = f"; {count(worker.running, 'call')} that run there go on" if worker.running else ""
            self.outrider.tell(f"{line(worker.name)} takes no new calls{going}")

    def action_remove(self) -> None:
        worker = self.worker
        if worker is None:
            return
        if why := workertext.removable(worker):
            self.outrider.tell(f"not removed: {why}", bad=True)
            return
        going = f", with {count(worker.running, 'call')} going" if worker.running else ""
        question = (
            f"Remove {line(worker.name)} ({worker.state}{going}) for good?\n"
            "Its key is refused from then on; to come back it has to join again, with a new token."
        )

        def answered(yes: bool | None) -> None:
            if yes:
                self.outrider.work(partial(self._remove, worker.name), "remove")

        self.app.push_screen(Confirm(question, worker.name, typed=True), answered)

    async def _remove(self, name: str) -> None:
        await self.outrider.client.remove_worker(name)
        self.outrider.tell(f"{line(name)} is out for good")
