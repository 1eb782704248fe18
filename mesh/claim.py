"""A node's folder: one node has it at a time, and what that one left running is waited for."""

import asyncio
import fcntl
import hashlib
import os
from pathlib import Path
from typing import Final

LOCK: Final = "node.lock"  # held by the node and its helper, so that it is free when both are gone
LOCK_WAIT: Final = 10.0  # seconds for the helper of a node that was killed to be gone
LOCK_LOOK: Final = 0.05  # seconds between two looks


class ClaimError(Exception):
    """The folder cannot be used; the message says why."""


def interface_name(folder: Path) -> str:
    """A name of 14 characters that no other folder's interface on this machine has."""
    return f"or{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:12]}"


class Claim:
    """A folder that is claimed with `take`, until `release`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.lock = -1  # the descriptor that holds it
        self.name = ""  # of the folder's interface

    async def take(self) -> None:
        """Make the folder and lock it; the helper of a node that was killed has to be gone. Raises ClaimError."""
        await asyncio.to_thread(self._open)
        try:
            async with asyncio.timeout(LOCK_WAIT):
                while not self._try():  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(LOCK_LOOK)
        except TimeoutError:
            self.release()
            raise ClaimError(
                f"another process keeps the mesh of {self._folder} (it holds {LOCK} there): end that one first"
            ) from None
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let go of it; what inherited the descriptor keeps it."""
        if self.lock >= 0:
            os.close(self.lock)
        self.lock = -1

    def _open(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ClaimError(f"{self._folder} cannot be used for the mesh: {error.strerror}") from error
        self.name = interface_name(self._folder)

    def _try(self) -> bool:
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
