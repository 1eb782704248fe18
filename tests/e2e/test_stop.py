"""A stop ends everything within its time, for real, whatever it meets; and the session goes on afterwards."""

import asyncio
import contextlib
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from daemon.client import ApiFailure, Unreachable
from daemon.worker import reaper
from daemon.worker.cgroup import PREFIX, Cgroup
from tests.e2e.driving import VIA, Driver, Stage, becomes, driver, judge, pause, processes, stage, token
from tests.e2e.hoppers import HOPPER, LEAVER, NESTED, nobody_writes, told

PROMISE: Final = 10.0  # seconds in which a stop answers, always: the API's word to its clients


@pytest.fixture(scope="module")
def here() -> Iterator[Stage]:
    """One daemon for all of them: a stop must not spoil what comes after it."""
    with stage() as made:
        asyncio.run(made.daemon.start())
        yield made


@pytest.fixture(autouse=True)
async def calm(here: Stage) -> None:
    """Each test begins with the mock's usual script and an empty file `ran`."""
    await here.mock.config(
        calls=1, parallel=1, worker="local", first_delay=0, event_delay=0, trouble="", tries=-1, every=1
    )
    await here.mock.config(code="echo {conv} >> ran", text="Step {k}.", retry_after="", status=529, after=3)
    (here.folder / "ran").unlink(missing_ok=True)


async def stopped(on: Driver, session: str) -> None:
    """Stop a session and see that it is: by the clock, in the file, and that it says who did it."""
    began = time.monotonic()
    await on.client.stop(session, VIA)
    took = time.monotonic() - began
    assert took < PROMISE
    info = await on.client.info(session)
    assert info.status == "failed"
    found = on.stage.daemon.file(session)
    last = found[-1]
    assert (last.kind, last.header.via) == ("error", VIA)
    assert VIA in last.text()
    assert info.n == last.n
    judge(found)
    with pytest.raises(ApiFailure) as again:
        await on.client.stop(session, VIA)
    assert again.value.status == 409


async def goes_on(on: Driver, session: str, ran: list[str], **script: Any) -> None:
    """A post after a stop is answered as ever, and nothing that was asked for before it runs any more."""
    await on.stage.mock.config(trouble="", first_delay=0, event_delay=0, code="echo after >> ran", **script)
    await on.stage.mock.release()
    await on.post(session, "Now the rest.")
    found = await on.closes(session)
    assert judge(found).status == "closed"
    assert await on.stage.mock.get("bad") == []
    assert on.stage.ran() == ran


async def test_a_stop_cuts_a_provider_that_never_answers(here: Stage) -> None:
    async with driver(here) as on:
        await here.mock.config(trouble="hold")
        session = await on.session("Go.")
        await on.requested(session)
        await stopped(on, session)
        await goes_on(on, session, ["after"])


async def test_a_stop_cuts_an_answer_that_streams(here: Stage) -> None:
    async with driver(here) as on:
        await here.mock.config(event_delay=1.0)
        session = await on.session()
        async with on.streams(session, "text") as streaming:
            await on.post(session, f"[[conv:{session}]] Go.")
            await streaming
        await stopped(on, session)
        await goes_on(on, session, ["after"])


async def test_a_stop_cuts_a_stream_that_stalls(here: Stage) -> None:
    async with driver(here) as on:
        await here.mock.config(trouble="stall", after=7)  # within the call
        session = await on.session()
        async with on.streams(session, "call") as streaming:
            await on.post(session, f"[[conv:{session}]] Go.")
            await streaming
        await stopped(on, session)
        await goes_on(on, session, ["after"])


async def test_a_stop_ends_the_wait_for_the_next_try(here: Stage) -> None:
    async with driver(here) as on:
        await here.mock.config(trouble="status", status=429, retry_after="250")
        session = await on.session("Go.")
        await on.requested(session)
        await stopped(on, session)
        assert len(await on.asked(session)) == 1
        await goes_on(on, session, ["after"])


async def test_a_stop_ends_a_command_and_what_it_started(here: Stage) -> None:
    async with driver(here) as on:
        word = token()
        await here.mock.config(
            code=f"sleep {word} & setsid sleep {word} & echo on; sleep {word}; echo x >> ran"
        )
        session = await on.session()
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
        await becomes(lambda: len(processes(word)) == 3, "all of them run")
        await stopped(on, session)
        assert processes(word) == []
        await goes_on(on, session, ["after"], calls=2)
        again = [record.text() for record in here.daemon.file(session) if record.kind == "result"][-1]
        assert "reset" not in again, "the shell itself lives on"


