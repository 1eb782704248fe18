"""What every interpreter's environment is made of: its reaper, its output, how a run in it ends."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from daemon.worker import output

ANSWER_WAIT: Final = 20.0  # seconds for a reaper to answer; ending all of an environment takes up to 5
COPY_TURN: Final = 32 << 20  # bytes that one environment copies before the others get the thread
DRAIN_FOR: Final = (
    0.2  # seconds that output is waited for after the end mark, while something may still write
)
DRAIN_EVERY: Final = 0.02
DRAIN_QUIET: Final = 0.1

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


class Process(Struct, frozen=True):
    """A process that was found: its pid and its command line."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.pid} {self.name}"


class Ended(Struct, frozen=True):
    """What was ended with an environment, and what would not end."""

    ended: tuple[Process, ...] = ()
    left: tuple[Process, ...] = ()


class Ending(Struct, frozen=True):
    """How a run ended. `exit` None: it was stopped. `died`: why the environment ended with it, empty if it lives."""

    exit: int | None
    died: str = ""
    stopped: Literal["", "interrupt", "timeout"] = ""
    notes: tuple[str, ...] = ()


class Stop:
    """Somebody's wish that a run ends; made once, awaited where the run is."""

    def __init__(self) -> None:
        self.wanted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self) -> None:
        if not self.wanted.done():
            self.wanted.set_result(None)


