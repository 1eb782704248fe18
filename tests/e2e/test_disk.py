"""The disk is full in the middle of everything: what was told stays true, nothing half is left, and it goes on."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daemon.client import ApiFailure
from daemon.protocol import api
from daemon.protocol.records import TEXT
from tests.e2e.driving import VIA, Driver, Stage, driver, judge, pause, stage

SIZE = "2m"  # of the data folder's disk: an empty one's index and journals take a part of it
BIG = 20_000  # bytes that do not fit into what is left of a page


class SmallDisk:
    """A file system of its own at `path`, that can be filled to the last page and freed again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            for piece in (1 << 16, 1 << 12):
                try:
                    while True:
                        file.write(bytes(piece))
                except OSError:
                    continue
        free = os.statvfs(self.path)
        assert free.f_bavail == 0

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Mount a small disk. Skips, and says why, where that is not allowed."""
    path.mkdir(mode=0o700)
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("a full disk needs root and mount(8), to mount a small tmpfs: NOT TESTED HERE")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "tmpfs", str(path)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here, so a full disk is NOT TESTED: {done.stderr}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def here() -> Iterator[Stage]:
    """A stage whose daemon is ended before its disk goes."""
    folder = Path(tempfile.mkdtemp(prefix="or-"))
    with small_disk(folder / "data"), stage(folder=folder) as made:
        yield made


@pytest.fixture
def disk(here: Stage) -> SmallDisk:
    return SmallDisk(here.data)


async def agree(on: Driver, session: str) -> None:
    """What the daemon says of a session, with every record it serves, is what is in its file; no file is empty."""
    info = await on.client.info(session)
    found = on.stage.daemon.file(session)
    assert info.n == len(found)
    served = await on.client.records(session)
    assert [(record.raw, record.body) for record in served] == [(record.raw, record.body) for record in found]
    empty = [path for path in (on.stage.data / "sessions").iterdir() if path.stat().st_size == 0]
    assert empty == []


async def test_a_post_to_a_full_disk_is_refused_and_leaves_nothing(here: Stage, disk: SmallDisk) -> None:
    async with driver(here) as on:
        session = await on.session("Go.")
        before = await on.closes(session)
        disk.fill()
        with pytest.raises(ApiFailure) as refused:
            await on.post(session, "x" * BIG)
        assert refused.value.status == 507
        assert "No space left" in refused.value.message
        assert here.daemon.file(session) == before
        await agree(on, session)
        with pytest.raises(ApiFailure) as refused:
            await on.client.create(api.Create(model="mock/script", instructions="x" * BIG))
        assert refused.value.status == 507
        disk.free()
        await on.post(session, "y" * BIG)
        found = await on.closes(session)
        judge(found)
        assert [record.body[:1] for record in found if record.kind == "message"] == [b"[", b"y"]
        await agree(on, session)
        assert len(await on.client.list()) == 1
        assert await here.mock.get("bad") == []


async def test_a_post_refused_for_space_and_sent_again_under_its_key_lands_once(
    here: Stage, disk: SmallDisk
) -> None:
    async with driver(here) as on:
        session = await on.session("Go.")
        await on.closes(session)
        disk.fill()
        part = api.Part(TEXT, b"z" * BIG)
        with pytest.raises(ApiFailure):
            await on.client.post(session, [part], VIA, "key")
        disk.free()
        n = await on.client.post(session, [part], VIA, "key")
        assert await on.client.post(session, [part], VIA, "key") == n
        found = await on.closes(session)
        assert [record.n for record in found if record.body == part.body] == [n]


@pytest.mark.parametrize("large", ["text", "code"])
async def test_an_answer_that_cannot_be_recorded_is_not_acted_on(
    here: Stage, disk: SmallDisk, large: str
) -> None:
    async with driver(here) as on:
        long = {"text": {"text": "t" * BIG}, "code": {}}[large]
        comment = f"# {'c' * BIG}" if large == "code" else ""
        await here.mock.config(calls=1, code=f"echo {{conv}} >> ran {comment}", trouble="hold", **long)
        session = await on.session("Go.")
        await on.requested(session)
        disk.fill()
        await here.mock.config(trouble="")
        await here.mock.release()
        info = await on.rests(session)
        assert info.status in ("failed", "open")
        assert here.ran() == [], "a call that could not be recorded was carried out"
        await agree(on, session)
        disk.free()
        await on.client.retry(session)
        found = await on.closes(session)
        judge(found)
        await agree(on, session)
        assert here.ran() == [session]
        assert await here.mock.get("bad") == []


async def test_a_result_that_cannot_be_recorded_is_found_again_and_its_run_not_repeated(
    here: Stage, disk: SmallDisk
) -> None:
    async with driver(here) as on:
        waits = "echo {conv} >> ran; echo on; until [ -e go ]; do sleep 0.02; done"
        code = f"{waits}; head -c {BIG} /dev/zero | tr '\\0' x"
        await here.mock.config(calls=1, code=code)
        session = await on.session()
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
        disk.fill()
        (here.folder / "go").touch()
        info = await on.rests(session)
        assert info.status in ("failed", "interrupted")
        await agree(on, session)
        disk.free()
        await on.client.retry(session)
        found = await on.closes(session)
        judge(found)
        (result,) = [record for record in found if record.kind == "result"]
        assert result.header.exit == 0
        assert result.text().count("x") >= BIG - 200 or result.header.truncated
        assert here.ran() == [session]
        assert await here.mock.get("bad") == []


async def test_a_daemon_killed_on_a_full_disk_starts_there_and_goes_on_when_there_is_room(
    here: Stage, disk: SmallDisk
) -> None:
    async with driver(here) as on:
        await here.mock.config(calls=1, code="echo {conv} >> ran", text="t" * BIG, trouble="hold")
        session = await on.session("Go.")
        await on.requested(session)
        here.daemon.kill()
        disk.fill()
        await here.daemon.start()
        await on.requested(session, 2)
        disk.fill()
        await here.mock.config(trouble="")
        await here.mock.release()
        info = await on.rests(session)
        assert info.status in ("failed", "open")
        assert here.ran() == []
        disk.free()
        await on.client.retry(session)
        judge(await on.closes(session))
        await agree(on, session)
        assert here.ran() == [session]


async def test_a_stop_on_a_full_disk_ends_what_runs_and_says_that_it_was_not_recorded(
    here: Stage, disk: SmallDisk
) -> None:
    async with driver(here) as on:
        await here.mock.config(calls=1, parallel=60, code="echo on; sleep 600; echo late >> ran")
        session = await on.session()
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
        disk.fill()
        with pytest.raises(ApiFailure) as refused:
            await on.client.stop(session, VIA)
        assert refused.value.status == 507
        info = await on.rests(session)
        await agree(on, session)
        disk.free()
        assert info.status in ("interrupted", "failed")
        await on.client.retry(session)
        judge(await on.closes(session))
        assert here.ran() == []


async def test_a_disk_that_fills_and_empties_during_a_turn_leaves_no_lie(
    here: Stage, disk: SmallDisk
) -> None:
    async with driver(here) as on:
        code = "echo {conv}.{k}.{p} >> ran; head -c 5000 /dev/zero | tr '\\0' x"
        await here.mock.config(calls=4, parallel=2, code=code, text="t" * 3000, event_delay=0.01)
        sessions = [await on.session("Go.") for _ in range(3)]
        for _ in range(6):
            disk.fill()
            await pause(0.15)
            disk.free()
            await pause(0.15)
            for session in sessions:
                if (await on.client.info(session)).status in ("failed", "open", "interrupted"):
                    await on.client.retry(session)
        for session in sessions:
            while (await on.rests(session)).status != "closed":
                await on.client.retry(session)
            judge(await on.closes(session))
            await agree(on, session)
        ran = here.ran()
        assert len(set(ran)) == len(ran), "something ran twice"
        closed = [
            json.loads(record.body)["arguments"]
            for session in sessions
            for record in here.daemon.file(session)
            if record.kind == "call"
        ]
        assert all(any(word in arguments for arguments in closed) for word in ran)
        assert await here.mock.get("bad") == []


@pytest.fixture
def scratch() -> Iterator[tuple[Stage, SmallDisk]]:
    """A stage whose worker's scratch alone is on a small disk."""
    folder = Path(tempfile.mkdtemp(prefix="or-"))
    (folder / "data").mkdir(mode=0o700)
    with small_disk(folder / "data/worker") as disk, stage(folder=folder) as made:
        yield made, disk


