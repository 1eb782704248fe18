"""One helper process, from the node's side: start it, ask it, see it end."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from mesh import helper, picking, verbs
from mesh.channel import Channel, Closed, close_all

END_WAIT: Final = 5.0  # seconds from asking it to end to SIGKILL: WireGuard's process gets 4 of them
EXAMINE_WAIT: Final = 20.0  # seconds for it to say what this machine has
LOG_MAX: Final = 1 << 20  # bytes of a log above which the next start begins a new one
LAST: Final = 400  # bytes at the end of a log that its last line is looked for in
HELPER_LOG: Final = "helper.log"  # in the mesh's folder
ENGINE_LOG: Final = "wireguard.log"


class HelperError(Exception):
    """The helper could not do it; the message says why. `number`: the errno, 0 where there is none."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number = number


class HelperOff(HelperError):
    """There can be no mesh on this machine as it is; the message says why and what would change that."""


class HelperGone(HelperError):
    """The helper has ended; the message says why."""


class Handle:
    """Make with `start`, end with `close`. Requests may run at the same time; each gets its own answer."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", pidfd: int, channel: Channel, log: Path, before: int
    ) -> None:
        self._process = process
        self._channel = channel
        self._log = log
        self._before = before  # bytes of the log that are of earlier helpers
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._reason = ""
        self._off = False
        self.ended = asyncio.Event()
        self.pid = process.pid
        self._exited = asyncio.Event()
        self._pidfd = pidfd
        asyncio.get_running_loop().add_reader(self._pidfd, self._reaped)

    @classmethod
    async def start(
        cls, start: verbs.Start, folder: Path, launcher: Sequence[str], keep: Sequence[int]
    ) -> Self:
        """Start a helper, by way of `launcher`; its logs are in `folder`, and it holds the descriptors `keep` too.

        Raises HelperError.
        """
        log = folder / HELPER_LOG
        command = [*launcher, *helper.BEGIN, "start", msgspec.json.encode(start).decode()]
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            doing = f"{log} cannot be written"
            try:
                output = await asyncio.to_thread(_open_log, log)
                theirs.callback(os.close, output)
                before = os.fstat(output).st_size
                doing = "the mesh's helper gets no channel"
                channel, other = Channel.pair()
                theirs.callback(other.close)
                ours.callback(channel.close)
                doing = f"{command[0]} cannot be started"
                process = subprocess.Popen(  # noqa: ASYNC220 - it returns when the program runs
                    command,
                    stdin=other.fileno(),
                    stdout=output,
                    stderr=output,
                    pass_fds=keep,
                    # A Ctrl-C for us is none for it: it ends when we do. Not a session of its own, which Linux's
                    # scheduler treats as one user among several: on a busy machine WireGuard lost 40 % of its
                    # throughput by that.
                    process_group=0,
                    cwd="/",
                    env=_environ(),
                )
                ours.callback(process.wait)
                ours.callback(process.kill)  # runs first
                doing = "the mesh's helper cannot be watched"
                pidfd = os.pidfd_open(process.pid)
            except OSError as error:
                raise HelperError(f"{doing}: {error.strerror}", error.errno or 0) from error
            ours.pop_all()
        return cls(process, pidfd, channel, log, before)

    async def run(self) -> None:
        """Take answers until the helper ends; run it in a task."""
        try:
            while True:
                body, fds = await self._channel.receive()
                self._take(verbs.answer(body), fds)
        except (Closed, msgspec.MsgspecError) as error:
            if not self._reason:
                last = await asyncio.to_thread(_last_line, self._log, self._before)
                more = last and f", and its last word was: {last}"
                self._reason = f"{error}{more} (log: {self._log})"
        finally:
            self.ended.set()
            for waiting in self._waiting.values():
                waiting.fail(self._gone())
            self._waiting.clear()

    @property
    def reason(self) -> str:
        """Why it ended."""
        return f"the mesh's helper has ended: {self._reason}"

    def _gone(self) -> HelperError:
        return HelperOff(self._reason) if self._off else HelperGone(self.reason)

    def _take(self, answer: verbs.Answer, fds: list[int]) -> None:
        match answer:
            case verbs.Ended(reason=reason):
                self._reason = reason
            case verbs.Failed(id=0, message=message):
                self._reason, self._off = message, True
            case _:
                asked = self._waiting.get(answer.id)
                if asked is None or not asked.take(answer, fds):
                    close_all(fds)  # nobody waits for them any more

    async def ask(
        self, request: verbs.Request, fds: Sequence[int] = ()
    ) -> "tuple[list[verbs.Answer], list[int]]":
        """The answers to one request, and descriptors that are then the caller's. Raises HelperError."""
        if self.ended.is_set():
            raise self._gone()
        waiting = self._waiting[request.id] = _Waiting()
        try:
            await self._channel.send(verbs.encode(request), fds)
            return await waiting.answers
        except Closed:
            waiting.answers.cancel()  # or what it fails with would be nobody's
            await self.ended.wait()  # what it said at last is read by then
            raise self._gone() from None
        except asyncio.CancelledError:
            waiting.drop()
            raise
        finally:
            self._waiting.pop(request.id, None)

    def id(self) -> int:
        return next(self._ids)

    def _reaped(self) -> None:
        self._process.poll()
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._exited.set()

    async def close(self) -> None:
        """Have it take everything down and end; done when it is gone."""
        with contextlib.suppress(Closed):
            await self._channel.send(verbs.encode(verbs.Down(id=self.id())))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), END_WAIT)
        if not self._exited.is_set():
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            await self._exited.wait()
        await self.ended.wait()  # `run` has read what it said at last, and the end
        self._channel.close()
        os.close(self._pidfd)


