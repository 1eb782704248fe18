import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh import datagrams, tunnel
from mesh.datagrams import Allowance, Waiting
from mesh.detour import Detour, Timing, detour
from mesh.relay import PATH, Limits, source
from tests.mesh.guards import (
    ConnectProxy,
    Guard,
    Hub,
    data,
    descriptors,
    frame,
    guard,
    hub,
    initiation,
    response,
    websocket_head,
)

FAST = Timing(first=0.01, most=0.02, hold=0.05)
HOSTILE = [
    b"",
    b"x",
    b"\1\1\0\0" + bytes(144),
    initiation()[:-1],
    initiation() + b"x",
    response() + b"x",
    b"\3\0\0\0" + bytes(61),
    data()[:-1],
    b"\4\0\0\1" + bytes(100),
    b"\5\0\0\0" + bytes(144),
    b"GET / HTTP/1.1\r\n\r\n".ljust(148),
]


@asynccontextmanager
async def websocket(hub: Hub) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with aiohttp.ClientSession() as client, client.ws_connect(hub.url + PATH, autoping=False) as ws:
        yield ws


@asynccontextmanager
async def worker(
    url: str, timing: Timing = FAST, environ: dict[str, str] | None = None
) -> AsyncIterator[tuple[Detour, Guard, "Changes"]]:
    """A detour and the WireGuard of the worker in front of it."""
    with guard(silent=True) as own:
        changes = Changes()
        async with detour(
            url, wireguard=own.address[1], environ=environ or {}, timing=timing, changed=changes.changed
        ) as made:
            yield made, own, changes


