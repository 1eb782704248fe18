"""The list of sessions: from the index, from memory, and always what the files say."""

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from daemon import chain
from daemon.harness import errors
from daemon.protocol import api, records
from daemon.protocol.framing import FramingError
from daemon.protocol.records import BadRecord, Config, Record, Status
from daemon.provider.base import ProviderError, Query, Request, Wire
from daemon.statefile.errors import StateFileError
from daemon.statefile.index import FILE
from daemon.statefile.memory import MemoryStore
from daemon.statefile.store import Store
from tests.daemon.harness.doubles import Bench, Clock, FakePool, FakeProvider, Scripted, bench, says, text
from tests.daemon.statefile.fakes import Disk as Held


class Same(FakeProvider):
    """Gives the same answer to everybody, as often as it is asked."""

    def __init__(self, *answer: Scripted) -> None:
        super().__init__()
        self._now = list(answer) or says(text("ok"))

    def compile(self, query: Query, wire: Wire) -> Request:
        self.queries.append(query)
        self.asked.set()
        return Request("", {}, b"{}")


class Disk:
    """A sync that fails with EIO while `bad` is true."""

    def __init__(self) -> None:
        self.bad = False

    def __call__(self, fd: int) -> None:
        if self.bad:
            raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
async def store(tmp_path: Path, disk: Disk) -> AsyncIterator[Store]:
    store = Store(tmp_path, clock=Clock(), sync=disk)
    yield store
    await store.close()


def path_of(data: Path, id: str) -> Path:
    return data / "sessions" / f"{id}.state"


def read(path: Path) -> list[Record]:
    """The records of a file, as far as it reads."""
    decoder, found = records.decoder(), list[Record]()
    decoder.feed(path.read_bytes())
    try:
        while (unit := decoder.next()) is not None:
            records.check(unit[1], unit[2])
            found.append(Record(unit[0], unit[2], unit[1]))
    except (FramingError, BadRecord):
        pass
    return found


def folded(data: Path) -> list[api.Info]:
    """What the list has to be, from the files alone; one without a whole record is damaged."""
    infos = []
    for path in (data / "sessions").glob("*.state"):
        one = chain.fold(read(path))
        sidecar = path.with_suffix(".from")
        origin = msgspec.json.decode(sidecar.read_bytes(), type=api.Origin) if sidecar.exists() else None
        made = origin.time if origin is not None else ""
        infos.append(
            api.Info(
                id=path.stem,
                status=one.status if one.n else "damaged",
                config=one.config or Config(""),
                created=made or one.created,
                updated=made if origin is not None and made and one.n < origin.n else one.updated,
                n=one.n,
                prompt=one.prompt,
                usage=one.usage,
                title=one.title,
                from_=origin,
            )
        )
    return sorted(infos, key=lambda info: (info.updated, info.id), reverse=True)


async def listed(b: Bench, **asked: Any) -> list[api.Info]:
    """The list without what stands about damage, which is a sentence for people."""
    return [structs.replace(info, damage="") for info in await b.harness.list(**asked)]


async def in_pages(b: Bench, limit: int, status: Status | None = None) -> list[api.Info]:
    found: list[api.Info] = []
    while page := await listed(b, limit=limit, after=found[-1].id if found else "", status=status):
        found += page
    return found


async def settled(b: Bench, ids: Sequence[str]) -> None:
    for id in ids:
        try:
            await b.rest(id)
        except errors.HarnessError:
            continue  # removed, or cannot be opened


async def many(store: Store, count: int) -> list[str]:
    """So many sessions that have been answered."""
    async with bench(store, Same(), FakePool("w")) as b:
        ids = [await b.session(f"question {k}") for k in range(count)]
        await settled(b, ids)
    return ids


async def test_sessions_that_are_not_in_memory_are_listed_as_their_files_say(
    store: Store, tmp_path: Path
) -> None:
    await many(store, 90)  # more than are kept in memory
    async with bench(store, Same(), FakePool("w")) as b:
        assert await listed(b) == folded(tmp_path)
        assert await in_pages(b, 7) == folded(tmp_path)
        assert await listed(b, status="open") == []
        assert len(await listed(b, status="closed")) == 90
        assert await b.harness.tally() == {"closed": 90}
        for info in folded(tmp_path):
            assert await b.harness.info(info.id) == info