async def test_a_stop_ends_a_command_that_ignores_every_signal_it_can(here: Stage) -> None:
    async with driver(here) as on:
        word = token()
        await here.mock.config(code=f"trap '' INT TERM HUP; echo on; sleep {word}; echo x >> ran")
        session = await on.session()
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
        await stopped(on, session)
        assert processes(word) == []
        await goes_on(on, session, [])


async def test_a_stop_ends_a_command_that_a_shell_of_its_own_keeps_alive(here: Stage) -> None:
    async with driver(here) as on:
        word = token()
        code = f"""bash -c 'trap "" INT TERM; while :; do sleep {word}; done' & trap '' INT TERM
        echo on; while :; do sleep {word}; done; echo x >> ran"""
        await here.mock.config(code=code)
        session = await on.session()
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
        await stopped(on, session)
        await becomes(lambda: processes(word) == [], "the processes are gone")
        await goes_on(on, session, [])


async def test_a_stop_ends_three_calls_that_run_and_those_that_wait_behind_them(here: Stage) -> None:
    async with driver(here) as on:
        word = token()
        await here.mock.config(parallel=3, code=f"echo {{p}} >> ran; echo on; sleep {word}")
        session = await on.session()
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
        await stopped(on, session)
        assert processes(word) == []
        results = [record for record in here.daemon.file(session) if record.kind == "result"]
        assert len(results) == 3
        assert all(record.header.failed for record in results)
        never = [record for record in results if re.search("nothing was run|not started", record.text())]
        assert len(never) == 2
        await goes_on(on, session, ["0"])


async def test_a_stop_leaves_another_session_alone(here: Stage) -> None:
    async with driver(here) as on:
        word = token()
        waits = f"if [ {{conv}} = $(cat one) ]; then sleep {word}; fi; until [ -e go ]; do sleep 0.02; done"
        await here.mock.config(code=f"echo on; {waits}")
        one, other = await on.session(), await on.session()
        (here.folder / "one").write_text(one)
        async with on.outputs(one) as printed, on.outputs(other) as others:
            for session in (one, other):
                await on.post(session, f"[[conv:{session}]] Go.")
            await printed
            await others
        await stopped(on, one)
        (here.folder / "go").touch()
        judge(await on.closes(other))
        await goes_on(on, one, [])


async def test_stops_while_the_worker_is_frozen_say_unknown_and_nothing_goes_on_when_it_wakes(
    here: Stage,
) -> None:
    """One run goes, another is on its way: it waits in the socket of a worker that does not read."""
    async with driver(here) as on:
        word = token()
        behind = await on.session("Go.")
        n = len(await on.closes(behind))
        await here.mock.config(code=f"echo on; sleep {word}; echo {{conv}} late >> ran")
        going = await on.session()
        async with on.outputs(going) as printed:
            await on.post(going, f"[[conv:{going}]] Go.")
            await printed
        frozen = await here.held()
        os.kill(frozen, signal.SIGSTOP)
        try:
            await on.post(behind, "Once more.")
            await on.kind(behind, "step", n)
            await pause(0.1)  # so that the call is on its way
            async with asyncio.TaskGroup() as group:
                for session in (going, behind):
                    group.create_task(stopped(on, session), name=f"stop {session}")
            for session in (going, behind):
                said = [record for record in here.daemon.file(session) if record.kind == "result"][-1]
                assert "effect unknown" in said.text()
        finally:
            os.kill(frozen, signal.SIGCONT)
        await becomes(lambda: processes(word) == [], "the processes are gone")
        for session in (going, behind):
            await goes_on(on, session, [behind])


async def test_a_stop_cuts_a_first_step_that_waits_for_a_frozen_worker(here: Stage) -> None:
    async with driver(here) as on:
        frozen = await here.held()
        os.kill(frozen, signal.SIGSTOP)
        try:
            session = await on.session("Go.")  # its AGENTS.md is looked for first
            await stopped(on, session)
            assert await on.asked(session) == []
        finally:
            os.kill(frozen, signal.SIGCONT)
        await goes_on(on, session, ["after"])


