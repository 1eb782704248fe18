"""A persistent bash: code from a file, told by a control pipe, its end by a status descriptor, output by a pipe."""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from daemon.worker import output, surroundings
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
PROBE_AFTER: Final = 0.02  # seconds from SIGINT to asking whether the shell is back
TERM_AFTER: Final = 2.0  # seconds from SIGINT to SIGTERM
KILL_AFTER: Final = 4.0  # seconds from SIGINT to SIGKILL
KILL_EVERY: Final = 0.05
SHELL_AFTER: Final = 6.0  # seconds from SIGINT to the end of the shell itself
GONE_WAIT: Final = 2.0  # seconds for what a stopped run leaves to go at SIGTERM
CHECK_WAIT: Final = 30.0  # seconds for the syntax check
NAMED: Final = 8  # processes that a note names

_END: Final = "{ \\builtin echo %d $? >&%d; } 2>/dev/null\n"


def program() -> str | None:
    """Where bash is on this machine."""
    return shutil.which("bash", path=os.environ.get("PATH", os.defpath) + ":/bin:/usr/bin:/usr/local/bin")


def check(code: bytes) -> None:
    """Refuse code that bash would not run as it is meant: NUL, a syntax error, an open quote or heredoc. Blocks."""
    if b"\0" in code:
        raise Refusal(
            "bad_request",
            "the code holds a NUL byte, which bash drops: write it as \\0 in printf, or use write for data",
        )
    bash = program()
    if bash is None:
        raise Refusal("failed", "there is no bash on this worker's PATH")
    fd = os.memfd_create("code")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(code)
        os.lseek(fd, 0, os.SEEK_SET)
        path = f"/dev/fd/{fd}"
        done = subprocess.run(
            [bash, "--norc", "-O", "extglob", "-n", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(fd,),
            env={"LC_ALL": "C", "PATH": os.defpath},
            timeout=CHECK_WAIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Refusal(
            "limit", f"bash did not get through the code in {CHECK_WAIT:.0f} s: make it smaller"
        ) from None
    finally:
        os.close(fd)
    said = done.stderr.decode("utf-8", "replace").replace(f"{path}: ", "").strip()
    if done.returncode or "delimited by end-of-file" in said:
        raise Refusal("syntax", f"bash does not accept this code, nothing was run: {said[:2000]}")


class Bash:
    """See environment.Environment. Recipe: an interactive bash (one that is not dies on SIGINT), reading the control
    pipe. SIGINT reaches it only after `s` (the code has begun) and before its end mark, never while it reads."""

    def __init__(self, cwd: str, environ: Mapping[str, str], spawn: Spawn) -> None:
        self._cwd = cwd
        self._environ = surroundings.surroundings(environ)
        self._spawn = spawn
        self._n = 0
        self._status = self._control = -1
        self._rest = b""
        self.died = ""

    async def start(self) -> tuple[str, ...]:
        bash = program()
        if bash is None:
            raise Refusal("failed", "there is no bash on this worker's PATH")
        trouble = await self._try([bash, "--noediting", "-l", "-i"], self._environ)
        if not trouble:
            return ()
        path = await asyncio.to_thread(login_path, bash, self._environ)
        again = await self._try(
            [bash, "--noediting", "--noprofile", "--norc", "-i"], self._environ | {"PATH": path}
        )
        if again:
            self.died = f"bash did not start: {again}"
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
        await self._reaper.start(argv, env, self._cwd, fds)
        loop.add_reader(self._status, self._read_status)
        self._reaper.exited.add_done_callback(lambda _: self._exited())
        self._say(first_line(env) + "\n")
        await first_of(self._ready, self._reaper.exited, within=START_WAIT)
        if self._ready.done() and not self.died:
            if not self._ready.result():
                return ""
            trouble = "it makes TMOUT read-only"
        elif self._reaper.exited.done():
            trouble = how_it_ended("bash", self._reaper.exited.result())
        else:
            trouble = f"it was not ready after {START_WAIT:.0f} s"
        await self.kill()
        self.died = ""
        return trouble

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
        with contextlib.suppress(ReaperGone):  # then the shell is gone as well, and says so below
            await self._reaper.mark()
        await self._pump.switch(sink, on_output)
        self._n += 1
        if not self.died:
            self._begun, self._done = loop.create_future(), loop.create_future()
        end = _END % (self._n, STATUS_FD)
        file = shlex.quote(str(code))
        self._say(
            f"{{ \\builtin echo s >&{STATUS_FD}; }} 2>/dev/null; . {file} </dev/null {STATUS_FD}>&-; {end}"
        )
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
        """End the code: SIGINT, SIGTERM to what it started, SIGKILL, at last the shell."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if not await self._within(TERM_AFTER, self._begun):
            await self._kill_shell()
            return
        await self._reaper.signal(signal.SIGINT, interpreter=True, others=True)
        if await self._back(began + TERM_AFTER):
            return
        await self._reaper.signal(signal.SIGTERM, others=True)
        if await self._back(began + KILL_AFTER):
            return
        while loop.time() < began + SHELL_AFTER:
            await self._reaper.signal(signal.SIGKILL, others=True)
            await self._reaper.signal(signal.SIGINT, interpreter=True)
            if await self._back(loop.time() + KILL_EVERY):
                return
        await self._kill_shell()

    async def _back(self, until: float) -> bool:
        """Whether the shell says that it is back, asked once after a moment, before the loop's time `until`."""
        loop = asyncio.get_running_loop()
        if await self._within(PROBE_AFTER, self._done):
            return True
        self._say(_END % (self._n, STATUS_FD))
        return await self._within(until - loop.time(), self._done)

    async def _within(self, seconds: float, future: asyncio.Future[Any]) -> bool:
        await first_of(future, within=max(0.0, seconds))
        return future.done()

    async def _kill_shell(self) -> None:
        self.died = "bash did not come back from a run that was stopped, and was killed"
        await self._reaper.signal(signal.SIGKILL, interpreter=True, others=True)
        await self._within(GONE_WAIT, self._done)

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

    async def kill(self) -> Ended:
        self.died = self.died or "it was ended"
        ended = await self._reaper.end()
        await self._pump.close()
        return ended


def first_line(env: Mapping[str, str]) -> str:
    """What makes a login shell fit for runs; it answers `ready`, with a word more where TMOUT cannot be unset."""
    exports = " ".join(
        f"{name}={shlex.quote(env[name])}" for name in surroundings.NO_TERMINAL if name != "HISTFILE"
    )
    secrets = "|".join(["OUTRIDER_*", *(f"*{ending}" for ending in surroundings.SECRET_ENDINGS)])
    return (
        "unset HISTFILE TMOUT MAILCHECK PROMPT_COMMAND; PS0= PS1= PS2=; set +m +H +o history; unalias -a; "
        "unset -f command_not_found_handle; trap - DEBUG ERR RETURN EXIT; "
        f"export {exports}; "
        f"for REPLY in $(compgen -e); do case $REPLY in {secrets}) unset -v $REPLY;; esac; done; unset REPLY; "
        f"echo ready ${{TMOUT:+tmout}} >&{STATUS_FD}"
    )


def login_path(bash: str, env: Mapping[str, str]) -> str:
    """PATH as a login shell that is not interactive has it, or ours where it does not say. Blocks."""
    try:
        done = subprocess.run(
            [bash, "-lc", 'printf "\\n%s" "$PATH"'],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(env),
            start_new_session=True,
            timeout=START_WAIT / 3,
            check=True,
        )
        return done.stdout.decode().rpartition("\n")[2] or env.get("PATH", os.defpath)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return env.get("PATH", os.defpath)


def listed(found: tuple[Process, ...]) -> str:
    """Processes in a note."""
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(str(one) for one in found[:NAMED]) + more
