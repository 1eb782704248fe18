from ipaddress import IPv6Network
from pathlib import Path

from mesh import address
from mesh.join import Joined
from mesh.plan import Endpoint, Peer
from mesh.wanted import hub_wanted, worker_wanted
from tests.mesh.joining import harness, worker_keys


def test_both_ends_of_a_join_want_the_same_tunnel(tmp_path: Path) -> None:
    with harness(tmp_path) as one:
        joined = one.join(one.token())
        assert isinstance(joined, Joined)
        hub = hub_wanted(one.registry.nodes(), one.keys.wireguard, 51820)
        where = Endpoint("192.0.2.1", 51820)
        worker = worker_wanted(joined.answer, worker_keys(1), where)
    network = address.prefix(one.keys.wireguard.public)
    (peer,), (back,) = hub.peers.values(), worker.peers.values()
    assert hub.address.ip == address.address(network, 1)
    assert back.allowed == (IPv6Network(hub.address.ip),)
    assert peer.allowed == (IPv6Network(worker.address.ip),)
    assert peer.preshared == back.preshared
    assert len(peer.preshared) == 32
    assert (peer.key, back.key) == (worker_keys(1).public, one.keys.wireguard.public)
    assert (hub.private, worker.private) == (one.keys.wireguard.private, worker_keys(1).private)
    assert (hub.port, worker.port) == (51820, 0)
    assert (peer.endpoint, peer.keepalive) == (None, 0)  # only the worker begins
    assert (back.endpoint, back.keepalive) == (where, 25)
    assert hub.address.network == worker.address.network == network
    assert hub.mtu == worker.mtu == 1420


def test_a_removed_node_is_no_peer_and_no_address_is_twice(tmp_path: Path) -> None:
    with harness(tmp_path) as one:
        text = one.token(uses=3)
        for number in (1, 2, 3):
            one.join(text, number)
        one.registry.remove(3)
        hub = hub_wanted(one.registry.nodes(removed=True), one.keys.wireguard, 51820, 1280)
    assert set(hub.peers) == {worker_keys(1).public, worker_keys(3).public}
    allowed = [network for peer in hub.peers.values() for network in peer.allowed]
    assert len(set(allowed)) == 2
    assert hub.mtu == 1280


def test_a_worker_keeps_the_endpoint_that_is_and_has_an_mtu_of_its_own(tmp_path: Path) -> None:
    with harness(tmp_path) as one:
        joined = one.join(one.token())
    assert isinstance(joined, Joined)
    wanted = worker_wanted(joined.answer, worker_keys(1), mtu=1280)
    assert wanted.mtu == 1280
    assert [type(peer) for peer in wanted.peers.values()] == [Peer]
    assert wanted.peers[one.keys.wireguard.public].endpoint is None
