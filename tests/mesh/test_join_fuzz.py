"""The join over its real listener: every message cut and changed, garbage at every route."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh import asking, standing, token
from mesh.address import Place
from mesh.asking import NotReached, Refused
from mesh.join import JOIN_PATH, KEY_PATH, Reply
from mesh.listener import Limits, Offered, listening
from mesh.messages import MAX_ASK, Answer
from mesh.token import Token
from tests.mesh.joining import FACTS, Clock, Harness, harness, hub_keys, worker_keys

SCRIPT: Final = b"#!/bin/sh\n"
AT_ONCE: Final = 8  # connections
SOON: Final = Limits(head=0.5, body=0.5)  # for requests that do not come whole
LOOSE: Final = 1 << 20  # bytes: more than any answer has


class Wire:
    """A hub behind a real listener, asked in raw bytes. It hears each request a minute later than the last."""

    def __init__(self, one: Harness) -> None:
        self.one = one
        self.joined: list[Reply] = []
        self.port = 0
        self._room = asyncio.Semaphore(AT_ONCE)

    @asynccontextmanager
    async def open(self, limits: Limits | None = None) -> AsyncIterator["Wire"]:
        async def keep(reply: Reply) -> None:
            self.joined.append(reply)

        offered = Offered(script=SCRIPT)
        async with listening(
            ["127.0.0.1:0"], self.one.hub, lambda: offered, joined=keep, limits=limits
        ) as found:
            self.port = int(found[0].rpartition(":")[2])
            yield self

    async def raw(self, sent: bytes, cut: bool = False) -> bytes:
        """What comes for these bytes; `cut`: no others come."""
        async with self._room:
            self.one.tick.at += 60.0  # or the address has to wait
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(sent)
                if cut:
                    writer.write_eof()
                return await reader.read(LOOSE)
            except ConnectionError:
                return b""
            finally:
                writer.close()

    async def all(self, sent: Sequence[bytes], cut: bool = False) -> list[bytes]:
        """What comes for each."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.raw(each, cut)) for each in sent]
        return [task.result() for task in tasks]

    async def is_well(self) -> None:
        """It still serves, and let nobody join meanwhile."""
        assert (await self.raw(b"GET /join.sh HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(SCRIPT)
        assert await asyncio.to_thread(self.one.registry.nodes) == ()
        assert self.joined == []


def post(path: str, body: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


def status(answer: bytes) -> int:
    """Of an answer; 0 for none."""
    return int(answer.split(b" ", 2)[1]) if answer else 0


def changed(data: bytes, bits: int = 0x10) -> Iterator[bytes]:
    """`data` with each byte changed."""
    return (data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :] for at in range(len(data)))


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Harness]:
    with harness(tmp_path) as made:
        yield made


def questions(one: Harness) -> dict[str, bytes]:
    """A good question of either kind, of machine 1."""
    _, asked = one.post(one.token())
    leaving, _ = standing.ask(worker_keys(1), one.keys.join.public, one.clock(), leave=True)
    return {JOIN_PATH: asked.body, standing.PATH: leaving}


@pytest.mark.parametrize("path", [JOIN_PATH, standing.PATH])
async def test_a_question_changed_at_any_byte_is_refused(one: Harness, path: str) -> None:
    body = (await asyncio.to_thread(questions, one))[path]
    async with Wire(one).open() as wire:
        answers = await wire.all([post(path, wrong) for wrong in changed(body)])
        assert set(map(status, answers)) == {400}
        assert all(len(answer) < 400 for answer in answers)
        await wire.is_well()
        assert status(await wire.raw(post(path, body))) == 200


@pytest.mark.parametrize("path", [JOIN_PATH, standing.PATH])
async def test_a_request_cut_at_any_byte_joins_nothing(one: Harness, path: str) -> None:
    body = (await asyncio.to_thread(questions, one))[path]
    whole = post(path, body)
    async with Wire(one).open() as wire:
        answers = await wire.all([whole[:end] for end in range(len(whole))], cut=True)
        assert set(map(status, answers)) <= {0, 400}
        shorter = await wire.all([post(path, body[:end]) for end in range(len(body))])
        assert set(map(status, shorter)) == {400}
        await wire.is_well()
        assert status(await wire.raw(whole)) == 200


async def test_a_head_changed_at_any_byte_makes_no_failure(one: Harness) -> None:
    whole = post(JOIN_PATH, b"garbage")
    async with Wire(one).open(SOON) as wire:
        with structlog.testing.capture_logs() as logs:
            for bits in (0x01, 0x10, 0x80):
                answers = await wire.all(list(changed(whole, bits)))
                assert {status(answer) for answer in answers} <= {0, 400, 404, 405, 408, 413, 415, 417, 501}
        assert [log for log in logs if log["log_level"] == "error"] == []
        await wire.is_well()


METHODS = st.sampled_from(
    ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "x"]
)
ROUTES = st.sampled_from(
    ["/", "/join.sh", KEY_PATH, JOIN_PATH, standing.PATH, "/release/", "/wheelhouse/", "/mesh/relay", "*"]
)
TAILS = st.sampled_from(["", "/", "/..", "/../join", "?a=b", "%00", "//", "#x", "%2e%2e/x"]) | st.text(
    st.characters(min_codepoint=33, max_codepoint=126), max_size=30
)
HEADERS = st.lists(
    st.sampled_from(
        [
            b"Transfer-Encoding: chunked",
            b"Content-Length: 3",
            b"Content-Length: 99999999999999999999",
            b"Content-Length: -3",
            b"Content-Encoding: gzip",
            b"Expect: 100-continue",
            b"Upgrade: websocket",
            b"Connection: Upgrade, keep-alive",
            b"Sec-WebSocket-Version: 13",
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            b"Range: bytes=0-0",
            b"X-Forwarded-For: 127.0.0.1",
            b"Cookie: \xff\xfe",
            b": x",
            b" folded",
        ]
    )
    | st.binary(max_size=40),
    max_size=5,
)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(METHODS, ROUTES, TAILS, HEADERS, st.binary(max_size=200)), min_size=1, max_size=8))
def test_garbage_at_any_route_is_answered_in_few_bytes_and_joins_nothing(
    requests: list[tuple[str, str, str, list[bytes], bytes]],
) -> None:
    async def ask(one: Harness) -> None:
        async with Wire(one).open(SOON) as wire:
            with structlog.testing.capture_logs() as logs:
                answers = await wire.all(
                    [
                        f"{method} {route}{tail} HTTP/1.1\r\nHost: x\r\n".encode()
                        + b"".join(header + b"\r\n" for header in headers)
                        + b"\r\n"
                        + body
                        for method, route, tail, headers, body in requests
                    ]
                )
            assert [log for log in logs if log["log_level"] == "error"] == []
            assert all(status(answer) != 500 and len(answer) < 4096 for answer in answers)
            await wire.is_well()

    fuzzed(ask)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.binary(max_size=MAX_ASK + 100), min_size=1, max_size=10),
    st.sampled_from([JOIN_PATH, standing.PATH]),
)
def test_a_body_of_garbage_is_refused(bodies: list[bytes], path: str) -> None:
    async def ask(one: Harness) -> None:
        async with Wire(one).open() as wire:
            for body, answer in zip(
                bodies, await wire.all([post(path, each) for each in bodies]), strict=True
            ):
                assert status(answer) == (413 if len(body) > MAX_ASK else 400)
            await wire.is_well()

    fuzzed(ask)


