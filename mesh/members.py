"""What is known of the machines that joined: each node with what WireGuard says of its peer. Pure but for `Watch`."""

from collections.abc import Iterable, Mapping
from ipaddress import IPv6Network
from typing import Literal, Protocol

from msgspec import Struct

from mesh import address
from mesh.expiry import Heard
from mesh.nodes import Node
from mesh.plan import Actual, Endpoint, PeerState

Path = Literal["", "direct", "relay"]


class Member(Struct, frozen=True, kw_only=True):
    """A machine that joined. `address`: inside the mesh. `handshake`: seconds since the epoch, 0 for none yet.

    `endpoint`: where its packets come from, HOST:PORT; through the relay that is where its WebSocket comes from.
    `path`: how they come; empty: not known. `rx` and `tx`: bytes since the interface is up.
    """

    node: Node
    address: str
    endpoint: str = ""
    path: Path = ""
    handshake: float = 0.0
    rx: int = 0
    tx: int = 0


class Via(Protocol):
    """Says which endpoints are the relay's: `mesh.relay.Relay`."""

    def via(self, endpoint: tuple[str, int], /) -> str | None:
        """The address of the worker whose packets come from there; None: it is not the relay's."""
        ...


class Watch:
    """Looks at one interface again and again: when counters moved, which a look alone does not tell."""

    def __init__(self) -> None:
        self._rx: dict[int, int] = {}
        self._moved: dict[int, float] = {}

    def heard(self, nodes: Iterable[Node], actual: Actual, now: float) -> dict[int, Heard]:
        """What was heard of each node by now. What a counter shows at its first look may be old, so it counts as
        nothing."""
        found: dict[int, Heard] = {}
        rx: dict[int, int] = {}
        for node in nodes:
            if (peer := actual.peers.get(node.key)) is None:
                continue
            rx[node.number] = peer.rx
            if peer.rx > self._rx.get(node.number, peer.rx):
                self._moved[node.number] = now
            found[node.number] = Heard(peer.handshake, self._moved.get(node.number, 0.0))
        self._rx = rx
        self._moved = {number: at for number, at in self._moved.items() if number in rx}
        return found


def members(
    nodes: Iterable[Node], network: IPv6Network, peers: Mapping[bytes, PeerState], relay: Via | None
) -> tuple[Member, ...]:
    """Every node as it stands, in the order of `nodes`."""
    return tuple(_member(node, network, peers.get(node.key), relay) for node in nodes)


def _member(node: Node, network: IPv6Network, peer: PeerState | None, relay: Via | None) -> Member:
    own = str(address.address(network, node.number))
    if peer is None:
        return Member(node=node, address=own)
    path: Path = ""
    shown = ""
    if peer.endpoint is not None:
        via = relay.via((peer.endpoint.host, peer.endpoint.port)) if relay is not None else None
        path, shown = ("direct", _shown(peer.endpoint)) if via is None else ("relay", via)
    return Member(
        node=node,
        address=own,
        endpoint=shown,
        path=path,
        handshake=peer.handshake,
        rx=peer.rx,
        tx=peer.tx,
    )


def _shown(endpoint: Endpoint) -> str:
    return (
        f"[{endpoint.host}]:{endpoint.port}" if ":" in endpoint.host else f"{endpoint.host}:{endpoint.port}"
    )
