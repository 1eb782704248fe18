"""What the tests of the command line share beside their fixtures."""

import os
import pty
import re
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.running import OUTRIDER, Place

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PATIENCE = 30  # seconds a terminal is waited for

Said = Callable[..., str]


class Terminal:
    """A verb on a terminal: what it has written so far, and what is typed."""

    def __init__(self, process: "subprocess.Popen[bytes]", fd: int) -> None:
        self.process = process
        self._fd = fd
        self.text = ""

    def until(self, words: str) -> str:
        """Read until `words` are there."""
        while words not in self.text:
            assert self._read(), f"it ended before {words!r}: {self.text}"
        return self.text

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def end(self) -> int:
        """Read to its end; its code."""
        while self._read():
            continue
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        assert select.select([self._fd], [], [], PATIENCE)[0], self.text
        try:
            piece = os.read(self._fd, 4096)
        except OSError:  # Linux says EIO when the other end has closed
            return False
        self.text += piece.decode(errors="replace")
        return bool(piece)


@contextmanager
def terminal(here: Place, *arguments: str, **environ: str) -> Iterator[Terminal]:
    """A verb whose stdin, stdout and stderr are a terminal; killed at the end where it has not ended."""
    mine, its = pty.openpty()
    with subprocess.Popen(
        [*OUTRIDER, *arguments],
        env=here.environ | {"TERM": "xterm-256color"} | environ,
        cwd=here.work,
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    ) as process:
        os.close(its)
        try:
            yield Terminal(process, mine)
        finally:
            process.kill()
            os.close(mine)
