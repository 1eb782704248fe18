"""Cut the bytes of an event stream into events; pure, and by bytes alone.

The format is the WHATWG's "server-sent events" (HTML standard, 9.2.6), but for its end: an event that no blank line
closed is given out by `end`, since some providers leave the last blank line out.
"""

import re
from typing import Final

from msgspec import Struct

BOM: Final = b"\xef\xbb\xbf"
MAX_EVENT: Final = (
    64 << 20
)  # bytes: far above any answer, so a stream without line ends cannot eat the memory

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class Event(Struct, frozen=True):
    """One event: its data lines joined by a newline, its type (empty when not named), the last id seen."""

    data: bytes
    name: str = ""
    id: str = ""


class TooLong(ValueError):
    """One event of the stream is over the limit; it is not an answer."""


class Parser:
    """Takes bytes in any pieces. What it costs depends on the bytes fed, not on what is held.

    `limit`: bytes of one event. `retry`: the reconnection time (milliseconds) that the stream asked for last, None
    when it asked for none.
    """

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._limit = limit
        self.retry: int | None = None
        self._tail: list[bytes] = []  # pieces of a line that has not ended
        self._held = 0  # bytes in them and in the event's data lines
        self._after_cr = False
        self._first = True
        self._name = ""
        self._data: list[bytes] = []
        self._id = ""

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete by now. Raises TooLong."""
        if not data:
            return []
        start = 1 if self._after_cr and data[0] == 0x0A else 0
        self._after_cr = data[-1] == 0x0D
        events: list[Event] = []
        for end in _LINE_END.finditer(data, start):
            self._line(self._whole(data[start : end.start()]), events)
            start = end.end()
        if start < len(data):
            self._hold(len(data) - start)
            self._tail.append(data[start:])
        return events

    def end(self) -> list[Event]:
        """The stream has ended: the event that was left open, if there is one."""
        events: list[Event] = []
        if self._tail:
            self._line(self._whole(b""), events)
        self._dispatch(events)
        return events

    def _whole(self, rest: bytes) -> bytes:
        if not self._tail:
            return rest
        self._tail.append(rest)
        line = b"".join(self._tail)
        self._held -= len(line) - len(rest)
        self._tail.clear()
        return line

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > self._limit:
            raise TooLong(f"an event of more than {self._limit} bytes")

    def _line(self, line: bytes, events: list[Event]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(BOM)
        if not line:
            self._dispatch(events)
            return
        field, _, value = line.partition(b":")  # a comment is a line whose field name is empty
        value = value.removeprefix(b" ")
        if field == b"data":
            self._hold(len(value))
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit():
            self.retry = int(value[:12])

    def _dispatch(self, events: list[Event]) -> None:
        if self._data:
            events.append(Event(b"\n".join(self._data), self._name, self._id))
            self._data.clear()
            self._held = 0
        self._name = ""
