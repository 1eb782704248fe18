"""Sessions that are reconfigured, ended, copied and watched."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from daemon.harness import errors
from daemon.pool import Output
from daemon.protocol import api
from daemon.protocol.records import TEXT, Limits, Record, WorkerRef, draft, json_draft
from daemon.provider.base import ProviderError
from daemon.provider.patch import merge
from daemon.statefile.errors import NoSpaceError
from daemon.statefile.store import Store
from tests.daemon.harness.doubles import (
    Bench,
    Clock,
    FakePool,
    FakeProvider,
    bench,
    run,
    says,
    text,
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path, clock=Clock())
    yield store
    await store.close()


def patch(**fields: Any) -> api.ConfigPatch:
    return msgspec.convert(fields, api.ConfigPatch)


async def test_a_config_patch_merges_and_takes_defaults_for_null(store: Store) -> None:
    async with bench(store, FakeProvider(), FakePool()) as b:
        id = await b.session("", params={"a": 1, "b": {"c": 2, "d": 3}}, context=500)
        await b.harness.patch_config(id, "me", patch(params={"a": None, "b": {"c": 9}}, limits={"steps": 4}))
        config = (await b.harness.info(id)).config
        assert (config.params, config.limits, config.context) == (
            {"a": None, "b": {"c": 9, "d": 3}},
            Limits(steps=4),
            500,
        )
        await b.harness.patch_config(id, "me", patch(limits={"tokens": 9}))
        assert (await b.harness.info(id)).config.limits == Limits(steps=4, tokens=9)
        await b.harness.patch_config(id, "me", patch(limits={"steps": None}))
        assert (await b.harness.info(id)).config.limits == Limits(tokens=9)
        n = await b.harness.patch_config(id, "me", patch(params=None, context=None, limits=None, model=None))
        config = (await b.harness.info(id)).config
        assert (config.params, config.limits, config.context, config.model) == ({}, Limits(), 0, "fake/m")
        assert n == (await b.harness.info(id)).n


async def test_input_that_an_earlier_release_left_empty_follows_the_model_once_it_is_set_to_null(
    store: Store,
) -> None:
    async with bench(store, FakeProvider(), FakePool()) as b:
        id = await b.session("")
        session = await b.harness._sessions.get(id)
        await session.append(json_draft("config", structs.replace(session.config, input=(), derived=())))
        seen = []
        for change in (patch(context=500), patch(input=None)):
            await b.harness.patch_config(id, "me", change)
            seen.append((await b.harness.info(id)).config.input)
        assert seen == [(), (TEXT, "image/png")]


async def test_a_null_in_params_is_kept_and_takes_the_field_out_of_the_request(store: Store) -> None:
    provider = FakeProvider(says(text("one")), says(text("two")))
    async with bench(store, provider, FakePool()) as b:
        id = await b.session("hi", params={"heat": 1})
        assert await b.rest(id) == "closed"
        await b.harness.patch_config(
            id, "me", patch(params={"heat": None, "include": None, "x": {"y": None}})
        )
        await b.post(id, "more")
        assert await b.rest(id) == "closed"
        kept = {"heat": None, "include": None, "x": {"y": None}}
        assert [query.params for query in provider.queries] == [{"heat": 1}, kept]
        own = {"heat": 2, "include": ["a"], "x": {"y": 1, "z": 2}, "else": 3}
        assert merge(own, provider.queries[1].params) == {"x": {"z": 2}, "else": 3}
        with pytest.raises(errors.Invalid, match="messages"):
            await b.harness.patch_config(id, "me", patch(params={"messages": None}))


async def test_a_config_that_could_not_be_stepped_is_refused(store: Store) -> None:
    async with bench(store, FakeProvider(), FakePool()) as b:
        id = await b.session("")
        deep: dict[str, Any] = {}
        for _ in range(900):
            deep = {"x": deep}
        for bad in (
            patch(model="no/m"),
            patch(params={"messages": []}),
            patch(limits={"cost": 1}),
            patch(params=deep),
        ):
            with pytest.raises(errors.Invalid):
                await b.harness.patch_config(id, "me", bad)
        assert (await b.kinds(id)).count("config") == 1


async def test_what_nobody_named_follows_the_model(store: Store) -> None:
    async with bench(store, FakeProvider(says(text("1")), says(text("2"))), FakePool("w")) as b:

        async def has(id: str) -> tuple[object, tuple[str, ...]]:
            config = (await b.harness.info(id)).config
            return config.tools, config.input

        images = ("text/plain; charset=utf-8", "image/png")
        id = await b.harness.create(api.Create(model="fake/gpt-5", workers=(WorkerRef("w"),)))
        assert await has(id) == ("patch", images[:1])
        await b.post(id, "hi")
        await b.rest(id)
        await b.harness.patch_config(id, "me", patch(model="fake/m"))
        assert await has(id) == ("default", images)
        await b.post(id, "and now?")
        await b.rest(id)
        assert [[tool.name for tool in query.tools] for query in b.provider.queries] == [
            ["run", "read", "patch"],
            ["run", "read", "write", "edit"],
        ]
        named = await b.session("", tools="default", input=["image/png"])
        await b.harness.patch_config(named, "me", patch(model="fake/gpt-5"))
        assert await has(named) == ("default", ("image/png",))
        await b.harness.patch_config(named, "me", patch(tools=None))
        assert await has(named) == ("patch", ("image/png",))
        await b.harness.patch_config(named, "me", patch(tools=["run"], input=[]))
        assert await has(named) == (("run",), images[:1])
        await b.harness.patch_config(named, "me", patch(model=None))
        assert await has(named) == (("run",), images)


async def test_another_change_leaves_what_the_model_decided_once(store: Store) -> None:
    async with bench(store, FakeProvider(), FakePool()) as b:
        id = await b.session("")
        session = await b.harness._sessions.get(id)
        config = structs.replace(session.config, tools="patch")  # as an earlier release decided
        await session.append(json_draft("config", config))
        await b.harness.patch_config(id, "me", patch(context=7))
        assert (await b.harness.info(id)).config == structs.replace(config, context=7)


@pytest.mark.parametrize("bad", ["banana", "image/*", "", "image/"])
async def test_input_that_is_no_media_type_is_refused(store: Store, bad: str) -> None:
    async with bench(store, FakeProvider(), FakePool()) as b:
        with pytest.raises(errors.Invalid, match=r"input\[1\]: .* is no media type"):
            await b.session("", input=("image/png", bad))
        id = await b.session("")
        with pytest.raises(errors.Invalid, match=r"input\[0\]"):
            await b.harness.patch_config(id, "me", patch(input=[bad]))
        with pytest.raises(errors.Invalid, match="tools: there is no tool 'x'"):
            await b.harness.patch_config(id, "me", patch(tools=["x"]))


async def test_a_dropped_worker_has_its_environments_ended(store: Store) -> None:
    pool, killed = FakePool("w", "v"), asyncio.Event()
    pool.on_kill = killed.set
    async with bench(store, FakeProvider(), pool) as b:
        id = await b.session("", workers=(WorkerRef("w"), WorkerRef("v")))
        await b.harness.set_workers(id, "me", (WorkerRef("v"),))
        await killed.wait()
        assert pool.killed == ["w"]
        assert (await b.harness.info(id)).config.workers == (WorkerRef("v"),)
        with pytest.raises(errors.Invalid, match="workers"):
            await b.harness.set_workers(id, "me", (WorkerRef("v"), WorkerRef("v")))


async def test_an_ended_session_takes_nothing_more_and_a_copy_goes_on(store: Store) -> None:
    async with bench(store, FakeProvider(says(text("1")), says(text("2"))), FakePool("w")) as b:
        id = await b.session()
        await b.rest(id)
        await b.harness.end(id, "me")
        assert (await b.harness.info(id)).status == "ended"
        for attempt in (b.post(id, "more"), b.harness.retry(id), b.harness.end(id, "me")):
            with pytest.raises(errors.Ended, match="has ended"):
                await attempt
        copy = await b.harness.create(api.Create(from_=id))
        info = await b.harness.info(copy)
        assert info.from_ is not None
        assert (info.status, info.from_.session, info.from_.n) == ("closed", id, info.n + 1)
        await b.post(copy, "go on")
        assert await b.rest(copy) == "closed"


async def test_ending_a_stepping_session_stops_it_first(store: Store) -> None:
    provider = FakeProvider([asyncio.Event()])
    async with bench(store, provider, FakePool()) as b:
        id = await b.session()
        await provider.asked.wait()
        await b.harness.end(id, "me")
        assert (await b.kinds(id))[-2:] == ["error", "end"]
        assert await b.rest(id) == "ended"


async def test_a_copy_point_inside_a_call_is_refused_with_the_nearest_that_would_do(store: Store) -> None:
    provider = FakeProvider(says(run("c", "x"), end="calls"), says(text("ok")))
    async with bench(store, provider, FakePool("w")) as b:
        id = await b.session()
        await b.rest(id)
        kinds = await b.kinds(id)
        with pytest.raises(errors.Invalid, match="nearest n"):
            await b.harness.create(api.Create(from_=id, n=kinds.index("result") + 1))
        with pytest.raises(errors.NotFound):
            await b.harness.create(api.Create(from_="f" * 16))


async def test_a_copy_does_not_inherit_the_keys_of_posts(store: Store) -> None:
    async with bench(store, FakeProvider(says(text("1")), says(text("2"))), FakePool()) as b:
        id = await b.session("")
        n = await b.post(id, "hi", "k")
        await b.rest(id)
        copy = await b.harness.create(api.Create(from_=id))
        assert await b.post(copy, "hi", "k") > n
        await b.rest(copy)


async def test_a_reader_of_changes_is_told_each_session_once_until_it_looks(store: Store) -> None:
    async with bench(store, FakeProvider(says(text("1"))), FakePool()) as b:
        id, other = await b.session(""), await b.session("")
        with b.harness.changes() as changed:
            await b.post(id, "hi")
            await b.rest(id)
            b.harness.workers_changed()
            await b.harness.patch_config(other, "me", patch(context=7))
            assert [await changed.get() for _ in range(3)] == [id, "", other]


async def test_a_copy_of_a_copy_keeps_the_first_session_s_line_so_that_its_bytes_stay(store: Store) -> None:
    provider = FakeProvider(says(text("1")), says(text("2")), says(text("3")))
    async with bench(store, provider, FakePool()) as b:
        id = await b.session("hi")
        await b.rest(id)
        copy = await b.harness.create(api.Create(from_=await b.harness.create(api.Create(from_=id))))
        for one in (id, copy):
            await b.post(one, "go on")
            await b.rest(one)
        systems = {query.context.system for query in provider.queries}
        assert len(systems) == 1
        assert id in systems.pop()


@pytest.mark.parametrize("changed", [False, True])
async def test_an_open_copy_waits_for_a_post_or_a_retry_also_over_a_restart(
    store: Store, changed: bool
) -> None:
    async with bench(store, FakeProvider(says(text("1"))), FakePool()) as b:
        id = await b.session("hi")
        await b.rest(id)
        copy = await b.harness.create(api.Create(from_=id, n=(await b.kinds(id)).index("message") + 2))
        assert (await b.harness.info(copy)).status == "open"
        if changed:
            await b.harness.patch_config(copy, "me", patch(context=5000))
            await b.harness.set_workers(copy, "me", (WorkerRef("other"),))
    provider = FakeProvider(says(text("2")))
    async with bench(store, provider, FakePool()) as b:
        assert await b.rest(copy) == "open"
        await b.harness.retry(copy)
        assert await b.rest(copy) == "closed"
        assert await b.bodies(copy, "text") == ["2"]


async def test_a_call_for_a_cordoned_worker_is_told_that_nothing_was_done_and_no_other_is_taken(
    store: Store,
) -> None:
    pool = FakePool("w", "other")
    pool.cordons = {"w"}
    provider = FakeProvider(says(run("c", "x"), end="calls"), says(text("ok")))
    async with bench(store, provider, pool) as b:
        id = await b.session(workers=(WorkerRef("w"), WorkerRef("other")))
        assert await b.rest(id) == "closed"
        assert [worker for worker, *_ in pool.ran] == ["w"]
        (said,) = await b.bodies(id, "result")
        assert "cordoned by the operator" in said
        assert "nothing was done" in said
        assert "cordoned by the operator: takes no calls now" in (await b.bodies(id, "system"))[-1]


async def test_changes_at_once_to_a_session_found_at_a_start_all_hold(tmp_path: Path) -> None:
    id = await _left(tmp_path, says(text("done")))
    async with _found(tmp_path) as b, asyncio.TaskGroup() as group:
        changes = [
            group.create_task(change)
            for change in (
                b.harness.patch_config(id, "me", patch(limits={"tokens": 777})),
                b.harness.patch_config(id, "me", patch(context=5555)),
                b.harness.set_workers(id, "me", (WorkerRef("other"),)),
                b.harness.patch_config(id, "me", patch(limits={"steps": 7})),
            )
        ]
        await asyncio.wait(changes)
        assert len({change.result() for change in changes}) == 4
        config = (await b.harness.info(id)).config
        assert (config.limits, config.context) == (Limits(tokens=777, steps=7), 5555)
        assert config.workers == (WorkerRef("other"),)


async def test_nothing_comes_after_the_end_of_a_session_found_at_a_start(tmp_path: Path) -> None:
    id = await _left(tmp_path, [ProviderError("overloaded")])
    async with _found(tmp_path, says(run("c1", "touch this"))) as b, asyncio.TaskGroup() as group:
        ending = group.create_task(b.harness.end(id, "me"))
        for change in (
            b.harness.retry(id),
            b.harness.patch_config(id, "me", patch(context=5555)),
            b.post(id, "more"),
        ):
            group.create_task(_refused(change))
        await ending
        assert await b.rest(id) == "ended"
        assert (await b.kinds(id))[-1] == "end"
        assert (b.provider.queries, b.pool.ran) == ([], [])


async def test_a_session_that_could_not_end_goes_on(tmp_path: Path) -> None:
    id = await _left(tmp_path, says(text("done")))
    async with _found(tmp_path, says(text("again"))) as b:
        await (
            b.harness.census.complete.wait()
        )  # its list of sessions would find a file that memory knows otherwise
        session = await b.harness._sessions.get(id)
        append, began, go = session.log.append, asyncio.Event(), asyncio.Event()

        async def full(*drafts: Record, durable: bool = True) -> list[Record]:
            if drafts[0].kind != "end":
                return await append(*drafts, durable=durable)
            began.set()
            await go.wait()
            raise NoSpaceError("no space left")

        session.log.append = full  # type: ignore[method-assign]
        await append(draft("message", "more", via="me"))  # what a start finds open, it kicks
        session.chain.add((await session.log.read())[-1])
        async with asyncio.TaskGroup() as group:
            group.create_task(_refused(b.harness.end(id, "me"), errors.NoSpace))
            await began.wait()
            b.harness._runner.kick(session)
            assert not session.stepping
            go.set()
        assert await b.rest(id) == "closed"
        assert (await b.bodies(id, "text"))[-1] == "again"


async def test_a_stop_that_comes_during_an_end_writes_nothing_after_it(store: Store) -> None:
    provider = FakeProvider([asyncio.Event(), *says(text("never"))])
    async with bench(store, provider, FakePool("w")) as b:
        id = await b.session()
        await provider.asked.wait()
        await b.post(id, "more")  # to be looked at when this pass is over
        session = await b.harness._sessions.get(id)
        append = session.log.append

        async def stopped_again(*drafts: Record, durable: bool = True) -> list[Record]:
            if drafts[0].kind == "end":
                await _refused(b.harness.stop(id, "another"), errors.Conflict)
            return await append(*drafts, durable=durable)

        session.log.append = stopped_again  # type: ignore[method-assign]
        await b.harness.end(id, "me")
        assert await b.rest(id) == "ended"
        assert (await b.kinds(id))[-2:] == ["error", "end"]


@pytest.mark.parametrize("how", ["stop", "end", "wait"])
async def test_where_a_full_disk_takes_no_result_the_other_calls_go_on_until_they_end_or_are_stopped(
    store: Store, how: str
) -> None:
    full, over = asyncio.Event(), asyncio.Event()

    async def slow() -> Output:
        await over.wait()
        return Output(b"slow")

    pool = FakePool("w")
    pool.does = {"slow": slow}
    pool.on_interrupt = lambda call: over.set()
    provider = FakeProvider(says(run("c1", "quick"), run("c2", "slow")), says(text("done")))
    async with bench(store, provider, pool) as b:
        id = await b.session("")
        session = await b.harness._sessions.get(id)
        append = session.log.append

        async def no_room(*drafts: Record, durable: bool = True) -> list[Record]:
            if drafts[0].kind == "result" and not full.is_set():
                full.set()
                raise NoSpaceError("no space left")
            return await append(*drafts, durable=durable)

        session.log.append = no_room  # type: ignore[method-assign]
        await b.post(id, "hi")
        await full.wait()
        if how == "wait":
            over.set()
            assert await b.rest(id) == "failed"
            assert (await b.kinds(id))[-2:] == ["result", "error"]
            pool.journal[id, "c1"] = Output(b"quick")
            await b.harness.retry(id)
            assert await b.rest(id) == "closed"
            return
        await (b.harness.stop(id, "me") if how == "stop" else b.harness.end(id, "me"))
        assert (pool.interrupted, session.calls) == (["c2"], {})
        last = ["result", "result", "error"] + (["end"] if how == "end" else [])
        assert (await b.kinds(id))[-len(last) :] == last
        assert sum("its result could not be recorded" in said for said in await b.bodies(id, "result")) == 1


async def _refused(change: Awaitable[Any], why: type[Exception] = errors.Ended) -> None:
    with pytest.raises(why):
        await change


async def _left(folder: Path, *answers: Any) -> str:
    """A session that was stepped to its rest by a daemon that is gone."""
    store = Store(folder, clock=Clock())
    async with bench(store, FakeProvider(*answers), FakePool()) as b:
        id = await b.session()
        await b.rest(id)
    await store.close()
    return id


@asynccontextmanager
async def _found(folder: Path, *answers: Any) -> AsyncIterator[Bench]:
    """The next daemon: it looks at a file, in a thread, before it writes to it."""
    store = Store(folder, clock=Clock())
    async with bench(store, FakeProvider(*answers), FakePool("w", "other")) as b:
        yield b
    await store.close()
