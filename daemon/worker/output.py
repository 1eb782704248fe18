"""A run's output: copied from its pipe to its file with flat memory, and the tail of it that is shown."""

import os
import re
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
MAX_FILE: Final = 4 << 30  # bytes of one run's output that are kept; what comes after is only counted
LOOK_EVERY: Final = 64 << 20  # bytes of one run's output between two looks at the room on the disk
KEEP_FREE: Final = 512 << 20  # bytes, or a twentieth, of the disk that output leaves to others
MAX_LATER: Final = 8 << 20  # the same of what background processes print between two runs

# Escape codes: CSI (colours, cursor), OSC (titles, links), two-character ones. None runs over a line's end.
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~]?)|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS: Final = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_BACKSPACES: Final = re.compile(r"[^\x08\n]\x08")


class Sink:
    """Where output goes: a file up to `limit` bytes, counts of all of it, and its newest bytes.

    Without a path it only counts. Used from one thread at a time; `ring`, `size` and `lines` may be read from another.
    """

    def __init__(self, path: Path | None, limit: int = MAX_FILE, *, lazy: bool = False) -> None:
        self.path = path
        self.size = 0
        self.kept = 0
        self.newlines = 0
        self.ring = b""
        self.trouble = ""
        self._limit = limit
        self._look = LOOK_EVERY
        self._fd = -1 if lazy or path is None else self._open()

    def _open(self) -> int:
        assert self.path is not None
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes) -> None:
        """Keep and count `data`; a disk that takes no more is noted in `trouble` and ends only the keeping."""
        self.size += len(data)
        self.newlines += data.count(b"\n")
        self.ring = data[-RING:] if len(data) >= RING else (self.ring + data)[-RING:]
        if self.trouble or self.path is None:
            return
        try:
            if self.kept + len(data) > self._limit:
                data = data[: self._limit - self.kept]
                self.trouble = f"only the first {self._limit} bytes of the output are kept"
            elif self.kept > self._look:
                self._look += LOOK_EVERY
                if disk_is_short(self._fd):
                    self.trouble = (
                        f"only the first {self.kept} bytes of the output are kept: the disk is almost full"
                    )
                    return
            if self._fd < 0:
                self._fd = self._open()
            view = memoryview(data)
            while view:
                written = os.write(self._fd, view)
                self.kept += written
                view = view[written:]
        except OSError as error:
            self.trouble = f"only the first {self.kept} bytes of the output are kept: {error.strerror}"

    @property
    def lines(self) -> int:
        """Lines so far; a last one without its newline counts."""
        return self.newlines + (1 if self.ring and not self.ring.endswith(b"\n") else 0)

    def tail(self) -> tuple[str, int]:
        """The end of the output as it is shown, and the number of lines that are not in it (whole)."""
        if self.trouble or self.path is None:
            raw = self.ring
        else:
            raw = file_end(self.path, self.kept)
        return shown(raw, whole=len(raw) == self.size, lines=self.lines)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def disk_is_short(fd: int) -> bool:
    """Whether the file system of an open file has no room that output should take."""
    found = os.fstatvfs(fd)
    return found.f_bavail * found.f_frsize < min(KEEP_FREE, found.f_blocks * found.f_frsize // 20)


def copy(pipe: int, sink: Sink, budget: int) -> tuple[int, bool]:
    """Up to `budget` bytes from a non-blocking pipe to the sink: how many there were, and whether it ended."""
    copied = 0
    while copied < budget:
        try:
            data = os.read(pipe, min(READ_SIZE, budget - copied))
        except BlockingIOError:
            break
        if not data:
            return copied, True
        sink.write(data)
        copied += len(data)
    return copied, False


def file_end(path: Path, size: int) -> bytes:
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


def count_lines(path: Path) -> tuple[int, int]:
    """Bytes and lines of a file, (0, 0) where it does not open."""
    size = newlines = 0
    last = b"\n"
    try:
        with open(path, "rb", buffering=0) as file:
            while data := file.read(READ_SIZE):
                size += len(data)
                newlines += data.count(b"\n")
                last = data[-1:]
    except OSError:
        return 0, 0
    return size, newlines + (last != b"\n")


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
