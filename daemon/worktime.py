"""How long a session was at work, from records alone: what it waited for, be it a person or a worker, is no work."""

from datetime import datetime

from msgspec import Struct

from daemon.protocol import records
from daemon.protocol.records import Header


class Worktime(Struct):
    """The fold: takes the header of each step, result and error, in order. Two of the same records are equal."""

    before: float = 0.0  # seconds, without the calls of the last step
    stepped: datetime | None = None  # when that closed
    ran: float = 0.0  # seconds that its calls took, all together
    until: float = 0.0  # and until the last result of them came

    @property
    def seconds(self) -> float:
        """Of requests until they were answered or failed, and of calls what they took, side by side or not."""
        return self.before + min(self.ran, self.until)

    def step(self, header: Header) -> None:
        """A request was answered."""
        self.before = self.seconds + _asked(header)
        self.stepped, self.ran, self.until = records.instant(header.time), 0.0, 0.0

    def error(self, header: Header) -> None:
        """Where a request was under way, it came to nothing."""
        self.before += _asked(header)

    def result(self, header: Header) -> None:
        """A call of the last step was carried out."""
        self.ran += max(0.0, header.seconds or 0.0)
        self.until = _between(self.stepped, header.time)


def _asked(header: Header) -> float:
    return _between(records.instant(header.sent), header.time)


def _between(start: datetime | None, time: str) -> float:
    """Seconds from `start` to a record's time; 0 where one of them is none, or the clock was set back between them."""
    end = records.instant(time) if start is not None else None
    return max(0.0, (end - start).total_seconds()) if start is not None and end is not None else 0.0
