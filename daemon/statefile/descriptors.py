"""Keep a bounded number of session files open, and open the others on demand."""

import errno
import os
from collections import OrderedDict
from pathlib import Path
from typing import Final

from daemon.statefile.threads import Threads

MAX_OPEN: Final = 256  # well below the usual limit of 1024 for a process, whose sockets need the rest
FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO in the folder must not hold the open for ever
READABLE: Final = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EISDIR,
)  # not to be written, perhaps to be read


def open_file(path: Path) -> int:
    """A descriptor to read and, where the file allows it, write. Raises OSError."""
    try:
        return os.open(path, os.O_RDWR | FLAGS)
    except OSError as error:
        if error.errno not in READABLE:
            raise
        return os.open(path, os.O_RDONLY | FLAGS)


class Descriptors:
    """The open files, least recently used first. More than `limit` stay open only while all are at work."""

    def __init__(self, threads: Threads, limit: int = MAX_OPEN) -> None:
        self.threads = threads
        self.open: OrderedDict[File, None] = OrderedDict()
        self._limit = limit

    def opened(self, file: "File") -> None:
        self.open[file] = None
        self._trim()

    def used(self, file: "File") -> None:
        self.open.move_to_end(file)

    def released(self) -> None:
        if len(self.open) > self._limit:
            self._trim()

    def _trim(self) -> None:
        for file in list(self.open):
            if len(self.open) <= self._limit:
                return
            if not file.pins:
                file.close()


class File:
    """One file's descriptor. While it is pinned it stays open; `fresh` until its owner has looked at the file."""

    def __init__(self, path: Path, pool: Descriptors, fd: int = -1) -> None:
        self.path = path
        self.fd = -1
        self.pins = 0
        self.fresh = True
        self._ended = False
        self._pool = pool
        if fd >= 0:
            self._keep(fd)

    async def pin(self) -> int:
        """The open descriptor, which stays open until `unpin`. Raises OSError."""
        while self.fd < 0:
            if self._ended:
                raise OSError(errno.EBADF, "the data folder is closed")
            await self._pool.threads.whole(self._open(), f"open {self.path.name}")
        self.pin_open()
        return self.fd

    def pin_open(self) -> None:
        """`pin` for who knows that it is open."""
        self.pins += 1
        self._pool.used(self)

    async def _open(self) -> None:
        fd = await self._pool.threads.run(open_file, self.path)
        if self.fd >= 0:
            os.close(fd)  # somebody else was quicker
        else:
            self._keep(fd)

    def _keep(self, fd: int) -> None:
        self.fd, self.fresh = fd, True
        self.pins += 1  # while room is made for it
        self._pool.opened(self)
        self.pins -= 1

    def unpin(self) -> None:
        self.pins -= 1
        if not self.pins:
            if self._ended:
                self.close()
            self._pool.released()

    def end(self) -> None:
        """Close it for good, as soon as nobody works with it."""
        self._ended = True
        if not self.pins:
            self.close()

    def close(self) -> None:
        """Close the descriptor, if there is one. Only for who knows that nobody works with it."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            self._pool.open.pop(self, None)
            os.close(fd)
