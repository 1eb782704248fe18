"""Answers that are no finished ones: paused, refused, cut; each durable together with its step."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.protocol.records import Limits, error_of
from daemon.statefile.store import Store
from daemon.turns import Text
from tests.daemon.harness.doubles import Clock, FakePool, FakeProvider, bench, run, says, text


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path, clock=Clock())
    yield store
    await store.close()


async def test_a_paused_answer_goes_on_by_itself(store: Store) -> None:
    provider = FakeProvider(says(text("half"), end="paused"), says(end="paused"), says(text("whole")))
    async with bench(store, provider, FakePool()) as b:
        id = await b.session()
        assert await b.rest(id) == "closed"
        assert await b.bodies(id, "text") == ["half", "whole"]
        last = provider.queries[1].context.last
        assert last is not None
        assert last.parts == (Text("Go on."),)


async def test_a_session_cut_after_a_pause_is_open_and_goes_on(store: Store) -> None:
    class Ends(FakeProvider):
        def compile(self, query, wire):  # type: ignore[no-untyped-def]
            if not self.answers:
                raise SystemError("the daemon is cut here")
            return super().compile(query, wire)

    provider = Ends(says(text("half"), end="paused"))
    async with bench(store, provider, FakePool()) as b:
        id = await b.session()
        await b.rest(id)
        log = await b.harness.log(id)
        paused = [record.header.paused for record in await log.read() if record.kind == "step"]
        assert paused == [True]
        n = (await b.kinds(id)).index("step") + 2
        copy = await store.copy(id, n)
    async with bench(store, FakeProvider(says(text("whole"))), FakePool()) as b:
        await b.harness.retry(copy)
        assert await b.rest(copy) == "closed"
        assert await b.bodies(copy, "text") == ["half", "whole"]


async def test_an_answer_that_pauses_for_ever_is_an_error(store: Store) -> None:
    provider = FakeProvider(*(says(text("again"), end="paused") for _ in range(20)))
    async with bench(store, provider, FakePool()) as b:
        id = await b.session()
        assert await b.rest(id) == "failed"
        assert len(provider.queries) == 11
        assert "paused" in (await b.bodies(id, "error"))[0]


async def test_limits_are_kept_between_pauses(store: Store) -> None:
    provider = FakeProvider(says(text("half"), end="paused"))
    async with bench(store, provider, FakePool()) as b:
        id = await b.session(limits=Limits(steps=1))
        assert await b.rest(id) == "failed"
        assert "limits.steps" in (await b.bodies(id, "error"))[0]


async def test_calls_of_a_refused_answer_are_not_carried_out(store: Store) -> None:
    pool = FakePool("w")
    async with bench(store, FakeProvider(says(run("c", "x"), end="refusal")), pool) as b:
        id = await b.session()
        assert await b.rest(id) == "failed"
        assert pool.ran == []
        assert (await b.kinds(id))[-3:] == ["step", "result", "error"]
        assert "not carried out" in (await b.bodies(id, "result"))[0]


async def test_calls_in_front_of_a_cut_are_carried_out(store: Store) -> None:
    pool = FakePool("w")
    async with bench(store, FakeProvider(says(run("c", "x"), end="length"), says(text("ok"))), pool) as b:
        id = await b.session()
        assert await b.rest(id) == "closed"
        assert len(pool.ran) == 1


async def test_the_error_about_an_answer_is_durable_with_its_step(store: Store) -> None:
    async with bench(store, FakeProvider(says(text("cut"), end="length")), FakePool()) as b:
        id = await b.session()
        await b.rest(id)
        step, error = (await (await b.harness.log(id)).read())[-2:]
        assert (step.kind, error.kind) == ("step", "error")
        assert error_of(error).code == "length"
        assert step.header.time == error.header.time


async def test_a_session_whose_times_do_not_read_is_settled_all_the_same(store: Store) -> None:
    provider = FakeProvider(says(text("ok")))
    async with bench(store, provider, FakePool()) as b:
        id = await b.session("", limits=Limits(seconds=10**9))
        (await b.harness._sessions.get(id)).chain.created = "yesterday"
        await b.post(id, "hi")
        assert await b.rest(id) == "closed"


async def test_a_stop_of_a_call_that_no_worker_was_sent_says_that_it_never_began(store: Store) -> None:
    class Waiting(FakePool):
        async def run(self, *args, **more):  # type: ignore[no-untyped-def]
            self.started.set()
            await asyncio.Event().wait()

    pool = Waiting()
    async with bench(store, FakeProvider(says(run("c", "x"), end="calls")), pool) as b:
        id = await b.session()
        await pool.started.wait()
        await b.harness.stop(id, "me")
        assert await b.bodies(id, "result") == ["stopped before it began"]
