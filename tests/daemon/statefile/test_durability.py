import asyncio
import errno

import pytest

from daemon.protocol.records import draft
from daemon.statefile.errors import ReopenError, StateFileError
from daemon.statefile.scan import scan
from daemon.statefile.store import Store
from daemon.statefile.writer import ON_LOOP
from tests.daemon.statefile.fakes import Disk, some

EIO = OSError(errno.EIO, "Input/output error")


async def test_readers_see_a_record_when_it_is_on_disk_and_not_before(store: Store, disk: Disk) -> None:
    _, log = await store.create(*some(3))
    await log.append(draft("message", "warm"))
    begun = disk.hold()
    async with asyncio.TaskGroup() as group:
        append = group.create_task(log.append(draft("message", "new")))
        reader = group.create_task(log.wait(4))
        await begun.wait()
        assert (log.n, log.durable_n, log.due_n) == (5, 4, 5)
        assert log.span(4) == (log.path.stat().st_size - len((await log.read(5))[0].raw) - 5, log.span(4)[1])
        assert log.span(4)[0] == log.span(4)[1]
        assert [chunk async for chunk in log.chunks(4)] == []
        assert (await log.headers(0)).count(b"\n") == 4
        with pytest.raises(ValueError, match="records 1 to 4"):
            log.span(5)
        assert not append.done()
        assert not reader.done()
        disk.let_go()
    assert log.durable_n == 5


async def test_a_sync_covers_what_was_written_before_it_and_nothing_after(store: Store, disk: Disk) -> None:
    _, log = await store.create(*some(3))
    begun = disk.hold()
    async with asyncio.TaskGroup() as group:
        group.create_task(log.append(draft("message")))
        await begun.wait()
        await log.append(draft("text", "later"), durable=False)
        reader = group.create_task(log.wait(3))
        disk.let_go()
        await reader
        assert (log.n, log.durable_n, log.due_n) == (5, 4, 4)


async def test_those_who_come_during_a_sync_share_the_next(store: Store, disk: Disk) -> None:
    _, log = await store.create(*some(3))
    await log.append(draft("message", "warm"))
    begun, before = disk.hold(), disk.calls
    async with asyncio.TaskGroup() as group:
        group.create_task(log.append(draft("message", "first")))
        await begun.wait()
        rest = [group.create_task(log.append(draft("message", str(k)))) for k in range(100)]
        disk.let_go()
    assert disk.calls - before == 2
    assert [task.result()[0].n for task in rest] == list(range(6, 106))
    assert [record.text() for record in await log.read(6)] == [str(k) for k in range(100)]


async def test_records_that_nobody_waits_for_are_not_synced(store: Store, disk: Disk) -> None:
    _, log = await store.create(*some(3))
    await log.append(draft("text"), durable=False)
    await log.append(draft("text"), durable=False)
    assert (log.n, log.durable_n, disk.calls) == (5, 3, 0)
    await log.sync()
    assert (log.durable_n, disk.calls) == (5, 1)
    await log.sync()
    assert disk.calls == 1


async def test_200_readers_wake_at_one_append(store: Store) -> None:
    _, log = await store.create(*some(3))
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(log.wait(3)) for _ in range(200)]
        ahead = group.create_task(log.wait(4))
        await asyncio.sleep(0)
        await log.append(draft("message"))
        await asyncio.wait(readers)
        assert not ahead.done()
        ahead.cancel()
    await log.wait(3)
    await log.wait(0)


async def test_a_reader_that_leaves_leaves_nothing(store: Store) -> None:
    _, log = await store.create(*some(3))
    for _ in range(10):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await log.wait(3)
    assert not log._waiting


async def test_a_writer_that_leaves_does_not_take_the_sync_with_it(store: Store, disk: Disk) -> None:
    _, log = await store.create(*some(3))
    begun = disk.hold()
    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(log.append(draft("message", "a")))
        staying = group.create_task(log.append(draft("message", "b")))
        await begun.wait()
        leaving.cancel()
        await asyncio.wait([leaving])
        disk.let_go()
    assert staying.result()[0].n == 5
    assert log.durable_n == 5


