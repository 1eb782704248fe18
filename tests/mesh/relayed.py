"""One end of a tunnel between two real WireGuards, run inside of a network namespace; see test_relay_wireguard.py.

    python -m tests.mesh.relayed hub|worker INTERFACE OWN-KEY PEER-KEY     (keys in hex, private and public)

It prints a JSON line when something changes, and ends with its standard input.
"""

import asyncio
import json
import subprocess
import sys
from ipaddress import IPv6Network
from typing import cast

from mesh.address import Place
from mesh.detour import detour
from mesh.listener import Offered, listening
from mesh.path import State
from mesh.plan import Change, Endpoint, PeerState, SetEndpoint, SetKeepalive
from mesh.relay import PATH, relaying
from mesh.wayfinder import finding
from mesh.wireguard import uapi
from tests.mesh.guards import FakeJoins

HUB, WORKER = "fd00:6::1", "fd00:6::2"  # inside
OUTSIDE = "10.66.0.1"  # the hub's
PORT, JOIN, ECHO = 51820, 4601, 7
EVERY = 0.05  # seconds between two packets


async def ask(interface: str, request: bytes) -> bytes:
    """What wireguard-go answers."""
    reader, writer = await asyncio.open_unix_connection(f"/var/run/wireguard/{interface}.sock")
    writer.write(request)
    answer = await reader.readuntil(uapi.END)
    writer.close()
    return answer


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Go:
    """A worker's tunnel of wireguard-go."""

    def __init__(self, interface: str, hub: bytes) -> None:
        self.interface = interface
        self.hub = hub

    async def look(self) -> PeerState:
        return uapi.parse(await ask(self.interface, uapi.GET)).peers[self.hub]

    async def point(self, endpoint: Endpoint) -> None:
        off: list[Change] = [SetEndpoint(self.hub, endpoint), SetKeepalive(self.hub, 0)]
        await ask(self.interface, uapi.changing(off))
        await ask(self.interface, uapi.changing([SetKeepalive(self.hub, 25)]))

    async def set_mtu(self, bytes: int) -> None:
        subprocess.run(["ip", "link", "set", self.interface, "mtu", str(bytes)], check=True)

    async def measure(self) -> bool:
        return True


class Echo(asyncio.DatagramProtocol):
    """Answers each datagram with itself."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.transport.sendto(data, addr)


class Count(asyncio.DatagramProtocol):
    """Numbers of datagrams that came back."""

    def __init__(self) -> None:
        self.back: set[int] = set()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.back.add(int(data))


async def hub(until: asyncio.Future[None]) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Echo, local_addr=(HUB, ECHO))
    async with (
        relaying(("127.0.0.1", PORT)) as relay,
        listening([f"[::]:{JOIN}"], FakeJoins(), lambda: Offered(script=b""), relay=relay),
    ):
        say(up=True)
        await until
        counts = relay.counts()
        say(opened=counts.opened, dropped=counts.dropped, hostile=counts.hostile)


async def worker(interface: str, peer: bytes, until: asyncio.Future[None]) -> None:
    loop = asyncio.get_running_loop()
    go = Go(interface, peer)
    port = uapi.parse(await ask(interface, uapi.GET)).port
    count = Count()
    transport, _ = await loop.create_datagram_endpoint(lambda: count, remote_addr=(HUB, ECHO))
    url = f"ws://{OUTSIDE}:{JOIN}{PATH}"
    sent, state, lost_at_change = 0, "", 0
    async with finding(
        go, [Place(OUTSIDE, PORT)], lambda: detour(url, wireguard=port, environ={}), every=0.5
    ) as found:
        while not until.done():
            transport.sendto(b"%d" % sent)
            sent += 1
            await asyncio.wait([until], timeout=EVERY)
            now = found.state.name if found.state is not State.RELAYED or proven(found.relay()) else "DIALING"
            if now != state:
                state = now
                await asyncio.wait([until], timeout=0.5)
                lost = sent - len(count.back)
                say(state=state, sent=sent, lost=lost - lost_at_change, path=found.path)
                lost_at_change = lost
        say(sent=sent, lost=sent - len(count.back) - lost_at_change)
    transport.close()


def proven(standing: object) -> bool:
    return getattr(standing, "down_packets", 0) > 0


async def main(role: str, interface: str, own: str, peer: str) -> None:
    loop = asyncio.get_running_loop()
    address, other = (HUB, WORKER) if role == "hub" else (WORKER, HUB)
    await ask(interface, uapi.own(bytes.fromhex(own), PORT if role == "hub" else 0))
    more = "" if role == "hub" else "persistent_keepalive_interval=25\n"
    allowed = IPv6Network(f"{other}/128")
    await ask(interface, f"set=1\npublic_key={peer}\n{more}allowed_ip={allowed}\n\n".encode())
    for line in (
        f"addr add {address}/64 dev {interface} nodad",
        f"link set {interface} up",
    ):
        subprocess.run(["ip", *line.split()], check=True)
    until: asyncio.Future[None] = loop.create_future()

    def ended() -> None:
        loop.remove_reader(0)
        until.set_result(None)

    loop.add_reader(0, ended)
    await (hub(until) if role == "hub" else worker(interface, bytes.fromhex(peer), until))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
