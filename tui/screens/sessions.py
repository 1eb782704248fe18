"""The list of sessions: what stands about each, filtered and sorted, and what can be done to one."""

from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.timer import Timer
from textual.widgets import Input, Static

from daemon.plain import count
from tui.ahead import focus_now
from tui.keymap import key
from tui.messages import RosterChanged
from tui.roster import RETRIED, SORTS, Sort
from tui.screens.base import DaemonScreen
from tui.widgets.banner import Banner
from tui.widgets.hints import Hints
from tui.widgets.table import SessionTable

ROWLESS: Final = frozenset(
    {"sessions.open", "sessions.filter", "sessions.sort"}
)  # keys for what is not there
TICK: Final = 1.0  # seconds between two drawings of the ages


class SessionsScreen(DaemonScreen):
    """Always the lowest screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("sessions.new", "n", "app.new", "New", show=True),
        key("sessions.filter", "slash", "filter", "Filter", show=True),
        key("sessions.stop", "x", "stop", "Stop", show=True),
        key("sessions.retry", "r", "retry", "Retry", show=True),
        key("sessions.fork", "f", "fork", "Fork"),
        key("sessions.end", "e", "end", "End"),
        key("sessions.copy", "y", "copy", "Copy its id"),
        key("sessions.workers", "w", "app.show('workers')", "Workers", show=True),
        key("sessions.sort", "o", "sort", "Sort", show=True),
        key("sessions.clear", "escape", "clear", "Clear the filter"),
        key("sessions.start", "s", "start", "Start a daemon here", show=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._sort: Sort = "updated"
        self._ticking: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="bar", markup=False)
        yield Banner(id="banner")
        yield Input(
            placeholder="words, a status, a worker; ! is what wants you",
            id="filter",
            compact=True,
        )
        yield SessionTable(self.outrider.row, self.outrider.now, id="table")
        yield Static("", id="empty", markup=False)
        yield Hints()

    @property
    def table(self) -> SessionTable:
        return self.query_one("#table", SessionTable)

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self.table.focus()
        self._ticking = self.set_interval(TICK, self._tick)
        self._show(frozenset())

    def on_screen_resume(self) -> None:
        self._show(frozenset())

    def on_roster_changed(self, event: RosterChanged) -> None:
        if self.is_current:
            self._show(event.ids)

    def _tick(self) -> None:
        if self.is_current:
            self.table.tick()
            self._look()

    def _look(self) -> None:
        """What the rows on the screen are doing is looked up."""
        app = self.outrider
        app.doing.want(app.roster.infos[id] for id in self.table.on_screen if id in app.roster.infos)

    def _show(self, ids: frozenset[str]) -> None:
        app, table = self.outrider, self.table
        filter = self.query_one("#filter", Input)
        rows = tuple(info.id for info in app.roster.rows(self._sort, filter.value if filter.display else ""))
        if rows != table.ids:
            table.show(rows)
        else:
            table.touch(ids)
        self._look()
        self.query_one(Banner).tell(app.lost if app.roster.loaded else "")
        self._bar(len(rows))
        self._empty(rows)
        self.refresh_bindings()

    def _bar(self, shown: int) -> None:
        app = self.outrider
        infos = app.roster.infos.values()
        wanting, at_work = len(app.roster.urgent()), sum(info.status == "stepping" for info in infos)
        parts = ["outrider", app.given.where]
        of = f"{shown} of " if shown != len(infos) else ""
        parts += [f"{of}{count(len(infos), 'session')}"] if app.roster.loaded else []
        parts += [f"{at_work:,} at work"] if at_work else []
        parts += [f"{wanting:,} {'wants' if wanting == 1 else 'want'} you"] if wanting else []
        parts += [f"by {self._sort}"] if self._sort != "updated" else []
        self.query_one("#bar", Static).update(" · ".join(parts))

    def _empty(self, rows: tuple[str, ...]) -> None:
        """What stands in place of rows where there are none."""
        app = self.outrider
        if rows:
            text = ""
        elif not app.roster.loaded and app.starting:
            text = "Starting a daemon here …"
        elif not app.roster.loaded and app.lost:
            start = "s: start one on this machine" if app.given.start else ""
            text = f"▲ {app.lost}\n\n{start}\nctrl+q: quit\n\nIt is looked for all the while."
        elif not app.roster.loaded:
            text = "…"
        elif app.roster.infos:
            text = "No session passes the filter. esc clears it."
        else:
            text = "No session yet.\n\nn: a new one\nf9: the key of a provider"
        empty = self.query_one("#empty", Static)
        empty.display = not rows
        self.table.styles.height = "1fr" if rows else 0
        empty.update(text)

    # ---- keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        app = self.outrider
        if action == "start":
            return bool(app.given.start and app.lost and not app.starting)
        if action in ("stop", "retry", "fork", "end", "copy"):
            return bool(self.table.cursor)
        return True

    def idle(self) -> frozenset[str]:
        """Keys that would do nothing now; they are not in the line at the bottom."""
        info = self.outrider.roster.infos.get(self.table.cursor)
        if info is None:
            return ROWLESS
        stop = frozenset() if info.status == "stepping" else frozenset({"sessions.stop"})
        return stop if info.status in RETRIED else stop | {"sessions.retry"}

    def on_session_table_opened(self, event: SessionTable.Opened) -> None:
        self.outrider.open_session(event.session)

    def action_filter(self) -> None:
        filter = self.query_one("#filter", Input)
        filter.display = True
        focus_now(filter)

    def on_input_changed(self) -> None:
        self._show(frozenset())

    def on_input_submitted(self) -> None:
        self.table.focus()
        filter = self.query_one("#filter", Input)
        filter.display = bool(filter.value.strip())

    def action_clear(self) -> None:
        filter = self.query_one("#filter", Input)
        filter.value = ""
        filter.display = False
        self.table.focus()
        self._show(frozenset())

    def action_sort(self) -> None:
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self._show(frozenset())

    def action_start(self) -> None:
        self.outrider.start()

    def action_stop(self) -> None:
        self.outrider.stop(self.table.cursor, ask=True)

    def action_retry(self) -> None:
        self.outrider.retry(self.table.cursor)

    def action_fork(self) -> None:
        self.outrider.fork(self.table.cursor)

    def action_end(self) -> None:
        self.outrider.end(self.table.cursor)

    def action_copy(self) -> None:
        self.outrider.copy(self.table.cursor, self.table.cursor)
