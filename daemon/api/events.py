"""A session's event streams: every record once and in order to any number of readers, live pieces to who wants them."""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from aiohttp import web

from daemon.api.gate import Caller
from daemon.api.needs import Harness, Live, Log
from daemon.api.parameters import AFTER, DELTAS, LAST_EVENT, SESSION
from daemon.api.stream import Limits, Stream
from daemon.harness.counts import Counts
from daemon.protocol import events
from daemon.statefile.errors import StateFileError

CACHE: Final = 8 << 20  # bytes of encoded records kept for all readers together
BATCH: Final = 256 << 10  # bytes that are read, and written, in one go
BATCH_RECORDS: Final = 256
QUEUE: Final = 64  # live pieces on their way to one reader; the harness drops old ones where this is full


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


class SessionEvents:
    """The streams of sessions' events, over one cache."""

    def __init__(self, harness: Harness, counts: Counts, limits: Limits) -> None:
        self._harness = harness
        self._counts = counts
        self._limits = limits
        self._cache = Cache()

    async def serve(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """GET /sessions/{id}/events."""
        id, deltas = SESSION.of(request), DELTAS.of(request)
        after, seen = AFTER.of(request), LAST_EVENT.of(request)
        cursor = (after or 0) if seen is None else seen  # a reconnect repeats the old query
        log = await self._harness.log(id)
        with ExitStack() as stack:
            stack.enter_context(self._counts.reader("session"))
            live = stack.enter_context(self._harness.live(id)) if deltas else None
            reader = _Reader(request, caller, self._limits, log, live, self._cache, cursor)
            return await reader.serve(reader.work())


class _Reader(Stream):
    """One open stream of a session's events."""

    def __init__(
        self,
        request: web.Request,
        caller: Caller,
        limits: Limits,
        log: Log,
        live: Live | None,
        cache: Cache,
        cursor: int,
    ) -> None:
        super().__init__(request, caller, limits, {"session": log.id})
        self._log = log
        self._live = live
        self._cache = cache
        self._cursor = cursor
        self._caught_up = False
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(QUEUE)

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run beside the stream."""
        return [
            self.watch_records(self._log),
            *([] if self._live is None else [self._watch_live(self._live)]),
        ]

    async def write(self) -> None:
        if self._cursor > self._log.durable_n and not self._caught_up:
            return await self.refuse(
                400, f"after: {self._cursor} is past the last record, {self._log.durable_n}"
            )
        await self._write_live()
        try:
            await self._write_records()
        except StateFileError as error:
            self.lose(error)
        return None

    def backlog(self) -> int:
        if not self._caught_up:
            return 0
        start, end = self._log.span(self._cursor)
        return end - start

    async def _write_records(self) -> None:
        while True:
            self._cursor, data = await self._cache.after(self._log, self._cursor)
            if not data:
                self._caught_up = True
                return
            await self.send(data)

    async def _write_live(self) -> None:
        # What streamed before a record became durable is in the queue by then: it goes out first.
        pieces = [self._pieces.get_nowait() for _ in range(self._pieces.qsize())]
        if pieces:
            await self.send(b"".join(pieces))

    async def _watch_live(self, live: Live) -> None:
        while True:
            await self._pieces.put(events.encode(await live.get()))
            self.woken.set()
