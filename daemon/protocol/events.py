"""The event streams, of one session and of the daemon: server-sent events out of values, and back again."""

import re
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar, assert_never

import msgspec
from msgspec import Struct

from daemon.protocol import api, records
from daemon.protocol.records import BadRecord, Record

MEDIA_TYPE: Final = "text/event-stream"
LAST_ID_HEADER: Final = "Last-Event-ID"
COMMENT: Final = b":\n\n"
MAX_EVENT: Final = (
    7 * records.MAX_BODY
)  # a control character is one byte of a body and six in JSON, the header is small

SessionEvent = Record | api.Delta | api.RetryEvent | api.Restart | api.ApiError
DaemonEvent = api.State | api.Info | api.Workers | api.ApiError
Event = SessionEvent | DaemonEvent

T = TypeVar("T")

_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class BadEvent(ValueError):
    """These bytes are not an event of ours, or they are over the limit."""


class _Data(Struct, frozen=True):
    header: msgspec.Raw
    body: str | None = None


_data = msgspec.json.Decoder(_Data).decode
_error = msgspec.json.Decoder(api.ApiError).decode


def _record(data: bytes) -> Record:
    value = _data(data)
    header = records.parse_header(bytes(value.header))
    return Record(header, (value.body or "").encode("utf-8", "replace"), bytes(value.header))


SESSION: Final[Mapping[str, Callable[[bytes], SessionEvent]]] = {
    "record": _record,
    "delta": msgspec.json.Decoder(api.Delta).decode,
    "retry": msgspec.json.Decoder(api.RetryEvent).decode,
    "restart": msgspec.json.Decoder(api.Restart).decode,
    "error": _error,
}
DAEMON: Final[Mapping[str, Callable[[bytes], DaemonEvent]]] = {
    "state": msgspec.json.Decoder(api.State).decode,
    "session": msgspec.json.Decoder(api.Info).decode,
    "workers": msgspec.json.Decoder(api.Workers).decode,
    "error": _error,
}


def carries_text(type: str) -> bool:
    """Whether an event holds the body of a record of media type `type`: text and JSON, as text."""
    kind = records.essence(type)
    return kind.startswith("text/") or kind.endswith("json")


def encode(event: Event) -> bytes:
    """One event.

    A record's `id:` is its number and its data `{"header": …, "body": "…"}`: the header line as it stands in
    the file, the body as text where `carries_text`, else left out.
    """
    name: bytes
    match event:
        case Record():
            line = event.raw or records.encode(event)[0]
            if not line.isascii():
                line = line.decode("utf-8", "replace").encode()
            data = b'{"header":' + line.replace(b"\r", b" ")
            if carries_text(event.header.type):
                data += b',"body":' + msgspec.json.encode(event.body.decode("utf-8", "replace"))
            return b"id: %d\nevent: record\ndata: %b}\n\n" % (event.n, data)
        case api.Delta():
            name = b"delta"
        case api.RetryEvent():
            name = b"retry"
        case api.Restart():
            name = b"restart"
        case api.ApiError():
            name = b"error"
        case api.State():
            name = b"state"
        case api.Info():
            name = b"session"
        case api.Workers():
            name = b"workers"
        case _:
            assert_never(event)
    return b"event: %b\ndata: %b\n\n" % (name, api.encode(event))


class Decoder(Generic[T]):
    """Events out of bytes that arrive in any pieces. `feed` takes bytes, `next` gives an event or None.

    `known`: SESSION or DAEMON, what each event's data is by its name.

    Comments and events of other names are passed over. A record from an event has its header line in `raw`,
    and an empty body where the event held none. After a BadEvent the decoder is spent.
    """

    def __init__(self, known: Mapping[str, Callable[[bytes], T]], max_event: int = MAX_EVENT) -> None:
        self._known = known
        self._buffer = bytearray()
        self._searched = 0
        self._max = max_event

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> T | None:
        """The next event, or None when more bytes are needed. Raises BadEvent."""
        while found := _END.search(self._buffer, self._searched):
            block = bytes(memoryview(self._buffer)[: found.start()])
            del self._buffer[: found.end()]
            self._searched = 0
            if (event := self._parse(block)) is not None:
                return event
        self._searched = max(0, len(self._buffer) - 3)
        if len(self._buffer) > self._max:
            raise BadEvent(f"an event over {self._max} bytes")
        return None

    def _parse(self, block: bytes) -> T | None:
        name, data = "", b""
        for line in re.split(rb"\r\n|\n|\r", block):
            field, _, value = line.partition(b":")
            if field == b"event":
                name = value.removeprefix(b" ").decode("utf-8", "replace")
            elif field == b"data":
                data += value.removeprefix(b" ")
        try:
            decode = self._known.get(name)
            return decode(data) if decode else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadRecord) as error:
            raise BadEvent(f"event {name!r}: {error}") from error
