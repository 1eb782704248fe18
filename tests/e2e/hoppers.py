"""Programs that are never the same process for long, and whether any of them is left: a look at /proc may miss them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOPPER = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.write(1, b"full\\n")
while True:
    if os.fork():
        os._exit(0)
"""
# Nor in the same group.
LEAVER = (
    HOPPER
    + """
    os.setsid()
"""
)
# Whose parents are lost to a process of its own.
NESTED = (
    """
import ctypes, os
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if os.fork():
    while True:
        os.wait()
"""
    + LEAVER
)


@contextmanager
def told(folder: Path) -> Iterator[int]:
    """A fifo `told` in a folder for them to print to; a descriptor to read it."""
    os.mkfifo(folder / "told")
    fd = os.open(folder / "told", os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)
        os.unlink(folder / "told")


def nobody_writes(fd: int) -> bool:
    """Whether all that could have written to a fifo have ended."""
    try:
        while os.read(fd, 1 << 16):
            pass
    except BlockingIOError:
        return False
    return True
