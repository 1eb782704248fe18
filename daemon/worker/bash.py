"""A persistent bash: code from a file, told by a control pipe, its end by a status descriptor, output by a pipe."""

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from daemon.worker import login, output, surroundings, syntax
from daemon.worker.environment import (
    Ended,
    Ending,
    Process,
    Pump,
    Reaper,
    ReaperGone,
    Spawn,
    Stop,
    drained,
    exit_of,
    first_of,
    how_it_ended,
    pipe_pair,
)
from daemon.worker.refusal import Refusal

STATUS_FD: Final = 250  # far from the numbers scripts use; the code itself does not see it
START_WAIT: Final = 15.0  # seconds that a login profile gets
PROBE_EVERY: Final = (0.02, 0.2)  # seconds between two questions whether the shell is back: first, longest
TERM_AFTER: Final = 2.0  # seconds from SIGINT to SIGTERM
KILL_AFTER: Final = 4.0  # seconds from SIGINT to SIGKILL
KILL_EVERY: Final = 0.1
SHELL_AFTER: Final = 5.0  # seconds from SIGINT to the end of the shell itself
GONE_WAIT: Final = 2.0  # seconds for what a stopped run leaves to go at SIGTERM
INTERRUPTED: Final = 130  # what a shell reports for a command that SIGINT ended
NAMED: Final = 8  # processes that a note names
GATE: Final = signal.SIGURG  # ignored by what has no trap for it: it can never end a shell or what one became
# Where there is a file or function to return from: return, and before each next command again. SIGINT that code
# sends to its own shell ends the code likewise. The status of the inner trap must be 0, extdebug would skip commands.
_TRAP: Final = (
    "\\builtin trap '((${#BASH_SOURCE[@]})) && { \\builtin trap "
    '"((\\${#BASH_SOURCE[@]})) && \\builtin return || :" DEBUG; \\builtin return; }\' URG INT;'
)
_PROBE: Final = "\n{ \\builtin trap - DEBUG; \\builtin echo probe %d >&%d; } 2>/dev/null\n"
# `set -o vi` in the code would have the shell edit, and echo, the lines it reads.
_END: Final = "{ \\builtin echo %d $? >&%d; \\builtin set +o vi +o emacs; } 2>/dev/null\n"


