"""Heights of many records: the sum of the first few, and which one holds a line, in logarithmic time."""

from array import array
from collections.abc import Iterable


class Heights:
    """Heights in lines, a Fenwick tree over them. All are at least 0."""

    def __init__(self, heights: Iterable[int] = ()) -> None:
        self._heights = array("i", iter(heights))
        self._sums = array("i", [0])  # at i, from 1: the sum of the heights from i - (i & -i) to i - 1
        self.total = sum(self._heights)
        self._build()

    def _build(self) -> None:
        sums = array("i", [0])
        sums.extend(self._heights)
        size = len(sums)
        for i in range(1, size):
            above = i + (i & -i)
            if above < size:
                sums[above] += sums[i]
        self._sums = sums

    def __len__(self) -> int:
        return len(self._heights)

    def __getitem__(self, index: int) -> int:
        return self._heights[index]

    def __setitem__(self, index: int, height: int) -> None:
        change = height - self._heights[index]
        if not change:
            return
        self._heights[index] = height
        self.total += change
        sums, size, i = self._sums, len(self._sums), index + 1
        while i < size:
            sums[i] += change
            i += i & -i

    def append(self, height: int) -> None:
        """One more at the end."""
        self._heights.append(height)
        self.total += height
        i = len(self._heights)
        below, stop, found = i - 1, i - (i & -i), height
        while below > stop:
            found += self._sums[below]
            below -= below & -below
        self._sums.append(found)

    def before(self, index: int) -> int:
        """The sum of the first `index` heights: the line that record `index` begins at."""
        found = 0
        while index > 0:
            found += self._sums[index]
            index -= index & -index
        return found

    def find(self, y: int) -> tuple[int, int]:
        """(index, line in it) of the record that holds line `y`; the ends for what is outside. Not of none."""
        if y < 0:
            return 0, 0
        if y >= self.total:
            return len(self) - 1, max(0, self._heights[-1] - 1)
        index, size = 0, len(self)
        bit = 1 << size.bit_length()
        while bit := bit >> 1:
            if index + bit <= size and self._sums[index + bit] <= y:
                index += bit
                y -= self._sums[index]
        return index, y
