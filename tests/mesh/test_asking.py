"""Joining, asking and leaving over HTTP, at a real join listener."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from mesh import address, asking, token
from mesh.address import Place
from mesh.asking import NotReached, Refused
from mesh.identity import Membership
from mesh.join import Reply
from mesh.listener import Offered, listening
from tests.mesh.joining import FACTS, Harness, harness, hub_keys, worker_keys
from tests.needed import missing


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Harness]:
    with harness(tmp_path) as made:
        made.clock.at = time.time()
        yield made


class Joins:
    """The hub's, with what a test puts before it: `before` gets the body of a join, and may answer in its place."""

    def __init__(self, hub: Harness) -> None:
        self.hub = hub
        self.before: Callable[[bytes], Reply | None] = lambda body: None

    def key(self) -> bytes:
        return self.hub.hub.key()

    def join(self, body: bytes, peer: str, /) -> Reply:
        return self.before(body) or self.hub.hub.join(body, peer)

    def standing(self, body: bytes, peer: str, /) -> Reply:
        return self.hub.hub.standing(body, peer)


@asynccontextmanager
async def open_hub(hub: Harness) -> AsyncIterator[tuple[Joins, Place]]:
    """The hub's join listener."""
    joins = Joins(hub)

    async def joined(reply: Reply) -> None:
        if reply.left and reply.node is not None:
            await asyncio.to_thread(hub.registry.remove, reply.node.number)

    async with listening(["127.0.0.1:0"], joins, lambda: Offered(script=b""), joined=joined) as found:
        yield joins, address.place(found[0])


