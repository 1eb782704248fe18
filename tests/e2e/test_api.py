"""The API of a real daemon: many readers over its death, many clients at once, keys and settings over a restart."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from daemon import chain as chains
from daemon.client import ApiFailure, Back, Client, Lost, Unreachable
from daemon.protocol import api, records
from daemon.protocol.records import TEXT, Record
from daemon.worker import keeper
from tests.daemon.api import certificates
from tests.running import Place, place

READERS = 200
LIVES = 3  # of the daemon while they read
POSTS = 5  # in each of them
ECHO = api.Create(model="rehearsal/echo")


@pytest.fixture
def here() -> Iterator[Place]:
    with place() as made:
        yield made


@pytest.fixture
async def client(here: Place) -> AsyncIterator[Client]:
    await asyncio.to_thread(here.up)
    async with Client(here.socket, first_wait=0.05, longest_wait=0.5) as client:
        yield client


def text(words: str) -> list[api.Part]:
    return [api.Part(TEXT, words.encode())]


async def rest(client: Client, id: str) -> api.Info:
    """What stands about the session as soon as nobody steps it."""
    after = 0
    while (info := await client.info(id)).status != "closed":
        assert info.status in ("stepping", "open"), info
        after = max(after, info.n)
        await client.records(id, min(after, info.n), wait=1)
    return info


def stored(here: Place, id: str) -> list[Record]:
    """The records in a session's file."""
    decoder, found = records.decoder(), []
    decoder.feed((here.data / "sessions" / f"{id}.state").read_bytes())
    while (unit := decoder.next()) is not None:
        header, line, body = unit
        found.append(Record(header, body, line))
    return found


class Reader:
    """One reader of a session's events, on a connection of its own."""

    def __init__(self, here: Place) -> None:
        self._client = Client(here.socket, first_wait=0.05, longest_wait=0.5)
        self.found: list[Record] = []
        self.lost = self.back = 0

    async def read(self, id: str, until: str) -> None:
        """Up to the answer that says `until`."""
        async with self._client, aclosing(self._client.follow(id, deltas=True)) as stream:
            async for event in stream:
                match event:
                    case Record():
                        self.found.append(event)
                        if event.kind == "text" and event.text() == until:
                            return
                    case Lost():
                        self.lost += 1
                    case Back():
                        self.back += 1
                    case _:
                        pass


async def test_200_readers_get_each_record_once_and_in_order_though_the_daemon_is_killed(
    here: Place,
) -> None:
    pid = await asyncio.to_thread(here.up)
    client = Client(here.socket, first_wait=0.05, longest_wait=0.5)
    id = await client.create(ECHO)
    readers = [Reader(here) for _ in range(READERS)]
    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.read(id, "the last words"))
        for life in range(LIVES):
            for n in range(POSTS):
                await client.post(id, text(f"message {n} of life {life}"), "writer")
            while min(len(reader.found) for reader in readers) < life * POSTS:
                await client.records(id, (await client.info(id)).n, wait=0.05)
            await asyncio.to_thread(here.kill, pid)
            pid = await asyncio.to_thread(here.up)
        await rest(client, id)
        await client.post(id, text("the last words"), "writer")
    await rest(client, id)
    await client.close()
    file = stored(here, id)
    for reader in readers:
        last = reader.found[-1].n
        assert [record.n for record in reader.found] == list(range(1, last + 1))
        assert [(record.raw, record.body) for record in reader.found] == [
            (record.raw, record.body) for record in file[:last]
        ]
        assert reader.lost >= reader.back > 0
    posts = [record.text() for record in file if record.kind == "message"]
    assert len(posts) == len(set(posts)) == LIVES * POSTS + 1


async def test_20_clients_that_post_at_once_have_20_messages_and_each_is_answered(
    here: Place, client: Client
) -> None:
    id = await client.create(ECHO)
    clients = [Client(here.socket) for _ in range(20)]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(one.post(id, text(f"words of {n}"), f"client {n}"))
            for n, one in enumerate(clients)
        ]
    for one in clients:
        await one.close()
    await rest(client, id)
    file = stored(here, id)
    posted = {record.n: (record.header.via, record.text()) for record in file if record.kind == "message"}
    assert posted == {task.result(): (f"client {n}", f"words of {n}") for n, task in enumerate(tasks)}
    steps = [record for record in file if record.kind == "step"]
    assert 1 <= len(steps) <= 20
    assert steps[-1].header.upto >= max(posted)
    for before, after in itertools.pairwise(steps):  # one runner: each step saw more than the one before
        assert before.header.upto < after.header.upto
        assert before.n < after.n
    assert chains.fold(file, id).status == "closed"


async def test_a_post_sent_again_lands_once_also_after_a_restart(here: Place, client: Client) -> None:
    id = await client.create(ECHO)
    n = await client.post(id, text("hello"), "me", "key")
    assert await client.post(id, text("hello"), "somebody else", "key") == n
    with pytest.raises(ApiFailure, match="was used for another post") as conflict:
        await client.post(id, text("hello!"), "me", "key")
    assert conflict.value.status == 409
    await asyncio.to_thread(here.outrider, "down")
    await asyncio.to_thread(here.up)
    assert await client.post(id, text("hello"), "me", "key") == n
    with pytest.raises(ApiFailure, match="was used for another post"):
        await client.post(id, [*text("hello"), *text("hello")], "me", "key")
    await rest(client, id)
    assert [record.kind for record in stored(here, id)].count("message") == 1


async def test_a_second_daemon_on_the_folder_is_refused_and_names_the_first(here: Place) -> None:
    pid = await asyncio.to_thread(here.up)
    socket = str(here.home / "second.sock")
    second = await asyncio.to_thread(here.outrider, "daemon", "--socket", socket, "--listen", "none")
    assert second.returncode == 1
    assert f"{pid}" in second.stderr
    assert "Traceback" not in second.stderr
    assert not Path(socket).exists()


