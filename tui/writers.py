"""Which of several terminal UIs writes where: the first in the folder of drafts, each other one in one beside it."""

import fcntl
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

LOCK: Final = (
    "lock"  # a file in each such folder, locked by the process that writes there, as long as it lives
)
BESIDE: Final = "beside"  # where the folders of the others are
NONE: Final = -1  # in place of a descriptor: here nothing can be locked


class Taken(Exception):
    """Another process writes there."""


def place(folder: Path) -> tuple[Path, int]:
    """(where this process writes: `folder`, or one beside it where another has that; the descriptor that says so)."""
    with suppress(Taken):
        return folder, claim(folder)
    while True:
        beside = folder / BESIDE / uuid.uuid4().hex
        with suppress(Taken):
            lock = claim(beside)
            if (
                lock == NONE or (beside / LOCK).exists()
            ):  # else it was taken in by another one's start meanwhile
                return beside, lock
            os.close(lock)


def claim(folder: Path, make: bool = True) -> int:
    """Lock a folder; it is until the descriptor is closed, or this process has ended. Raises Taken.

    NONE where its file system does not let that be, or where there is no such folder and it is not to be made.
    """
    try:
        if make:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        how = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if make else 0)
        lock = os.open(folder / LOCK, how, 0o600)
    except OSError:
        return NONE
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        os.close(lock)
        raise Taken from error
    except OSError:
        os.close(lock)
        return NONE
    return lock


def left(folder: Path, own: Path) -> list[tuple[Path, int]]:
    """The folders beside `folder` whose processes have ended, each with its lock, which is ours now.

    Not `own`: to close another descriptor of a file gives up every lock that the process has on it.
    """
    found: list[tuple[Path, int]] = []
    for path in sorted(folder.glob(f"{BESIDE}/*/{LOCK}")):
        with suppress(Taken):
            if path.parent != own and (lock := claim(path.parent, make=False)) != NONE:
                found.append((path.parent, lock))
    return found