async def test_an_idle_daemon_holds_nothing_about_sessions_it_did_not_load(
    store: Store, tmp_path: Path
) -> None:
    ids = await many(store, 90)
    async with bench(store, Same(), FakePool("w")) as b:
        await b.harness.list()
        for id in ids:
            await b.harness.info(id)
        sessions = b.harness._sessions
        assert (len(sessions._loaded), len(sessions._touched), len(sessions._notes)) == (0, 0, 0)


async def test_a_start_reads_only_the_files_that_changed(store: Store, tmp_path: Path) -> None:
    ids = await many(store, 10)
    times = {id: path_of(tmp_path, id).stat() for id in ids}
    unread, changed = ids[:5], ids[5:]
    for id in unread:  # other bytes under the same size and time: who reads the file sees damage
        path_of(tmp_path, id).write_bytes(bytes(times[id].st_size))
        os.utime(path_of(tmp_path, id), ns=(times[id].st_atime_ns, times[id].st_mtime_ns))
    for id in changed:
        path_of(tmp_path, id).write_bytes(bytes(times[id].st_size + 1))
    async with bench(store, Same(), FakePool("w")) as b:
        assert {info.id for info in await b.harness.list(status="damaged")} == set(changed)
        assert {info.id for info in await b.harness.list(status="closed")} == set(unread)


@pytest.mark.parametrize("fault", ["deleted", "corrupt", "of another release", "older than the files"])
async def test_the_index_can_be_lost_and_nothing_is(store: Store, tmp_path: Path, fault: str) -> None:
    ids = await many(store, 12)
    old = (tmp_path / FILE).read_bytes()
    async with bench(store, Same(), FakePool("w")) as b:
        for id in ids[3:6]:
            await b.post(id, "more")
        await settled(b, ids)
    match fault:
        case "deleted":
            (tmp_path / FILE).unlink()
        case "corrupt":
            (tmp_path / FILE).write_bytes(old[:3000] + bytes(3000) + old[6000:])
        case "of another release":
            (tmp_path / FILE).write_bytes(old.replace(b" 0.0", b" 0.9"))
        case _:
            (tmp_path / FILE).write_bytes(old)
    async with bench(store, Same(), FakePool("w")) as b:
        assert await listed(b) == folded(tmp_path)


async def test_an_index_that_breaks_while_the_daemon_runs_is_filled_again(
    store: Store, tmp_path: Path
) -> None:
    await many(store, 5)
    async with bench(store, Same(), FakePool("w")) as b:
        assert len(await b.harness.list()) == 5
        index = b.harness._sessions._index
        await index._run(lambda db: db.execute("DROP TABLE sessions"))
        assert await listed(b) == folded(tmp_path)
        await asyncio.to_thread(
            os.utime, tmp_path / "sessions", ns=(0, 0)
        )  # a folder that rests is not looked at
        assert len(await b.harness.list()) == 5
        await index._run(lambda db: db.execute("DROP TABLE sessions"))
        assert await b.harness.tally() == {"closed": 5}
        assert await listed(b) == folded(tmp_path)


async def test_a_session_that_needs_a_step_is_stepped_at_the_start_whatever_the_index_says(
    store: Store, tmp_path: Path
) -> None:
    ids = await many(store, 5)
    log = await store.open(ids[0])
    await log.append(records.draft("message", "written by a daemon that was killed", via="me"))
    async with bench(store, Same(), FakePool("w")) as b:
        assert await b.rest(ids[0]) == "closed"
        assert len(b.provider.queries) == 1
        log = await store.open(ids[1])
        await log.append(records.draft("message", "told to the index, and then killed", via="me"))
        assert (await b.harness.info(ids[1])).status == "open"
    async with bench(store, Same(), FakePool("w")) as b:
        assert await b.rest(ids[1]) == "closed"


