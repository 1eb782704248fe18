"""A run's output: copied from its pipe to its file with flat memory, and the tail of it that is shown."""

import contextlib
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Final

from daemon.protocol import frames

READ_SIZE: Final = 256 << 10  # bytes of one read from the pipe: what makes a copy run at the disk's speed
PIPE_SIZE: Final = (
    1 << 20
)  # bytes the kernel holds for us: /proc/sys/fs/pipe-max-size allows this to everybody
TAIL_READ: Final = (
    512 << 10
)  # bytes of a file's end that the tail is made from: room for progress bars to collapse
RING: Final = (
    64 << 10
)  # newest bytes kept in memory: live chunks, and the tail where the file could not be written
COUNT_SELF: Final = (
    8 << 20
)  # bytes of a file whose lines are counted here; of a larger one by wc, ten times faster
MAX_FILE: Final = 4 << 30  # bytes of one run's output that are kept; what comes after is only counted
LOOK_EVERY: Final = 64 << 20  # bytes of one run's output between two looks at the room on the disk, at most
LOOK_SOON: Final = 1 << 20  # the same, at least
KEEP_FREE: Final = 512 << 20  # bytes, or a twentieth, of the disk that output leaves to others
MAX_LATER: Final = 8 << 20  # the same of what background processes print between two runs

# Escape codes: CSI (colours, cursor), OSC (titles, links), two-character ones. None runs over a line's end.
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~]?)|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS: Final = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_BACKSPACES: Final = re.compile(r"[^\x08\n]\x08")


