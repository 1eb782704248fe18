"""A provider that answers what the test wrote down, and a worker that does what the test says."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from daemon.harness.counts import Counts
from daemon.harness.harness import Harness
from daemon.pool import Content, Cordoned, Output, Refused, WorkerGone
from daemon.protocol import api, frames
from daemon.protocol.api import Price
from daemon.protocol.records import TEXT, CallBody, Usage, WorkerRef
from daemon.provider.base import (
    Answer,
    Block,
    End,
    Event,
    Model,
    Outcome,
    Provider,
    ProviderError,
    Query,
    Request,
    Transport,
    Wire,
)
from daemon.statefile.interface import SessionStore

Scripted = Event | ProviderError | asyncio.Event


def says(*blocks: Block, end: End = "normal", prompt: int = 10) -> list[Scripted]:
    """An answer of these blocks."""
    return [*blocks, Outcome(Usage(prompt, 5), end, end)]


def text(words: str) -> Block:
    return Block("text", words.encode())


def call(id: str, name: str = "run", **arguments: Any) -> Block:
    body = CallBody(name, msgspec.json.encode(arguments).decode())
    return Block("call", msgspec.json.encode(body), "application/json", id)


def run(id: str, code: str, worker: str = "w") -> Block:
    return call(id, worker=worker, code=code)


class FakeDecoder:
    def __init__(self, script: Sequence[Scripted]) -> None:
        self._script = script
        self.events = 0

    def feed(self, data: bytes) -> list[Event]:
        if not data:
            return []
        self.events += 1
        item = self._script[int(data)]
        if isinstance(item, ProviderError):
            raise item
        assert not isinstance(item, asyncio.Event)
        return [item]

    def end(self) -> list[Event]:
        raise ProviderError("cut", retryable=True)


class FakeProvider:
    """Plays `answers` one request after another; an asyncio.Event in one holds the stream until it is set."""

    name = "fake"
    price: Price | None = None  # of its model

    def __init__(self, *answers: list[Scripted]) -> None:
        self.answers = list(answers)
        self.queries: list[Query] = []
        self.asked = asyncio.Event()

    @property
    def transport(self) -> Transport:
        @asynccontextmanager
        async def send(request: Request) -> AsyncIterator[Answer]:
            script = self._now

            async def chunks() -> AsyncIterator[bytes]:
                for at, item in enumerate(script):
                    if isinstance(item, asyncio.Event):
                        await item.wait()
                    else:
                        yield str(at).encode()

            yield Answer(200, {"content-type": "text/event-stream"}, chunks())

        return send

    def compile(self, query: Query, wire: Wire) -> Request:
        self.queries.append(query)
        self._now = self.answers.pop(0)
        self.asked.set()
        return Request("", {}, repr(query.context).encode())

    def decoder(self) -> FakeDecoder:
        return FakeDecoder(self._now)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return ProviderError(f"status {status}")

    def check_params(self, params: Mapping[str, Any]) -> str:
        return "field `messages` is the harness's own" if "messages" in params else ""

    def problems(self, request: Request) -> list[str]:
        return []

    def models(self) -> Sequence[Model]:
        return [Model("m", context=10_000, input=(TEXT,))]


class FakeModels:
    """`fake/m` takes images; `fake/gpt-5` does not, and has been trained on patches."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def resolve(self, name: str) -> tuple[Provider, Model]:
        if name == "fake/gpt-5":
            return self.provider, Model("gpt-5", context=10_000, input=(TEXT,))
        if name != "fake/m":
            raise ProviderError(f"there is no model {name!r}; served: fake/m", code="model")
        price = self.provider.price if isinstance(self.provider, FakeProvider) else None
        return self.provider, Model("m", context=10_000, input=(TEXT, "image/png"), price=price)

    def default(self) -> str:
        return "fake/m"


HELLO = frames.Hello(
    protocol=frames.PROTOCOL,
    release="0",
    os="linux",
    arch="x86_64",
    hostname="here",
    interpreters=("bash",),
    scratch="/scratch",
    home="/home/me",
    journal_age=1e9,
)


