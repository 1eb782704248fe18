"""A worker becomes the daemon's release by itself: from one tree's files to another's, through cuts and kills."""

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon import release
from daemon.protocol import frames
from daemon.worker import install, update
from tests.e2e.driving import Driver, Stage, becomes, driver, pause, stage
from tests.e2e.far import Far, cut_off, far, state
from tests.e2e.test_disk import small_disk
from tests.e2e.test_worker import ENDS, UNTIL_GO, end_well, result, running
from tests.running import RELEASE

# Each test has a release installed, of thousands of files, has it show that it works, and removes it all at its end.
pytestmark = pytest.mark.timeout(180)
ROOT = Path(release.__file__).resolve().parents[1]


@pytest.fixture
def here() -> Iterator[Stage]:
    """A stage whose daemon is of another release than its workers: a tree of its own, with one line more."""
    with stage() as made:
        tree = made.folder / "tree"
        for package in release.PACKAGES:
            shutil.copytree(
                ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__", ".*", "*~")
            )
        with (tree / "daemon/worker/keeper.py").open("a") as file:
            file.write(f"\n# of {made.folder}\n")
        made.daemon.be(tree)
        yield made


def wanted(here: Stage) -> str:
    """The daemon's release."""
    said = here.daemon.cli("--version").stdout.split()[1]
    assert said != RELEASE
    assert said.startswith("0.1.0+src")
    return said


def program(pid: int) -> str:
    """The interpreter that a process was started with."""
    return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])


async def updated(on: Driver, one: Far) -> str:
    """Wait until both halves of a worker are the daemon's release, and say which that is."""
    new = await asyncio.to_thread(wanted, on.stage)
    await state(on, one.name, "connected", lambda info: info.release == new and not info.reason)
    python = str(install.python_of(one.scratch, new))
    assert (program(one.link), program(one.keeper())) == (python, python)
    said = one.status()
    assert (said["link_release"], said["keeper_release"], said.get("update", "")) == (new, new, "")
    return new


async def test_an_idle_worker_of_another_release_comes_back_as_the_daemons(here: Stage) -> None:
    async with driver(here) as on:
        with far(here) as one:
            one.start()
            link = one.link
            new = await updated(on, one)
            assert one.link == link, "whoever watches the process sees no end"
            (left,) = [path.name for path in (one.scratch / install.FOLDER).iterdir() if path.is_dir()]
            assert left == new
            await here.mock.config(calls=1, worker="far", code="command -v python3; echo ${PYTHONPATH-none}")
            found = await on.closes(await on.session("Go.", worker="far"))
            assert str(one.scratch) not in result(found).text(), "agents' code keeps the operator's python"
            assert one.stop_link() == 0
            one.start()
            await state(on, "far", "connected", lambda info: info.release == new)
            assert program(one.link) == str(install.python_of(one.scratch, new)), "it goes on as what it was"
            assert here.daemon.log().count("a worker gets this release") == 1


async def test_runs_that_go_through_an_update_happen_once_and_give_their_results(here: Stage) -> None:
    here.daemon.be(ROOT, RELEASE)
    async with driver(here) as on, cut_off(here) as (one, net):
        one.start()
        made = await running(on, f"{UNTIL_GO}; {ENDS.replace('exit 3', '(exit 3)')}", 4)
        here.daemon.kill()
        here.daemon.be(here.folder / "tree")
        await here.daemon.start()
        new = await asyncio.to_thread(wanted, here)
        await becomes(lambda: str(one.scratch) in program(one.link), "its link is the new release's")
        info = await state(on, "far", "connected", lambda info: not info.reason)
        assert info.release == RELEASE, "the keeper finishes what it has begun"
        await net.cut()
        (here.folder / "go").touch()
        await end_well(on, made)
        await state(on, "far", "connected", lambda info: info.release == new)
        await here.mock.config(calls=1, worker="far", code="echo again")
        n = (await on.client.info(made[0])).n
        await on.post(made[0], f"[[conv:{made[0]}]] Once more.")
        again = await on.kind(made[0], "result", n)
        assert (
            f"environment was reset: the worker was updated from release {RELEASE} to {new}" in again.text()
        )


@pytest.mark.campaign
async def test_a_link_that_is_killed_while_it_updates_is_the_old_release_and_begins_anew(here: Stage) -> None:
    async with driver(here) as on, cut_off(here) as (one, net):
        # While its wheel comes.
        net.most = 100_000
        one.start()
        part = one.scratch / install.FOLDER
        await becomes(lambda: part.exists() and any(part.glob(".*.whl")), "a part of the wheel is there")
        one.kill_link()
        assert (await asyncio.to_thread(update.load, one.scratch)).chosen == ""
        net.most = 0
        await net.cut()
        # While it is being installed.
        one.start()
        await becomes(lambda: any(part.glob(".new-*")), "it is being installed")
        one.kill_link()
        assert (await asyncio.to_thread(update.load, one.scratch)).chosen == ""
        assert not any(part.glob("[0-9]*")), "nothing half-made has a release's name"
        one.start()
        await updated(on, one)
        assert sorted(path.name for path in part.iterdir() if path.name[0] == ".") == []