class Sink:
    """Where output goes: a file up to `limit` bytes, made when there is any, and its newest bytes.

    Without a path it is only counted. Used from one thread at a time; `ring` and `size` may be read from another.
    """

    def __init__(self, path: str = "", limit: int = MAX_FILE) -> None:
        self.path = path
        self.size = 0
        self.kept = 0
        self.trouble = ""
        self._limit = limit
        self._look = 0  # bytes of output at which the disk is looked at next
        self._fd = -1
        self._start = 0  # bytes that the file had before
        self._ring = b""
        self._moved = False  # what came last never was in our memory
        self._lost = 0  # newlines in what is not kept

    @property
    def ring(self) -> bytes:
        """The newest bytes, at most RING."""
        if self._moved and self._fd >= 0:
            held = min(RING, self.kept)
            return os.pread(self._fd, held, self._start + self.kept - held)
        return self._ring

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC  # splice takes no file that is open for appending
        try:
            self._fd = os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            call = os.path.dirname(self.path)
            for folder in (os.path.dirname(call), call):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o700)
            self._fd = os.open(self.path, flags, 0o600)
        if not stat.S_ISCHR(os.fstat(self._fd).st_mode):
            self._start = os.lseek(self._fd, 0, os.SEEK_END)

    def write(self, data: bytes) -> None:
        """Keep and count `data`; a disk that takes no more is noted in `trouble` and ends only the keeping."""
        self._ring, self._moved = (data if len(data) >= RING else self.ring + data)[-RING:], False
        self.size += len(data)
        view = memoryview(data)[: self._room(len(data))]
        try:
            while view:
                written = os.write(self._fd, view)
                self.kept += written
                view = view[written:]
        except OSError as error:
            self._fail(error)
        if self.kept < self.size:
            self._room(1)  # says why
            self._lost += data.count(b"\n", max(0, len(data) - (self.size - self.kept)))

    def move(self, pipe: int, size: int) -> int | None:
        """Up to `size` bytes from a pipe into the file, past our memory; None where it has to be read."""
        size = self._room(size)
        if not size:
            return None
        try:
            moved = os.splice(pipe, self._fd, size, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            raise
        except OSError:  # a file system that cannot, or is full: a write says what is wrong
            return None
        self.size += moved
        self.kept += moved
        self._moved = True
        return moved

    def _room(self, size: int) -> int:
        """How many of the next bytes are kept, the file being open then; why not all, in `trouble`."""
        if self.trouble or not self.path or not size:
            return 0
        try:
            if self._fd < 0:
                self._open()
            if self.kept >= self._look:
                spare = to_spare(self._fd)
                if spare < 0:
                    self.trouble = self._only("the disk is almost full")
                    return 0
                self._look = self.kept + max(LOOK_SOON, min(LOOK_EVERY, spare // 4))  # others print as well
        except OSError as error:
            self._fail(error)
            return 0
        if self.kept >= self._limit:
            self.trouble = f"only the first {self._limit} bytes of the output are kept"
        return min(size, self._limit - self.kept)

    def _fail(self, error: OSError) -> None:
        self.trouble = self._only(error.strerror or "")

    def _only(self, why: str) -> str:
        return f"only the first {self.kept} bytes of the output are kept: {why}"

    @property
    def lines(self) -> int:
        """Lines so far; a last one without its newline counts. Reads the file: blocks."""
        ring = self.ring
        found = self._lost
        if self.kept == self.size == len(ring):
            found = ring.count(b"\n")
        elif self.kept and self.path:
            with contextlib.suppress(OSError):  # the code removed it
                found += newlines(self.path)
        return found + (1 if ring and not ring.endswith(b"\n") else 0)

    def tail(self) -> tuple[str, int]:
        """The end of the output as it is shown, and the number of lines that are not in it (whole).

        Blocks where there is more than `ring`.
        """
        raw = self.ring
        if len(raw) < self.size and self.path and not self.trouble:
            raw = file_end(self.path, self.kept)
        whole = len(raw) == self.size
        return shown(raw, whole=whole, lines=lines_of(raw) if whole else self.lines)

    def close(self) -> None:
        if self._fd >= 0:
            if self._moved:
                self._ring, self._moved = self.ring, False
            os.close(self._fd)
            self._fd = -1


def to_spare(file: int | Path) -> int:
    """Bytes that output may take of the file system of an open file or a folder; below 0 it has less than it should."""
    found = os.statvfs(file)
    return found.f_bavail * found.f_frsize - min(KEEP_FREE, found.f_blocks * found.f_frsize // 20)


def copy(pipe: int, sink: Sink, budget: int) -> tuple[int, bool]:
    """Up to `budget` bytes from a non-blocking pipe to the sink: how many there were, and whether it ended."""
    copied = 0
    try:
        while copied < budget:
            size = min(PIPE_SIZE, budget - copied)
            moved = sink.move(pipe, size)
            if moved is None:
                data = os.read(pipe, min(READ_SIZE, size))
                sink.write(data)
                moved = len(data)
            if not moved:
                return copied, True
            copied += moved
    except BlockingIOError:
        pass
    return copied, False


def file_end(path: str | Path, size: int) -> bytes:
    """The last TAIL_READ of the first `size` bytes of a file; empty where it does not open."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        start = max(0, size - TAIL_READ)
        found = bytearray()
        while len(found) < size - start:
            data = os.pread(fd, size - start - len(found), start + len(found))
            if not data:
                break
            found += data
        return bytes(found)
    finally:
        os.close(fd)


def newlines(path: str | Path) -> int:
    """How many a file has. Raises OSError."""
    if os.path.getsize(path) > COUNT_SELF and (program := shutil.which("wc", path=os.defpath)):
        with open(path, "rb") as file:
            done = subprocess.run(
                [program, "-l"],
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"LC_ALL": "C"},
                check=False,
            )
        if done.returncode == 0 and done.stdout.strip().isdigit():
            return int(done.stdout)
    found = 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(READ_SIZE):
            found += data.count(b"\n")
    return found


def lines_of(data: bytes) -> int:
    """Lines of a text; a last one without its newline counts."""
    return data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)


def count_lines(path: Path) -> tuple[int, int]:
    """Bytes and lines of a file, (0, 0) where it does not open."""
    try:
        size = path.stat().st_size
        return size, newlines(path) + (not file_end(path, size).endswith(b"\n") if size else 0)
    except OSError:
        return 0, 0


def from_character(data: bytes) -> bytes:
    """`data` from its first whole UTF-8 character on: up to three continuation bytes go."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def clean(text: str) -> str:
    """Text as a terminal would leave it: without escape codes, overwritten parts and control characters."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    if "\b" in text:
        for _ in range(8):  # a spinner goes back a few characters, not for ever
            text, found = _BACKSPACES.subn("", text)
            if not found:
                break
    if "\r" in text:
        text = "\n".join(_last_drawn(line) if "\r" in line else line for line in text.split("\n"))
    return _CONTROLS.sub("", text.replace("\b", ""))


def _last_drawn(line: str) -> str:
    """What a line that went back to its start shows at its end."""
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


def shown(raw: bytes, *, whole: bool, lines: int) -> tuple[str, int]:
    """The tail of output within MAX_LINES and MAX_TAIL: the text, and how many of `lines` are not in it whole.

    `raw` is the end of the output, all of it where `whole`. Bytes that are not UTF-8 become U+FFFD. A line that
    is too long for the limits keeps its end, from a whole character on.
    """
    if not raw:
        return "", lines
    if not whole:
        raw = from_character(raw)
    text = clean(raw.decode("utf-8", "replace"))
    kept = text.split("\n")
    last = [] if kept[-1] else [kept.pop()]  # a final newline ends the last line, it does not begin one
    cut_first = not whole  # the first line of `kept` may lack its beginning
    if len(kept) > frames.MAX_LINES:
        kept = kept[-frames.MAX_LINES :]
        cut_first = False
    data = "\n".join(kept + last).encode()
    if len(data) > frames.MAX_TAIL:
        part = from_character(data[-frames.MAX_TAIL :])
        cut_first = data[-len(part) - 1 : -len(part)] != b"\n"
        data = part
    if cut_first:
        _, newline, rest = data.partition(b"\n")
        if (
            newline and len(rest) >= len(data) // 2
        ):  # a fragment of a line goes, unless it is most of what there is
            data, cut_first = rest, False
    count = data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)
    return data.decode(), max(0, lines - count) + (1 if cut_first else 0)
