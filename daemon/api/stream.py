"""One open event stream: a comment when it is silent, an end when its caller is gone, a cut when nobody reads."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

import structlog
from aiohttp import web
from msgspec import Struct

from daemon.api.gate import Caller
from daemon.api.needs import Log
from daemon.protocol import api, events
from daemon.statefile.errors import StateFileError

PIECE: Final = 64 << 10  # bytes handed to the connection before it is asked whether it has room
IDLE: Final = 75.0  # longer than proxies keep theirs, so that the end comes from them
RECONNECT: Final = 1000  # milliseconds a browser waits before it comes back

log = structlog.get_logger("daemon.api")


class Limits(Struct, frozen=True):
    """Of one reader: seconds between comments and without progress, bytes it may fall behind.

    Of connections: seconds without a request, or with half of one; how many there may be, 0 for what fits.
    """

    heartbeat: float = api.HEARTBEAT
    slow: float = api.SLOW_READER
    behind: int = api.MAX_BEHIND
    idle: float = IDLE
    connections: int = 0


class Stream:
    """A stream of events to one reader. A kind of stream says what to `write` each time it is `woken`."""

    def __init__(self, request: web.Request, caller: Caller, limits: Limits, about: dict[str, Any]) -> None:
        self._request = request
        self._caller = caller
        self._limits = limits
        self._about = about  # what the log says of it
        self._answer = web.StreamResponse(
            headers={
                "Content-Type": events.MEDIA_TYPE,
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",  # a proxy that gathers would hold events back
            }
        )
        self.over = False
        self.woken = asyncio.Event()

    async def write(self) -> None:
        """Send what is to be sent now."""
        raise NotImplementedError

    async def last(self) -> None:
        """Send what a stream that ends in order ends with."""

    def backlog(self) -> int:
        """Bytes that are still to be sent to a reader who was up to date, 0 to one who was not yet."""
        return 0

    async def serve(self, work: Sequence[Coroutine[Any, Any, None]] = ()) -> web.StreamResponse:
        """Be the stream until it is over, its caller is gone or too slow; `work` runs beside it. Whole at its end."""
        group_name = f"events of {self._about.get('session', 'the daemon')}"
        async with asyncio.TaskGroup() as group:
            beside = [*work, self._watch_pace(), self._watch_end()]
            tasks = [group.create_task(one, name=group_name) for one in beside]
            try:
                await self._answer.prepare(self._request)
                await self._answer.write(b"retry: %d\n\n" % RECONNECT)
                while not (self._caller.gone.is_set() or self.over):
                    await self.write()
                    await self._sleep()
                await self.last()
                await self._answer.write_eof()
            except ConnectionError:
                pass  # it went; nobody is left to tell
            finally:
                for task in tasks:
                    task.cancel()
        return self._answer

    async def send(self, data: bytes) -> None:
        """Hand bytes to the connection, no faster than it takes them."""
        view = memoryview(data)
        for start in range(0, len(data), PIECE):
            await self._answer.write(view[start : start + PIECE])

    async def refuse(self, status: int, why: str) -> None:
        """Send an error as the last event."""
        await self.send(events.encode(api.ApiError(api.ApiErrorBody(status, why))))
        self.over = True

    async def watch_records(self, log_of: Log) -> None:
        """Wake the stream at each durable record of a session."""
        seen = log_of.durable_n
        try:
            while True:
                await log_of.wait(seen)
                seen = log_of.durable_n
                self.woken.set()
        except StateFileError as error:
            self.lose(error)

    def lose(self, error: Exception) -> None:
        """End the stream: the file has to be opened again, which the client's next connection does."""
        log.warning("events ended", why=str(error), **self._about)
        self.over = True
        self.woken.set()

    async def _sleep(self) -> None:
        if not self.over:
            try:
                async with asyncio.timeout(self._limits.heartbeat):
                    await self.woken.wait()
            except TimeoutError:
                await self._answer.write(events.COMMENT)
        self.woken.clear()

    async def _watch_end(self) -> None:
        await self._caller.gone.wait()
        self.woken.set()

    async def _watch_pace(self) -> None:
        """Cut the connection when the client takes nothing for too long, or is too far behind after it was not."""
        loop = asyncio.get_running_loop()
        taken, since = -1, loop.time()
        while (transport := self._request.transport) is not None:
            waiting = transport.get_write_buffer_size()
            now_taken, now = self._request.writer.output_size - waiting, loop.time()
            if not waiting or now_taken != taken:
                taken, since = now_taken, now
            late = now - since >= self._limits.slow
            if late or (waiting and (left := self.backlog()) and waiting + left > self._limits.behind):
                why = "takes nothing" if late else "is too far behind"
                log.info("reader of events dropped", why=why, **self._about)
                transport.abort()
                return
            await asyncio.sleep(self._limits.slow / 10)
