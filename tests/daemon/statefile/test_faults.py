"""Full disks, killed daemons, two daemons: each in a process of its own."""

import asyncio
import contextlib
import errno
import json
import os
import stat
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from daemon.protocol.records import draft
from daemon.statefile.errors import DamagedError, LockedError, NoSpaceError, ReopenError, StateFileError
from daemon.statefile.scan import scan
from daemon.statefile.store import Store
from tests.daemon.statefile.fakes import Clock, some

APPENDS = """
import asyncio, sys
from pathlib import Path
from daemon.protocol.records import draft
from daemon.statefile.store import Store

async def main():
    store = Store(Path(sys.argv[1]))
    id, log = await store.create(draft("start"), draft("config", "{}"))
    print(id, flush=True)
    async def writer(name):
        for k in range(10**9):
            done = await log.append(draft("message", f"{name} {k} " + "x" * (k % 7000)))
            print(done[0].n, name, k, flush=True)
    async with asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(writer(name))

asyncio.run(main())
"""

LIMITED = """
import asyncio, json, resource, sys
from pathlib import Path
from daemon.protocol.records import draft
from daemon.statefile.errors import NoSpaceError
from daemon.statefile.store import Store

async def main():
    store = Store(Path(sys.argv[1]))
    id, log = await store.create(draft("start"), draft("config", "{}"))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_011, hard))
    size = int(sys.argv[2])
    try:
        while True:
            await log.append(draft("message", "x" * size), draft("text", "y"))
    except NoSpaceError as error:
        why = str(error)
    full = log.n, log.durable_n, log.path.stat().st_size
    with_less = (await log.append(draft("message", "small")))[0].n
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    after = (await log.append(draft("message", "x" * size)))[0].n
    await store.close()
    print(json.dumps([id, why, full, with_less, after]))

asyncio.run(main())
"""

HOLDS = """
import sys
from pathlib import Path
from daemon.statefile.store import Store

with Store(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


@asynccontextmanager
async def child(code: str, *arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python process that runs `code`; killed at the end, if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *map(str, arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode()


@pytest.mark.parametrize("kill_after", [1, 7, 100, 400])
async def test_what_was_acknowledged_before_a_kill_is_there(data: Path, kill_after: int) -> None:
    async with child(APPENDS, data) as process:
        id = (await line(process)).strip()
        acknowledged = [await line(process) for _ in range(kill_after)]
        process.kill()
        assert process.stdout is not None
        acknowledged += (await process.stdout.read()).decode().splitlines(keepends=True)
    store = Store(data)
    log = await store.open(id)
    found = {record.n: record.text().split()[:2] for record in (await log.read())[2:]}
    assert log.damage is None
    assert list(found) == list(range(3, log.n + 1))
    for n, *words in (text.split() for text in acknowledged if text.endswith("\n")):
        assert found[int(n)] == words
    assert (await log.append(draft("message", "goes on")))[0].n == len(found) + 3
    await store.close()
    assert scan(log.path).damage is None


@pytest.mark.parametrize("size", [100, 3000, 2 << 20])
async def test_a_short_write_is_cut_off_again(data: Path, size: int) -> None:
    async with child(LIMITED, data, size) as process:
        out, _ = await process.communicate()
    id, why, (n, durable_n, length), with_less, after = json.loads(out)
    assert why == f"session {id} cannot be written: File too large"
    assert n == durable_n == with_less - 1 == after - 2
    assert n % 2 == 0
    assert length <= 20_011
    store = Store(data)
    log = await store.open(id)
    assert [record.header.len for record in await log.read(n + 1)] == [5, size]
    assert log.span(n)[0] == length
    assert scan(log.path).torn == 0
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], capture_output=True, text=True
    )
    if mounted.returncode:
        reason = f"a full disk is not tested: no tmpfs can be mounted ({mounted.stderr.strip()})"
        warnings.warn(reason, pytest.PytestWarning, stacklevel=1) if os.getuid() == 0 else None
        pytest.skip(reason)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def fill(folder: Path) -> Path:
    """Use all the room that is left."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return path


async def test_a_full_disk_refuses_and_spoils_nothing(small_disk: Path) -> None:
    store = Store(small_disk / "data", clock=Clock())
    id, log = await store.create(*some(3))
    await log.append(draft("message", "x" * 1000))
    filler = fill(small_disk)
    before = log.path.read_bytes()
    for size in (5000, 2 << 20):
        with pytest.raises(NoSpaceError, match="No space left on device"):
            await log.append(draft("call", bytes(size)))
    with pytest.raises(NoSpaceError, match="No space left on device"):
        await store.create(*some(3), draft("message", bytes(5000)))
    with pytest.raises(NoSpaceError, match="No space left on device"):
        await store.copy(id, 4)
    assert log.path.read_bytes() == before
    assert sorted(os.listdir(small_disk / "data" / "sessions")) == [f"{id}.state"]
    assert (log.n, log.durable_n, log.broken) == (4, 4, False)
    filler.unlink()
    assert (await log.append(draft("call", bytes(5000))))[0].n == 5
    copy = await store.copy(id, 4)
    await store.close()
    again = Store(small_disk / "data")
    assert [(await again.open(each)).n for each in (id, copy)] == [5, 3]
    await again.close()


