"""Addresses: those inside the mesh, which follow from the harness's key, and host:port outside of it. Pure."""

import hashlib
import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address, IPv6Interface, IPv6Network
from typing import Final

from msgspec import Struct

HARNESS: Final = 1  # the harness's number; workers have the ones above
PREFIX: Final = 48  # bits that all addresses of one mesh share
_GLOBAL_ID: Final = 5  # bytes of the prefix that are the mesh's own (RFC 4193)
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT: Final = re.compile(r"[0-9]{1,5}")
LONGEST_NAME: Final = 253  # characters of a DNS name


class BadPlaceError(ValueError):
    """This is no host:port; the message says why and how to write one."""


class Place(Struct, frozen=True, order=True):
    """Where something listens: an IPv4 or IPv6 address or a DNS name, and a port; written `host:port`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def place(text: str) -> Place:
    """The place that is written so; IPv6 addresses stand in brackets. Raises BadPlaceError."""
    host, colon, number = text.rpartition(":")
    if not colon or not _PORT.fullmatch(number) or not 1 <= int(number) <= 65535:
        raise BadPlaceError(f"{text[:300]!a}: write HOST:PORT, the port from 1 to 65535")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        return Place(_v6(host[1:-1]) if bracketed else _v4_or_name(host), int(number))
    except BadPlaceError as error:
        raise BadPlaceError(f"{text[:300]!a}: {error}") from None


def prefix(public: bytes) -> IPv6Network:
    """The network of the harness with this WireGuard public key: a /48 of the local addresses, fd00::/8."""
    own = hashlib.sha256(public).digest()[:_GLOBAL_ID]
    return IPv6Network((b"\xfd" + own + bytes(16 - 1 - _GLOBAL_ID), PREFIX))


def address(network: IPv6Network, number: int) -> IPv6Address:
    """The address of the node with this number, from HARNESS on."""
    return network[number]


def interface(network: IPv6Network, number: int) -> IPv6Interface:
    """The same with the network's length, so that setting it also makes the route to the others."""
    return IPv6Interface((int(network[number]), network.prefixlen))


def number_of(network: IPv6Network, peer: IPv6Address) -> int | None:
    """The number of the node with this address; None for one that is not of the mesh."""
    return int(peer) - int(network.network_address) if peer in network else None


def _v6(text: str) -> str:
    try:
        found = IPv6Address(text)
    except AddressValueError:
        raise BadPlaceError("there is no such IPv6 address") from None
    if found.scope_id is not None:
        raise BadPlaceError("an address with a zone (%) means nothing on another machine")
    return str(found)


def _v4_or_name(text: str) -> str:
    if ":" in text:
        raise BadPlaceError("write an IPv6 address in brackets: [ADDRESS]:PORT")
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(IPv4Address(name))
        except AddressValueError:
            raise BadPlaceError("there is no such IPv4 address") from None
    if not name.isascii():
        raise BadPlaceError("write a name that is not ASCII in its xn-- form")
    if len(name) > LONGEST_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise BadPlaceError("the host is an IP address or a DNS name")
    return name