async def test_files_that_come_and_go_by_hand_come_and_go_in_the_list(store: Store, tmp_path: Path) -> None:
    ids = await many(store, 5)
    async with bench(store, Same(), FakePool("w")) as b:
        await b.post(ids[0], "more")
        await b.rest(ids[0])
        shutil.copy(path_of(tmp_path, ids[1]), path_of(tmp_path, "0123456789abcdef"))
        path_of(tmp_path, ids[0]).unlink()
        path_of(tmp_path, ids[2]).unlink()
        found = await listed(b)
        assert found == folded(tmp_path)
        assert {info.id for info in found} == {ids[1], ids[3], ids[4], "0123456789abcdef"}
        for id in (ids[0], ids[2]):
            with pytest.raises(errors.NotFound, match=f"there is no session '?{id}"):
                await b.harness.info(id)
        with pytest.raises(errors.Malformed, match="after: there is no session"):
            await b.harness.list(after=ids[0])


async def test_a_file_that_another_program_changed_is_read_again(store: Store, tmp_path: Path) -> None:
    first, second = await many(store, 2)
    async with bench(store, Same(), FakePool("w")) as b:
        for id in (first, second):
            path_of(tmp_path, id).write_bytes(path_of(tmp_path, id).read_bytes()[:-20])
        assert (await b.harness.info(first)).n == len(read(path_of(tmp_path, first)))
        assert await listed(b) == folded(tmp_path)


async def test_a_damaged_session_is_listed_with_its_damage(store: Store, tmp_path: Path) -> None:
    ids = await many(store, 3)
    whole = path_of(tmp_path, ids[1]).read_bytes()
    path_of(tmp_path, ids[1]).write_bytes(whole.replace(b"question 1", b"question X"))
    path_of(tmp_path, ids[2]).write_bytes(b"")
    path_of(tmp_path, "00000000000000ff").mkdir()
    async with bench(store, Same(), FakePool("w")) as b:
        for _ in range(2):  # from the files, then from memory
            found = {info.id: info for info in await b.harness.list()}
            assert found[ids[0]].status == "closed"
            assert (found[ids[1]].status, found[ids[1]].n) == ("damaged", 3)
            assert found[ids[1]].damage.startswith("record 4 at byte ")
            assert found[ids[2]].damage == "record 1 at byte 0: the file is empty"
            assert found["00000000000000ff"].damage == "record 1 at byte 0: it is not a regular file"
            for id in found.keys() - {ids[0]}:
                with pytest.raises(errors.Conflict, match="is damaged"):
                    await b.post(id, "x")
            assert {info.id: info for info in await b.harness.list()} == found


async def test_a_body_that_makes_no_sense_is_damage_in_the_list_as_in_memory(
    store: Store, tmp_path: Path
) -> None:
    (id,) = await many(store, 1)
    log = await store.open(id)
    await log.append(records.draft("config", b"{", "application/json"))
    async with bench(store, Same(), FakePool("w")) as b:
        cold = await b.harness.info(id)
        assert cold.damage.startswith(f"record {log.n} at byte ")
        await b.harness._sessions.get(id)
        assert await b.harness.info(id) == cold
        assert await b.harness.list() == [cold]


async def test_a_write_during_a_list_is_in_the_next_one(store: Store, tmp_path: Path) -> None:
    ids = await many(store, 10)
    async with bench(store, Same(), FakePool("w")) as b:
        async with asyncio.TaskGroup() as group:
            lists = []
            for id in ids:
                lists.append(group.create_task(b.harness.list(), name="list"))
                group.create_task(b.post(id, "more"), name="post")
        assert all(len(task.result()) == 10 for task in lists)
        now = {info.id: info for info in await b.harness.list()}
        assert all(now[id].n > 8 for id in ids)
        await settled(b, ids)
        assert await listed(b) == folded(tmp_path)


async def test_pages_miss_and_repeat_nothing_while_others_are_written(store: Store, tmp_path: Path) -> None:
    ids = await many(store, 20)
    async with bench(store, Same(), FakePool("w")) as b:
        found: list[api.Info] = []
        while page := await b.harness.list(limit=4, after=found[-1].id if found else ""):
            found += page
            await b.post(ids[-1], "moves to the front")
            await b.session("new, and in front")
        seen = [info.id for info in found]
        assert len(seen) == len(set(seen))
        assert set(ids) == set(seen)