async def test_an_end_stops_what_runs_first_and_is_final(here: Stage) -> None:
    async with driver(here) as on:
        word = token()
        await here.mock.config(code=f"echo on; setsid sleep {word} & sleep {word}")
        session = await on.session()
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
        async with asyncio.timeout(PROMISE):
            status, said = await on.raw("POST", f"/sessions/{session}/end", params={"via": VIA})
        assert status == 204, said
        found = here.daemon.file(session)
        judge(found)
        assert [record.kind for record in found[-3:]] == ["result", "error", "end"]
        await becomes(lambda: processes(word) == [], "the processes are gone")
        with pytest.raises(ApiFailure) as refused:
            await on.post(session, "More.")
        assert refused.value.status == 410


async def test_a_stop_ends_the_wait_for_a_worker_that_never_dialed(here: Stage) -> None:
    async with driver(here) as on:
        await here.mock.config(worker="ghost")
        session = await on.session("Go.", worker="ghost")
        await on.kind(session, "step")
        await stopped(on, session)
        await goes_on(on, session, [])


async def test_stops_of_several_clients_at_once_are_one_stop(here: Stage) -> None:
    async with driver(here) as on:
        word = token()
        await here.mock.config(code=f"echo on; sleep {word}")
        session = await on.session()
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
        async with asyncio.timeout(PROMISE), asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(on.client.stop(session, f"client {number}"), name=f"stop {number}")
        errors = [record for record in here.daemon.file(session) if record.kind == "error"]
        assert len(errors) == 1
        await goes_on(on, session, [])


async def test_a_post_during_a_stop_waits_and_is_answered_together_with_the_next(here: Stage) -> None:
    async with driver(here) as on:
        word = token()
        await here.mock.config(code=f"trap '' INT; echo on; sleep {word}")
        session = await on.session()
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
        await becomes(lambda: processes(word) != [], "it sleeps")
        async with asyncio.TaskGroup() as group:
            stop = group.create_task(on.client.stop(session, VIA), name="stop")
            await pause(0.3)
            await on.post(session, "And this.")
            assert not stop.done()
        assert (await on.client.info(session)).status == "failed"
        assert len(await on.asked(session)) == 1
        await goes_on(on, session, [])
        texts = [record.text() for record in here.daemon.file(session) if record.kind == "message"]
        assert texts[1:] == ["And this.", "Now the rest."]


async def test_a_retry_during_a_stop_goes_on_after_it_and_does_not_hold_it_up(here: Stage) -> None:
    async with driver(here) as on:
        word = token()
        await here.mock.config(code=f"trap '' INT; echo on; sleep {word}")
        session = await on.session()
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
        await becomes(lambda: processes(word) != [], "it sleeps")
        await here.mock.config(trouble="hold")
        async with asyncio.timeout(PROMISE), asyncio.TaskGroup() as group:
            stop = group.create_task(on.client.stop(session, VIA), name="stop")
            await pause(0.3)
            await on.client.retry(session)
            assert not stop.done()
        await on.requested(session, 2)
        assert (await on.client.info(session)).status == "stepping"
        await here.mock.config(trouble="")
        await here.mock.release()
        judge(await on.closes(session))


async def test_a_retry_after_a_stop_goes_on(here: Stage) -> None:
    async with driver(here) as on:
        await here.mock.config(trouble="hold")
        session = await on.session("Go.")
        await on.requested(session)
        await stopped(on, session)
        await here.mock.config(trouble="")
        await on.client.retry(session)
        await on.closes(session)
        assert here.ran() == [session]


@pytest.fixture(params=["with cgroups", "without"])
def apart(request: pytest.FixtureRequest) -> Iterator[tuple[Stage, bool]]:
    """A stage of the test's own, its daemon not yet started, and whether its environments have cgroups."""
    grouped: bool = request.param == "with cgroups"
    if grouped:
        if (tried := Cgroup.make()) is None:
            pytest.skip("no cgroup v2 with cgroup.kill that this process may make cgroups in")
        tried.end()
    with stage() as made:
        if not grouped and (trouble := made.daemon.without_cgroups()):
            pytest.skip(trouble)
        yield made, grouped


def has_cgroup(keeper: int) -> bool:
    """Whether an environment of a keeper is in a cgroup of its own."""
    found = ""
    for pid in reaper.descendants(keeper):
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{pid}/cgroup").read_text()
    return f"/{PREFIX}{keeper}-" in found


