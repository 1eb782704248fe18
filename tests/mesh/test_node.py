"""Nodes in network namespaces, with the WireGuard that MESH_TEST_BACKEND names."""

import asyncio
import base64
import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv6Interface, IPv6Network
from pathlib import Path

import msgspec
import pytest
import structlog

from mesh import claim
from mesh.claim import interface_name
from mesh.node import MeshError, MeshOff, Node
from mesh.plan import Clash, Peer, Wanted
from tests.mesh.lab import Lab, gone, run
from tests.mesh.star import BACKEND, PORT, Star, calling, echoing, mesh, pair, programs, talking

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")


@pytest.fixture
def star(tmp_path: Path) -> Iterator[Star]:
    programs()
    with Lab() as lab:
        yield Star(lab, tmp_path)


def engines(name: str) -> list[int]:
    """The wireguard-go processes of an interface."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes().split(b"\0")
            if line[0].endswith(b"wireguard-go") and name.encode() in line:
                found.append(int(folder.name))
    return found


async def test_a_worker_reaches_the_hub_and_is_known_by_its_address(star: Star) -> None:
    worker = star.worker("w")
    async with star.hub_node() as hub, star.worker_node(worker) as far, echoing(hub) as echo:
        async with calling(far, echo.port) as line:
            await line.say(os.urandom(1 << 20))
            state = (await hub.state()).peers[worker.public]
        assert echo.came == [str(mesh(2))]
        assert state.handshake > 0
        assert state.rx > 1 << 20
        assert state.tx > 1 << 20
        assert state.endpoint is not None
        assert state.endpoint.host == worker.under
        assert state.keepalive == 0
        assert (await far.state()).peers[star.hub.public].keepalive == 25
        assert BACKEND.removesuffix("-go") in hub.said.lower()


async def test_neither_end_of_a_connection_waits_for_more_to_send(star: Star) -> None:
    worker = star.worker("w")
    async with (
        star.hub_node() as hub,
        star.worker_node(worker) as far,
        echoing(hub) as echo,
        calling(far, echo.port) as line,
    ):
        await line.say()
        for end in (line.writer, *echo.writers):
            assert end.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_the_udp_socket_stays_in_the_namespace_of_the_host(star: Star) -> None:
    async with star.hub_node() as hub:
        assert f":{PORT}" in star.lab.sh("hub", "ss -Hlun")
        assert hub.name not in star.lab.sh("hub", "ip -o link")


async def test_a_helper_is_of_our_session_and_of_no_group_of_ours(star: Star) -> None:
    """A Ctrl-C is for our group alone; what a session of its own costs is said in mesh.handle."""
    async with star.hub_node() as hub:
        parts = [hub.pid, *(engines(hub.name) if BACKEND == "wireguard-go" else [])]
        assert {os.getsid(pid) for pid in parts} == {os.getsid(0)}
        assert {os.getpgid(pid) for pid in parts} == {hub.pid}
        assert hub.pid != os.getpgrp()


async def test_a_peer_is_added_while_the_connection_of_another_goes_on(star: Star) -> None:
    first = star.worker("w1")
    async with star.hub_node() as hub, star.worker_node(first) as one, echoing(hub) as echo:
        async with calling(one, echo.port) as line:
            await line.say()
            before = (await hub.state()).peers[first.public].handshake
            second = star.worker("w2")
            await hub.keep(star.hub_wanted())
            async with star.worker_node(second) as two, calling(two, echo.port) as other:
                await other.say()
                await line.say()
            assert (await hub.state()).peers[first.public].handshake == before
        assert echo.came == [str(mesh(2)), str(mesh(3))]


async def test_a_removed_worker_is_cut_off_though_it_keeps_its_keys(star: Star) -> None:
    worker = star.worker("w")
    async with star.hub_node() as hub, star.worker_node(worker) as far, echoing(hub) as echo:
        async with calling(far, echo.port) as line:
            await line.say()
            await hub.keep(star.hub_wanted(worker))
            assert (await hub.state()).peers == {}
            line.writer.write(b"am I in?")
            with pytest.raises(TimeoutError):
                await far.dial(mesh(1), echo.port, 1.5)
        assert echo.came == [str(mesh(2))]


async def test_a_helper_that_is_killed_is_replaced_and_connections_go_on(star: Star) -> None:
    worker = star.worker("w")
    async with star.hub_node() as hub, star.worker_node(worker) as far, echoing(hub) as echo:
        async with calling(far, echo.port) as line:
            for killed in (hub, far):
                await line.say()
                await hub.state()
                await far.state()
                old, starts = killed.pid, killed.starts
                os.kill(old, signal.SIGKILL)
                await line.say()
                await killed.state()
                assert (killed.pid != old, killed.starts) == (True, starts + 1)
                assert len(engines(killed.name)) == (BACKEND == "wireguard-go")
        async with calling(far, echo.port) as line:
            await line.say()
        assert len(echo.came) == 2


async def test_a_helper_is_replaced_though_its_folder_is_gone_or_in_the_way_for_a_while(star: Star) -> None:
    worker = star.worker("w")
    async with star.hub_node() as hub, star.worker_node(worker) as far, echoing(hub) as echo:
        folder = star.folder / "w"
        shutil.rmtree(folder)
        old = far.pid
        os.kill(old, signal.SIGKILL)
        await far.state()
        assert far.pid != old
        assert (folder / "helper.log").exists()

        shutil.rmtree(folder)
        folder.write_text("in the way")
        os.kill(far.pid, signal.SIGKILL)
        with structlog.testing.capture_logs() as logs:
            while not any("cannot be written" in log.get("why", "") for log in logs):  # noqa: ASYNC110 - tells nobody
                await asyncio.sleep(0.01)
        folder.unlink()
        async with calling(far, echo.port) as line:
            await line.say()


async def test_where_there_are_no_descriptors_for_a_helper_it_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("os.pidfd_open", none)
    wanted = Wanted(private=pair()[0], address=IPv6Interface("fd5e::1/48"), peers={})
    before = os.listdir("/proc/self/fd")
    with pytest.raises(MeshError, match="cannot be watched: Too many open files"):
        async with Node(wanted, folder=tmp_path, launcher=["sleep", "60", ";"]):
            pass
    assert os.listdir("/proc/self/fd") == before


async def test_where_the_namespace_is_lost_listeners_are_handed_over_again(star: Star) -> None:
    if BACKEND == "kernel":
        pytest.skip("the old namespace, which the old socket keeps, would keep the interface and its port")
    worker = star.worker("w")
    moved: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
    async with star.hub_node() as hub, star.worker_node(worker) as far:
        old = await hub.listen(0, moved.set_result)
        port = old.getsockname()[1]
        (await far.dial(mesh(1), port)).close()
        await hub.state()
        assert hub._namespace is not None
        os.close(hub._namespace)  # as in a user namespace, which no other helper could enter
        hub._namespace = None
        os.kill(hub.pid, signal.SIGKILL)
        new = await moved
        old.close()
        assert new.getsockname()[1] == port
        (await far.dial(mesh(1), port)).close()
        new.close()


async def test_a_caller_that_is_cancelled_leaves_no_socket_behind(star: Star) -> None:
    worker = star.worker("w")
    async with star.hub_node() as hub, star.worker_node(worker) as far, echoing(hub) as echo:
        (await far.dial(mesh(1), echo.port)).close()
        before = len(os.listdir("/proc/self/fd"))
        for steps in range(30):
            task = asyncio.ensure_future(far.dial(mesh(1), echo.port))  # noqa: TID251 - cancelled below
            for _ in range(steps):
                await asyncio.sleep(0.0002)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await task).close()
        async with asyncio.timeout(10):
            while len(os.listdir("/proc/self/fd")) > before:  # noqa: ASYNC110 - the Echo's ends close a little later
                await asyncio.sleep(0.01)


async def test_a_wireguard_process_that_is_killed_is_replaced_and_said(star: Star) -> None:
    if BACKEND == "kernel":
        pytest.skip("the kernel's WireGuard is no process")
    worker = star.worker("w")
    with structlog.testing.capture_logs() as logs:
        async with talking(star, worker) as (hub, _, line):
            await hub.state()
            (pid,) = engines(hub.name)
            os.kill(pid, signal.SIGKILL)
            await line.say()
    (said,) = [entry["why"] for entry in logs if entry["log_level"] == "warning"]
    assert "wireguard-go ended by signal SIGKILL" in said


PARENT = """
import asyncio, os, sys
from pathlib import Path
from ipaddress import IPv6Interface
from mesh.node import Node
from mesh.plan import Wanted

