"""The API over the state files themselves: what is served is what is on disk, and nothing before it is there."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from daemon.api.needs import Log
from daemon.client import ApiFailure, Back, Client, Lost
from daemon.harness.errors import NotFound
from daemon.protocol import api
from daemon.protocol.records import Record, draft
from daemon.statefile.errors import MissingError
from daemon.statefile.store import Store
from tests.daemon.api.fakes import FakeHarness, serve

START = draft("start"), draft("config", "{}")


class OnFiles(FakeHarness):
    """A harness that reads from a store."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    async def log(self, id: str) -> Log:
        try:
            return await self.store.open(id)
        except MissingError as error:
            raise NotFound(str(error)) from error


@asynccontextmanager
async def served(path: Path, store: Store) -> AsyncIterator[Client]:
    try:
        async with (
            serve(OnFiles(store), version="1", socket=path),
            Client(path, first_wait=0.01, longest_wait=0.02) as client,
        ):
            yield client
    finally:
        await store.close()


async def test_records_are_the_bytes_of_the_file(path: Path) -> None:
    store = Store(path.parent)
    async with served(path, store) as client:
        id, log = await store.create(
            *START, draft("message", "x" * 600_000), draft("message", b"\x00\n", "image/png")
        )
        async with client._asker.request("GET", api.RECORDS.format(id=id)) as answer:
            data = await answer.read()
        assert data == await asyncio.to_thread(log.path.read_bytes)
        assert await client.records(id) == await log.read()
        assert await client.records(id, 2, 1) == await log.read(3, 3)
        assert [record.raw for record in await client.headers(id)] == [
            record.raw for record in await log.read()
        ]


async def test_a_record_is_not_seen_before_it_is_on_disk(path: Path) -> None:
    may_sync, syncing = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def sync(fd: int) -> None:
        loop.call_soon_threadsafe(syncing.set)
        assert may_sync.wait(30)

    store = Store(path.parent, sync=sync)
    async with served(path, store) as client:
        id, log = await store.create(*START)
        async with aclosing(client.follow(id)) as stream, asyncio.TaskGroup() as group:
            assert [await anext(stream) for _ in range(2)] == await log.read()
            group.create_task(log.append(draft("message", "hello")))
            await syncing.wait()
            assert log.n == 3
            assert len(await client.records(id)) == 2
            assert len(await client.headers(id)) == 2
            with pytest.raises(ApiFailure, match="after: 3 is past the last record, 2"):
                await client.records(id, 3)
            waiting = group.create_task(client.records(id, 2, wait=60))
            may_sync.set()
            event = await anext(stream)
            assert isinstance(event, Record)
            assert event.text() == "hello"
        assert list(waiting.result()) == [event]


async def test_a_follower_goes_on_by_number_over_a_restart_on_the_same_files(path: Path) -> None:
    store = Store(path.parent)
    async with Client(path, first_wait=0.01, longest_wait=0.02) as follower:
        async with served(path, store):
            id, log = await store.create(*START, draft("message", "one"))
            stream = follower.follow(id)
            found = [await anext(stream) for _ in range(3)]
        store = Store(path.parent)
        async with aclosing(stream):
            while not isinstance(event := await anext(stream), Lost):
                pass
            async with served(path, store):
                log = await store.open(id)
                await log.append(draft("text", "two"), draft("text", "three"))
                while isinstance(event, Lost):
                    event = await anext(stream)
                assert isinstance(event, Back)
                found += [await anext(stream) for _ in range(2)]
                assert found == await log.read()


async def test_a_damaged_session_is_served_up_to_the_damage(path: Path) -> None:
    store = Store(path.parent)
    id, log = await store.create(
        *START, draft("message", "one"), draft("message", "two"), draft("message", "three")
    )
    data = bytearray(await asyncio.to_thread(log.path.read_bytes))
    data[data.index(b"two")] ^= 1
    await asyncio.to_thread(log.path.write_bytes, data)
    await store.close()
    store = Store(path.parent)
    async with served(path, store) as client:
        assert [record.text() for record in await client.records(id, 2)] == ["one"]
        async with aclosing(client.follow(id, 2)) as stream:
            event = await anext(stream)
            assert isinstance(event, Record)
            assert event.n == 3