async def test_a_stop_and_an_end_end_what_is_never_the_same_process_for_long(
    apart: tuple[Stage, bool],
) -> None:
    made, grouped = apart
    await made.daemon.start()
    async with driver(made) as on:
        word = token()
        starts = ""
        for number, program in enumerate((HOPPER, LEAVER, NESTED)):
            (made.folder / f"{number}.py").write_text(program)
            starts += f"{sys.executable} -S {number}.py {word} >told 2>&1 & "
        await made.mock.config(calls=1, worker="local", code=f"{starts}read _ <told; echo on; sleep {word}")
        with told(made.folder) as fd:
            session = await begun(on)
            assert await asyncio.to_thread(has_cgroup, made.keeper()) == grouped
            await stopped(on, session)
            assert nobody_writes(fd)
            assert processes(word) == []
            result = [record for record in made.daemon.file(session) if record.kind == "result"][-1]
            assert "could not be ended" not in result.text()
            other = await begun(on)
            async with asyncio.timeout(PROMISE):
                status, said = await on.raw("POST", f"/sessions/{other}/end", params={"via": VIA})
            assert status == 204, said
            await becomes(lambda: nobody_writes(fd), "none of them is left")


async def begun(on: Driver) -> str:
    """A new session whose first call has printed something."""
    session = await on.session()
    async with on.outputs(session) as printed:
        await on.post(session, f"[[conv:{session}]] Go.")
        await printed
    return session


@pytest.mark.campaign
@pytest.mark.timeout(900)
async def test_fifty_stops_at_random_moments_leave_nothing_open_and_nothing_running(here: Stage) -> None:
    async with driver(here) as on:
        word = token()
        await here.mock.config(calls=6, parallel=3, first_delay=0.03, event_delay=0.01)
        await here.mock.config(code=f"echo {{conv}}.{{k}}.{{p}} >> ran; sleep 0.0$((RANDOM % 10)); : {word}")
        stops = 0
        while stops < 50:
            session = await on.session("Go.")
            for _ in range(5):
                await pause(random.random() * 0.8)
                before = len(here.ran())
                if (await on.client.info(session)).status == "closed":
                    break
                try:
                    await on.client.stop(session, VIA)
                except ApiFailure:
                    assert (await on.client.info(session)).status == "closed"
                    break
                stops += 1
                found = here.daemon.file(session)
                assert (found[-1].kind, found[-1].header.via) == ("error", VIA)
                judge(found)
                ran = here.ran()
                assert len(ran) - before <= 3
                await pause(0.15)
                assert here.ran() == ran, "something ran after the stop"
                await on.client.retry(session)
            await on.closes(session)
            assert await here.mock.get("bad") == []
            ran = here.ran()
            assert len(set(ran)) == len(ran), "something ran twice"


@pytest.mark.campaign
@pytest.mark.timeout(900)
async def test_stops_and_retries_while_the_daemon_is_killed_lose_nothing_and_do_nothing_twice() -> None:
    with stage() as alone:
        async with driver(alone) as on:
            await alone.mock.config(calls=4, parallel=3, first_delay=0.02, event_delay=0.005)
            await alone.mock.config(code="echo {conv}.{k}.{p} >> ran; sleep 0.0$((RANDOM % 10))")
            sessions = [await on.session("Go.") for _ in range(4)]
            over = asyncio.Event()

            async def disturb(session: str) -> None:
                while not over.is_set():
                    await pause(random.random() * 0.3)
                    try:
                        match random.randrange(3):
                            case 0:
                                await on.client.stop(session, VIA)
                            case 1:
                                await on.client.retry(session)
                            case _:
                                await on.post(session, "And this.")
                    except ApiFailure as error:
                        if error.status not in (409, 503):
                            raise
                    except Unreachable:
                        continue

            async with asyncio.TaskGroup() as group:
                for session in sessions:
                    group.create_task(disturb(session), name=f"disturb {session}")
                for _ in range(40):
                    await pause(random.random())
                    await asyncio.to_thread(alone.daemon.kill)
                    await alone.daemon.start()
                over.set()
            for session in sessions:
                async with asyncio.timeout(60):
                    while (await on.rests(session)).status != "closed":
                        await on.client.retry(session)
                judge(await on.closes(session))
            ran = alone.ran()
            assert len(set(ran)) == len(ran), "something ran twice"
            assert await alone.mock.get("bad") == []
            assert "Traceback" not in alone.daemon.log()