async def main():
    wanted = Wanted(private=bytes(range(32)), address=IPv6Interface("fd5e:1:2::1/48"), port=51820, peers={})
    async with Node(wanted, folder=Path(sys.argv[1]), backend=sys.argv[2], listens=True) as node:
        sock = await node.listen(0)
        print(node.pid, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@contextlib.contextmanager
def parent(star: Star) -> Iterator["tuple[subprocess.Popen[str], int]"]:
    """A process with a hub, and its helper's process."""
    command = [sys.executable, "-c", PARENT, str(star.folder / "hub"), BACKEND]
    process = subprocess.Popen(
        [*star.lab.launcher("hub"), *command],
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
    )
    with process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.parametrize("also_helper", [False, True])
def test_a_parent_that_is_killed_leaves_nothing_behind_and_can_start_again(
    star: Star, also_helper: bool
) -> None:
    name = interface_name(star.folder / "hub")
    with parent(star) as (process, helper):
        running = [helper, *engines(name)]
        process.kill()
        if also_helper:
            with contextlib.suppress(ProcessLookupError):
                os.kill(helper, signal.SIGKILL)
        assert all(map(gone, running))
    with parent(star):  # also at once: it waits for what is still ending
        assert f":{PORT}" in star.lab.sh("hub", "ss -Hlun")
    assert name not in star.lab.sh("hub", "ip -o link")


async def test_a_request_that_no_helper_takes_is_an_error_and_ends_none(star: Star) -> None:
    async with star.hub_node() as hub:
        with pytest.raises(MeshError, match="Expected `int` >= 1280"):
            await hub.resize(1)
        with pytest.raises(MeshError, match="timeout"):
            await hub.dial(mesh(2), 1, -1.0)
        assert hub.starts == 1


async def test_an_ordinary_process_cannot_get_at_wireguard_through_the_helper(star: Star) -> None:
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]  # as the helper is
    async with star.hub_node() as hub:
        status = Path(f"/proc/{hub.pid}/status").read_text()
        assert "Uid:\t65534\t65534\t65534\t65534" in status
        assert "CapPrm:\t0000000000001000" in status  # CAP_NET_ADMIN
        assert "CapBnd:\t0000000000001000" in status
        assert "NoNewPrivs:\t1" in status
        for pid in (hub.pid, *engines(hub.name)):
            for script in (
                "ls root/var/run",
                "readlink ns/net",
                "readlink fd/*",
                "cat environ",
                "head -c1 mem",
            ):
                command = [*user, "sh", "-c", f"cd /proc/{pid}; {script}"]
                assert await asyncio.to_thread(run, *command, check=False) == ""
        assert await asyncio.to_thread(run, *user, "sh", "-c", "readlink /proc/self/ns/net") != ""


