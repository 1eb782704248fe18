"""Where other machines may reach this one: its addresses and its name, the likeliest first."""

import array
import fcntl
import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

from msgspec import Struct

from mesh.address import BadPlaceError, Place, place

MOST: Final = 6  # places: each that is of no use costs who joins seconds, and a token is to stay short
_SIOCGIFCONF: Final = 0x8912
_IFREQ: Final = 40  # bytes of one interface's entry on 64-bit Linux: its name, then a sockaddr
_ROOM: Final = 256 * _IFREQ
_UNFIT: Final = 0x01 | 0x08 | 0x20 | 0x40  # temporary, duplicate, deprecated, tentative (linux/if_addr.h)
# Documentation addresses (RFC 5737, 3849): no packet goes there, the system says by which address one would.
_FAR: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))

Address = IPv4Address | IPv6Address


class Found(Struct, frozen=True):
    """An address of this machine: on which interface, and whether that is a bridge."""

    interface: str
    address: Address
    bridge: bool = False


def hosts(found: Sequence[Found], first: Sequence[Address], hostname: str) -> list[str]:
    """Hosts as a place has them, at most MOST. Pure.

    Those by which this machine would send to others (`first`) come first, IPv4 before IPv6 and its name last. Left out
    are loopback and link-local addresses, which mean nothing elsewhere, and bridges that packets do not leave by: they
    are of containers and virtual machines, and other machines have the same ones. Where there is nothing else, bridges
    are taken, and loopback at the last.
    """
    leaving = {one.interface for one in found if one.address in first}
    all_fit = [one for one in found if _fit(one.address)]
    likely = [one for one in all_fit if not one.bridge or one.interface in leaving]
    fit = [one.address for one in likely or all_fit]
    ordered = sorted(dict.fromkeys(fit), key=lambda address: (address not in first, address.version))
    named = [hostname] if _is_name(hostname) else []
    return [*map(str, ordered[: MOST - len(named)]), *named] or ["127.0.0.1"]


def own_hosts() -> list[str]:
    """`hosts` of this machine now. Blocks, for no longer than the kernel takes."""
    return hosts([*_v4(), *_v6()], list(_sources()), socket.gethostname())


def places(written: Iterable[str], port: int) -> tuple[Place, ...]:
    """HOST or HOST:PORT, each with this port where it names none. Raises BadPlaceError."""
    return tuple(_place(text, port) for text in written)


def _place(text: str, port: int) -> Place:
    with suppress(ValueError):  # an IPv6 address without brackets, which has no port
        if ":" in text and ip_address(text).version == 6:
            return place(f"[{text}]:{port}")
    try:
        return place(text)
    except BadPlaceError:
        if ":" in text.rpartition("]")[2]:
            raise
        return place(f"{text}:{port}")


def _fit(address: Address) -> bool:
    return not (
        address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    )


def _is_name(hostname: str) -> bool:
    if hostname.partition(".")[0].lower() in ("", "localhost", "localhost6"):
        return False
    try:
        return not place(f"{hostname}:1").host[0].isdigit()
    except BadPlaceError:
        return False


def _sources() -> Iterable[Address]:
    """The addresses that this machine would send from to one that is far away."""
    for family, far in _FAR:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((far, 9))
            yield ip_address(sock.getsockname()[0].partition("%")[0])


def _v4() -> Iterable[Found]:
    """The IPv4 addresses of interfaces that are up."""
    room = array.array("B", bytes(_ROOM))
    where, _ = room.buffer_info()
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        got = fcntl.ioctl(sock, _SIOCGIFCONF, struct.pack("iL", _ROOM, where))
        data = room.tobytes()[: struct.unpack("iL", got)[0]]
        for at in range(0, len(data) - _IFREQ + 1, _IFREQ):
            name = data[at : at + 16].partition(b"\0")[0].decode("utf-8", "replace").partition(":")[0]
            yield Found(name, IPv4Address(data[at + 20 : at + 24]), _is_bridge(name))


def _v6(table: Path = Path("/proc/net/if_inet6")) -> Iterable[Found]:
    """The IPv6 addresses that last: not the temporary ones, with which a machine hides."""
    try:
        lines = table.read_text().splitlines()
    except OSError:  # a machine without IPv6
        return
    for line in lines:
        digits, _, _, _, flags, name = line.split()
        if not int(flags, 16) & _UNFIT:
            yield Found(name, IPv6Address(int(digits, 16)), _is_bridge(name))


def _is_bridge(name: str) -> bool:
    return Path("/sys/class/net", name, "bridge").is_dir()
