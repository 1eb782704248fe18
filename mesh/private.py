"""Files that only their owner can read: made or replaced whole and on disk, or not at all."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
LONGEST: Final = 16 << 10  # bytes of such a file that are read: a key takes far less


class PrivateFileError(Exception):
    """The file cannot be made, read or trusted; the message names it and the fix."""


def folder(path: Path) -> None:
    """Make the folder, 0700, where there is none. Raises PrivateFileError, also where others can write in it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be made: {error.strerror}") from error
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PrivateFileError(f"others can replace what is in {path}: chmod 700 {path}")


def check(path: Path, status: os.stat_result) -> None:
    """Raises PrivateFileError where this is no file, or one that others can read."""
    if not stat.S_ISREG(status.st_mode):
        raise PrivateFileError(f"{path} is not a file; move it away")
    if status.st_mode & OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise PrivateFileError(f"{path} has mode {mode:04o} and holds secrets: chmod 600 {path}")


def there(path: Path) -> bool:
    """Whether the file is there. Raises PrivateFileError as `check` does."""
    try:
        check(path, path.stat())
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be read: {error.strerror}") from error
    return True


def read(path: Path) -> bytes:
    """The file's bytes. Raises PrivateFileError, and FileNotFoundError where there is none."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            check(path, os.fstat(file.fileno()))
            return file.read(LONGEST)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be read: {error.strerror}") from error


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO would be waited for, for ever


@contextmanager
def making(path: Path) -> Iterator[Path]:
    """An empty file, 0600, to be filled; when the context ends without an error it is `path`, and on disk.

    Raises FileExistsError where `path` is there by then, which is left as it is, and PrivateFileError.
    """
    fresh = path.with_name(f"{path.name}.new-{secrets.token_hex(4)}")
    try:
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            yield fresh
            _sync(fresh, os.O_RDONLY)
            os.link(fresh, path)  # unlike a rename it replaces nothing
        finally:
            with suppress(OSError):
                fresh.unlink()
        _sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except FileExistsError:
        raise
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be written: {error.strerror}") from error


def replace(path: Path, content: bytes) -> None:
    """Have the file be this, 0600, on disk and whole or as it was before. Raises PrivateFileError."""
    fresh = path.with_name(f"{path.name}.new-{secrets.token_hex(4)}")
    try:
        try:
            with open(
                os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
            ) as file:
                file.write(content)
            _sync(fresh, os.O_RDONLY)
            fresh.replace(path)
        finally:
            with suppress(OSError):
                fresh.unlink()
        _sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be written: {error.strerror}") from error


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
