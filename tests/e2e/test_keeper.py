"""The local worker's keeper is killed, frozen and replaced: no result is lost that can be known, nothing runs twice."""

import asyncio
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.protocol.records import Record
from daemon.worker import launch, reaper
from tests.daemon.worker.dialing import Dial
from tests.e2e.driving import VIA, Driver, Stage, becomes, driver, judge, pause, processes, stage, token

RUNS = 8
TWO_GB = 2_000_000_000
UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"


@pytest.fixture
def here() -> Iterator[Stage]:
    with stage() as made:
        yield made


async def running(on: Driver, code: str, sessions: int = 1) -> list[str]:
    """Sessions with one call each that has printed something and goes on."""
    await on.stage.mock.config(calls=1, code=f"echo {{conv}} >> ran; echo on; {code}")
    made = [await on.session() for _ in range(sessions)]
    for session in made:
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
    return made


def result(found: list[Record]) -> Record:
    (one,) = [record for record in found if record.kind == "result"]
    return one


async def kill_keeper(here: Stage) -> int:
    """SIGKILL the keeper, and wait until it holds nothing any more."""
    pid = await here.held()
    os.kill(pid, signal.SIGKILL)
    await becomes(lambda: here.keeper() != pid, "the keeper is gone")
    return pid


async def test_a_keeper_killed_during_a_run_leaves_an_unknown_result_and_is_started_again(
    here: Stage,
) -> None:
    async with driver(here) as on:
        word = token()
        (session,) = await running(on, f"setsid sleep {word} & sleep {word}; echo late >> ran")
        killed = await kill_keeper(here)
        found = await on.closes(session)
        judge(found)
        said = result(found)
        assert said.header.failed
        assert said.header.exit is None
        assert "interrupted, effect unknown: the worker's keeper ended" in said.text()
        assert said.text().startswith("on\n"), "what it had printed is there"
        assert here.keeper() not in (0, killed)
        await becomes(lambda: processes(word) == [], "what it ran is gone with it")
        await here.mock.config(calls=1, code="echo second >> ran")
        await on.post(session, "Once more.")
        found = await on.closes(session)
        (again,) = [record for record in found if record.kind == "result"][1:]
        assert again.text().startswith("[environment was reset: ")
        assert here.ran() == [session, "second"]
        assert await here.mock.get("bad") == []


async def test_a_keeper_killed_together_with_the_daemon_leaves_an_unknown_result(here: Stage) -> None:
    async with driver(here) as on:
        word = token()
        (session,) = await running(on, f"sleep {word}; echo late >> ran")
        here.daemon.kill()
        await kill_keeper(here)
        await becomes(lambda: processes(word) == [], "what it ran is gone with it")
        await here.daemon.start()
        found = await on.closes(session)
        judge(found)
        assert "effect unknown" in result(found).text()
        assert here.ran() == [session]
        assert await here.mock.get("bad") == []


async def test_a_worker_that_lost_its_journal_does_not_run_again_what_it_may_have_run(here: Stage) -> None:
    async with driver(here) as on:
        await on.closes(await on.session("Go."))
        (session,) = await running(on, UNTIL_GO)
        here.daemon.kill()
        await kill_keeper(here)
        (here.folder / "go").touch()
        shutil.rmtree(here.scratch)
        await here.daemon.start()
        found = await on.closes(session)
        judge(found)
        assert "journal is younger than the call" in result(found).text()
        assert here.ran().count(session) == 1


async def test_runs_that_end_while_the_daemon_is_dead_give_their_real_results(here: Stage) -> None:
    async with driver(here) as on:
        made = await running(on, f"{UNTIL_GO}; echo {{conv}} ended; echo {{conv}} >> ended; exit 3", RUNS)
        here.daemon.kill()
        (here.folder / "go").touch()
        ended = here.folder / "ended"
        await becomes(lambda: ended.exists() and len(ended.read_text().split()) == RUNS, "they have ended")
        await here.daemon.start()
        for session in made:
            found = await on.closes(session)
            judge(found)
            said = result(found)
            assert (said.header.exit, said.header.failed) == (3, False)
            assert f"{session} ended" in said.text()
        assert sorted(here.ran()) == sorted(made)
        assert await here.mock.get("bad") == []


async def test_down_ends_what_runs_and_the_next_start_says_that_its_effect_is_unknown(here: Stage) -> None:
    async with driver(here) as on:
        word = token()
        (session,) = await running(
            on, f"setsid nohup sleep {word} & trap '' TERM; sleep {word}; echo late >> ran"
        )
        await asyncio.to_thread(here.daemon.down)
        assert here.keeper() == 0
        assert processes(word) == []
        await becomes(lambda: others(here) == [], "no process of this folder is left")
        before = here.daemon.file(session)
        assert before[-1].kind == "step", "ending is no stop: it leaves no error"
        await here.daemon.start()
        found = await on.closes(session)
        judge(found)
        assert "effect unknown" in result(found).text()
        assert here.ran() == [session]


def others(here: Stage) -> list[int]:
    """Processes whose command line or working folder is in the stage's folder, the mock's aside."""
    found = processes(str(here.folder))
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if Path(os.readlink(link)).is_relative_to(here.folder):
                found.append(int(link.parent.name))
        except OSError:  # it ended, or is not ours to look at
            continue
    return found


async def test_an_idle_keeper_of_another_release_is_replaced_at_the_daemons_start(here: Stage) -> None:
    here.data.mkdir(mode=0o700)
    await launch.ensure(here.scratch, "0.0.0")
    old = here.keeper()
    async with driver(here) as on:
        await here.mock.config(calls=1, code="echo ok")
        session = await on.session("Go.")
        assert result(await on.closes(session)).text() == "ok"
        assert here.keeper() not in (0, old)


