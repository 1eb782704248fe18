"""Ten clients at once on the same sessions, at random, while the provider fails in every way it can."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from daemon.client import ApiFailure, Client, Unreachable
from daemon.protocol import api
from daemon.protocol.records import TEXT, WorkerRef
from tests.e2e.driving import VIA, Driver, Stage, driver, judge, pause, stage


@pytest.fixture
def alone() -> Iterator[Stage]:
    with stage() as made:
        yield made


async def unless_conflict(work: Awaitable[Any]) -> None:
    """Await a call that the session's state may not allow: 409, and no other refusal."""
    try:
        await work
    except ApiFailure as error:
        if error.status != 409:
            raise


@pytest.mark.campaign
@pytest.mark.timeout(300)
async def test_ten_clients_that_post_stop_retry_and_configure_at_random_meet_no_fault_of_the_daemon(
    alone: Stage,
) -> None:
    posted: dict[str, list[tuple[int, str]]] = {}
    models = ("rehearsal/chaos", "rehearsal/echo", "mock/script")

    async def act(on: Driver, client: Client, name: str, number: int) -> None:
        session = random.choice(list(posted))
        match random.choices(("post", "stop", "retry", "config", "create", "read"), (5, 2, 3, 1, 1, 3))[0]:
            case "post":
                text = f"[[conv:{session}]] {name}, {number}"
                n = await client.post(session, [api.Part(TEXT, text.encode())], name)
                posted[session].append((n, text))
            case "stop":
                await client.stop(session, name)
            case "retry":
                await client.retry(session)
            case "config":
                status, said = await on.raw(
                    "PATCH",
                    f"/sessions/{session}/config",
                    params={"via": name},
                    json={"model": random.choice(models)},
                )
                assert status in (200, 409), said
            case "create":
                workers = (WorkerRef("local", str(on.stage.folder)),)
                posted[await client.create(api.Create(model=models[0], workers=workers))] = []
            case _:
                await client.records(session, after=0)
                await client.list()

    async def one(on: Driver, name: str, until: float) -> None:
        loop = asyncio.get_running_loop()
        async with Client(on.stage.daemon.socket) as client:
            number = 0
            while loop.time() < until:
                number += 1
                await unless_conflict(act(on, client, name, number))
                await pause(random.random() * 0.1)

    async with driver(alone) as on:
        await alone.mock.config(calls=2, parallel=2, code="echo {conv}.{k}.{p}")
        workers = (WorkerRef("local", str(alone.folder)),)
        for _ in range(3):
            posted[await on.client.create(api.Create(model=models[0], workers=workers))] = []
        until = asyncio.get_running_loop().time() + 20
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(one(on, f"client {number}", until), name=f"client {number}")
        assert sum(map(len, posted.values())) > 100
        for session, texts in posted.items():
            info = await on.client.info(session)
            if info.status == "stepping":
                async with asyncio.timeout(10):
                    await unless_conflict(on.client.stop(session, VIA))
            found = alone.daemon.file(session)  # checks numbers and check sums
            judge(found)
            stored = [(record.n, record.text()) for record in found if record.kind == "message"]
            assert sorted(stored) == sorted(texts)
        assert await alone.mock.get("bad") == []
        assert "Traceback" not in alone.daemon.log()


@pytest.mark.campaign
@pytest.mark.timeout(900)
async def test_everything_at_once_for_a_minute_and_a_half_breaks_no_promise(alone: Stage) -> None:
    """Clients post, stop, retry and configure; the provider breaks off; daemon, keeper and shells are killed."""
    script = {"calls": 4, "parallel": 3, "first_delay": 0.02, "event_delay": 0.003}
    code = "echo {conv}.{k}.{p} >> ran; [ $((RANDOM % 20)) = 0 ] && kill -9 $$; sleep 0.0$((RANDOM % 10))"
    troubles: tuple[dict[str, Any], ...] = (
        {"trouble": ""},
        {"trouble": "cut", "tries": 1, "every": 3, "after": 7},
        {"trouble": "status", "status": 529, "tries": 1, "every": 2},
    )
    posted: dict[str, list[str]] = {}
    over = asyncio.Event()

    async def until_answered(work: Callable[[], Awaitable[Any]]) -> None:
        while not over.is_set():
            try:
                await unless_conflict(work())
            except Unreachable:
                await pause(0.05)
            except ApiFailure as error:
                if error.status != 503:
                    raise
                await pause(0.05)
            else:
                return

    async def disturb(on: Driver, session: str) -> None:
        number = 0
        while not over.is_set():
            await pause(random.random() * 0.4)
            number += 1
            match random.randrange(5):
                case 0:
                    await until_answered(lambda: on.client.stop(session, VIA))
                case 1 | 2:
                    await until_answered(lambda: on.client.retry(session))
                case _:
                    text, key = f"Message {number}.", f"{session}-{number}"

                    async def post(text: str = text, key: str = key) -> None:
                        await on.client.post(session, [api.Part(TEXT, text.encode())], VIA, key)
                        posted[session].append(text)

                    await until_answered(post)

    async def break_things(on: Driver) -> None:
        until = asyncio.get_running_loop().time() + 90
        while asyncio.get_running_loop().time() < until:
            await pause(random.random() * 1.5)
            what = random.randrange(4)
            if what in (0, 1):
                await asyncio.to_thread(alone.daemon.kill)
            if what in (1, 2) and (pid := alone.keeper()):
                os.kill(pid, signal.SIGKILL)
            if what in (0, 1):
                await alone.daemon.start()
            await alone.mock.config(**random.choice(troubles))
        over.set()

    async with driver(alone) as on:
        await alone.mock.config(code=code, **script)
        for _ in range(4):
            posted[await on.session("Go.")] = []
        async with asyncio.TaskGroup() as group:
            for session in posted:
                group.create_task(disturb(on, session), name=f"disturb {session}")
            await break_things(on)
        await alone.mock.config(trouble="")
        for session, texts in posted.items():
            async with asyncio.timeout(120):
                while (await on.rests(session)).status != "closed":
                    await on.client.retry(session)
            found = await on.closes(session)
            judge(found)
            said = [record.text() for record in found if record.kind == "message"][1:]
            assert len(set(said)) == len(said)
            assert set(texts) <= set(said), "an acknowledged post is not in the file"
        ran = alone.ran()
        assert len(set(ran)) == len(ran), "something ran twice"
        assert await alone.mock.get("bad") == []
        assert "Traceback" not in alone.daemon.log()
