"""Sessions in memory: the same contract as the files', and nothing left when the process ends.

Ended ones are forgotten, the first to end first, where they take more room than they may; the last to end stays.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Final

from daemon.protocol import records
from daemon.protocol.api import Origin
from daemon.protocol.records import BadRecord, Record, stamp
from daemon.statefile import lock, points
from daemon.statefile.errors import Damage, MissingError, StateFileError
from daemon.statefile.index import Index
from daemon.statefile.interface import Costs, Survey
from daemon.statefile.writer import stored

CHUNK: Final = 256 << 10
ENDED: Final = (
    64 << 20
)  # bytes of sessions that have ended: thousands of usual ones, for who comes back to read
CLOSED: Final = "the sessions in memory are gone: the daemon ends"


def _now() -> datetime:
    return datetime.now(UTC)


def _no_cost(spent: object) -> None:
    return None


class MemoryLog:
    """One session's records as their bytes; all there are count as durable."""

    broken = False
    damage: Damage | None = None

    def __init__(
        self, id: str, clock: Callable[[], datetime], ended: Callable[["MemoryLog"], None] = lambda log: None
    ) -> None:
        self.id = id
        self._clock = clock
        self._ended = ended
        self._pieces: list[bytes] = []
        self._edges = [0]
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._closed = False
        self.mtime_ns = 0

    @property
    def n(self) -> int:
        return len(self._pieces)

    @property
    def durable_n(self) -> int:
        return len(self._pieces)

    @property
    def due_n(self) -> int:
        return len(self._pieces)

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return self._edges[-1]

    async def append(self, *drafts: Record, durable: bool = True) -> list[Record]:
        self._check()
        if not drafts:
            return []
        done, pieces = stored(drafts, self.n + 1, self._clock())
        self.put(pieces)
        if any(record.kind == "end" for record in done):
            self._ended(self)
        return done

    def put(self, pieces: list[bytes]) -> None:
        """Take the bytes of the next records."""
        self._edges += [self.size + end for end in accumulate(map(len, pieces))]
        self._pieces += pieces
        self.mtime_ns = time.time_ns()
        for future, wanted in self._waiting.items():
            if wanted <= self.n and not future.done():
                future.set_result(None)

    async def sync(self) -> None:
        self._check()

    async def wait(self, after: int) -> None:
        while self.n <= after:
            self._check()
            future = asyncio.get_running_loop().create_future()
            self._waiting[future] = after + 1
            try:
                await future
            finally:
                del self._waiting[future]

    async def read(self, first: int = 1, last: int | None = None) -> list[Record]:
        return list(self.records(first, last))

    def records(self, first: int = 1, last: int | None = None) -> Iterator[Record]:
        """Records `first` to `last`, made of their bytes one by one."""
        for piece in self._pieces[max(first, 1) - 1 : None if last is None else max(last, 0)]:
            end = piece.index(b"\n")
            line = piece[:end]
            yield Record(records.parse_header(line), piece[end + 1 : -1], line)

    def span(self, after: int, limit: int | None = None) -> tuple[int, int]:
        if not 0 <= after <= self.n:
            raise ValueError(f"after = {after}: session {self.id} has records 1 to {self.n}")
        last = self.n if limit is None else min(after + max(limit, 0), self.n)
        return self._edges[after], self._edges[last]

    def pieces(self, after: int, limit: int | None = None) -> list[bytes]:
        """Those bytes, a record each."""
        self.span(after, limit)
        return self._pieces[after : None if limit is None else after + max(limit, 0)]

    async def chunks(self, after: int, limit: int | None = None) -> AsyncGenerator[bytes, None]:
        data = b"".join(self.pieces(after, limit))
        for start in range(0, len(data), CHUNK):
            yield data[start : start + CHUNK]

    async def headers(self, after: int, limit: int | None = None) -> bytes:
        return b"".join(piece[: piece.index(b"\n") + 1] for piece in self.pieces(after, limit))

    def close(self) -> None:
        """Refuse everything from now on."""
        self._closed = True
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def _check(self) -> None:
        if self._closed:
            raise StateFileError(CLOSED)


