"""The harness on a real data folder, with a provider and workers that do what the test says."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from daemon.harness import errors
from daemon.harness.live import LiveEvent
from daemon.harness.session import BIG
from daemon.pool import Output, WorkerGone
from daemon.protocol import api
from daemon.protocol.records import TEXT, Limits, Usage, WorkerRef, error_of
from daemon.provider.base import Block, Delta, Outcome, ProviderError
from daemon.statefile.store import Store
from daemon.turns import Media, Result, Text
from tests.daemon.harness.doubles import (
    Clock,
    FakePool,
    FakeProvider,
    Scripted,
    bench,
    call,
    run,
    says,
    text,
)
from tests.daemon.provider.contexts import picture


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path, clock=Clock())
    yield store
    await store.close()


async def test_a_message_is_answered_and_the_session_closes(store: Store) -> None:
    async with bench(store, FakeProvider(says(text("hello"))), FakePool("w")) as b:
        id = await b.session("hi")
        assert await b.rest(id) == "closed"
        assert await b.kinds(id) == ["start", "config", "system", "message", "system", "text", "step"]
        info = await b.harness.info(id)
        assert (info.title, info.prompt, info.usage.output) == ("hi", 10, 5)


async def test_calls_are_run_and_their_results_go_back(store: Store) -> None:
    provider = FakeProvider(
        says(text("look"), run("c1", "ls"), run("c2", "pwd"), end="calls"), says(text("done"))
    )
    pool = FakePool("w")
    pool.does["ls"] = Output(b"a\nb\n", 3, 0.5)
    async with bench(store, provider, pool) as b:
        id = await b.session()
        assert await b.rest(id) == "closed"
        assert [(c, code, age) for _, c, code, age in pool.ran] == [("c1", "ls", None), ("c2", "pwd", None)]
        last = provider.queries[1].context.last
        assert last is not None
        first = last.parts[0]
        assert isinstance(first, Result)
        assert isinstance(first.content[0], Text)
        assert first.content[0].text.startswith("a\nb\n[exit 3, took 0.5 s")
        assert pool.acked == ["c1", "c2"]


async def test_everything_the_model_said_is_durable_before_a_call_starts(store: Store) -> None:
    pool = FakePool("w")
    seen: list[int] = []

    async def look() -> Output:
        seen.append((await b.harness.log(id)).durable_n)
        return Output(exit=0)

    pool.does["x"] = look
    provider = FakeProvider(says(run("c", "x"), end="calls"), says(text("ok")))
    async with bench(store, provider, pool) as b:
        id = await b.session()
        await b.rest(id)
        kinds = await b.kinds(id)
        assert kinds[seen[0] - 1] == "step"


async def test_a_message_that_lands_during_a_call_comes_after_the_results(store: Store) -> None:
    pool, go = FakePool("w"), asyncio.Event()

    async def wait() -> Output:
        await go.wait()
        return Output(b"r", 0)

    pool.does["x"] = wait
    provider = FakeProvider(says(run("c", "x"), end="calls"), says(text("ok")))
    async with bench(store, provider, pool) as b:
        id = await b.session()
        await pool.started.wait()
        await b.post(id, "also do Y")
        go.set()
        assert await b.rest(id) == "closed"
        last = provider.queries[1].context.last
        assert last is not None
        assert [type(part) for part in last.parts] == [Result, Text]


async def test_a_message_that_lands_as_a_pass_ends_is_answered(store: Store) -> None:
    hold = asyncio.Event()
    provider = FakeProvider([text("one"), hold, *says()], says(text("two")))
    async with bench(store, provider, FakePool()) as b:
        id = await b.session("a")
        await provider.asked.wait()
        await b.post(id, "b")
        hold.set()
        assert await b.rest(id) == "closed"
        assert await b.bodies(id, "text") == ["one", "two"]


async def test_a_provider_error_fails_the_session_and_a_retry_goes_on(store: Store) -> None:
    provider = FakeProvider([ProviderError("no such key", code="auth", status=401)], says(text("ok")))
    async with bench(store, provider, FakePool()) as b:
        id = await b.session()
        assert await b.rest(id) == "failed"
        assert await b.bodies(id, "error") == ["no such key"]
        await b.harness.retry(id)
        assert await b.rest(id) == "closed"


async def test_a_retry_of_a_closed_session_does_not_carry_over_to_a_later_failure(store: Store) -> None:
    provider = FakeProvider(says(text("ok")), [ProviderError("bad")])
    async with bench(store, provider, FakePool()) as b:
        id = await b.session()
        await b.rest(id)
        await b.harness.retry(id)
        assert await b.rest(id) == "closed"
        await b.post(id, "again")
        assert await b.rest(id) == "failed"
        assert len(provider.queries) == 2


async def test_a_failed_session_steps_on_at_a_post(store: Store) -> None:
    provider = FakeProvider([ProviderError("bad")], says(text("ok")))
    async with bench(store, provider, FakePool()) as b:
        id = await b.session()
        assert await b.rest(id) == "failed"
        await b.post(id, "go on")
        assert await b.rest(id) == "closed"


@pytest.mark.parametrize(
    ("answer", "code", "says_"),
    [
        (says(text("cut"), end="length"), "length", "output limit"),
        (says(end="refusal"), "refusal", "refused"),
        (says(), "normal", "answered with nothing"),
        (says(Block("thinking", b"{}", "application/json")), "normal", "answered with nothing"),
    ],
)
async def test_an_answer_that_is_no_finished_one_is_an_error_that_names_it(
    store: Store,
    answer: list[Scripted],
    code: str,
    says_: str,
) -> None:
    async with bench(store, FakeProvider(answer), FakePool()) as b:
        id = await b.session()
        assert await b.rest(id) == "failed"
        (error,) = [r for r in await (await b.harness.log(id)).read() if r.kind == "error"]
        assert says_ in error_of(error).message


async def test_past_the_context_limit_nothing_is_called(store: Store) -> None:
    provider = FakeProvider()
    async with bench(store, provider, FakePool()) as b:
        id = await b.session("x" * 40_000)
        assert await b.rest(id) == "failed"
        assert "past the context limit" in (await b.bodies(id, "error"))[0]
        assert not provider.queries


async def test_a_provider_that_finds_the_request_too_long_is_asked_once_and_the_session_stays_usable(
    store: Store,
) -> None:
    """C3: no loop of tries, whatever the session does next; then it goes on with what fits."""
    too_long: list[Scripted] = [ProviderError("prompt is too long", code="context_overflow")]
    provider = FakeProvider(too_long, too_long, says(text("fits now")))
    async with bench(store, provider, FakePool("w")) as b:
        id = await b.session("hi")
        for asked in (1, 2):
            assert await b.rest(id) == "failed"
            assert len(provider.queries) == asked
            await b.harness.retry(id)
        assert await b.rest(id) == "closed"
        assert await b.bodies(id, "text") == ["fits now"]


async def test_a_smaller_window_stops_a_session_and_a_larger_one_lets_it_go_on(store: Store) -> None:
    provider = FakeProvider(says(text("one"), prompt=600), says(text("two")))
    async with bench(store, provider, FakePool("w")) as b:
        id = await b.session("hi")
        assert await b.rest(id) == "closed"
        await b.harness.patch_config(id, "me", api.ConfigPatch(context=500))
        await b.post(id, "more")
        assert await b.rest(id) == "failed"
        assert "past the context limit" in (await b.bodies(id, "error"))[0]
        assert len(provider.queries) == 1
        await b.harness.patch_config(id, "me", api.ConfigPatch(context=5000))
        await b.harness.retry(id)
        assert await b.rest(id) == "closed"
        assert await b.bodies(id, "text") == ["one", "two"]


class Held(asyncio.Event):
    """Says when it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.waited_for.set()
        return await super().wait()