async def test_fifty_sessions_are_listed_while_they_are_stepped(store: Store, tmp_path: Path) -> None:
    go = asyncio.Event()
    async with bench(store, Same(text("so far"), go, *says()), FakePool("w")) as b:
        ids = [await b.session(f"question {k}") for k in range(50)]
        stepping = await in_pages(b, 9, "stepping")
        assert {info.id for info in stepping} == set(ids)
        assert await b.harness.tally() == {"stepping": 50}
        assert {info.status for info in await b.harness.list()} == {"stepping"}
        assert await b.harness.list(status="closed") == []
        go.set()
        await settled(b, ids)
        assert await listed(b) == folded(tmp_path)
        assert await b.harness.tally() == {"closed": 50}


async def test_a_session_is_listed_as_stepping_though_it_has_not_written_yet(
    store: Store, tmp_path: Path
) -> None:
    go = asyncio.Event()
    provider = FakeProvider([ProviderError("down")], [go, *says(text("ok"))])
    async with bench(store, provider, FakePool("w")) as b:
        id = await b.session()
        assert await b.rest(id) == "failed"
        provider.asked.clear()
        await b.harness.retry(id)
        await provider.asked.wait()
        assert [info.status for info in await b.harness.list()] == ["stepping"]
        assert await b.harness.list(status="failed") == []
        go.set()
        assert await b.rest(id) == "closed"
        assert [info.status for info in await b.harness.list()] == ["closed"]


async def test_a_session_made_here_is_listed_also_while_the_folder_is_not_looked_at(
    store: Store, tmp_path: Path
) -> None:
    async with bench(store, Same(), FakePool("w")) as b:
        b.harness._sessions._index._rest = float("inf")
        id = await b.session("")
        copied = await b.harness.create(api.Create(from_=id))
        assert {info.id for info in await b.harness.list()} == {id, copied}
        shutil.copy(path_of(tmp_path, id), path_of(tmp_path, "0123456789abcdef"))
        assert len(await b.harness.list()) == 2
        b.harness._sessions._index._rest = 0.0
        assert await listed(b) == folded(tmp_path)


async def test_a_session_leaves_memory_and_is_listed_as_it_was(store: Store, tmp_path: Path) -> None:
    async with bench(store, Same(), FakePool("w")) as b:
        ids = [await b.session(f"question {k}") for k in range(80)]
        await settled(b, ids)
        assert len(b.harness._sessions._loaded) <= 64
        await b.harness.patch_config(ids[0], "me", api.ConfigPatch(context=99))
        assert await listed(b) == folded(tmp_path)
        assert (await b.harness.info(ids[0])).config.context == 99


async def test_the_number_of_records_is_one_that_a_reader_can_go_on_from(tmp_path: Path) -> None:
    disk = Held()
    store = Store(tmp_path, clock=Clock(), sync=disk)
    async with bench(store, Same(), FakePool("w")) as b:
        id = await b.session()
        await b.rest(id)
        log = await b.harness.log(id)
        n = log.n
        begun = disk.hold()
        async with asyncio.TaskGroup() as group:
            group.create_task(b.post(id, "not on disk yet"), name="post")
            await begun.wait()
            assert log.n > n
            assert (await b.harness.info(id)).n == n
            assert (await b.harness.list())[0].n == n
            disk.let_go()
        await b.rest(id)
        assert (await b.harness.info(id)).n == log.n
    await store.close()


# Logs that broke


async def test_a_session_whose_log_broke_is_read_again_at_its_next_use(
    store: Store, tmp_path: Path, disk: Disk
) -> None:
    async with bench(store, Same(), FakePool("w")) as b:
        id = await b.session("hi")
        await b.rest(id)
        before = await b.harness.info(id)
        disk.bad = True
        with pytest.raises(errors.NoSpace, match="cannot be written"):
            await b.post(id, "lost")
        disk.bad = False
        assert await b.rest(id) == "closed"
        assert await b.harness.info(id) == before
        assert await b.harness.list() == [before]
        await b.post(id, "kept")
        assert await b.rest(id) == "closed"
        assert await b.bodies(id, "message") == ["hi", "kept"]
        assert await listed(b) == folded(tmp_path)


