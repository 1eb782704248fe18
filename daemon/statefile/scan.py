"""Read a session's file from end to end: where its records are, and where it stops being whole."""

import os
import re
import zlib
from array import array
from pathlib import Path
from typing import Final

from msgspec import Struct

from daemon.protocol import records
from daemon.protocol.framing import FramingError
from daemon.protocol.records import BadRecord
from daemon.statefile.blocks import BLOCK
from daemon.statefile.descriptors import FLAGS
from daemon.statefile.errors import Damage, MissingError

START: Final = re.compile(rb'\{"n":([1-9][0-9]{0,18}),')  # how every header line that we write begins
START_MAX: Final = 32  # bytes, over the longest match of START: what blocks overlap by
PATIENCE: Final = (
    16  # times its size that a bad tail is looked at; a body made to look like records costs no more
)


class Scan(Struct, frozen=True):
    """What a file holds. Record k is at `offsets[k - 1]`, the last good one ends at `end` (bytes).

    `damage`: the first record that does not read, when it is not a torn tail; what follows it is not looked at.
    `torn`: bytes after `end` that an append left unfinished; nothing valid is among them.
    """

    offsets: "array[int]"
    end: int
    damage: Damage | None = None
    torn: int = 0


def scan(path: Path) -> Scan:
    """Read the whole file, blocking. A file that does not read is a Scan with damage, never an exception.

    Raises MissingError, and OSError when the process itself has run out of descriptors or memory.
    """
    try:
        fd = os.open(path, os.O_RDONLY | FLAGS)
    except FileNotFoundError:
        raise MissingError(path.stem) from None
    except OSError as error:
        return unreadable(error)
    try:
        return scan_fd(fd)
    finally:
        os.close(fd)


def unreadable(error: OSError) -> Scan:
    """The scan of a file that cannot be opened."""
    return Scan(array("Q"), 0, Damage(1, 0, f"the file cannot be opened: {error.strerror}"))


def irregular() -> Scan:
    """The scan of a folder, a pipe or a device."""
    return Scan(array("Q"), 0, Damage(1, 0, "it is not a regular file"))


def scan_fd(fd: int) -> Scan:
    """`scan` of an open file."""
    size = os.fstat(fd).st_size
    offsets = array("Q")
    end, problem, may_be_torn = _walk(fd, size, offsets)
    if not problem:
        return Scan(offsets, end)
    damage = Damage(len(offsets) + 1, end, problem)
    if may_be_torn and offsets and not _valid_after(fd, end + 1, size, damage.n):
        return Scan(offsets, end, torn=size - end)
    return Scan(offsets, end, damage)  # (record 1 cannot be torn: a file gets its name when it is whole)


def _walk(fd: int, size: int, offsets: "array[int]") -> tuple[int, str, bool]:
    """Fill `offsets`. (End of the last good record, what is wrong there, whether an append may have left it so)."""
    decoder = records.decoder()
    position = end = 0
    try:
        while position < size and (piece := os.pread(fd, min(BLOCK, size - position), position)):
            position += len(piece)
            decoder.feed(piece)
            while (unit := decoder.next()) is not None:
                header, line, body = unit
                records.check(line, body)
                if header.n != len(offsets) + 1:
                    return end, f"it is whole, but says that it is record {header.n}", False
                offsets.append(end)
                end = decoder.consumed
    except (FramingError, BadRecord) as error:
        return end, str(error), True
    except OSError as error:
        return end, f"the disk does not give it: {error.strerror}", False
    if end == size and offsets:
        return end, "", False
    return end, "the file ends inside it" if size else "the file is empty", True


def _valid_after(fd: int, position: int, size: int, above: int) -> bool:
    """Whether a valid record with a number over `above` begins anywhere from `position` on.

    Lower numbers are records that somebody printed into a body. In doubt the answer is yes: then nothing is cut.
    """
    patience = PATIENCE * (size - position) + BLOCK
    try:
        while position < size:
            block = os.pread(fd, BLOCK + START_MAX, position)
            for match in START.finditer(block):
                if match.start() >= BLOCK:
                    break  # the next block has it whole
                if int(match[1]) > above:
                    valid, looked_at = _valid_at(fd, position + match.start(), size)
                    patience -= looked_at
                    if valid or patience < 0:
                        return True
            position += BLOCK
    except OSError:
        return True
    return False


def _valid_at(fd: int, offset: int, size: int) -> tuple[bool, int]:
    """Whether a valid record begins here, and how many bytes had to be looked at."""
    line, newline, _ = os.pread(fd, records.MAX_HEADER + 1, offset).partition(b"\n")
    looked_at = len(line)
    if not newline:
        return False, looked_at
    try:
        header = records.parse_header(line)
    except BadRecord:
        return False, looked_at
    body = offset + len(line) + 1
    end = body + header.len
    if not 0 <= header.len <= records.MAX_BODY or end >= size or os.pread(fd, 1, end) != b"\n":
        return False, looked_at
    crc = zlib.crc32(line[: -records.CRC_TAIL])
    while body < end and (piece := os.pread(fd, min(BLOCK, end - body), body)):
        crc = zlib.crc32(piece, crc)
        body += len(piece)
    return line[-10:-2] == b"%08x" % crc, looked_at + header.len