@pytest.mark.parametrize("how", ["answered", "failed", "stopped"])
async def test_the_limit_of_seconds_counts_work_and_no_idle_time(tmp_path: Path, how: str) -> None:
    clock, hold, provider = Clock(), Held(), FakeProvider(says(text("one")))
    store = Store(tmp_path, clock=clock)
    async with bench(store, provider, FakePool("w"), clock=clock) as b:
        id = await b.session("", limits=Limits(seconds=60))
        clock.now += timedelta(hours=1)
        await b.post(id, "hi")
        assert await b.rest(id) == "closed"
        clock.now += timedelta(hours=1)
        answer = [ProviderError("no")] if how == "failed" else says(text("two"))
        provider.answers.append([hold, *answer])
        await b.post(id, "more")
        await hold.waited_for.wait()
        clock.now += timedelta(minutes=2)
        if how == "stopped":
            await b.harness.stop(id, "me")
        hold.set()
        await b.rest(id)
        await b.post(id, "and more")
        assert await b.rest(id) == "failed"
        assert (await b.bodies(id, "error"))[-1].startswith("limits.seconds is reached: 12")
        copy = await b.harness.create(api.Create(from_=id))
        await b.harness.retry(copy)
        await b.rest(copy)
        assert (await b.bodies(copy, "error"))[-1].startswith("limits.seconds is reached: 12")
        assert len(provider.queries) == 2
    await store.close()


