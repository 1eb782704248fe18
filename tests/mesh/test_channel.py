"""Messages with descriptors between two processes."""

import asyncio
import fcntl
import os
import socket
from collections.abc import AsyncIterator
from ipaddress import IPv6Address, IPv6Interface, IPv6Network

import msgspec
import pytest

from mesh import verbs
from mesh.channel import MAX, MAX_FDS, Channel, Closed, close_all
from mesh.plan import AddPeer, Endpoint, Peer, PeerState, RemovePeer, SetAllowed, SetPreshared


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Channel, Channel]]:
    one, theirs = Channel.pair()
    with one, Channel(theirs) as two:
        yield one, two


async def test_messages_come_whole_and_in_order(ends: tuple[Channel, Channel]) -> None:
    one, two = ends
    sent = [b"x", b"y" * MAX, b"z" * 5]
    async with asyncio.TaskGroup() as group:
        group.create_task(send_all(one, sent * 20))
        for body in sent * 20:
            assert await two.receive() == (body, [])


async def send_all(channel: Channel, bodies: list[bytes]) -> None:
    for body in bodies:
        await channel.send(body)


async def test_descriptors_come_along_and_no_child_inherits_them(ends: tuple[Channel, Channel]) -> None:
    one, two = ends
    reading, writing = os.pipe()
    await one.send(b"here", [writing])
    os.close(writing)
    body, (got,) = await two.receive()
    assert body == b"here"
    assert fcntl.fcntl(got, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.write(got, b"through")
    assert os.read(reading, 7) == b"through"
    close_all([got, reading])


@pytest.mark.parametrize("body", [b"", b"x" * (MAX + 1)])
async def test_a_message_is_neither_empty_nor_too_long(ends: tuple[Channel, Channel], body: bytes) -> None:
    with pytest.raises(ValueError, match=f"between 1 and {MAX}"):
        await ends[0].send(body)


async def test_a_longer_message_of_the_other_end_ends_it() -> None:
    ours, theirs = Channel.pair()
    with ours, theirs:
        theirs.send(b"x" * (MAX + 1))
        with pytest.raises(Closed, match="longer than any may be"):
            await ours.receive()


async def test_more_descriptors_than_any_message_has_end_it_and_are_closed() -> None:
    ours, theirs = Channel.pair()
    reading, writing = os.pipe()
    with ours, theirs:
        socket.send_fds(theirs, [b"x"], [writing] * (MAX_FDS + 8))
        os.close(writing)
        with pytest.raises(Closed, match="longer"):
            await ours.receive()
        assert os.read(reading, 1) == b""  # nobody has the other end any more
    os.close(reading)


async def test_what_was_said_before_the_end_is_read_though_the_other_read_nothing() -> None:
    ours, theirs = Channel.pair()
    with ours:
        await ours.send(b"nobody reads this")
        theirs.send(b"last words")
        theirs.close()
        assert (await ours.receive())[0] == b"last words"
        with pytest.raises(Closed):
            await ours.receive()
        with pytest.raises(Closed):
            await ours.send(b"too late")


async def test_one_that_waits_may_be_cancelled(ends: tuple[Channel, Channel]) -> None:
    one, two = ends
    task = asyncio.ensure_future(one.receive())  # noqa: TID251 - cancelled below
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await two.send(b"still here")
    assert (await one.receive())[0] == b"still here"


KEY, NET = b"k" * 32, IPv6Network("fd00::1/128")
PEER = Peer(key=KEY, allowed=(NET,), preshared=b"p" * 32, endpoint=Endpoint("192.0.2.1", 1), keepalive=25)


@pytest.mark.parametrize(
    "request_",
    [
        verbs.Up(id=1, name="or0", private=KEY, address=IPv6Interface("fd00::1/48"), port=0, mtu=1420),
        verbs.Apply(id=2, changes=[AddPeer(PEER), RemovePeer(KEY), SetAllowed(KEY, (NET,), True)]),
        verbs.Dial(id=3, host=IPv6Address("fd00::1"), port=1, timeout=1.0),
        verbs.Read(id=4),
        verbs.Down(id=5),
    ],
)
def test_requests_are_read_as_they_were_written(request_: verbs.Request) -> None:
    assert verbs.request(verbs.encode(request_)) == request_


def test_a_page_of_peers_fits_a_message() -> None:
    longest = Endpoint("2001:db8:1111:2222:3333:4444:5555:6666", 65535)
    nets = frozenset(IPv6Network(f"2001:db8:1111:2222:3333:4444:5555:{number}/128") for number in range(8))
    state = PeerState(
        key=KEY, allowed=nets, preshared=KEY, endpoint=longest, keepalive=65535, handshake=1e9, rx=1 << 60
    )
    page = verbs.Page(id=1 << 40, peers=[state] * verbs.PAGE)
    assert verbs.answer(verbs.encode(page)) == page
    assert len(verbs.encode(page)) <= MAX


@pytest.mark.parametrize(
    "body", [b"", b"junk", verbs.encode(verbs.Done(id=1)), msgspec.msgpack.encode({"type": "dial", "id": 1})]
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        verbs.request(body)


def test_a_name_that_linux_would_cut_is_refused() -> None:
    long = verbs.Up(id=1, name="x" * 16, private=KEY, address=IPv6Interface("fd00::1/48"), port=0, mtu=1420)
    with pytest.raises(msgspec.ValidationError, match="name"):
        verbs.request(verbs.encode(long))


def test_no_request_shows_a_secret() -> None:
    up = verbs.Up(id=1, name="or0", private=KEY, address=IPv6Interface("fd00::1/48"), port=0, mtu=1420)
    shown = repr([up, verbs.Apply(id=1, changes=[AddPeer(PEER), SetPreshared(b"", b"p" * 32)])])
    assert "p" * 32 not in shown
    assert repr(KEY) not in repr(up)