async def test_two_nodes_on_one_host_do_not_collide(star: Star) -> None:
    other = star.folder / "other"
    async with star.hub_node() as hub:
        wanted = msgspec.structs.replace(star.hub_wanted(), port=0)
        second = Node(wanted, folder=other, backend=hub._backend, launcher=star.lab.launcher("hub"))
        async with second:
            assert second.name != hub.name
            assert (await second.state()).port not in (0, PORT)


async def test_a_folder_has_one_node(star: Star, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "LOCK_WAIT", 0.2)
    async with star.hub_node():
        with pytest.raises(MeshError, match=r"another process keeps the mesh of .*end that one"):
            async with star.hub_node():
                pass


async def test_a_port_of_another_program_is_named(star: Star) -> None:
    def other() -> Node:
        folder = star.folder / "other"
        return Node(star.hub_wanted(), folder=folder, launcher=star.lab.launcher("hub"))

    async with star.hub_node():
        with pytest.raises(MeshError, match=f"UDP port {PORT} is another program's"):
            async with other():
                pass
    async with other() as node:
        assert (await node.state()).port == PORT


async def test_a_change_whose_caller_is_cancelled_is_made_all_the_same(star: Star) -> None:
    async with star.hub_node() as hub:
        for number in range(5):
            star.workers[f"x{number}"] = type(star.hub)(f"x{number}", number + 2)
            task = asyncio.ensure_future(hub.keep(star.hub_wanted()))  # noqa: TID251 - cancelled below
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await hub.keep(star.hub_wanted())
        state = await hub.state()
        assert set(state.peers) == set(star.hub_wanted().peers)


async def test_many_peers_come_and_go_in_one_change(star: Star) -> None:
    for number in range(2, 702):
        star.workers[str(number)] = type(star.hub)(str(number), number)
    async with star.hub_node() as hub:
        peers = (await hub.state()).peers
        wanted = star.hub_wanted().peers
        assert {key: (peer.allowed, peer.preshared) for key, peer in peers.items()} == {
            key: (frozenset(peer.allowed), peer.preshared) for key, peer in wanted.items()
        }
        await hub.keep(star.hub_wanted(*list(star.workers.values())[1:]))
        assert list((await hub.state()).peers) == [star.workers["2"].public]