class _Waiting:
    """For one request's answers: pages, then one of another kind."""

    def __init__(self) -> None:
        self.answers: asyncio.Future[tuple[list[verbs.Answer], list[int]]]
        self.answers = asyncio.get_running_loop().create_future()
        self._got: list[verbs.Answer] = []

    def take(self, answer: verbs.Answer, fds: list[int]) -> bool:
        """False where nobody waits."""
        if self.answers.done():
            return False
        match answer:
            case verbs.Page():
                self._got.append(answer)
            case verbs.Failed(message=message, number=number):
                self.fail(HelperError(message, number))
            case _:
                self.answers.set_result(([*self._got, answer], fds))
        return True

    def fail(self, error: HelperError) -> None:
        if not self.answers.done():
            self.answers.set_exception(error)

    def drop(self) -> None:
        """Close what came for a caller who was cancelled at that moment."""
        if self.answers.done() and not self.answers.cancelled() and not self.answers.exception():
            close_all(self.answers.result()[1])


def _environ() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}


def _open_log(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # somebody may have tidied up
    with contextlib.suppress(OSError):
        if path.stat().st_size > LOG_MAX:
            path.replace(path.with_name(f"{path.name}.1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _last_line(path: Path, start: int) -> str:
    """Of what a log has from `start` on, in bytes; empty where there is nothing."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - LAST))
            lines = file.read(LAST).decode(errors="replace").split("\n")
    except OSError:
        return ""
    shown = ["".join(filter(str.isprintable, line)).strip() for line in lines]
    return next((line for line in reversed(shown) if line), "")


async def examine(backend: picking.Backend, port: int, launcher: Sequence[str] = ()) -> picking.Choice:
    """How the mesh would be made on this machine, or why it cannot be; nothing is changed. Raises HelperError."""
    command = [*launcher, *helper.BEGIN, "examine", backend, str(port)]

    def run() -> bytes:
        return subprocess.run(
            command, env=_environ(), cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=True,
            timeout=EXAMINE_WAIT,
        ).stdout  # fmt: skip

    try:
        return msgspec.json.decode(await asyncio.to_thread(run), type=picking.Choice)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise HelperError(f"the mesh's helper does not say what this machine has: {error}") from error
