"""Full disks, killed daemons, two daemons: each in a process of its own."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daemon.protocol.records import draft
from daemon.statefile.errors import LockedError, NoSpaceError, StateFileError
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
