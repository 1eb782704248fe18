"""What is known of every record of a session without its body: kind, state, what it is about. A few bytes each."""

from array import array
from typing import Final

from daemon.protocol.records import Header
from daemon.view import Fold, State

KINDS: Final = (
    "",  # not known yet
    "other",  # one of a later release
    "start",
    "config",
    "system",
    "message",
    "text",
    "thinking",
    "call",
    "step",
    "result",
    "error",
    "summary",
    "end",
)
STATES: Final[tuple[State, ...]] = ("", "live", "running", "done", "nonzero", "failed", "void")
_KIND: Final = {kind: code for code, kind in enumerate(KINDS)}
_STATE: Final = {state: code for code, state in enumerate(STATES)}


class Ledger:
    """Records 1 to `last`. Headers are noted from 1 on, in order; meanwhile those at the end may be previewed.

    A preview knows of no record before its first, so a result there may be without its call until all are noted.
    """

    def __init__(self, last: int = 0) -> None:
        self._kinds = bytearray(last + 1)  # at 0: nothing
        self._states = bytearray(last + 1)
        self._about = array("I", bytes(4 * (last + 1)))
        self._fold = Fold()
        self._preview = Fold()
        self._noted = 0
        self._behind: list[Header] = []  # came at the end before those ahead of them were noted

    @property
    def last(self) -> int:
        """Number of the last record, 0 for none."""
        return len(self._kinds) - 1

    @property
    def noted(self) -> int:
        """Up to which number all headers are known."""
        return self._noted

    def kind(self, n: int) -> str:
        """The kind of record `n`, `other` for one of a later release, empty while it is not known."""
        return KINDS[self._kinds[n]]

    def state(self, n: int) -> State:
        """Of a call what came of it, of a result its own, `void` for a block of a try that broke off."""
        return STATES[self._states[n]]

    def about(self, n: int) -> int:
        """As daemon.view.Noted has it."""
        return self._about[n]

    def call(self, id: str) -> int:
        """The number of a call that has no result yet, by its id; 0 for one that is not known."""
        return self._fold.waiting.get(id, 0) or self._preview.waiting.get(id, 0)

    def codes(self) -> bytes:
        """The place in KINDS of each record's kind, from the first record on."""
        return bytes(self._kinds[1:])

    def preview(self, header: Header) -> None:
        """Take in a header near the end, in order, ahead of those before it."""
        self._take(header, self._preview)

    def note(self, header: Header) -> None:
        """Take in the next header; the one after `noted`. Others are passed over."""
        if header.n != self._noted + 1:
            return
        self._noted = header.n
        self._take(header, self._fold)

    def append(self, header: Header) -> None:
        """Take in a new record, the one after `last`."""
        behind = self._noted < self.last
        self._grow()
        if behind:
            self._behind.append(header)
            self._take(header, self._preview)
        else:
            self.note(header)

    def catch_up(self) -> None:
        """Note what was appended while those ahead of it were still being noted."""
        for header in self._behind:
            self.note(header)
        if self._noted == self.last:
            self._behind.clear()

    def _grow(self) -> None:
        self._kinds.append(0)
        self._states.append(0)
        self._about.append(0)

    def _take(self, header: Header, fold: Fold) -> None:
        n = header.n
        noted = fold.note(header)
        self._kinds[n] = _KIND.get(header.kind, 1)
        self._states[n] = _STATE[noted.state]
        self._about[n] = noted.about
        if (
            header.kind == "result" and self.state(noted.about) == "running"
        ):  # not what the images behind it say
            self._states[noted.about] = _STATE[noted.state]
        for void in noted.void:
            self._states[void] = _STATE["void"]

    def whole(self, n: int) -> int:
        """The last record of the step that record `n` is of, with the results of its calls; else `n`."""
        match self.kind(n):
            case "text" | "thinking" | "call" if self.state(n) != "void":
                step = self.find("step", n)
            case "result":
                step = self.find("step", n, -1)
            case "step":
                step = n
            case _:
                return n
        first, end = self.find("step", step, -1), self.find("step", step) or self.last + 1
        answers = [
            at
            for at in range(step + 1, end if step else 0)
            if self.kind(at) == "result" and first < self.about(at) < step
        ]
        return max(n, step, *answers)

    def find(self, kind: str, after: int, step: int = 1, state: State | None = None) -> int:
        """The next record of a kind after number `after` (before it for a `step` of -1), 0 for none."""
        code = _KIND[kind]
        at = after
        while True:
            at = self._kinds.find(code, at + 1) if step > 0 else self._kinds.rfind(code, 1, at)
            if at < 1:
                return 0
            if state is None or STATES[self._states[at]] == state:
                return at
