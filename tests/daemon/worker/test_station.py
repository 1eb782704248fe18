"""What a worker that dials says of itself, and how what stands in its way is told."""

import asyncio
import logging
import os
import sys
from pathlib import Path

import pytest

from daemon.allowance import Allowance
from daemon.worker import access, keeper, launch, link, smallfiles, station
from daemon.worker.station import Log, Place, State


def place(scratch: Path, release: str = "1") -> Place:
    harness = station.on_socket(scratch / "workers.sock")
    return Place(scratch=scratch, release=release, allowed=Allowance(), harness=harness, name="gpu")


def saved(scratch: Path) -> State:
    found = smallfiles.read(scratch / station.STATE, State)
    assert found is not None
    return found


async def test_a_reason_that_stays_is_logged_once_and_each_change_is_written_down(
    scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log = Log(place(scratch))
    for _ in range(3):
        await log.tell("no harness")
    first = await asyncio.to_thread(saved, scratch)
    assert (first.state, first.reason, first.connected) == ("dialing", "no harness", "")
    await log.tell("another reason")
    second = await asyncio.to_thread(saved, scratch)
    assert (second.reason, second.since) == ("another reason", first.since), "it is the same wait"
    await log.tell(None)
    third = await asyncio.to_thread(saved, scratch)
    assert (third.state, third.since) == ("connected", third.connected)
    await log.tell("another reason")
    last = await asyncio.to_thread(saved, scratch)
    assert (last.state, last.connected, last.reason) == ("dialing", third.connected, "another reason")
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "no harness",
        "another reason",
        "",
        "another reason",
    ]


async def test_a_worker_that_ended_while_it_was_connected_shows_no_reason_from_before(scratch: Path) -> None:
    log = Log(place(scratch))
    await log.tell("no harness")
    assert (await station.look(scratch)).reason == "no harness"
    await log.tell(None)
    found = await station.look(scratch)
    assert (found.state, found.reason) == ("down", "")


async def test_a_link_that_has_just_begun_is_not_connected_by_the_word_of_the_one_before(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Log(place(scratch)).tell(None)
    connected = (await asyncio.to_thread(saved, scratch)).connected
    for pid, state, since in ((os.getpid(), "connected", connected), (1, "dialing", "")):
        monkeypatch.setattr(keeper, "holder", lambda _, pid=pid: pid)
        found = await station.look(scratch)
        assert (found.state, found.since, found.connected) == (state, since, connected)


async def test_a_reason_is_logged_again_after_a_while(
    scratch: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(station, "AGAIN", 0.0)
    log = Log(place(scratch))
    for _ in range(2):
        await log.tell("no harness")
    assert len(caplog.records) == 2


async def test_a_state_that_cannot_be_written_ends_nothing(scratch: Path) -> None:
    none = scratch / "none"
    log = Log(place(none))
    await log.tell(None)
    assert not none.exists()
    none.mkdir()
    await log.tell("no harness")
    assert (await asyncio.to_thread(saved, none)).state == "dialing"


async def test_where_no_worker_is_nothing_is_started_or_ended(scratch: Path) -> None:
    found = await station.look(scratch)
    assert (found.state, found.link, found.keeper, found.keeper_release) == ("down", 0, 0, "")
    assert await station.end(scratch) == (0, 0)
    assert list(scratch.iterdir()) == []


async def test_a_keeper_alone_is_shown_and_ended(scratch: Path) -> None:
    await launch.ensure(scratch, "1")
    found = await station.look(scratch)
    assert (found.state, found.link, found.keeper_release) == ("down", 0, "1")
    assert found.keeper == keeper.holder(scratch / keeper.LOCK) > 0
    assert found.interpreters[0] == "bash"
    assert await station.end(scratch) == (0, found.keeper)
    assert (await station.look(scratch)).keeper == 0


async def test_a_harness_or_keeper_that_cannot_be_had_is_told(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(link.Gone, match=r"the harness is not at .*: No such file"):
        await station.dial(scratch / "none.sock")
    (scratch / "runs").write_text("a file where the folder goes")
    with pytest.raises(link.Gone, match="keeper did not start"):
        await station.keep(place(scratch))
    (scratch / access.FILE).mkdir()
    with pytest.raises(link.Gone, match="what is allowed cannot be written"):
        await station.keep(place(scratch))

    async def ensured(*_: object) -> Path:
        return scratch / "gone.sock"

    monkeypatch.setattr(launch, "ensure", ensured)
    with pytest.raises(link.Gone, match="the keeper went as it was asked"):
        await station.keep(place(scratch))


async def test_a_link_needs_its_folder_for_itself(scratch: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from daemon.worker import keeper, station\n"
        "with keeper.locked(Path(sys.argv[1]) / station.LOCK): print(flush=True); sys.stdin.read()"
    )
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, str(scratch)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(station.__file__).parents[2])},
    )
    assert other.stdout is not None
    assert await other.stdout.readline()
    with pytest.raises(station.LinkBusy, match=f"process {other.pid} is the worker of"):
        await station.work(place(scratch))
    await other.communicate(b"")