async def test_a_session_whose_log_broke_stays_while_it_is_stepped(
    store: Store, tmp_path: Path, disk: Disk
) -> None:
    go = asyncio.Event()
    async with bench(store, Same(text("so far"), go, *says()), FakePool("w")) as b:
        id = await b.session("hi")
        session = await b.harness._sessions.get(id)
        await b.provider.asked.wait()
        disk.bad = True
        with pytest.raises(errors.NoSpace):
            await b.post(id, "lost")
        assert await b.harness._sessions.get(id) is session
        assert (await b.harness.info(id)).status == "stepping"
        disk.bad = False
        go.set()
        while session.runner is not None:
            await asyncio.wait({session.runner})
        assert await b.harness._sessions.get(id) is not session
        assert await listed(b) == folded(tmp_path)
        await b.harness.retry(id)
        assert await b.rest(id) == "closed"


async def test_a_copy_takes_what_is_on_disk(store: Store, tmp_path: Path) -> None:
    async with bench(store, Same(), FakePool("w")) as b:
        id = await b.session("hi")
        await b.rest(id)
        log = await b.harness.log(id)
        await log.append(records.draft("text", "not yet on disk", step="s"), durable=False)
        assert log.durable_n < log.n
        copied = await b.harness.create(api.Create(from_=id))
        assert (await b.harness.info(copied)).n == log.durable_n
        origin = (await b.harness.info(copied)).from_
        assert origin is not None
        assert (origin.session, origin.n) == (id, log.durable_n + 1)
        await log.sync()


async def test_what_the_state_file_says_reaches_a_client_as_a_sentence(store: Store) -> None:
    with (
        pytest.raises(errors.Unready, match="out of descriptors; try again in a moment"),
        errors.translated(),
    ):
        raise StateFileError("session x cannot be opened: out of descriptors")


async def test_a_session_whose_file_is_gone_fails_alone(store: Store, tmp_path: Path) -> None:
    go = asyncio.Event()
    async with bench(store, Same(text("so far"), go, *says()), FakePool("w")) as b:
        gone, other = await b.session("hi"), await b.session("hi")
        session = await b.harness._sessions.get(gone)
        path_of(tmp_path, gone).unlink()
        go.set()
        while session.runner is not None:
            await asyncio.wait({session.runner})
        assert await b.rest(other) == "closed"
        assert [info.id for info in await b.harness.list()] == [other]
        with pytest.raises(errors.NotFound):
            await b.post(gone, "x")


# Whatever happens

small = st.integers(0, 6)
ops = st.one_of(
    st.tuples(st.just("create")),
    st.tuples(st.sampled_from(["post", "end", "config", "remove", "duplicate", "tear", "flip"]), small),
    st.tuples(st.just("copy"), small, st.integers(0, 9)),
    st.tuples(st.sampled_from(["restart", "kill", "no index", "bad index"])),
)


async def act(b: Bench, data: Path, ids: list[str], op: tuple[Any, ...]) -> None:
    """One thing that a client or somebody in the folder does while the daemon runs."""
    id = ids[op[1] % len(ids)] if len(op) > 1 and ids else ""
    try:
        match op[0]:
            case "create":
                ids.append(await b.session(""))
            case "post" if id:
                await b.post(id, "more")
            case "copy" if id:
                ids.append(await b.harness.create(api.Create(from_=id, n=op[2])))
            case "end" if id:
                await b.harness.end(id, "me")
            case "config" if id:
                await b.harness.patch_config(id, "me", api.ConfigPatch(context=op[1] + 1))
            case "remove" if id:
                path_of(data, id).unlink(missing_ok=True)
            case "duplicate" if id and path_of(data, id).exists():
                ids.append(f"{len(ids):016x}")
                shutil.copy(path_of(data, id), path_of(data, ids[-1]))
    except errors.HarnessError:
        pass  # damaged, ended, removed, or cannot be copied there