@asynccontextmanager
async def answering(answer: web.Response) -> AsyncIterator[Place]:
    """A web server that says the same to everybody."""

    async def same(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

    runner = web.ServerRunner(web.Server(same))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Place("127.0.0.1", runner.addresses[0][1])
    finally:
        await runner.cleanup()


@pytest.fixture
def closed() -> Iterator[Place]:
    """Where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield Place("127.0.0.1", sock.getsockname()[1])


async def text_for(hub: Harness, *places: Place) -> str:
    return (await asyncio.to_thread(hub.hub.issue, places))[0]


async def nodes(hub: Harness) -> int:
    return len(await asyncio.to_thread(hub.registry.nodes))


class Asker:
    """One who joins, without waiting; what it was told, and how long it was to wait."""

    def __init__(self, number: int = 1) -> None:
        self.pair = worker_keys(number)
        self.told: list[str] = []
        self.waits: list[float] = []

    async def join(
        self, text: str, environ: Mapping[str, str] | None = None, patience: float = 0.0
    ) -> Membership:
        async def sleep(seconds: float) -> None:
            self.waits.append(seconds)

        return await asking.join(
            token.decode(text),
            FACTS,
            self.pair,
            environ or {},
            tell=self.told.append,
            patience=patience,
            sleep=sleep,
        )


async def test_the_first_place_that_answers_joins_and_is_kept_first(hub: Harness, closed: Place) -> None:
    async with open_hub(hub) as (_, place):
        made = await Asker().join(await text_for(hub, closed, place))
    assert made.places == (place, closed)
    assert (made.answer.name, made.fingerprint) == (
        "gpu1",
        token.decode(await text_for(hub, place)).fingerprint,
    )


async def test_a_name_is_resolved(hub: Harness) -> None:
    try:
        socket.getaddrinfo("localhost", 0)
    except socket.gaierror:
        missing("localhost is no name here: write it into /etc/hosts")
    async with open_hub(hub) as (_, place):
        assert (await Asker().join(await text_for(hub, Place("localhost", place.port)))).answer.name == "gpu1"


async def test_where_nobody_answers_each_place_and_its_reason_are_told(hub: Harness, closed: Place) -> None:
    asker = Asker()
    async with answering(web.Response(status=404)) as other:
        text = await text_for(hub, closed, other, Place("nothing.invalid", 1))
        with pytest.raises(NotReached) as raised:
            await asker.join(text)
    said = str(raised.value)
    assert f"{closed}: Connection refused" in said
    assert f"{other}: no harness lets machines join there (HTTP status 404)" in said
    assert "nothing.invalid:1: " in said
    assert asker.waits == []


async def test_it_is_tried_again_for_a_while(hub: Harness, closed: Place) -> None:
    asker = Asker()
    async with open_hub(hub) as (joins, place):
        answers = iter([Reply(status=503, body=b"not now"), None])
        joins.before = lambda body: next(answers)
        await asker.join(await text_for(hub, place), patience=1e9)
    assert asker.waits == [asking.AGAIN]
    assert "not now (HTTP status 503)" in asker.told[0]


async def test_a_refusal_ends_it_with_its_reason(hub: Harness) -> None:
    async with open_hub(hub) as (_, place):
        text = await text_for(hub, place)
        await Asker().join(text)
        with pytest.raises(Refused, match="the harness refused: this token joins no more machines"):
            await Asker(2).join(text, patience=1e9)


async def test_a_clock_that_is_off_is_told_in_minutes(hub: Harness) -> None:
    hub.clock.at += 3600
    async with open_hub(hub) as (_, place):
        text = await text_for(hub, place)
        with pytest.raises(Refused, match=r"the machine's clock is 60 minutes behind the harness's"):
            await Asker().join(text)


async def test_who_is_to_wait_waits_as_long_as_it_is_told(hub: Harness) -> None:
    asker = Asker()
    async with open_hub(hub) as (joins, place):
        answers = iter([Reply(status=429, body=b"too many", retry_after=7)] * 2 + [None])
        joins.before = lambda body: next(answers)
        await asker.join(await text_for(hub, place))
        assert asker.waits == [7.0, 7.0]
        joins.before = lambda body: Reply(status=429, body=b"too many", retry_after=999_999)
        with pytest.raises(Refused, match="too many"):
            await asker.join(await text_for(hub, place))
    assert asker.waits[2:] == [asking.LONGEST_RETRY] * asking.MOST_RETRIES


async def test_an_answer_that_was_lost_takes_no_second_use(hub: Harness) -> None:
    asker = Asker()
    async with open_hub(hub) as (joins, place):

        def lose(body: bytes) -> Reply:
            joins.before = lambda body: None
            assert hub.hub.join(body, "127.0.0.1").status == 200
            return Reply(status=502, body=b"lost")

        joins.before = lose
        made = await asker.join(await text_for(hub, place), patience=1e9)
    assert made.answer.name == "gpu1"
    assert await nodes(hub) == 1


async def test_redirects_are_not_followed_and_long_answers_not_read(hub: Harness) -> None:
    async with open_hub(hub) as (_, place):
        moved = web.Response(status=302, headers={"Location": f"http://{place}/join/key"})
        long = web.Response(body=bytes(1 << 20))
        async with answering(moved) as one, answering(long) as two:
            with pytest.raises(NotReached) as raised:
                await Asker().join(await text_for(hub, one, two))
    assert f"{one}: no harness lets machines join there (HTTP status 302)" in str(raised.value)
    assert f"{two}: another harness than the token's answers there" in str(raised.value)
    assert await nodes(hub) == 0


async def test_it_goes_by_the_proxy_that_the_environment_names(hub: Harness) -> None:
    far = Place("192.0.2.1", 4601)
    async with open_hub(hub) as (_, place):  # a proxy gets whole URLs, of which the listener takes the path
        made = await Asker().join(await text_for(hub, far), {"http_proxy": f"http://me:secret@{place}"})
        assert made.answer.name == "gpu1"
        text = await text_for(hub, place)
        exempt = {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.0/8"}
        assert (await Asker(2).join(text, exempt)).answer.name == "gpu1-2"
        async with answering(web.Response(status=407)) as proxy:
            with pytest.raises(NotReached, match=rf"the proxy {proxy} does not let through .*407"):
                await Asker(3).join(await text_for(hub, far), {"HTTP_PROXY": f"http://{proxy}"})
        with pytest.raises(NotReached, match="HTTP_PROXY"):
            await Asker(3).join(await text_for(hub, far), {"HTTP_PROXY": "socks5://127.0.0.1:9"})


async def test_one_asks_how_it_stands_and_leaves(hub: Harness, closed: Place) -> None:
    asker = Asker()
    async with open_hub(hub) as (_, place):
        made = await asker.join(await text_for(hub, closed, place))
        made = msgspec.structs.replace(made, places=(closed, place))
        hub.offer = msgspec.structs.replace(hub.offer, control=4999)
        told, answer, by = await asking.stand(made, asker.pair, {})
        assert (told.state, by) == ("member", place)
        assert answer is not None
        assert answer.control == 4999
        renewed = asking.renewed(made, answer, by)
        assert (renewed.places, renewed.answer.control) == ((place, closed), 4999)
        assert (await asking.stand(made, asker.pair, {}, leave=True))[0].state == "removed"
        assert await nodes(hub) == 0
        assert (await asking.stand(made, asker.pair, {}))[0].state == "removed"
        assert (await asking.stand(made, worker_keys(9), {}))[0].state == "unknown"


async def test_only_the_harness_itself_is_believed_to_say_that_one_was_removed(hub: Harness) -> None:
    asker = Asker()
    async with open_hub(hub) as (_, place):
        made = await asker.join(await text_for(hub, place))
    other = hub_keys(2).join.public
    for answer in (
        web.Response(status=403, body=b"removed"),
        web.Response(body=other),
        web.Response(body=hub.keys.join.public),  # the right key, which is public, and then no sealed word
    ):
        async with answering(answer) as liar:
            with pytest.raises(NotReached):
                await asking.stand(msgspec.structs.replace(made, places=(liar,)), asker.pair, {})


async def test_a_question_with_a_wrong_clock_is_refused_with_the_reason(hub: Harness) -> None:
    asker = Asker()
    async with open_hub(hub) as (_, place):
        made = await asker.join(await text_for(hub, place))
        hub.clock.at += 3600
        with pytest.raises(Refused, match="set the clock that is wrong"):
            await asking.stand(made, asker.pair, {})


async def test_one_that_says_nothing_is_given_up(hub: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER", 0.05)
    ended = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        place = Place(*server.sockets[0].getsockname())
        with pytest.raises(NotReached, match="no answer within"):
            await Asker().join(await text_for(hub, place))
        ended.set()