class Environment(Protocol):
    """One interpreter of one session, kept from run to run."""

    died: str  # why it takes no more runs; empty while it does

    @property
    def gone(self) -> bool:
        """Whether no process of it is left."""

    async def start(self) -> tuple[str, ...]:
        """Bring the interpreter up; notes for the model. Raises Refusal when it does not come up."""

    async def run(
        self, code: Path, sink: output.Sink, *, limit: float, stop: Stop, on_output: Callable[[], None]
    ) -> Ending:
        """Run a file of code to its end, the time `limit` (seconds) or the stop; one run at a time.

        Raises Refusal where the interpreter does not accept the code: nothing was run then.
        """

    async def kill(self, reason: str) -> Ended:
        """End the interpreter and every process that came of it; may be called at any time, also during `start`."""


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
        self._alone = False
        self.detour = False  # the interpreter's output goes through another process first

    async def start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, fds: Mapping[int, int]
    ) -> None:
        """Start the program under a reaper; `fds` maps its descriptor numbers to ours, which are closed here."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.to_thread(self._popen, theirs.fileno(), set(fds.values()))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            for fd in set(fds.values()):
                os.close(fd)
        reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=16 << 20)
        order = {
            "argv": list(argv),
            "env": dict(env),
            "cwd": cwd,
            "fds": {str(n): fd for n, fd in fds.items()},
        }
        self._writer.write(json.dumps(order).encode() + b"\n")
        self._spawn(self._listen(reader, process), f"reaper {process.pid}")

    @staticmethod
    def _popen(fd: int, fds: set[int]) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).with_name("reaper.py"))
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", script, str(fd)],
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
                elif (answer := self._answers.pop(message.get("id", 0), None)) and not answer.done():
                    answer.set_result(message)
        except OSError:
            pass
        finally:
            self.gone.set()
            if not self.exited.done():
                self.exited.set_result(None)
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ReaperGone())
            self._answers.clear()
            self._writer.close()
            process.kill()  # it has ended, or hangs: either way it is collected now
            await asyncio.shield(asyncio.to_thread(process.wait))

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
        if not self._alone:
            await self.call("mark")
        self._alone = False

    async def new(self) -> tuple[Process, ...]:
        """Living processes since the mark, without the interpreter."""
        try:
            answer = await self.call("new")
        except ReaperGone:
            return ()
        self._alone = bool(answer["alone"])
        self.detour = bool(answer["detour"])
        return processes(answer["processes"])

    async def signal(
        self, number: int, *, interpreter: bool = False, others: bool = False
    ) -> tuple[Process, ...]:
        """Signal the interpreter, what is new since the mark, or both; the others that got it."""
        try:
            answer = await self.call("signal", number=int(number), interpreter=interpreter, others=others)
        except ReaperGone:
            return ()
        return processes(answer["processes"])

    async def interpreter(self, pid: int) -> None:
        """The interpreter has come up as process `pid`: the program that was started may be a wrapper around it."""
        with contextlib.suppress(ReaperGone):
            await self.call("interpreter", pid=pid)

    async def end(self) -> Ended:
        """End every process of the environment and the reaper itself."""
        try:
            answer = await self.call("end")
        except ReaperGone:
            return Ended()
        await self.gone.wait()
        return Ended(processes(answer["ended"]), processes(answer["left"]))


def processes(found: list[list[Any]]) -> tuple[Process, ...]:
    return tuple(Process(pid, name) for pid, name in found)


class Pump:
    """Copies an environment's output to the run that is going, or, between two runs, to where nobody waits for it."""

    def __init__(self, pipe: int, spawn: Spawn) -> None:
        os.set_blocking(pipe, False)
        with contextlib.suppress(OSError):  # over the user's quota of pipe memory it stays small
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, output.PIPE_SIZE)
        self._pipe = pipe
        self._sink: output.Sink | None = None
        self._on_output: Callable[[], None] | None = None
        self._turn = asyncio.Lock()
        self._task = spawn(self._copy(), "output")
        self.copied = 0

    async def _copy(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            ended = False
            while not ended:
                readable = loop.create_future()
                loop.add_reader(self._pipe, _wake, readable)
                try:
                    await readable
                finally:
                    loop.remove_reader(self._pipe)
                ended = await self._copy_some(COPY_TURN)
        finally:
            os.close(self._pipe)
            self._pipe = -1
            if self._sink:
                self._sink.close()

    async def _copy_some(self, budget: int | None = None) -> bool:
        """Copy up to `budget` bytes, or what is in the pipe now; whether the pipe has ended."""
        async with self._turn:
            if self._pipe < 0:
                return True
            if budget is None:
                budget = int.from_bytes(fcntl.ioctl(self._pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
            if not budget:
                return False
            sink = self._sink or output.Sink(None)
            work = asyncio.ensure_future(  # noqa: TID251 - owned here: awaited to its end even when we are cancelled
                asyncio.to_thread(output.copy, self._pipe, sink, budget)
            )
            try:
                copied, ended = await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait({work})
                raise
            self.copied += copied
            if copied and self._on_output:
                self._on_output()
            return ended

    async def flush(self) -> None:
        """Copy what is in the pipe now: all that was written before this call."""
        await self._copy_some()

    async def switch(self, sink: output.Sink, on_output: Callable[[], None] | None = None) -> None:
        """What was written up to now goes to the old sink, which is closed; what comes goes to `sink`."""
        await self.flush()
        async with self._turn:
            if self._sink:
                self._sink.close()
            self._sink, self._on_output = sink, on_output

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def first_of(*futures: asyncio.Future[Any], within: float | None = None) -> None:
    """Wait until one of the futures is done or `within` seconds are over; they are left as they are."""
    await asyncio.wait(futures, timeout=within, return_when=asyncio.FIRST_COMPLETED)


async def drained(pump: Pump, reaper: Reaper) -> tuple[Process, ...]:
    """Wait for output after a run's end, while new processes live and at most DRAIN_FOR; the ones that still do.

    Output that goes through another process (`exec > >(tee log)`) is waited for until there is none for DRAIN_QUIET.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + DRAIN_FOR
    copied, quiet_at = pump.copied, loop.time() + DRAIN_QUIET
    while True:
        living = await reaper.new()
        await pump.flush()
        now = loop.time()
        if pump.copied != copied:
            copied, quiet_at = pump.copied, now + DRAIN_QUIET
        if now >= give_up or not (living or (reaper.detour and now < quiet_at)):
            return living
        await asyncio.sleep(DRAIN_EVERY)


def how_it_ended(program: str, status: int | None, by: str = "") -> str:
    """A sentence on the end of an interpreter: `status` as waitstatus_to_exitcode has it, None unknown.

    `by` says what makes it end with a status.
    """
    match status:
        case None:
            return f"{program} was killed together with the process that held it"
        case number if number < 0:
            return f"{program} was killed by {signal.Signals(-number).name}"
        case number:
            return f"{program} ended with status {number}" + (f" ({by})" if by else "")


def exit_of(status: int | None) -> int | None:
    """The exit that a shell would report for that status."""
    return 128 - status if status is not None and status < 0 else status


def pipe_pair() -> tuple[int, int]:
    """A pipe, its read end first; both close on exec."""
    return os.pipe2(os.O_CLOEXEC)
