"""The kernel's WireGuard, inside of User-Mode Linux where this machine's own kernel has none."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from ipaddress import IPv6Network
from pathlib import Path

import pytest

from mesh.plan import AddPeer, Peer, RemovePeer, SetAllowed, SetKeepalive
from mesh.wireguard.base import WireGuardError
from mesh.wireguard.kernel import Kernel
from mesh.wireguard.links import Links
from tests.mesh.lab import kernel_machine
from tests.mesh.star import pair

HERE = Path(__file__).parent
FILES = ("test_kernel.py", "test_wireguard.py", "test_spoke.py", "test_node.py", "test_security.py")
NAME = "ortest0"
inside = pytest.mark.skipif("KERNEL_VM" not in os.environ, reason="runs inside of tests/mesh/kernel-vm.sh")


@pytest.mark.campaign
@pytest.mark.timeout(3000)
def test_all_of_it_holds_for_the_kernels_wireguard() -> None:
    machine = kernel_machine()
    files = [HERE / name for name in FILES]
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", "--timeout=300"]
    done = subprocess.run(
        [machine, "-t", "2700", "-e", "MESH_TEST_BACKEND", "--", *command, *map(str, files)],
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
        env={**os.environ, "MESH_TEST_BACKEND": "kernel"},
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    """A WireGuard interface that is up, with a key."""
    async with Links() as links:
        await links.add_wireguard(NAME, 1420, None)
        try:
            await links.up(NAME)
            async with Kernel(NAME) as kernel:
                await kernel.listen(pair()[0], 0)
                yield kernel
        finally:
            await links.remove(NAME)


@inside
async def test_an_answer_is_its_own_requests_after_a_cancelled_one(kernel: Kernel) -> None:
    for port in range(50000, 50100):
        task = asyncio.ensure_future(kernel.listen(pair()[0], port))  # noqa: TID251 - cancelled below
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await kernel.read()).port == port
    async with Kernel("nothere0") as absent:
        with pytest.raises(WireGuardError, match="nothere0 cannot be changed"):
            await absent.apply([AddPeer(Peer(key=pair()[1], allowed=()))])


@inside
async def test_many_readers_at_once_are_no_error(kernel: Kernel) -> None:
    await kernel.apply([AddPeer(Peer(key=pair()[1], allowed=())) for _ in range(300)])
    async with asyncio.TaskGroup() as group:
        reads = [group.create_task(kernel.read()) for _ in range(10)]
    assert {len(read.result().peers) for read in reads} == {300}


@inside
async def test_many_peers_and_many_allowed_ips_are_read_whole(kernel: Kernel) -> None:
    keys = [pair()[1] for _ in range(700)]
    await kernel.apply([AddPeer(Peer(key=key, allowed=())) for key in keys])
    block = IPv6Network("fd00:1::/112")
    many = tuple(IPv6Network(block[number]) for number in range(3000))
    await kernel.apply([SetAllowed(keys[0], many, True), SetKeepalive(keys[1], 25)])
    peers = (await kernel.read()).peers
    assert set(peers) == set(keys)
    assert peers[keys[0]].allowed == set(many)
    assert peers[keys[1]].keepalive == 25
    await kernel.apply([SetAllowed(keys[0], many[:1], True), *map(RemovePeer, keys[1:])])
    peers = (await kernel.read()).peers
    assert {key: peer.allowed for key, peer in peers.items()} == {keys[0]: {many[0]}}


@inside
async def test_a_change_of_a_peer_that_is_gone_makes_none(kernel: Kernel) -> None:
    key = pair()[1]
    await kernel.apply([RemovePeer(key)])
    for change in (SetKeepalive(key, 25), SetAllowed(key, (IPv6Network("fd00::1/128"),), True)):
        await kernel.apply([change])
    assert (await kernel.read()).peers == {}


@inside
async def test_the_private_key_is_not_in_what_is_read(kernel: Kernel) -> None:
    private, public = pair()
    await kernel.listen(private, 0)
    read = await kernel.read()
    assert read.public == public
    assert repr(private) not in repr(read)