async def test_two_peers_with_one_address_are_refused_before_anything_is_done(star: Star) -> None:
    one, two = star.worker("w1"), star.worker("w2")
    async with star.hub_node() as hub:
        wanted = star.hub_wanted()
        twice = Peer(key=two.public, allowed=wanted.peers[one.public].allowed)
        with pytest.raises(Clash, match=rf"{one.public.hex()[:16]}.*{two.public.hex()[:16]}"):
            await hub.keep(msgspec.structs.replace(wanted, peers={**wanted.peers, two.public: twice}))
        assert (await hub.state()).peers[two.public].allowed == {IPv6Network(mesh(two.number))}


async def test_no_log_has_a_private_or_preshared_key(star: Star) -> None:
    worker = star.worker("w")
    with structlog.testing.capture_logs() as logs:
        async with talking(star, worker) as (hub, _, _):
            os.kill(hub.pid, signal.SIGKILL)
            await hub.state()
    text = repr(logs) + "".join(
        path.read_text(errors="replace") for path in star.folder.rglob("*.log*") if path.is_file()
    )
    for secret in (star.hub.private, worker.private, worker.preshared):
        for shown in (secret.hex(), base64.b64encode(secret).decode(), repr(secret)):
            assert shown not in text


async def test_an_echo_shows_whether_a_full_packet_passes(star: Star) -> None:
    worker = star.worker("w")
    async with star.hub_node() as hub, star.worker_node(worker) as far:
        assert await far.echo(mesh(1), 1420)
        star.lab.rules("hub", "small", "type filter hook input priority 0; meta length > 1400 drop")
        assert not await far.echo(mesh(1), 1420, 0.5)
        await far.resize(1280)
        assert await far.echo(mesh(1), 1280)
        assert not await far.echo(mesh(1), 1281, 0.5)
        assert hub.engine == BACKEND


async def test_a_worker_that_moves_to_another_network_keeps_its_connection(star: Star) -> None:
    worker = star.worker("w")
    async with talking(star, worker) as (hub, _, line):
        star.lab.move("w", "eth0", f"{worker.under}/64", "fd00:aa::99/64")
        await line.say()
        endpoint = (await hub.state()).peers[worker.public].endpoint
        assert endpoint is not None
        assert endpoint.host == "fd00:aa::99"


async def test_a_worker_behind_nat_reaches_the_hub(star: Star) -> None:
    worker = star.worker("w")
    lab = star.lab
    lab.sh("w", "ip link del eth0")
    lab.namespace("router")
    lab.plug("router", "hub", "fd00:aa::77/64")
    lab.veth("router", "w", ("fd00:bb::1/64", "fd00:bb::2/64"))
    lab.route("w", "default", "fd00:bb::1")
    lab.nat("router", "eth0")
    async with talking(star, worker) as (hub, _, _):
        endpoint = (await hub.state()).peers[worker.public].endpoint
        assert endpoint is not None
        assert endpoint.host == "fd00:aa::77"


async def test_where_no_udp_passes_no_connection_comes(star: Star) -> None:
    worker = star.worker("w")
    star.lab.block_udp("w")
    async with star.hub_node() as hub, star.worker_node(worker) as far, echoing(hub) as echo:
        with pytest.raises(TimeoutError, match="no answer from"):
            await far.dial(mesh(1), echo.port, 1.0)
        star.lab.let_udp("w")
        async with calling(far, echo.port) as line:
            await line.say()


async def test_a_mesh_that_is_off_says_so(tmp_path: Path) -> None:
    wanted = Wanted(private=pair()[0], address=IPv6Interface("fd5e::1/48"), peers={})
    with pytest.raises(MeshOff, match=r"mesh\.backend is off"):
        async with Node(wanted, folder=tmp_path, backend="off"):
            pass


async def test_a_helper_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    wanted = Wanted(private=pair()[0], address=IPv6Interface("fd5e::1/48"), peers={})
    with pytest.raises(MeshError, match="no-such-program cannot be started"):
        async with Node(wanted, folder=tmp_path, launcher=["no-such-program"]):
            pass
    with pytest.raises(MeshError, match=r"helper has ended.*helper\.log"):
        async with Node(wanted, folder=tmp_path, launcher=["true"]):
            pass
    says = ["sh", "-c", "echo no way out >&2; echo", "sh"]
    with pytest.raises(MeshError, match=r"helper has ended.*its last word was: no way out \(log: "):
        async with Node(wanted, folder=tmp_path, launcher=says):
            pass
    with pytest.raises(MeshError) as told:
        async with Node(wanted, folder=tmp_path, launcher=["true"]):
            pass
    assert "no way out" not in str(told.value)  # that was another one's


def test_interfaces_of_two_folders_have_different_short_names(tmp_path: Path) -> None:
    names = {interface_name(tmp_path / str(number)) for number in range(100)}
    assert len(names) == 100
    assert all(len(name) <= 15 for name in names)
