"""Read and write byte ranges of an open file, all of them or none. Everything here blocks."""

import errno
import itertools
import os
from collections.abc import Sequence
from typing import Final

from daemon.protocol import records
from daemon.protocol.framing import FramingError
from daemon.protocol.records import BadRecord, Record

BLOCK: Final = 1 << 20  # bytes read at once
PEEK: Final = 4096  # bytes in which nearly every header line ends


class Uncut(OSError):
    """What a failed write left behind could not be cut off."""


class Changed(Exception):
    """The file is not as it was left: another program wrote to it or removed it."""


class Unread(Exception):
    """Bytes that were there once do not read now: offset of the record or of the range, and the reason."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


def get(fd: int, start: int, end: int) -> bytes:
    """The bytes from `start` to `end`. Raises Unread."""
    at, pieces = start, list[bytes]()
    try:
        while at < end and (piece := os.pread(fd, end - at, at)):
            at += len(piece)
            pieces.append(piece)
    except OSError as error:
        raise Unread(at, f"the disk does not give it: {error.strerror}") from error
    if at < end:
        raise Unread(at, "the file has become shorter")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def see(fd: int, end: int) -> None:
    """See that the file is there and ends at `end`. Raises Changed, OSError."""
    now = os.fstat(fd)
    if now.st_size != end:
        raise Changed(f"it has {now.st_size} bytes, and had {end}")
    if not now.st_nlink:
        raise Changed("it was removed or replaced")


def put(fd: int, data: bytes, offset: int) -> None:
    """Write `data` at `offset`, the file's end. On failure cuts it off again and raises OSError; Uncut if it stays.

    Raises Changed where the file does not end there.
    """
    see(fd, offset)
    done = 0
    try:
        while done < len(data):
            wrote = os.pwrite(fd, memoryview(data)[done:] if done else data, offset + done)
            if not wrote:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done += wrote  # a short write: the next one says why
    except OSError as error:
        try:
            os.ftruncate(fd, offset)
        except OSError as second:
            raise Uncut(error.errno, error.strerror) from second
        raise


def header_lines(fd: int, edges: Sequence[int]) -> list[bytes]:
    """Header lines of the records that begin at `edges[:-1]`; the last edge ends the last one. Raises Unread."""
    lines = []
    for start, end in itertools.pairwise(edges):
        line, newline, _ = get(fd, start, min(start + PEEK, end)).partition(b"\n")
        if not newline:
            line, newline, _ = get(fd, start, min(start + records.MAX_HEADER + 1, end)).partition(b"\n")
        if not newline:
            raise Unread(start, "its header line has no end")
        lines.append(line)
    return lines


def read_records(fd: int, start: int, end: int, first: int) -> list[Record]:
    """The records in a byte range, numbered from `first`. Raises Unread."""
    decoder, found = records.decoder(), list[Record]()
    good = at = start
    try:
        while at < end:
            piece = get(fd, at, min(at + BLOCK, end))
            at += len(piece)
            decoder.feed(piece)
            while (unit := decoder.next()) is not None:
                header, line, body = unit
                records.check(line, body)
                if header.n != first + len(found):
                    raise Unread(good, f"it says that it is record {header.n}")
                found.append(Record(header, body, line))
                good = start + decoder.consumed
    except (FramingError, BadRecord) as error:
        raise Unread(good, str(error)) from error
    if good < end:
        raise Unread(good, "it is longer than it was")
    return found
