import asyncio
from collections.abc import AsyncIterator, MutableMapping, MutableSequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemon.api.events import Cache
from daemon.api.stream import Limits
from daemon.protocol import api, events
from daemon.protocol.records import Record, draft, json_draft
from daemon.statefile.errors import ReopenError
from tests.daemon.api.conftest import SMALL, Http
from tests.daemon.api.fakes import FakeHarness, MemoryLog, serve

Logs = MutableSequence[MutableMapping[str, Any]]


class Stream:
    """An open event stream, read by a decoder of its own."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self.raw = bytearray()
        self._decoder = events.Decoder(events.SESSION)

    async def next(self) -> events.SessionEvent | None:
        """The next event, None at the end."""
        while (event := self._decoder.next()) is None:
            piece = await self.answer.content.readany()
            if not piece:
                return None
            self.raw += piece
            self._decoder.feed(piece)
        return event

    async def numbers(self, last: int) -> list[int]:
        """The numbers of the records up to `last`."""
        found: list[int] = []
        while not found or found[-1] < last:
            event = await self.next()
            assert isinstance(event, Record)
            found.append(event.n)
        return found


@asynccontextmanager
async def opened(http: Http, id: str, query: str = "", last: int | None = None) -> AsyncIterator[Stream]:
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    async with http.session.get(f"/sessions/{id}/events{query}", headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        yield Stream(answer)


async def test_every_record_comes_once_and_in_order_old_ones_and_new_ones(
    http: Http, harness: FakeHarness
) -> None:
    id = harness.session("one", "two")
    async with opened(http, id) as stream:
        assert await stream.numbers(4) == [1, 2, 3, 4]
        harness.logs[id].append(draft("message", "three"), draft("message", "four"))
        assert await stream.numbers(6) == [5, 6]
        harness.logs[id].append(draft("text", "five"))
        event = await stream.next()
    assert event == harness.logs[id].stored[-1]


async def test_a_record_of_a_kind_and_with_fields_of_a_later_release_comes_as_it_is(
    http: Http, harness: FakeHarness
) -> None:
    id = harness.session()
    line = b'{"n":3,"kind":"poem","id":"a","time":"t","len":1,"type":"text/plain","mood":{"a": [1]},"crc":"00000000"}'
    harness.logs[id].put(line, b"x", b"%b\nx\n" % line)
    async with opened(http, id, "?after=2") as stream:
        event = await stream.next()
    assert isinstance(event, Record)
    assert (event.raw, event.body) == (line, b"x")


async def test_the_id_of_an_event_is_the_records_number(http: Http, harness: FakeHarness) -> None:
    id = harness.session("one")
    async with opened(http, id, "?after=2") as stream:
        await stream.next()
        assert b"\nid: 3\nevent: record\ndata: {" in stream.raw


@pytest.mark.parametrize(("query", "last", "first"), [("?after=2", None, 3), ("", 3, 4), ("?after=1", 3, 4)])
async def test_a_reader_begins_after_its_cursor(
    http: Http, harness: FakeHarness, query: str, last: int | None, first: int
) -> None:
    id = harness.session("one", "two")
    async with opened(http, id, query, last) as stream:
        assert await stream.numbers(4) == list(range(first, 5))


async def test_a_cursor_past_the_tip_gets_an_error_and_the_end(http: Http, harness: FakeHarness) -> None:
    async with opened(http, harness.session(), "?after=3") as stream:
        event = await stream.next()
        assert isinstance(event, api.ApiError)
        assert event.error == api.ApiErrorBody(400, "after: 3 is past the last record, 2")
        assert await stream.next() is None


@pytest.mark.parametrize(
    ("query", "last"), [("?after=x", None), ("?after=-1", None), ("?deltas=yes", None), ("", "x"), ("", "")]
)
async def test_a_cursor_that_is_not_right_is_refused(
    http: Http, harness: FakeHarness, query: str, last: str | None
) -> None:
    headers = {} if last is None else {"Last-Event-ID": last}
    message = await http("GET", f"/sessions/{harness.session()}/events{query}", 400, headers=headers)
    assert message.startswith(("after:", "deltas:", "Last-Event-ID:"))


async def test_live_pieces_come_to_who_asks_and_have_no_id(http: Http, harness: FakeHarness) -> None:
    id = harness.session()
    before, retry, after = (
        api.Delta("text", "He"),
        api.RetryEvent("overloaded", 2.5, 1),
        api.Delta("output", "…", call="c1"),
    )
    async with opened(http, id, "?deltas=1") as stream:
        assert await stream.numbers(2) == [1, 2]
        harness.stream(before)
        assert await stream.next() == before
        harness.stream(retry, api.Restart(), after)
        assert [await stream.next() for _ in range(3)] == [retry, api.Restart(), after]
        assert stream.raw.count(b"id: ") == 2
    await harness.gone.wait()
    assert harness.readers == []


async def test_pieces_come_before_the_record_they_became(http: Http, harness: FakeHarness) -> None:
    id = harness.session()
    async with opened(http, id, "?deltas=1&after=2") as stream:
        await harness.here.wait()
        for word in ("a", "b", "c"):
            harness.stream(api.Delta("text", word))
            await asyncio.sleep(0)
        harness.logs[id].append(draft("text", "abc"))
        so_far = ""
        while isinstance(event := await stream.next(), api.Delta):
            assert event.at == len(so_far)
            so_far += event.text
    assert so_far == "abc"
    assert isinstance(event, Record)


async def test_who_joins_late_gets_what_streams_from_its_beginning_after_the_records(
    http: Http, harness: FakeHarness
) -> None:
    id = harness.session("one")
    harness.passing.tip = lambda: 3
    harness.stream(api.Delta("text", "Hel", step="s"), api.Delta("text", "lo", step="s"))
    async with opened(http, id, "?deltas=1") as stream, opened(http, id, "?deltas=1", last=3) as back:
        assert await stream.numbers(3) == [1, 2, 3]
        for one in (stream, back):
            assert await one.next() == api.Delta("text", "Hello", step="s")
        harness.stream(api.Delta("text", " world", step="s"))
        for one in (stream, back):
            assert await one.next() == api.Delta("text", " world", step="s", at=5)


async def test_nothing_comes_of_a_block_whose_record_the_reader_has(http: Http, harness: FakeHarness) -> None:
    id = harness.session()
    log = harness.logs[id]
    harness.stream(api.Delta("thinking", "hm", step="s"), api.Delta("text", "Hel", 1, step="s"))
    log.append(draft("thinking", "hm", step="s"))
    harness.passing.appended(log.stored[-1:])
    async with opened(http, id, "?deltas=1", last=3) as stream:
        assert await stream.next() == api.Delta("text", "Hel", 1, step="s")
    async with opened(http, id, "?deltas=1", last=2) as stream:
        came = [await stream.next() for _ in range(3)]
    assert [event.text if isinstance(event, api.Delta) else type(event) for event in came] == [
        "hm",
        "Hel",
        Record,
    ]


async def test_a_silent_stream_has_comments(harness: FakeHarness, path: Path) -> None:
    assert Limits().heartbeat <= 15, "some proxies close what is silent for 30 seconds"
    id = harness.session()
    async with (
        serve(harness, version="1", socket=path, limits=SMALL),
        Http.to(path) as http,
        http.session.get(f"/sessions/{id}/events?after=2") as answer,
    ):
        await answer.content.readuntil(b"\n\n")
        assert await answer.content.readuntil(b"\n\n") == b":\n\n"
        assert await answer.content.readuntil(b"\n\n") == b":\n\n"


async def test_a_reader_goes_on_by_its_last_id_after_a_restart(harness: FakeHarness, path: Path) -> None:
    id = harness.session("one")
    async with serve(harness, version="1", socket=path), Http.to(path) as http, opened(http, id) as stream:
        assert await stream.numbers(3) == [1, 2, 3]
    harness.logs[id].append(draft("message", "two"))
    async with (
        serve(harness, version="1", socket=path),
        Http.to(path) as http,
        opened(http, id, last=3) as stream,
    ):
        harness.logs[id].append(draft("message", "three"))
        assert await stream.numbers(5) == [4, 5]


async def test_streams_end_whole_when_the_daemon_ends(harness: FakeHarness, path: Path) -> None:
    id = harness.session()
    async with Http.to(path) as http:
        async with serve(harness, version="1", socket=path, finish=60):
            opening = opened(http, id)
            stream = await opening.__aenter__()
            await stream.numbers(2)
        assert await stream.next() is None
        await opening.__aexit__(None, None, None)


async def test_200_readers_get_each_record_once_in_order_and_the_file_is_read_for_one(
    http: Http, harness: FakeHarness
) -> None:
    id = harness.session()
    log = harness.logs[id]
    half, ready = asyncio.Semaphore(0), 0

    async def reader() -> list[int]:
        async with opened(http, id) as stream:
            found = await stream.numbers(50)
            half.release()
            return found + await stream.numbers(102)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(reader()) for _ in range(200)]
        log.append(*(draft("message", f"message {i}") for i in range(48)))
        while ready < len(tasks):
            await half.acquire()
            ready += 1
        log.reads = 0
        for i in range(52):
            log.append(draft("text", f"text {i}"))
            await asyncio.sleep(0)
    for task in tasks:
        assert task.result() == list(range(1, 103))
    assert log.reads <= 52


async def test_a_reader_that_stops_reading_is_dropped(harness: FakeHarness, path: Path, logs: Logs) -> None:
    id = harness.session(*["x" * 100_000] * 20)
    async with serve(harness, version="1", socket=path, limits=SMALL):
        _, writer = await asyncio.open_unix_connection(str(path), limit=1000)
        writer.write(b"GET /sessions/%b/events?deltas=1 HTTP/1.1\r\nHost: d\r\n\r\n" % id.encode())
        await harness.gone.wait()
        writer.close()
    assert [line["why"] for line in logs if line["event"] == "reader of events dropped"] == ["takes nothing"]


async def test_a_reader_that_was_there_and_falls_behind_is_dropped(
    harness: FakeHarness, path: Path, logs: Logs
) -> None:
    id = harness.session()
    patient = SMALL.__class__(heartbeat=60, slow=1.0, behind=100_000)
    async with serve(harness, version="1", socket=path, limits=patient):
        reader, writer = await asyncio.open_unix_connection(str(path), limit=1000)
        writer.write(b"GET /sessions/%b/events?deltas=1 HTTP/1.1\r\nHost: d\r\n\r\n" % id.encode())
        await reader.readuntil(b"id: 2\n")
        harness.logs[id].append(*[draft("text", "x" * 100_000)] * 20)
        await harness.gone.wait()
        writer.close()
    assert [line["why"] for line in logs if line["event"] == "reader of events dropped"] == [
        "is too far behind"
    ]


async def test_a_reader_far_back_that_reads_is_not_dropped(
    harness: FakeHarness, path: Path, logs: Logs
) -> None:
    id = harness.session(*["x" * 100_000] * 20)
    async with (
        serve(harness, version="1", socket=path, limits=SMALL),
        Http.to(path) as http,
        opened(http, id) as stream,
    ):
        assert await stream.numbers(22) == list(range(1, 23))
    assert not [line for line in logs if line["event"] == "reader of events dropped"]


async def test_a_reader_that_goes_away_holds_nothing(http: Http, harness: FakeHarness) -> None:
    id = harness.session()
    async with opened(http, id, "?deltas=1") as stream:
        await stream.numbers(2)
        assert len(harness.readers) == 1
        stream.answer.close()
    await harness.gone.wait()
    assert harness.readers == []


@pytest.mark.parametrize("at", ["wait", "read"])
async def test_a_stream_ends_whole_when_the_file_has_to_be_opened_again(
    http: Http, harness: FakeHarness, logs: Logs, at: str
) -> None:
    id = harness.session()

    async def failing(*_: int) -> list[Record]:
        raise ReopenError("the disk did not confirm a write")

    setattr(harness.logs[id], at, failing)
    async with opened(http, id, "" if at == "read" else "?after=2") as stream:
        assert await stream.next() is None
    assert [line["event"] for line in logs] == ["events ended"]


async def test_the_cache_keeps_to_its_size_and_gives_every_record() -> None:
    log = MemoryLog("a" * 16)
    log.append(*(draft("text", "x" * (100 * i)) for i in range(1, 60)), json_draft("call", api.Restart()))
    cache, n, data = Cache(20_000), 0, b""
    while (got := await cache.after(log, n, log.durable_n))[1]:
        assert got[0] > n
        n, data = got[0], data + got[1]
    assert n == 60
    assert data == b"".join(map(events.encode, log.stored))
    assert cache._size == sum(map(len, cache._events.values())) <= 20_000
    assert cache._locks == {}
