"""What is kept of drawing records: their rows, and which of them are folded."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from tui.log.text import Row

DRAWN: Final = 600  # records whose rows are kept: some screens up and down
DRAWN_ROWS: Final = 20_000  # rows of these together, 10 MB


class Drawn:
    """Rows by record number, with what they were drawn from; those that were not asked for longest go."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[object, list[Row]]] = OrderedDict()
        self.rows = 0  # of all that are kept

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[tuple[int, list[Row]]]:
        """(number, rows) of those that are kept."""
        return ((n, rows) for n, (_, rows) in self._kept.items())

    def get(self, n: int, made_of: object) -> list[Row] | None:
        """Record `n` as it was drawn from the same, None where it was not."""
        kept = self._kept.get(n)
        if kept is None or kept[0] != made_of:
            return None
        self._kept.move_to_end(n)
        return kept[1]

    def put(self, n: int, made_of: object, rows: list[Row]) -> None:
        """Keep the rows of record `n`."""
        if (kept := self._kept.get(n)) is not None:
            self.rows -= len(kept[1])
        self._kept[n] = (made_of, rows)
        self._kept.move_to_end(n)
        self.rows += len(rows)
        while len(self._kept) > 1 and (len(self._kept) > DRAWN or self.rows > DRAWN_ROWS):
            self.rows -= len(self._kept.popitem(last=False)[1][1])


class Folds:
    """Which records somebody folded or opened, each for itself or all of a kind."""

    def __init__(self) -> None:
        self._records: dict[int, bool] = {}
        self._kinds: dict[str, bool] = {}

    def of(self, n: int, kind: str) -> bool | None:
        """How record `n` of this kind is to be; None where nobody said."""
        folded = self._records.get(n)
        return self._kinds.get(kind) if folded is None else folded

    def set(self, n: int, folded: bool) -> None:
        """Fold record `n` or open it."""
        self._records[n] = folded

    def set_kind(self, kind: str, folded: bool, kind_of: Callable[[int], str]) -> None:
        """Fold all records of a kind or open them, whatever was said of one. `kind_of`: of a record by number."""
        self._kinds[kind] = folded
        for n in [n for n in self._records if kind_of(n) == kind]:
            del self._records[n]

    def of_kind(self, kind: str) -> bool | None:
        """How all of a kind were folded last."""
        return self._kinds.get(kind)
