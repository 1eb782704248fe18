"""A harness in memory, with the API's semantics and none of the work, and the recording of what it was asked."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from daemon.api import server
from daemon.api.keys import Keys
from daemon.api.needs import Harness, Log
from daemon.api.server import Served
from daemon.definition.agent import Agent
from daemon.harness import fresh
from daemon.harness.census import Census
from daemon.harness.changes import Changed, Changes
from daemon.harness.counts import Counts
from daemon.harness.errors import Conflict, Ended, HarnessError, Invalid, Malformed, NotFound
from daemon.harness.live import Live, LiveEvent, LiveReaders
from daemon.protocol import api, records
from daemon.protocol.records import Config, Record, Status, WorkerRef, draft, json_draft
from daemon.provider.base import ProviderError

TIME = "2026-01-02T03:04:05.678Z"


class MemoryLog:
    """A log whose file is a bytearray."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.file = bytearray()
        self.ends = [0]
        self.stored: list[Record] = []
        self.reads = 0
        self._changed = asyncio.Event()

    @property
    def durable_n(self) -> int:
        return len(self.stored)

    def append(self, *drafts: Record) -> int:
        for one in drafts:
            n = self.durable_n + 1
            header = msgspec.structs.replace(one.header, n=n, id=one.header.id or f"{n:016x}", time=TIME)
            line, data = records.encode(Record(header, one.body))
            self.put(line, one.body, data)
        return self.durable_n

    def put(self, line: bytes, body: bytes, data: bytes) -> None:
        self.file += data
        self.ends.append(len(self.file))
        self.stored.append(Record(records.parse_header(line), body, line))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def read(self, first: int = 1, last: int | None = None) -> list[Record]:
        self.reads += 1
        await asyncio.sleep(0)
        return self.stored[first - 1 : last]

    def span(self, after: int, limit: int | None = None) -> tuple[int, int]:
        if after > self.durable_n:
            raise ValueError(f"{after} is past {self.durable_n}")
        return self.ends[after], self.ends[self._last(after, limit)]

    def _last(self, after: int, limit: int | None) -> int:
        return self.durable_n if limit is None else min(self.durable_n, after + limit)

    async def chunks(self, after: int, limit: int | None = None) -> AsyncIterator[bytes]:
        start, end = self.span(after, limit)
        for at in range(start, end, 1000):
            yield bytes(self.file[at : min(end, at + 1000)])

    async def headers(self, after: int, limit: int | None = None) -> bytes:
        return b"".join(record.raw + b"\n" for record in self.stored[after : self._last(after, limit)])

    async def wait(self, after: int) -> None:
        while self.durable_n <= after:
            await self._changed.wait()


