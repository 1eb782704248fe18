"""The event streams: every record once and in order to any number of readers, and live pieces to who wants them."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import structlog
from aiohttp import web
from msgspec import Struct

from daemon.api import reading
from daemon.api.needs import Harness, Live, Log
from daemon.protocol import api, events
from daemon.statefile.errors import StateFileError

CACHE: Final = 8 << 20  # bytes of encoded records kept for all readers together
BATCH: Final = 256 << 10  # bytes that are read, and written, in one go
BATCH_RECORDS: Final = 256
PIECE: Final = 64 << 10  # bytes handed to the connection before it is asked whether it has room
QUEUE: Final = 64  # live pieces on their way to one reader; the harness drops old ones where this is full
RECONNECT: Final = 1000  # milliseconds a browser waits before it comes back

log_line = structlog.get_logger("daemon.api")


class Limits(Struct, frozen=True):
    """Of one reader: seconds between comments and without progress, bytes it may fall behind."""

    heartbeat: float = api.HEARTBEAT
    slow: float = api.SLOW_READER
    behind: int = api.MAX_BEHIND


class Cache:
    """Records as events, each encoded once for all readers; the least recently used go first."""

    def __init__(self, size: int = CACHE) -> None:
        self._most = size
        self._size = 0
        self._events: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    async def after(self, log: Log, n: int) -> tuple[int, bytes]:
        """(number of the last one, their bytes) for some of the records after `n`; (n, b"") at the tip."""
        if log.durable_n <= n:
            return n, b""
        if (found := self._kept(log, n))[1]:
            return found
        with self._lock(log.id) as lock:
            async with lock:  # of many readers who want the same, one reads the file
                if (found := self._kept(log, n))[1]:
                    return found
                return await self._read(log, n)

    def _kept(self, log: Log, n: int) -> tuple[int, bytes]:
        found: list[bytes] = []
        size = 0
        while size < BATCH and (event := self._events.get((log.id, n + 1))) is not None:
            n += 1
            self._events.move_to_end((log.id, n))
            found.append(event)
            size += len(event)
        return n, b"".join(found)

    async def _read(self, log: Log, n: int) -> tuple[int, bytes]:
        count = min(log.durable_n - n, BATCH_RECORDS)
        while count > 1:
            start, end = log.span(n, count)
            if end - start <= BATCH:
                break
            count //= 2
        made = []
        for record in await log.read(n + 1, n + count):
            event = events.encode(record)
            made.append(event)
            self._keep((log.id, record.n), event)
        return n + len(made), b"".join(made)

    def _keep(self, key: tuple[str, int], event: bytes) -> None:
        if len(event) > self._most // 4:
            return
        self._size += len(event) - len(self._events.pop(key, b""))
        self._events[key] = event
        while self._size > self._most:
            self._size -= len(self._events.popitem(last=False)[1])

    @contextmanager
    def _lock(self, id: str) -> Iterator[asyncio.Lock]:
        """The session's lock, kept for as long as somebody holds or awaits it."""
        lock, users = self._locks.get(id, (asyncio.Lock(), 0))
        self._locks[id] = (lock, users + 1)
        try:
            yield lock
        finally:
            lock, users = self._locks.pop(id)
            if users > 1:
                self._locks[id] = (lock, users - 1)


class Events:
    """GET /sessions/{id}/events. `closing` is set when the daemon ends: streams end then."""

    def __init__(self, harness: Harness, closing: asyncio.Event, limits: Limits | None = None) -> None:
        self._harness = harness
        self._closing = closing
        self._limits = limits or Limits()
        self._cache = Cache()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        id = reading.session_id(request)
        deltas = reading.flag(request, "deltas", False)
        cursor = reading.number(request, "after") or 0
        if (last := request.headers.get(events.LAST_ID_HEADER)) is not None:
            cursor = reading.whole(events.LAST_ID_HEADER, last)  # a reconnect repeats the old query
        log = await self._harness.log(id)
        with ExitStack() as stack:
            live = stack.enter_context(self._harness.live(id)) if deltas else None
            answer = web.StreamResponse(
                headers={
                    "Content-Type": events.MEDIA_TYPE,
                    "Cache-Control": "no-store",
                    "X-Accel-Buffering": "no",  # a proxy that gathers would hold events back
                }
            )
            await answer.prepare(request)
            await answer.write(b"retry: %d\n\n" % RECONNECT)
            if cursor > log.durable_n:
                why = f"after: {cursor} is past the last record, {log.durable_n}"
                await answer.write(events.encode(api.ApiError(api.ApiErrorBody(400, why))))
            else:
                reader = _Reader(request, answer, log, live, self._cache, self._limits)
                await reader.run(cursor, self._closing)
            await answer.write_eof()
        return answer