async def test_a_sync_that_fails_is_never_taken_for_one_that_worked(
    store: Store, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    id, log = await store.create(*some(3))
    await log.append(draft("message", "kept"))
    size = log.path.stat().st_size
    disk.error = EIO
    for write in (log.append(draft("message", "lost")), log.append(draft("message", "too")), log.sync()):
        with pytest.raises(ReopenError, match=r"has to be opened again: the disk did not confirm a write"):
            await write
    disk.error = None
    with pytest.raises(ReopenError):
        await log.append(draft("message", "still refused"))
    assert "the disk did not confirm a write" in caplog.text
    assert log.broken
    assert len(await log.read()) == 4
    fresh = await store.open(id)
    assert fresh is not log
    assert fresh.path.stat().st_size == size
    assert (fresh.n, fresh.durable_n, fresh.broken) == (4, 4, False)
    assert (await fresh.append(draft("message", "goes on")))[0].n == 5
    assert await store.open(id) is fresh


async def test_all_who_wait_hear_of_a_failed_sync(store: Store, disk: Disk) -> None:
    _, log = await store.create(*some(3))
    begun = disk.hold()
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(log.append(draft("message", str(k)))) for k in range(3)]
    tasks_of_readers = [loop.create_task(log.wait(3)), loop.create_task(log.wait(99))]
    await begun.wait()
    await log.append(draft("text", "not waited for"), durable=False)
    disk.error = EIO
    disk.let_go()
    done, _ = await asyncio.wait([*tasks, *tasks_of_readers])
    assert {type(task.exception()) for task in done} == {ReopenError}
    await log.at_rest()
    assert (log.n, log.durable_n) == (3, 3)
    assert len(scan(log.path).offsets) == 3


async def test_a_large_write_under_way_when_a_sync_fails_is_cut_off_too(store: Store, disk: Disk) -> None:
    _, log = await store.create(*some(3))
    begun = disk.hold()
    loop = asyncio.get_running_loop()
    small = loop.create_task(log.append(draft("message")))
    await begun.wait()
    large = loop.create_task(log.append(draft("message", bytes(3 * ON_LOOP))))
    await asyncio.sleep(0)
    disk.error = EIO
    disk.let_go()
    done, _ = await asyncio.wait([small, large])
    assert {type(task.exception()) for task in done} == {ReopenError}
    await log.at_rest()
    found = scan(log.path)
    assert (len(found.offsets), found.damage, found.torn) == (3, None, 0)


async def test_a_session_whose_disk_does_not_answer_opens_when_it_does_again(
    store: Store, disk: Disk
) -> None:
    id, log = await store.create(*some(3))
    store._live.pop(id)
    disk.error = EIO
    for _ in range(2):
        with pytest.raises(ReopenError, match="the disk does not confirm what is in it: Input/output error"):
            await store.open(id)
    disk.error = None
    fresh = await store.open(id)
    assert fresh is not log
    assert fresh.durable_n == 3


async def test_opening_makes_durable_what_a_killed_daemon_left(store: Store, disk: Disk) -> None:
    id, log = await store.create(*some(3))
    await log.append(draft("text"), durable=False)
    store._live.pop(id)
    before = disk.calls
    assert (await store.open(id)).durable_n == 4
    assert disk.calls == before + 1


async def test_closing_syncs_and_then_refuses(store: Store, disk: Disk) -> None:
    id, log = await store.create(*some(3))
    await log.append(draft("text"), durable=False)
    reader = asyncio.get_running_loop().create_task(log.wait(9))
    await asyncio.sleep(0)
    await store.close()
    assert (log.durable_n, disk.calls) == (4, 1)
    with pytest.raises(StateFileError, match="closed"):
        await reader
    for refused in (
        log.append(draft("text")),
        log.read(),
        log.wait(4),
        store.open(id),
        store.create(*some()),
        store.copy(id, 3),
    ):
        with pytest.raises(StateFileError, match="closed"):
            await refused