class FakeHarness:
    """Sessions in memory. `before` runs before each change, so that a test can hold it or make it fail."""

    def __init__(self) -> None:
        self.ready = True
        self.resumed = True
        self.held = False
        self.logs: dict[str, MemoryLog] = {}
        self.created: list[api.Create] = []
        self.posts: dict[tuple[str, str], tuple[list[api.Part], int]] = {}
        self.seen: list[tuple[str, ...]] = []
        self.stepping: set[str] = set()
        self.ended: set[str] = set()
        self.passing = LiveReaders()  # of all sessions
        self.readers: list[Live] = []
        self.here, self.gone = asyncio.Event(), asyncio.Event()
        self.before: Callable[[], Awaitable[None]] | None = None
        self.failure: Exception | None = None
        self.known_workers: list[api.WorkerInfo] = []
        self.cordoned: set[str] = set()
        self.workers_of: tuple[WorkerRef, ...] = ()
        self.patches: list[api.ConfigPatch] = []
        self.changed = Changes()
        self.left = asyncio.Event()
        self.agents: dict[str, Agent] = {}
        self.census = Census()
        self.census.complete.set()

    def session(self, *texts: str) -> str:
        """A new session with a start, a config and a message for each text."""
        id = f"{len(self.logs) + 1:016x}"
        log = self.logs[id] = MemoryLog(id)
        log.append(draft("start"), json_draft("config", Config("rehearsal/tour")))
        log.append(*(draft("message", text, via="test") for text in texts))
        return id

    async def _change(self) -> None:
        if self.before is not None:
            await self.before()
        if self.failure is not None:
            raise self.failure

    async def create(self, create: api.Create, surface: str = "", named: Collection[str] = ()) -> str:
        await self._change()
        fresh.check(create, named)
        if create.model == "nobody/none":
            raise Invalid("model: no provider serves nobody/none")
        self.created.append(create)
        return self.session()

    async def info(self, id: str) -> api.Info:
        log = await self.log(id)
        status: Status = "stepping" if id in self.stepping else "closed"
        return api.Info(id, status, Config("rehearsal/tour"), TIME, TIME, log.durable_n)

    async def check(self, id: str, model: str = "") -> api.Check:
        log = await self.log(id)
        if model == "nobody/none":
            raise Invalid("model: no provider serves nobody/none")
        return api.Check(id, "closed", model or "rehearsal/tour", True, log.durable_n)

    async def list(
        self, status: Status | None = None, limit: int = 100, after: str = ""
    ) -> Sequence[api.Info]:
        if after and after not in self.logs:
            raise Malformed(f"after: there is no session {after}")
        infos = [await self.info(id) for id in sorted(self.logs, reverse=True) if not after or id < after]
        return [info for info in infos if status is None or info.status == status][:limit]

    async def tally(self) -> Mapping[Status, int]:
        return Counter([(await self.info(id)).status for id in self.logs])

    async def rested(self, id: str) -> None:
        await self.log(id)

    def hold(self) -> None:
        self.held = True

    def on_turn(self, adopt: Callable[[str, int], None]) -> None:
        pass

    async def post(
        self, id: str, via: str, parts: Sequence[api.Part], key: str = "", *, turn: bool = False
    ) -> int:
        await self._change()
        log = self._memory(id)
        if id in self.ended:
            raise Ended(f"session {id} has ended")
        if key and (known := self.posts.get((id, key))):
            if known[0] != list(parts):
                raise Conflict("another post has this key")
            return known[1]
        n = log.append(*(draft("message", p.body, p.type, via=via, idempotency_key=key) for p in parts))
        self.posts[id, key] = (list(parts), n)
        return n

    async def retry(self, id: str) -> Status:
        await self._change()
        await self.log(id)
        self.seen.append(("retry", id))
        return "stepping"

    async def stop(self, id: str, via: str) -> None:
        await self._change()
        await self.log(id)
        if id not in self.stepping:
            raise Conflict(f"session {id} is not stepping")
        self.stepping.discard(id)
        self.seen.append(("stop", id, via))

    async def log(self, id: str) -> Log:
        if isinstance(self.failure, HarnessError):
            raise self.failure
        return self._memory(id)

    def _memory(self, id: str) -> MemoryLog:
        if id not in self.logs:
            raise NotFound(f"there is no session {id}")
        return self.logs[id]

    @contextmanager
    def live(self, id: str) -> Iterator[Live]:
        with self.passing.read() as reader:
            self.readers.append(reader)
            self.here.set()
            try:
                yield reader
            finally:
                self.readers.remove(reader)
                self.gone.set()

    def stream(self, *pieces: LiveEvent) -> None:
        for piece in pieces:
            self.passing.put(piece)

    async def end(self, id: str, via: str) -> None:
        await self._change()
        await self.log(id)
        if id in self.ended:
            raise Ended(f"session {id} has ended")
        self.ended.add(id)
        self.seen.append(("end", id, via))

    async def set_workers(self, id: str, via: str, workers: Sequence[WorkerRef]) -> int:
        await self._change()
        self.workers_of = tuple(workers)
        return self._memory(id).append(
            json_draft("config", Config("rehearsal/tour", workers=self.workers_of), via=via)
        )

    async def patch_config(self, id: str, via: str, patch: api.ConfigPatch) -> int:
        await self._change()
        self.patches.append(patch)
        return self._memory(id).append(json_draft("config", Config("rehearsal/tour"), via=via))

    @contextmanager
    def changes(self) -> Iterator[Changed]:
        with self.changed.read() as reader:
            try:
                yield reader
            finally:
                self.left.set()

    def workers(self) -> Sequence[api.WorkerInfo]:
        return self.known_workers

    async def cordon(self, name: str, cordoned: bool) -> None:
        await self._change()
        if name not in {worker.name for worker in self.known_workers}:
            raise NotFound(f"there is no worker {name}")
        (self.cordoned.add if cordoned else self.cordoned.discard)(name)


