"""Make a session's file ready for appends: see that it is as it was read, and set a torn tail aside."""

import errno
import fcntl
import itertools
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

from daemon.statefile import blocks

log = logging.getLogger(__name__)


def make_ready(fd: int, path: Path, end: int, torn: int, now: datetime) -> None:
    """See that `path`, open at `fd`, ends `torn` bytes after `end`, and move these bytes to a file beside it.

    Raises blocks.Changed, Unread and OSError, with the file as it was.
    """
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EACCES, "the file is read-only")
    blocks.see(fd, end + torn)
    if torn:
        aside = _keep(path, blocks.get(fd, end, end + torn), now)
        os.ftruncate(fd, end)
        os.fdatasync(fd)
        log.warning(
            "session %s: its last %d bytes were not a whole record; moved to %s", path.stem, torn, aside
        )


def _keep(path: Path, data: bytes, now: datetime) -> Path:
    """Write `data` durably to a new file `<id>.torn-<time>` and return its path."""
    stem = f"{path.stem}.torn-{now.astimezone(UTC):%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z"
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    aside = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        blocks.put(fd, data, 0)
        os.fsync(fd)
    except OSError:
        os.unlink(aside)
        raise
    finally:
        os.close(fd)
    sync_folder(path.parent)
    return aside


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