def meddle(data: Path, ids: list[str], op: tuple[Any, ...]) -> None:
    """What happens to the folder while no daemon runs."""
    id = ids[op[1] % len(ids)] if len(op) > 1 and ids else ""
    match op[0]:
        case "no index":
            (data / FILE).unlink(missing_ok=True)
        case "bad index" if (data / FILE).exists():
            (data / FILE).write_bytes((data / FILE).read_bytes()[:9000])
        case "tear" if id and path_of(data, id).exists():
            with path_of(data, id).open("ab") as file:
                file.write(b'{"n":99,"kind":"te')
        case "flip" if id and path_of(data, id).exists():
            whole = bytearray(path_of(data, id).read_bytes())
            whole[20] ^= 1
            path_of(data, id).write_bytes(whole + b" ")


async def test_sessions_in_memory_that_were_forgotten_are_gone_from_all_that_is_asked(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path, most=1)
    async with bench(store, Same(), FakePool("w")) as b:
        ids = [await b.session("") for _ in range(3)]
        assert len(await b.harness.list()) == 3
        for id in ids:
            await b.harness.end(id, "me")
        assert [info.id for info in await b.harness.list()] == ids[-1:]
        assert await b.harness.tally() == {"ended": 1}
        for id in ids[:-1]:
            for ask in (b.harness.info, b.harness.log):
                with pytest.raises(errors.NotFound):
                    await ask(id)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ops, max_size=20))
def test_the_list_is_what_folding_every_file_gives(happens: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory(prefix="or-") as folder:
        asyncio.run(go_through(Path(folder), happens))


async def go_through(data: Path, happens: list[tuple[Any, ...]]) -> None:
    ids: list[str] = []
    clock, left = Clock(), list(happens)
    while True:
        store = Store(data, clock=clock, sync=lambda fd: None)
        old = (data / FILE).read_bytes() if (data / FILE).exists() else b""
        op: tuple[Any, ...] = ()
        async with bench(store, Same(), FakePool("w")) as b:
            b.harness._sessions.kept = 2
            await settled(b, ids)
            assert await in_pages(b, 3) == folded(data)
            while left and op[:1] not in [
                ("restart",),
                ("kill",),
                ("no index",),
                ("bad index",),
                ("tear",),
                ("flip",),
            ]:
                op = left.pop(0)
                await act(b, data, ids, op)
                await settled(b, ids)
                assert await in_pages(b, 3) == folded(data)
        await store.close()
        if op[:1] == ("kill",) and old:
            (data / FILE).write_bytes(old)  # what this daemon would have noted is lost
        elif op:
            meddle(data, ids, op)
        if not left:
            return


async def test_a_copy_is_listed_by_when_it_was_made_until_something_comes_to_it(
    store: Store, tmp_path: Path
) -> None:
    async with bench(store, Same(), FakePool("w")) as b:
        old, new = await b.session("old"), await b.session("new")
        await settled(b, [old, new])
        copy = await b.harness.create(api.Create(from_=old))
        source, made = await b.harness.info(old), await b.harness.info(copy)
        assert [info.id for info in await b.harness.list()] == [copy, new, old]
        assert made.created == made.updated > (await b.harness.info(new)).updated
        await b.harness.patch_config(new, "me", api.ConfigPatch(context=99))
        assert [info.id for info in await b.harness.list()] == [new, copy, old]
        await b.post(copy, "on")
        await b.rest(copy)
        info = await b.harness.info(copy)
        assert (info.created, info.updated > made.updated) == (made.created, True)
        other = await b.harness.create(api.Create(from_=old))
        assert await listed(b) == folded(tmp_path)
    path_of(tmp_path, copy).with_suffix(".from").unlink()
    spoilt = f'{{"session":"{old}","n":{source.n + 1},"time":"noon"}}'
    path_of(tmp_path, other).with_suffix(".from").write_text(spoilt)
    (tmp_path / "index.db").unlink()
    async with bench(store, Same(), FakePool("w")) as b:  # it is as its records say
        told = {info.id: info for info in await b.harness.list()}
        assert (told[copy].created, told[copy].updated) == (source.created, info.updated)
        assert (told[other].created, told[other].updated) == (source.created, source.updated)
