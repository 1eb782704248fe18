"""Workers that take nothing new: the file that says which, and what becomes of calls."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from daemon.cordons import Cordons
from daemon.harness.calls import Calls
from daemon.harness.environments import Environments
from daemon.ownfile import OwnFileError
from daemon.pool import Cordoned, Pool, WorkerGone
from daemon.protocol import frames
from daemon.protocol.records import CallBody, Config, WorkerRef, json_draft
from tests.fakes import FakeClock, FakeWorker, Tasks


async def test_a_cordon_is_kept_over_restarts_and_again_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "cordons.toml"
    cordons = await asyncio.to_thread(Cordons, path)
    assert [await cordons.put("gpu", True), await cordons.put("gpu", True)] == [True, False]
    await cordons.put("a", True)
    assert path.stat().st_mode & 0o777 == 0o600
    again = await asyncio.to_thread(Cordons, path)
    assert list(again) == ["a", "gpu"]
    assert [await again.put("gpu", False), await again.put("gpu", False)] == [True, False]
    assert list(await asyncio.to_thread(Cordons, path)) == ["a"]


@pytest.mark.parametrize("text", ["workers = 3", "workers = ['']", "other = 1", "not toml"])
def test_a_file_that_does_not_read_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cordons.toml"
    path.write_text(text)
    with pytest.raises(OwnFileError, match=r"cordons\.toml"):
        Cordons(path)


async def test_a_cordon_that_cannot_be_written_does_not_hold(tmp_path: Path) -> None:
    cordons = await asyncio.to_thread(Cordons, tmp_path / "none" / "cordons.toml")
    with pytest.raises(OwnFileError):
        await cordons.put("gpu", True)
    assert "gpu" not in cordons


class Bench:
    """A pool that has one worker, here and obedient."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self.clock = FakeClock()
        self.cordons = Cordons()
        self.changes = 0
        self.pool = self.new_pool()
        self.worker = FakeWorker(self.pool, self.tasks, self.clock)

    def new_pool(self) -> Pool:
        return Pool(release="1", grace=60.0, clock=self.clock, cordons=self.cordons, on_change=self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def dial(self) -> None:
        await self.worker.dial()
        await self.worker.settled()

    def run(self, call: str, age: float | None = None) -> "asyncio.Task[object]":
        return self.tasks.start(self.pool.run("gpu", "s", call, "true", age=age))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.tasks.close()
    if bench.worker.served is not None:
        bench.worker.end.writer.close()


async def test_a_cordoned_worker_is_sent_nothing_new_and_each_kind_of_call_says_so(bench: Bench) -> None:
    await bench.dial()
    await bench.pool.cordon("gpu", True)
    for call in (
        bench.pool.run("gpu", "s", "c", "true"),
        bench.pool.read("gpu", "f"),
        bench.pool.write("gpu", "f", b"x", session="s", call="w"),
    ):
        with pytest.raises(Cordoned, match=r"'gpu' is cordoned by the operator.*nothing was done"):
            await call
    await bench.worker.settled()  # its answer is the next frame: nothing came before
    await bench.pool.cordon("gpu", False)
    bench.run("c")
    assert (await bench.worker.take(frames.Run)).call == "c"


async def test_what_runs_goes_on_and_its_result_is_taken_also_after_a_cut(bench: Bench) -> None:
    await bench.dial()
    task = bench.run("c")
    await bench.worker.take(frames.Run)
    await bench.pool.cordon("gpu", True)
    await bench.worker.cut()
    await bench.worker.dial()
    attach = await bench.worker.take(frames.Attach)
    bench.worker.send(frames.Result(id=attach.id, exit=0), b"done")
    assert getattr(await task, "text", None) == b"done"


async def test_a_call_that_waits_for_its_worker_is_told_as_soon_as_that_is_cordoned(bench: Bench) -> None:
    await bench.dial()
    await bench.worker.cut()
    waiting = bench.run("c")
    await asyncio.sleep(0)  # it begins to wait
    assert bench.clock.planned == 1
    await bench.pool.cordon("gpu", True)
    with pytest.raises(Cordoned):
        await waiting
    assert bench.clock.planned == 0


async def test_a_call_of_an_earlier_daemon_is_attached_to_and_not_begun_on_a_cordoned_worker(
    bench: Bench,
) -> None:
    await bench.pool.cordon("gpu", True)
    bench.worker.known.add(("s", "begun"))
    begun, fresh = bench.run("begun", age=5.0), bench.run("fresh", age=5.0)
    await bench.worker.dial()
    bench.worker.obey()
    with pytest.raises(Cordoned):
        await fresh
    bench.worker.finish(("s", "begun"), b"done")
    assert getattr(await begun, "text", None) == b"done"
    assert not bench.worker.ran


async def test_the_later_parts_of_a_call_are_carried_out_on_a_cordoned_worker(bench: Bench) -> None:
    await bench.dial()
    await bench.pool.cordon("gpu", True)
    write = bench.tasks.start(bench.pool.write("gpu", "f", b"x", begun=True))
    frame = await bench.worker.take(frames.Write)
    bench.worker.send(frames.Done(id=frame.id, size=1))
    assert await write == 1


async def test_the_list_shows_a_cordon_also_of_a_worker_that_has_not_dialed(bench: Bench) -> None:
    await bench.pool.cordon("gpu", True)
    changes = bench.changes
    (info,) = bench.pool.list()
    assert (info.state, info.cordoned, info.reason) == ("gone", True, "it has not dialed")
    await bench.pool.cordon("gpu", True)
    assert bench.changes == changes == 1
    await bench.pool.cordon("gpu", False)
    assert bench.pool.list() == []
    assert not bench.pool.knows("gpu")


async def test_a_worker_that_does_not_come_back_is_gone_though_it_is_cordoned(bench: Bench) -> None:
    await bench.dial()
    task = bench.run("c")
    await bench.worker.take(frames.Run)
    await bench.pool.cordon("gpu", True)
    await bench.worker.cut()
    bench.clock.advance(61)
    with pytest.raises(WorkerGone, match="effect unknown"):
        await task


async def test_an_edit_that_has_begun_is_finished_on_a_cordoned_worker(bench: Bench) -> None:
    await bench.dial()
    body = CallBody("edit", '{"worker": "gpu", "path": "f", "old": "a", "new": "b"}')
    call = json_draft("call", body, id="c")
    async with asyncio.TaskGroup() as group:
        kept = Environments(bench.pool, group, lambda: datetime(2030, 1, 1, tzinfo=UTC), None)
        calls = Calls(bench.pool, kept)
        config = Config("m", workers=(WorkerRef("gpu"),))
        task = bench.tasks.start(calls.perform("s", config, call))
        read = await bench.worker.take(frames.Read)
        await bench.pool.cordon("gpu", True)
        bench.worker.send(frames.Bytes(id=read.id, size=1, last=True), b"a")
        write = await bench.worker.take(frames.Write)
        assert bench.worker.body == b"b"
        bench.worker.send(frames.Done(id=write.id, size=1))
        assert (await task).text() == "Edited f, line 1."
        assert "cordoned" in (await calls.perform("s", config, json_draft("call", body, id="d"))).text()
