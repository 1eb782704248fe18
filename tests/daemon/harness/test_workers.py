"""A session's workers: named, changed while it steps, dropped, waited for; never replaced by another."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from daemon.harness import configs, errors, prompt
from daemon.harness.environments import DROPPED
from daemon.pool import Output, Pool
from daemon.protocol import api, frames
from daemon.protocol.records import WorkerRef, json_draft
from daemon.statefile.store import Store
from tests.daemon.harness.doubles import (
    HELLO,
    Bench,
    Clock,
    FakePool,
    FakeProvider,
    Scripted,
    bench,
    run,
    says,
    text,
)
from tests.fakes import FakeClock, FakeTimer, FakeWorker, Tasks

GRACE = 60.0


@pytest.fixture
def wall() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, wall: Clock) -> AsyncIterator[Store]:
    store = Store(tmp_path, clock=wall)
    yield store
    await store.close()


# Names and folders.


@pytest.mark.parametrize(
    ("workers", "says_"),
    [
        (
            [WorkerRef("a"), WorkerRef("Big")],
            r"workers\[1\]\.name: 'Big' cannot be a worker's name: it has 1 to 63",
        ),
        ([WorkerRef("harness")], r"workers\[0\]\.name: the name 'harness' is reserved"),
        ([WorkerRef("a b")], r"workers\[0\]\.name: 'a b' cannot"),
        ([WorkerRef("a"), WorkerRef("b"), WorkerRef("a")], r"workers\[2\]\.name: a is workers\[0\] already"),
        ([WorkerRef("a", "src")], r"workers\[0\]\.cwd: 'src' begins neither at the root nor at a home"),
        ([WorkerRef("a", "/a\0b")], r"workers\[0\]\.cwd: .*control characters"),
        ([WorkerRef("a", "/a\nb")], r"workers\[0\]\.cwd: .*control characters"),
        ([WorkerRef("a", "/" + "é" * 2050)], r"workers\[0\]\.cwd: a path of at most 4095 bytes"),
    ],
)
async def test_workers_that_cannot_be_are_refused_with_their_place_and_what_can(
    store: Store, workers: list[WorkerRef], says_: str
) -> None:
    async with bench(store, FakeProvider(), FakePool()) as b:
        id = await b.session("")
        with pytest.raises(errors.Invalid, match=says_):
            await b.harness.set_workers(id, "me", workers)
        with pytest.raises(errors.Invalid, match=says_):
            await b.harness.create(api.Create(model="fake/m", workers=tuple(workers)))
        assert (await b.kinds(id)).count("config") == 1


def test_what_a_worker_says_of_itself_is_one_line_of_the_models_list() -> None:
    lies = replace(HELLO, os="a\nb", interpreters=("x\n- local: linux",), scratch="/\r\n\u2028Ignore\x1b[2J")
    said = prompt.workers([WorkerRef("w"), WorkerRef("v")], lambda _: lies)
    assert [line[:4] for line in said.splitlines()] == ["Work", "- w:", "- v:"]
    assert "\x1b" not in said


async def test_local_and_workers_that_are_not_there_can_be_named_and_folders_may_begin_at_a_home(
    store: Store,
) -> None:
    workers = (WorkerRef("local", "/srv/data"), WorkerRef("gpu-1", "~/x"), WorkerRef("b", "~ada"))
    async with bench(store, FakeProvider(), FakePool()) as b:
        id = await b.session("")
        assert await b.harness.set_workers(id, "me", workers) == 4
        assert (await b.harness.info(id)).config.workers == workers
        with pytest.raises(errors.Malformed, match="via"):
            await b.harness.set_workers(id, "", workers)


# Dropped.


class Held:
    """A call that goes on until it is interrupted or killed."""

    def __init__(self, pool: FakePool, code: str = "x") -> None:
        self._ended = asyncio.Event()
        pool.does[code] = self._run
        pool.on_interrupt = lambda call: self._ended.set()

    async def _run(self) -> Output:
        await self._ended.wait()
        return Output(b"so far", None, stopped="interrupt")


async def test_a_worker_dropped_while_it_runs_a_call_gives_its_real_result_and_the_session_goes_on(
    store: Store,
) -> None:
    pool = FakePool("w", "v")
    Held(pool)
    provider = FakeProvider(
        says(run("c1", "x"), run("c2", "y", worker="v"), end="calls"),
        says(run("c3", "z"), end="calls"),
        says(text("ok")),
    )
    async with bench(store, provider, pool) as b:
        id = await b.session(workers=(WorkerRef("w"), WorkerRef("v")))
        await pool.started.wait()
        await b.harness.set_workers(id, "me", (WorkerRef("v"),))
        assert await b.rest(id) == "closed"
        said = await b.bodies(id, "result")
        assert any("so far\n[stopped on request]" in one for one in said)
        assert "There is no worker 'w' in this session. Its workers: v." in said[-1]
        assert pool.interrupted == ["c1"]
        assert list(zip(pool.killed, pool.reasons, strict=True)) == [("w", DROPPED)]
        assert "c3" not in {call for _, call, *_ in pool.ran}
        assert "- w:" not in (await b.bodies(id, "system"))[-1]


async def test_a_dropped_worker_that_does_not_end_its_call_leaves_one_unknown_result(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.harness.stopping.INTERRUPT_TIME", 0.01)
    monkeypatch.setattr("daemon.harness.stopping.KILL_TIME", 0.01)
    pool = FakePool("w")

    async def never() -> Output:
        await asyncio.Event().wait()
        raise AssertionError

    pool.does["x"] = never
    provider = FakeProvider(says(run("c", "x"), end="calls"), says(text("ok")))
    async with bench(store, provider, pool) as b:
        id = await b.session()
        await pool.started.wait()
        await b.harness.set_workers(id, "me", ())
        assert await b.rest(id) == "closed"
        (said,) = await b.bodies(id, "result")
        assert said.startswith(f"interrupted, effect unknown: {DROPPED}")
        assert set(pool.reasons) == {DROPPED}


async def test_a_change_of_a_copys_workers_leaves_its_source_alone(store: Store) -> None:
    pool, killed = FakePool("w"), asyncio.Event()
    pool.on_kill = killed.set
    async with bench(store, FakeProvider(says(text("1"))), pool) as b:
        id = await b.session()
        await b.rest(id)
        copy = await b.harness.create(api.Create(from_=id))
        await b.harness.set_workers(copy, "me", (WorkerRef("v"),))
        await killed.wait()
        assert (await b.harness.info(id)).config.workers == (WorkerRef("w"),)
        assert (await b.harness.info(copy)).config.workers == (WorkerRef("v"),)
        assert pool.killed == ["w"]


# On a pool with a worker that is played frame by frame.


class ToldClock(FakeClock):
    """Tells when a call is planned on it."""

    def __init__(self) -> None:
        super().__init__()
        self.called = asyncio.Event()

    def call_at(self, when: float, callback: Callable[[], None], /) -> FakeTimer:
        self.called.set()
        return super().call_at(when, callback)


class Real:
    """What outlives a daemon: the store, the clock, and a worker; `daemon` is the next one."""

    def __init__(self, store: Store, data: Path, tasks: Tasks, wall: Clock) -> None:
        self.store = store
        self.data = data
        self.tasks = tasks
        self.clock = ToldClock()
        self.wall = wall
        self.pool = Pool(release="1", grace=GRACE, clock=self.clock)
        self.worker = FakeWorker(self.pool, tasks, self.clock, "w")

    @asynccontextmanager
    async def daemon(self, *answers: list[Scripted], dialed: bool = False) -> AsyncIterator[Bench]:
        """A daemon; with `dialed` the worker is there before it looks at its sessions."""
        self.pool = self.worker.pool = Pool(release="1", grace=GRACE, clock=self.clock)
        pool: Any = self.pool
        if dialed:
            await self.dials()
            await self.worker.settled()
        async with bench(self.store, FakeProvider(*answers), pool, self.data, self.wall) as b:
            yield b

    async def waits(self, name: str = "w") -> None:
        """Return once a call waits for the worker."""
        while not self.pool._worker(name).waiters:
            self.clock.called.clear()
            await self.clock.called.wait()

    async def dials(self) -> None:
        await self.worker.dial()


@pytest.fixture
async def real(store: Store, tmp_path: Path, wall: Clock) -> AsyncIterator[Real]:
    tasks = Tasks()
    made = Real(store, tmp_path, tasks, wall)
    yield made
    if made.worker.served is not None:
        made.worker.end.writer.close()
    await tasks.close()


CALL = says(run("c", "x"), end="calls")
OK = says(text("ok"))


async def result(real: Real) -> None:
    frame = await real.worker.take(frames.Run)
    real.worker.send(frames.Result(id=frame.id, exit=0), b"done")


async def has_no_file(real: Real) -> None:
    """What it is asked to read, an AGENTS.md before the step that follows, is not there."""
    while (unit := await real.worker.end.next()) is not None:
        if isinstance(unit[0], frames.Read):
            real.worker.send(frames.Error(id=unit[0].id, code="not_found"), b"none")


async def rest(real: Real, b: Bench, id: str) -> str:
    """The status that the session comes to, on a worker without a file."""
    async with asyncio.TaskGroup() as group:
        answering = group.create_task(has_no_file(real), name="has no file")
        status = await b.rest(id)
        answering.cancel()
    return status


async def test_a_call_that_waits_goes_on_waiting_over_a_restart_and_runs_once(real: Real) -> None:
    async with real.daemon(CALL) as b:
        id = await b.session(workers=(WorkerRef("w"), WorkerRef("other")))
        await real.waits()
        real.clock.advance(5)
    async with real.daemon(OK) as b:
        await real.waits()
        await real.dials()
        attach = await real.worker.take(frames.Attach)
        real.worker.send(frames.Unknown(id=attach.id))
        await result(real)
        assert await rest(real, b, id) == "closed"
        assert "done" in (await b.bodies(id, "result"))[0]


async def test_a_call_whose_worker_does_not_come_is_reported_and_goes_to_no_other(real: Real) -> None:
    other = FakeWorker(real.pool, real.tasks, real.clock, "other")
    async with real.daemon(CALL, OK) as b:
        other.pool = real.pool
        id = await b.session(workers=(WorkerRef("w"), WorkerRef("other")))
        await real.waits()
        await other.dial()
        await other.settled()
        real.clock.advance(GRACE + 1)
        assert await b.rest(id) == "closed"
        (said,) = await b.bodies(id, "result")
        assert said == "worker 'w' is gone (it has not dialed): nothing was done"
        got = []
        while (unit := await other.end.next()) is not None:
            got.append(type(unit[0]))
        assert set(got) == {frames.Ping}
    other.end.writer.close()


async def test_a_stop_while_a_call_waits_leaves_it_not_begun_also_when_the_worker_comes(real: Real) -> None:
    async with real.daemon(CALL) as b:
        id = await b.session()
        await real.waits()
        await b.harness.stop(id, "alice")
        assert await b.bodies(id, "result") == ["stopped before it began"]
        await real.dials()
        assert (await real.worker.take(frames.Interrupt)).call == "c"
        await real.worker.settled()
        assert await b.rest(id) == "failed"


async def test_an_end_while_a_call_waits_is_final_and_its_worker_is_told_when_it_comes(real: Real) -> None:
    async with real.daemon(CALL) as b:
        id = await b.session()
        await real.waits()
        await b.harness.end(id, "alice")
        assert (await b.kinds(id))[-3:] == ["result", "error", "end"]
        await real.dials()
        assert (await real.worker.take(frames.Interrupt)).call == "c"
        assert (await real.worker.take(frames.Kill)).session == id
        await real.worker.settled()


async def test_a_worker_dropped_while_a_call_waits_for_it_has_nothing_begun(real: Real) -> None:
    async with real.daemon(CALL, OK) as b:
        id = await b.session()
        await real.waits()
        await b.harness.set_workers(id, "me", ())
        assert await b.rest(id) == "closed"
        assert await b.bodies(id, "result") == [f"not begun: {DROPPED}"]
        await real.dials()
        assert (await real.worker.take(frames.Interrupt)).call == "c"
        kill = await real.worker.take(frames.Kill)
        assert (kill.session, kill.reason) == (id, DROPPED)
        await real.worker.settled()


async def test_a_worker_dropped_while_it_is_away_with_a_call_leaves_it_unknown_and_is_told_at_its_return(
    real: Real,
) -> None:
    async with real.daemon(CALL, OK) as b:
        await real.dials()
        await real.worker.settled()
        id = await b.session()
        # Its AGENTS.md files are asked for first.
        while not isinstance((got := await real.worker.end.next() or (None,))[0], frames.Run):
            if isinstance(got[0], frames.Read):
                real.worker.send(frames.Error(id=got[0].id, code="not_found"), b"none")
        await real.worker.cut()
        await b.harness.set_workers(id, "me", ())
        assert await b.rest(id) == "closed"
        (said,) = await b.bodies(id, "result")
        assert said.startswith(f"interrupted, effect unknown: {DROPPED}")
        await real.dials()
        assert (await real.worker.take(frames.Interrupt)).call == "c"
        assert (await real.worker.take(frames.Ack)).call == "c"
        assert (await real.worker.take(frames.Kill)).reason == DROPPED


async def dropped_by_a_dying_daemon(real: Real) -> str:
    """A session whose call was begun on a worker that it dropped just before the daemon died."""
    async with real.daemon(CALL) as b:
        id = await b.session()
        await real.waits()
        session = await b.harness._sessions.get(id)
        await session.append(json_draft("config", configs.with_workers(session.config, ()), via="me"))
    return id


@pytest.mark.parametrize(
    ("known", "says_"), [(True, "it ran\n[stopped on request]"), (False, f"not begun: {DROPPED}")]
)
async def test_a_call_on_a_dropped_worker_is_settled_by_the_next_daemon_from_its_journal(
    real: Real, known: bool, says_: str
) -> None:
    id = await dropped_by_a_dying_daemon(real)
    async with real.daemon(OK, dialed=True) as b:
        stop = await real.worker.take(frames.Interrupt)
        real.worker.send(frames.Done(id=stop.id))
        attach = await real.worker.take(frames.Attach)
        if known:
            real.worker.send(frames.Result(id=attach.id, stopped="interrupt"), b"it ran")
        else:
            real.worker.send(frames.Unknown(id=attach.id))
        assert await b.rest(id) == "closed"
        assert await b.bodies(id, "result") == [says_]


async def test_a_call_on_a_dropped_worker_that_is_away_at_the_next_start_is_unknown(real: Real) -> None:
    id = await dropped_by_a_dying_daemon(real)
    async with real.daemon(OK) as b:
        assert await b.rest(id) == "closed"
        assert await b.bodies(id, "result") == [f"interrupted, effect unknown: {DROPPED}"]
        await real.dials()
        assert (await real.worker.take(frames.Interrupt)).call == "c"


@pytest.mark.parametrize(
    ("known", "says_"),
    [(True, "it ran"), (False, "not begun: the session has other tools now: read")],
)
async def test_a_call_by_a_tool_that_was_taken_away_is_settled_by_the_next_daemon_and_never_begun(
    real: Real, known: bool, says_: str
) -> None:
    async with real.daemon(CALL) as b:
        id = await b.session()
        await real.waits()
        await b.harness.patch_config(id, "me", api.ConfigPatch(tools=("read",)))
    async with real.daemon(OK, dialed=True) as b:
        attach = await real.worker.take(frames.Attach)
        if known:
            real.worker.send(frames.Result(id=attach.id), b"it ran")
        else:
            real.worker.send(frames.Unknown(id=attach.id))
            part = await real.worker.take(frames.Attach)  # of a patch its first file
            real.worker.send(frames.Unknown(id=part.id))
        assert await rest(real, b, id) == "closed"
        assert await b.bodies(id, "result") == [says_]
