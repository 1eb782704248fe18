"""AGENTS.md files: read once per session and worker, when the worker is first there, and appended."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemon.harness import agents
from daemon.pool import Content, WorkerGone
from daemon.protocol import frames
from daemon.protocol.records import WorkerRef
from daemon.statefile.store import Store
from daemon.turns import Text
from tests.daemon.harness.doubles import Bench, Clock, FakePool, FakeProvider, bench, says, text

OK = says(text("ok"))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path, clock=Clock())
    yield store
    await store.close()


class Counting(FakePool):
    """Counts the reads of AGENTS.md files by worker; those of a worker in `failing` come to nothing."""

    def __init__(self, *here: str) -> None:
        super().__init__(*here)
        self.read_by: list[str] = []
        self.failing: set[str] = set()
        self.hellos: dict[str, frames.Hello] = {}

    def hello(self, worker: str) -> frames.Hello | None:
        said = super().hello(worker)
        return self.hellos.setdefault(worker, frames.Hello(**_fields(said))) if said else None

    async def read(self, worker: str, path: str, **more: Any) -> Content:
        if path.endswith("AGENTS.md"):
            self.read_by.append(worker)
        if worker in self.failing:
            raise WorkerGone(worker, "cut", started=False)
        return await super().read(worker, path, **more)


def _fields(said: frames.Hello) -> dict[str, Any]:
    return {name: getattr(said, name) for name in said.__struct_fields__}


async def files(b: Bench, id: str) -> list[tuple[str, str]]:
    """Worker and last line of each file's record."""
    found = await (await b.harness.log(id)).read()
    return [(r.header.worker, r.text().rpartition("\n")[2]) for r in found if r.header.source == "agents.md"]


async def test_the_file_of_a_worker_that_was_away_at_the_first_step_is_read_when_it_comes_and_once(
    store: Store,
) -> None:
    pool = Counting("w")
    pool.files = {"/src/AGENTS.md": b"be kind"}
    workers = (WorkerRef("w", "/src"), WorkerRef("late", "/src"))
    provider = FakeProvider(*(says(text("ok")) for _ in range(5)))
    async with bench(store, provider, pool) as b:
        id = await b.session("one", workers=workers)
        await b.rest(id)
        assert await files(b, id) == [("w", "be kind")]
        pool.here.add("late")
        for words in ("two", "three"):
            await b.post(id, words)
            await b.rest(id)
        assert await files(b, id) == [("w", "be kind"), ("late", "be kind")]
        before = len(pool.read_by)
    async with bench(store, provider, pool) as b:  # the file says who was looked at
        await b.post(id, "four")
        await b.rest(id)
        assert len(pool.read_by) == before
    # What was sent once is sent again as it was, and the new text comes behind it.
    first, second, third = (query.context for query in provider.queries[:3])
    assert {first.system, second.system, third.system} == {first.system}
    assert list(third.settled[: len(second.settled)]) == list(second.settled)
    assert second.last is not None
    said = [part.text for part in second.last.parts if isinstance(part, Text)]
    assert any("From /src/AGENTS.md on worker late" in one for one in said)


async def test_a_worker_without_a_file_is_not_asked_again_also_by_the_next_daemon(store: Store) -> None:
    pool = Counting("w")
    async with bench(store, FakeProvider(OK, OK), pool) as b:
        id = await b.session("one")
        await b.rest(id)
        asked = len(pool.read_by)
        assert asked > 0
        await b.post(id, "two")
        await b.rest(id)
    async with bench(store, FakeProvider(OK), pool) as b:
        await b.post(id, "three")
        await b.rest(id)
        assert len(pool.read_by) == asked
        assert await files(b, id) == []


async def test_a_worker_that_goes_while_it_is_asked_is_asked_again_on_its_next_connection_alone(
    store: Store,
) -> None:
    pool = Counting("w")
    pool.files = {"/home/me/AGENTS.md": b"be kind"}
    pool.failing = {"w"}
    async with bench(store, FakeProvider(OK, OK, OK), pool) as b:
        id = await b.session("one")
        await b.rest(id)
        tried = len(pool.read_by)
        await b.post(id, "two")
        await b.rest(id)
        assert len(pool.read_by) == tried
        pool.failing.clear()
        pool.hellos.clear()
        await b.post(id, "three")
        await b.rest(id)
        assert await files(b, id) == [("w", "be kind")]


async def test_a_worker_that_is_added_later_has_its_files_read_and_a_cordoned_one_when_it_is_no_more(
    store: Store,
) -> None:
    pool = Counting("w", "v")
    pool.files = {"/home/me/AGENTS.md": b"be kind"}
    pool.cordons = {"v"}
    async with bench(store, FakeProvider(OK, OK, OK), pool) as b:
        id = await b.session("one")
        await b.rest(id)
        await b.harness.set_workers(id, "me", (WorkerRef("w"), WorkerRef("v")))
        await b.post(id, "two")
        await b.rest(id)
        assert await files(b, id) == [("w", "be kind")]
        pool.cordons.clear()
        await b.post(id, "three")
        await b.rest(id)
        assert await files(b, id) == [("w", "be kind"), ("v", "be kind")]


async def test_the_files_of_another_folder_are_read_when_a_worker_gets_it_and_none_is_given_twice(
    store: Store,
) -> None:
    pool = Counting("w")
    pool.files = {"/fa/AGENTS.md": b"a's rules", "/fb/AGENTS.md": b"b's rules", "/scratch/AGENTS.md": b"mine"}
    rests = 0
    async with bench(store, FakeProvider(*[OK] * 6), pool) as b:
        id = await b.session("", workers=(WorkerRef("w", "/fa"),))
        for folder in ("/fa", "/fb", "/fa", "/fb", ""):
            await b.harness.set_workers(id, "me", (WorkerRef("w", folder),))
            await b.post(id, "go on")
            await b.rest(id)
            rests += 1
            assert (
                await files(b, id)
                == [("w", "mine"), ("w", "a's rules"), ("w", "b's rules")][: 1 + min(rests, 2)]
            )
        assert len(pool.read_by) == 6  # of each folder, and of the scratch, once
        pool.files["/fc/AGENTS.md"] = b"c's rules"
        await b.harness.set_workers(id, "me", (WorkerRef("w", "/fc"),))
        pool.files["/scratch/AGENTS.md"] = b"changed since"
        await b.post(id, "go on")
        await b.rest(id)
        assert (await files(b, id))[3:] == [("w", "changed since"), ("w", "c's rules")]


def test_a_place_is_short_and_each_has_its_own() -> None:
    refs = [WorkerRef("w"), WorkerRef("w", "/a"), *(WorkerRef("w", "/" + "x" * 4000 + end) for end in "12")]
    places = [agents.place(ref) for ref in refs]
    assert places[:2] == ["w", "w:/a"]
    assert len(set(places)) == 4
    assert max(map(len, places)) < 50


async def test_a_worker_that_does_not_answer_holds_a_step_up_no_longer_than_the_scan(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.harness.agents.SCAN_TIME", 0.01)

    class Silent(Counting):
        async def read(self, worker: str, path: str, **more: Any) -> Content:
            self.read_by.append(worker)
            await asyncio.Event().wait()
            raise AssertionError

    pool = Silent("w")
    async with bench(store, FakeProvider(OK, OK), pool) as b:
        id = await b.session("one")
        assert await b.rest(id) == "closed"
        await b.post(id, "two")
        assert await b.rest(id) == "closed"
        assert len(pool.read_by) == 1
