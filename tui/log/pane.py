"""What of a log is on the screen: records drawn where they are seen, the view held at a record's line, the cursor."""

from array import array
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from typing import Final, NamedTuple

from daemon.protocol.api import Delta
from daemon.protocol.records import Header, Record
from daemon.streaming import Live
from daemon.view import Item, item
from tui.log.bodies import Bodies
from tui.log.draw import LiveBlock, draw, folds
from tui.log.drawn import Drawn, Folds
from tui.log.heights import Heights
from tui.log.ledger import KINDS, Ledger
from tui.log.text import EMPTY, Row, wrap

AROUND: Final = 48  # records that are asked for on both sides of those that are missed
STEP: Final = 3  # rows that j and k move within a record that is taller than the screen

# Rows of a record that nobody has drawn yet, about.
_GUESS: Final = {"message": 4, "text": 8, "call": 5, "result": 3, "thinking": 2, "error": 4, "summary": 2}
_GUESSES: Final = bytes([_GUESS.get(kind, 1) if kind else 3 for kind in KINDS]) + bytes([1]) * (
    256 - len(KINDS)
)

Place = tuple[int, int]
"""A record's number and a line in it; the number after the last record's is what streams."""


class Range(NamedTuple):
    """Records `after + 1` to `after + limit`."""

    after: int
    limit: int


