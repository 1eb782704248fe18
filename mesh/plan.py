"""What a WireGuard interface shall be and what it is, and the single changes from one to the other. Pure."""

from collections.abc import Iterable, Mapping
from ipaddress import IPv6Interface, IPv6Network
from typing import Final, assert_never

import msgspec
from msgspec import Struct

KEY: Final = 32  # bytes of a public, private or preshared key
HIDDEN: Final = "<hidden>"  # stands for a secret wherever a value is shown


class Clash(ValueError):
    """Two peers would have the same allowed IP, of which WireGuard would silently take one away; names both."""


class Endpoint(Struct, frozen=True, order=True):
    """Where packets for a peer go: an IP address in text, IPv4 or IPv6, and a UDP port."""

    host: str
    port: int


class Hiding(Struct, frozen=True):
    """A struct whose secrets are not in its repr, so that no log gets them."""

    def __repr__(self) -> str:
        shown = (
            f"{name}={HIDDEN if name in ('private', 'preshared') and value else repr(value)}"
            for name, value in ((name, getattr(self, name)) for name in self.__struct_fields__)
        )
        return f"{type(self).__name__}({', '.join(shown)})"


class Peer(Hiding, frozen=True, kw_only=True):
    """One peer as it shall be. `preshared` and the key are raw bytes; `keepalive` in seconds, 0 is none.

    `endpoint` None: leave it as it is (the peer dials us, or roams). The hub sets none and no keepalive.
    """

    key: bytes
    allowed: tuple[IPv6Network, ...]
    preshared: bytes = b""
    endpoint: Endpoint | None = None
    keepalive: int = 0


class Wanted(Hiding, frozen=True, kw_only=True):
    """An interface as it shall be. `port` 0: any that is free. `peers` by their key, no allowed IP twice."""

    private: bytes
    address: IPv6Interface
    port: int = 0
    mtu: int = 1420
    peers: dict[bytes, Peer]


class PeerState(Hiding, frozen=True, kw_only=True):
    """One peer as it is. `handshake`: seconds since the epoch, 0 for none yet; `rx` and `tx` in bytes."""

    key: bytes
    allowed: frozenset[IPv6Network]
    preshared: bytes = b""
    endpoint: Endpoint | None = None
    keepalive: int = 0
    handshake: float = 0.0
    rx: int = 0
    tx: int = 0


class Actual(Struct, frozen=True, kw_only=True):
    """An interface as it is; the private key is not in it, its public one is."""

    public: bytes
    port: int
    peers: dict[bytes, PeerState]


class RemovePeer(Struct, frozen=True, tag="remove"):
    """Forget this peer; its session ends at once."""

    key: bytes


class SetAllowed(Struct, frozen=True, tag="allowed"):
    """Give a peer allowed IPs; `only`: and take from it those that are not among them."""

    key: bytes
    allowed: tuple[IPv6Network, ...]
    only: bool


class SetPreshared(Hiding, frozen=True, tag="preshared"):
    """Use this preshared key from the next handshake on; empty: none."""

    key: bytes
    preshared: bytes


class SetEndpoint(Struct, frozen=True, tag="endpoint"):
    """Send to this address from now on."""

    key: bytes
    endpoint: Endpoint


class SetKeepalive(Struct, frozen=True, tag="keepalive"):
    """Send an empty packet after so many seconds of silence; 0: never."""

    key: bytes
    keepalive: int


class AddPeer(Struct, frozen=True, tag="add"):
    """Know one peer more."""

    peer: Peer


Change = RemovePeer | SetAllowed | SetPreshared | SetEndpoint | SetKeepalive | AddPeer


def plan(want: Mapping[bytes, Peer], have: Mapping[bytes, PeerState]) -> list[Change]:
    """The fewest changes that make the peers those wanted: none is removed and added again, none replaced.

    Removals come first, so that an allowed IP is free before another peer gets it. Raises Clash.
    """
    check(want.values())
    changes: list[Change] = [RemovePeer(key) for key in have if key not in want]
    for key, peer in want.items():
        if key in have:
            changes += _changes(peer, have[key])
    changes += (AddPeer(peer) for key, peer in want.items() if key not in have)
    return changes


def check(peers: Iterable[Peer]) -> None:
    """Raise Clash when two peers have an allowed IP in common."""
    owners: dict[IPv6Network, Peer] = {}
    for peer in peers:
        for network in peer.allowed:
            owner = owners.setdefault(network, peer)
            if owner.key != peer.key:
                raise Clash(
                    f"the peers {owner.key.hex()[:16]}… and {peer.key.hex()[:16]}… both have the allowed IP {network}"
                )


def _changes(want: Peer, have: PeerState) -> list[Change]:
    changes: list[Change] = []
    allowed = frozenset(want.allowed)
    if gone := have.allowed - allowed:
        changes.append(SetAllowed(want.key, tuple(sorted(allowed)), bool(gone)))
    elif fresh := allowed - have.allowed:
        changes.append(SetAllowed(want.key, tuple(sorted(fresh)), False))
    if want.preshared != have.preshared:
        changes.append(SetPreshared(want.key, want.preshared))
    if want.endpoint is not None and want.endpoint != have.endpoint:
        changes.append(SetEndpoint(want.key, want.endpoint))
    if want.keepalive != have.keepalive:
        changes.append(SetKeepalive(want.key, want.keepalive))
    return changes


def applied(peers: Mapping[bytes, PeerState], changes: Iterable[Change]) -> dict[bytes, PeerState]:
    """The peers after these changes, as WireGuard makes them: an allowed IP given to one is taken from the others.

    A change of a peer that is not there does nothing.
    """
    now = dict(peers)
    for change in changes:
        if isinstance(change, AddPeer):
            peer = change.peer
            now = _taken(now, peer.allowed)
            now[peer.key] = PeerState(
                key=peer.key,
                allowed=frozenset(peer.allowed),
                preshared=peer.preshared,
                endpoint=peer.endpoint,
                keepalive=peer.keepalive,
            )
            continue
        state = now.get(change.key)
        if state is None:
            continue
        match change:
            case RemovePeer(key):
                del now[key]
            case SetAllowed(key, allowed, only):
                now = _taken(now, allowed)
                kept = frozenset() if only else state.allowed
                now[key] = msgspec.structs.replace(state, allowed=kept | frozenset(allowed))
            case SetPreshared(key, preshared):
                now[key] = msgspec.structs.replace(state, preshared=preshared)
            case SetEndpoint(key, endpoint):
                now[key] = msgspec.structs.replace(state, endpoint=endpoint)
            case SetKeepalive(key, keepalive):
                now[key] = msgspec.structs.replace(state, keepalive=keepalive)
            case _:
                assert_never(change)
    return now


def _taken(peers: dict[bytes, PeerState], allowed: Iterable[IPv6Network]) -> dict[bytes, PeerState]:
    """The peers without these allowed IPs."""
    lost = frozenset(allowed)
    return {
        key: msgspec.structs.replace(state, allowed=state.allowed - lost) if state.allowed & lost else state
        for key, state in peers.items()
    }
