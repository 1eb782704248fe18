"""A session's file on a worker over the whole way: an agent searches its own past there."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from daemon.protocol import api
from daemon.protocol.records import TEXT, Record, WorkerRef
from daemon.statefile.scan import scan
from tests.daemon.provider.contexts import picture
from tests.e2e.driving import VIA, Driver, Stage, becomes, driver, stage
from tests.e2e.far import far, state


@pytest.fixture
def here() -> Iterator[Stage]:
    with stage() as made:
        yield made


def past(scratch: Path, session: str) -> Path:
    return scratch / "sessions" / f"{session}.state"


async def copied(on: Driver, scratch: Path, session: str) -> None:
    """Wait until the copy is the session's file byte for byte."""
    original = on.stage.path(session)
    copy = past(scratch, session)
    await becomes(
        lambda: copy.exists() and copy.read_bytes() == original.read_bytes(), "the copy is up to date"
    )


async def test_an_agent_finds_what_was_said_before_in_its_own_file_on_the_worker(here: Stage) -> None:
    async with driver(here) as on:
        session = await on.session("Remember the word quincunx.")
        await on.closes(session)
        await copied(on, here.scratch, session)
        assert past(here.scratch, session).stat().st_mode & 0o777 == 0o600
        code = f"grep -a -c quincunx {past(here.scratch, session)} >> ran"
        await here.mock.config(calls=1, code=code)
        await on.post(session, "Which word?")
        await on.closes(session)
        assert int(here.ran()[0]) >= 1
        await copied(on, here.scratch, session)


async def test_a_copy_follows_over_kills_of_daemon_and_worker_and_is_written_anew_when_it_was_changed(
    here: Stage,
) -> None:
    async with driver(here) as on:
        with far(here) as one:
            one.start()
            await state(on, "far", "connected")
            refs = (WorkerRef("local", str(here.folder)), WorkerRef("far", str(here.folder)))
            session = await on.client.create(api.Create(model="mock/script", workers=refs))
            parts = [api.Part(TEXT, f"[[conv:{session}]] One.".encode()), api.Part("image/png", picture())]
            await on.client.post(session, parts, VIA)
            await on.closes(session)
            count = len(_file(here, session))
            for file in (past(here.scratch, session), past(one.scratch, session)):
                await becomes(partial(_holds, file, count), "the copy is there")
                assert scan(file).damage is None
                assert b'"omitted":%d' % len(picture()) in file.read_bytes()

            one.kill_link()
            await state(on, "far", "gone")
            here.daemon.kill()
            past(here.scratch, session).write_bytes(b"something else")
            await here.daemon.start()
            await on.post(session, "Two.")
            await on.closes(session)
            count = len(_file(here, session))
            await becomes(
                lambda: len(scan(past(here.scratch, session)).offsets) == count, "it is whole again"
            )
            assert len(scan(past(one.scratch, session)).offsets) < count
            one.start()
            await state(on, "far", "connected")
            await becomes(partial(_holds, past(one.scratch, session), count), "it has caught up")


def _holds(file: Path, count: int) -> bool:
    """Whether there is a copy of so many records."""
    return file.exists() and len(scan(file).offsets) == count


def _file(here: Stage, session: str) -> list[Record]:
    return list(here.daemon.file(session))
