"""Cut the bytes of an AWS event stream into frames; pure, each check sum looked at before anything is believed.

The format is Smithy's "Amazon Event Stream" (application/vnd.amazon.eventstream): a prelude of two lengths and their
CRC32, headers, a payload, and a CRC32 of all that. It is read here and not by botocore, so that a bearer token works
without the extra, and since botocore's reader copies all that it holds with each piece.
"""

import struct
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

from daemon.provider.sse import Event

PRELUDE: Final = struct.Struct(">III")  # length of the whole frame, of its headers, and the CRC of these two
TAIL: Final = 4  # bytes of the frame's own CRC
LEAST: Final = PRELUDE.size + TAIL
MAX_HEADERS: Final = 128 << 10  # bytes, as the format has it
MAX_FRAME: Final = (24 << 20) + MAX_HEADERS + LEAST  # bytes, as the format has it
KINDS: Final = 64  # different headers that are remembered; a stream has about six

CORRUPT: Final = "corrupt"

# A header's value by its type: bytes, or bytes of the length before it.
_FIXED: Final = {2: ">b", 3: ">h", 4: ">i", 5: ">q", 8: ">q"}
_SIZED: Final = (6, 7)
_UUID: Final = 9


class Frame(Event, frozen=True):
    """One frame: its payload in `data`, in `name` what the event or the exception is called.

    `kind`: `event`, `exception`, `error`, or CORRUPT: then `name` says what is wrong, and no frame follows.
    """

    kind: str = "event"


class Bad(ValueError):
    """These bytes are no frame."""


class Parser:
    """Takes bytes in any pieces. `limit`: bytes of one frame."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._held = bytearray()
        self._broken = False

    def feed(self, data: bytes) -> list[Event]:
        """The frames that are complete by now; the last one may be CORRUPT."""
        if self._broken:
            return []
        held = self._held
        held += data
        frames: list[Event] = []
        start = 0
        try:
            while len(held) - start >= PRELUDE.size:
                size, headers = self._prelude(start)
                if len(held) - start < size:
                    break
                frames.append(_frame(bytes(held[start : start + size]), headers))
                start += size
        except Bad as error:
            self._broken = True
            frames.append(Frame(bytes(held[start : start + LEAST]), str(error), kind=CORRUPT))
            held.clear()
            return frames
        del held[:start]
        return frames

    def end(self) -> list[Event]:
        """The stream has ended: what is left is no whole frame."""
        return []

    def _prelude(self, start: int) -> tuple[int, int]:
        size, headers, crc = PRELUDE.unpack_from(self._held, start)
        if crc32(self._held[start : start + 8]) != crc:
            raise Bad("a frame's lengths do not have their check sum")
        if size < headers + LEAST or headers > MAX_HEADERS:
            raise Bad(f"a frame of {size} bytes with {headers} of headers")
        if size > self._limit:
            raise Bad(f"a frame of {size} bytes, where {self._limit} are allowed")
        return size, headers


def _frame(data: bytes, headers: int) -> Frame:
    """A whole frame, whose prelude was looked at."""
    (crc,) = struct.unpack_from(">I", data, len(data) - TAIL)
    if crc32(data[:-TAIL]) != crc:
        raise Bad("a frame does not have its check sum")
    at = PRELUDE.size + headers
    kind, name = _called(data[PRELUDE.size : at])
    return Frame(data[at:-TAIL], name, kind=kind)


@lru_cache(KINDS)
def _called(data: bytes) -> tuple[str, str]:
    """What kind of frame has these headers, and its name."""
    try:
        headers = parse_headers(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Bad(f"a frame's headers do not read: {error}") from None
    kind = str(headers.get(":message-type", "event"))
    names = {"exception": ":exception-type", "error": ":error-code"}
    name = str(headers.get(names.get(kind, ":event-type"), ""))
    if kind == "error":
        name = f"{name}: {headers.get(':error-message', '')}"
    return kind, name


def parse_headers(data: bytes) -> dict[str, Any]:
    """A frame's headers. Raises Bad, struct.error, IndexError and UnicodeDecodeError for bytes that are none."""
    found: dict[str, Any] = {}
    at = 0
    while at < len(data):
        size = data[at]
        name = data[at + 1 : at + 1 + size].decode()
        at += 1 + size
        type = data[at]
        at += 1
        value: Any
        if type < 2:
            value = type == 0
        elif type in _FIXED:
            (value,) = struct.unpack_from(_FIXED[type], data, at)
            at += struct.calcsize(_FIXED[type])
        elif type == _UUID or type in _SIZED:
            size = 16
            if type != _UUID:
                (size,) = struct.unpack_from(">H", data, at)
                at += 2
            value = data[at : at + size]
            if len(value) < size:
                raise Bad("a header is cut off")
            value = value.decode() if type == 7 else value
            at += size
        else:
            raise Bad(f"a header of type {type}")
        if name in found:
            raise Bad(f"two headers {name!r}")
        found[name] = value
    return found
