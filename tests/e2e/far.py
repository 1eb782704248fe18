"""A worker in processes of its own, `outrider worker`, that dials a stage's daemon and can be hurt."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from daemon.protocol import api
from daemon.worker import keeper, launch, station
from tests.cutting import Cutter
from tests.e2e.driving import Driver, Stage, becomes, pause
from tests.running import OUTRIDER, RELEASE


class Far:
    """One worker: `name` and folder are its own. `socket`: where it dials."""

    def __init__(self, stage: Stage, name: str, socket: Path, scratch: Path) -> None:
        self.stage = stage
        self.name = name
        self.socket = socket
        self.scratch = scratch
        self.log_file = stage.folder / f"{name}-{scratch.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Start its link, which has a keeper beside it."""
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*OUTRIDER, "worker", *self.arguments(*more)],
                env=self.environ,
                cwd=self.stage.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def arguments(self, *more: str) -> list[str]:
        given = [f"--connect={self.socket}", f"--name={self.name}", f"--scratch={self.scratch}", *more]
        return given + (["--as-root"] if os.geteuid() == 0 else [])

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return kept | {"HOME": str(self.stage.folder), "OUTRIDER_RELEASE": RELEASE}

    @property
    def link(self) -> int:
        """The link's process id. It must run."""
        assert self._process is not None
        return self._process.pid

    def keeper(self) -> int:
        """The keeper's process id, 0 where none runs."""
        return keeper.holder(self.scratch / keeper.LOCK)

    def held(self) -> int:
        """The process id of the keeper, which runs: a signal to 0 would be one to the tests themselves."""
        pid = self.keeper()
        assert pid, "no keeper runs"
        return pid

    def kill_link(self) -> None:
        """SIGKILL the link."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop_link(self) -> int:
        """SIGTERM the link; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=20)

    async def kill_keeper(self) -> None:
        """SIGKILL the keeper, and wait until it holds nothing any more."""
        pid = self.held()
        os.kill(pid, signal.SIGKILL)
        await becomes(lambda: self.keeper() != pid, "the keeper is gone")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All of it stands still, as a machine that sleeps."""
        pids = [self.link, self.held()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def verb(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`outrider worker …` run to its end."""
        return subprocess.run(
            [*OUTRIDER, "worker", *arguments],
            env=self.environ,
            cwd=self.stage.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=50,
        )

    def status(self) -> dict[str, Any]:
        """What `outrider worker status --json` says."""
        found: dict[str, Any] = json.loads(self.verb("status", f"--scratch={self.scratch}", "--json").stdout)
        return found

    def log(self) -> str:
        return self.log_file.read_text()

    def end(self) -> None:
        """End it, also where it is broken."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self.scratch.exists():
            launch.end_holder(self.scratch / station.LOCK)
            launch.end_holder(self.scratch / keeper.LOCK)


@contextmanager
def far(stage: Stage, name: str = "far", *, socket: Path | None = None, folder: str = "") -> Iterator[Far]:
    """A worker that is not yet started; ended afterwards."""
    made = Far(stage, name, socket or stage.data / "workers.sock", stage.folder / (folder or name))
    with ExitStack() as ending:
        ending.callback(made.end)
        yield made


@asynccontextmanager
async def cut_off(stage: Stage, name: str = "far") -> AsyncIterator[tuple[Far, Cutter]]:
    """A worker that dials over a network that can be cut."""
    async with AsyncExitStack() as held:
        net = Cutter(stage.folder / "net.sock", stage.data / "workers.sock")
        await held.enter_async_context(net)
        one = held.enter_context(far(stage, name, socket=net.path))
        yield one, net


async def state(
    on: Driver, name: str, wanted: str, also: Callable[[api.WorkerInfo], bool] = lambda _: True
) -> api.WorkerInfo:
    """Wait until the daemon says this of a worker; all that it says of it."""
    async with asyncio.timeout(40):
        while True:
            for info in await on.client.workers():
                if (info.name, info.state) == (name, wanted) and also(info):
                    return info
            await pause()
