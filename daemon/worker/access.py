"""What this worker allows: kept in its scratch folder, and which files may be read and written by it."""

import os
from pathlib import Path
from typing import Final

import msgspec

from daemon.allowance import Allowance
from daemon.worker import smallfiles
from daemon.worker.refusal import Refusal, own_rule

FILE: Final = "allowance.json"  # in the scratch folder: who starts the keeper writes it, the keeper obeys it
SHARED: Final = ("sessions",)  # folders of the scratch that a harness writes, with any roots
SHOWN: Final = ("runs", *SHARED)  # those it reads: whole outputs
MANY: Final = 10  # roots that are named in a refusal


class Unreadable(OSError):
    """allowance.json is there and does not read, so nobody knows what is allowed; the message names it."""


def load(scratch: Path) -> Allowance:
    """What is allowed, everything where nothing was written down. Blocks. Raises Unreadable."""
    path = scratch / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Allowance)
    except FileNotFoundError:
        return Allowance()
    except (OSError, msgspec.MsgspecError) as error:
        raise Unreadable(f"{path} does not read ({error}): start the worker anew, which writes it") from error


def store(scratch: Path, allowed: Allowance) -> None:
    """Have the keeper of `scratch` allow this, from the next connection that it takes. Blocks. Raises OSError."""
    try:
        if load(scratch) == allowed:
            return
    except Unreadable:
        pass
    smallfiles.write_whole(scratch / FILE, msgspec.json.encode(allowed), durable=True)


class Access:
    """Which files may be read and written. Paths here are absolute; its methods block."""

    def __init__(self, allowed: Allowance, scratch: Path) -> None:
        self._read = allowed.read
        self._write = allowed.write
        self._scratch = str(scratch)

    def read(self, real: str, asked: str) -> None:
        """Refuse a file that may not be read. `real` is where the path that was asked for leads, links resolved."""
        if self._read is not None and not (_within(real, self._read) or _within(real, self._own(SHOWN))):
            raise _denied("read", real, asked, self._read)

    def write(self, real: str, asked: str) -> None:
        """Refuse a file that may not be written."""
        if self._write is None or _within(real, self._own(SHARED)):
            return
        if not _within(real, self._write):
            raise _denied("written", real, asked, self._write)
        if _within(real, (self._scratch,)):  # what it holds there says what is allowed
            raise Refusal(
                "denied", f"{asked} is in the worker's own folder {self._scratch}: write it elsewhere"
            )

    def opened_to_read(self, fd: int, asked: str) -> None:
        """The same for a file that was opened: a link may have been changed since it was resolved."""
        if self._read is not None:
            self.read(os.readlink(f"/proc/self/fd/{fd}"), asked)

    def opened_to_write(self, fd: int, real: str, asked: str) -> None:
        """The same for the temporary file that takes the place of `real`."""
        if self._write is not None:
            folder = os.path.dirname(os.readlink(f"/proc/self/fd/{fd}"))
            self.write(os.path.join(folder, os.path.basename(real)), asked)

    def _own(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(os.path.join(self._scratch, name) for name in names)


EVERYWHERE: Final = Access(Allowance(), Path("/nonexistent"))


def _within(real: str, roots: tuple[str, ...]) -> bool:
    """Whether a path is one of the roots or below one; links on the way to a root are resolved."""
    return any(
        real == root or real.startswith(root.rstrip("/") + "/") for root in map(os.path.realpath, roots)
    )


def _denied(done: str, real: str, asked: str, roots: tuple[str, ...]) -> Refusal:
    key = "read" if done == "read" else "write"
    named = ", ".join(roots[:MANY]) + (f" and {len(roots) - MANY} more" if len(roots) > MANY else "")
    leads = f", which leads to {real}," if real != asked else ""
    return Refusal("denied", own_rule(f"{asked}{leads} may not be {done}", named or "nothing", key))
