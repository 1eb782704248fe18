"""What every store of sessions does, the files' and that in memory."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.chain import Chain
from daemon.harness import infos
from daemon.protocol import records
from daemon.protocol.records import BadRecord, Record, draft
from daemon.statefile.errors import CopyPointError, LockedError, MissingError, StateFileError
from daemon.statefile.interface import SessionLog, SessionStore
from daemon.statefile.memory import MemoryStore
from daemon.statefile.store import Store
from tests.daemon.book import Book
from tests.daemon.statefile.fakes import Clock, Disk
from tests.daemon.statefile.test_copy import END, SESSION


@pytest.fixture(params=["files", "memory"])
async def store(request: pytest.FixtureRequest, data: Path) -> AsyncIterator[SessionStore]:
    store: SessionStore = Store(data, clock=Clock(), sync=Disk())
    if request.param == "memory":
        store = MemoryStore(data, clock=Clock())
    yield store
    await store.close()


def book() -> Book:
    """Six records of a session that has closed."""
    made = Book()
    made.message("hi")
    made.answer("one")
    return made


async def whole(log: SessionLog, after: int = 0, limit: int | None = None) -> bytes:
    return b"".join([piece async for piece in log.chunks(after, limit)])


async def test_a_session_is_made_of_its_first_records_numbered_and_dated(store: SessionStore) -> None:
    id, log = await store.create(*SESSION)
    store.check_id(id)
    assert await asyncio.to_thread(store.ids) == [id]
    assert (log.id, log.n, log.durable_n, log.damage, log.broken) == (id, 12, 12, None, False)
    found = await log.read()
    assert [record.n for record in found] == list(range(1, 13))
    assert [(record.kind, record.body) for record in found] == [(made.kind, made.body) for made in SESSION]
    assert await store.open(id) is log


async def test_the_bytes_are_those_of_the_records_whatever_range_is_asked_for(store: SessionStore) -> None:
    _, log = await store.create(*SESSION)
    data = await whole(log)
    decoder = records.decoder()
    decoder.feed(data)
    lines: list[bytes] = []
    while (unit := decoder.next()) is not None:
        header, line, body = unit
        records.check(line, body)
        assert header.n == len(lines) + 1
        lines.append(line + b"\n")
    assert len(lines) == 12
    for after in range(13):
        for limit in (None, 0, 1, 3, 100):
            start, end = log.span(after, limit)
            assert await whole(log, after, limit) == data[start:end]
            last = 12 if limit is None else min(12, after + limit)
            assert await log.headers(after, limit) == b"".join(lines[after:last])
    for after in (-1, 13):
        with pytest.raises(ValueError, match="records 1 to 12"):
            log.span(after)
        with pytest.raises(ValueError, match="records 1 to 12"):
            await log.headers(after)


async def test_records_are_read_from_any_to_any(store: SessionStore) -> None:
    _, log = await store.create(*SESSION)
    assert [record.n for record in await log.read(3, 5)] == [3, 4, 5]
    assert [record.n for record in await log.read(11, 100)] == [11, 12]
    assert await log.read(13) == []
    assert await log.read(5, 4) == []
    assert [record.n for record in await log.read(-3, 1)] == [1]


async def test_appends_go_on_where_the_last_one_ended(store: SessionStore) -> None:
    id, log = await store.create(*SESSION)
    assert await log.append() == []
    done = await log.append(draft("message", "a" * 5000), draft("message", "b\n\0ü"), durable=False)
    await log.sync()
    assert [record.n for record in done] == [13, 14]
    assert log.n == log.durable_n == 14
    assert (await (await store.open(id)).read(14))[0].body == "b\n\0ü".encode()
    with pytest.raises(BadRecord):
        await log.append(draft("message", "x", via="x" * records.MAX_HEADER))
    assert log.n == 14


async def test_who_waits_is_told_of_the_record_that_comes(store: SessionStore) -> None:
    _, log = await store.create(*SESSION)
    await log.wait(11)
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(log.wait(12)) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(wait.done() for wait in waits)
        await log.append(draft("message", "here"))


async def test_what_is_no_session_is_missing(store: SessionStore) -> None:
    for id in ("0" * 16, "nonsense", "../../etc/passwd", ""):
        with pytest.raises(MissingError):
            await store.open(id)
    with pytest.raises(MissingError):
        store.check_id("0" * 15)
    with pytest.raises(FileNotFoundError):
        await asyncio.to_thread(store.survey, "0" * 16, print)
    assert await asyncio.to_thread(store.origin, "0" * 16) is None


async def test_a_copy_is_the_records_before_n_and_knows_where_it_is_from(store: SessionStore) -> None:
    id, log = await store.create(*SESSION)
    copy = await store.copy(id, 7)
    opened = await store.open(copy)
    assert await whole(opened) == await whole(log, 0, 6)
    origin = await asyncio.to_thread(store.origin, copy)
    last = (await log.read())[-1].header.time
    assert origin is not None
    assert (origin.session, origin.n) == (id, 7)
    assert origin.time >= last  # when it was made, by the clock that records have
    assert await asyncio.to_thread(store.origin, id) is None
    assert (await opened.append(draft("message", "on")))[0].n == 7
    assert (log.n, opened.n) == (12, 7)
    for n, nearest in ((8, 7), (9, 10), (2, 3), (99, 13)):
        with pytest.raises(CopyPointError) as caught:
            await store.copy(id, n)
        assert caught.value.nearest == nearest
    await log.append(END)
    assert (await store.open(await store.copy(id, 14))).n == 12


async def test_the_list_says_what_the_sessions_say(store: SessionStore) -> None:
    index = store.index("1")
    said = book().records
    ids = [(await store.create(*said[:k]))[0] for k in (2, 4, 6)]
    assert set(await index.behind()) == set(ids)
    await index.put(await asyncio.to_thread(infos.read, store, ids))
    page = await index.page(None, 10, "", {})
    assert page.infos is not None
    assert {info.id: (info.n, info.status) for info in page.infos} == {
        ids[0]: (2, "closed"),
        ids[1]: (4, "open"),
        ids[2]: (6, "closed"),
    }
    await (await store.open(ids[0])).append(draft("message", "new"))
    page = await index.page(None, 10, "", {})
    assert list(page.stale) == [ids[0]]
    assert await index.get(ids[0]) is None
    assert await index.get(ids[1]) is not None
    rows = await asyncio.to_thread(infos.read, store, [ids[0], "0" * 16])
    assert rows["0" * 16] is None
    assert (row := rows[ids[0]]) is not None
    assert row.info.status == "open"
    await index.close()


async def test_a_survey_ends_at_a_record_that_makes_no_sense(store: SessionStore) -> None:
    said = book().records
    id, log = await store.create(*said, draft("config", "nonsense"), draft("message", "x"))
    chain, seen = Chain(), list[int]()

    def add(record: Record) -> None:
        chain.add(record)
        seen.append(record.n)

    found = await asyncio.to_thread(store.survey, id, add)
    assert seen == list(range(1, len(said) + 1))
    assert found.damage is not None
    assert (found.damage.n, found.damage.offset) == (len(said) + 1, log.span(len(said))[0])
    assert found.size == log.span(log.n)[1]


async def test_a_closed_store_refuses_and_lets_go_of_who_waits(store: SessionStore) -> None:
    id, log = await store.create(*SESSION)
    wait = asyncio.ensure_future(log.wait(12))  # noqa: TID251 - awaited below
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StateFileError):
        await wait
    with pytest.raises(StateFileError):
        await log.append(draft("message", "late"))
    with pytest.raises(StateFileError):
        await store.create(*SESSION)
    assert id


async def test_a_folder_is_one_daemons_alone(store: SessionStore, data: Path) -> None:
    def both() -> None:
        with store.lock(), Store(data).lock():
            raise AssertionError("two have it")

    with pytest.raises(LockedError):
        await asyncio.to_thread(both)
