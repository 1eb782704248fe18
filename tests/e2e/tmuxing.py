"""A program in a terminal that tmux is: keys are sent, the screen is read, and what is to come is waited for."""

import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.needed import missing

PATIENCE = 30.0  # seconds that something on the screen is waited for
LOOK = 0.05  # seconds between two looks at the screen: tmux tells nobody of a change


class Tmux:
    """One pane of a tmux server of its own."""

    def __init__(self, socket: Path) -> None:
        self._command = ["tmux", "-S", str(socket), "-f", "/dev/null"]

    def run(self, *arguments: str) -> str:
        done = subprocess.run([*self._command, *arguments], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def press(self, *keys: str) -> None:
        """Keys by tmux's names for them."""
        self.run("send-keys", "-t", "it", *keys)

    def write(self, text: str) -> None:
        self.run("send-keys", "-t", "it", "-l", text)

    def screen(self) -> str:
        return self.run("capture-pane", "-t", "it", "-p")

    def until(self, *words: str, without: str = "") -> str:
        """Wait until all of `words` are on the screen, and `without` is not; the screen."""
        give_up = time.monotonic() + PATIENCE
        while True:
            text = self.screen()
            if all(word in text for word in words) and not (without and without in text):
                return text
            assert time.monotonic() < give_up, f"{words} do not come; on the screen:\n{text}"
            time.sleep(LOOK)

    def ended(self) -> None:
        """Wait until the program has ended. (tmux does not always say so on the screen, nor with which code.)"""
        give_up = time.monotonic() + PATIENCE
        while self.run("list-panes", "-t", "it", "-F", "#{pane_dead}").strip() != "1":
            assert time.monotonic() < give_up, f"it does not end; on the screen:\n{self.screen()}"
            time.sleep(LOOK)

    @property
    def title(self) -> str:
        return self.told("#{pane_title}")

    def told(self, what: str) -> str:
        """What tmux knows of the terminal, by its names for it."""
        return self.run("display-message", "-t", "it", "-p", what).strip()


@contextmanager
def tmux(
    folder: Path, command: Sequence[str], environ: Mapping[str, str], cwd: Path, size: tuple[int, int]
) -> Iterator[Tmux]:
    """`command` in a terminal of `size` columns and lines; skips where there is no tmux."""
    if shutil.which("tmux") is None:
        missing("tmux is missing: install tmux")
    made = Tmux(folder / f"tmux-{uuid.uuid4().hex[:6]}.sock")
    words = [f"{name}={value}" for name, value in environ.items()]
    made.run("new-session", "-d", "-s", "it", "-x", str(size[0]), "-y", str(size[1]), "-c", str(cwd), "cat")
    made.run("set-option", "-g", "remain-on-exit", "on")
    made.run(
        "respawn-pane", "-k", "-t", "it", "-c", str(cwd), "env", "-i", "TERM=tmux-256color", *words, *command
    )
    try:
        yield made
    finally:
        made.run("kill-server")
