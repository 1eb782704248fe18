"""Fields of the form for a new session that are several: a worker with its folder, the limits."""

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input, Label

from daemon.plain import line
from daemon.protocol import api
from daemon.protocol.records import WorkerRef
from tui import workertext
from tui.choice import LIMITS, Choice
from tui.widgets.tick import Tick


class WorkerPick(Horizontal):
    """A worker to tick, and the folder where the session starts there."""

    DEFAULT_CSS = """
    WorkerPick { height: 1; }
    WorkerPick Tick { width: 34; }
    WorkerPick Input { width: 1fr; }
    """

    def __init__(self, worker: str, cwd: str, ticked: bool) -> None:
        super().__init__()
        self.worker = worker
        self._cwd = cwd
        self._ticked = ticked

    def compose(self) -> ComposeResult:
        yield Tick(line(self.worker), self._ticked)
        yield Input(self._cwd, placeholder="its folder; empty: the home", compact=True)

    def say(self, worker: api.WorkerInfo | None) -> None:
        """How it stands now."""
        said = "not here" if worker is None else workertext.state(worker)[0]
        for tick in self.query(Tick):  # none where the form was closed meanwhile
            tick.label = line(f"{self.worker} · {said}")

    @property
    def ref(self) -> WorkerRef | None:
        """The worker with its folder; None where it is not ticked."""
        if not self.query_one(Tick).value:
            return None
        return WorkerRef(self.worker, self.query_one(Input).value.strip())


class LimitFields(Horizontal):
    """What a session may use up at most, a field each."""

    DEFAULT_CSS = """
    LimitFields { height: 1; }
    LimitFields Label { width: auto; color: $text-muted; padding-right: 1; }
    LimitFields Input { width: 1fr; min-width: 5; max-width: 16; margin-right: 1; }
    """

    def __init__(self, last: Choice) -> None:
        super().__init__(id="limits")
        self._last = last

    def compose(self) -> ComposeResult:
        for name in LIMITS:
            yield Label(name)
            yield Input(getattr(self._last, name), placeholder="no limit", id=name, compact=True)
