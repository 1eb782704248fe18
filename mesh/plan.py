"""What a WireGuard interface shall be and what it is, and the single changes from one to the other. Pure."""

from ipaddress import IPv6Interface, IPv6Network
from typing import Final

from msgspec import Struct

KEY: Final = 32  # bytes of a public, private or preshared key


class Endpoint(Struct, frozen=True, order=True):
    """Where packets for a peer go: an IP address in text, IPv4 or IPv6, and a UDP port."""

    host: str
    port: int


class Peer(Struct, frozen=True, kw_only=True):
    """One peer as it shall be. `preshared` and the key are raw bytes; `keepalive` in seconds, 0 is none.

    `endpoint` None: leave it as it is (the peer dials us, or roams). The hub sets none and no keepalive.
    """

    key: bytes
    allowed: tuple[IPv6Network, ...]
    preshared: bytes = b""
    endpoint: Endpoint | None = None
    keepalive: int = 0


class Wanted(Struct, frozen=True, kw_only=True):
    """An interface as it shall be. `port` 0: any that is free. `peers` by their key, no allowed IP twice."""

    private: bytes
    address: IPv6Interface
    port: int = 0
    mtu: int = 1420
    peers: dict[bytes, Peer]


class PeerState(Struct, frozen=True, kw_only=True):
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
