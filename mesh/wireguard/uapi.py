"""The text by which a userspace WireGuard is configured: requests from changes, what it is from an answer. Pure.

The format is that of https://www.wireguard.com/xplatform/: lines `key=value`, keys in hex, an empty line at the end.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from ipaddress import IPv6Network, ip_network
from typing import Final, assert_never

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from mesh.plan import (
    KEY,
    Actual,
    AddPeer,
    Change,
    Endpoint,
    PeerState,
    RemovePeer,
    SetAllowed,
    SetEndpoint,
    SetKeepalive,
    SetPreshared,
)

GET: Final = b"get=1\n\n"
END: Final = b"\n\n"
_NONE: Final = bytes(KEY)  # the preshared key that is none


class UapiError(ValueError):
    """The answer cannot be read."""


class Refused(Exception):
    """The request was not carried out; `number` is the errno."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


def own(private: bytes = b"", port: int | None = None) -> bytes:
    """The request that sets the interface's own key, its port, or both."""
    lines = [f"private_key={private.hex()}"] if private else []
    if port is not None:
        lines.append(f"listen_port={port}")
    return _request(lines)


def changing(changes: Iterable[Change]) -> bytes:
    """The request that makes these changes."""
    return _request(line for change in changes for line in _lines(change))


def _request(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in ("set=1", *lines, "")).encode()


def _lines(change: Change) -> Iterator[str]:
    match change:
        case AddPeer(peer):
            yield f"public_key={peer.key.hex()}"
            if peer.preshared:
                yield f"preshared_key={peer.preshared.hex()}"
            if peer.endpoint is not None:
                yield f"endpoint={_address(peer.endpoint)}"
            if peer.keepalive:
                yield f"persistent_keepalive_interval={peer.keepalive}"
            yield "replace_allowed_ips=true"
            yield from (f"allowed_ip={network}" for network in peer.allowed)
        case RemovePeer(key):
            yield from _known(key)
            yield "remove=true"
        case SetAllowed(key, allowed, only):
            yield from _known(key)
            if only:
                yield "replace_allowed_ips=true"
            yield from (f"allowed_ip={network}" for network in allowed)
        case SetPreshared(key, preshared):
            yield from _known(key)
            yield f"preshared_key={(preshared or _NONE).hex()}"
        case SetEndpoint(key, endpoint):
            yield from _known(key)
            yield f"endpoint={_address(endpoint)}"
        case SetKeepalive(key, keepalive):
            yield from _known(key)
            yield f"persistent_keepalive_interval={keepalive}"
        case _:
            assert_never(change)


def _known(key: bytes) -> Iterator[str]:
    yield f"public_key={key.hex()}"
    yield "update_only=true"


def _address(endpoint: Endpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"


def answered(answer: bytes) -> list[tuple[str, str]]:
    """An answer's lines, without its errno. Raises Refused where that is not 0, and UapiError."""
    try:
        lines = [line.split("=", 1) for line in answer.decode("ascii").removesuffix("\n\n").split("\n")]
        pairs = [(key, value) for key, value in lines]
        name, value = pairs[-1]
        number = abs(int(value))
    except ValueError as error:
        raise UapiError("WireGuard's answer is not lines of key=value") from error
    if name != "errno":
        raise UapiError("WireGuard's answer has no errno at its end")
    if number:
        raise Refused(number)
    return pairs[:-1]


def parse(answer: bytes) -> Actual:
    """The interface that the answer to GET describes. Raises UapiError and Refused.

    Its private key is in the answer, so no message has any of it.
    """
    public, port, peers = b"", 0, dict[bytes, _Reading]()
    reading = _Reading(b"")
    try:
        for name, value in answered(answer):
            match name:
                case "private_key":
                    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(value))
                    public = private.public_key().public_bytes_raw()
                case "listen_port":
                    port = int(value)
                case "public_key":
                    reading = _Reading(bytes.fromhex(value))
                    peers[reading.key] = reading
                case _:
                    reading.take(name, value)
    except UapiError:
        raise
    except ValueError:
        raise UapiError("WireGuard says of itself what cannot be read") from None
    return Actual(public=public, port=port, peers={key: peer.state() for key, peer in peers.items()})


class _Reading:
    """One peer while its lines come."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.allowed: set[IPv6Network] = set()
        self.preshared = b""
        self.endpoint: Endpoint | None = None
        self.numbers: dict[str, int] = {}

    def take(self, name: str, value: str) -> None:
        match name:
            case "preshared_key":
                preshared = bytes.fromhex(value)
                self.preshared = b"" if preshared == _NONE else preshared
            case "endpoint":
                host, _, port = value.rpartition(":")
                self.endpoint = Endpoint(host.strip("[]").partition("%")[0], int(port))
            case "allowed_ip":
                network = ip_network(value)
                if isinstance(network, IPv6Network):
                    self.allowed.add(network)
            case (
                "last_handshake_time_sec"
                | "last_handshake_time_nsec"
                | "tx_bytes"
                | "rx_bytes"
                | "persistent_keepalive_interval"
            ):
                self.numbers[name] = int(value)
            case _:
                pass  # of another release

    def state(self) -> PeerState:
        get = self.numbers.get
        return PeerState(
            key=self.key,
            allowed=frozenset(self.allowed),
            preshared=self.preshared,
            endpoint=self.endpoint,
            keepalive=get("persistent_keepalive_interval", 0),
            handshake=get("last_handshake_time_sec", 0) + get("last_handshake_time_nsec", 0) / 1e9,
            rx=get("rx_bytes", 0),
            tx=get("tx_bytes", 0),
        )


def in_use(number: int) -> bool:
    """Whether an errno says that the UDP port is another's."""
    return number == errno.EADDRINUSE
