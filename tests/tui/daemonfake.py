"""A daemon's client, played by the test: sessions in memory, events when the test says so."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from daemon.client import ApiFailure, Back, Client, Followed, Lost, Unreachable, Watched
from daemon.protocol import api, records
from daemon.protocol.records import Config, Record, Status, WorkerRef

NOW = "2026-11-30T12:00:00.000Z"
MODEL = "rehearsal/echo"


def info(id: str, status: Status = "closed", title: str = "", **more: Any) -> api.Info:
    """A session as the API tells of it, with the worker `local`."""
    config = more.pop("config", Config(MODEL, workers=(WorkerRef("local"),)))
    usual: dict[str, Any] = {"created": NOW, "updated": NOW, "n": 7, "prompt": 1000}
    return api.Info(id=id, status=status, config=config, title=title or f"session {id}", **(usual | more))


def worker(name: str = "local", state: Any = "connected") -> api.WorkerInfo:
    return api.WorkerInfo(name, state)


def stored(n: int, kind: Any, body: str | bytes = "", **fields: Any) -> Record:
    """A record as it stands in a file."""
    record = records.draft(kind, body, **({"id": f"{n:016x}"} | fields))
    header = msgspec.structs.replace(record.header, n=n, time=NOW)
    return Record(header, record.body, records.encode(Record(header, record.body))[0])


class FakeClient(Client):
    """What the UI asks of a client. `lose` and `back` play a daemon that goes and comes; `done`: what was asked for."""

    def __init__(self) -> None:
        super().__init__("/nowhere/api.sock")
        self.infos: dict[str, api.Info] = {}
        self.found: dict[str, list[Record]] = {}
        self.worker_infos: tuple[api.WorkerInfo, ...] = (worker(),)
        self.gone = ""  # why the daemon is away
        self.done: list[tuple[str, ...]] = []
        self.posts: dict[str, tuple[str, tuple[api.Part, ...]]] = {}  # by idempotency key
        self.refusal: ApiFailure | None = None  # of the next posts
        self.info_refusal: ApiFailure | None = None  # of what is asked about a session
        self.cut_posts = 0  # how many posts are taken and their answers lost
        self.hangs = asyncio.Event()  # a call waits for it while it is not set
        self.hangs.set()
        self._daemon: list[asyncio.Queue[Watched | ApiFailure]] = []
        self._sessions: dict[str, list[asyncio.Queue[Followed]]] = {}

    # ---- what the test does

    def add(self, info: api.Info, *more: Record) -> None:
        """A session, told of where somebody watches."""
        self.infos[info.id] = info
        self.found[info.id] = list(more) or [
            stored(n, "message", f"text {n}", via="test") for n in range(1, info.n + 1)
        ]
        self.tell(info)

    def remove(self, id: str) -> None:
        """Its file is deleted, of which nobody is told: a daemon does that only while it is down."""
        del self.infos[id], self.found[id]

    def tell(self, event: Watched | ApiFailure) -> None:
        """An event of the daemon."""
        for queue in self._daemon:
            queue.put_nowait(event)

    def change(self, id: str, **fields: Any) -> None:
        """A session changes and is told of."""
        self.infos[id] = msgspec.structs.replace(self.infos[id], **fields)
        self.tell(self.infos[id])

    def append(self, id: str, *more: Record) -> None:
        """Records come to a session."""
        for record in more:
            self.found[id].append(record)
            self.infos[id] = msgspec.structs.replace(self.infos[id], n=record.n)
            for queue in self._sessions.get(id, []):
                queue.put_nowait(record)
        self.tell(self.infos[id])

    def stream(self_, id: str, event: Followed) -> None:  # type: ignore[override]
        """An event of a session that is no record."""
        for queue in self_._sessions.get(id, []):
            queue.put_nowait(event)

    def lose(self, why: str = "no daemon listens on /nowhere/api.sock; start one") -> None:
        """The daemon goes away."""
        self.gone = why
        for _ in range(2):  # the second try to come back has failed
            self.tell(Lost(why, 1.0))

    def back(self) -> None:
        """It is there again."""
        self.gone = ""
        self.tell(Back())
        self.tell(self._state())

    def following(self, id: str) -> int:
        """How many follow a session."""
        return len(self._sessions.get(id, []))

    def _state(self) -> api.State:
        newest = sorted(self.infos.values(), key=lambda info: (info.updated, info.id), reverse=True)
        return api.State(tuple(newest[: api.MAX_LIST]), self.worker_infos)

    async def _there(self) -> None:
        await self.hangs.wait()
        if self.gone:
            raise Unreachable(self.gone)

    def _known(self, id: str) -> None:
        if id not in self.infos:
            raise ApiFailure(404, f"there is no session {id}")

    # ---- what the UI calls

    async def events(self, first: int = api.FIRST) -> AsyncGenerator[Watched, None]:
        queue: asyncio.Queue[Watched | ApiFailure] = asyncio.Queue()
        self._daemon.append(queue)
        try:
            yield Lost(self.gone, 1.0) if self.gone else self._state()
            while True:
                event = await queue.get()
                if isinstance(event, ApiFailure):
                    raise event
                yield event
        finally:
            self._daemon.remove(queue)

    async def follow(self, id: str, after: int = 0, deltas: bool = False) -> AsyncGenerator[Followed, None]:
        self._known(id)
        queue: asyncio.Queue[Followed] = asyncio.Queue()
        self._sessions.setdefault(id, []).append(queue)
        try:
            for record in self.found[id][after:]:
                yield record
            while True:
                event = await queue.get()
                self._known(id)
                yield event
        finally:
            self._sessions[id].remove(queue)

    async def info(self, id: str) -> api.Info:
        await self._there()
        if self.info_refusal is not None:
            raise self.info_refusal
        self._known(id)
        return self.infos[id]

    async def list(
        self, status: Status | None = None, limit: int = 100, after: str = ""
    ) -> Sequence[api.Info]:
        await self._there()
        newest = sorted(self.infos.values(), key=lambda info: (info.updated, info.id), reverse=True)
        at = [info.id for info in newest].index(after) + 1 if after else 0
        return newest[at : at + limit]

    async def records(
        self, id: str, after: int = 0, limit: int | None = None, wait: float = 0.0
    ) -> Sequence[Record]:
        await self._there()
        return self.found[id][after : None if limit is None else after + limit]

    async def headers(self, id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        found = await self.records(id, after, limit)
        return [Record(record.header, b"", record.raw) for record in found]

    async def providers(self, wait: float = 0.0) -> api.Providers:
        await self._there()
        return api.Providers(
            MODEL,
            (
                api.ProviderInfo(
                    "rehearsal", "rehearsal", "", False, True, (api.ModelInfo(MODEL, 10_000),), asks=()
                ),
            ),
            (api.Offer("anthropic", ("key",)), api.Offer("bedrock", ("region", "key"))),
        )

    async def workers(self) -> Sequence[api.WorkerInfo]:
        await self._there()
        return self.worker_infos

    async def mesh(self) -> api.MeshInfo:
        await self._there()
        return api.MeshInfo("idle", "harness")

    async def tokens(self) -> Sequence[api.TokenInfo]:
        await self._there()
        return []

    async def post(self, id: str, parts: Sequence[api.Part], via: str, key: str = "") -> int:
        await self._there()
        if self.refusal is not None:
            raise self.refusal
        if key not in self.posts:
            self.posts[key] = (id, tuple(parts))
            n = self.infos[id].n
            self.append(
                id,
                *(
                    stored(n + at, "message", part.body.decode("utf-8", "replace"), via=via)
                    for at, part in enumerate(parts, 1)
                ),
            )
        if self.cut_posts:
            self.cut_posts -= 1
            raise Unreachable("the connection was lost in the middle of a request")
        return self.infos[id].n

    @property
    def texts(self) -> Sequence[tuple[str, str]]:
        """(session, words) of each post that was taken."""
        return [(id, parts[0].body.decode()) for id, parts in self.posts.values()]

    async def create(self, create: api.Create) -> str:
        await self._there()
        id = f"{len(self.infos) + 0xC0:016x}"
        self.done.append(("create", create.from_, str(create.n), create.model))
        self.add(info(id, "open" if create.from_ else "closed", "", n=3, prompt=0))
        return id

    async def stop(self, id: str, via: str) -> None:
        await self._there()
        self.done.append(("stop", id, via))

    async def retry(self, id: str) -> Status:
        await self._there()
        self.done.append(("retry", id))
        return "stepping"

    async def end(self, id: str, via: str) -> None:
        await self._there()
        self.done.append(("end", id, via))