async def test_a_full_disk_keeps_a_torn_tail_where_it_is(small_disk: Path) -> None:
    store = Store(small_disk / "data", clock=Clock())
    id, log = await store.create(*some(3), draft("message", bytes(9000)))
    await store.close()
    os.truncate(log.path, log.path.stat().st_size - 1)
    before = log.path.read_bytes()
    filler = fill(small_disk)
    store = Store(small_disk / "data", clock=Clock())
    log = await store.open(id)
    for _ in range(2):
        with pytest.raises(NoSpaceError):
            await log.append(draft("message"))
    assert log.path.read_bytes() == before
    assert os.listdir(small_disk / "data" / "sessions") == [f"{id}.state"]
    filler.unlink()
    await log.append(draft("message"))
    (aside,) = log.path.parent.glob("*.torn-*")
    assert aside.read_bytes() == before[log.span(3)[0] :]
    await store.close()


async def test_a_second_daemon_is_refused_and_told_who_holds_the_folder(data: Path) -> None:
    async with child(HOLDS, data) as process:
        assert await line(process) == "held\n"
        with pytest.raises(LockedError, match=f"in use by process {process.pid}: end that daemon") as refused:
            await asyncio.to_thread(Store(data).lock().__enter__)
        assert refused.value.pid == process.pid
        process.kill()
        await process.wait()
        await asyncio.to_thread(hold_once, data)


def hold_once(data: Path) -> None:
    with Store(data).lock():
        assert (data / "lock").read_text() == f"{os.getpid()}\n"
    assert (data / "lock").read_text() == ""


def test_the_lock_makes_the_folder_for_its_owner_and_is_free_after(data: Path) -> None:
    hold_once(data / "deep" / "er")
    assert (data / "deep" / "er").stat().st_mode & 0o777 == 0o700
    with Store(data).lock(), pytest.raises(LockedError, match=f"process {os.getpid()}"), Store(data).lock():
        pass
    hold_once(data)


def test_a_holder_that_has_not_said_its_name_is_another_process(data: Path) -> None:
    with Store(data).lock():
        os.truncate(data / "lock", 0)
        with pytest.raises(LockedError, match="in use by another process"), Store(data).lock():
            pass


def test_a_folder_that_cannot_be_used_is_named(data: Path) -> None:
    data.write_text("a file")
    with pytest.raises(StateFileError, match=f"the data folder {data} cannot be used: "), Store(data).lock():
        pass


def test_what_a_killed_daemon_was_about_to_name_is_removed(data: Path) -> None:
    hold_once(data)
    (data / "sessions" / ".new-0123").write_bytes(b"half a session")
    hold_once(data)
    assert list((data / "sessions").iterdir()) == []


FULL = OSError(errno.ENOSPC, "No space left on device")
BAD = OSError(errno.EIO, "Input/output error")


def failing(error: OSError) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise error

    return fail


@pytest.mark.parametrize("size", [10, 2 << 20])
async def test_a_failed_write_that_cannot_be_cut_off_is_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    id, log = await store.create(*some(3))
    real = os.pwrite

    def half(fd: int, data: bytes, offset: int) -> int:
        if offset > len(before):
            raise FULL
        return real(fd, data[: len(data) // 2], offset)

    before = log.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        patch.setattr(os, "ftruncate", failing(BAD))
        with pytest.raises(ReopenError, match="a failed write could not be cut off: No space left on device"):
            await log.append(draft("message", bytes(size)))
        await log.at_rest()
    assert f"session {id}: could not be cut back: Input/output error" in caplog.text
    assert len(log.path.read_bytes()) > len(before)
    fresh = await store.open(id)
    assert (fresh.n, fresh.damage) == (3, None)
    await fresh.append(draft("message", "goes on"))
    assert fresh.path.read_bytes().startswith(before)
    assert scan(fresh.path).torn == 0


async def test_a_disk_that_writes_nothing_is_a_full_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, log = await store.create(*some(3))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: 0)
        with pytest.raises(NoSpaceError, match="No space left on device"):
            await log.append(draft("message"))
    assert (await log.append(draft("message")))[0].n == 4


async def test_a_bad_sector_is_damage(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _, log = await store.create(*some(3))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", failing(BAD))
        damage = scan(log.path).damage
        assert damage is not None
        assert damage.reason == "the disk does not give it: Input/output error"
        with pytest.raises(DamagedError, match="the disk does not give it: Input/output error"):
            await log.read()


async def test_a_folder_that_cannot_be_synced_gets_no_session(
    store: Store, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, _ = await store.create(*some(3))
    real = os.fsync

    def no_folders(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise BAD
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_folders)
        for attempt in (store.create(*some(3)), store.copy(id, 3)):
            with pytest.raises(NoSpaceError, match="sessions cannot be written: Input/output error"):
                await attempt
    assert [path.name for path in (data / "sessions").iterdir()] == [f"{id}.state"]


async def test_a_write_that_the_end_of_the_loop_stops_is_not_built_upon(store: Store) -> None:
    _, log = await store.create(*some(3))
    append = asyncio.get_running_loop().create_task(log.append(draft("message", bytes(8 << 20))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in store._threads._tasks:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await append
    with pytest.raises(ReopenError, match="a write was stopped half-way"):
        await log.append(draft("message"))
    await log.at_rest()