class _Reader:
    """One open stream."""

    def __init__(
        self,
        request: web.Request,
        answer: web.StreamResponse,
        log: Log,
        live: Live | None,
        cache: Cache,
        limits: Limits,
    ) -> None:
        self._request = request
        self._answer = answer
        self._log = log
        self._live = live
        self._cache = cache
        self._limits = limits
        self._cursor = 0
        self._caught_up = self._over = False
        self._woken = asyncio.Event()
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(QUEUE)

    async def run(self, cursor: int, closing: asyncio.Event) -> None:
        """Write until the daemon ends; the client's end cancels us, a client too slow is cut."""
        self._cursor = cursor
        async with asyncio.TaskGroup() as group:
            helpers = [self._watch_records(), self._watch_pace(), self._watch_end(closing)]
            if self._live is not None:
                helpers.append(self._watch_live(self._live))
            tasks = [group.create_task(one, name=f"events of {self._log.id}") for one in helpers]
            try:
                while not (closing.is_set() or self._over):
                    await self._write_live()
                    await self._write_records()
                    await self._sleep()
            except ConnectionError:
                pass  # it went; nobody is left to tell
            except StateFileError as error:
                self._end(error)
            finally:
                for task in tasks:
                    task.cancel()

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout(self._limits.heartbeat):
                await self._woken.wait()
        except TimeoutError:
            await self._answer.write(events.COMMENT)
        self._woken.clear()

    async def _write_records(self) -> None:
        while True:
            self._cursor, data = await self._cache.after(self._log, self._cursor)
            if not data:
                self._caught_up = True
                return
            view = memoryview(data)
            for start in range(0, len(data), PIECE):
                await self._answer.write(view[start : start + PIECE])

    async def _write_live(self) -> None:
        # What streamed before a record became durable is in the queue by then: it goes out first.
        pieces = [self._pieces.get_nowait() for _ in range(self._pieces.qsize())]
        if pieces:
            await self._answer.write(b"".join(pieces))

    async def _watch_records(self) -> None:
        seen = self._log.durable_n
        try:
            while True:
                await self._log.wait(seen)
                seen = self._log.durable_n
                self._woken.set()
        except StateFileError as error:
            self._end(error)

    def _end(self, error: StateFileError) -> None:
        """The file has to be opened again: the client's next connection does it."""
        log_line.warning("events ended", session=self._log.id, at=self._cursor, why=str(error))
        self._over = True
        self._woken.set()

    async def _watch_live(self, live: Live) -> None:
        while True:
            piece = await live.get()
            await self._pieces.put(events.encode(piece))
            self._woken.set()

    async def _watch_end(self, closing: asyncio.Event) -> None:
        await closing.wait()
        self._woken.set()

    async def _watch_pace(self) -> None:
        """Cut the connection when the client takes nothing for too long, or is too far behind after it was not."""
        loop = asyncio.get_running_loop()
        taken, since = -1, loop.time()
        while (transport := self._request.transport) is not None:
            waiting = transport.get_write_buffer_size()
            now_taken, now = self._request.writer.output_size - waiting, loop.time()
            if not waiting or now_taken != taken:
                taken, since = now_taken, now
            start, end = self._log.span(self._cursor)
            late = now - since >= self._limits.slow
            if late or (self._caught_up and waiting and waiting + end - start > self._limits.behind):
                why = "takes nothing" if late else "is too far behind"
                log_line.info("reader of events dropped", why=why, session=self._log.id, at=self._cursor)
                transport.abort()
                return
            await asyncio.sleep(self._limits.slow / 10)