async def test_the_daemons_events_tell_of_sessions_made_posted_to_and_ended(client: Client) -> None:
    old = await client.create(ECHO)
    async with asyncio.timeout(30), aclosing(client.events()) as stream:
        state = await anext(stream)
        assert isinstance(state, api.State)
        assert [info.id for info in state.sessions] == [old]
        id = await client.create(ECHO)
        await client.post(id, text("hello"), "me")
        seen: list[str] = []
        while not seen or seen[-1] != "closed" or "stepping" not in seen:
            event = await anext(stream)
            if isinstance(event, api.Info):
                assert event.id == id
                seen.append(event.status)
        await client.end(id, "me")
        while not (isinstance(event := await anext(stream), api.Info) and event.status == "ended"):
            pass
    assert [info.status for info in await client.list()] == ["ended", "closed"]


async def test_the_daemons_events_tell_of_a_worker_that_goes_and_comes_back(
    here: Place, client: Client
) -> None:
    def states(workers: Sequence[api.WorkerInfo]) -> list[str]:
        return [worker.state for worker in workers if worker.name == "local"]

    async with asyncio.timeout(40), aclosing(client.events(0)) as stream:
        event = await anext(stream)
        while not (isinstance(event, api.State | api.Workers) and states(event.workers) == ["connected"]):
            event = await anext(stream)
        await asyncio.to_thread(here.kill, keeper.holder(here.data / "worker" / keeper.LOCK))
        for state in ("gone", "connected"):
            while not (
                isinstance(event := await anext(stream), api.Workers) and states(event.workers) == [state]
            ):
                pass


async def test_keys_and_providers_outlive_the_daemon_and_a_revoked_key_does_not(here: Place) -> None:
    tcp = ["--listen", "127.0.0.1:0"]
    up = json.loads(await asyncio.to_thread(here.ok, "up", "--json", *tcp))
    async with Client(here.socket) as owner:
        with pytest.raises(ApiFailure, match="a key is needed"):
            async with Client(f"http://{up['listen'][0]}") as stranger:
                await stranger.list()
        kept, lost = await owner.make_key("kept", "operator"), await owner.make_key("lost", "admin")
        await owner.revoke_key("lost")
        setting = api.ProviderSetting(kind="anthropic", url="http://127.0.0.1:1", key="sk-secret")
        assert (await owner.set_provider("mine", setting)).has_key
        assert (await owner.providers()).default.startswith("mine/")
    await asyncio.to_thread(here.outrider, "down")
    up = json.loads(await asyncio.to_thread(here.ok, "up", "--json", *tcp))
    url = f"http://{up['listen'][0]}"
    async with Client(url, kept.key) as client:
        assert [info.has_key for info in (await client.providers()).providers if info.name == "mine"] == [
            True
        ]
        id = await client.create(ECHO)
        with pytest.raises(ApiFailure, match="the key kept is operator's; this takes admin's"):
            await client.keys()
    with pytest.raises(ApiFailure, match="revoked"):
        async with Client(url, lost.key) as client:
            await client.list()
    done = await asyncio.to_thread(here.outrider, "ls", "--json", OUTRIDER_URL=url, OUTRIDER_KEY=kept.key)
    assert [info["id"] for info in json.loads(done.stdout)] == [id]
    for file in ("keys.toml", "providers.toml"):
        assert (here.data / file).stat().st_mode & 0o777 == 0o600


async def test_beyond_loopback_it_takes_tls_or_a_word(here: Place) -> None:
    anywhere = ["daemon", "--listen", "0.0.0.0:0", "--json"]
    refused = await asyncio.to_thread(here.outrider, *anywhere)
    assert refused.returncode == 1
    assert re.search(r"0.0.0.0:0 is not a loopback address.*--insecure", refused.stderr)
    with here.start(*anywhere, "--insecure") as daemon:
        assert daemon.stdout is not None
        assert json.loads(await asyncio.to_thread(daemon.stdout.readline))["listen"][0].startswith("0.0.0.0:")
    files = certificates.make(here.home)
    config = here.home / ".config/outrider/outrider.toml"
    config.write_text(f'[tls]\ncert = "{files.cert}"\nkey = "{files.locked}"\n')
    refused = await asyncio.to_thread(here.outrider, *anywhere)
    assert (refused.returncode, "is encrypted" in refused.stderr) == (1, True)
    config.write_text(f'[tls]\ncert = "{files.cert}"\nkey = "{files.key}"\n')
    with here.start(*anywhere) as daemon:
        assert daemon.stdout is not None
        port = json.loads(await asyncio.to_thread(daemon.stdout.readline))["listen"][0].rpartition(":")[2]
        async with Client(here.socket) as owner:
            key = (await owner.make_key("a", "viewer")).key
        url = f"https://127.0.0.1:{port}"
        for trust in ({"OUTRIDER_CA": str(files.ca)}, {"OUTRIDER_FINGERPRINT": files.fingerprint}):
            environ = {"OUTRIDER_URL": url, "OUTRIDER_KEY": key, **trust}
            done = await asyncio.to_thread(here.outrider, "ls", "--json", **environ)
            assert (done.stdout, done.stderr) == ("[]\n", "")
        done = await asyncio.to_thread(here.outrider, "ls", OUTRIDER_URL=url, OUTRIDER_KEY=key)
        assert done.returncode == 4
        assert "is not trusted" in done.stderr
        async with Client(url, key) as client:
            with pytest.raises(Unreachable, match="is not trusted"):
                await client.list()
