import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from mesh import wayfinder
from mesh.address import Place
from mesh.detour import Detour, Timing, detour
from mesh.path import State
from mesh.plan import Endpoint, PeerState
from mesh.relay import PATH
from mesh.wayfinder import finding
from tests.mesh.guards import guard, hub

HUB = Endpoint("127.0.0.1", 51820)


class FakeTunnel:
    """An interface whose hub answers at `alive`, at once; a test waits for what is done to it with `until`."""

    def __init__(self, *alive: Endpoint) -> None:
        self.alive = set(alive)
        self.relay = False  # the hub answers by whatever is no endpoint
        self.endpoint: Endpoint | None = None
        self.mtu = 0
        self.fits: bool | OSError = True
        self.broken = False
        self.handshake = 0.0
        self.looks = 0
        self.pointed: list[Endpoint] = []
        self._looked = asyncio.Event()

    async def until(self, so: Callable[[], bool]) -> None:
        """Wait until it is so, asked at each look."""
        while not so():
            self._looked.clear()
            await self._looked.wait()

    async def look(self) -> PeerState:
        self.looks += 1
        self._looked.set()
        if self.broken:
            raise OSError("the interface is gone")
        if self.endpoint in self.alive or (self.relay and self.endpoint != HUB):
            self.handshake = time.time()
        return PeerState(
            key=b"",
            allowed=frozenset(),
            endpoint=self.endpoint,
            handshake=self.handshake,
            tx=148 * self.looks,
        )

    async def point(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.pointed.append(endpoint)

    async def set_mtu(self, bytes: int) -> None:
        self.mtu = bytes

    async def measure(self) -> bool:
        if isinstance(self.fits, OSError):
            raise self.fits
        return self.fits


@pytest.mark.parametrize(("fits", "mtu"), [(True, 1420), (False, 1280), (OSError("no way"), 1420)])
async def test_a_direct_way_is_taken_and_measured(fits: bool | OSError, mtu: int) -> None:
    tunnel = FakeTunnel(HUB)
    tunnel.fits = fits
    async with finding(tunnel, [Place(HUB.host, HUB.port)], None, every=0.01) as found:
        await tunnel.until(lambda: found.state is State.DIRECT)
        looks = tunnel.looks
        await tunnel.until(lambda: tunnel.looks >= looks + 3)
        assert found.path == "direct 127.0.0.1:51820"
        assert found.relay() is None
    assert (tunnel.pointed, tunnel.mtu) == ([HUB], mtu)


async def test_a_direct_way_is_measured_again_on_a_doubt() -> None:
    tunnel = FakeTunnel(HUB)
    async with finding(tunnel, [Place(HUB.host, HUB.port)], None, every=0.01) as found:
        await tunnel.until(lambda: found.state is State.DIRECT and tunnel.mtu == 1420)
        tunnel.fits = False
        while tunnel.mtu == 1420:
            found.doubt()
            await tunnel.until(lambda looks=tunnel.looks: tunnel.looks > looks)  # type: ignore[misc]
        assert tunnel.mtu == 1280
        assert found.state is State.DIRECT


async def test_a_hub_without_a_relay_that_answers_after_every_endpoint_was_tried_is_taken() -> None:
    tunnel = FakeTunnel()
    wait = iter(range(0, 10**6, 4))  # seconds that go by between two looks
    other = Endpoint("127.0.0.2", 51820)
    places = [Place(HUB.host, HUB.port), Place(other.host, other.port)]
    async with finding(tunnel, places, None, every=0.001, clock=lambda: float(next(wait))) as found:
        await tunnel.until(lambda: len(tunnel.pointed) >= 5)
        tunnel.alive = {other}
        await tunnel.until(lambda: found.state is State.DIRECT)
        assert found.path == "direct 127.0.0.2:51820"
    assert tunnel.pointed[:5] == [HUB, other, HUB, other, HUB]


async def test_without_an_endpoint_the_relay_is_opened_and_ended_with_the_context() -> None:
    tunnel = FakeTunnel()
    tunnel.relay = True
    opened: list[Detour] = []
    async with hub() as there:

        @asynccontextmanager
        async def relays() -> AsyncIterator[Detour]:
            with guard() as own:
                async with detour(there.url + PATH, wireguard=own.address[1], environ={}) as made:
                    opened.append(made)
                    yield made

        async with finding(tunnel, [], relays, every=0.01) as found:
            await tunnel.until(lambda: found.state is State.RELAYED)
            await tunnel.until(lambda: bool(tunnel.pointed) and tunnel.mtu == 1280)
            assert tunnel.pointed == [Endpoint(*opened[0].address)]
            assert found.path == "relay"
            await there.connections(1)
            standing = found.relay()
            assert standing is not None
        await there.connections(0)
    assert len(opened) == 1


async def test_a_relay_that_is_away_says_for_how_long() -> None:
    timing = Timing(first=0.01, most=0.01)
    changed = asyncio.Event()
    async with detour("ws://127.0.0.1:1/", environ={}, timing=timing, changed=changed.set) as made:
        assert made.standing().away == 0
        while made.standing().dialed < 3:
            changed.clear()
            await changed.wait()
        assert made.standing().away > 0
        assert made.standing().state in ("dialing", "down")


async def test_an_interface_that_is_gone_for_a_while_is_looked_at_again() -> None:
    tunnel = FakeTunnel(HUB)
    tunnel.broken = True
    async with finding(tunnel, [Place(HUB.host, HUB.port)], None, every=0.01) as found:
        await tunnel.until(lambda: tunnel.looks >= 3)
        tunnel.broken = False
        await tunnel.until(lambda: found.state is State.DIRECT)


async def test_an_error_of_our_own_is_not_swallowed() -> None:
    class Wrong(FakeTunnel):
        async def look(self) -> PeerState:
            looked.set()
            raise RuntimeError("wrong")

    looked = asyncio.Event()

    async def use() -> None:
        async with finding(Wrong(), [], None, every=0.01):
            await looked.wait()

    with pytest.raises(RuntimeError, match="wrong"):
        await use()


async def test_names_are_resolved_in_their_order_and_each_address_comes_once() -> None:
    places = [
        Place("127.0.0.2", 1),
        Place("no.such.name.invalid", 2),
        Place("127.0.0.1", 3),
        Place("127.0.0.2", 1),
    ]
    assert await wayfinder.resolve(places) == (Endpoint("127.0.0.2", 1), Endpoint("127.0.0.1", 3))
