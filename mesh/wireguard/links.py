"""Network interfaces, addresses and namespaces by netlink, in the network namespace that this was opened in."""

import asyncio
import errno
from ipaddress import IPv6Interface
from types import TracebackType
from typing import Final, Self

from pyroute2 import AsyncIPRoute  # type: ignore[import-untyped]
from pyroute2.netlink.exceptions import NetlinkError  # type: ignore[import-untyped]

from mesh.wireguard.base import Absent, WireGuardError

NODAD: Final = 0x02  # no other has this address, so nobody needs to be asked for a second
ABSENT: Final = (errno.EOPNOTSUPP, errno.ENOTSUP)


class Links:
    """A context manager: from entering on it stays in the network namespace of then, wherever the process goes."""

    def __init__(self) -> None:
        self._ip = AsyncIPRoute()
        self._lock = asyncio.Lock()  # two dumps at once are an error

    async def __aenter__(self) -> Self:
        await self._ip.__aenter__()
        await (
            self._ip.setup_endpoint()
        )  # else its socket is made with the first request, wherever we are by then
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._ip.__aexit__(kind, error, trace)

    async def index(self, name: str) -> int:
        """The interface's number, 0 where there is none."""
        async with self._lock:
            found = await self._ip.link_lookup(ifname=name)
        return found[0] if found else 0

    async def kind(self, name: str) -> str:
        """Which kind of interface it is, empty where there is none or it is a plain one."""
        number = await self.index(name)
        if not number:
            return ""
        async with self._lock:
            for link in await self._ip.link("get", index=number):
                info = link.get_attr("IFLA_LINKINFO")
                return (info.get_attr("IFLA_INFO_KIND") if info else "") or ""
        return ""

    async def add_wireguard(self, name: str, mtu: int, namespace: int | None) -> None:
        """Make a WireGuard interface in the namespace of this descriptor; its UDP socket is in ours.

        Raises Absent where the kernel has no WireGuard.
        """
        where = {} if namespace is None else {"net_ns_fd": namespace}
        try:
            async with self._lock:
                await self._ip.link("add", ifname=name, kind="wireguard", mtu=mtu, **where)
        except NetlinkError as error:
            if error.code in ABSENT:
                raise Absent("this kernel has no WireGuard", error.code) from error
            raise _translated(f"the interface {name} cannot be made", error) from error

    async def move(self, name: str, namespace: int) -> None:
        """Put an interface into the network namespace of this descriptor; its UDP socket stays where it is."""
        await self._set(name, "moved", net_ns_fd=namespace)

    async def up(self, name: str) -> None:
        await self._set(name, "brought up", state="up")

    async def resize(self, name: str, mtu: int) -> None:
        await self._set(name, f"given an MTU of {mtu}", mtu=mtu)

    async def _set(self, name: str, what: str, **change: object) -> None:
        try:
            number = await self.index(name)
            async with self._lock:
                await self._ip.link("set", index=number, **change)
        except NetlinkError as error:
            raise _translated(f"the interface {name} cannot be {what}", error) from error

    async def address(self, name: str, address: IPv6Interface) -> None:
        """Give the interface this address, and a route to the address's network; well where it has it."""
        number = await self.index(name)
        length = address.network.prefixlen
        try:
            async with self._lock:
                await self._ip.addr(
                    "add", index=number, address=str(address.ip), prefixlen=length, flags=NODAD
                )
        except NetlinkError as error:
            if error.code != errno.EEXIST:
                raise _translated(f"{name} cannot have the address {address}", error) from error

    async def routed(self) -> bool:
        """Whether there is a default route."""
        async with self._lock:
            return any([not route["dst_len"] async for route in await self._ip.route("dump")])

    async def remove(self, name: str) -> None:
        """Well where there is none."""
        try:
            if number := await self.index(name):
                async with self._lock:
                    await self._ip.link("del", index=number)
        except NetlinkError as error:
            if error.code != errno.ENODEV:
                raise _translated(f"the interface {name} cannot be removed", error) from error


def _translated(what: str, error: NetlinkError) -> WireGuardError:
    why = error.args[1] if len(error.args) > 1 else f"error {error.code}"
    if error.code == errno.EPERM:
        why = "not permitted: it takes CAP_NET_ADMIN"
    return WireGuardError(f"{what}: {why}", error.code)