async def test_a_stop_that_comes_as_the_answer_is_written_counts_its_time_once(store: Store) -> None:
    async with bench(store, FakeProvider(says(text("one"))), FakePool("w")) as b:
        id = await b.session("")
        session = await b.harness._sessions.get(id)
        sync, written, go = session.log.sync, asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            if session.chain.steps:
                written.set()
                await go.wait()
            await sync()

        session.log.sync = slow  # type: ignore[method-assign]
        await b.post(id, "hi")
        await written.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(b.harness.stop(id, "me"))
            assert session.one_pass is not None
            await asyncio.wait({session.one_pass})
            go.set()
        step, error = (await session.log.read())[-2:]
        assert (step.kind, bool(step.header.sent)) == ("step", True)
        assert (error.kind, error.header.sent) == ("error", "")


async def test_the_limit_of_steps_is_kept(store: Store) -> None:
    provider = FakeProvider(says(run("c", "x"), end="calls"))
    async with bench(store, provider, FakePool("w")) as b:
        id = await b.session(limits=Limits(steps=1))
        assert await b.rest(id) == "failed"
        assert "limits.steps is reached: 1 of 1" in (await b.bodies(id, "error"))[0]


async def test_stop_cuts_a_stream_and_writes_who_asked(store: Store) -> None:
    provider = FakeProvider([text("half"), asyncio.Event()])
    async with bench(store, provider, FakePool()) as b:
        id = await b.session()
        await provider.asked.wait()
        await b.harness.stop(id, "alice")
        assert (await b.kinds(id))[-1] == "error"
        assert (await b.bodies(id, "error")) == ["stopped by alice"]
        assert await b.rest(id) == "failed"


async def test_stop_interrupts_a_call_and_its_real_result_is_kept(store: Store) -> None:
    pool, ended = FakePool("w"), asyncio.Event()

    async def until_interrupted() -> Output:
        await ended.wait()
        return Output(b"so far", None, stopped="interrupt")

    pool.does["x"] = until_interrupted
    pool.on_interrupt = lambda call: ended.set()
    async with bench(store, FakeProvider(says(run("c", "x"), end="calls")), pool) as b:
        id = await b.session()
        await pool.started.wait()
        await b.harness.stop(id, "alice")
        assert pool.interrupted == ["c"]
        assert (await b.kinds(id))[-2:] == ["result", "error"]
        assert "so far\n[stopped on request]" in (await b.bodies(id, "result"))[0]


async def test_stop_tells_those_that_wait_before_the_one_they_wait_for(store: Store) -> None:
    pool, begun = FakePool("w"), asyncio.Barrier(4)
    ended = {call: asyncio.Event() for call in "abc"}

    def until_interrupted(call: str) -> Callable[[], Awaitable[Output]]:
        async def wait() -> Output:
            await begun.wait()
            await ended[call].wait()
            return Output(b"", None, stopped="interrupt")

        return wait

    pool.does = {call: until_interrupted(call) for call in "abc"}
    pool.on_interrupt = lambda call: ended[call].set()
    answer = says(*(run(call, call) for call in "abc"), end="calls")
    async with bench(store, FakeProvider(answer), pool) as b:
        id = await b.session()
        await begun.wait()
        await b.harness.stop(id, "alice")
        assert pool.interrupted == ["c", "b", "a"]
        assert (await b.kinds(id))[-4:] == ["result", "result", "result", "error"]


