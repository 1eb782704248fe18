"""A worker that finds its way to the hub, in network namespaces."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv6Address
from pathlib import Path

import msgspec
import pytest

from mesh.address import Place
from mesh.node import Node
from mesh.path import State
from mesh.plan import Endpoint
from mesh.spoke import Spoke
from mesh.wayfinder import Wayfinder, finding
from tests.mesh.lab import Lab
from tests.mesh.star import PORT, Machine, Star, calling, echoing, mesh, programs


@pytest.fixture
def star(tmp_path: Path) -> Iterator[Star]:
    programs()
    with Lab() as lab:
        yield Star(lab, tmp_path)


@contextlib.asynccontextmanager
async def finding_out(star: Star, far: Node, *places: str) -> AsyncIterator[tuple[Spoke, Wayfinder]]:
    spoke = Spoke(far, star.hub.public, mesh(1))
    async with finding(spoke, [Place(place, PORT) for place in places], None, every=0.05) as finder:
        yield spoke, finder


def unpointed(star: Star, worker: Machine) -> Node:
    """A worker's node that was told no endpoint."""
    wanted = star.worker_wanted(worker)
    peers = {key: msgspec.structs.replace(peer, endpoint=None) for key, peer in wanted.peers.items()}
    return star.worker_node(worker, msgspec.structs.replace(wanted, peers=peers))


async def until(finder: Wayfinder, state: State) -> None:
    while finder.state is not state:  # noqa: ASYNC110 - it looks by itself
        await asyncio.sleep(0.02)


async def test_a_worker_comes_to_the_hub_by_the_second_endpoint(star: Star) -> None:
    worker = star.worker("w")
    async with (
        star.hub_node() as hub,
        unpointed(star, worker) as far,
        echoing(hub) as echo,
        finding_out(star, far, "fd00:aa::ffff", star.hub.under) as (spoke, finder),
    ):
        await until(finder, State.DIRECT)
        assert (await spoke.look()).endpoint == Endpoint(star.hub.under, PORT)
        async with calling(far, echo.port) as line:
            await line.say()


async def test_a_network_that_takes_no_full_packets_gets_smaller_ones(star: Star) -> None:
    worker = star.worker("w")
    star.lab.rules("hub", "small", "type filter hook input priority 0; meta length > 1400 drop")
    async with (
        star.hub_node() as hub,
        unpointed(star, worker) as far,
        echoing(hub) as echo,
        finding_out(star, far, star.hub.under) as (spoke, finder),
    ):
        while far.mtu != 1280:  # noqa: ASYNC110 - it measures by itself
            await asyncio.sleep(0.02)
        assert finder.state is State.DIRECT
        assert await spoke.measure()
        async with calling(far, echo.port) as line:
            await line.say(bytes(1 << 16))


async def test_the_first_handshake_goes_to_the_first_endpoint_that_is_set(star: Star) -> None:
    worker = star.worker("w")
    async with star.hub_node() as hub, unpointed(star, worker) as far:
        assert (await far.state()).peers[star.hub.public].keepalive == 0
        assert (await far.state()).peers[star.hub.public].tx == 0
        await far.keep(far._settling.wanted)
        await far.point(star.hub.public, Endpoint(star.hub.under, PORT))
        while not (await hub.state()).peers[worker.public].handshake:  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.01)
        await far.keep(far._settling.wanted)
        state = (await far.state()).peers[star.hub.public]
        assert (state.keepalive, state.tx) == (25, 148 + 32)  # one initiation, one keepalive


async def test_what_is_measured_where_nothing_answers_is_an_error(
    star: Star, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh.spoke.PATIENCE", 0.05)
    worker = star.worker("w")
    async with unpointed(star, worker) as far:
        spoke = Spoke(far, star.hub.public, mesh(1))
        with pytest.raises(OSError, match="the harness sends no echo"):
            await spoke.measure()
        await spoke.point(Endpoint(star.hub.under, PORT))
        assert (await spoke.look()).endpoint == Endpoint(star.hub.under, PORT)
        assert (await spoke.look()).keepalive == 25
        with pytest.raises(OSError, match="does not know the harness"):
            await Spoke(far, worker.public, IPv6Address("::1")).look()
