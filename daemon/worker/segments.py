"""A log in numbered files: each unit appended whole or not at all, found again by its place."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Generic, TypeVar

from daemon.protocol import framing

MAX_HEADER: Final = 256 << 10  # bytes: a path and two ids of any characters, escaped
MAX_BODY: Final = 2 << 20  # bytes: a run's code, or a result with its text escaped
READ_SIZE: Final = 1 << 20
BEGINS: Final = b'{"unit":"'  # every unit: msgspec puts the tag first

H = TypeVar("H", bound=framing.HasLen)


class Segment:
    """One file of the log. `dead`: bytes of it that nobody needs; `live`: how many of its entries are known."""

    __slots__ = ("_fd", "_torn", "dead", "live", "path", "size")

    def __init__(self, path: Path, size: int = 0) -> None:
        self.path = path
        self.size = size
        self.dead = 0
        self.live = 0
        self._fd = -1
        self._torn = False  # a part of a unit could not be taken back

    def create(self) -> None:
        """Make the file, which must not be there, and hold it open."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, data: bytes) -> int:
        """Add a unit; its place. Raises OSError: nothing of it is there then."""
        fd = self._fd if self._fd >= 0 else self._open()
        try:
            if self._torn:
                os.ftruncate(fd, self.size)
                self._torn = False
            if os.write(fd, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self.size)
                self._torn = False
            raise
        finally:
            if fd != self._fd:
                os.close(fd)
        at, self.size = self.size, self.size + len(data)
        return at

    def read(self, at: int, length: int) -> bytes:
        """So many bytes from a place, fewer where the file ends. Raises OSError."""
        fd = self._open()
        try:
            return os.pread(fd, length, at)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Hold it open no longer; it can be used as before."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)


def units(path: Path, parse: Callable[[bytes], H]) -> Iterator[tuple[H, bytes, int, int]]:
    """Every whole unit of a file with its body, place and length. Raises FramingError where it is no unit.

    The last one may be cut short, but nothing in it may look like another: a length that is wrong swallows them all.
    """
    decoder: framing.Decoder[H] = framing.Decoder(parse, MAX_HEADER, MAX_BODY)
    with path.open("rb", buffering=0) as file:
        while data := file.read(READ_SIZE):
            decoder.feed(data)
            at = decoder.consumed
            while unit := decoder.next():
                header, _, body = unit
                yield header, body, at, decoder.consumed - at
                at = decoder.consumed
        if decoder.pending:
            file.seek(decoder.consumed)
            if b"\n" + BEGINS in file.read():
                raise framing.FramingError("units within a unit that does not end")


class Log(Generic[H]):
    """The files of a log in one folder, `log-1`, `log-2` and so on; the last one takes new entries up to `limit`."""

    def __init__(self, folder: Path, parse: Callable[[bytes], H], limit: int) -> None:
        self.segments: list[Segment] = []
        self._folder = folder
        self._parse = parse
        self._limit = limit
        self._current: Segment | None = None
        self._number = 0

    def files(self) -> list[Path]:
        """What is there, in order."""
        found = [path for path in self._folder.glob("log-*") if path.name[4:].isdigit()]
        return sorted(found, key=lambda path: int(path.name[4:]))

    def load(self, take: Callable[[Segment, H, bytes, int, int], None]) -> bool:
        """Hand over every unit, and cut off what is not whole; False where that is more than a torn last one."""
        sound = True
        for path in self.files():
            self._number = int(path.name[4:])
            segment = Segment(path)
            try:
                for header, body, at, length in units(path, self._parse):
                    segment.size = at + length
                    take(segment, header, body, at, length)
            except framing.FramingError:
                sound = False
            os.truncate(path, segment.size)
            self.segments.append(segment)
        return sound

    def current(self) -> Segment:
        """Where a new entry goes. Raises OSError."""
        if self._current is None or self._current.size > self._limit:
            segment = Segment(self._folder / f"log-{self._number + 1}")
            segment.create()
            self._number += 1
            self.roll()
            self.segments.append(segment)
            self._current = segment
        return self._current

    def roll(self) -> None:
        """Begin another file with the next entry."""
        if self._current:
            self._current.close()
            self._current = None

    def remove(self, segment: Segment) -> None:
        """Remove a file of which nothing is needed."""
        if segment is self._current:
            self.roll()
        segment.path.unlink(missing_ok=True)
        self.segments.remove(segment)

    def units(self, segment: Segment) -> Iterator[tuple[H, bytes, int, int]]:
        return units(segment.path, self._parse)
