"""A worker that is cordoned over the whole way: its runs go on, nothing new begins, and restarts change neither."""

from collections.abc import Iterator

import pytest

from daemon.protocol import api
from tests.e2e.driving import Driver, Stage, becomes, driver, judge, stage


@pytest.fixture
def here() -> Iterator[Stage]:
    with stage() as made:
        yield made


async def cordoned(on: Driver) -> api.WorkerInfo:
    (info,) = await on.client.workers()
    return info


async def test_a_run_outlives_a_cordon_and_a_killed_daemon_and_nothing_new_begins(here: Stage) -> None:
    async with driver(here) as on:
        await here.mock.config(
            calls=1, code="echo on; echo begun >> ran; until [ -e go ]; do sleep 0.02; done; exit 3"
        )
        first = await on.session()
        async with on.outputs(first) as printed:
            await on.post(first, f"[[conv:{first}]] Go.")
            await printed
        await on.client.cordon("local")
        assert (await cordoned(on)).cordoned
        here.daemon.kill()
        await here.daemon.start()
        assert (await cordoned(on)).cordoned
        (here.folder / "go").touch()
        found = await on.closes(first)
        judge(found)
        (said,) = [record for record in found if record.kind == "result"]
        assert (said.header.exit, said.header.failed) == (3, False)

        await here.mock.config(calls=1, code="echo new >> ran")
        second = await on.session("Go.")
        found = await on.closes(second)
        judge(found)
        (said,) = [record for record in found if record.kind == "result"]
        assert said.header.failed
        assert "cordoned by the operator" in said.text()
        assert here.ran() == ["begun"]

        await on.client.uncordon("local")
        await on.post(second, "Again.")
        await on.closes(second)
        await becomes(lambda: here.ran() == ["begun", "new"], "the new call ran")
