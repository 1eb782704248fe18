"""The sessions' files as they lie there: which there are, when they changed, and what one says from end to end."""

import errno
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from daemon.protocol.records import BadRecord, Record
from daemon.statefile import blocks
from daemon.statefile.descriptors import FLAGS
from daemon.statefile.errors import Damage, StateFileError
from daemon.statefile.interface import Survey
from daemon.statefile.publish import NAME, SESSIONS, STATE
from daemon.statefile.scan import Scan, irregular, scan_fd, unreadable

SLICE: Final = 4 << 20  # bytes of records that are in memory at once, or one record
PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # our lack, not the file's


class Files:
    """What the index looks at, of one data folder. All of it blocks."""

    def __init__(self, data: Path) -> None:
        self._folder = data / SESSIONS

    def changed(self) -> int:
        """When a file last came or went (ns), 0 where there is no folder."""
        try:
            return os.stat(self._folder).st_mtime_ns
        except OSError:
            return 0

    def ids(self) -> Iterator[str]:
        """Every session's id. Raises StateFileError."""
        return (match[1] for match, _ in self._entries())

    def all(self) -> Iterator[tuple[str, int, int]]:
        """(id, bytes, time of change) of every session. Raises StateFileError."""
        for match, entry in self._entries():
            try:
                now = entry.stat()
            except OSError:
                continue  # removed just now
            yield match[1], now.st_size, now.st_mtime_ns

    def at(self, id: str) -> tuple[int, int] | None:
        """(Bytes, time of change) of one, None where it is not there."""
        try:
            now = os.stat(f"{self._folder}/{id}{STATE}")
        except OSError:
            return None
        return now.st_size, now.st_mtime_ns

    def _entries(self) -> Iterator[tuple[re.Match[str], "os.DirEntry[str]"]]:
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if match := NAME.fullmatch(entry.name):
                        yield match, entry
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateFileError(f"{self._folder} cannot be read: {error.strerror}") from error


def survey(path: Path, add: Callable[[Record], None]) -> Survey:
    """Give every record of a file to `add`, up to one that does not read or for which it raises BadRecord. Blocks.

    Raises FileNotFoundError, and OSError of PASSING.
    """
    try:
        fd = os.open(path, os.O_RDONLY | FLAGS)
    except OSError as error:
        if error.errno in PASSING:
            raise
        there = os.stat(path)
        return Survey(there.st_size, there.st_mtime_ns, unreadable(error).damage)
    try:
        there = os.fstat(fd)
        found = scan_fd(fd) if stat.S_ISREG(there.st_mode) else irregular()
        return Survey(there.st_size, there.st_mtime_ns, _feed(add, fd, found) or found.damage)
    finally:
        os.close(fd)


def _feed(add: Callable[[Record], None], fd: int, found: Scan) -> Damage | None:
    """Give what the scan found; where that is no longer, or no session, the damage."""
    offsets, n = found.offsets, 0
    try:
        while n < len(offsets):
            start = offsets[n]
            last = max(bisect_right(offsets, start + SLICE), n + 1)
            end = offsets[last] if last < len(offsets) else found.end
            for record in blocks.read_records(fd, start, end, n + 1):
                try:
                    add(record)
                except BadRecord as error:
                    return Damage(n + 1, offsets[n], str(error))
                n += 1
    except blocks.Unread as error:
        return Damage(bisect_right(offsets, error.offset), error.offset, error.reason)
    return None
