"""A session's workers over the whole way: dropped while a call runs, taken back, and what the next run is told."""

from collections.abc import Iterator

import pytest

from daemon.harness.environments import DROPPED
from daemon.protocol.records import WorkerRef
from tests.e2e.driving import VIA, Stage, becomes, driver, judge, processes, stage, token


@pytest.fixture
def here() -> Iterator[Stage]:
    with stage() as made:
        yield made


async def test_a_worker_dropped_while_it_runs_ends_what_runs_and_tells_the_next_run_why(here: Stage) -> None:
    mark = token()
    async with driver(here) as on:
        await here.mock.config(calls=1, code=f"X=kept; echo on; sleep {mark}")
        session = await on.session()
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
        await here.mock.config(code="echo X=$X >> ran; echo X=$X")
        await on.client.set_workers(session, (), VIA)
        found = await on.closes(session)
        judge(found)
        first = next(record for record in found if record.kind == "result")
        assert "stopped on request" in first.text()
        await becomes(lambda: not processes(mark), "what ran has ended")
        assert here.ran() == []

        await on.client.set_workers(session, (WorkerRef("local", str(here.folder)),), VIA)
        await on.post(session, "Again.")
        found = await on.closes(session)
        judge(found)
        last = [record for record in found if record.kind == "result"][-1]
        assert last.text().startswith(f"[environment was reset: {DROPPED};")
        assert here.ran() == ["X="]