class FakePool:
    """Workers named in `here`. `does` maps code to an Output, an exception, or an awaitable's function."""

    def __init__(self, *here: str) -> None:
        self.here = set(here)
        self.does: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}
        self.broken: set[str] = set()
        self.writes: list[tuple[str, str]] = []
        self.ran: list[tuple[str, str, str, float | None]] = []
        self.journal: dict[tuple[str, str], Output] = {}
        self.acked: list[str] = []
        self.interrupted: list[str] = []
        self.killed: list[str] = []
        self.copies: dict[tuple[str, str], bytes] = {}  # by worker and path: sessions' files
        self.full: set[str] = set()  # workers that take none of those
        self.poured: list[tuple[str, int]] = []  # worker and bytes of each piece of a session's file
        self.reasons: list[str] = []  # of the kills
        self.cordons: set[str] = set()
        self.on_interrupt: Callable[[str], None] = lambda call: None
        self.on_kill: Callable[[], None] = lambda: None
        self.started = asyncio.Event()
        self.prints = [b"live"]  # while a run goes

    def hello(self, worker: str) -> frames.Hello | None:
        return HELLO if worker in self.here else None

    def list(self) -> list[api.WorkerInfo]:
        return [api.WorkerInfo(name, "connected") for name in sorted(self.here)]

    def cordoned(self, worker: str) -> bool:
        return worker in self.cordons

    async def run(
        self,
        worker: str,
        session: str,
        call: str,
        code: str,
        *,
        age: float | None = None,
        on_output: Callable[[bytes], None] | None = None,
        **_: Any,
    ) -> Output:
        self.ran.append((worker, call, code, age))
        self.started.set()
        if worker in self.cordons:
            raise Cordoned(worker)
        if worker not in self.here:
            raise WorkerGone(worker, "it has not dialed", started=False)
        if on_output is not None:
            for piece in self.prints:
                on_output(piece)
        does = self.does.get(code, Output(code.encode(), 0, 0.1))
        if isinstance(does, Exception):
            raise does
        if callable(does):
            does = await does()
        assert isinstance(does, Output)
        return does

    async def attach(self, worker: str, session: str, call: str, *, age: float) -> Output | None:
        return self.journal.get((session, call))

    async def read(self, worker: str, path: str, *, limit: int = 0, unit: str = "bytes", **_: Any) -> Content:
        if path not in self.files:
            raise Refused("not_found", f"there is no file {path}")
        data = self.files[path]
        part = data[:limit] if limit and unit == "bytes" else data
        return Content(part, len(data), data.count(b"\n"), True)

    async def write(
        self, worker: str, path: str, data: bytes, *, call: str = "", remove: bool = False, **_: Any
    ) -> int:
        self.writes.append((call, path))
        if path in self.broken:
            raise Refused("denied", f"{path}: permission denied")
        if remove:
            del self.files[path]
        else:
            self.files[path] = data
        return len(data)

    async def size(self, worker: str, path: str) -> int:
        if (worker, path) not in self.copies:
            raise Refused("not_found", f"there is no {path}")
        return len(self.copies[worker, path])

    async def pour(
        self, worker: str, path: str, pieces: AsyncGenerator[bytes, None], *, behind: str = "", mode: int = 0
    ) -> None:
        there = self.copies.get((worker, path))
        if behind and (there is None or sha256(there).hexdigest() != behind):
            await pieces.aclose()
            raise Refused("changed", f"{path} is not what is to be appended to")
        added = b"".join([piece async for piece in pieces])
        if worker in self.full:
            raise Refused("failed", f"{path}: No space left on device")
        self.copies[worker, path] = (there or b"" if behind else b"") + added
        self.poured.append((worker, len(added)))

    async def interrupt(self, worker: str, session: str, call: str) -> None:
        self.interrupted.append(call)
        self.on_interrupt(call)

    def asked(self, worker: str, session: str, call: str) -> bool:
        return worker in self.here

    async def kill(self, worker: str, session: str, reason: str = "") -> str | None:
        self.killed.append(worker)
        self.reasons.append(reason)
        self.on_kill()
        return "ended" if worker in self.here else None

    def ack(self, worker: str, session: str, call: str) -> None:
        self.acked.append(call)


class Clock:
    """Time that goes on a second with each look."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


class Bench:
    """A harness on a real store, with a fake provider and a fake pool."""

    def __init__(
        self, harness: Harness, store: SessionStore, provider: FakeProvider, pool: FakePool, counts: Counts
    ) -> None:
        self.harness = harness
        self.store = store
        self.provider = provider
        self.pool = pool
        self.counts = counts

    async def session(self, message: str = "hi", **create: Any) -> str:
        """A session with worker `w` and one message."""
        create.setdefault("workers", (WorkerRef("w"),))
        id = await self.harness.create(api.Create(model="fake/m", **create))
        if message:
            await self.post(id, message)
        return id

    async def post(self, id: str, words: str, key: str = "") -> int:
        return await self.harness.post(id, "me", [api.Part(TEXT, words.encode())], key)

    async def rest(self, id: str) -> str:
        """Wait until nobody steps the session; its status then."""
        session = await self.harness._sessions.get(id)
        while session.runner is not None:
            await asyncio.wait({session.runner})
        return (await self.harness.info(id)).status

    async def kinds(self, id: str) -> list[str]:
        return [record.kind for record in await (await self.harness.log(id)).read()]

    async def bodies(self, id: str, kind: str) -> list[str]:
        return [r.text() for r in await (await self.harness.log(id)).read() if r.kind == kind]


@asynccontextmanager
async def bench(
    store: SessionStore,
    provider: FakeProvider,
    pool: FakePool,
    data: Path | None = None,
    clock: Clock | None = None,
    **more: Any,
) -> AsyncIterator[Bench]:
    """A running harness; leaving it is shutting down. `more`: what else it is made with."""
    counts = Counts()
    async with asyncio.TaskGroup() as group:
        harness = Harness(
            store=store,
            pool=pool,  # type: ignore[arg-type]
            models=FakeModels(provider),
            http=None,
            release="0.0",
            clock=clock or Clock(),
            group=group,
            counts=counts,
            data=data,
            **more,
        )
        await harness.resume()
        try:
            yield Bench(harness, store, provider, pool, counts)
        finally:
            await harness.close()
