import asyncio
from collections.abc import AsyncIterator, MutableMapping, MutableSequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

from daemon.harness.changes import WORKERS
from daemon.harness.counts import Counts
from daemon.harness.errors import Unready
from daemon.protocol import api, events
from daemon.protocol.records import draft
from tests.daemon.api.conftest import SMALL, Http
from tests.daemon.api.fakes import FakeHarness, serve

E = TypeVar("E", api.State, api.Info, api.Workers)


class Watch:
    """An open stream of the daemon's events."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self._decoder = events.Decoder(events.DAEMON)

    async def next(self) -> events.DaemonEvent | None:
        """The next event, None at the end."""
        while (event := self._decoder.next()) is None:
            if not (piece := await self.answer.content.readany()):
                return None
            self._decoder.feed(piece)
        return event

    async def take(self, kind: type[E]) -> E:
        """The next event, which is to be of this kind."""
        event = await self.next()
        assert isinstance(event, kind)
        return event


@asynccontextmanager
async def watching(http: Http, query: str = "") -> AsyncIterator[Watch]:
    async with http.session.get(f"/events{query}") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        yield Watch(answer)


async def test_it_begins_with_the_sessions_updated_last_and_the_workers(
    http: Http, harness: FakeHarness
) -> None:
    ids = [harness.session() for _ in range(60)][::-1]
    harness.known_workers = [api.WorkerInfo("w", "connected")]
    for query, count in [("", 50), ("?limit=3", 3), ("?limit=0", 0), ("?limit=1000", 60)]:
        async with watching(http, query) as watch:
            state = await watch.take(api.State)
            assert [info.id for info in state.sessions] == ids[:count]
            assert state.workers == (api.WorkerInfo("w", "connected"),)


@pytest.mark.parametrize("query", ["limit=-1", "limit=1001", "limit=x", "limit=1&limit=2"])
async def test_a_limit_that_is_not_right_is_refused_by_name(http: Http, query: str) -> None:
    assert "limit: " in await http("GET", f"/events?{query}", 400)


async def test_each_change_comes_as_it_is_by_then_and_none_is_lost_at_the_beginning(
    http: Http, harness: FakeHarness
) -> None:
    one, two = harness.session(), harness.session()
    async with watching(http, "?limit=0") as watch:
        harness.changed.put(one)  # while the state is on its way
        await watch.take(api.State)
        assert await watch.take(api.Info) == await harness.info(one)
        harness.logs[two].append(draft("message", "hello"))
        harness.known_workers = [api.WorkerInfo("w", "gone")]
        for id in (two, WORKERS, "f" * 16, one):
            harness.changed.put(id)
        assert (await watch.take(api.Info)).n == 3
        assert (await watch.take(api.Workers)).workers == (api.WorkerInfo("w", "gone"),)
        assert (await watch.take(api.Info)).id == one


async def test_changes_while_a_reader_is_behind_come_once(http: Http, harness: FakeHarness) -> None:
    id, other = harness.session(), harness.session()
    began, go = asyncio.Event(), asyncio.Event()
    info = harness.info

    async def held(id: str) -> api.Info:
        began.set()
        await go.wait()
        return await info(id)

    async with watching(http, "?limit=0") as watch:
        await watch.take(api.State)
        harness.info = held  # type: ignore[method-assign]
        harness.changed.put(other)
        await began.wait()
        for _ in range(100):
            harness.logs[id].append(draft("text", "x"))
            harness.changed.put(id)
            await asyncio.sleep(0)
        go.set()
        assert (await watch.take(api.Info)).id == other
        found = [await watch.take(api.Info)]
        harness.changed.put(WORKERS)
        while isinstance(event := await watch.next(), api.Info):
            found.append(event)
    assert [info.n for info in found] == [102]


async def test_it_ends_whole_when_the_daemon_ends_and_holds_nothing_when_its_reader_goes(
    harness: FakeHarness, path: Path
) -> None:
    counts = Counts()
    async with Http.to(path) as http:
        async with serve(harness, socket=path, counts=counts, finish=60):
            async with watching(http) as gone:
                await gone.take(api.State)
                gone.answer.close()
                await harness.left.wait()
            opening = watching(http)
            watch = await opening.__aenter__()
            await watch.take(api.State)
            assert counts.readers["daemon"] == 1
        assert await watch.next() is None
        assert counts.readers["daemon"] == 0
        await opening.__aexit__(None, None, None)


async def test_a_state_that_cannot_be_read_is_told_and_ends_the_stream(
    http: Http, harness: FakeHarness
) -> None:
    async def failing(*_: object, **__: object) -> list[api.Info]:
        raise Unready("out of descriptors; try again in a moment")

    harness.list = failing  # type: ignore[method-assign]
    async with watching(http) as watch:
        assert await watch.next() == api.ApiError(
            api.ApiErrorBody(503, "out of descriptors; try again in a moment")
        )
        assert await watch.next() is None


async def test_a_silent_stream_has_comments(harness: FakeHarness, path: Path) -> None:
    async with serve(harness, socket=path, limits=SMALL), Http.to(path) as http, watching(http) as watch:
        await watch.take(api.State)
        assert await watch.answer.content.readuntil(b":\n\n:\n\n")


async def test_a_reader_that_stops_reading_is_dropped(
    harness: FakeHarness, path: Path, logs: MutableSequence[MutableMapping[str, Any]]
) -> None:
    harness.known_workers = [api.WorkerInfo("w", "refused", "x" * 4_000_000)]
    async with serve(harness, socket=path, limits=SMALL):
        _, writer = await asyncio.open_unix_connection(str(path), limit=1000)
        writer.write(b"GET /events HTTP/1.1\r\nHost: d\r\n\r\n")
        await harness.left.wait()
        writer.close()
    assert [line["why"] for line in logs if line["event"] == "reader of events dropped"] == ["takes nothing"]