class Changes:
    """Waits for states of a detour."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def changed(self) -> None:
        self._event.set()

    async def until(self, made: Detour, state: str) -> None:
        while made.standing().state != state:
            self._event.clear()
            await self._event.wait()


async def raw(hub: Hub) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket to the relay by hand, opened."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.port)
    writer.write(websocket_head())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101")
    return reader, writer


# What a packet is


@given(st.binary(max_size=200), st.integers(0, 255))
def test_only_the_four_messages_with_their_lengths_are_packets(rest: bytes, first: int) -> None:
    packet = bytes([first, 0, 0, 0]) + rest
    expected = {1: len(packet) == 148, 2: len(packet) == 92, 3: len(packet) == 64, 4: len(packet) >= 32}
    assert datagrams.kind(packet) == (first if expected.get(first) else 0)


def test_data_is_taken_up_to_the_most_and_not_beyond() -> None:
    assert datagrams.kind(data(size=datagrams.MAX)) == 4
    assert datagrams.kind(data(size=datagrams.MAX + 1)) == 0
    assert datagrams.kind(data(size=1452)) == 4  # a full MTU of 1420 is not padded to 16 bytes


@pytest.mark.parametrize("packet", HOSTILE)
def test_what_is_shaped_otherwise_is_none(packet: bytes) -> None:
    assert datagrams.kind(packet) == 0


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 50)), max_size=50))
def test_an_allowance_never_gives_more_than_its_rate(takes: list[tuple[float, float]]) -> None:
    now, given_out = 0.0, 0.0
    bucket = Allowance(10, 20, now)
    for wait, tokens in takes:
        now += wait
        given_out += tokens * bucket.take(tokens, now)
        assert given_out <= 20 + 10 * now + 1e-6


async def test_of_packets_that_wait_the_oldest_are_dropped() -> None:
    waiting = Waiting(3)
    for number in range(10):
        waiting.put(bytes([number]))
    assert [await waiting.get() for _ in range(len(waiting))] == [b"\7", b"\x08", b"\x09"]
    assert waiting.dropped == 7


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_site_counts_as_one_address(address: str, counted: str) -> None:
    assert source(address) == counted


# The hub's end


async def test_packets_pass_both_ways_as_one_message_each() -> None:
    async with hub() as there, websocket(there) as ws:
        await ws.send_bytes(initiation())
        assert (await ws.receive()).data == response()
        for size in (32, 33, 1452, datagrams.MAX):
            await ws.send_bytes(data(b"n", size))
            assert (await ws.receive()).data == data(b"n", size)
        counts = there.relay.counts()
        assert (counts.connections, counts.opened, counts.hostile, counts.dropped) == (1, 1, 0, 0)
        assert (counts.up_packets, counts.down_packets) == (5, 5)


async def test_each_connection_has_its_own_endpoint_by_which_its_worker_is_found() -> None:
    async with hub(silent=True) as there, websocket(there) as one, websocket(there) as other:
        await one.send_bytes(data(b"one"))
        await other.send_bytes(data(b"two"))
        (first, from_one), (_, from_other) = await there.guard.got.get(), await there.guard.got.get()
        assert from_one != from_other
        assert there.relay.via(from_one) == "127.0.0.1"
        assert there.relay.via(("127.0.0.1", 9)) is None
        there.guard.send(data(b"answer"), from_one)
        assert (await (one if first == data(b"one") else other).receive()).data == data(b"answer")


async def test_the_endpoint_takes_packets_of_the_hub_alone() -> None:
    async with hub(silent=True) as there, websocket(there) as ws:
        await ws.send_bytes(data(b"one"))
        _, endpoint = await there.guard.got.get()
        with guard() as stranger:
            stranger.send(data(b"from a stranger"), endpoint)
            there.guard.send(data(b"from the hub"), endpoint)
            assert (await ws.receive()).data == data(b"from the hub")


@pytest.mark.parametrize("packet", HOSTILE)
async def test_what_is_no_packet_ends_the_connection_and_reaches_nobody(packet: bytes) -> None:
    async with hub(silent=True) as there, websocket(there) as ws:
        await ws.send_bytes(packet)
        ended = await ws.receive()
        assert ended.type == aiohttp.WSMsgType.CLOSE
        assert ended.data == aiohttp.WSCloseCode.POLICY_VIOLATION
        await there.connections(0)
        assert there.relay.counts().hostile == 1
        assert there.guard.got.empty()


@pytest.mark.parametrize(
    "sent",
    [
        frame(b"hello", opcode=1),  # a text
        frame(data(size=datagrams.MAX + 1)),
        frame(bytes(1 << 20)),
        b"\x82\xff" + b"\x7f" + bytes(7) + bytes(4),  # a length of 2^62
        frame(data(), first=0xC0),  # compressed, which was not agreed on
        frame(data(), opcode=7),
        frame(bytes(126), opcode=9),  # a ping that is too long
        frame(data(), first=0) * 2,  # two beginnings of a message
        b"\xff" * 4096,
        b"\x8f" * 4096,  # an opcode that there is not
    ],
    ids=range(10),
)
async def test_a_broken_websocket_is_ended_and_nobody_else_notices(sent: bytes) -> None:
    async with hub() as there, websocket(there) as good:
        reader, writer = await raw(there)
        writer.write(sent)
        with suppress(ConnectionResetError):  # where more was sent than was read
            while await reader.read(1 << 16):
                pass
        writer.close()
        await there.connections(1)
        await good.send_bytes(data(b"still here"))
        assert (await good.receive()).data == data(b"still here")
        while not there.guard.got.empty():
            assert there.guard.got.get_nowait()[0] == data(b"still here")


async def test_a_message_in_many_fragments_is_one_packet() -> None:
    async with hub() as there:
        _, writer = await raw(there)
        packet = data(b"in pieces")
        writer.write(frame(packet[:1], first=0))
        for byte in packet[1:-1]:
            writer.write(frame(bytes([byte]), opcode=0, first=0))
        writer.write(frame(packet[-1:], opcode=0))
        assert await there.guard.next() == packet
        writer.close()
        await writer.wait_closed()


async def test_pings_are_answered() -> None:
    async with hub() as there, websocket(there) as ws:
        await ws.ping(b"are you there")
        answer = await ws.receive()
        assert (answer.type, answer.data) == (aiohttp.WSMsgType.PONG, b"are you there")


async def test_who_does_not_answer_pings_is_ended() -> None:
    async with hub(limits=Limits(ping=0.05)) as there:
        _, writer = await raw(there)
        await there.connections(0)
        writer.close()


async def test_a_connection_through_which_wireguard_answers_nothing_ends() -> None:
    async with hub(silent=True, limits=Limits(prove=0.05)) as there, websocket(there) as ws:
        await ws.send_bytes(initiation())
        ended = await ws.receive()
        assert (ended.type, ended.extra) == (aiohttp.WSMsgType.CLOSE, "WireGuard answers nothing")


async def test_a_connection_that_was_answered_ends_when_it_is_idle() -> None:
    async with hub(limits=Limits(prove=0.5, idle=0.05)) as there, websocket(there) as ws:
        await ws.send_bytes(initiation())
        assert (await ws.receive()).data == response()
        assert (await ws.receive()).type == aiohttp.WSMsgType.CLOSE


async def test_a_peer_that_does_not_read_is_ended_and_held_nothing() -> None:
    async with hub(limits=Limits(stall=0.2), silent=True) as there, websocket(there) as good:
        before = descriptors()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", there.port))
        await loop.sock_sendall(sock, websocket_head() + frame(data(b"from the slow one")))
        _, slow = await there.guard.got.get()
        await good.send_bytes(data(b"from the good one"))
        _, quick = await there.guard.got.get()
        while there.relay.counts().connections == 2:
            for _ in range(32):
                there.guard.port.send(data(b"much", 1452), slow)
            there.guard.send(data(b"still here"), quick)  # behind no stall of another's
            assert (await good.receive()).data == data(b"still here")
        assert there.relay.counts().dropped > 0
        sock.close()
        assert descriptors() == before


async def test_a_flood_waits_in_the_floods_own_connection() -> None:
    """Ten times the rate is sent; what is over it stays unread, and another connection has its turn at once."""
    async with hub(limits=Limits(rate=100_000), silent=True) as there, websocket(there) as good:
        _, writer = await raw(there)
        flood = frame(data(size=1000)) * 2000
        writer.write(flood)
        await there.guard.got.get()
        await good.send_bytes(data(b"of another"))
        taken = 1
        while await there.guard.next() != data(b"of another"):
            taken += 1
        assert taken <= 110
        assert writer.transport.get_write_buffer_size() < len(flood)
        writer.transport.abort()


async def test_a_flood_of_pings_and_of_empty_messages_holds_nobody_up() -> None:
    async with hub(limits=Limits(rate=10_000)) as there, websocket(there) as good:
        _, writer = await raw(there)
        writer.write(frame(b"", opcode=9) * 100_000)
        await good.send_bytes(data(b"of another"))
        assert (await good.receive()).data == data(b"of another")
        writer.transport.abort()


async def test_handshakes_are_begun_as_often_as_a_worker_does_and_no_more() -> None:
    async with hub(limits=Limits(initiations=0.001), silent=True) as there, websocket(there) as ws:
        for _ in range(20):
            await ws.send_bytes(initiation())
        await ws.send_bytes(data(b"behind them"))
        got = [await there.guard.next() for _ in range(6)]
        assert got == [initiation()] * 5 + [data(b"behind them")]
        assert there.relay.counts().dropped == 15


async def test_who_has_shown_nothing_gives_way_and_who_was_answered_stays() -> None:
    async with hub(limits=Limits(most=2)) as there, websocket(there) as worker, websocket(there) as stranger:
        await worker.send_bytes(initiation())
        assert (await worker.receive()).data == response()
        async with websocket(there) as next_one:
            assert (await stranger.receive()).type == aiohttp.WSMsgType.CLOSE
            await next_one.send_bytes(initiation())
            assert (await next_one.receive()).data == response()
            await stranger.close()
            await there.connections(2)
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with websocket(there):
                    pass
            assert refused.value.status == 503
        await worker.send_bytes(data(b"still here"))
        assert (await worker.receive()).data == data(b"still here")
        assert there.relay.counts().refused == 1


async def test_an_address_has_its_share_of_connections() -> None:
    async with hub(limits=Limits(each=1)) as there, websocket(there) as first:
        await first.send_bytes(initiation())
        await first.receive()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with websocket(there):
                pass
        assert refused.value.status == 503


async def test_browsers_and_plain_requests_are_refused() -> None:
    async with hub() as there, aiohttp.ClientSession() as client:
        async with client.get(there.url + PATH) as answer:
            assert (answer.status, answer.headers["Upgrade"]) == (426, "websocket")
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.ws_connect(there.url + PATH, origin="http://evil.example")
        assert refused.value.status == 403


async def test_connections_that_are_cut_in_any_way_leave_nothing() -> None:
    async with hub() as there:
        before = descriptors()
        for cut in ("close", "reset", "half"):
            reader, writer = await raw(there)
            sock = writer.get_extra_info("socket")
            if cut == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.write(frame(data(size=1000))[:500])
            await writer.drain()
            if cut == "half":
                writer.write_eof()
                while await reader.read(1 << 16):
                    pass
            writer.close()
            await there.connections(0)
        while descriptors() != before:  # noqa: ASYNC110 - a closing socket tells nobody
            await asyncio.sleep(0)


async def test_the_relay_lives_while_no_wireguard_listens_behind_it() -> None:
    async with hub() as there, websocket(there) as ws:
        there.guard.port.close()
        for _ in range(5):
            await ws.send_bytes(initiation())
        await ws.ping(b"alive")
        assert (await ws.receive()).type == aiohttp.WSMsgType.PONG


async def test_it_goes_down_with_connections_open() -> None:
    async with aiohttp.ClientSession() as client:
        async with hub() as there:
            ws = await client.ws_connect(there.url + PATH)
        ended = await ws.receive()
        assert (ended.type, ended.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.GOING_AWAY)


# The worker's end


async def test_a_workers_packets_go_through_to_the_hub_and_back() -> None:
    async with hub() as there, worker(there.url + PATH) as (made, own, changes):
        own.send(initiation(), made.address)
        assert await own.next() == response()
        for size in (32, 1452):
            own.send(data(b"n", size), made.address)
            assert await own.next() == data(b"n", size)
        await changes.until(made, "up")
        standing = made.standing()
        assert (standing.up_packets, standing.down_packets, standing.dropped) == (3, 3, 0)


async def test_it_takes_packets_from_its_own_wireguard_alone() -> None:
    async with hub(silent=True) as there, worker(there.url + PATH) as (made, own, _):
        with guard() as stranger:
            stranger.send(data(b"from a stranger"), made.address)
            own.send(b"no packet", made.address)
            own.send(data(b"its own"), made.address)
            assert await there.guard.next() == data(b"its own")
        assert made.standing().dropped == 2


async def test_where_no_port_is_named_whoever_speaks_last_is_answered() -> None:
    async with hub() as there, detour(there.url + PATH, environ={}, timing=FAST) as made:
        with guard(silent=True) as one, guard(silent=True) as other:
            for own in (one, other, one):
                own.send(data(b"hello"), made.address)
                assert await own.next() == data(b"hello")


async def test_it_dials_again_and_says_why_it_is_down() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        async with worker(f"ws://127.0.0.1:{port}{PATH}") as (made, own, changes):
            await changes.until(made, "down")
            assert made.standing().reason == f"127.0.0.1:{port} cannot be reached: Connection refused"
            taken.close()
            async with hub(address=f"127.0.0.1:{port}") as there:
                own.send(data(b"early"), made.address)
                await changes.until(made, "up")
                assert await own.next() == data(b"early")
                assert made.standing().reason == ""
                assert there.relay.counts().opened
            await changes.until(made, "down")
            assert made.standing().reason == "the harness ended it: the harness is going down"


async def test_it_says_that_there_is_no_relay() -> None:
    async with hub() as there, worker(there.url + "/elsewhere") as (made, _, changes):
        await changes.until(made, "down")
        assert made.standing().reason == f"{there.address} has no relay for us: it answers 404"


async def test_it_says_that_nothing_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        async with worker(f"ws://127.0.0.1:{port}{PATH}", Timing(dial=0.05)) as (made, _, changes):
            await changes.until(made, "down")
            assert made.standing().reason == f"127.0.0.1:{port} did not answer within 0.05 s"


async def test_plain_websockets_go_through_a_proxy_by_connect() -> None:
    async with hub() as there, ConnectProxy().running() as proxy:
        environ = {"HTTPS_PROXY": f"http://me:p%40ss@{proxy.address}"}
        async with worker(there.url.replace("http", "ws") + PATH, environ=environ) as (made, own, _):
            own.send(data(b"through"), made.address)
            assert await own.next() == data(b"through")
            assert made.standing().proxy == proxy.address
        assert proxy.asked[0].startswith(f"CONNECT {there.address} HTTP/1.1\r\n")
        assert "Proxy-Authorization: Basic bWU6cEBzcw==\r\n" in proxy.asked[0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("403 Forbidden", "does not let through to {hub}: 403 Forbidden"),
        (
            "407 Proxy Authentication Required",
            "does not let through to {hub}: 407 Proxy Authentication Required; put NAME:PASSWORD@ into HTTPS_PROXY",
        ),
        ("hello", "does not let through to {hub}: "),
    ],
)
async def test_it_says_what_a_proxy_says(answer: str, reason: str) -> None:
    async with hub() as there, ConnectProxy().running() as proxy:
        proxy.refuse = answer
        async with worker(there.url + PATH, environ={"https_proxy": proxy.address}) as (made, _, changes):
            await changes.until(made, "down")
            said = made.standing().reason
    if answer == "hello":
        assert said == f"the proxy {proxy.address} gives no answer that is HTTP"
    else:
        assert said == f"the proxy {proxy.address} {reason.format(hub=there.address)}"


async def test_it_says_that_a_proxy_is_away() -> None:
    async with hub() as there:
        environ = {"HTTPS_PROXY": "http://127.0.0.1:1"}
        async with worker(there.url + PATH, environ=environ) as (made, _, changes):
            await changes.until(made, "down")
            assert made.standing().reason == "the proxy 127.0.0.1:1 is not reachable: Connection refused"


@pytest.mark.parametrize(
    ("exempt", "host", "proxied"),
    [
        ("", "hub.example", True),
        ("*", "hub.example", False),
        ("hub.example", "hub.example", False),
        (".example, x", "hub.example", False),
        ("*.example", "hub.example", False),
        ("ub.example", "hub.example", True),
        ("hub.example:4601", "hub.example", False),
        ("hub.example:80", "hub.example", True),
        ("10.0.0.0/8", "10.1.2.3", False),
        ("10.1.2.3", "10.1.2.4", True),
        ("fd00::/8", "fd00::1", False),
        ("[fd00::1]:4601", "fd00::1", False),
        ("fd00::2", "fd00::1", True),
        (",,", "hub.example", True),
    ],
)
def test_no_proxy_is_kept_to(exempt: str, host: str, proxied: bool) -> None:
    found = tunnel.proxy_for(host, 4601, {"HTTP_PROXY": "http://p:1", "NO_PROXY": exempt})
    assert (found is not None) == proxied


@pytest.mark.parametrize("said", ["socks5://p:1", "https://p:1", "http://p:x", "http://"])
def test_a_proxy_of_another_kind_is_named_as_the_reason(said: str) -> None:
    with pytest.raises(tunnel.TunnelError, match=r"^HTTPS_PROXY: the relay goes through http://HOST:PORT"):
        tunnel.proxy_for("hub", 1, {"HTTPS_PROXY": said})


# Trying the direct way meanwhile


async def test_a_probe_that_is_answered_loses_nothing_and_doubles_nothing() -> None:
    async with hub() as there, worker(there.url + PATH) as (made, own, _), asyncio.TaskGroup() as group:
        own.send(data(b"before"), made.address)
        assert await own.next() == data(b"before")
        _, relayed = await there.guard.got.get()
        probe = group.create_task(made.probe(there.guard.address))
        await asyncio.sleep(0)
        own.send(initiation(), made.address)
        assert await own.next() == response()
        assert await probe == there.guard.address
        _, direct = await there.guard.got.get()
        assert direct != relayed
        there.guard.send(data(b"the hub has roamed"), direct)
        assert await own.next() == data(b"the hub has roamed")
        own.send(data(b"after"), made.address)
        assert await there.guard.got.get() == (data(b"after"), relayed)
        assert there.guard.got.empty()


async def test_a_probe_in_vain_only_delays_the_initiation() -> None:
    async with hub() as there, worker(there.url + PATH) as (made, own, _), asyncio.TaskGroup() as group:
        with guard(silent=True) as void:
            probe = group.create_task(made.probe(void.address))
            await asyncio.sleep(0)
            own.send(initiation(), made.address)
            own.send(data(b"meanwhile"), made.address)
            assert await own.next() == data(b"meanwhile")
            assert await void.next() == initiation()
            assert await probe is None
            assert await own.next() == response()


async def test_an_answer_to_another_initiation_is_no_answer() -> None:
    async with hub() as there, worker(there.url + PATH) as (made, own, _), asyncio.TaskGroup() as group:
        with guard(silent=True) as liar:
            probe = group.create_task(made.probe(liar.address))
            await asyncio.sleep(0)
            own.send(initiation(b"mine"), made.address)
            _, source = await liar.got.get()
            liar.send(response(b"else"), source)
            assert await own.next() == response(b"else")
            assert await probe is None
            assert await own.next() == response(b"mine")


async def test_a_probe_that_is_given_up_lets_its_initiation_go_on() -> None:
    async with (
        hub() as there,
        worker(there.url + PATH, Timing(hold=60)) as (made, own, _),
        asyncio.TaskGroup() as group,
    ):
        with guard(silent=True) as void:
            probe = group.create_task(made.probe(void.address))
            await asyncio.sleep(0)
            own.send(initiation(), made.address)
            await void.next()
            probe.cancel()
            assert await own.next() == response()


async def test_a_probe_to_where_no_way_leads_is_in_vain_at_once() -> None:
    async with hub() as there, worker(there.url + PATH) as (made, _, _):
        assert await made.probe(("255.255.255.255", 9)) is None


async def test_of_several_endpoints_the_one_that_answers_is_found() -> None:
    async with hub() as there, worker(there.url + PATH) as (made, own, _), asyncio.TaskGroup() as group:
        with guard(silent=True) as void:
            probe = group.create_task(made.probe(void.address, ("255.255.255.255", 9), there.guard.address))
            await asyncio.sleep(0)
            own.send(initiation(), made.address)
            assert await own.next() == response()
            assert await probe == there.guard.address
