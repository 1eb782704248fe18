"""Machines that join a harness's mesh as their operators have them do it, by the command line, in a lab."""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daemon.worker import station
from daemon.worker.station import Standing
from tests.e2e import driving
from tests.e2e.driving import LOOK, pause
from tests.e2e.meshing import Housed
from tests.mesh.lab import Lab
from tests.mesh.star import BACKEND, SLOW
from tests.running import OUTRIDER, RELEASE

ROOT = Path(__file__).parents[2]
PATIENCE = driving.PATIENCE * SLOW
# Runs what it is told and says what came of it.
DOES = """
per = "message"
[[steps]]
[[steps.calls]]
tool = "run"
arguments = { worker = "{worker}", code = "{message}" }
[[steps]]
text = "{output}"
"""


class Joiner:
    """A machine in the namespace `name` of a lab, with a home of its own in `folder`."""

    def __init__(self, lab: Lab, name: str, folder: Path, outrider: Sequence[str] = OUTRIDER) -> None:
        self.name = name
        self._outrider = tuple(outrider)
        self.home = folder / f"home-{name}"
        (self.home / ".config/outrider").mkdir(parents=True)
        self.configure(f'[mesh]\nbackend = "{BACKEND}"\n')
        self.log_file = folder / f"{name}.log"
        self.launcher: tuple[str, ...] = lab.launcher(name)
        self.as_root: tuple[str, ...] = ("--as-root",) if os.geteuid() == 0 else ()
        self.process: subprocess.Popen[bytes] | None = None
        self.environ = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "OUTRIDER_RELEASE": RELEASE,
        }

    def configure(self, text: str) -> None:
        (self.home / ".config/outrider/outrider.toml").write_text(text)

    def verb(self, *arguments: str, input: str = "", **environ: str) -> "subprocess.CompletedProcess[str]":
        """`outrider worker …`, to its end."""
        return subprocess.run(
            [*self.launcher, *self._outrider, "worker", *arguments],
            env=self.environ | environ,
            cwd=ROOT,
            input=input,
            capture_output=True,
            text=True,
            timeout=PATIENCE + 10,
        )

    def start(self, token: str = "", *more: str) -> None:
        """`outrider worker`, in the background: to join by a token, or to go on."""
        if self.process is not None:
            self.process.wait(20)  # it was ended
        joins = ("--join", "-", "--name", self.name) if token else ()
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.launcher, *self._outrider, "worker", *joins, *self.as_root, *more],
                env=self.environ,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        assert self.process.stdin is not None
        self.process.stdin.write(token.encode())
        self.process.stdin.close()

    def stop(self, seconds: float = 20.0) -> int:
        """End the link as a service manager does; its code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(seconds)

    def kill(self) -> None:
        """SIGKILL for the link."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def status(self, *more: str) -> dict[str, Any]:
        """How it stands, by its own word."""
        said = self.verb("status", "--json", *more)
        assert said.stdout, said.stderr
        found: dict[str, Any] = json.loads(said.stdout)
        return found

    def stands(self) -> Standing:
        """The same, without a process of its own for the question, for what is asked over and over."""
        return asyncio.run(station.look(self.home / ".local/state/outrider/workers" / self.name))

    def goes(self) -> str:
        """By which way its packets go, empty while no link runs."""
        mesh = self.stands().mesh
        return "" if mesh is None else mesh.path

    def log(self) -> str:
        return self.log_file.read_text()

    def end(self) -> None:
        """End all of it."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.verb("down")


@contextmanager
def joiner(lab: Lab, name: str, folder: Path, outrider: Sequence[str] = OUTRIDER) -> Iterator[Joiner]:
    """A machine that has not joined yet; all of it is ended afterwards."""
    made = Joiner(lab, name, folder, outrider)
    try:
        yield made
    finally:
        made.end()


async def until(what: Callable[[], Any], why: str) -> Any:
    """Wait until another process has it so; what that gives."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not (found := await asyncio.to_thread(what)):
                await pause(LOOK * SLOW)  # not all of the slow machine's only processor
    except TimeoutError:
        raise AssertionError(f"it did not become so: {why}") from None
    return found


async def goes(machine: Joiner, path: str) -> None:
    """Wait until a machine says that its packets go this way, which it looks at once a second."""
    await until(lambda: machine.goes() == path, f"its packets go {path}")


async def connected(hub: Housed, name: str) -> dict[str, Any]:
    """Wait until the harness has this worker connected; what it says of it."""

    def there() -> dict[str, Any] | None:
        worker = hub.worker(name)
        return worker if worker is not None and worker["state"] == "connected" else None

    found: dict[str, Any] = await until(there, f"{name} is connected")
    return found


def does(hub: Housed, worker: str, code: str) -> str:
    """What code prints that a session runs on a worker."""
    said = hub.ok("run", "--model", "rehearsal/does", "--worker", f"{worker}:/tmp", "--json", code)
    records = [json.loads(line) for line in said.splitlines()]
    (result,) = [record for record in records if record.get("kind") == "result"]
    text: str = result.get("body", "")
    return text
