"""A persistent bash: code from a file, told by its standard input, which the code itself does not see."""

import asyncio
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from daemon.worker import login, surroundings, syntax
from daemon.worker.environment import Spawn
from daemon.worker.interpreter import GATE, Interpreter
from daemon.worker.program import OUTPUT_FD, STATUS_FD
from daemon.worker.refusal import Refusal

TRIED_FD: Final = STATUS_FD + 1  # where a descriptor is copied to see whether it is open
# Where there is a file or function to return from: return, and before each next command again. SIGINT that code
# sends to its own shell ends the code likewise. The status of the inner trap must be 0, extdebug would skip commands.
# It goes once the file is left: under `set -T` it would end the next one as well.
_TRAP: Final = (
    "\\builtin trap '((${#BASH_SOURCE[@]})) && { \\builtin trap "
    '"((\\${#BASH_SOURCE[@]})) && \\builtin return || \\builtin trap - DEBUG" DEBUG; \\builtin return; }\' URG INT;'
)
# `exec >&-` in the code would leave all after it silent: what it has closed is opened again. Not by `builtin exec`:
# what that redirects holds for itself only.
_OPEN: Final = (
    f"{{ \\builtin :; }} 2>/dev/null {TRIED_FD}>&1 || \\exec >&{OUTPUT_FD}; "
    f"{{ \\builtin :; }} {TRIED_FD}>&2 2>/dev/null || \\exec 2>&{OUTPUT_FD};"
)
# What it has sent elsewhere stays there, and each later run says so. Of a pipe the reaper knows whether who reads it,
# as `tee`, prints it here. The shell's standard error is looked at as a copy: this must print nothing under `set -x`.
_AWAY: Final = (
    "{ "
    + " ".join(
        f"\\builtin test /proc/self/fd/{fd} -ef /proc/self/fd/{OUTPUT_FD} || "
        f"{{ \\builtin test -p /proc/self/fd/{fd} && \\builtin echo piped {number} >&{STATUS_FD}; }} || "
        f"\\builtin echo away {number} >&{STATUS_FD};"
        for number, fd in ((1, 1), (2, TRIED_FD))
    )
    + f" }} {TRIED_FD}>&2 2>/dev/null;"
)
_STREAMS: Final = {b"1": ("standard output", "exec >&-"), b"2": ("standard error", "exec 2>&-")}
_PROBE: Final = b"\n{ \\builtin trap - DEBUG; \\builtin echo probe %d >&%d; } 2>/dev/null\n"
# Put right behind a run's status, where it costs no run its time: the keeper has other things to do meanwhile.
# `set -o vi` in the code would have the shell edit, and echo, the lines it reads; a prompt of the code's own (every
# activated virtual environment has one) would be printed, and a PROMPT_COMMAND could read the orders.
_TIDY: Final = (
    f"{_TRAP} \\builtin set +o vi +o emacs; \\builtin unset -v PROMPT_COMMAND PS0; PS1= PS2=; "
    "} 2>/dev/null\n"
)


class Bash(Interpreter):
    """An interactive bash (one that is not dies of SIGINT), reading the control pipe.

    SIGINT is not for the shell: where the command it waits for handles SIGINT and ends well, bash goes on with the
    code, and once in some 5,000 times it spins for ever with its signals blocked. So the shell gets GATE, whose trap
    bash runs between two commands: it returns from the file and from every function on the way there, and no further
    command of the code begins. It does nothing before the file has begun, and nothing tells when that is, since a word
    on it would cost every run more than a stop that comes so early: the gate is tried again until the shell is back.
    """

    NAME = "bash"
    CONTROL_FD: ClassVar = 0
    ENDED_BY: ClassVar = "exit, exec or set -e in the code does that"
    STOPS: ClassVar = (GATE, GATE, GATE)
    ACTS_BESIDE: ClassVar = False
    SAYS_BEGUN: ClassVar = False

    def __init__(self, cwd: str, environ: Mapping[str, str], spawn: Spawn) -> None:
        super().__init__(cwd, spawn)
        self._environ = surroundings.surroundings(environ)
        self._probe = 0
        self._outputs: tuple[str, ...] = ()  # where /proc has the shell's standard error and output
        self._stopped = (
            False  # since the last order: the line that it was may not have been carried out to its end
        )
        self._file = (Path(), "")  # of code, and what runs it
        self._away: list[bytes] = []  # which of _STREAMS went elsewhere as the run began
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

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
            raise Refusal("failed", self.died + self._last_words())
        return (f"bash runs without the login profile, which did not come up: {trouble}",)

    async def _try(self, argv: list[str], env: Mapping[str, str]) -> str:
        first = f"{login.first_line(env, STATUS_FD)}; {{ {_TIDY}"
        trouble = await self._bring_up(argv, env, first.encode(errors="surrogateescape"))
        if not trouble:
            pid, *more = self._ready.result()
            self._outputs = tuple(f"/proc/{int(pid)}/fd/{number}" for number in (2, 1))
            if more:
                trouble = "it makes TMOUT read-only"
                await self._take_down()
        return trouble

    def _order(self, number: int, code: Path) -> bytes:
        if self._file[0] != code:
            run = f"\\builtin . {shlex.quote(str(code))} </dev/null {STATUS_FD}>&- {OUTPUT_FD}>&-; {{ \\builtin echo "
            self._file = code, run
        line = f'{self._file[1]}{number} "$?" >&{STATUS_FD}; {_TIDY}'
        self._away.clear()
        if self._stopped or not self._is_straight():
            self._stopped = False
            line = f"{_OPEN} {_AWAY} {{ {_TRAP} }} 2>/dev/null; {line}"
        return line.encode(errors="surrogateescape")

    def _is_straight(self) -> bool:
        """Whether both of the shell's streams surely come here: no is no answer, then the shell looks.

        While it still tidies up it has its error elsewhere, and for an instant the status pipe as its output. So the
        error is looked at first: once that is straight, the output is what the code has left.
        """
        try:
            return all(os.readlink(path) == self._pipe for path in self._outputs)
        except OSError:
            return False

    def _ask(self) -> asyncio.Future[Any]:
        """Ask whether the shell is back at the control pipe, the gate open again.

        It is asked more than once, each time after an empty line: code that sends SIGINT to its own shell has that
        throw away a line.
        """
        self._stopped = True
        self._probe += 1
        self._answered = asyncio.get_running_loop().create_future()
        self._say(_PROBE % (self._probe, STATUS_FD))
        return self._answered

    def _heard(self, words: list[bytes]) -> None:
        if words == [b"probe", b"%d" % self._probe] and not self._answered.done():
            self._answered.set_result(None)
        match words:
            case [b"away", number] if number in _STREAMS:
                self._away.append(number)
            case [b"piped", number] if number in _STREAMS and int(number) not in self._reaper.returning:
                self._away.append(number)
            case _:
                pass

    def _remarks(self) -> tuple[str, ...]:
        return tuple(
            f"{name} of this bash goes where an earlier run sent it, not here; a run of `{undo}` brings it back "
            "for the runs after it"
            for name, undo in (_STREAMS[number] for number in self._away)
        )
