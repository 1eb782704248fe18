import asyncio
import errno
import gc
import os
import zlib
from pathlib import Path

import pytest

from daemon.protocol.records import draft
from daemon.statefile.errors import MissingError, StateFileError
from daemon.statefile.store import Store
from tests.daemon.statefile.fakes import Clock, Disk, pieces, some


def open_files(data: Path) -> list[str]:
    """Names of the session files that this process has open."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = Path(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
        if target.is_relative_to(data / "sessions"):
            names.append(target.name)
    return names


async def test_a_new_session_is_its_owners_alone_and_leaves_nothing_beside_it(
    store: Store, data: Path
) -> None:
    id, log = await store.create(*some(2))
    assert (log.id, log.n, log.durable_n) == (id, 2, 2)
    assert len(id) == 16
    assert set(id) <= set("0123456789abcdef")
    assert [path.name for path in (data / "sessions").iterdir()] == [f"{id}.state"]
    assert [path.stat().st_mode & 0o777 for path in (data, data / "sessions", log.path)] == [
        0o700,
        0o700,
        0o600,
    ]
    assert log.path.read_bytes() == b"".join(
        record.raw + b"\n" + record.body + b"\n" for record in await log.read()
    )


async def test_a_session_without_a_record_is_not_made(store: Store) -> None:
    with pytest.raises(ValueError, match="begins with its start record"):
        await store.create()


async def test_ids_are_the_names_of_the_state_files_and_of_nothing_else(store: Store, data: Path) -> None:
    assert await asyncio.to_thread(store.ids) == []
    made = sorted([(await store.create(*some()))[0] for _ in range(5)])
    for name in (
        ".new-1",
        f"{made[0]}.from",
        f"{made[0]}.torn-1",
        "note.txt",
        "0123.state",
        f"{made[0]}.state.bak",
    ):
        (data / "sessions" / name).touch()
    assert await asyncio.to_thread(store.ids) == made


@pytest.mark.parametrize(
    "id", ["", "0" * 16, "../lock", "x" * 16, "0" * 15, "A" * 16, "0" * 16 + "\n", "é" * 16]
)
async def test_what_is_no_id_of_a_session_is_missing(store: Store, id: str) -> None:
    await store.create(*some())
    with pytest.raises(MissingError):
        await store.open(id)
    assert store.origin(id) is None


async def test_an_id_that_is_taken_is_drawn_again(data: Path) -> None:
    ids = iter(["a" * 16, "a" * 16, "b" * 16, "b" * 16, "b" * 16, "c" * 16])
    store = Store(data, new_id=lambda: next(ids))
    first, log = await store.create(*some())
    second, _ = await store.create(*some())
    third = await store.copy(first, 3)
    assert [first, second, third] == ["a" * 16, "b" * 16, "c" * 16]
    assert len(await log.read()) == 3
    await store.close()


async def test_random_numbers_that_repeat_are_told_from_bad_luck(data: Path) -> None:
    store = Store(data, new_id=lambda: "a" * 16)
    await store.create(*some())
    with pytest.raises(StateFileError, match="no free session id"):
        await store.create(*some())
    assert [path.name for path in (data / "sessions").iterdir()] == [f"{'a' * 16}.state"]
    await store.close()


async def test_there_is_one_log_for_a_file_as_long_as_somebody_uses_it(data: Path) -> None:
    store = Store(data, max_logs=2)
    id, log = await store.create(*some())
    others = [(await store.create(*some()))[0] for _ in range(5)]
    for other in others:
        await store.open(other)
    assert await store.open(id) is log
    await log.append(draft("message"))
    assert (await store.open(id)).n == 4
    await store.close()


async def test_those_who_open_at_the_same_time_get_the_same_log(store: Store, disk: Disk) -> None:
    id, log = await store.create(*some())
    store._live.pop(id)
    before = disk.calls
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(store.open(id)) for _ in range(20)]
    assert len({task.result() for task in tasks}) == 1
    assert tasks[0].result() is not log
    assert disk.calls == before + 1


async def test_one_who_gives_up_opening_does_not_take_the_others_along(store: Store, disk: Disk) -> None:
    id, _ = await store.create(*some())
    store._live.pop(id)
    begun = disk.hold()
    loop = asyncio.get_running_loop()
    leaving, staying = loop.create_task(store.open(id)), loop.create_task(store.open(id))
    await begun.wait()
    leaving.cancel()
    await asyncio.wait([leaving])
    disk.let_go()
    assert (await staying).n == 3


async def test_logs_that_nobody_uses_are_dropped_with_their_descriptors(data: Path) -> None:
    store = Store(data, max_logs=2)
    for _ in range(10):
        await store.create(*some())
    gc.collect()
    assert len(store._live) == 2
    assert len(open_files(data)) == 2
    await store.close()


async def test_few_descriptors_serve_many_logs(data: Path) -> None:
    store = Store(data, max_open=3)
    logs = [(await store.create(*some()))[1] for _ in range(10)]
    for k in range(3):
        for log in logs:
            await log.append(draft("message", str(k)))
            assert len(open_files(data)) <= 3
    async with asyncio.TaskGroup() as group:
        for log in logs:
            group.create_task(log.append(draft("message", "at once")))
    for log in logs:
        assert [record.text() for record in await log.read(4)] == ["0", "1", "2", "at once"]
        assert len([chunk async for chunk in log.chunks(0)]) == 1
    assert len(open_files(data)) <= 3
    await store.close()
    assert open_files(data) == []


async def test_a_descriptor_with_unsynced_records_stays_open_to_hear_of_errors(data: Path) -> None:
    store = Store(data, max_open=1)
    logs = [(await store.create(*some()))[1] for _ in range(4)]
    for log in logs:
        await log.append(draft("text"), durable=False)
    assert len(open_files(data)) == 4
    for log in logs:
        await log.sync()
    assert len(open_files(data)) == 1
    await store.close()


async def test_a_reader_that_is_cancelled_leaves_the_descriptor_to_its_thread(data: Path) -> None:
    store = Store(data, max_open=1)
    _, log = await store.create(*some(100))
    task = asyncio.get_running_loop().create_task(log.read())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    _, other = await store.create(*some())
    await other.append(draft("message"))
    assert len(await log.read()) == 100
    await store.close()
    assert open_files(data) == []


async def test_one_bad_file_hides_no_other(store: Store, data: Path) -> None:
    good, _ = await store.create(*some())
    folder = data / "sessions"
    (folder / f"{'1' * 16}.state").write_bytes(b"")
    (folder / f"{'2' * 16}.state").write_bytes(os.urandom(300))
    (folder / f"{'3' * 16}.state").mkdir()
    os.mkfifo(folder / f"{'4' * 16}.state")
    (folder / f"{'5' * 16}.state").symlink_to("nowhere")
    (folder / f"{'6' * 16}.state").symlink_to(f"{'6' * 16}.state")
    assert set(await asyncio.to_thread(store.ids)) == {good, *(str(k) * 16 for k in range(1, 7))}
    for k in (1, 2, 3, 4, 6):
        log = await store.open(str(k) * 16)
        assert log.damage is not None
        assert (log.damage.n, await log.read(), log.span(0)) == (1, [], (0, 0))
        with pytest.raises(StateFileError, match="damaged"):
            await log.append(draft("message"))
        with pytest.raises(StateFileError, match="cannot be copied with n = 3"):
            await store.copy(log.id, 3)
    with pytest.raises(MissingError):
        await store.open("5" * 16)
    assert (await store.open(good)).n == 3


async def test_a_lack_of_descriptors_is_not_taken_for_damage(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, _ = await store.create(*some())
    store._live.pop(id)
    real = os.open

    def none_left(path: str, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith(".state"):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", none_left)
        with pytest.raises(StateFileError, match="Too many open files"):
            await store.open(id)
    assert (await store.open(id)).damage is None


async def test_a_file_from_a_later_release_is_kept_byte_for_byte(store: Store, data: Path) -> None:
    (path := data / "sessions" / f"{'7' * 16}.state").parent.mkdir(parents=True)
    first, second = pieces(some(2))
    later = second.replace(b'"kind":"config"', b'"kind":"poetry"')
    line, _, body = later.partition(b"\n")
    start = line[:-18] + b',"verse":{"4":[1,2]}'
    later = b'%b,"crc":"%08x"}\n%b' % (start, zlib.crc32(body[:-1], zlib.crc32(start)), body)
    path.write_bytes(first + later)
    log = await store.open("7" * 16)
    await log.append(draft("message"))
    assert (await log.read())[1].raw + b"\n" + body == later
    copy = await store.open(await store.copy(log.id, 3))
    assert copy.path.read_bytes() == first + later


async def test_a_time_is_utc_with_milliseconds(data: Path) -> None:
    store = Store(data, clock=Clock())
    _, log = await store.create(*some(1))
    assert (await log.read())[0].header.time == "2026-03-04T05:06:08.891Z"
    await store.close()
