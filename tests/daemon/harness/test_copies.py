"""The session's file on its workers: only what is new is sent, pictures are left out, and nobody waits for it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemon.chain import fold
from daemon.harness import copies
from daemon.pool import WorkerGone
from daemon.protocol import api, records
from daemon.protocol.records import TEXT, Record, WorkerRef
from daemon.statefile.scan import scan
from daemon.statefile.store import Store
from tests.daemon.harness.doubles import Bench, Clock, FakePool, FakeProvider, bench, call, says, text
from tests.daemon.provider.contexts import picture

W = (WorkerRef("w"),)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path, clock=Clock())
    yield store
    await store.close()


def answers(count: int) -> FakeProvider:
    return FakeProvider(*(says(text(f"answer {k}")) for k in range(count)))


async def at_rest(b: Bench, id: str) -> None:
    """Wait until nobody steps the session and nothing is copied."""
    await b.rest(id)
    going = b.harness._copies._going
    while going:
        await asyncio.wait(going.values())


async def turn(b: Bench, id: str, words: str = "more") -> None:
    await b.post(id, words)
    await at_rest(b, id)


def place(id: str) -> str:
    return copies.path("/scratch", id)


async def expected(b: Bench, id: str) -> bytes:
    """What a copy has to be: the file, where nothing is left out."""
    log = await b.harness.log(id)
    return b"".join([piece async for piece in log.chunks(0)])


async def test_after_each_pass_the_file_is_there_and_only_what_is_new_was_sent(store: Store) -> None:
    pool = FakePool("w")
    async with bench(store, answers(3), pool) as b:
        id = await b.session("one")
        await at_rest(b, id)
        for words in ("two", "three"):
            await turn(b, id, words)
        whole = await expected(b, id)
        assert pool.copies["w", place(id)] == whole
        assert len(pool.poured) == 3
        assert sum(size for _, size in pool.poured) == len(whole)


async def test_a_failed_a_stopped_and_an_ended_session_are_copied_too(store: Store) -> None:
    pool = FakePool("w")
    provider = FakeProvider(says(text("x"), end="refusal"), [asyncio.Event()])
    async with bench(store, provider, pool) as b:
        id = await b.session("one")
        await at_rest(b, id)
        assert (await b.harness.info(id)).status == "failed"
        assert pool.copies["w", place(id)] == await expected(b, id)
        provider.asked.clear()
        await b.post(id, "two")
        await provider.asked.wait()
        await b.harness.stop(id, "me")
        await at_rest(b, id)
        assert pool.copies["w", place(id)] == await expected(b, id)
        await b.harness.end(id, "me")
        await at_rest(b, id)
        assert pool.copies["w", place(id)] == await expected(b, id)


async def test_pictures_are_left_out_and_the_copy_reads_as_a_session(store: Store, tmp_path: Path) -> None:
    pool = FakePool("w")
    pool.files = {"i.png": picture("PNG", (300, 200))}
    size = len(pool.files["i.png"])
    provider = FakeProvider(
        says(call("c", "read", worker="w", path="i.png"), end="calls"), says(text("a picture"))
    )
    async with bench(store, provider, pool) as b:
        id = await b.session("")
        await b.harness.post(id, "me", [api.Part(TEXT, b"look"), api.Part("image/png", picture())])
        await at_rest(b, id)
        original = await (await b.harness.log(id)).read()
    copy = tmp_path / "copy.state"
    copy.write_bytes(pool.copies["w", place(id)])
    found = scan(copy)
    assert (found.damage, found.torn, len(found.offsets)) == (None, 0, len(original))
    decoder, read = records.decoder(), list[Record]()
    decoder.feed(copy.read_bytes())
    while (unit := decoder.next()) is not None:
        header, line, body = unit
        records.check(line, body)
        read.append(Record(header, body, line))
    assert fold(read).status == "closed"
    for here, there in zip(read, original, strict=True):
        if there.header.type == "image/png":
            assert (here.body, here.header.omitted, here.header.type) == (b"", len(there.body), "image/png")
            assert (here.id, here.n, here.header.time) == (there.id, there.n, there.header.time)
        else:
            assert (here.raw, here.body) == (there.raw, there.body)
    assert sorted(r.header.omitted for r in read if r.header.omitted) == sorted([size, len(picture())])


async def test_fields_of_a_later_release_stay_in_a_record_whose_body_is_left_out() -> None:
    line, _ = records.encode(Record(records.draft("message", b"abc", "image/png", id="i").header, b"abc"))
    later = line[: -records.CRC_TAIL] + b',"later":[1,"\xc3\xa9"]' + line[-records.CRC_TAIL :]
    made = records.without_body(later)
    decoder = records.decoder()
    decoder.feed(made)
    unit = decoder.next()
    assert unit is not None
    header, raw, body = unit
    records.check(raw, body)
    assert (header.omitted, header.len, body) == (3, 0, b"")
    assert b'"later":[1,"\xc3\xa9"]' in raw


@pytest.mark.parametrize("harm", ["cut", "foreign", "gone", "longer", "at a record"])
@pytest.mark.parametrize("restart", [False, True])
async def test_a_copy_that_is_not_what_it_was_is_written_anew(store: Store, harm: str, restart: bool) -> None:
    pool, provider = FakePool("w"), answers(3)
    async with bench(store, provider, pool) as b:
        id = await b.session("one")
        await at_rest(b, id)
        await turn(b, id, "two")
        if restart:
            await b.harness.close()
            b.harness._copies._marks.clear()
    key = ("w", place(id))
    there = pool.copies[key]
    pool.copies[key] = {
        "cut": there[:-7],
        "foreign": bytes(len(there)),
        "gone": b"",
        "longer": there + b"x",
        "at a record": there[: there.index(b'{"n":3')],
    }[harm]
    if harm == "gone":
        del pool.copies[key]
    async with bench(store, provider, pool) as b:
        await turn(b, id, "three")
        assert pool.copies[key] == await expected(b, id)


async def test_the_next_daemon_asks_how_far_a_copy_is_and_sends_the_rest(store: Store) -> None:
    pool, provider = FakePool("w"), answers(2)
    async with bench(store, provider, pool) as b:
        id = await b.session("x" * 5000)
        await at_rest(b, id)
    async with bench(store, provider, pool) as b:
        await turn(b, id, "two")
        assert pool.copies["w", place(id)] == await expected(b, id)
    (_, first), (_, second) = pool.poured
    assert first > 5000 > second


async def test_a_worker_that_was_away_catches_up_when_it_comes_and_a_cordoned_one_when_it_is_no_more(
    store: Store,
) -> None:
    pool = FakePool("w")
    pool.cordons = {"v"}
    async with bench(store, answers(2), pool) as b:
        id = await b.session("one", workers=(WorkerRef("w"), WorkerRef("away"), WorkerRef("v")))
        await at_rest(b, id)
        await turn(b, id, "two")
        assert {worker for worker, _ in pool.copies} == {"w"}
        pool.here |= {"away", "v"}
        b.harness.workers_changed()
        await at_rest(b, id)
        assert {worker for worker, _ in pool.copies} == {"w", "away"}
        pool.cordons.clear()
        b.harness.workers_changed()
        await at_rest(b, id)
        assert {pool.copies[worker, place(id)] for worker in ("w", "away", "v")} == {await expected(b, id)}


async def test_a_worker_that_goes_in_the_middle_catches_up_when_it_is_back(store: Store) -> None:
    class Cut(FakePool):
        cut = True

        async def pour(
            self, worker: str, path: str, pieces: AsyncGenerator[bytes, None], **more: Any
        ) -> None:
            if self.cut:
                await anext(pieces)
                await pieces.aclose()
                raise WorkerGone(worker, "cut", started=True)
            await super().pour(worker, path, pieces, **more)

    pool = Cut("w")
    async with bench(store, answers(1), pool) as b:
        id = await b.session("one")
        await at_rest(b, id)
        assert not pool.copies
        pool.cut = False
        b.harness.workers_changed()
        await at_rest(b, id)
        assert pool.copies["w", place(id)] == await expected(b, id)


async def test_a_full_worker_costs_the_session_nothing_and_has_it_when_there_is_room(store: Store) -> None:
    pool = FakePool("w")
    pool.full = {"w"}
    async with bench(store, answers(2), pool) as b:
        id = await b.session("one")
        await at_rest(b, id)
        assert (await b.harness.info(id)).status == "closed"
        assert not pool.copies
        pool.full.clear()
        await turn(b, id, "two")
        assert pool.copies["w", place(id)] == await expected(b, id)


async def test_a_transfer_that_never_ends_holds_up_neither_the_next_step_nor_the_shutdown(
    store: Store,
) -> None:
    class Stuck(FakePool):
        def __init__(self, *here: str) -> None:
            super().__init__(*here)
            self.begun = asyncio.Event()

        async def pour(
            self, worker: str, path: str, pieces: AsyncGenerator[bytes, None], **more: Any
        ) -> None:
            self.begun.set()
            await pieces.aclose()
            await asyncio.Event().wait()

    pool = Stuck("w")
    async with bench(store, answers(3), pool) as b:
        id = await b.session("one")
        await pool.begun.wait()
        for words in ("two", "three"):
            await b.post(id, words)
            assert await b.rest(id) == "closed"
        assert len(b.harness._copies._going) == 1


async def test_what_was_added_while_it_was_sent_follows_at_once(store: Store) -> None:
    class Slow(FakePool):
        def __init__(self, *here: str) -> None:
            super().__init__(*here)
            self.begun, self.go = asyncio.Event(), asyncio.Event()

        async def pour(self, worker: str, path: str, *args: Any, **more: Any) -> None:
            self.begun.set()
            await self.go.wait()
            await super().pour(worker, path, *args, **more)

    pool = Slow("w")
    async with bench(store, answers(2), pool) as b:
        id = await b.session("one")
        await pool.begun.wait()
        await b.post(id, "two")
        await b.rest(id)
        pool.go.set()
        await at_rest(b, id)
        assert pool.copies["w", place(id)] == await expected(b, id)


async def test_a_file_over_the_limit_is_not_copied(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MAX_FILE", 1000)
    pool = FakePool("w")
    async with bench(store, answers(1), pool) as b:
        id = await b.session("one")
        await at_rest(b, id)
        assert not pool.copies


async def test_pieces_of_a_big_file_are_small_and_a_dropped_worker_gets_no_more(store: Store) -> None:
    sizes: list[int] = []

    class Seen(FakePool):
        async def pour(
            self, worker: str, path: str, pieces: AsyncGenerator[bytes, None], **more: Any
        ) -> None:
            async def seen() -> AsyncGenerator[bytes, None]:
                async for piece in pieces:
                    sizes.append(len(piece))
                    yield piece

            await super().pour(worker, path, seen(), **more)

    pool = Seen("w")
    async with bench(store, answers(2), pool) as b:
        id = await b.session("y" * 3_000_000, context=100_000_000)
        await at_rest(b, id)
        before = pool.copies["w", place(id)]
        assert before == await expected(b, id)
        assert max(sizes) == 256 << 10
        await b.harness.set_workers(id, "me", ())
        await turn(b, id, "two")
        assert pool.copies["w", place(id)] == before


async def test_the_model_is_told_where_its_past_is_and_a_copy_of_the_session_has_its_own(
    store: Store,
) -> None:
    async with bench(store, answers(2), FakePool("w")) as b:
        id = await b.session("one")
        await at_rest(b, id)
        assert f"past: {place(id)}" in (await b.bodies(id, "system"))[-1]
        assert "`past`" in (await b.bodies(id, "system"))[0]
        copy = await b.harness.create(api.Create(from_=id))
        await turn(b, copy, "two")
        assert f"past: {place(copy)}" in (await b.bodies(copy, "system"))[-1]


@pytest.mark.parametrize("how", ["another worker", "another session"])
async def test_what_a_model_is_told_of_its_past_is_there_before_the_next_pause(
    store: Store, how: str
) -> None:
    pool, hold = FakePool("w", "v"), asyncio.Event()
    provider = FakeProvider(says(text("one")), [hold, *says(text("two"))])
    async with bench(store, provider, pool) as b:
        id, worker = await b.session("one"), "w"
        await at_rest(b, id)
        if how == "another worker":
            worker = "v"
            await b.harness.set_workers(id, "me", (WorkerRef("w"), WorkerRef("v")))
        else:
            id = await b.harness.create(api.Create(from_=id))
        provider.asked.clear()
        await b.post(id, "two")
        await provider.asked.wait()
        while going := list(b.harness._copies._going.values()):
            await asyncio.wait(going)
        assert f"past: {place(id)}" in (await b.bodies(id, "system"))[-1]
        assert b"one" in pool.copies[worker, place(id)]
        hold.set()
        await at_rest(b, id)
        assert pool.copies[worker, place(id)] == await expected(b, id)
