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


class Cache:
    """Records as events, each encoded once for all readers; the least recently used go first."""

    def __init__(self, size: int = CACHE) -> None:
        self._most = size
        self._size = 0
        self._events: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    async def after(self, log: Log, n: int, last: int) -> tuple[int, bytes]:
        """(number of the last one, their bytes) for some of the records after `n` up to `last`, which is durable;
        (n, b"") where there are none.
        """
        if last <= n:
            return n, b""
        if (found := self._kept(log, n, last))[1]:
            return found
        with self._lock(log.id) as lock:
            async with lock:  # of many readers who want the same, one reads the file
                if (found := self._kept(log, n, last))[1]:
                    return found
                return await self._read(log, n, last)

    def _kept(self, log: Log, n: int, last: int) -> tuple[int, bytes]:
        found: list[bytes] = []
        size = 0
        while n < last and size < BATCH and (event := self._events.get((log.id, n + 1))) is not None:
            n += 1
            self._events.move_to_end((log.id, n))
            found.append(event)
            size += len(event)
        return n, b"".join(found)

    async def _read(self, log: Log, n: int, last: int) -> tuple[int, bytes]:
        count = min(last - n, BATCH_RECORDS)
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
        try:
            while True:
                # What streamed before a record became durable is there by then, and goes out before it.
                last = self._log.durable_n
                until = await self._write_live(last)
                if self._cursor >= last:
                    self._caught_up = True
                    break
                if not await self._write_records(until):
                    break
        except StateFileError as error:
            self.lose(error)
        return None

    def backlog(self) -> int:
        if not self._caught_up:
            return 0
        start, end = self._log.span(self._cursor)
        return end - start

    async def _write_records(self, last: int) -> bool:
        """Send those up to `last`; False where they are not there."""
        while self._cursor < last:
            self._cursor, data = await self._cache.after(self._log, self._cursor, last)
            if not data:
                return False  # cut off meanwhile: who watches the records says why
            await self.send(data)
        return True

    async def _write_live(self, last: int) -> int:
        """Send what streams at the cursor; up to which record the stream may go on, of those up to `last`."""
        if self._live is None:
            return last
        pieces, until = self._live.take(self._cursor), self._live.until(self._cursor, last)
        if pieces:
            await self.send(b"".join(events.encode(piece) for piece in pieces))
        return until

    async def _watch_live(self, live: Live) -> None:
        while True:
            await live.wait()
            self.woken.set()
