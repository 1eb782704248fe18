"""Give a new session's file its name, once it is whole and on disk. Everything here blocks."""

import contextlib
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from daemon.protocol.api import Origin
from daemon.statefile.blocks import BLOCK, get, put
from daemon.statefile.errors import StateFileError
from daemon.statefile.ready import sync_folder

SESSIONS: Final = "sessions"
STATE: Final = ".state"
NAME: Final = re.compile(r"([0-9a-f]{16})\.state")
FROM: Final = ".from"
NEW: Final = ".new-"  # how temporary names begin
TRIES: Final = 16  # ids; the second is one in 370,000 with ten million sessions, the third is a broken source


def make_folders(data: Path) -> None:
    """Make the data folder and what is in it, for its owner alone. Raises OSError."""
    sessions = data / SESSIONS
    if not sessions.is_dir():
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        sessions.mkdir(mode=0o700, exist_ok=True)
        sync_folder(data)
        sync_folder(data.parent)


def clear(data: Path) -> None:
    """Remove what a killed daemon was about to name."""
    for path in (data / SESSIONS).glob(f"{NEW}*"):
        with contextlib.suppress(OSError):  # it costs some room, nothing else
            path.unlink()


def publish(
    data: Path, fill: Callable[[int], None], new_id: Callable[[], str], origin: Origin | None = None
) -> tuple[str, int]:
    """Make a session of what `fill` writes to a descriptor: (its id, the descriptor).

    What `fill` raises, an OSError and StateFileError leave nothing behind.
    """
    make_folders(data)
    sessions = data / SESSIONS
    temporary = sessions / f"{NEW}{secrets.token_hex(8)}"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    made: list[Path] = []
    try:
        try:
            fill(fd)
            os.fsync(fd)
            id = _name(sessions, temporary, new_id, origin, made)
        finally:
            os.unlink(temporary)
        sync_folder(sessions)
    except BaseException:
        os.close(fd)
        for path in made:
            path.unlink()
        raise
    return id, fd


def _name(
    sessions: Path, temporary: Path, new_id: Callable[[], str], origin: Origin | None, made: list[Path]
) -> str:
    for _ in range(TRIES):
        id = new_id()
        path, sidecar = sessions / f"{id}{STATE}", sessions / f"{id}{FROM}"
        if path.exists() or sidecar.exists():
            continue
        if origin is not None:  # first, so that a copy is never seen without it
            made.append(sidecar)
            _write(sidecar, msgspec.json.encode(origin) + b"\n")
        os.link(temporary, path)
        made.append(path)
        return id
    raise StateFileError(f"no free session id in {TRIES} tries: the system's random numbers repeat")


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        put(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def copy_bytes(path: Path, end: int, target: int) -> None:
    """Copy the first `end` bytes of a file into a new one's descriptor. Raises blocks.Unread, OSError."""
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start in range(0, end, BLOCK):
            put(target, get(source, start, min(start + BLOCK, end)), start)
    finally:
        os.close(source)