@pytest.mark.campaign
@pytest.mark.timeout(400)
async def test_a_link_that_is_killed_at_any_moment_of_an_update_is_one_release_or_the_other(
    here: Stage,
) -> None:
    async with driver(here) as on:
        with far(here) as one:
            new = await asyncio.to_thread(wanted, here)
            for step in range(24):
                one.start()
                await pause(0.25 * step)
                one.kill_link()
                chosen = (await asyncio.to_thread(update.load, one.scratch)).chosen
                whole = install.python_of(one.scratch, new).exists()
                assert chosen == "" or (chosen == new and whole)
                if whole:
                    await asyncio.to_thread(install.check, install.python_of(one.scratch, new), new)
            one.start()
            await updated(on, one)
            info = await state(on, "far", "connected")
            assert info.release == new


@pytest.mark.campaign
async def test_an_update_whose_connection_is_cut_is_fetched_again(here: Stage) -> None:
    async with driver(here) as on, cut_off(here) as (one, net):
        net.most = 100_000
        one.start()
        part = one.scratch / install.FOLDER
        await becomes(lambda: part.exists() and any(part.glob(".*.whl")), "a part of the wheel is there")
        info = await state(on, "far", "connected")
        assert info.release == RELEASE, "it works meanwhile"
        assert "it is updating itself to release" in info.reason
        net.most = 0
        await net.cut()
        await updated(on, one)
        assert "the connection ended within the release" in one.log()


async def test_an_update_that_fails_is_told_and_waits_also_over_a_restart(here: Stage) -> None:
    async with driver(here) as on:
        with far(here) as one:
            one.scratch.mkdir()
            (one.scratch / install.FOLDER).write_text("no folder")
            one.start()
            info = await state(on, "far", "connected", lambda info: "failed" in info.reason)
            new = await asyncio.to_thread(wanted, here)
            assert info.release == RELEASE
            assert f"this daemon is of release {new}: the update to release {new} failed: " in info.reason
            assert "File exists; tried again at " in info.reason
            said = one.verb("status", f"--scratch={one.scratch}")
            assert said.returncode == 0, "it is connected all the same"
            assert "File exists" in said.stdout
            (one.scratch / install.FOLDER).unlink()
            one.stop_link()
            one.start()
            await state(on, "far", "connected", lambda info: "File exists" in info.reason)
            await here.mock.config(calls=1, worker="far", code="echo works")
            found = await on.closes(await on.session("Go.", worker="far"))
            assert result(found).text().startswith("works")
            assert not (one.scratch / install.FOLDER).exists(), "it was not tried again"
            one.stop_link()
            kept = await asyncio.to_thread(update.load, one.scratch)
            assert kept.failed is not None
            old = update.Failed(kept.failed.release, kept.failed.sha256, "long ago", kept.failed.at - 600)
            await asyncio.to_thread(update.save, one.scratch, update.State(failed=old))
            one.start()
            await updated(on, one)


async def test_a_full_disk_leaves_the_release_before_and_nothing_half(here: Stage) -> None:
    with small_disk(here.folder / "far"):  # room for a keeper and the wheel, not for what a release needs
        async with driver(here) as on:
            with far(here) as one:
                one.start()
                info = await state(on, "far", "connected", lambda info: "failed" in info.reason)
                assert "No space left on device" in info.reason
                assert [path.name for path in (one.scratch / install.FOLDER).iterdir()] == ["lock"]
                await here.mock.config(calls=1, worker="far", code="echo works")
                found = await on.closes(await on.session("Go.", worker="far"))
                assert result(found).text().startswith("works")
                assert info.release == RELEASE


async def test_a_worker_whose_operator_allows_no_update_stays_what_it_is(here: Stage) -> None:
    async with driver(here) as on:
        with far(here) as one:
            file = here.folder / "worker.toml"
            file.write_text("[worker]\nupdate = false\n")
            one.start(f"--config={file}")
            info = await state(on, "far", "connected", lambda info: "allows no updates" in info.reason)
            assert info.release == RELEASE
            assert not (one.scratch / install.FOLDER).exists()


@pytest.mark.campaign
async def test_a_worker_of_another_protocol_is_refused_until_it_has_updated_itself(here: Stage) -> None:
    source = here.folder / "tree/daemon/protocol/frames.py"
    changed = source.read_text().replace("PROTOCOL: Final = 1\n", "PROTOCOL: Final = 2\n")
    source.write_text(changed)
    async with driver(here) as on:
        with far(here) as one:
            file = here.folder / "worker.toml"
            file.write_text("[worker]\nupdate = false\n")
            one.start(f"--config={file}")
            info = await state(on, "far", "refused", lambda info: "allows no updates" in info.reason)
            assert f"it speaks protocol {frames.PROTOCOL} (release {RELEASE})" in info.reason
            assert one.verb("status", f"--scratch={one.scratch}").returncode == 1
            one.stop_link()
            one.start()
            await updated(on, one)


@pytest.mark.campaign
async def test_a_release_that_does_not_start_any_more_is_left_for_what_was_installed(here: Stage) -> None:
    async with driver(here) as on:
        with far(here) as one:
            one.start()
            new = await updated(on, one)
            one.stop_link()
            (one.scratch / install.FOLDER / new / "bin/python").unlink()
            one.start()
            await becomes(lambda: "not going on as release" in one.log(), "it says so")
            assert program(one.link) == sys.executable
            await updated(on, one)
