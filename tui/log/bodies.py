"""The window of records that are here whole: those that were looked at last, within bounds."""

from collections import OrderedDict
from typing import Final

from daemon.protocol.records import Record

BODIES: Final = 1000  # records that are kept whole
SPARE: Final = 200  # more of them before some are dropped, so that not each new one looks through all
BODY_BYTES: Final = 8 << 20  # bytes of all bodies together


class Bodies:
    """Whole records by their number."""

    def __init__(self) -> None:
        self._records: OrderedDict[int, Record] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, n: object) -> bool:
        return n in self._records

    def get(self, n: int) -> Record | None:
        """Record `n`, which is then the one that was looked at last."""
        found = self._records.get(n)
        if found is not None:
            self._records.move_to_end(n)
        return found

    def keep(self, record: Record) -> None:
        """One more; none goes before `trim`."""
        before = self._records.pop(record.n, None)
        self.bytes += len(record.body) - (len(before.body) if before else 0)
        self._records[record.n] = record

    def trim(self, seen: set[int]) -> None:
        """Drop those that were not looked at for longest, where there are too many. Those `seen` stay."""
        if len(self._records) <= BODIES + SPARE and self.bytes <= BODY_BYTES:
            return
        for n in list(self._records):
            if len(self._records) <= BODIES and self.bytes <= BODY_BYTES:
                return
            if n not in seen:
                self.bytes -= len(self._records.pop(n).body)
