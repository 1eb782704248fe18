"""Small files of the worker's own, and their folders: read, replaced whole, or written over in place."""

import os
from pathlib import Path
from typing import Final, TypeVar

import msgspec

OWN: Final = "outrider"  # a folder of this name is Outrider's, and so is what is in it

T = TypeVar("T")


def make_folder(path: Path) -> None:
    """Make a folder, with what is missing above it; only their owner can enter those that are Outrider's own.

    What is above them, as ~/.local/state, is made as the umask has it. Raises OSError. Blocks.
    """
    missing = []
    for folder in (path, *path.parents):
        if folder.is_dir() or (
            folder != path and folder.exists()
        ):  # mkdir says best what is wrong with a file
            break
        missing.append(folder)
    for folder in reversed(missing):
        own = folder == path or OWN in folder.parts
        folder.mkdir(mode=0o700 if own else 0o777, exist_ok=True)


def read(path: Path, type: type[T]) -> T | None:
    """A JSON file's value, None where it is missing or does not read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except (OSError, msgspec.MsgspecError):
        return None


def write_over(path: Path, data: bytes) -> None:
    """Make this a file's content, in place; its folder is made as well.

    It is never made empty first: ext4 would then send its new content to the disk at once.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.mkdir(path.parent, 0o700)
        fd = os.open(path, flags, 0o600)
    try:
        size = len(data := data or b"\n")
        while data:
            data = data[os.write(fd, data) :]
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes | bytearray, *, durable: bool = False) -> None:
    """Replace a file so that it is found whole or not at all, however this process ends.

    With `durable` also after a power cut; without, that may leave a file that does not read.
    """
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(fd)
    os.rename(temporary, path)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have a folder's names on disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
