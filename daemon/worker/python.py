"""A persistent python: the operator's own python3, which runs our driver; code from a file, told by a control pipe."""

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from daemon.worker import login
from daemon.worker.environment import Spawn
from daemon.worker.interpreter import GATE, Interpreter, listed
from daemon.worker.program import STATUS_FD
from daemon.worker.reaping import Process
from daemon.worker.refusal import Refusal

DRIVER: Final = str(Path(__file__).with_name("driver.py"))


class Python(Interpreter):
    """SIGINT reaches the driver as KeyboardInterrupt in the code and as nothing between two runs.

    GATE does the same to code that handles SIGINT itself.
    """

    NAME = "python"
    CONTROL_FD: ClassVar = STATUS_FD + 1
    ENDED_BY: ClassVar = "os._exit or os.exec in the code does that"
    STOPS: ClassVar = (signal.SIGINT, GATE, GATE)

    def __init__(self, cwd: str, environ: Mapping[str, str], spawn: Spawn) -> None:
        super().__init__(cwd, spawn)
        self._environ = environ
        self._threads = 0  # that the last run has left behind

    async def _start(self) -> tuple[str, ...]:
        env = await asyncio.to_thread(login.environment, self._environ)
        program = await asyncio.to_thread(login.python, env)
        if program is None:
            raise Refusal("failed", "there is no python3 on the operator's PATH any more")
        await self._come_up(program, ["-u", DRIVER], env)
        return ()

    def _order(self, number: int, code: Path) -> bytes:
        path = bytes(code)
        self._threads = 0
        return b"%d %d\n%b" % (number, len(path), path)

    def _heard(self, words: list[bytes]) -> None:
        match words:
            case [b"threads", count]:
                self._threads = int(count)
            case [b"refused", message]:
                self._refuse(message)
            case _:
                pass

    def _going_on(self, living: tuple[Process, ...]) -> str:
        threads = f"{self._threads} threads" if self._threads > 1 else "a thread" if self._threads else ""
        return ", ".join(part for part in (listed(living), threads) if part)