class Empty:
    """A registry in which nobody is; nothing else may be asked of it, as no garbage comes so far."""

    def nodes(self) -> tuple[()]:
        return ()


HUB: Final = Harness(Empty(), hub_keys(), Clock())  # type: ignore[arg-type] # see there


def fuzzed(ask: Callable[[Harness], Coroutine[None, None, None]]) -> None:
    HUB.tick.at += 3600.0
    asyncio.run(ask(HUB))


# What the machine gets


class Between:
    """Passes requests on to a hub, and its answer to a join as `change` has it."""

    def __init__(self, hub: Place) -> None:
        self._hub = hub
        self.change: Callable[[bytes], bytes] = lambda answer: answer
        self.size = 0  # of the last answer to a join

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Place]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield Place("127.0.0.1", server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            ),
            0,
        )
        body = await reader.readexactly(length)
        far, out = await asyncio.open_connection(self._hub.host, self._hub.port)
        out.write(head + body)
        answer = await far.read()
        out.close()
        if head.startswith(b"POST"):
            self.size = len(answer)
            answer = self.change(answer)
        try:
            writer.write(answer)
            await writer.drain()
        except ConnectionError:
            pass
        writer.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stride", [23, pytest.param(1, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("how", ["cut", "changed"])
async def test_an_answer_cut_or_changed_anywhere_makes_no_other_membership(
    one: Harness, how: str, stride: int
) -> None:
    asked = token.decode(await asyncio.to_thread(one.token, 5000))
    pair = worker_keys(1)
    one.clock.at = time.time()  # the machine's own
    async with Wire(one).open() as wire, _between(wire) as (between, place):

        async def attempt() -> object:
            by = Token(places=(place,), fingerprint=asked.fingerprint, secret=asked.secret)
            try:
                return (await asking.join(by, FACTS, pair, {}, tell=lambda _: None, patience=0.0)).answer
            except (Refused, NotReached) as error:
                return str(error)

        true = await attempt()
        assert isinstance(true, Answer), true
        whole = between.size
        failed = 0
        for at in range(0, whole, stride):
            if how == "cut":
                between.change = lambda answer, at=at: answer[:at]  # type: ignore[misc]
            else:
                between.change = (
                    lambda answer, at=at: (  # type: ignore[misc]
                        answer[:at] + bytes([answer[at] ^ 0x10]) + answer[at + 1 :]
                    )
                )
            made = await attempt()
            assert made == true or (isinstance(made, str) and made.isprintable())
            failed += made != true
        assert failed >= (0.9 if how == "cut" else 0.7) * len(range(0, whole, stride))
        between.change = lambda answer: answer
        assert await attempt() == true
    assert len(await asyncio.to_thread(one.registry.nodes)) == 1


@asynccontextmanager
async def _between(wire: Wire) -> AsyncIterator[tuple[Between, Place]]:
    between = Between(Place("127.0.0.1", wire.port))
    async with between.open() as place:
        yield between, place