async def test_a_keeper_of_another_release_ends_its_run_first_and_nothing_is_lost(here: Stage) -> None:
    here.data.mkdir(mode=0o700)
    path = await launch.ensure(here.scratch, "0.0.0")
    old = here.keeper()
    async with await Dial.to(path) as dial:
        going = dial.begin(
            f"cd {here.folder}; echo began; {UNTIL_GO}; echo went", session="other", call="first"
        )
        await dial.prints(going, b"began\n")
        async with driver(here) as on:
            await here.mock.config(calls=1, code="echo {k} >> ran; echo ok")
            session = await on.session("Go.")
            assert result(await on.closes(session)).text().endswith("ok")
            assert here.keeper() == old, "it is left to end its run"
            (here.folder / "go").touch()
            assert (await dial.ended(going)).text == "began\nwent\n"
            await becomes(lambda: here.keeper() not in (0, old), "the new one took over")
            await on.post(session, "Once more.")
            found = await on.closes(session)
            said = [record.text() for record in found if record.kind == "result"][-1]
            assert said.startswith("[environment was reset: the worker was updated from release 0.0.0")
            assert here.ran() == ["0", "2"]


async def test_a_run_on_a_worker_that_is_away_at_the_stop_is_ended_when_it_comes_back(here: Stage) -> None:
    async with driver(here) as on:
        word = token()
        (session,) = await running(on, f"sleep {word}; echo late >> ran")
        frozen = await here.held()
        os.kill(frozen, signal.SIGSTOP)
        try:
            here.daemon.kill()
            await here.daemon.start()
            await on.client.stop(session, VIA)
            found = here.daemon.file(session)
            assert [record.kind for record in found[-2:]] == ["result", "error"]
            assert "effect unknown" in found[-2].text()
        finally:
            os.kill(frozen, signal.SIGCONT)
        await becomes(lambda: processes(word) == [], "the processes are gone")
        assert here.keeper() == frozen
        await on.post(session, "Now the rest.")
        judge(await on.closes(session))
        assert here.ran() == [session]
        assert await here.mock.get("bad") == []


@pytest.mark.campaign
@pytest.mark.timeout(300)
async def test_a_keeper_that_is_frozen_until_it_is_given_up_comes_back_with_the_real_result(
    here: Stage,
) -> None:
    async with driver(here) as on:
        (session,) = await running(on, f"{UNTIL_GO}; echo went")
        frozen = await here.held()
        os.kill(frozen, signal.SIGSTOP)
        try:
            async with asyncio.timeout(120):
                while [worker.state for worker in await on.client.workers()] != ["gone"]:
                    await pause(0.2)
        finally:
            os.kill(frozen, signal.SIGCONT)
        (here.folder / "go").touch()
        found = await on.closes(session)
        assert result(found).text().endswith("went")
        assert here.ran() == [session]


@pytest.mark.campaign
@pytest.mark.timeout(300)
async def test_three_runs_of_two_gigabytes_at_once_take_no_memory_of_the_worker_or_the_daemon(
    here: Stage,
) -> None:
    async with driver(here) as on:
        await here.mock.config(calls=1, code="seq 100000")
        made = [await on.session("Go.") for _ in range(3)]
        for session in made:
            await on.closes(session)
        reapers = await asyncio.to_thread(reaper.children, here.keeper())
        assert len(reapers) == 3
        pids = (here.keeper(), here.daemon.pid, *reapers)
        before = {pid: peak(pid) for pid in pids}
        await here.mock.config(calls=1, code=f"head -c {TWO_GB} /dev/zero | tr '\\0' x")
        for session in made:
            await on.post(session, "Much.")
        for session in made:
            async with asyncio.timeout(240):
                while (await on.client.info(session)).status == "stepping":
                    await pause(0.5)
            said = [record for record in await on.closes(session) if record.kind == "result"][-1]
            assert said.text().startswith("x" * 10_000)
            assert said.header.truncated == 1
            Path(said.header.full_output or "").unlink(
                missing_ok=True
            )  # or the journal let it go: over its limit
        grown = {pid: peak(pid) - before[pid] for pid in pids}
        assert sum(grown.values()) < 32 << 20, grown


def peak(pid: int) -> int:
    """The most memory that a process ever held, in bytes."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) << 10


@pytest.mark.campaign
@pytest.mark.timeout(600)
async def test_a_keeper_killed_thirty_times_never_runs_anything_twice(here: Stage) -> None:
    async with driver(here) as on:
        await here.mock.config(
            calls=3, parallel=2, code="echo {conv}.{k}.{p} >> ran; sleep 0.0$((RANDOM % 10))"
        )
        made = [await on.session("Go.") for _ in range(4)]
        for _ in range(30):
            await pause(0.3 + random.random())
            await kill_keeper(here)
            await becomes(lambda: here.keeper() != 0, "it is started again")
            for session in made:
                if (await on.client.info(session)).status == "closed":
                    await on.post(session, "Once more.")
        closed = 0
        for session in made:
            found = await on.closes(session)
            judge(found)
            for record in found:
                if record.kind == "result" and record.header.failed:
                    assert "effect unknown" in record.text()
                    closed += 1
        ran = Counter(here.ran())
        assert closed, "no kill hit a run"
        assert all(count == 1 for count in ran.values()), ran
        assert await here.mock.get("bad") == []
