"""Hold a data folder: one daemon works on it, and a killed one leaves nothing that is in the way."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from daemon.statefile.errors import LockedError, StateFileError
from daemon.statefile.publish import clear, make_folders

NAME: Final = "lock"


@contextmanager
def hold(data: Path) -> Iterator[None]:
    """Make the folder and hold its lock. Blocks. Raises LockedError, StateFileError where it cannot be used.

    The kernel frees the lock when the process ends, however it ends; the number in the file is for people.
    """
    try:
        make_folders(data)
        fd = os.open(data / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateFileError(f"the data folder {data} cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).strip()
            raise LockedError(str(data), int(holder) if holder.isdigit() else 0) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        clear(data)
        yield
        os.ftruncate(fd, 0)
    finally:
        os.close(fd)