async def test_stop_kills_what_does_not_take_an_interrupt(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.harness.stopping.INTERRUPT_TIME", 0.01)
    pool, ended = FakePool("w"), asyncio.Event()

    async def until_killed() -> Output:
        await ended.wait()
        return Output(b"", None, reset="killed")

    pool.does["x"] = until_killed
    pool.on_kill = ended.set
    async with bench(store, FakeProvider(says(run("c", "x"), end="calls")), pool) as b:
        id = await b.session()
        await pool.started.wait()
        await b.harness.stop(id, "alice")
        assert pool.killed == ["w"]
        assert (await b.kinds(id))[-2:] == ["result", "error"]


async def test_stop_ends_with_a_worker_that_never_answers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.harness.stopping.INTERRUPT_TIME", 0.01)
    monkeypatch.setattr("daemon.harness.stopping.KILL_TIME", 0.01)
    pool = FakePool("w")

    async def never() -> Output:
        await asyncio.Event().wait()
        raise AssertionError

    pool.does["x"] = never
    async with bench(store, FakeProvider(says(run("c", "x"), end="calls")), pool) as b:
        id = await b.session()
        await pool.started.wait()
        await b.harness.stop(id, "alice")
        assert (await b.kinds(id))[-2:] == ["result", "error"]
        assert "effect unknown" in (await b.bodies(id, "result"))[0]


async def test_stop_of_a_session_that_is_not_stepping_is_a_conflict(store: Store) -> None:
    async with bench(store, FakeProvider(says(text("ok"))), FakePool()) as b:
        id = await b.session()
        await b.rest(id)
        with pytest.raises(errors.Conflict, match="not stepping: it is closed"):
            await b.harness.stop(id, "alice")


async def test_after_a_stop_a_post_goes_on(store: Store) -> None:
    provider = FakeProvider([asyncio.Event()], says(text("ok")))
    async with bench(store, provider, FakePool()) as b:
        id = await b.session()
        await provider.asked.wait()
        await b.harness.stop(id, "alice")
        await b.post(id, "go on")
        assert await b.rest(id) == "closed"


async def test_a_message_accepted_before_the_stop_waits_with_the_failed_session(store: Store) -> None:
    provider = FakeProvider([asyncio.Event()])
    async with bench(store, provider, FakePool()) as b:
        id = await b.session()
        await provider.asked.wait()
        await b.post(id, "more")
        await b.harness.stop(id, "alice")
        assert await b.rest(id) == "failed"
        assert len(provider.queries) == 1


async def test_shutting_down_is_no_stop_and_the_next_start_goes_on(store: Store) -> None:
    async with bench(store, FakeProvider([text("half"), asyncio.Event()]), FakePool()) as b:
        id = await b.session()
        await b.provider.asked.wait()
    provider = FakeProvider(says(text("whole")))
    async with bench(store, provider, FakePool()) as b:
        assert await b.rest(id) == "closed"
        assert "error" not in await b.kinds(id)
        assert len(provider.queries) == 1
        assert await b.bodies(id, "text") == ["half", "whole"]
        settled = (await b.harness._sessions.get(id)).chain.context().settled
        assert [part for turn in settled for part in turn.parts] == [Text("hi"), Text("whole")]


async def test_an_orphan_call_is_asked_for_and_not_run_anew_by_us(store: Store) -> None:
    pool = FakePool("w")

    async def never() -> Output:
        await asyncio.Event().wait()
        raise AssertionError

    pool.does["x"] = never
    async with bench(store, FakeProvider(says(run("c", "x"), end="calls")), pool) as b:
        id = await b.session()
        await pool.started.wait()
    pool = FakePool("w")
    async with bench(store, FakeProvider(says(text("ok"))), pool) as b:
        assert await b.rest(id) == "closed"
        ((_, name, code, age),) = pool.ran
        assert (name, code) == ("c", "x")
        assert age is not None  # so the pool asks the worker first


@pytest.mark.parametrize(("hours", "known"), [(1, True), (-1, False)])
async def test_the_age_of_an_orphan_call_is_unknown_where_the_clock_was_set_back(
    store: Store, hours: int, known: bool
) -> None:
    pool, clock = FakePool("w"), Clock()
    never = asyncio.Event()
    pool.does["x"] = never.wait
    async with bench(store, FakeProvider(says(run("c", "x"), end="calls")), pool, clock=clock) as b:
        id = await b.session()
        await pool.started.wait()
    clock.now += timedelta(hours=hours)
    pool = FakePool("w")
    async with bench(store, FakeProvider(says(text("ok"))), pool, clock=clock) as b:
        assert await b.rest(id) == "closed"
        ((_, _, _, age),) = pool.ran
        assert age is not None
        assert (3500 < age < 3700) if known else age == float("inf")


async def test_an_edit_that_was_done_before_a_restart_is_not_done_again(store: Store) -> None:
    pool = FakePool()
    edit = call("c", "edit", worker="w", path="f", old="a", new="b")
    hold = asyncio.Event()

    class Slow(FakePool):
        async def read(self, worker, path, **kwargs):  # type: ignore[no-untyped-def]
            if path == "f":
                self.started.set()
                await hold.wait()
            return await super().read(worker, path, **kwargs)

    pool = Slow("w")
    async with bench(store, FakeProvider(says(edit, end="calls")), pool) as b:
        id = await b.session()
        await pool.started.wait()
    pool = FakePool("w")
    pool.files["f"] = b"b"
    pool.journal[id, "c"] = Output(exit=0)
    async with bench(store, FakeProvider(says(text("ok"))), pool) as b:
        assert await b.rest(id) == "closed"
        assert pool.files["f"] == b"b"
        assert await b.bodies(id, "result") == ["Edited f."]


async def test_a_worker_that_is_gone_is_reported_and_no_other_is_taken(store: Store) -> None:
    pool = FakePool("other")
    pool.does["x"] = WorkerGone("w", "cut", started=True)
    provider = FakeProvider(says(run("c", "x"), end="calls"), says(text("ok")))
    async with bench(store, provider, pool) as b:
        id = await b.session(workers=(WorkerRef("w"), WorkerRef("other")))
        assert await b.rest(id) == "closed"
        assert [worker for worker, *_ in pool.ran] == ["w"]
        assert "gone" in (await b.bodies(id, "result"))[0]


@pytest.mark.parametrize(
    ("block", "says_"),
    [
        (run("c", "x", worker="nowhere"), "no worker 'nowhere' in this session. Its workers: w"),
        (call("c", "fly"), "no tool 'fly'"),
        (Block("call", b'{"name":"run","arguments":"{bad"}', "application/json", "c"), "not valid JSON"),
    ],
)
async def test_a_call_that_cannot_be_carried_out_gets_a_result_that_says_why(
    store: Store, block: Block, says_: str
) -> None:
    pool = FakePool("w")
    provider = FakeProvider(says(block, end="calls"), says(text("ok")))
    async with bench(store, provider, pool) as b:
        id = await b.session()
        assert await b.rest(id) == "closed"
        assert says_ in (await b.bodies(id, "result"))[0]
        assert not pool.ran


async def test_two_calls_with_one_id_get_two(store: Store) -> None:
    provider = FakeProvider(
        says(run("c", "x"), run("c", "y"), end="calls"), says(run("c", "z"), end="calls"), says(text("ok"))
    )
    async with bench(store, provider, FakePool("w")) as b:
        id = await b.session()
        assert await b.rest(id) == "closed"
        ids = [r.id for r in await (await b.harness.log(id)).read() if r.kind == "call"]
        assert len(set(ids)) == 3
        assert ids[0] == "c"


async def test_a_providers_words_that_no_header_holds_are_cut(store: Store) -> None:
    strange = Outcome(Usage(), "\ud800" + "s" * 100_000, "normal")
    provider = FakeProvider(says(run("i" * 100_000, "x"), end="calls"), [Block("text", b"ok"), strange])
    async with bench(store, provider, FakePool("w")) as b:
        id = await b.session()
        assert await b.rest(id) == "closed"
        records = await (await b.harness.log(id)).read()
        (call,) = (r for r in records if r.kind == "call")
        assert len(call.id) == 16
        assert [r.header.for_ for r in records if r.kind == "result"] == [call.id]
        assert records[-1].header.stop.startswith("\ufffds")


async def test_what_a_broken_try_said_never_counts(store: Store) -> None:
    broken: list[Scripted] = [text("Hello wor"), run("c", "x"), ProviderError("reset", retryable=True)]
    provider = FakeProvider(broken)
    async with bench(store, provider, FakePool("w")) as b:
        with b.harness.live("0" * 16):
            pass
        id = await b.session("")
        with b.harness.live(id) as live:
            await b.post(id, "hi")
            while not (events := live.take(100)):
                await live.wait()
            assert isinstance(events[0], api.RetryEvent)
            await b.harness.stop(id, "me")
        session = await b.harness._sessions.get(id)
        assert session.chain.orphans == ()
        assert session.chain.context().settled == []
        provider.answers.append(says(text("Hello world")))
        await b.post(id, "again")
        assert await b.rest(id) == "closed"
        session = await b.harness._sessions.get(id)
        assert [turn.parts for turn in session.chain.context().settled[1:]] == [(Text("Hello world"),)]
        assert b.pool.ran == []


async def test_deltas_and_live_output_reach_a_reader(store: Store) -> None:
    provider = FakeProvider(says(run("c", "x"), end="calls"), [Delta("text", "o"), *says(text("ok"))])
    async with bench(store, provider, FakePool("w")) as b:
        id = await b.session("")
        with b.harness.live(id) as live:
            await b.post(id, "hi")
            log, cursor, found = await b.harness.log(id), 0, list[LiveEvent]()
            while len(found) < 2:
                last = log.durable_n
                found += live.take(cursor)
                if cursor < last:
                    cursor = live.until(cursor, last)
                elif len(found) < 2:
                    await live.wait()
        await b.rest(id)
        (answer,) = [record for record in await log.read() if record.kind == "text"]
        assert found == [
            api.Delta("output", "live", call="c"),
            api.Delta("text", "o", step=answer.header.step),
        ]


async def test_output_that_a_worker_sends_again_takes_the_place_of_what_came(store: Store) -> None:
    pool = FakePool("w")
    pool.prints = ["é1\n".encode(), "é2\n".encode()[:1], b"", "é1\né2\n".encode()]
    hold = asyncio.Event()

    async def held() -> Output:
        await hold.wait()
        return Output(b"", 0, 0.1)

    pool.does["x"] = held
    async with bench(store, FakeProvider(says(run("c", "x"), end="calls"), says(text("ok"))), pool) as b:
        id = await b.session()
        await pool.started.wait()
        n = (await b.harness.info(id)).n
        with b.harness.live(id) as live:
            assert live.take(n) == [api.Delta("output", "é1\né2\n", call="c")]
        hold.set()
        assert await b.rest(id) == "closed"


async def test_the_worker_list_enters_again_when_it_differs(store: Store) -> None:
    pool = FakePool("w")
    async with bench(store, FakeProvider(says(text("1")), says(text("2")), says(text("3"))), pool) as b:
        id = await b.session()
        await b.rest(id)
        await b.post(id, "same")
        await b.rest(id)
        pool.here.clear()
        await b.post(id, "other")
        await b.rest(id)
        shown = await b.bodies(id, "system")
        assert len(shown) == 3
        assert "interpreters: bash" in shown[1]
        assert "not connected" in shown[2]


async def test_the_agents_files_up_to_the_repository_are_read_before_the_first_step(store: Store) -> None:
    pool = FakePool("w")
    pool.files = {
        "/src/repo/.git": b"gitdir",
        "/src/repo/AGENTS.md": b"outer",
        "/src/repo/a/AGENTS.md": b"inner",
        "/src/AGENTS.md": b"not ours",
        "/scratch/AGENTS.md": b"of the machine",
    }
    async with bench(store, FakeProvider(says(text("ok")), says(text("ok"))), pool) as b:
        id = await b.session(workers=(WorkerRef("w", "/src/repo/a"),))
        await b.rest(id)
        await b.post(id, "again")
        await b.rest(id)
        found = [r.text() for r in await (await b.harness.log(id)).read() if r.header.source == "agents.md"]
        assert [line.rpartition("\n")[2] for line in found] == ["of the machine", "outer", "inner"]


async def test_read_shows_text_images_and_refuses_other_bytes(store: Store) -> None:
    pool = FakePool("w")
    pool.files = {"t": b"one\n", "i.jpg": picture(), "b": b"\0\1\2", "x.bmp": b"BM6" + bytes(9)}
    calls = [call(str(i), "read", worker="w", path=path) for i, path in enumerate([*pool.files, "none"])]
    provider = FakeProvider(says(*calls, end="calls"), says(text("ok")))
    async with bench(store, provider, pool) as b:
        id = await b.session()
        await b.rest(id)
        results = {r.header.for_: r for r in await (await b.harness.log(id)).read() if r.kind == "result"}
        assert results["0"].text() == "one\n"
        assert results["1"].header.type == "image/png"
        assert "binary (application/octet-stream), 3 bytes" in results["2"].text()
        assert "image/bmp" in results["3"].text()
        assert "no file none" in results["4"].text()
        last = provider.queries[1].context.last
        assert last is not None
        assert isinstance(last.parts[1], Result)
        assert isinstance(last.parts[1].content[0], Media)


async def test_write_and_edit_say_what_they_did(store: Store) -> None:
    pool = FakePool("w")
    provider = FakeProvider(
        says(call("1", "write", worker="w", path="f", content="a\nb\n"), end="calls"),
        says(call("2", "edit", worker="w", path="f", old="b", new="c"), end="calls"),
        says(call("3", "edit", worker="w", path="f", old="zzz", new="c"), end="calls"),
        says(text("ok")),
    )
    async with bench(store, provider, pool) as b:
        id = await b.session()
        assert await b.rest(id) == "closed"
        assert pool.files["f"] == b"a\nc\n"
        assert await b.bodies(id, "result") == [
            "Wrote 4 bytes to f.",
            "Edited f, line 2.",
            "f: `old` occurs 0 times; read the file again, it may have changed. Nothing was changed.",
        ]


async def test_twenty_posts_at_once_are_all_there_once_with_one_runner(store: Store) -> None:
    class Endless(FakeProvider):
        def compile(self, query, wire):  # type: ignore[no-untyped-def]
            self.answers.append(says(text("ok")))
            return super().compile(query, wire)

    provider = Endless()
    async with bench(store, provider, FakePool()) as b:
        id = await b.session("")
        async with asyncio.TaskGroup() as group:
            posts = [group.create_task(b.post(id, f"m{i}")) for i in range(20)]
        assert await b.rest(id) == "closed"
        assert sorted(await b.bodies(id, "message")) == sorted(f"m{i}" for i in range(20))
        log = await b.harness.log(id)
        found = await log.read()
        numbers = {r.text(): r.n for r in found if r.kind == "message"}
        assert {f"m{i}": task.result() for i, task in enumerate(posts)} == numbers
        steps = [r for r in found if r.kind == "step"]
        for before, after in itertools.pairwise(steps):
            assert before.header.upto < after.header.upto, "no two steps answer the same"
        assert len(steps) == len(provider.queries) <= 20


async def test_a_key_posts_once_and_refuses_other_content(store: Store) -> None:
    async with bench(store, FakeProvider(says(text("ok")), says(text("ok"))), FakePool()) as b:
        id = await b.session("")
        first = await b.post(id, "hi", "k")
        assert await b.post(id, "hi", "k") == first
        with pytest.raises(errors.Conflict, match="another post"):
            await b.post(id, "other", "k")
        with pytest.raises(errors.Conflict, match="another post"):
            await b.harness.post(id, "me", [api.Part(TEXT, b"hi"), api.Part(TEXT, b"hi")], "k")
        await b.rest(id)
        assert await b.bodies(id, "message") == ["hi"]
        assert await b.post(id, "hi", "k2") > first
        await b.rest(id)


async def test_five_posts_at_once_under_one_key_are_one(store: Store) -> None:
    large = "x" * BIG  # so that it is written off the loop, and the others have their turn meanwhile
    async with bench(store, FakeProvider(says(text("ok"))), FakePool()) as b:
        id = await b.session("")
        async with asyncio.TaskGroup() as group:
            posts = [group.create_task(b.post(id, large, "k")) for _ in range(5)]
        assert len({task.result() for task in posts}) == 1
        await b.rest(id)
        assert len(await b.bodies(id, "message")) == 1


async def test_a_key_is_remembered_over_a_restart(store: Store) -> None:
    async with bench(store, FakeProvider(says(text("ok"))), FakePool()) as b:
        id = await b.session("")
        first = await b.post(id, "hi", "k")
        await b.rest(id)
    async with bench(store, FakeProvider(), FakePool()) as b:
        assert await b.post(id, "hi", "k") == first


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [{"x": value}]
    return value


@pytest.mark.parametrize(
    ("create", "says_"),
    [
        (api.Create(model="other/m"), "served: fake/m"),
        (api.Create(model="fake/m", tools="all"), "tools: there is no set 'all'"),
        (api.Create(model="fake/m", params={"messages": []}), "params: field `messages`"),
        (api.Create(model="fake/m", params={"a": nested(900)}), "params: nested deeper"),
        (api.Create(model="fake/" + "m" * 1000), "model: at most"),
        (api.Create(model="fake/m", workers=(WorkerRef("a"), WorkerRef("a"))), "workers"),
        (api.Create(model="fake/m", limits=Limits(cost=1)), "limits.cost"),
        (api.Create(model="fake/m", from_="0" * 16), "model: a copy takes it"),
        (api.Create(limits=Limits(steps=3), from_="0" * 16), "limits: a copy takes it"),
        (api.Create(tools=(), from_="0" * 16), "tools: a copy takes it"),
        (api.Create(model="fake/m", n=5), "n: it says where a copy ends"),
    ],
)
async def test_a_create_that_cannot_be_is_refused_by_field(
    store: Store, create: api.Create, says_: str
) -> None:
    async with bench(store, FakeProvider(), FakePool()) as b:
        with pytest.raises(errors.Invalid, match=says_):
            await b.harness.create(create)
        assert store.ids() == []


@pytest.mark.parametrize(
    ("via", "parts", "kind"),
    [
        ("", [api.Part(TEXT, b"x")], errors.Malformed),
        ("a\nb", [api.Part(TEXT, b"x")], errors.Malformed),
        ("me", [], errors.Malformed),
        ("me", [api.Part(TEXT, b"  ")], errors.Malformed),
        ("me", [api.Part("nonsense", b"x")], errors.Unsupported),
        ("me", [api.Part(TEXT, b"x" * (8 << 20)), api.Part(TEXT, b"x")], errors.TooLarge),
    ],
)
async def test_a_post_that_cannot_be_is_refused(
    store: Store, via: str, parts: list[api.Part], kind: type[errors.HarnessError]
) -> None:
    async with bench(store, FakeProvider(), FakePool()) as b:
        id = await b.session("")
        with pytest.raises(kind):
            await b.harness.post(id, via, parts)
        assert await b.bodies(id, "message") == []


async def test_an_unknown_session_is_not_found_everywhere(store: Store) -> None:
    async with bench(store, FakeProvider(), FakePool()) as b:
        for attempt in (b.harness.info, b.harness.log, b.harness.retry):
            with pytest.raises(errors.NotFound):
                await attempt("f" * 16)
        with pytest.raises(errors.NotFound):
            await b.post("f" * 16, "x")


async def test_the_list_is_newest_first_and_pages(store: Store) -> None:
    async with bench(store, FakeProvider(says(text("ok"))), FakePool()) as b:
        ids = [await b.session("") for _ in range(3)]
        await b.post(ids[0], "hi")
        await b.rest(ids[0])
        assert [info.id for info in await b.harness.list()] == [ids[0], ids[2], ids[1]]
        assert [info.id for info in await b.harness.list(limit=1, after=ids[0])] == [ids[2]]
        with pytest.raises(errors.Malformed, match="after"):
            await b.harness.list(after="f" * 16)


async def test_a_damaged_session_is_listed_read_and_not_written(store: Store, tmp_path: Path) -> None:
    async with bench(store, FakeProvider(says(text("ok"))), FakePool()) as b:
        id = await b.session("hi")
        await b.rest(id)
    path = tmp_path / "sessions" / f"{id}.state"
    data = bytearray(path.read_bytes())
    data[data.index(b"hi\n")] ^= 1
    path.write_bytes(data)
    again = Store(tmp_path)
    async with bench(again, FakeProvider(), FakePool()) as b:
        (info,) = await b.harness.list()
        assert (info.status, info.n) == ("damaged", 3)
        assert "record 4" in info.damage
        with pytest.raises(errors.Conflict, match="damaged at record 4"):
            await b.post(id, "more")
        copy = await b.harness.create(api.Create(from_=id, n=4))
        assert await b.kinds(copy) == ["start", "config", "system"]
    await again.close()


async def test_a_failure_inside_the_harness_fails_the_session_and_not_the_daemon(store: Store) -> None:
    class Broken(FakeProvider):
        def compile(self, query, wire):  # type: ignore[no-untyped-def]
            raise KeyError("bug")

    async with bench(store, Broken(), FakePool()) as b:
        id = await b.session()
        assert await b.rest(id) == "failed"
        assert "inside the harness (KeyError)" in (await b.bodies(id, "error"))[0]


async def test_more_sessions_than_are_kept_in_memory_stay_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.harness.sessions.KEPT", 2)
    provider = FakeProvider(*(says(text("ok")) for _ in range(12)))
    async with bench(store, provider, FakePool()) as b:
        ids = [await b.session("one") for _ in range(6)]
        for id in ids:
            await b.rest(id)
        for id in ids:
            await b.post(id, "two")
            assert await b.rest(id) == "closed"
        assert len(b.harness._sessions._loaded) <= 3


async def test_a_session_that_is_loaded_while_all_others_work_is_not_loaded_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.harness.sessions.KEPT", 1)
    gate = asyncio.Event()
    provider = FakeProvider(*([gate, *says(text("ok"))] for _ in range(2)))
    async with bench(store, provider, FakePool()) as b:
        ids = [await b.session("one") for _ in range(2)]
        assert [(await b.harness.info(id)).status for id in ids] == ["stepping", "stepping"]
        await b.harness.stop(ids[1], "me")
        gate.set()
        assert [await b.rest(id) for id in ids] == ["closed", "failed"]


async def test_a_session_stays_in_memory_while_a_change_goes_from_one_client_to_the_next(
    store: Store,
) -> None:
    async with bench(store, FakeProvider(), FakePool()) as b, asyncio.TaskGroup() as group:
        id = await b.session("")
        session = await b.harness._sessions.get(id)
        async with session.posting:
            change = group.create_task(b.harness.patch_config(id, "me", api.ConfigPatch(context=500)))
            await asyncio.sleep(0)
        seen = [session.busy]
        await change
        assert [*seen, session.busy] == [True, False]