class MemoryStore:
    """The sessions. `data`: the folder of what else a daemon keeps, which is locked like any other; `most`: bytes of
    sessions that have ended.
    """

    def __init__(
        self,
        data: Path,
        *,
        clock: Callable[[], datetime] = _now,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
        most: int = ENDED,
    ) -> None:
        self._data = data
        self._clock = clock
        self._new_id = new_id
        self._most = most
        self._logs: dict[str, MemoryLog] = {}
        self._ended: dict[str, int] = {}  # bytes of each, in the order of their ends
        self._ended_size = 0
        self._moves = 0  # sessions that came or went
        self._origins: dict[str, Origin] = {}
        self._closed = False

    def lock(self) -> AbstractContextManager[None]:
        return lock.hold(self._data)

    def index(self, version: str, cost: Costs = _no_cost) -> Index:
        return Index(None, self, version, cost)

    def check_id(self, id: str) -> None:
        points.check_id(id)

    def ids(self) -> list[str]:
        return sorted(self._logs)

    async def create(self, *drafts: Record) -> tuple[str, MemoryLog]:
        if not drafts:
            raise ValueError("a session begins with its start record; none was given")
        _, pieces = stored(drafts, 1, self._clock())
        made = self._made(pieces)
        return made.id, made

    async def open(self, id: str) -> MemoryLog:
        self._check()
        if id not in self._logs:
            raise MissingError(id)
        return self._logs[id]

    async def copy(self, id: str, n: int) -> str:
        source = await self.open(id)
        lines = (await source.headers(0)).split(b"\n")[:-1]
        at = points.check(id, n, source.n, lines)
        made = self._made(source.pieces(0, at - 1))
        self._origins[made.id] = Origin(id, at, stamp(self._clock()))
        return made.id

    def origin(self, id: str) -> Origin | None:
        return self._origins.get(id)

    def survey(self, id: str, add: Callable[[Record], None]) -> Survey:
        log = self._logs.get(id)
        if log is None:
            raise FileNotFoundError(id)
        size, mtime_ns = log.size, log.mtime_ns
        for n, record in enumerate(log.records(), 1):
            try:
                add(record)
            except BadRecord as error:
                return Survey(size, mtime_ns, Damage(n, log.span(n - 1)[0], str(error)))
        return Survey(size, mtime_ns)

    async def close(self) -> None:
        self._closed = True
        for log in self._logs.values():
            log.close()

    # What the index looks at

    def changed(self) -> int:
        """A number that differs when sessions have come or gone."""
        return self._moves

    def all(self) -> Iterator[tuple[str, int, int]]:
        """(id, bytes, time of change) of every session."""
        return iter([(id, log.size, log.mtime_ns) for id, log in list(self._logs.items())])

    def at(self, id: str) -> tuple[int, int] | None:
        """(Bytes, time of change) of one, None where it is not there."""
        log = self._logs.get(id)
        return None if log is None else (log.size, log.mtime_ns)

    def _made(self, pieces: list[bytes]) -> MemoryLog:
        self._check()
        while (id := self._new_id()) in self._logs:
            pass
        made = MemoryLog(id, self._clock, self._has_ended)
        made.put(pieces)
        self._logs[id] = made
        self._moves += 1
        return made

    def _has_ended(self, log: MemoryLog) -> None:
        self._ended_size += log.size - self._ended.get(log.id, 0)
        self._ended[log.id] = log.size
        while self._ended_size > self._most and len(self._ended) > 1:
            oldest = next(iter(self._ended))
            self._ended_size -= self._ended.pop(oldest)
            del self._logs[oldest]
            self._origins.pop(oldest, None)
            self._moves += 1

    def _check(self) -> None:
        if self._closed:
            raise StateFileError(CLOSED)
