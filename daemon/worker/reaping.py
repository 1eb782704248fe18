"""The keeper's end of one reaper process: an environment's processes found, signalled, ended."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from daemon.worker import descriptors
from daemon.worker.cgroup import Cgroup
from daemon.worker.pump import Spawn

REAPER: Final = str(Path(__file__).with_name("reaper.py"))
ANSWER_WAIT: Final = 20.0  # seconds for a reaper to answer; ending all of an environment takes up to 5


class Process(Struct, frozen=True):
    """A process that was found: its pid and its command line. Pid 0: some that nobody has seen, and what they do."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.pid} {self.name}" if self.pid else self.name


class Ended(Struct, frozen=True):
    """What was ended with an environment, and what would not end."""

    ended: tuple[Process, ...] = ()
    left: tuple[Process, ...] = ()


class ReaperGone(Exception):
    """The environment's reaper has ended: with it, the interpreter."""


class Reaper:
    """The keeper's end of one reaper process (reaper.py)."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._asked = 0
        self._writer: asyncio.StreamWriter | None = None
        self.exited: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self._cgroup: Cgroup | None = None
        self._over = asyncio.Event()
        self._swept = Ended()
        self._alone = False
        self._kin: tuple[int, int] | None = (
            None  # where /proc lists the reaper's and the interpreter's children
        )
        self._program = b""
        self._threads = ""
        self.own: Collection[int] = ()  # pids of new processes that the interpreter itself has started
        self.printing = False  # a new process holds the output open
        self.detour = False  # the interpreter's output goes through another process first
        self.returning: Collection[int] = ()  # which of it, by its descriptor's number, is printed by that

    async def start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, fds: Mapping[int, int]
    ) -> None:
        """Start the program under a reaper; `fds` maps its descriptor numbers to ours, which are closed here."""
        try:
            self._cgroup = await asyncio.to_thread(Cgroup.make)
            ours, process = await self._begin(set(fds.values()))
        except BaseException:
            if self._cgroup:
                await asyncio.shield(asyncio.to_thread(self._cgroup.end))
            raise
        finally:
            for fd in set(fds.values()):
                os.close(fd)
        reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=16 << 20)
        order = {
            "argv": list(argv),
            "env": dict(env),
            "cwd": cwd,
            "fds": {str(n): fd for n, fd in fds.items()},
            "cgroup": str(self._cgroup.path) if self._cgroup else "",
            "descriptors": descriptors.given(),
        }
        self._writer.write(json.dumps(order).encode() + b"\n")
        self._spawn(self._listen(reader, process), f"reaper {process.pid}")

    async def _begin(self, fds: set[int]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """Start a reaper that inherits these descriptors: our end of the socket to it, and its process."""
        ours, theirs = socket.socketpair()
        try:
            return ours, await asyncio.to_thread(self._popen, theirs.fileno(), fds)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    @staticmethod
    def _popen(fd: int, fds: set[int]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", REAPER, str(fd)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(fd, *fds),
            start_new_session=True,
            cwd="/",
            env={},
        )

    async def _listen(self, reader: asyncio.StreamReader, process: subprocess.Popen[bytes]) -> None:
        assert self._writer is not None
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if message.get("event") == "exit":
                    self.exited.set_result(message["status"])
                elif message.get("event") == "started":
                    self._watch(process.pid, message["pid"])
                elif (answer := self._answers.pop(message.get("id", 0), None)) and not answer.done():
                    answer.set_result(message)
        except OSError:
            pass
        finally:
            self.gone.set()
            self._unwatch()
            if not self.exited.done():
                self.exited.set_result(None)
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ReaperGone())
            self._answers.clear()
            self._writer.close()
            process.kill()  # it has ended, or hangs: either way it is collected now
            try:
                await asyncio.shield(asyncio.to_thread(self._sweep, process))
            finally:
                self._over.set()

    def _sweep(self, process: subprocess.Popen[bytes]) -> None:
        """Collect the reaper; where it was killed, end what it held. Blocks."""
        process.wait()
        if self._cgroup:
            self._swept = Ended(*map(processes, self._cgroup.end()))

    def _watch(self, reaper: int, program: int) -> None:
        with contextlib.suppress(OSError):  # a kernel that does not list children: the reaper is asked
            paths = [f"/proc/{pid}/task/{pid}/children" for pid in (reaper, program)]
            first = os.open(paths[0], os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._kin = first, os.open(paths[1], os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                os.close(first)
            self._program = b"%d " % program
            self._threads = f"/proc/{program}/task"

    def _unwatch(self) -> None:
        for fd in self._kin or ():
            os.close(fd)
        self._kin = None

    def is_alone(self) -> bool:
        """Whether the interpreter is surely the only process here. No is no answer: then the reaper knows.

        The interpreter's children are looked at first: what loses its parent meanwhile comes to the reaper. What a
        thread of it has started is in that thread's list, so there must be none.
        """
        if self._kin is None:
            return False
        reaper, program = self._kin
        try:
            self._alone = (
                not os.pread(program, 16, 0)
                and os.pread(reaper, 32, 0) == self._program
                and os.stat(self._threads).st_nlink == 3  # `.`, `..` and the one thread
            )
        except OSError:
            return False
        if self._alone:
            self.returning = ()
        return self._alone

    async def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Ask the reaper; raises ReaperGone."""
        if self.gone.is_set() or self._writer is None:
            raise ReaperGone
        self._asked += 1
        asked = self._asked
        answer = self._answers[asked] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({"op": op, "id": asked} | arguments).encode() + b"\n")
        try:
            async with asyncio.timeout(ANSWER_WAIT):
                found: dict[str, Any] = await answer
                return found
        except TimeoutError:
            self._writer.transport.abort()  # somebody stopped it; without it nothing here can be trusted
            raise ReaperGone from None
        finally:
            self._answers.pop(asked, None)

    async def mark(self) -> None:
        """From here on, what is found is new. Asks nothing when the interpreter was alone, and has not run since."""
        if not self.mark_now():
            await self.call("mark")
        self._alone = False

    def mark_now(self) -> bool:
        """The same, where nothing has to be asked; else nothing is done."""
        if alone := self._alone or self.is_alone():
            self._alone = False
        return alone

    async def new(self) -> tuple[Process, ...]:
        """Living processes since the mark, without the interpreter."""
        try:
            answer = await self.call("new")
        except ReaperGone:
            return ()
        self._alone = bool(answer["alone"])
        self.own = answer["own"]
        self.printing = bool(answer["printing"])
        self.detour = bool(answer["detour"])
        self.returning = answer["returning"]
        return processes(answer["processes"])

    async def signal(self, *, interpreter: int = 0, others: int = 0) -> tuple[Process, ...]:
        """Signal the interpreter, what was new since the mark by then, or both; the others that got it. 0: none."""
        try:
            answer = await self.call("signal", interpreter=int(interpreter), others=int(others))
        except ReaperGone:
            return ()
        return processes(answer["processes"])

    async def sweep(self) -> Ended:
        """End what is new since the mark, also what forks as fast as it can; the interpreter goes on."""
        try:
            answer = await self.call("sweep")
        except ReaperGone:
            return Ended()
        return Ended(processes(answer["ended"]), processes(answer["left"]))

    async def interpreter(self, pid: int) -> None:
        """The interpreter has come up as process `pid`: the program that was started may be a wrapper around it."""
        with contextlib.suppress(ReaperGone):
            await self.call("interpreter", pid=pid)

    async def end(self) -> Ended:
        """End every process of the environment and the reaper itself."""
        try:
            answer = await self.call("end")
        except ReaperGone:
            if self._writer is not None:
                await self._over.wait()
            return self._swept
        await self._over.wait()
        return Ended(processes(answer["ended"]), processes(answer["left"]))


def processes(found: Iterable[Sequence[Any]]) -> tuple[Process, ...]:
    return tuple(Process(pid, name) for pid, name in found)
