"""The daemon is killed at random moments while its sessions work; nothing is lost, and nothing is done twice."""

import asyncio
import contextlib
import json
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from daemon import chain as chains
from daemon.client import ApiFailure, Client, Unreachable
from daemon.protocol import api, records
from daemon.protocol.records import TEXT, WorkerRef
from tests.daemon.contexts import check
from tests.e2e.processes import Daemon, Mock

SESSIONS = 4
LONGEST_LIFE = 1.2  # seconds from ready to SIGKILL: from before the first request to a few steps on
CALM = 60.0  # seconds that all sessions have to close once nobody kills the daemon any more


class Acknowledged(Struct):
    """A post that the daemon said is safe."""

    session: str
    key: str
    text: str
    n: int


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="or-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def mock(folder: Path) -> Iterator[Mock]:
    mock = Mock(folder)
    yield mock
    mock.close()


@pytest.fixture
def daemon(folder: Path, mock: Mock) -> Iterator[Daemon]:
    daemon = Daemon(folder, mock)
    yield daemon
    daemon.end()


class Campaign:
    """Clients that keep sessions busy while somebody kills the daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.over = asyncio.Event()
        self.posts: list[Acknowledged] = []
        self.sessions: list[str] = []

    async def until_answered(self, what: Any) -> Any:
        """The answer to a call that is tried again for as long as the daemon is away."""
        while True:
            try:
                async with Client(self.daemon.socket, first_wait=0.05, longest_wait=0.2) as client:
                    return await what(client)
            except Unreachable:
                await self.pause(0.05)
            except ApiFailure as error:
                if error.status != 503:
                    raise
                await self.pause(0.05)

    async def pause(self, seconds: float) -> None:
        """Let others work; what is waited for is a daemon in another process, which has no event to wait on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.Event().wait()

    async def worker(self) -> None:
        """Wait for the local worker: of a call older than its first journal nobody knows whether it ran."""
        while all(info.state != "connected" for info in await self.until_answered(Client.workers)):
            await self.pause(0.05)

    async def post(self, session: str, text: str) -> None:
        key = f"key-{len(self.posts)}-{random.getrandbits(64):x}"
        part = api.Part(TEXT, text.encode())
        n = await self.until_answered(lambda client: client.post(session, [part], "campaign", key))
        self.posts.append(Acknowledged(session, key, text, n))

    async def closed(self, session: str) -> None:
        """Wait until the session is closed, with a message thrown in now and then."""
        while True:
            info = await self.until_answered(lambda client: client.info(session))
            if info.status == "closed":
                return
            if info.status == "failed":
                found = self.daemon.file(session)
                pytest.fail(f"session {session} failed: {found[-1].text()}")
            if random.random() < 0.1:
                await self.post(session, "and while you are at it, this")
            await self.pause(0.05)

    async def one(self, number: int) -> None:
        """One session kept busy until the campaign is over, then seen to its end."""
        create = api.Create(model="mock/script", workers=(WorkerRef("local", str(self.daemon.folder)),))
        session = await self.until_answered(lambda client: client.create(create))
        self.sessions.append(session)
        await self.post(session, f"[[conv:s{number}]] Do all of it.")
        turn = 0
        while not self.over.is_set():
            await self.closed(session)
            turn += 1
            await self.post(session, f"Once more, turn {turn}.")
        await self.closed(session)

    async def kill(self, times: int) -> None:
        for _ in range(times):
            await self.pause(random.random() * LONGEST_LIFE)
            await asyncio.to_thread(self.daemon.kill)
            await self.daemon.start()
        self.over.set()

    async def run(self, kills: int) -> None:
        await self.daemon.start()
        await self.worker()
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(self.one(n), name=f"session {n}") for n in range(SESSIONS)]
            await self.kill(kills)
            async with asyncio.timeout(CALM):
                await asyncio.wait(workers)


def verify(campaign: Campaign, ran: list[str], bad: list[dict[str, Any]]) -> None:
    """All that must hold when every session has closed."""
    assert bad == []
    files = {session: campaign.daemon.file(session) for session in campaign.sessions}
    for post in campaign.posts:
        stored = [record for record in files[post.session] if record.header.idempotency_key == post.key]
        assert [(record.n, record.text()) for record in stored] == [(post.n, post.text)]
    posted = sum(record.kind == "message" for found in files.values() for record in found)
    assert posted == len(campaign.posts)
    expected: list[str] = []
    for session, found in files.items():
        chain = chains.fold(found, session)
        assert chain.status == "closed"
        check(chain.context())
        steps = {record.id for record in found if record.kind == "step"}
        calls = [record for record in found if record.kind == "call" and record.header.step in steps]
        results = {record.header.for_: record for record in found if record.kind == "result"}
        assert sorted(results) == sorted(call.id for call in calls)
        assert len(results) == sum(record.kind == "result" for record in found)
        for call in calls:
            assert not results[call.id].header.failed, results[call.id].text()
            code = json.loads(records.call_of(call).arguments)["code"]
            match = re.match(r"echo (\S+) >>", code)
            assert match is not None
            expected.append(match[1])
    assert Counter(ran) == Counter(expected), "each call that a step closed ran once, and no other"


async def campaign(daemon: Daemon, mock: Mock, kills: int, **trouble: Any) -> None:
    ran = daemon.folder / "ran"
    code = f"echo {{conv}}.{{k}}.{{p}} >> {ran}; sleep 0.0$((RANDOM % 10))"
    await mock.config(calls=3, parallel=2, code=code, first_delay=0.02, event_delay=0.005, **trouble)
    run = Campaign(daemon)
    try:
        await run.run(kills)
    except BaseException:
        sys.stderr.write(daemon.log()[-5000:])
        raise
    verify(run, ran.read_text().split(), await mock.get("bad"))
    assert daemon.starts == kills + 1


@pytest.mark.timeout(180)
async def test_a_daemon_killed_five_times_loses_nothing_and_does_nothing_twice(
    daemon: Daemon, mock: Mock
) -> None:
    await campaign(daemon, mock, 5)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
async def test_a_daemon_killed_two_hundred_times_loses_nothing_and_does_nothing_twice(
    daemon: Daemon, mock: Mock
) -> None:
    await campaign(daemon, mock, 200, trouble="cut", tries=1, every=7, after=6)