class FakeProviders:
    """One provider, with what was set."""

    def __init__(self) -> None:
        self.settings: list[tuple[str, api.ProviderSetting]] = []
        self.waits: list[float] = []
        self.failure: Exception | None = None

    async def refresh(self, wait: float = 0.0) -> None:
        self.waits.append(wait)

    def describe(self) -> api.Providers:
        return api.Providers("rehearsal/tour", (self._info("rehearsal"),))

    async def set(self, name: str, setting: api.ProviderSetting) -> api.ProviderInfo:
        if self.failure is not None:
            raise self.failure
        self.settings.append((name, setting))
        return self._info(name)

    async def test(self, name: str, model: str) -> api.Tested:
        if name != "rehearsal":
            raise ProviderError(f"there is no provider {name!r}", code="model")
        return api.Tested(True, f"{name}/{model or 'tour'}", 0.1, said="ready")

    async def scan(self, ports: Sequence[int]) -> list[api.Found]:
        return [api.Found("http://127.0.0.1:11434/v1", "Ollama", "ollama", ("qwen3",))]

    def _info(self, name: str) -> api.ProviderInfo:
        models = (api.ModelInfo(f"{name}/tour", 1000),)
        return api.ProviderInfo(name, "rehearsal", "", False, True, models, asks=())


class FakeMesh:
    """Tokens in a list, and which workers were removed. `failure`: how the next request ends."""

    def __init__(self) -> None:
        self.info = api.MeshInfo(state="idle", name="hub")
        self.made: list[api.NewToken] = []
        self.revoked: set[int] = set()
        self.joined: set[str] = set()
        self.failure: Exception | None = None

    def describe(self) -> api.MeshInfo:
        return self.info

    async def examined(self) -> api.MeshInfo:
        return self.info

    async def tokens(self) -> Sequence[api.TokenInfo]:
        self._check()
        return [
            api.TokenInfo(
                id, new.name, "revoked" if id in self.revoked else "good", new.uses, TIME, TIME, new.ephemeral
            )
            for id, new in enumerate(self.made, 1)
        ]

    async def make_token(self, new: api.NewToken) -> api.TokenMade:
        self._check()
        self.made.append(new)
        id = len(self.made)
        return api.TokenMade(id, new.name, new.uses, TIME, TIME, new.ephemeral, "orj_x", "echo orj_x | sh")

    async def revoke_token(self, id: int) -> None:
        self._check()
        if not 0 < id <= len(self.made):
            raise NotFound(f"there is no token {id}")
        self.revoked.add(id)

    async def remove_worker(self, name: str) -> None:
        self._check()
        if name not in self.joined:
            raise NotFound(f"there is no worker {name}")
        self.joined.remove(name)

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure


@asynccontextmanager
async def serve(
    harness: Harness,
    *,
    version: str = "1",
    providers: FakeProviders | None = None,
    mesh: FakeMesh | None = None,
    keys: Keys | None = None,
    counts: Counts | None = None,
    **more: Any,
) -> AsyncIterator[Served]:
    """The server on fakes, without a key, for what a test does not give."""
    async with server.serve(
        harness,
        version=version,
        providers=providers or FakeProviders(),
        mesh=mesh or FakeMesh(),
        keys=keys or Keys(Path("/nowhere/keys.toml")),
        counts=counts or Counts(),
        **more,
    ) as served:
        yield served
