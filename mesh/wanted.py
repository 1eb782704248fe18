"""What the registry and a join's answer mean for the WireGuard interface. Pure."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Network

from mesh import address
from mesh.keys import Pair
from mesh.messages import MTU, Answer
from mesh.nodes import Node
from mesh.plan import Endpoint, Peer, Wanted


def hub_wanted(nodes: Iterable[Node], keys: Pair, port: int, mtu: int = MTU) -> Wanted:
    """The harness's interface: each node a peer with its one address; no endpoint and no keepalive, they dial."""
    network = address.prefix(keys.public)
    peers = {
        node.key: Peer(
            key=node.key,
            allowed=_one(network, node.number),
            preshared=node.preshared,
        )
        for node in nodes
        if node.removed is None
    }
    own = address.interface(network, address.HARNESS)
    return Wanted(private=keys.private, address=own, port=port, mtu=mtu, peers=peers)


def worker_wanted(answer: Answer, keys: Pair, endpoint: Endpoint | None = None, mtu: int = 0) -> Wanted:
    """A worker's interface: the harness its one peer, and nothing but the harness behind it.

    `endpoint`: one of the answer's, resolved; None leaves what is. `mtu` 0: the answer's.
    """
    hub = Peer(
        key=answer.hub,
        allowed=_one(answer.prefix, address.HARNESS),
        preshared=answer.preshared,
        endpoint=endpoint,
        keepalive=answer.keepalive,
    )
    number = address.number_of(answer.prefix, answer.address)
    assert number is not None, "an answer that was read has an address of its prefix"
    own = address.interface(answer.prefix, number)
    return Wanted(private=keys.private, address=own, mtu=mtu or answer.mtu, peers={answer.hub: hub})


@lru_cache(maxsize=4096)  # each change asks for all of a fleet's, and making one takes 25 us
def _one(network: IPv6Network, number: int) -> tuple[IPv6Network]:
    """The one address that is behind a peer."""
    return (IPv6Network(address.address(network, number)),)