async def test_a_worker_whose_disk_is_full_begins_nothing_and_says_so(
    scratch: tuple[Stage, SmallDisk],
) -> None:
    here, disk = scratch
    async with driver(here) as on:
        await here.mock.config(calls=1, code=f"echo {{conv}} >> ran # {'c' * BIG}")
        first = await on.session("Go.")
        await on.closes(first)
        disk.fill()
        session = await on.session("Go.")
        found = await on.closes(session)
        judge(found)
        (result,) = [record for record in found if record.kind == "result"]
        assert result.header.failed
        assert "not begun" in result.text()
        assert "No space left" in result.text()
        disk.free()
        await on.post(session, "Once more.")
        await on.closes(session)
        assert here.ran() == [first, session]
        assert await here.mock.get("bad") == []


async def test_a_run_whose_workers_disk_fills_meanwhile_gives_its_result_and_the_end_of_its_output(
    scratch: tuple[Stage, SmallDisk],
) -> None:
    here, disk = scratch
    async with driver(here) as on:
        waits = "echo {conv} >> ran; echo on; until [ -e go ]; do sleep 0.02; done"
        await here.mock.config(calls=1, code=f"{waits}; seq 100000; echo last; exit 4")
        session = await on.session()
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
        disk.fill()
        (here.folder / "go").touch()
        found = await on.closes(session)
        judge(found)
        (result,) = [record for record in found if record.kind == "result"]
        assert result.header.exit == 4
        assert "\nlast\n" in result.text() + "\n"
        assert "No space left" in result.text()
        here.daemon.kill()
        await here.daemon.start()
        disk.free()
        await on.post(session, "Once more.")
        await on.closes(session)
        assert here.ran() == [session] * 2
