"""Workers that dial: cut off, frozen, killed and replaced; each call happens once, or nobody claims to know."""

import asyncio
import json
import os
from collections.abc import Iterator

import pytest

from daemon.protocol import api, dialing, frames
from daemon.protocol.records import Record, WorkerRef
from daemon.worker import launch
from tests.daemon.worker.dialing import Dial
from tests.e2e.driving import Driver, Stage, becomes, driver, judge, pause, processes, stage, token
from tests.e2e.far import cut_off, far, state

RUNS = 8
MINUTE = 60.0  # seconds: twice what either side waits for a peer that says nothing
UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"
ENDS = "echo {conv} ended; echo {conv} >> ended; exit 3"


@pytest.fixture
def here() -> Iterator[Stage]:
    with stage() as made:
        yield made


def grace(here: Stage, seconds: float) -> None:
    """Have the daemon wait so long for a worker."""
    file = here.folder / "outrider.toml"
    file.write_text(f"{file.read_text()}\n[daemon]\ngrace = {seconds}\n")


async def running(on: Driver, code: str, count: int = 1, worker: str = "far") -> list[str]:
    """Sessions with one call each that has printed something and goes on."""
    await on.stage.mock.config(calls=1, worker=worker, code=f"echo {{conv}} >> ran; echo on; {code}")
    made = [await on.session(worker=worker) for _ in range(count)]
    for session in made:
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
    return made


async def end_well(on: Driver, sessions: list[str]) -> None:
    """Each session closes with its one call's real result, and each call began once."""
    for session in sessions:
        found = await on.closes(session)
        judge(found)
        said = result(found)
        assert (said.header.exit, said.header.failed) == (3, False)
        assert f"{session} ended" in said.text()
    assert sorted(on.stage.ran()) == sorted(sessions)
    assert await on.stage.mock.get("bad") == []


def result(found: list[Record]) -> Record:
    (one,) = [record for record in found if record.kind == "result"]
    return one


async def ended(here: Stage, count: int = RUNS) -> None:
    """Wait until so many runs have come to their end."""
    file = here.folder / "ended"
    await becomes(lambda: file.exists() and len(file.read_text().split()) == count, "they have ended")


# As it should be.


async def test_a_worker_that_dials_runs_the_sessions_that_name_it(here: Stage) -> None:
    async with driver(here) as on:
        with far(here) as one:
            one.start()
            info = await state(on, "far", "connected")
            assert (info.scratch, info.interpreters[0]) == (str(one.scratch), "bash")
            await here.mock.config(calls=1, worker="far", code="echo far")
            session = await on.session("Go.", worker="far")
            found = await on.closes(session)
            assert result(found).text().startswith("far")
            assert result(found).header.worker == "far"
            said = one.status()
            assert (said["state"], said["name"], said["harness"]) == ("connected", "far", str(one.socket))
            assert (said["link"], said["keeper"], said["environments"]) == (one.link, one.keeper(), 1)
            assert one.verb("status", f"--scratch={one.scratch}").returncode == 0
            link, kept = one.link, one.keeper()
            assert json.loads(one.verb("down", f"--scratch={one.scratch}", "--json").stdout) == {
                "link": link,
                "keeper": kept,
            }
            await state(on, "far", "gone")
            down = one.verb("status", f"--scratch={one.scratch}")
            assert (down.returncode, "down" in down.stdout) == (1, True)


async def test_a_worker_is_there_before_its_daemon_and_dials_until_it_comes(here: Stage) -> None:
    here.data.mkdir()
    with far(here) as one:
        one.start()
        await becomes(lambda: "not connected" in one.log(), "it has tried")
        said = one.verb("status", f"--scratch={one.scratch}")
        assert said.returncode == 1
        assert "the harness is not at" in said.stdout
        async with driver(here) as on:
            await state(on, "far", "connected")
            before = one.keeper()
            assert one.stop_link() == 0
            assert f"the keeper, process {before}, goes on" in one.log()
            assert one.keeper() == before
            one.start()
            await state(on, "far", "connected")
            assert one.keeper() == before


# Connections that are lost.


async def test_eight_runs_outlive_a_short_cut(here: Stage) -> None:
    async with driver(here) as on, cut_off(here) as (one, net):
        one.start()
        made = await running(on, f"{UNTIL_GO}; {ENDS}", RUNS)
        await net.cut()
        await net.dials(2)
        (here.folder / "go").touch()
        await end_well(on, made)