class Bash:
    """See environment.Environment. An interactive bash (one that is not dies of SIGINT), reading the control pipe.

    SIGINT is not for the shell: where the command it waits for handles SIGINT and ends well, bash goes on with the
    code, and once in some 5,000 times it spins for ever with its signals blocked. So the shell gets GATE, whose trap
    bash runs between two commands: it returns from the file and from every function on the way there, and no further
    command of the code begins.
    """

    def __init__(self, cwd: str, environ: Mapping[str, str], spawn: Spawn) -> None:
        self._cwd = cwd
        self._environ = surroundings.surroundings(environ)
        self._spawn = spawn
        self._n = 0
        self._probe = 0
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._status = self._control = -1
        self._rest = b""
        self._reaper = Reaper(spawn)
        self._pump: Pump | None = None
        self._killed = Stop()
        self._settled = asyncio.Event()
        self.died = ""

    @property
    def gone(self) -> bool:
        return self._reaper.gone.is_set()

    async def start(self) -> tuple[str, ...]:
        try:
            return await self._start()
        finally:
            self._settled.set()

    async def _start(self) -> tuple[str, ...]:
        bash = await asyncio.to_thread(syntax.program)
        if bash is None:
            raise Refusal("failed", "there is no bash on this worker's PATH")
        trouble = await self._try([bash, "--noediting", "-l", "-i"], self._environ)
        if not trouble:
            return ()
        again = ""
        if not self._killed.wanted.done():
            path = await asyncio.to_thread(login.login_path, bash, self._environ)
            plain = [bash, "--noediting", "--noprofile", "--norc", "-i"]
            again = await self._try(plain, self._environ | {"PATH": path})
        if self._killed.wanted.done() or again:
            self.died = self.died or f"bash did not start: {again}"
            raise Refusal("failed", self.died)
        return (f"bash runs without the login profile, which did not come up: {trouble}",)

    async def _try(self, argv: list[str], env: Mapping[str, str]) -> str:
        """Start bash and wait until it is ready; what is wrong, with nothing left of it, or nothing."""
        loop = asyncio.get_running_loop()
        control_read, self._control = pipe_pair()
        self._status, status_write = pipe_pair()
        output_read, output_write = pipe_pair()
        for fd in (self._control, self._status):
            os.set_blocking(fd, False)
        self._pump = Pump(output_read, self._spawn)
        self._reaper = Reaper(self._spawn)
        self._ready: asyncio.Future[str] = loop.create_future()
        self._begun: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[int | None] = loop.create_future()
        fds = {0: control_read, 1: output_write, 2: output_write, STATUS_FD: status_write}
        try:
            await self._reaper.start(argv, env, self._cwd, fds)
        except OSError:
            os.close(self._control)
            os.close(self._status)
            await self._pump.close()
            raise
        loop.add_reader(self._status, self._read_status)
        self._reaper.exited.add_done_callback(lambda _: self._exited())
        self._say(login.first_line(env, STATUS_FD) + "\n")
        await first_of(self._ready, self._reaper.exited, self._killed.wanted, within=START_WAIT)
        if self._killed.wanted.done():
            trouble = "it was ended while it started"
        elif self._ready.done() and not self._ready.result():
            return ""
        elif self._ready.done():
            trouble = "it makes TMOUT read-only"
        elif self._reaper.exited.done():
            trouble = how_it_ended("bash", self._reaper.exited.result())
        else:
            trouble = f"it was not ready after {START_WAIT:.0f} s"
        await self._end()
        if not self._killed.wanted.done():
            self.died = ""
        return trouble

    async def _end(self) -> Ended:
        ended = await self._reaper.end()
        if self._pump is not None:
            await self._pump.close()
        return ended

    def _say(self, line: str) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError, OSError):  # its end comes by the reaper
            os.write(self._control, line.encode(errors="surrogateescape"))

    def _read_status(self) -> None:
        try:
            data = os.read(self._status, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._status)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            match line.split():
                case [b"ready", *tmout] if not self._ready.done():
                    self._ready.set_result(" ".join(part.decode() for part in tmout))
                case [b"probe", number] if number == b"%d" % self._probe and not self._answered.done():
                    self._answered.set_result(None)
                case [b"s"] if not self._begun.done():
                    self._begun.set_result(None)
                case [number, status] if number == b"%d" % self._n and not self._done.done():
                    self._done.set_result(int(status))

    def _exited(self) -> None:
        """The shell has ended: what it still said comes first."""
        if self._status < 0:
            return
        self._read_status()
        self.died = self.died or how_it_ended("bash", self._reaper.exited.result())
        for future in (self._begun, self._done):
            if not future.done():
                future.set_result(None)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._status)
        os.close(self._status)
        os.close(self._control)
        self._status = self._control = -1

    async def run(
        self, code: Path, sink: output.Sink, *, limit: float, stop: Stop, on_output: Callable[[], None]
    ) -> Ending:
        loop = asyncio.get_running_loop()
        assert self._pump is not None
        with contextlib.suppress(ReaperGone):  # then the shell is gone as well, and says so below
            await self._reaper.mark()
        await self._pump.switch(sink, on_output)
        self._n += 1
        if not self.died:
            self._begun, self._done = loop.create_future(), loop.create_future()
        end = _END % (self._n, STATUS_FD)
        file = shlex.quote(str(code))
        begin = f"{_TRAP} {{ \\builtin echo s >&{STATUS_FD}; }} 2>/dev/null"
        self._say(f"{begin}; . {file} </dev/null {STATUS_FD}>&-; {end}")
        await first_of(self._done, stop.wanted, within=limit)
        notes: list[str] = []
        if self._done.done():
            stopped = False
        else:
            stopped = True
            await self._ladder()
            if gone := await self._end_leftovers():
                notes.append(f"ended with it: {listed(gone)}")
        living = await drained(self._pump, self._reaper)
        later = output.Sink(code.with_name("later"), output.MAX_LATER, lazy=True)
        await self._pump.switch(later)
        if living:
            notes.append(
                f"still running in the background: {listed(living)}; what is printed until the next run "
                f"goes to {later.path}"
            )
        if self.died:
            notes.append(f"{self.died}: its variables and working directory are lost")
        exit = exit_of(self._reaper.exited.result()) if self.died else self._done.result()
        return Ending(
            exit=None if stopped else exit,
            died=self.died,
            stopped="" if not stopped else "interrupt" if stop.wanted.done() else "timeout",
            notes=tuple(notes),
        )

    async def _ladder(self) -> None:
        """End the code: the gate, and SIGINT, SIGTERM, SIGKILL to what it started; at last the shell."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if await self._within(TERM_AFTER, self._begun):
            await self._reaper.signal(GATE, interpreter=True)
            for number, until in (
                (signal.SIGINT, TERM_AFTER),
                (signal.SIGTERM, KILL_AFTER),
                (signal.SIGKILL, SHELL_AFTER),
            ):
                await self._reaper.signal(number, others=True)
                if await self._back(began + until, number):
                    return
        self.died = "bash did not come back from a run that was stopped, and was killed"
        await self._reaper.signal(signal.SIGKILL, interpreter=True, others=True)
        await self._within(GONE_WAIT, self._done)

    async def _back(self, until: float, number: signal.Signals) -> bool:
        """Whether the shell is back at the control pipe, the gate open again, before the loop's time `until`.

        What it starts meanwhile gets the signal `number` as well. It is asked more than once, each time after an empty
        line: code that sends SIGINT to its own shell has that throw away a line.
        """
        loop = asyncio.get_running_loop()
        pause, longest = PROBE_EVERY
        while True:
            self._probe += 1
            self._answered = loop.create_future()
            self._say(_PROBE % (self._probe, STATUS_FD))
            await first_of(
                self._answered, self._reaper.exited, within=max(0.0, min(pause, until - loop.time()))
            )
            if self._answered.done() or self._reaper.exited.done():
                if not self._done.done():
                    self._done.set_result(INTERRUPTED)
                return True
            if loop.time() >= until:
                return False
            await self._reaper.signal(number, others=True)
            pause = min(2 * pause, longest)

    async def _within(self, seconds: float, future: asyncio.Future[Any]) -> bool:
        await first_of(future, within=max(0.0, seconds))
        return future.done()

    async def _end_leftovers(self) -> tuple[Process, ...]:
        """A stopped run's processes end with it, those that left its group too."""
        loop = asyncio.get_running_loop()
        found = await self._reaper.signal(signal.SIGTERM, others=True)
        give_up = loop.time() + GONE_WAIT
        while left := await self._reaper.new():
            if loop.time() > give_up:
                await self._reaper.signal(signal.SIGKILL, others=True)
                if loop.time() > give_up + GONE_WAIT:
                    break
            await asyncio.sleep(KILL_EVERY)
            found = tuple({one.pid: one for one in (*found, *left)}.values())
        return found

    async def kill(self, reason: str) -> Ended:
        self.died = self.died or reason
        self._killed()
        await self._settled.wait()
        return await self._end()


def listed(found: tuple[Process, ...]) -> str:
    """Processes in a note."""
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(str(one) for one in found[:NAMED]) + more
