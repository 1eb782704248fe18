"""Environments that are done with: idle, dropped, or over with their session; known over restarts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from daemon.harness.environments import DROPPED, ENDED, FILE, FORGET, IDLE, IDLE_REASON, Environments
from daemon.pool import Pool
from daemon.protocol import frames
from tests.daemon.harness.doubles import Clock, FakePool
from tests.fakes import FakeClock, FakeWorker, Tasks


class Bench:
    def __init__(self, pool: FakePool, group: asyncio.TaskGroup, clock: Clock, path: Path | None) -> None:
        self.pool = pool
        self.clock = clock
        self.kept = Environments(pool, group, clock, path)  # type: ignore[arg-type]

    def passes(self, seconds: float) -> None:
        self.clock.now += timedelta(seconds=seconds)

    async def told(self) -> list[tuple[str, str]]:
        """Worker and reason of each kill so far."""
        await asyncio.sleep(0)  # they are tasks
        return list(zip(self.pool.killed, self.pool.reasons, strict=True))


@asynccontextmanager
async def bench(pool: FakePool, clock: Clock, path: Path | None = None) -> AsyncIterator[Bench]:
    async with asyncio.TaskGroup() as group:
        made = Bench(pool, group, clock, path)
        await made.kept.start()
        try:
            yield made
        finally:
            await made.kept.close()


async def test_what_is_idle_for_a_day_is_ended_once_and_says_why() -> None:
    async with bench(FakePool("w"), Clock()) as b:
        with b.kept.using("w", "s"):
            b.passes(2 * IDLE)
            b.kept.sweep()
            assert await b.told() == []  # it runs
        b.passes(IDLE - 60)
        b.kept.sweep()
        assert await b.told() == []
        b.passes(60)
        b.kept.sweep()
        b.kept.sweep()
        assert await b.told() == [("w", IDLE_REASON)]
        b.kept.sweep()
        assert len(await b.told()) == 1


async def test_a_use_begins_the_day_anew_and_each_session_has_its_own() -> None:
    async with bench(FakePool("w"), Clock()) as b:
        for session in ("a", "b"):
            with b.kept.using("w", session):
                pass
        b.passes(IDLE - 100)
        with b.kept.using("w", "a"):
            pass
        b.passes(200)
        b.kept.sweep()
        assert len(await b.told()) == 1


async def test_idle_environments_are_ended_though_the_daemon_was_restarted(tmp_path: Path) -> None:
    clock = Clock()
    async with bench(FakePool("w"), clock, tmp_path / FILE) as b:
        with b.kept.using("w", "s"):
            pass
    async with bench(FakePool("w"), clock, tmp_path / FILE) as b:
        assert await b.told() == []
        b.passes(IDLE)
        b.kept.sweep()
        assert await b.told() == [("w", IDLE_REASON)]
    async with bench(FakePool("w"), clock, tmp_path / FILE) as b:
        b.passes(IDLE)
        b.kept.sweep()
        assert await b.told() == []


async def test_a_worker_that_is_away_is_told_by_the_next_daemon_too_until_it_confirms(tmp_path: Path) -> None:
    clock = Clock()
    async with bench(FakePool(), clock, tmp_path / FILE) as b:
        b.kept.end("w", "s", ENDED)
        assert await b.told() == [("w", ENDED)]
    async with bench(FakePool(), clock, tmp_path / FILE) as b:
        assert await b.told() == [("w", ENDED)]  # the pool keeps it for the worker's next connection
        b.kept.sweep()
        assert len(await b.told()) == 1
        b.pool.here.add("w")
        b.kept.sweep()
        assert len(await b.told()) == 2
        b.kept.sweep()
        assert len(await b.told()) == 2


async def test_a_worker_that_never_comes_back_is_forgotten_after_a_month() -> None:
    async with bench(FakePool(), Clock()) as b:
        b.kept.end("w", "s", ENDED)
        assert len(await b.told()) == 1
        b.passes(FORGET)
        b.kept.sweep()
        b.pool.here.add("w")
        b.kept.sweep()
        assert len(await b.told()) == 1


async def test_what_is_used_anew_before_it_was_told_is_left_alone() -> None:
    async with bench(FakePool("w"), Clock()) as b:
        with b.kept.using("w", "s"):
            b.kept.mark("w", "s", DROPPED)
            with b.kept.using("w", "s"):
                b.kept.tell("w", "s")
                assert await b.told() == []
            b.kept.tell("w", "s")
            assert await b.told() == []


async def test_a_file_that_does_not_read_or_cannot_be_written_costs_no_call(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("w = 3")
    async with bench(FakePool("w"), Clock(), tmp_path / FILE) as b:
        with b.kept.using("w", "s"):
            pass
    async with bench(FakePool("w"), Clock(), tmp_path / "none" / FILE) as b:
        with b.kept.using("w", "s"):
            pass
        b.kept.end("w", "s", ENDED)
        assert await b.told() == [("w", ENDED)]


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    made = Tasks()
    yield made
    await made.close()


async def test_the_next_daemon_tells_a_worker_before_it_sends_anything_new(
    tasks: Tasks, tmp_path: Path
) -> None:
    clock = FakeClock()
    async with bench(FakePool(), Clock(), tmp_path / FILE) as b:
        b.kept.end("gpu", "s", DROPPED)
    pool = Pool(release="1", grace=60, clock=clock)
    worker = FakeWorker(pool, tasks, clock)
    async with asyncio.TaskGroup() as group:
        kept = Environments(pool, group, Clock(), tmp_path / FILE)
        await kept.start()
        run = tasks.start(pool.run("gpu", "s", "c", "true"))
        await asyncio.sleep(0)
        await worker.dial()
        kill = await worker.take(frames.Kill)
        assert (kill.session, kill.reason) == ("s", DROPPED)
        frame = await worker.take(frames.Run)
        worker.send(frames.Result(id=frame.id, exit=0))
        await run
        await kept.close()
    worker.end.writer.close()


async def test_a_use_is_written_down_while_the_daemon_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.harness.environments.WRITE_AFTER", 0.0)
    async with bench(FakePool("w"), Clock(), tmp_path / FILE) as b:
        with b.kept.using("w", "s"):
            assert b.kept._writer is not None
            await asyncio.wait({b.kept._writer})
            assert "[w]\ns = [" in (tmp_path / FILE).read_text()
