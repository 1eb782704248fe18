import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.api.keys import Keys
from daemon.client import ApiFailure, Back, Client, Followed, Lost, Unreachable
from daemon.harness.changes import WORKERS
from daemon.harness.errors import Unready
from daemon.ownfile import OwnFileError
from daemon.protocol import api
from daemon.protocol.records import TEXT, Record, WorkerRef, draft
from daemon.provider.service import BadSetting, FixedSetting
from tests.daemon.api.conftest import Http
from tests.daemon.api.fakes import FakeHarness, FakeProviders, serve

NOBODY = "f" * 16
TEXT_PART = api.Part(TEXT, b"hello")


@pytest.fixture
async def client(http: Http, path: Path) -> AsyncIterator[Client]:
    async with Client(path, first_wait=0.01, longest_wait=0.05) as client:
        yield client


class Line:
    """A Unix socket in front of another, whose connections break after as many bytes as the test says.

    `budgets` holds for each new connection the bytes that pass up and down; then nothing breaks any more.
    """

    def __init__(self, to: Path, budgets: Iterable[tuple[int, int]] = ()) -> None:
        self.path = to.with_name("line.sock")
        self.budgets = list(budgets)
        self.broken = 0
        self._to = to
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Line"]:
        server = await asyncio.start_unix_server(self._serve, self.path)
        try:
            yield self
        finally:
            server.close()
            self.cut()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def cut(self) -> None:
        """Break every connection."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        up, down = self.budgets.pop(0) if self.budgets else (1 << 60, 1 << 60)
        others: asyncio.StreamWriter | None = None
        try:
            other, others = await asyncio.open_unix_connection(self._to)
            async with asyncio.TaskGroup() as group:
                both = [
                    group.create_task(pass_on(reader, others, up)),
                    group.create_task(pass_on(other, writer, down)),
                ]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for one in both:
                    one.cancel()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self.broken += 1
            for end in (writer, others):
                if end is not None:
                    end.transport.abort()
            self._tasks.discard(task)


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int) -> None:
    try:
        while budget > 0 and (data := await reader.read(min(budget, 4096))):
            writer.write(data)
            await writer.drain()
            budget -= len(data)
    except ConnectionError:
        pass


async def take(stream: AsyncIterator[Followed], count: int) -> list[Followed]:
    found: list[Followed] = []
    while len(found) < count:
        found.append(await anext(stream))
    return found


async def test_each_call_gives_the_daemons_own_values(client: Client, harness: FakeHarness) -> None:
    assert await client.version() == api.Version("1.2.3", api.VERSION)
    id = await client.create(
        api.Create(model="rehearsal/tour", workers=(WorkerRef("w", "/srv"),), params={"a": [1]})
    )
    assert harness.created == [
        api.Create(model="rehearsal/tour", workers=(WorkerRef("w", "/srv"),), params={"a": [1]})
    ]
    other = await client.create(api.Create(from_=id, n=3))
    assert harness.created[1].from_ == id
    assert (await client.info(id)).id == id
    assert await client.check(id) == api.Check(id, "closed", "rehearsal/tour", True, 2)
    assert (await client.check(id, "a/b?&")).model == "a/b?&"
    assert [info.id for info in await client.list()] == [other, id]
    assert [info.id for info in await client.list("closed", 1, other)] == [id]
    assert await client.list("failed") == ()
    assert await client.retry(id) == "stepping"
    harness.stepping = {id}
    await client.stop(id, "me")
    assert harness.seen[-1] == ("stop", id, "me")
    harness.known_workers = [api.WorkerInfo("w", "gone")]
    assert list(await client.workers()) == harness.known_workers
    assert (await client.providers()).default == "rehearsal/tour"
    assert list(await client.models()) == ["rehearsal/tour"]


async def test_a_session_is_changed_and_ended(client: Client, harness: FakeHarness) -> None:
    id = harness.session()
    assert await client.set_workers(id, [WorkerRef("w", "/srv"), WorkerRef("v")], "me") == 3
    assert harness.workers_of == (WorkerRef("w", "/srv"), WorkerRef("v"))
    patch = api.ConfigPatch(context=None, params={"effort": None, "a": 1})
    assert await client.patch_config(id, patch, "you & me") == 4
    assert harness.patches == [patch]
    assert harness.logs[id].stored[-1].header.via == "you & me"
    await client.end(id, "me")
    assert harness.seen[-1] == ("end", id, "me")
    with pytest.raises(ApiFailure, match="has ended") as ended:
        await client.end(id, "me")
    assert ended.value.status == 410


async def test_keys_and_providers_are_set_up(harness: FakeHarness, path: Path) -> None:
    keys, providers = Keys(path.with_name("keys.toml")), FakeProviders()
    async with serve(harness, socket=path, keys=keys, providers=providers), Client(path) as client:
        made = await client.make_key("laptop", "operator")
        assert keys.find(made.key) == api.KeyInfo("laptop", "operator", made.created)
        assert list(await client.keys()) == [api.KeyInfo("laptop", "operator", made.created)]
        with pytest.raises(ApiFailure, match="there is a key laptop already"):
            await client.make_key("laptop", "viewer")
        await client.revoke_key("laptop")
        assert list(await client.keys()) == []
        with pytest.raises(ApiFailure, match="there is no key"):
            await client.revoke_key("a/b c")
        setting = api.ProviderSetting(key="sk-1")
        assert (await client.set_provider("anthropic", setting)).name == "anthropic"
        assert providers.settings == [("anthropic", setting)]
        for failure, status in [
            (BadSetting("url: no"), 422),
            (FixedSetting("key: no"), 409),
            (OwnFileError("x"), 507),
        ]:
            providers.failure = failure
            with pytest.raises(ApiFailure, match=str(failure)) as refused:
                await client.set_provider("anthropic", setting)
            assert refused.value.status == status
        with pytest.raises(ApiFailure, match="there is no provider"):
            await client.set_provider("a/b", setting)
        assert (await client.test_provider("rehearsal", "echo")).model == "rehearsal/echo"
        with pytest.raises(ApiFailure, match="there is no provider 'x'") as refused:
            await client.test_provider("x")
        assert refused.value.status == 404
        assert [found.server for found in await client.scan([11434])] == ["Ollama"]
        with pytest.raises(ApiFailure, match="ports"):
            await client.scan([0])


async def test_the_daemons_events_begin_anew_on_each_connection(harness: FakeHarness, path: Path) -> None:
    one, two = harness.session(), harness.session()
    line = Line(path)
    async with (
        serve(harness, socket=path),
        line.open(),
        Client(line.path, first_wait=0.001, longest_wait=0.002) as client,
        aclosing(client.events(1)) as stream,
    ):
        state = await anext(stream)
        assert isinstance(state, api.State)
        assert [info.id for info in state.sessions] == [two]
        harness.changed.put(one)
        assert await anext(stream) == await harness.info(one)
        harness.changed.put(WORKERS)
        assert await anext(stream) == api.Workers(())
        line.cut()
        assert isinstance(await anext(stream), Lost)
        while isinstance(event := await anext(stream), Lost):
            pass
        assert isinstance(event, Back)
        assert await anext(stream) == state


async def test_events_with_a_key_that_is_revoked_end(harness: FakeHarness, path: Path) -> None:
    keys = Keys(path.with_name("keys.toml"))
    async with serve(harness, socket=path, keys=keys, tcp=["127.0.0.1:0"]) as served, Client(path) as owner:
        key = (await owner.make_key("a", "viewer")).key
        async with (
            Client(f"http://{served.tcp[0]}", key, first_wait=0.001) as client,
            aclosing(client.events()) as stream,
        ):
            await anext(stream)
            await owner.revoke_key("a")
            assert isinstance(await anext(stream), Lost)
            with pytest.raises(ApiFailure, match="revoked") as refused:
                await anext(stream)
            assert refused.value.status == 401


async def test_records_come_decoded_and_checked(client: Client, harness: FakeHarness) -> None:
    id = harness.session("one", "two" * 100_000)
    harness.logs[id].append(draft("message", bytes(range(256)), "image/png"))
    assert await client.records(id) == harness.logs[id].stored
    assert await client.records(id, 2, 1) == harness.logs[id].stored[2:3]
    assert await client.records(id, 5) == []
    assert await client.records(id, 5, wait=0.01) == []
    heads = await client.headers(id, 1)
    assert [record.raw for record in heads] == [record.raw for record in harness.logs[id].stored[1:]]
    assert {record.body for record in heads} == {b""}


async def test_a_flipped_byte_in_a_record_is_noticed(client: Client, harness: FakeHarness) -> None:
    id = harness.session("one")
    harness.logs[id].file[-3] ^= 1
    with pytest.raises(ApiFailure, match=f"the records of session {id} arrived damaged: check sum"):
        await client.records(id)


async def test_a_post_of_one_or_more_parts_lands(client: Client, harness: FakeHarness) -> None:
    id = harness.session()
    assert await client.post(id, [TEXT_PART], "alice & bob") == 3
    parts = [
        api.Part(TEXT, b""),
        api.Part("image/png", b"\r\n--\x00" * 600_000),
        api.Part("text/markdown", b"\n"),
    ]
    assert await client.post(id, parts, "me") == 6
    stored = harness.logs[id].stored[2:]
    assert [record.body for record in stored] == [b"hello"] + [part.body for part in parts]
    assert [record.header.via for record in stored] == ["alice & bob", "me", "me", "me"]
    assert all(record.header.idempotency_key for record in stored)


async def test_a_post_under_a_given_key_lands_once(client: Client, harness: FakeHarness) -> None:
    id = harness.session()
    for _ in range(2):
        assert await client.post(id, [TEXT_PART], "me", "k") == 3


async def test_a_refusal_has_status_and_the_daemons_sentence(client: Client, harness: FakeHarness) -> None:
    with pytest.raises(ApiFailure, match=f"there is no session {NOBODY}") as refused:
        await client.info(NOBODY)
    assert refused.value.status == 404
    with pytest.raises(ApiFailure, match="no session"):
        await client.records(NOBODY)
    with pytest.raises(ApiFailure, match="after: 9 is past"):
        await client.headers(harness.session(), 9)
    harness.ready = False
    with pytest.raises(ApiFailure, match="draining") as unready:
        await client._call(dict, "GET", api.READYZ)
    assert unready.value.retry_after > 0


async def test_where_no_daemon_is_the_error_says_what_to_do(harness: FakeHarness, path: Path) -> None:
    async with Client(path) as client:
        with pytest.raises(Unreachable, match=f"no daemon listens on {path}; start one"):
            await client.list()
        with pytest.raises(Unreachable, match="no daemon listens on"):
            await client.post(NOBODY, [TEXT_PART], "me")
    server = await asyncio.start_unix_server(lambda r, w: w.close(), path)
    async with Client(path) as client:
        with pytest.raises(Unreachable, match="was lost in the middle of a request"):
            await client.list()
        server.close()
        await server.wait_closed()
        # From Python 3.13 on the server has removed it; one that was killed has not.
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        with pytest.raises(Unreachable, match=f"the daemon that listened on {path} has ended"):
            await client.list()
    async with Client("http://127.0.0.1:1/") as client:
        with pytest.raises(Unreachable, match=r"cannot connect to http://127.0.0.1:1/: Connection refused$"):
            await client.list()


@pytest.mark.parametrize("where", ["ftp://x", "gopher://host"])
def test_an_address_of_another_kind_is_refused(where: str) -> None:
    with pytest.raises(ValueError, match="Unix socket's path, or a URL"):
        Client(where)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "not the daemon's"),
        (b"HTTP/1.1 502 Bad\r\nContent-Length: 2\r\n\r\nhi", "answered 502 Bad"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n", "answered 302"),
        (b"SSH-2.0-OpenSSH\r\n", "does not speak as a daemon does"),
    ],
)
async def test_a_server_that_is_not_a_daemon_is_told_from_one(path: Path, said: bytes, words: str) -> None:
    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    server = await asyncio.start_unix_server(stranger, path)
    async with Client(f"unix://{path}") as client:
        with pytest.raises(ApiFailure, match=words):
            await client.version()
    server.close()


async def test_over_tcp_the_key_goes_along() -> None:
    seen: list[bytes] = []

    async def listener(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 31\r\n\r\n{"version": "7", "protocol": 1}')
        writer.close()

    server = await asyncio.start_server(listener, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Client(f"http://127.0.0.1:{port}/", key="ork_1") as client:
        assert (await client.version()).version == "7"
    server.close()
    assert seen[0].startswith(b"GET / HTTP/1.1\r\n")
    assert b"Authorization: Bearer ork_1\r\n" in seen[0]


async def test_following_gives_what_is_there_and_what_comes(client: Client, harness: FakeHarness) -> None:
    id = harness.session("one")
    log = harness.logs[id]
    async with aclosing(client.follow(id, after=1)) as stream:
        assert await take(stream, 2) == log.stored[1:]
        log.append(draft("text", "two"))
        assert await anext(stream) == log.stored[3]


async def test_following_with_deltas_gives_live_pieces_too(client: Client, harness: FakeHarness) -> None:
    id = harness.session()
    async with aclosing(client.follow(id, deltas=True)) as stream:
        await take(stream, 2)
        harness.stream(api.Delta("text", "a"))
        assert await anext(stream) == api.Delta("text", "a")
        harness.stream(api.Restart(), api.RetryEvent("why", 1.0, 2))
        assert await take(stream, 2) == [api.Restart(), api.RetryEvent("why", 1.0, 2)]


async def test_following_what_cannot_be_read_is_refused(client: Client, harness: FakeHarness) -> None:
    with pytest.raises(ApiFailure, match="no session"):
        await anext(client.follow(NOBODY))
    with pytest.raises(ApiFailure, match="after: 3 is past the last record, 2") as past:
        await anext(client.follow(harness.session(), 3))
    assert past.value.status == 400


async def test_a_follower_outlives_the_daemon(harness: FakeHarness, path: Path) -> None:
    id = harness.session("one")
    log = harness.logs[id]
    async with (
        Client(path, first_wait=0.01, longest_wait=0.02) as client,
        aclosing(client.follow(id)) as stream,
    ):
        lost = await anext(stream)
        assert isinstance(lost, Lost)
        assert lost.why.startswith("no daemon listens on")
        assert 0 < lost.wait <= 0.02
        for texts in (["two"], ["three", "four"]):
            async with serve(harness, version="1", socket=path):
                log.append(*(draft("message", text) for text in texts))
                came = await anext(stream)
                while isinstance(came, Lost):
                    came = await anext(stream)
                assert isinstance(came, Back)
                first = await anext(stream)
                assert isinstance(first, Record)
                while first.n < log.durable_n:
                    following = await anext(stream)
                    assert isinstance(following, Record)
                    assert following.n == first.n + 1
                    first = following
        assert isinstance(await anext(stream), Lost)


async def test_a_follower_waits_where_the_daemon_is_not_ready(
    http: Http, path: Path, harness: FakeHarness
) -> None:
    id = harness.session()
    harness.failure = Unready("starting")
    async with Client(path, longest_wait=0.0) as client, aclosing(client.follow(id)) as stream:
        lost = await anext(stream)
        assert isinstance(lost, Lost)
        assert lost.why == "starting"
        assert lost.wait >= 1


async def test_a_silent_connection_is_given_up(path: Path) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(mute, path)
    async with Client(path, silence=0.05) as client, aclosing(client.follow(NOBODY)) as stream:
        lost = await anext(stream)
        assert isinstance(lost, Lost)
        assert "was silent for 0.05 s" in lost.why
    server.close()


async def test_a_follower_ends_at_once_when_it_is_cancelled(client: Client, harness: FakeHarness) -> None:
    id = harness.session()

    async def follow() -> None:
        async with aclosing(client.follow(id, after=2, deltas=True)) as stream:
            await anext(stream)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        await harness.here.wait()
        task.cancel()
    await harness.gone.wait()


budget = st.tuples(st.integers(1, 700), st.integers(1, 3000))


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(budget, max_size=6))
async def test_a_follower_gets_each_record_once_in_order_wherever_the_line_breaks(
    path: Path, budgets: list[tuple[int, int]]
) -> None:
    harness = FakeHarness()
    id = harness.session(*[f"text {i}\n" * i for i in range(20)])
    log = harness.logs[id]
    line = Line(path, budgets)
    found: list[Record] = []
    states: list[type] = [Back]
    async with (
        serve(harness, version="1", socket=path),
        line.open(),
        Client(line.path, first_wait=0.001, longest_wait=0.002) as client,
        aclosing(client.follow(id, deltas=True)) as stream,
    ):
        while len(found) < 42:
            event = await anext(stream)
            if isinstance(event, Record):
                found.append(event)
                if len(found) == 22:
                    log.append(*(draft("text", f"new {i}") for i in range(20)))
            else:
                assert isinstance(event, Lost | Back)
                states.append(type(event))
    assert found == log.stored
    assert states[-1] is Back
    assert Back not in [b for a, b in pairwise(states) if a is Back]


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 600), st.integers(1, 400)), max_size=5), st.integers(1, 3))
async def test_a_post_lands_once_wherever_the_line_breaks(
    path: Path, budgets: list[tuple[int, int]], count: int
) -> None:
    harness = FakeHarness()
    id = harness.session()
    line = Line(path, budgets)
    async with (
        serve(harness, version="1", socket=path),
        line.open(),
        Client(line.path, first_wait=0.001, longest_wait=0.002) as client,
    ):
        assert await client.post(id, [TEXT_PART] * count, "me") == 2 + count
    assert [record.body for record in harness.logs[id].stored[2:]] == [b"hello"] * count


async def test_a_post_is_given_up_when_patience_ends(harness: FakeHarness, path: Path) -> None:
    line = Line(path, [(10, 10)] * 1000)
    async with (
        serve(harness, version="1", socket=path),
        line.open(),
        Client(line.path, first_wait=0.001, longest_wait=0.002, patience=0.05) as client,
    ):
        with pytest.raises(Unreachable, match="was lost in the middle of a request"):
            await client.post(harness.session(), [TEXT_PART], "me")
    assert line.broken > 1


async def test_records_that_are_cut_are_not_taken_for_all(harness: FakeHarness, path: Path) -> None:
    id = harness.session("x" * 5000)
    line = Line(path, [(10_000, 3000)])
    async with serve(harness, version="1", socket=path), line.open(), Client(line.path) as client:
        with pytest.raises(Unreachable, match="was lost"):
            await client.records(id)
        assert len(await client.records(id)) == 3
