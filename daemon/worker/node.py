"""A persistent node: the operator's own, which runs our driver; a control pipe brings files of code, and stops."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from daemon.worker import login
from daemon.worker.environment import Spawn
from daemon.worker.interpreter import GATE, Interpreter, listed
from daemon.worker.program import STATUS_FD
from daemon.worker.reaping import Process
from daemon.worker.refusal import Refusal

# A callback that is terminated leaves node's count of nested ones off by one, which is no reason to abort.
FLAGS: Final = ("--no-force-async-hooks-checks",)
DRIVER: Final = str(Path(__file__).with_name("driver.cjs"))
# What the event loop waits for, as node calls it and as the model is told. Processes are found without node, and
# pipes, lookups and the like are parts of something else.
WAITS: Final = {
    "Timeout": "timer",
    "TCPServerWrap": "server",
    "PipeServerWrap": "server",
    "UDPWrap": "socket",
    "TCPSocketWrap": "connection",
    "FSReqCallback": "file operation",
    "FSReqPromise": "file operation",
    "FSEventWrap": "file watch",
    "Worker": "thread",
}


class Node(Interpreter):
    """Its driver's second thread hears `stop` on the control pipe and ends the code, whatever that does.

    GATE means nothing to node; it is there to have one that was halted go on.
    """

    NAME = "node"
    CONTROL_FD: ClassVar = STATUS_FD + 1
    ENDED_BY: ClassVar = "process.exit in the code does that"
    STOPS: ClassVar = (GATE, GATE, GATE)

    def __init__(self, cwd: str, environ: Mapping[str, str], spawn: Spawn) -> None:
        super().__init__(cwd, spawn)
        self._environ = environ
        self._left: dict[str, int] = {}  # what the last run has left the event loop to wait for

    async def _start(self) -> tuple[str, ...]:
        env = await asyncio.to_thread(login.environment, self._environ)
        program = await asyncio.to_thread(login.node, env)
        if program is None:
            raise Refusal("failed", "there is no node on the operator's PATH any more")
        await self._come_up(program, [*FLAGS, DRIVER], env)
        return ()

    def _order(self, number: int, code: Path) -> bytes:
        path = bytes(code)
        self._left = {}
        return b"run %d %d\n%b" % (number, len(path), path)

    def _halt(self) -> None:
        self._say(b"stop %d\n" % self._n)

    def _heard(self, words: list[bytes]) -> None:
        match words:
            case [b"left", found]:
                self._left = json.loads(bytes.fromhex(found.decode()))
            case [b"refused", message]:
                self._refuse(message)
            case _:
                pass

    def _going_on(self, living: tuple[Process, ...]) -> str:
        return ", ".join(part for part in (listed(living), *waits(self._left)) if part)


def waits(left: Mapping[str, int]) -> list[str]:
    """What an event loop waits for, in words."""
    counts: dict[str, int] = {}
    for name, count in left.items():
        if word := WAITS.get(name):
            counts[word] = counts.get(word, 0) + count
    return [f"a {word}" if count == 1 else f"{count} {word}s" for word, count in counts.items()]
