"""A real daemon in a folder of its own, for tests that go through the command line."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RELEASE = "0.1.0"  # one release, though the checkout may be edited while a test goes on
OUTRIDER = [sys.executable, "-P", "-m", "daemon.cli"]


class Place:
    """A home, a data folder and the environment of everything that is started there. `work`: an empty folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "d"
        self.work = home / "w"
        self.scripts = home / ".config/outrider/rehearsal"
        self.work.mkdir()
        self.scripts.mkdir(parents=True)
        self.environ = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "OUTRIDER_DATA": str(self.data),
            "OUTRIDER_REHEARSAL_SPEED": "0",
            "OUTRIDER_RELEASE": RELEASE,
        }

    @property
    def socket(self) -> Path:
        return self.data / "api.sock"

    def script(self, name: str, text: str) -> str:
        """Write a rehearsal; returns the model's name."""
        (self.scripts / f"{name}.toml").write_text(text)
        return f"rehearsal/{name}"

    def outrider(self, *arguments: str, input: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a verb to its end, its output in pipes."""
        return subprocess.run(
            [*OUTRIDER, *arguments],
            env=self.environ | environ,
            cwd=self.work,
            input=input,
            capture_output=True,
            text=True,
            timeout=50,
        )

    def ok(self, *arguments: str, input: str = "") -> str:
        """What a verb prints that ends well."""
        done = self.outrider(*arguments, input=input)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """What a verb with --json prints."""
        return json.loads(self.ok(*arguments, "--json"))

    def records(self, id: str) -> list[dict[str, Any]]:
        """A session's records as `tail --json` has them."""
        return [json.loads(line) for line in self.ok("tail", "--json", id).splitlines()]

    @contextmanager
    def start(self, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
        """A verb that goes on, its output in pipes; killed at the end where it has not ended by itself."""
        process = subprocess.Popen(
            [*OUTRIDER, *arguments],
            env=self.environ | environ,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def up(self) -> int:
        """Start the daemon; returns its process id."""
        pid = self.json("up", "--listen", "none")["pid"]
        assert isinstance(pid, int)
        return pid

    def kill(self, pid: int) -> None:
        """End the daemon with SIGKILL and wait until it is gone."""
        handle = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert select.select([handle], [], [], 20)[0]
        os.close(handle)


@contextmanager
def place() -> Iterator[Place]:
    """A place in a folder with a short path; the daemon there is ended, and all of it removed."""
    home = Path(tempfile.mkdtemp(prefix="or-"))
    here = Place(home)
    try:
        yield here
    finally:
        here.outrider("down")
        shutil.rmtree(home)


def lines_until(process: subprocess.Popen[str], kinds: Sequence[str]) -> dict[str, Any]:
    """Read JSON records from a process up to the first of one of these kinds."""
    assert process.stdout is not None
    for line in process.stdout:
        record: dict[str, Any] = json.loads(line)
        if record["kind"] in kinds:
            return record
    raise AssertionError(f"it ended before a record of kind {', '.join(kinds)}")
