"""The folder of a daemon whose sessions are in memory: private, gone at its end, and what killed ones left with it."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from daemon import config
from daemon.statefile import lock
from daemon.statefile.errors import StateFileError
from daemon.worker import keeper, launch

PREFIX: Final = "outrider-memory-"  # of its name, so that what a killed one left is known for what it is


@contextmanager
def folder(environ: Mapping[str, str]) -> Iterator[str]:
    """A new folder, for as long as the context is open; its worker is ended with it. Blocks."""
    sweep(environ)
    made = tempfile.mkdtemp(prefix=PREFIX)
    try:
        yield made
    finally:
        _remove(Path(made), environ)


def sweep(environ: Mapping[str, str]) -> None:
    """End the workers that killed daemons left in memory's folders, and remove these. Blocks.

    Only a killed one leaves its number in a lock that nobody holds: one that starts has none there yet, one that runs
    holds it, one that ends takes it out. A folder of somebody else's is not looked at.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError, StateFileError):
            there = left.lstat()
            if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid() or not _number(left):
                continue
            with lock.hold(left):
                _remove(left, environ)


def _number(left: Path) -> bytes:
    return (left / lock.NAME).read_bytes().strip()


def _remove(left: Path, environ: Mapping[str, str]) -> None:
    """Its runs have nobody left whom they could be told to."""
    launch.end_holder(config.folders(environ, str(left))[1] / keeper.LOCK)
    shutil.rmtree(left, ignore_errors=True)
