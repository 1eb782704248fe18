import asyncio
import hashlib
import socket
from pathlib import Path

import aiohttp
import pytest

from mesh import registry, wheelhouse
from mesh.hub import LINGER
from mesh.join import Failed, Joined, Reply
from mesh.parts import Down, Fault, Goods
from mesh.registry import RegistryError
from tests.mesh.joining import Clock
from tests.mesh.tunnels import Star, places_of, star, state
from tests.mesh.wheels import make_wheel

HANDSHAKE, GONE = 180.0, 180.0


async def test_nothing_is_made_or_opened_before_the_first_token(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        assert await one.mesh.grants() == ()
        assert not await one.mesh.remove("gpu-1")
        assert not await one.mesh.revoke(1)
        one.mesh.wake()
        await asyncio.sleep(0)
        assert (one.status.phase, one.status.why, one.interfaces) == ("idle", "", [])
    assert list(tmp_path.iterdir()) == []


async def test_the_first_token_brings_the_mesh_up_and_names_the_listener(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        issued = await one.mesh.issue(label="rack 7", uses=3, lifetime=60, ephemeral=True)
        assert one.status.phase == "up"
        (at,) = one.status.join
        assert [str(place) for place in places_of(issued.text)] == [at]
        assert issued.text not in repr(issued)
        assert (issued.grant.label, issued.grant.uses, issued.grant.ephemeral) == ("rack 7", 3, True)
        assert issued.grant.expires - issued.grant.created == 60
        assert await one.mesh.grants() == (issued.grant,)
        assert len(one.daemon.doors) == 1
    assert one.up is None
    assert one.daemon.doors == []


async def test_who_joins_is_a_peer_before_its_answer_goes_out(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        issued = await one.mesh.issue()
        done = await one.join(issued.text, 2)
        assert isinstance(done, Joined)
        answer = done.answer
        peer = one.interface.wanted.peers[one.key(2)]
        assert [str(network.network_address) for network in peer.allowed] == [str(answer.address)]
        assert (answer.harness, answer.control, [str(at) for at in answer.endpoints]) == (
            "hub",
            4602,
            ["127.0.0.1:51820"],
        )
        assert one.mesh.name_at(str(answer.address)) == "gpu-2"
        assert one.mesh.name_at(f"{answer.address}%3") == "gpu-2"
        assert one.mesh.named("gpu-2")
        (member,) = one.mesh.members()
        assert (member.address, member.node.name, member.path) == (str(answer.address), "gpu-2", "")


async def test_nobody_has_the_harness_own_address_or_one_that_was_not_given(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        assert one.mesh.name_at("::1") is None
        await one.joined()
        network = one.mesh.status().address.removesuffix("::1")
        assert one.mesh.name_at(f"{network}::2") == "gpu-2"
        for stranger in (f"{network}::1", f"{network}::3", f"{network}::", "fe80::2", "::2", "127.0.0.1", ""):
            assert one.mesh.name_at(stranger) is None


async def test_who_joins_never_gets_the_name_of_a_worker_that_there_is_already(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        one.daemon.others = ["gpu-2", "gpu-2-2"]
        assert await one.joined() == "gpu-2-3"


async def test_where_there_is_no_back_end_the_token_says_why_and_none_is_made(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        one.failing = Fault("wireguard-go is not on the PATH", off=True)
        with pytest.raises(Down, match="wireguard-go is not on the PATH"):
            await one.mesh.issue()
        assert await one.mesh.grants() == ()
        status = await one.phase("idle")  # there is nothing to be up for
        assert (status.port, status.join) == (0, ())
        one.failing = None
        await one.mesh.issue()
        assert one.status.phase == "up"


async def test_a_token_that_failed_for_want_of_the_join_port_leaves_nothing_failing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with star(tmp_path, join_listen=(f"127.0.0.1:{port}",)) as one:
            with pytest.raises(Down, match=r"mesh\.join_listen: cannot listen on"):
                await one.mesh.issue()
            status = await one.phase("idle")
            assert (status.why, one.up) == ("", None)
            other.close()
            await one.mesh.issue()
            assert one.status.phase == "up"


async def test_a_mesh_that_is_off_says_so_and_how_it_is_not(tmp_path: Path) -> None:
    async with star(tmp_path, enabled=False) as one:
        with pytest.raises(Down, match=r'mesh.backend is off in outrider.toml: set it to "auto"'):
            await one.mesh.issue()
        assert one.status.phase == "off"
        assert one.status.why == "mesh.backend is off in outrider.toml"
        assert await one.mesh.grants() == ()


async def test_with_the_mesh_off_those_who_had_joined_are_still_shown_and_can_be_removed(
    tmp_path: Path,
) -> None:
    async with star(tmp_path) as one:
        await one.joined(2)
        await one.joined(3)
    async with star(tmp_path, enabled=False) as one:
        await one.daemon.until(lambda: len(one.mesh.members()) == 2)
        assert await one.mesh.remove("gpu-2")
        assert [member.node.name for member in one.mesh.members()] == ["gpu-3"]
        assert one.status.phase == "off"


async def test_where_the_mesh_cannot_come_up_those_who_had_joined_are_shown(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        await one.joined()
    async with star(tmp_path, failing=Fault("no namespace can be made")) as one:
        assert (await one.phase("failing")).why == "no namespace can be made"
        assert [member.node.name for member in one.mesh.members()] == ["gpu-2"]


async def test_a_fault_of_our_own_is_told_and_ends_nothing_else(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        one.failing = ZeroDivisionError("x")
        with pytest.raises(Down, match="the mesh failed inside"):
            await one.mesh.issue()
        one.failing = None
        await one.mesh.issue()


async def test_without_the_join_port_workers_are_served_and_a_token_says_why_there_is_none(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with star(tmp_path, clock) as one:
        await one.joined()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with star(tmp_path, clock, join_listen=(f"127.0.0.1:{port}",)) as one:
            status = await one.phase("failing")
            assert f"mesh.join_listen: cannot listen on 127.0.0.1:{port}" in status.why
            assert one.mesh.name_at(f"{status.address.removesuffix('1')}2") == "gpu-2"
            assert len(one.daemon.doors) == 1
            with pytest.raises(Down, match=r"mesh\.join_listen: cannot listen on"):
                await one.mesh.issue()
            other.close()
            issued = await one.mesh.issue()
            assert [place.port for place in places_of(issued.text)] == [port]
            assert one.status.phase == "up"


async def test_a_removed_node_is_out_by_name_key_peer_and_connection(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        name = await one.joined(2)
        await one.joined(3)
        address = one.mesh.members()[0].address
        assert await one.mesh.remove(name)
        assert one.daemon.gone == [name]
        assert set(one.interface.wanted.peers) == {one.key(3)}
        assert one.mesh.name_at(address) is None
        assert not await one.mesh.remove(name)
        again = await one.join((await one.mesh.issue()).text, 2)
        assert isinstance(again, Failed)
        assert "its key is refused" in again.reason


async def test_a_removal_that_the_interface_does_not_take_holds_all_the_same(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        name = await one.joined(2)
        await one.joined(3)
        one.interface.broken = "the helper hangs"
        assert await one.mesh.remove(name)
        assert [member.node.name for member in one.mesh.members()] == ["gpu-3"]
        await one.daemon.until(lambda: len(one.interfaces) == 2 and one.status.phase == "up")
        assert set(one.interface.wanted.peers) == {one.key(3)}


async def test_after_a_restart_the_nodes_are_peers_again_at_the_same_addresses(tmp_path: Path) -> None:
    clock = Clock()
    async with star(tmp_path, clock) as one:
        names = {await one.joined(number) for number in (2, 3, 4)}
        await one.mesh.remove("gpu-3")
        peers, address = one.interface.wanted.peers, one.status.address
    async with star(tmp_path, clock) as one:
        status = await one.phase("up")
        assert one.interface.wanted.peers == peers
        assert (status.address, status.nodes) == (address, 2)
        assert {member.node.name for member in one.mesh.members()} == names - {"gpu-3"}


async def test_a_good_token_alone_is_enough_to_come_up_at_start_and_a_spent_one_is_not(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with star(tmp_path, clock) as one:
        first = (await one.mesh.issue(lifetime=100)).grant
        second = (await one.mesh.issue(lifetime=200)).grant
    async with star(tmp_path, clock) as one:
        await one.phase("up")
        assert await one.mesh.revoke(second.id)
        assert not await one.mesh.revoke(second.id)
        assert not await one.mesh.revoke(99)
    clock.at = first.expires
    async with star(tmp_path, clock) as one:
        assert len(await one.mesh.grants()) == 2
        one.mesh.wake()
        await asyncio.sleep(0)
        assert (one.status.phase, one.interfaces) == ("idle", [])


async def test_it_goes_down_when_nothing_has_needed_it_for_an_hour(tmp_path: Path) -> None:
    clock = Clock()
    async with star(tmp_path, clock) as one:
        issued = await one.mesh.issue(lifetime=60)
        clock.at += 61
        refused = await one.join(issued.text, 2)
        assert isinstance(refused, Failed)
        assert "this token joins no more machines" in refused.reason
        clock.at += LINGER - 100
        one.mesh.wake()
        await asyncio.sleep(0)
        assert one.status.phase == "up"
        clock.at += 101
        one.mesh.wake()
        await one.phase("idle")
        assert one.up is None
        late = await one.join(issued.text, 2)
        assert isinstance(late, Failed)
        assert late.again  # nobody listens there


async def test_a_peer_is_shown_as_the_interface_has_it(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        await one.joined()
        one.interface.hear(one.key(2), handshake=one.clock.at, rx=100)
        one.daemon.news.clear()
        await one.mesh.look()
        (member,) = one.mesh.members()
        assert (member.path, member.endpoint, member.handshake, member.rx, member.tx) == (
            "direct",
            "198.51.100.7:9",
            one.clock.at,
            100,
            7,
        )
        assert one.daemon.news.is_set()
        one.interface.hear(one.key(2), handshake=one.clock.at, rx=900, host="2001:db8::7")
        one.daemon.news.clear()
        await one.mesh.look()
        assert one.mesh.members()[0].endpoint == "[2001:db8::7]:9"
        assert not one.daemon.news.is_set()  # traffic alone is no news


async def test_a_machine_that_asks_why_nothing_passes_is_a_new_peer_to_wireguard(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        await one.joined(2)
        await one.joined(3)
        both = set(one.interface.wanted.peers)
        for off, anew in ((-HANDSHAKE, True), (3 * 86400.0, True), (-HANDSHAKE + 1, False)):
            one.interface.hear(one.key(2), handshake=one.clock.at + off)
            await one.mesh.look()
            one.interface.had.clear()
            (node,) = [member.node for member in one.mesh.members() if member.node.name == "gpu-2"]
            await one.mesh._joined(Reply(status=200, body=b"", stuck=node))
            assert one.interface.had == ([{one.key(3)}, both] if anew else [])


async def quiet_for(one: Star, seconds: float) -> list[str]:
    """Look, let time pass in which nothing is heard, and look again; who is still there."""
    await one.mesh.look()
    one.clock.at += seconds
    await one.mesh.look()
    return [member.node.name for member in one.mesh.members()]


async def test_an_ephemeral_node_goes_when_it_was_quiet_for_long_enough(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        await one.joined(2, ephemeral=True)
        await one.joined(3)
        one.interface.hear(one.key(2), handshake=one.clock.at)
        assert await quiet_for(one, HANDSHAKE - 1) == ["gpu-2", "gpu-3"]
        assert [member.node.quiet for member in one.mesh.members()] == [None, None]
        assert await quiet_for(one, 1) == ["gpu-2", "gpu-3"]
        assert [member.node.quiet for member in one.mesh.members()] == [one.clock.at] * 2
        assert await quiet_for(one, GONE - 1) == ["gpu-2", "gpu-3"]
        assert await quiet_for(one, 1) == ["gpu-3"]
        assert one.daemon.gone == ["gpu-2"]
        assert set(one.interface.wanted.peers) == {one.key(3)}


async def test_an_ephemeral_node_whose_run_is_waited_for_stays(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        await one.joined(2, ephemeral=True)
        one.daemon.waits_for = {"gpu-2"}
        await quiet_for(one, HANDSHAKE)
        assert await quiet_for(one, 10 * GONE) == ["gpu-2"]
        one.daemon.waits_for = set()
        assert await quiet_for(one, 0) == []


async def test_a_node_that_is_heard_again_is_quiet_no_more(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        await one.joined(2, ephemeral=True)
        await quiet_for(one, HANDSHAKE)
        one.clock.at += 1
        one.interface.hear(one.key(2), handshake=one.clock.at, rx=5)
        assert await quiet_for(one, GONE - 1) == ["gpu-2"]
        assert one.mesh.members()[0].node.quiet is None


async def test_quiet_goes_on_over_a_restart_and_the_time_that_nobody_listened_does_not_count(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with star(tmp_path, clock) as one:
        await one.joined(2, ephemeral=True)
        await one.joined(3, ephemeral=True)
        keys = [one.key(2), one.key(3)]
        one.interface.hear(one.key(3), handshake=clock.at + HANDSHAKE)
        await quiet_for(one, HANDSHAKE)
    clock.at += 10 * GONE
    # What the counters show at the first look says nothing of when they moved.
    async with star(tmp_path, clock, heard={key: state(key, rx=10**6) for key in keys}) as one:
        await one.phase("up")
        await one.mesh.look()
        assert {member.node.name for member in one.mesh.members()} == {"gpu-2", "gpu-3"}  # it settles first
        clock.at += 60
        await one.mesh.look()
        assert {member.node.name for member in one.mesh.members()} == {"gpu-3"}


async def test_bytes_alone_keep_a_node_from_being_quiet(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        await one.joined(2)
        for rx in range(1, 8):
            one.interface.hear(one.key(2), rx=rx)
            await quiet_for(one, 50)
        assert one.mesh.members()[0].node.quiet is None
        await quiet_for(one, 50)
        assert one.mesh.members()[0].node.quiet == one.clock.at


async def test_an_interface_that_ends_is_brought_up_again(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        await one.joined()
        one.interface.broken = "the mesh's helper has ended"
        one.mesh.wake()
        assert "helper has ended" in (await one.phase("failing")).why
        assert one.daemon.doors == []
        one.mesh.wake()
        await one.phase("up")
        assert set(one.interface.wanted.peers) == {one.key(2)}
        assert len(one.daemon.doors) == 1


async def test_workers_dial_at_the_new_socket_when_the_old_ones_namespace_is_lost(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        await one.mesh.issue()
        (before,) = one.daemon.doors
        assert one.interface.moved is not None
        dropped, last = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
        one.interface.moved(dropped)
        one.interface.moved(last)
        await one.daemon.until(lambda: one.daemon.doors == [last])
        assert before.fileno() == dropped.fileno() == -1
    assert last.fileno() == -1


async def test_a_join_that_no_peer_could_be_made_of_is_not_answered_as_done(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        issued = await one.mesh.issue()
        one.interface.broken = "the helper hangs"
        failed = await one.join(issued.text, 2)
        assert isinstance(failed, Failed)
        assert failed.again
        one.mesh.wake()
        await one.daemon.until(lambda: len(one.interfaces) == 2 and one.status.phase == "up")
        assert set(one.interface.wanted.peers) == {one.key(2)}


async def test_the_shell_line_has_the_hash_of_the_script_and_that_the_wheels_of_now(tmp_path: Path) -> None:
    async with star(tmp_path / "data") as one, aiohttp.ClientSession() as session:
        for version in ("1", "2"):
            made = wheelhouse.wheel(make_wheel(tmp_path, "outrider", version))
            one.daemon.has = Goods(made, await asyncio.to_thread(wheelhouse.read, tmp_path))
            issued = await one.mesh.issue()
            base = f"http://{one.status.join[0]}"
            assert f'"{base}"' in issued.line
            assert issued.line.startswith(f"echo {issued.text} | ")
            async with session.get(f"{base}/join.sh") as answer:
                script = await answer.read()
            assert hashlib.sha256(script).hexdigest() in issued.line
            assert made.sha256.encode() in script
            assert base.removeprefix("http://").encode() in script
            async with session.get(f"{base}/release/{made.name}") as answer:
                assert hashlib.sha256(await answer.read()).hexdigest() == made.sha256
            async with session.get(f"{base}/wheelhouse/") as answer:
                assert made.name in await answer.text()


async def test_a_damaged_registry_is_said_and_the_mesh_stays_down(tmp_path: Path) -> None:
    (tmp_path / registry.FILE).write_bytes(b"no database" * 100)
    (tmp_path / registry.FILE).chmod(0o600)
    async with star(tmp_path) as one:
        assert "is damaged" in (await one.phase("failing")).why
        with pytest.raises(RegistryError, match="is damaged"):
            await one.mesh.issue()
        assert one.mesh.members() == ()


async def test_a_registry_that_another_process_has_open_is_opened_when_that_ends(tmp_path: Path) -> None:
    async with star(tmp_path) as one:
        await one.joined()
        async with star(tmp_path) as two:
            assert "is open in another process" in (await two.phase("failing")).why
            await one.mesh.close()
            two.mesh.wake()
            await two.phase("up")


async def test_with_the_relay_a_connection_to_it_is_taken(tmp_path: Path) -> None:
    async with star(tmp_path, relay=True) as one:
        await one.mesh.issue()
        counts = one.status.relay
        assert counts is not None
        assert counts.connections == 0
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{one.status.join[0]}/mesh/relay") as answer:
                assert answer.status == 426
            async with session.ws_connect(f"http://{one.status.join[0]}/mesh/relay"):
                counts = one.status.relay
                assert counts is not None
                assert counts.connections == 1