class Pane:
    """Records 1 to `last` of a session and what streams below them, in `columns` and `lines`."""

    def __init__(self, last: int = 0, zone: tzinfo | None = None) -> None:
        self.ledger = Ledger(last)
        self.heights = Heights(array("i", [_GUESSES[0]]) * last)
        self.live = Live()
        self.columns = 0
        self.lines = 0
        self.follow = True
        self.new = 0  # records that came since the view does not follow
        self.said = ""  # a line below everything, such as that a request is tried again
        self.cursor = last
        self.top: Place = (1, 0)
        self.view: list[Place] = []  # what stands on each line of the screen
        self.missed: set[int] = set()  # records of which more than a line stands there that have no body yet
        self._zone = zone
        self.bodies = Bodies()
        self._drawn = Drawn()
        self._folds = Folds()
        self._blocks: dict[int, LiveBlock] = {}
        self._live_rows: list[Row] = []

    @property
    def last(self) -> int:
        """Number of the last record."""
        return self.ledger.last

    @property
    def total(self) -> int:
        """Lines of everything, as far as is known."""
        return self.heights.total + len(self._live_rows)

    @property
    def y(self) -> int:
        """The line of all of them that is the first on the screen."""
        return self.heights.before(self.top[0] - 1) + self.top[1]

    # Records come.

    def keep(self, found: Iterable[Record]) -> None:
        """Bodies that were asked for."""
        for record in found:
            if 1 <= record.n <= self.last:
                self.bodies.keep(record)

    def preview(self, found: Sequence[Record]) -> None:
        """The records at the end, before the headers ahead of them are known."""
        for record in found:
            if self.ledger.noted < record.n <= self.last:
                self.ledger.preview(record.header)
        self.keep(found)

    def note(self, found: Iterable[Header]) -> None:
        """Headers, from the first on."""
        for header in found:
            if header.n <= self.last:
                self.ledger.note(header)

    def noted(self) -> None:
        """All headers up to the end are noted: guess the heights of what is not drawn by kind."""
        self.ledger.catch_up()
        self.heights = Heights(self.ledger.codes().translate(_GUESSES))
        for n, rows in self._drawn:
            self.heights[n - 1] = len(rows)

    def append(self, record: Record) -> None:
        """The next record; one that is there already is passed over."""
        if record.n != self.last + 1:
            return
        self.ledger.append(record.header)
        self.heights.append(_GUESSES[0])
        self.bodies.keep(record)
        self.live.record(record)
        self.say("")
        if self.follow:
            self.cursor = record.n
        else:
            self.new += 1

    def delta(self, delta: Delta) -> None:
        """A piece that streams."""
        self.live.feed(delta)
        self.say("")

    def say(self, text: str) -> None:
        """Say something below everything, or nothing."""
        self.said = text

    # Rows.

    def record(self, n: int) -> Record | None:
        """Record `n` if it is here whole."""
        return self.bodies.get(n)

    def item(self, n: int) -> Item | None:
        """Record `n` as an item if it is here whole."""
        record = self.record(n)
        return item(record, self.ledger.about(n)) if record else None

    def rows(self, n: int) -> list[Row]:
        """The rows of record `n`, or of what streams; rows that say nothing where the record is still missed."""
        if n > self.last:
            return self._live_rows
        ledger = self.ledger
        folded = self._folds.of(n, ledger.kind(n))
        made_of = (self.columns, ledger.state(n), ledger.about(n), folded)
        if (drawn := self._drawn.get(n, made_of)) is not None:
            return drawn
        found = self.item(n)
        if found is None:
            self.missed.add(n)
            text = f"… {self.ledger.kind(n)} #{n}" if self.ledger.kind(n) else f"… #{n}"
            return [Row(((text[: self.columns], "dim"),)), *[EMPTY] * (max(1, self.heights[n - 1]) - 1)]
        rows = draw(
            found,
            self.columns,
            folded=self._is_folded(found),
            state=self.ledger.state(n) or found.state,
            gap=n > 1,
            zone=self._zone,
        )
        self._drawn.put(n, made_of, rows)
        return rows

    def _height(self, n: int) -> int:
        """Of a record as it is drawn now; from here on that is what is known of it."""
        rows = self.rows(n)
        if n <= self.last:
            self.heights[n - 1] = len(rows)
        return len(rows)

    def draw_live(self) -> None:
        """Draw what streams as it is now."""
        streams = self.live.streams()
        blocks = {stream.key: self._blocks.get(stream.key) or LiveBlock(stream) for stream in streams}
        self._blocks = blocks
        rows = []
        for block in blocks.values():
            rows += block.rows(self.columns, self.ledger.call(block.stream.call))
        if self.said:
            rows += [EMPTY, *wrap([(self.said, "hint")], self.columns, words=True)]
        self._live_rows = rows

    # Folds.

    def _is_folded(self, found: Item) -> bool:
        folded = self._folds.of(found.n, self.ledger.kind(found.n))
        return folds(found) if folded is None else folded

    def folded(self, n: int) -> bool | None:
        """Whether record `n` is folded; None while it is not here, or where it has nothing to fold."""
        found = self.item(n)
        return None if found is None or not (found.body or found.media) else self._is_folded(found)

    def fold(self, n: int, folded: bool) -> None:
        """Fold record `n` or open it."""
        self._folds.set(n, folded)
        self._hold(n)

    def fold_kind(self, kind: str, folded: bool) -> None:
        """Fold all records of a kind or open them."""
        self._folds.set_kind(kind, folded, self.ledger.kind)

    def kind_folded(self, kind: str) -> bool | None:
        """How all of a kind were folded last."""
        return self._folds.of_kind(kind)

    def _hold(self, n: int) -> None:
        """Keep the title of record `n` on the screen when it changes its height."""
        if self.top[0] == n:
            self.top = (n, 0)
        if n != self.last:
            self._release()

    def _release(self) -> None:
        self.follow = False

    # The view.

    def resize(self, columns: int, lines: int) -> None:
        """Draw for so many columns and lines from now on."""
        self.columns, self.lines = columns, lines

    def layout(self) -> None:
        """Settle what stands on each line, drawing what is not drawn. The view does not move but by its own height."""
        self.missed.clear()
        self.bodies.trim({n for n, _ in self.view} | {self.cursor, self.last})
        if not (self.columns and self.lines):
            self.view = []
            return
        self.draw_live()
        if self.follow:
            self.top = self._bottom()
        self._fill()
        if len(self.view) < self.lines and self.top != (1, 0):
            self.top = self._bottom()
            self._fill()

    @property
    def at_end(self) -> bool:
        """Whether the last line of all is on the screen."""
        if not self.view:
            return True
        n, line = self.view[-1]
        if n <= self.last:
            return line == len(self.rows(n)) - 1 and not self._live_rows and n == self.last
        return line == len(self._live_rows) - 1

    def _bottom(self) -> Place:
        need = self.lines
        for n in range(self.last + 1, 0, -1):
            height = self._height(n)
            if height >= need:
                return n, height - need
            need -= height
        return 1, 0

    def _fill(self) -> None:
        n, line = self.top
        self.view = []
        if n <= self.last:
            line = min(line, max(0, self._height(n) - 1))
            self.top = (n, line)
        while n <= self.last + 1 and len(self.view) < self.lines:
            height = self._height(n)
            self.view += [(n, at) for at in range(line, min(height, line + self.lines - len(self.view)))]
            n, line = n + 1, 0

    def scroll(self, lines: int) -> None:
        """Move the view by lines, down or up."""
        if lines < 0:
            self._up(-lines)
        else:
            self._down(lines)
        self._moved()

    def _up(self, lines: int) -> None:
        n, line = self.top
        while lines > line and n > 1:
            lines -= line
            n -= 1
            line = self._height(n)
        self.top = (n, max(0, line - lines))
        self.follow = False
        self.layout()

    def _down(self, lines: int) -> None:
        n, line = self.top
        while n <= self.last and lines >= (left := self._height(n) - line):
            lines -= left
            n, line = n + 1, 0
        self.top = (n, line + lines)
        self.follow = False
        self.layout()

    def jump(self, y: int) -> None:
        """Move the view to line `y` of all."""
        if not self.last:
            return
        self.top = self.heights.find(y)
        self.top = (self.top[0] + 1, self.top[1])
        if y >= self.heights.total:
            self.top = (self.last + 1, y - self.heights.total)
        self.follow = False
        self.layout()
        self._moved()

    def to_end(self) -> None:
        """Follow the end."""
        self.follow, self.new = True, 0
        self.cursor = self.last
        self.layout()

    def to_top(self) -> None:
        """Go to the first record."""
        self.follow = False
        self.top, self.cursor = (1, 0), min(1, self.last)
        self.layout()
        self._moved()

    def _moved(self) -> None:
        """The view was moved: the cursor stays on the screen, and who is at the end follows."""
        if self.at_end:
            self.follow, self.new = True, 0
        seen = [n for n, _ in self.view if n <= self.last]
        if seen and not seen[0] <= self.cursor <= seen[-1]:
            self.cursor = seen[0] if self.cursor < seen[0] else seen[-1]

    def select(self, step: int) -> None:
        """Move the cursor to the next record (step 1) or the one before (-1), or within one that is too tall."""
        n, shown = self.cursor, [line for n, line in self.view if n == self.cursor]
        height = self._height(n) if n else 0
        if shown and step > 0 and shown[-1] < height - 1:
            self.scroll(min(STEP, height - 1 - shown[-1]))
        elif shown and step < 0 and shown[0] > 0:
            self.scroll(-min(STEP, shown[0]))
        elif 1 <= n + step <= self.last:
            self.reveal(n + step, low=step < 0)
        else:
            self.scroll(step * STEP)

    def reveal(self, n: int, line: int | None = None, low: bool = False) -> None:
        """Put the cursor on record `n` and move the view as little as that, or its `line`, needs.

        `low`: of a record that is taller than the screen the end is shown.
        """
        if not 1 <= n <= self.last:
            return
        self.cursor = n
        height = self._height(n)
        first, last = (0, height - 1) if line is None else (line, line)
        if last - first >= self.lines:
            first, last = (last - self.lines + 1, last) if low else (first, first + self.lines - 1)
        shown = [at for number, at in self.view if number == n]
        above = n < self.top[0] or (n == self.top[0] and first < self.top[1])
        if above:
            self.top, self.follow = (n, first), False
            self.layout()
        elif not shown or shown[-1] < last:
            far = n - self.view[-1][0] > self.lines if self.view else True
            if far or line is not None:
                self.top, self.follow = (n, max(0, first - self.lines // 3)), False
                self.layout()
            else:
                self._below(n, last)
        elif n != self.last:
            self.follow = False
        if self.at_end and n == self.last:
            self.follow, self.new = True, 0

    def _below(self, n: int, line: int) -> None:
        """Move the view down until `line` of record `n` is its last."""
        need = self.lines - line - 1
        self.follow = False
        self.top = (n, max(0, -need))
        while need > 0 and n > 1:
            n -= 1
            height = self._height(n)
            self.top = (n, max(0, height - need))
            need -= height
        self.layout()

    def wanted(self) -> Range | None:
        """The records to ask for next, around those that are missed on the screen."""
        if not self.missed:
            return None
        low, high = min(self.missed), max(self.missed)
        first, end = max(1, low - AROUND), min(self.last, high + AROUND)
        while first < low and first in self.bodies:
            first += 1
        while end > high and end in self.bodies:
            end -= 1
        return Range(first - 1, end - first + 1)
