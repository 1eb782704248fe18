"""Session files that are damaged, torn, shut, removed, or none at all: one bad file stops nothing else."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from daemon.client import ApiFailure
from daemon.protocol import api
from daemon.protocol.records import TEXT
from tests.e2e.driving import VIA, Driver, Stage, driver, judge, pause, stage


@pytest.fixture
def alone() -> Iterator[Stage]:
    """A daemon of its own: its files are spoilt."""
    with stage() as made:
        yield made


async def two(on: Driver) -> tuple[str, str]:
    """Two sessions that are closed."""
    await on.stage.mock.config(calls=1, code="echo {conv} >> ran")
    made = await on.session("One."), await on.session("Two.")
    for session in made:
        await on.closes(session)
    return made


async def works(on: Driver, session: str) -> None:
    await on.post(session, "Still there?")
    judge(await on.closes(session))


async def test_a_file_damaged_in_the_middle_is_listed_read_and_copied_and_refuses_writes(
    alone: Stage,
) -> None:
    async with driver(alone) as on:
        bad, good = await two(on)
        whole = alone.daemon.file(bad)
        alone.daemon.kill()
        at = next(record.n for record in whole if record.kind == "call")
        spoilt = alone.path(bad).read_bytes().replace(b"echo", b"exho", 1)
        alone.path(bad).write_bytes(spoilt)
        await alone.daemon.start()
        listed = {info.id: info for info in await on.client.list()}
        assert {listed[bad].status, listed[good].status} == {"damaged", "closed"}
        assert f"record {at} " in listed[bad].damage
        assert (await on.client.info(bad)).status == "damaged"
        assert [record.n for record in await on.client.records(bad)] == list(range(1, at))
        for method, path, more in (
            ("POST", "records", {"data": b"x", "headers": {"Content-Type": "text/plain"}}),
            ("POST", "retry", {}),
            ("PATCH", "config", {"json": {"model": "mock/script"}}),
            ("POST", "end", {}),
        ):
            query = {} if path == "retry" else {"via": VIA}
            status, said = await on.raw(method, f"/sessions/{bad}/{path}", params=query, **more)
            assert status == 409, (path, said)
            assert f"damaged at record {at}" in said["error"]["message"], said
        done = await asyncio.to_thread(alone.daemon.cli, "post", bad, "hello")
        assert done.returncode == 3
        assert "damaged" in done.stderr
        assert "cop" in done.stderr
        assert "Traceback" not in done.stderr
        assert alone.path(bad).read_bytes() == spoilt, "damage is never cut"
        await works(on, good)
        assert await alone.mock.get("bad") == []
        copy = await on.client.create(api.Create(from_=bad, n=at))
        await on.switch(copy, "rehearsal/echo")
        await works(on, copy)


async def test_a_torn_tail_is_set_aside_with_a_line_in_the_log_and_nothing_is_glued_to_it(
    alone: Stage,
) -> None:
    async with driver(alone) as on:
        torn, good = await two(on)
        alone.daemon.kill()
        file = alone.path(torn)
        whole = file.read_bytes()
        last = whole[whole.rstrip(b"\n").rfind(b"\n") + 1 :]
        half = last[: len(last) // 2]
        file.write_bytes(whole + half)
        await alone.daemon.start()
        assert (await on.client.info(torn)).status == "closed"
        await works(on, torn)
        assert file.read_bytes().startswith(whole)
        (aside,) = file.parent.glob(f"{torn}.torn-*")
        assert aside.read_bytes() == half
        assert "were not a whole record" in alone.daemon.log()
        await works(on, good)
        alone.daemon.kill()
        await alone.daemon.start()
        await works(on, torn)


async def test_what_is_no_session_in_the_folder_stops_nothing(alone: Stage) -> None:
    async with driver(alone) as on:
        one, other = await two(on)
        alone.daemon.kill()
        folder = alone.path(one).parent
        (folder / "0000000000000001.state").write_bytes(random.randbytes(5000))
        (folder / "0000000000000002.state").write_bytes(b"")
        (folder / "0000000000000003.state").mkdir()
        (folder / "0000000000000004.state").symlink_to("nowhere")
        (folder / "0000000000000005.state").symlink_to(".")
        (folder / "notes.txt").write_text("mine")
        (folder / "ABCDEF.state").write_text("{}")
        fifo = folder / "0000000000000006.state"
        done = await asyncio.create_subprocess_exec("mkfifo", str(fifo))
        assert await done.wait() == 0
        await alone.daemon.start()
        listed = {info.id: info.status for info in await on.client.list()}
        assert (listed.pop(one), listed.pop(other)) == ("closed", "closed")
        assert set(listed.values()) <= {"damaged"}
        assert "0000000000000001" in listed
        for id in listed:
            status, said = await on.raw(
                "POST",
                f"/sessions/{id}/records",
                params={"via": VIA},
                data=b"x",
                headers={"Content-Type": TEXT},
            )
            assert status in (404, 409), said
        await works(on, one)
        status, _ = await on.raw("GET", "/sessions/notes.txt")
        assert status == 404


async def test_a_file_that_may_not_be_read_is_listed_as_damaged_and_reads_again_when_it_may(
    alone: Stage,
) -> None:
    if why := alone.daemon.bound():
        pytest.skip(f"a file that may not be read is NOT TESTED here: {why}")
    async with driver(alone) as on:
        shut, good = await two(on)
        alone.daemon.kill()
        alone.path(shut).chmod(0)
        await alone.daemon.start()
        with pytest.raises(ApiFailure) as refused:
            await on.post(shut, "hello")
        assert refused.value.status == 409
        assert "ermission" in refused.value.message
        listed = {info.id: info for info in await on.client.list()}
        assert (listed[shut].status, listed[good].status) == ("damaged", "closed")
        assert "ermission" in listed[shut].damage
        await works(on, good)
        alone.daemon.kill()
        alone.path(shut).chmod(0o600)
        await alone.daemon.start()
        await works(on, shut)


async def test_a_file_that_may_not_be_written_can_be_read_and_says_why_a_post_fails(alone: Stage) -> None:
    if why := alone.daemon.bound():
        pytest.skip(f"a file that may not be written is NOT TESTED here: {why}")
    async with driver(alone) as on:
        shut, good = await two(on)
        alone.daemon.kill()
        alone.path(shut).chmod(0o400)
        await alone.daemon.start()
        assert (await on.client.info(shut)).status == "closed"
        assert len(await on.client.records(shut)) == len(alone.daemon.file(shut))
        with pytest.raises(ApiFailure) as refused:
            await on.post(shut, "hello")
        assert refused.value.status == 507
        assert "read-only" in refused.value.message
        await works(on, good)


@pytest.mark.parametrize("stepping", [False, True])
async def test_a_file_removed_while_its_session_is_loaded_ends_that_session_alone(
    alone: Stage, stepping: bool
) -> None:
    async with driver(alone) as on:
        gone, good = await two(on)
        if stepping:
            await alone.mock.config(trouble="hold")
            await on.post(gone, "Once more.")
            await on.requested(gone, 3)
        alone.path(gone).unlink()
        if stepping:
            await alone.mock.config(trouble="")
            await alone.mock.release()
        seen = []
        for _ in range(3):
            with pytest.raises(ApiFailure) as refused:
                await on.post(gone, "Still there?")
            seen.append(refused.value.status)
            await pause(0.1)
        assert set(seen) <= {404, 507}
        assert seen[-1] == 404
        await works(on, good)
        await becomes_unlisted(on, gone)
        alone.daemon.kill()
        await alone.daemon.start()
        await works(on, good)


@pytest.mark.parametrize("what", ["appended", "cut", "emptied", "replaced"])
async def test_a_file_that_another_program_changes_under_a_loaded_session_is_read_anew(
    alone: Stage, what: str
) -> None:
    async with driver(alone) as on:
        changed, good = await two(on)
        file = alone.path(changed)
        whole = file.read_bytes()
        match what:
            case "appended":
                with file.open("ab") as opened:
                    opened.write(b"not a record")
            case "cut":
                with file.open("r+b") as opened:
                    opened.truncate(len(whole) - 10)
            case "emptied":
                with file.open("r+b") as opened:
                    opened.truncate(0)
            case _:
                other = file.with_suffix(".new")
                other.write_bytes(whole)
                other.replace(file)
        with pytest.raises(ApiFailure) as refused:
            await on.post(changed, "Still there?")
        assert refused.value.status in (507, 409)
        await works(on, good)
        if what == "emptied":
            with pytest.raises(ApiFailure) as refused:
                await on.post(changed, "Still there?")
            assert refused.value.status == 409
            assert (await on.client.info(changed)).status == "damaged"
        else:
            await works(on, changed)
            assert len([record for record in alone.daemon.file(changed) if record.kind == "message"]) == 2
        alone.daemon.kill()
        await alone.daemon.start()
        await works(on, good)


@pytest.mark.parametrize("garbage", [b"", b"garbage" * 1000])
async def test_an_index_that_does_not_read_is_made_anew(alone: Stage, garbage: bytes) -> None:
    async with driver(alone) as on:
        made = await two(on)
        before = await on.client.list()
        alone.daemon.kill()
        spoilt = [path for path in alone.data.rglob("index*") if path.is_file()]
        assert spoilt
        for path in spoilt:
            path.write_bytes(garbage)
        await alone.daemon.start()
        assert await on.client.list() == before
        for session in made:
            await works(on, session)


async def becomes_unlisted(on: Driver, session: str) -> None:
    async with asyncio.timeout(10):
        while session in {info.id for info in await on.client.list()}:
            await pause()