async def test_eight_runs_that_end_during_a_long_cut_give_their_results(here: Stage) -> None:
    async with driver(here) as on, cut_off(here) as (one, net):
        one.start()
        made = await running(on, f"{UNTIL_GO}; {ENDS}", RUNS)
        net.open = False
        await net.cut()
        await state(on, "far", "gone")
        (here.folder / "go").touch()
        await ended(here)
        await net.dials(net.dialed + 2)
        for session in made:
            assert (await on.client.info(session)).status == "stepping", "it waits for its worker"
        net.open = True
        await end_well(on, made)


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize("frozen", [False, True], ids=["refused", "lost"])
async def test_runs_that_end_within_a_cut_of_a_minute_or_after_it_give_their_results(
    here: Stage, frozen: bool
) -> None:
    async with driver(here) as on, cut_off(here) as (one, net):
        one.start()
        within = await running(on, f"{UNTIL_GO}; {ENDS}", RUNS // 2)
        after = await running(on, f"{UNTIL_GO.replace('go', 'later')}; {ENDS}", RUNS // 2)
        if frozen:
            net.freeze()
        else:
            net.open = False
            await net.cut()
        (here.folder / "go").touch()
        await ended(here, RUNS // 2)
        await pause(MINUTE)
        await state(on, "far", "gone")
        for session in (*within, *after):
            assert (await on.client.info(session)).status == "stepping", "it waits for its worker"
        net.open = True
        net.thaw()
        (here.folder / "later").touch()
        await end_well(on, [*within, *after])


async def test_runs_of_a_worker_that_is_gone_for_good_are_unknown_and_the_session_goes_on(
    here: Stage,
) -> None:
    grace(here, 1)
    async with driver(here) as on, cut_off(here) as (one, net):
        one.start()
        await state(on, "far", "connected")  # or the short grace is over before it has come
        made = await running(on, f"{UNTIL_GO}; {ENDS}", RUNS)
        net.open = False
        await net.cut()
        for session in made:
            found = await on.closes(session)
            judge(found)
            said = result(found)
            assert (said.header.exit, said.header.failed) == (None, True)
            assert "interrupted, effect unknown" in said.text()
        (here.folder / "go").touch()
        await ended(here)  # they were not ended by it
        assert sorted(here.ran()) == sorted(made)


async def test_a_frozen_worker_whose_name_another_one_takes_leaves_an_unknown_result(here: Stage) -> None:
    async with driver(here) as on:
        with far(here) as one, far(here, folder="second") as second:
            one.start()
            second_ready = await launch.ensure(second.scratch, "0.1.0")  # its journal is older than the call
            assert second_ready.exists()
            (session,) = await running(on, f"{UNTIL_GO}; {ENDS}")
            with one.frozen():
                second.start()
                found = await on.closes(session)
                judge(found)
                assert "interrupted, effect unknown" in result(found).text()
                await here.mock.config(calls=1, code="echo second >> ran")
                await on.post(session, "Once more.")
                await on.closes(session)
            (here.folder / "go").touch()
            await ended(here, 1)
            assert here.ran() == [session, "second"]


# Processes that are killed.


async def test_eight_runs_that_end_while_the_daemon_is_dead_give_their_results(here: Stage) -> None:
    async with driver(here) as on:
        with far(here) as one:
            one.start()
            made = await running(on, f"{UNTIL_GO}; {ENDS}", RUNS)
            here.daemon.kill()
            (here.folder / "go").touch()
            await ended(here)
            await here.daemon.start()
            await end_well(on, made)


async def test_runs_go_on_while_their_link_is_dead(here: Stage) -> None:
    async with driver(here) as on:
        with far(here) as one:
            one.start()
            made = await running(on, f"{UNTIL_GO}; {ENDS}", RUNS)
            kept = one.keeper()
            one.kill_link()
            await state(on, "far", "gone")
            said = one.status()
            assert (said["state"], said["running"], said["environments"]) == ("down", RUNS, RUNS)
            (here.folder / "go").touch()
            await ended(here)
            one.start()
            await end_well(on, made)
            assert one.keeper() == kept


async def test_a_killed_keeper_leaves_unknown_results_and_is_started_again(here: Stage) -> None:
    async with driver(here) as on:
        with far(here) as one:
            one.start()
            word = token()
            made = await running(on, f"setsid sleep {word} & sleep {word}; echo late >> ran", 2)
            before = one.keeper()
            await one.kill_keeper()
            for session in made:
                found = await on.closes(session)
                judge(found)
                assert "interrupted, effect unknown: the worker's keeper ended" in result(found).text()
            assert one.keeper() not in (0, before)
            await becomes(lambda: processes(word) == [], "what it ran is gone with it")
            assert sorted(here.ran()) == sorted(made)


async def test_a_worker_whose_processes_are_all_killed_comes_back_with_its_journal(here: Stage) -> None:
    async with driver(here) as on:
        with far(here) as one:
            one.start()
            (session,) = await running(on, f"{UNTIL_GO}; {ENDS}")
            one.kill_link()
            await one.kill_keeper()
            await state(on, "far", "gone")
            (info,) = [found for found in await on.client.workers() if found.name == "far"]
            assert info.running == 1, "the call waits for it"
            one.start()
            found = await on.closes(session)
            judge(found)
            assert "the worker's keeper ended" in result(found).text()
            assert here.ran() == [session]


# Releases.


async def test_a_keeper_of_another_release_finishes_its_runs_and_is_replaced(here: Stage) -> None:
    async with driver(here) as on:
        with far(here) as one:
            path = await launch.ensure(one.scratch, "0.0.9")
            old = one.keeper()
            async with await Dial.to(path) as dial:
                dial.begin(f"{UNTIL_GO}; echo done", call="old", cwd=str(here.folder))
                one.start()
                info = await state(on, "far", "connected")
                assert info.release == "0.0.9", "it is accepted, and listed as what it is"
                assert one.keeper() == old
                (here.folder / "go").touch()
                await becomes(lambda: one.keeper() not in (0, old), "it is replaced")
                await dial.gone()
            await state(on, "far", "connected", lambda info: info.release != "0.0.9")
            async with await Dial.to(path) as dial:
                _, end, body = await dial.attach("old")
                assert (end.exit, body) == (0, b"done\n"), "its journal is the new one's"


async def test_a_worker_of_another_protocol_is_refused_and_says_so(here: Stage) -> None:
    async with driver(here) as on:
        reader, writer = await asyncio.open_unix_connection(str(here.data / "workers.sock"))
        hello = frames.Hello(
            protocol=frames.PROTOCOL + 1,
            release="9.9",
            os="linux",
            arch="x86_64",
            hostname="h",
            interpreters=("bash",),
            scratch="/s",
        )
        writer.write(dialing.greeting(dialing.Greeting("future")) + frames.encode(hello))
        assert b'"kind":"update"' in await reader.read()
        writer.close()
        info = await state(on, "future", "refused")
        assert f"it speaks protocol {frames.PROTOCOL + 1} (release 9.9)" in info.reason
        assert "install this daemon's release there" in info.reason


# Two workers, one of them gone.


async def test_a_call_for_a_worker_that_is_gone_waits_for_it_and_runs_nowhere_else(here: Stage) -> None:
    async with driver(here) as on:
        with far(here) as one:
            one.start()
            await state(on, "far", "connected")
            one.kill_link()
            await state(on, "far", "gone")
            await here.mock.config(calls=1, worker="far", code="echo $OLDPWD >> ran; pwd >> ran; exit 3")
            refs = (WorkerRef("local", str(here.folder)), WorkerRef("far", str(here.folder)))
            session = await on.client.create(api.Create(model="mock/script", workers=refs))
            await on.post(session, f"[[conv:{session}]] Go.")
            await on.kind(session, "step")
            await state(on, "far", "gone", lambda info: info.running == 1)
            assert here.ran() == []
            one.start()
            found = await on.closes(session)
            said = result(found)
            assert (said.header.worker, said.header.exit) == ("far", 3)
            assert here.ran() == [str(here.folder)]


async def test_a_worker_that_does_not_come_is_reported_and_the_other_goes_on(here: Stage) -> None:
    grace(here, 0.5)
    async with driver(here) as on:
        await state(on, "local", "connected")
        await here.mock.config(calls=1, worker="far", code="echo never >> ran")
        refs = (WorkerRef("local", str(here.folder)), WorkerRef("far", str(here.folder)))
        session = await on.client.create(api.Create(model="mock/script", workers=refs))
        await on.post(session, f"[[conv:{session}]] Go.")
        found = await on.closes(session)
        judge(found)
        said = result(found)
        assert said.header.failed
        assert "worker 'far' is gone" in said.text()
        assert "nothing was done" in said.text()
        assert here.ran() == []
        await here.mock.config(calls=1, worker="local", code="echo local >> ran")
        await on.post(session, "On the other one.")
        await on.closes(session)
        assert here.ran() == ["local"]


# What a worker allows by itself, and what its command line refuses.


async def test_a_workers_own_limits_hold_whatever_a_session_asks(here: Stage) -> None:
    (here.folder / "mine").mkdir()
    (here.folder / "mine/link").symlink_to("/etc/hostname")
    config = here.folder / "worker.toml"
    config.write_text(
        f'[worker]\ninterpreters = ["bash"]\nread = ["{here.folder}/mine"]\nseconds = 0.5\n'
        'environment = ["PATH", "SEEN"]\n'
    )
    async with driver(here) as on:
        with far(here) as one:
            one.start(f"--config={config}")
            info = await state(on, "far", "connected")
            assert info.interpreters == ("bash",)
            await here.mock.config(calls=1, worker="far", code="echo begun; sleep 60")
            session = await on.session("Go.", worker="far")
            said = result(await on.closes(session)).text()
            assert "begun" in said
            assert "this worker's own configuration allows 0.5 seconds a run" in said
            async with await Dial.to(one.scratch / "keeper.sock") as dial:
                id = dial.id()
                dial.send(frames.Read(id=id, path=str(here.folder / "mine/link")))
                with pytest.raises(Exception, match="which leads to /etc/hostname, may not be read"):
                    await dial.next(id)
            config.write_text("[worker]\ninterpreters = []\n")
            one.stop_link()
            one.start(f"--config={config}")
            await state(on, "far", "connected", lambda info: not info.interpreters)
            await here.mock.config(code="echo never >> ran")
            await on.post(session, "Once more.")
            texts = [record.text() for record in await on.closes(session) if record.kind == "result"]
            assert "no code may be run" in texts[1]
            assert here.ran() == []


def test_what_cannot_be_a_worker_is_told_in_a_sentence(here: Stage) -> None:
    with far(here) as one, far(here, "local") as reserved, far(here, "Far Away") as odd:
        said = one.verb(*reserved.arguments())
        assert (said.returncode, "reserved" in said.stderr) == (2, True)
        said = one.verb(*odd.arguments())
        assert (said.returncode, "cannot be a worker's name" in said.stderr) == (2, True)
        said = one.verb(*one.arguments("--config=/nowhere.toml"))
        assert (said.returncode, "which is not there" in said.stderr) == (2, True)
        (here.folder / "bad.toml").write_text("[worker]\ninterpreter = []\n")
        said = one.verb(*one.arguments(f"--config={here.folder}/bad.toml"))
        assert (said.returncode, "did you mean 'interpreters'?" in said.stderr) == (2, True)
        said = one.verb("--name=far", "--as-root")
        assert (said.returncode, "--connect SOCKET" in said.stderr) == (2, True)
        said = one.verb("status", f"--scratch={here.folder}/none")
        assert (said.returncode, "no worker has ever worked" in said.stderr) == (1, True)
        said = one.verb("--connect=x", "status")
        assert (said.returncode, "do not go with `status`" in said.stderr) == (2, True)
        said = one.verb("status")
        assert (said.returncode, "no worker of this user is in" in said.stderr) == (1, True)


async def test_a_second_link_of_one_folder_is_refused(here: Stage) -> None:
    here.data.mkdir()
    with far(here) as one:
        one.start()
        await becomes(lambda: "not connected" in one.log(), "it is there")
        again = one.verb(*one.arguments())
        assert again.returncode == 1
        assert f"process {one.link} is the worker of {one.scratch} already" in again.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
async def test_root_has_to_say_that_code_may_run_as_root(here: Stage) -> None:
    async with driver(here) as on:
        with far(here) as one:
            plain = [argument for argument in one.arguments() if argument != "--as-root"]
            said = one.verb(*plain)
            assert said.returncode == 2
            assert "agents would run their code as root" in said.stderr
            assert one.keeper() == 0
            (here.folder / "root.toml").write_text("[worker]\nas_root = true\n")
            one.start(f"--config={here.folder}/root.toml")
            await state(on, "far", "connected")
            assert "the local worker runs agents' code as root" in here.daemon.log()


async def test_the_workers_of_a_user_have_a_folder_each_and_the_only_one_is_found(here: Stage) -> None:
    async with driver(here) as on:
        base = here.folder / ".local/state/outrider/workers"
        with (
            far(here, "one", folder=str(base / "one")) as one,
            far(here, "two", folder=str(base / "two")) as two,
        ):
            for each in (one, two):
                each.start()
                await state(on, each.name, "connected")
                assert each.scratch.is_dir()
                if each is one:
                    assert json.loads(one.verb("status", "--json").stdout)["name"] == "one"
            several = one.verb("status", "--json")
            assert (several.returncode, [each["name"] for each in json.loads(several.stdout)]) == (
                0,
                ["one", "two"],
            )
            several = one.verb("down")
            assert (several.returncode, "one, two" in several.stderr) == (2, True)
            assert json.loads(one.verb("status", "--name=two", "--json").stdout)["link"] == two.link
            down = one.verb("down", "--name=two")
            assert down.stdout.startswith("the worker is down: ended link (pid ")
            assert one.verb("down", "--name=two").stdout == "the worker was not up\n"
