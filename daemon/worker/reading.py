"""Read a regular file piece by piece, by bytes or lines: never hang on what is not one. Everything here blocks."""

import os
import threading
import time
from typing import Final

from daemon.protocol import frames
from daemon.worker.access import EVERYWHERE, Access
from daemon.worker.files import refusal, regular, resolve
from daemon.worker.refusal import Refusal

SKIP_WAIT: Final = 30.0  # seconds to come to the first line: a huge file without lines must not hold a thread


class Reading:
    """A file that is being read, piece by piece: from `offset`, at most `limit` bytes or lines (0: to the end).

    `size` is the whole file's in bytes; after the last piece `lines` counts the lines that were given (unit lines
    only) and `end` says that nothing follows them. One that grows is read up to where it ended when it was opened.
    """

    def __init__(self, frame: frames.Read, access: Access = EVERYWHERE) -> None:
        path = resolve(frame.path, frame.cwd)
        self.path = path
        real = os.path.realpath(path)
        try:
            access.read(real, path)
            regular(os.stat(path), path)  # before it is opened: opening a device can do things
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            raise refusal(error, path) from error
        except Refusal as refused:
            if refused.code == "is_directory" and real.isprintable():  # else no frame might hold it
                refused.path = real
            raise
        try:
            found = os.fstat(self._fd)
            regular(found, path)
            access.opened_to_read(self._fd, path)
        except Refusal:
            os.close(self._fd)
            raise
        self.size = found.st_size
        self.lines = 0
        self.end = False
        self._by_lines = frame.unit == "lines"
        self._position = 0 if self._by_lines else frame.offset
        self._skip = max(0, frame.offset - 1) if self._by_lines else 0  # lines
        self._limit = frame.limit
        self._sized = self.size > 0  # files of /proc say 0 and are read to their end
        self._in_line = False
        self._lock = threading.Lock()

    def piece(self, size: int = frames.PIECE) -> tuple[bytes, bool]:
        """The next at most `size` bytes, and whether they are the last. Raises Refusal."""
        with self._lock:
            data, last = self._lines_piece(size) if self._by_lines else self._bytes_piece(size)
            if last and not self._sized:
                self.size = self._position
            return data, last

    def _read(self, size: int) -> bytes:
        if self._sized:
            size = min(size, self.size - self._position)
        if size <= 0:
            return b""
        try:
            data = os.pread(self._fd, size, self._position)
        except OSError as error:
            raise refusal(error, self.path) from error
        self._position += len(data)
        return data

    def _bytes_piece(self, size: int) -> tuple[bytes, bool]:
        data = self._read(min(size, self._limit) if self._limit else size)
        if data and self._limit:
            self._limit -= len(data)
            if not self._limit:
                self.end = self._at_end()
                return data, True
        self.end = not data or (self._sized and self._position >= self.size)
        return data, self.end

    def _lines_piece(self, size: int) -> tuple[bytes, bool]:
        give_up = time.monotonic() + SKIP_WAIT
        while data := self._read(size):
            if self._skip and time.monotonic() > give_up:
                raise Refusal(
                    "failed",
                    f"{self.path}: the line was not reached within {SKIP_WAIT:.0f} s, after {self._position} bytes: "
                    "look into the file with `run`",
                )
            data = data[self._skipped(data) :]
            count = data.count(b"\n")
            if self._limit and count >= self._limit:
                stop = 0
                for _ in range(self._limit):
                    stop = data.index(b"\n", stop) + 1
                self._position -= len(data) - stop
                self.lines += self._limit
                self.end = self._at_end()
                return data[:stop], True
            self.lines += count
            self._limit -= count if self._limit else 0
            if data:
                self._in_line = not data.endswith(b"\n")
                return data, False
        self.lines += self._in_line  # the last line, without its newline
        self.end = True
        return b"", True

    def _skipped(self, data: bytes) -> int:
        """Where in `data` the lines that are to be skipped end; all of it where more are to come."""
        if not self._skip:
            return 0
        count = data.count(b"\n")
        if count < self._skip:
            self._skip -= count
            return len(data)
        stop = 0
        for _ in range(self._skip):
            stop = data.index(b"\n", stop) + 1
        self._skip = 0
        return stop

    def _at_end(self) -> bool:
        if self._sized:
            return self._position >= self.size
        try:
            return not os.pread(self._fd, 1, self._position)
        except OSError:
            return True

    def close(self) -> None:
        """Close the file, after a piece that is being read."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
