"""A program that takes orders from a control pipe and answers on a status pipe: brought up, heard, taken down."""

import abc
import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from daemon.worker import output
from daemon.worker.environment import Spawn, Stop, first_of, how_it_ended, pipe_pair
from daemon.worker.pump import Pump
from daemon.worker.reaping import Ended, Reaper
from daemon.worker.refusal import Refusal

STATUS_FD: Final = 250  # far from the numbers scripts use
OUTPUT_FD: Final = 252  # the output once more, for a shell whose code closes it
START_WAIT: Final = 15.0  # seconds to come up: a login profile runs meanwhile
WRAPPER_WAIT: Final = 1.0  # seconds for what the interpreter was started by to end after it
MAX_STATUS: Final = 1 << 20  # bytes of one line on the status pipe: a refusal has a program's words in it
SAID: Final = 400  # characters of what a program printed that did not come up


class Program(abc.ABC):
    """An interpreter's process under its reaper, with the pipes to it. It says `ready …` once it is up."""

    NAME: str
    CONTROL_FD: ClassVar[int]  # where it takes orders
    ENDED_BY: ClassVar[str]  # what in the code makes it end with a status

    def __init__(self, cwd: str, spawn: Spawn) -> None:
        self.died = ""
        self._cwd = cwd
        self._spawn = spawn
        self._status = self._control = -1
        self._rest = b""
        self._reaper = Reaper(spawn)
        self._pump: Pump | None = None
        self._killed = Stop()
        self._look = select.poll()  # at the status pipe, past the loop
        self._inner = -1  # a descriptor of the interpreter's own process
        self._pipe = ""  # what a link in /proc says of a descriptor of its output

    @property
    def gone(self) -> bool:
        return self._reaper.gone.is_set()

    @abc.abstractmethod
    def _take_up(self, words: list[bytes]) -> None:
        """Take up a line of the status pipe; `ready` among them is for the future `_ready`."""

    @abc.abstractmethod
    def _broken_off(self) -> None:
        """The program has ended, all that it said is taken up: nothing of it is to be waited for any more."""

    def _patience(self) -> float:
        """Seconds that it may take to come up."""
        return START_WAIT

    async def _bring_up(self, argv: Sequence[str], env: Mapping[str, str], first: bytes = b"") -> str:
        """Start the program and wait until it is ready; what is wrong, with nothing left of it, or nothing."""
        loop = asyncio.get_running_loop()
        opened: list[int] = []
        try:
            for _ in range(3):
                opened += pipe_pair()
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # too many are open: those of this try must not stay
            for fd in opened:
                os.close(fd)
            raise
        control_read, self._control, self._status, status_write, output_read, output_write, null = opened
        fds = {0: null, 1: output_write, 2: output_write}
        if self.CONTROL_FD == 0:
            os.close(fds[0])
            fds[OUTPUT_FD] = output_write
        fds |= {self.CONTROL_FD: control_read, STATUS_FD: status_write}
        self._pipe = f"pipe:[{os.fstat(output_read).st_ino}]"
        for fd in (self._control, self._status):
            os.set_blocking(fd, False)
        self._pump = Pump(output_read, self._spawn)
        self._said = output.Sink()
        await self._pump.switch(self._said)
        self._reaper = Reaper(self._spawn)
        self._ready: asyncio.Future[list[bytes]] = loop.create_future()
        try:
            await self._reaper.start(argv, env, self._cwd, fds)
        except BaseException:
            os.close(self._control)
            os.close(self._status)
            self._control = self._status = -1
            await self._pump.close()
            raise
        loop.add_reader(self._status, self._read_status)
        self._look = select.poll()  # not at the pipe of one that did not come up
        self._look.register(self._status, select.POLLIN)
        self._reaper.exited.add_done_callback(lambda _: self._exited())
        if first:
            self._say(first)
        await first_of(self._ready, self._reaper.exited, self._killed.wanted, within=self._patience())
        if self._killed.wanted.done():
            trouble = "it was ended while it started"
        elif self._ready.done():
            return ""
        elif self._reaper.exited.done():
            trouble = how_it_ended(self.NAME, self._reaper.exited.result())
        else:
            trouble = f"it was not ready after {self._patience():.0f} s"
        await self._take_down()
        return trouble

    async def _come_up(self, program: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a program with one of our drivers, which says its own pid as it is ready. Raises Refusal."""
        fds = (str(self.CONTROL_FD), str(STATUS_FD))
        if trouble := await self._bring_up([program, *argv, *fds], env):
            self.died = self.died or f"{self.NAME} did not start: {trouble}"
            raise Refusal("failed", f"{self.died} ({program}){self._last_words()}")
        pid = int(self._ready.result()[0])
        await self._reaper.interpreter(pid)
        self._watch(pid)

    def _last_words(self) -> str:
        """What a program printed that did not come up, to be put behind why."""
        said, _ = output.shown(self._said.ring[-SAID:], whole=False, lines=0)
        return f"; it said: {said.strip()}" if said.strip() else ""

    def _watch(self, pid: int) -> None:
        """See to it that what the interpreter was started by, a wrapper, does not outlive it: nobody would notice."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # it is gone already, or the kernel has no pidfds
            self._inner = os.pidfd_open(pid)
            loop.add_reader(self._inner, self._inner_ended)

    def _inner_ended(self) -> None:
        self._unwatch()
        self._spawn(self._end_wrapper(), f"end what {self.NAME} was started by")

    def _unwatch(self) -> None:
        if self._inner >= 0:
            asyncio.get_running_loop().remove_reader(self._inner)
            os.close(self._inner)
            self._inner = -1

    async def _end_wrapper(self) -> None:
        await first_of(self._reaper.exited, within=WRAPPER_WAIT)
        if not self._reaper.exited.done():
            self.died = self.died or f"{self.NAME} ended; what had started it did not, and was killed"
            await self._reaper.signal(interpreter=signal.SIGKILL)

    async def _take_down(self) -> None:
        """End what came up, or did not; another may be brought up then."""
        await self._end()
        if not self._killed.wanted.done():
            self.died = ""

    async def _end(self) -> Ended:
        ended = await self._reaper.end()
        if self._pump is not None:
            await self._pump.close()
        return ended

    def _say(self, order: bytes) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError, OSError):  # its end comes by the reaper
            os.write(self._control, order)

    def _read_status(self) -> bool:
        """Take up what the status pipe brings; whether it brought anything."""
        try:
            data = os.read(self._status, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            asyncio.get_running_loop().remove_reader(self._status)
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-MAX_STATUS:]
        for line in lines:
            with contextlib.suppress(ValueError):  # code can find this pipe in /proc and write what it likes
                self._take_up(line.split())
        return True

    def _exited(self) -> None:
        """The interpreter has ended: what it still said comes first."""
        if self._status < 0:
            return
        self._unwatch()
        self._read_status()
        self.died = self.died or how_it_ended(self.NAME, self._reaper.exited.result(), self.ENDED_BY)
        self._broken_off()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._status)
        os.close(self._status)
        os.close(self._control)
        self._status = self._control = -1
