"""Cut a byte stream into units of a JSON header line, `len` raw bytes and a newline; and join them again."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class HasLen(Protocol):
    """A parsed header: `len` is the number of body bytes that follow its line."""

    @property
    def len(self) -> int: ...


H = TypeVar("H", bound=HasLen)


class FramingError(Exception):
    """These bytes are not a header line, a body of its length and a newline, or they are over the limits."""


def encode(header: bytes, body: bytes) -> bytes:
    """One unit on the wire or in a file: `header` (one line of JSON, no newline in it), then `body`."""
    return b"%b\n%b\n" % (header, body)


class Decoder(Generic[H]):
    """Units out of bytes that arrive in any pieces. `feed` takes bytes, `next` gives a whole unit or None.

    `parse` turns a header line into an object with `len`; a ValueError or RecursionError from it becomes
    FramingError. The limits (bytes) are checked before a body is waited for, so a peer cannot make us hold
    more. `consumed` counts the bytes of all units given out. After a FramingError the decoder is spent:
    `next` raises it again.
    """

    def __init__(self, parse: Callable[[bytes], H], max_header: int, max_body: int) -> None:
        self._parse = parse
        self._max_header = max_header
        self._max_body = max_body
        self._buffer = bytearray()
        self._searched = 0
        self._start = 0
        self._header: H | None = None
        self._line = b""
        self.consumed = 0

    @property
    def pending(self) -> int:
        """Bytes fed that no unit has taken yet."""
        return len(self._buffer) - self._start + (len(self._line) + 1 if self._header is not None else 0)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the stream, in pieces of any size."""
        if self._start:
            del self._buffer[: self._start]
            self._searched -= self._start
            self._start = 0
        self._buffer += data

    def next(self) -> tuple[H, bytes, bytes] | None:
        """(parsed header, its raw line, body), or None when more bytes are needed. Raises FramingError."""
        buffer = self._buffer
        if self._header is None:
            end = buffer.find(b"\n", max(self._start, self._searched))
            if end < 0:
                self._searched = len(buffer)
                if len(buffer) - self._start > self._max_header:
                    raise FramingError(f"header line over {self._max_header} bytes")
                return None
            if end - self._start > self._max_header:
                raise FramingError(f"header line over {self._max_header} bytes")
            line = bytes(buffer[self._start : end])
            try:
                header = self._parse(line)
            except (ValueError, RecursionError) as error:  # brackets a thousand deep are JSON too
                raise FramingError(f"not a header line: {error}") from error
            if not 0 <= header.len <= self._max_body:
                raise FramingError(f"body of {header.len} bytes, where 0 to {self._max_body} are allowed")
            self._start = self._searched = end + 1
            self._header, self._line = header, line
        header, size = self._header, self._header.len
        if len(buffer) - self._start < size + 1:
            return None
        stop = self._start + size
        if buffer[stop] != 0x0A:
            raise FramingError("no newline after the body")
        body = bytes(memoryview(buffer)[self._start : stop])
        line, self._header, self._line = self._line, None, b""
        self._start = self._searched = stop + 1
        self.consumed += len(line) + size + 2
        return header, line, body
