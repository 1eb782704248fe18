"""Copy what an environment prints to where it belongs now: a little at once, what keeps coming by a thread."""

import asyncio
import contextlib
import fcntl
import os
import sys
import termios
from collections.abc import Callable, Coroutine
from typing import Any, Final

from daemon.worker import output

COPY_TURN: Final = 32 << 20  # bytes that one environment copies before the others get the thread
LITTLE: Final = 64 << 10  # bytes that are copied on the loop: 0.1 ms

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


class Pump:
    """Copies an environment's output to the run that is going, or, between two runs, to where nobody waits for it.

    A little is copied at once; what keeps coming, by a thread.
    """

    def __init__(self, pipe: int, spawn: Spawn) -> None:
        os.set_blocking(pipe, False)
        with contextlib.suppress(OSError):  # over the user's quota of pipe memory it stays small
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, output.PIPE_SIZE)
        self._pipe = pipe
        self._spawn = spawn
        self._sink = output.Sink()
        self._on_output: Callable[[], None] | None = None
        self._turn = asyncio.Lock()
        self._copying = False
        self.copied = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pipe, self._readable)

    def _readable(self) -> None:
        copied, ended = output.copy(self._pipe, self._sink, LITTLE)
        self._took(copied, ended)
        if copied == LITTLE and not self._copying:
            self._copying = True
            self._spawn(self._copy_much(), "output")

    def _took(self, copied: int, ended: bool) -> None:
        self.copied += copied
        if copied and self._on_output:
            self._on_output()
        if ended:
            self._end()

    def _end(self) -> None:
        if self._pipe >= 0:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1
            self._sink.close()

    async def _copy_much(self) -> None:
        copied = COPY_TURN
        while copied == COPY_TURN:
            copied = await self._by_thread(COPY_TURN)
        self._copying = False

    async def _by_thread(self, budget: int) -> int:
        """Copy up to `budget` bytes; how many there were. Only then may the pipe and the sink be touched again."""
        async with self._turn:
            if self._pipe < 0:
                return 0
            self._loop.remove_reader(self._pipe)
            work = asyncio.ensure_future(  # noqa: TID251 - owned here: awaited to its end even when we are cancelled
                asyncio.to_thread(output.copy, self._pipe, self._sink, budget)
            )
            try:
                copied, ended = await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait({work})
                raise
            self._took(copied, ended)
            if self._pipe >= 0:
                self._loop.add_reader(self._pipe, self._readable)
            return copied

    def _waiting(self) -> int:
        """Bytes in the pipe."""
        if self._pipe < 0:
            return 0
        return int.from_bytes(fcntl.ioctl(self._pipe, termios.FIONREAD, bytes(4)), sys.byteorder)

    async def flush(self) -> None:
        """Copy what is in the pipe now: all that was written before this call."""
        if self._turn.locked():
            async with self._turn:
                pass  # what a thread copies comes first
        if (waiting := self._waiting()) > LITTLE:
            await self._by_thread(waiting)
        elif waiting:
            self._took(*output.copy(self._pipe, self._sink, waiting))

    def flush_now(self) -> bool:
        """The same where that takes no thread; whether it could be done."""
        if self._turn.locked() or (waiting := self._waiting()) > LITTLE:
            return False
        if waiting:
            self._took(*output.copy(self._pipe, self._sink, waiting))
        return True

    async def switch(self, sink: output.Sink, on_output: Callable[[], None] | None = None) -> None:
        """What was written up to now goes to the old sink, which is closed; what comes goes to `sink`."""
        await self.flush()
        while self._turn.locked():
            async with self._turn:
                pass
        self.switch_now(sink, on_output)

    def switch_now(self, sink: output.Sink, on_output: Callable[[], None] | None = None) -> None:
        """The same where it is idle."""
        self._sink.close()
        self._sink, self._on_output = sink, on_output

    def is_idle(self) -> bool:
        """Whether nothing is being copied, nor could be."""
        return not self._turn.locked() and not self._waiting()

    async def close(self) -> None:
        async with self._turn:
            self._end()
