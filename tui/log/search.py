"""Search the records of a session for a text, those that are here and those that have to be fetched."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from daemon.protocol.records import Record
from daemon.view import item
from tui.log.messages import Source
from tui.log.pane import Pane

CHUNK: Final = 200  # records that are fetched in one go
_FAR: Final = 1 << 30


class Hit(Struct, frozen=True):
    """Record `n` has it, on its row `line`, or in the part that is not shown. `wrapped`: from the other end on."""

    n: int
    line: int | None
    wrapped: bool = False


class Search:
    """A text, whatever the case of its letters. `step`: the direction that "next" is, 1 down or -1 up."""

    def __init__(self, pattern: str, step: int) -> None:
        self.pattern = pattern
        self.step = step
        self._low = pattern.lower()
        self._at: tuple[int, int] | None = None  # record and line where it was found last

    async def find(self, pane: Pane, source: Source, session: str, step: int) -> Hit | None:
        """The next place below the cursor (above it for a `step` of -1), and on from the other end.

        What is found is opened. Raises ApiFailure or Unreachable.
        """
        n = pane.cursor
        if self._at is not None and self._at[0] == n and pane.record(n) is not None:
            lines = [at for at in self._lines(pane, n) if (at - self._at[1]) * step > 0]
            if lines:
                return self._hit(n, lines, step, False)
        elif self._at is None:
            n -= step  # the record at the cursor too
        for first, last, wrapped in _spans(n, pane.last, step):
            for at in range(first, last + step, step * CHUNK):
                until = min(last, at + CHUNK - 1) if step > 0 else max(last, at - CHUNK + 1)
                for record in await _read(pane, source, session, at, until):
                    found = item(record, pane.ledger.about(record.n))
                    if self._low in found.title.lower() or self._low in found.body.lower():
                        return self._opened(pane, record, step, wrapped)
        return None

    def _opened(self, pane: Pane, record: Record, step: int, wrapped: bool) -> Hit:
        n = record.n
        pane.keep([record])
        lines = list(self._lines(pane, n))
        if not lines and pane.folded(n):
            pane.fold(n, False)
            lines = list(self._lines(pane, n))
        return self._hit(n, lines, step, wrapped)

    def _hit(self, n: int, lines: list[int], step: int, wrapped: bool) -> Hit:
        line = (lines[0] if step > 0 else lines[-1]) if lines else None
        self._at = (n, line if line is not None else _FAR * step)
        return Hit(n, line, wrapped)

    def _lines(self, pane: Pane, n: int) -> Iterator[int]:
        return (at for at, row in enumerate(pane.rows(n)) if self._low in row.text.lower())


async def _read(pane: Pane, source: Source, session: str, first: int, last: int) -> list[Record]:
    """Records `first` to `last`, which may be the lower one."""
    low, high = min(first, last), max(first, last)
    here = {n: found for n in range(low, high + 1) if (found := pane.record(n)) is not None}
    if len(here) <= high - low:
        here |= {record.n: record for record in await source.records(session, low - 1, high - low + 1)}
    return [here[n] for n in sorted(here, reverse=first > last) if low <= n <= high]


def _spans(n: int, last: int, step: int) -> Iterator[tuple[int, int, bool]]:
    """(first, last, whether from the other end on) of the records to search after `n`, in two parts."""
    if step > 0:
        yield n + 1, last, False
        yield 1, min(n, last), True
    else:
        yield n - 1, 1, False
        yield last, max(n, 1), True
