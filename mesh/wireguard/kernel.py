"""The kernel's WireGuard: keys and peers over generic netlink, in the network namespace this was opened in."""

import asyncio
import errno
from base64 import b64decode, b64encode
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv6Network, ip_network
from socket import AF_INET6
from types import TracebackType
from typing import Any, Final, Self, TypeVar, assert_never

import msgspec
from pyroute2 import AsyncWireGuard  # type: ignore[import-untyped]
from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST  # type: ignore[import-untyped]
from pyroute2.netlink.exceptions import NetlinkError  # type: ignore[import-untyped]
from pyroute2.netlink.generic.wireguard import WG_CMD_SET_DEVICE, wgmsg  # type: ignore[import-untyped]

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
from mesh.wireguard.base import Absent, WireGuardError

AT_ONCE: Final = 32  # peers of one message: it has to fit a page or two of the kernel's
ALLOWED_AT_ONCE: Final = 200  # allowed IPs of one message, for the same reason

_REMOVE: Final = 1
_REPLACE_ALLOWED: Final = 2
_UPDATE_ONLY: Final = 4
_NONE: Final = bytes(KEY)  # the preshared key that is none

T = TypeVar("T")
Attributes = list[list[Any]]


class Kernel:
    """One interface. Requests go through pyroute2's sequence numbers, so an answer is always its request's own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._netlink = AsyncWireGuard()
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        try:
            await self._netlink.setup_endpoint()
        except NetlinkError as error:
            raise Absent("this kernel has no WireGuard", error.code) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self._netlink.close()

    async def ended(self) -> str:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return] # it never does

    async def listen(self, private: bytes, port: int) -> None:
        try:
            await self._set(["WGDEVICE_A_PRIVATE_KEY", b64encode(private)], ["WGDEVICE_A_LISTEN_PORT", port])
        except WireGuardError as error:
            if error.number == errno.EADDRINUSE:
                raise port_taken(port) from error
            raise

    async def apply(self, changes: Sequence[Change]) -> None:
        batch: list[dict[str, Attributes]] = []
        size = 0
        for change in changes:
            for attributes, allowed in _messages(change):
                if len(batch) == AT_ONCE or size + allowed > ALLOWED_AT_ONCE:
                    await self._set(["WGDEVICE_A_PEERS", batch])
                    batch, size = [], 0
                batch.append({"attrs": attributes})
                size += allowed
        if batch:
            await self._set(["WGDEVICE_A_PEERS", batch])

    async def _set(self, *attributes: list[Any]) -> None:
        """One message. Shielded: what is sent is waited for, or the next caller would read this one's answer."""
        message = wgmsg()
        message["cmd"] = WG_CMD_SET_DEVICE
        message["version"] = 1
        message["attrs"] = [["WGDEVICE_A_IFNAME", self._name], *attributes]
        await _whole(self._request(message))

    async def _request(self, message: Any) -> None:
        try:
            async with self._lock:
                flags = NLM_F_REQUEST | NLM_F_ACK
                answers = await self._netlink.nlm_request(
                    message, msg_type=self._netlink.prid, msg_flags=flags
                )
                async for _ in answers:
                    pass
        except NetlinkError as error:
            raise self._translated("changed", error) from error

    async def read(self) -> Actual:
        return merged(await _whole(self._dump()))

    async def _dump(self) -> list[Any]:
        try:
            async with self._lock:
                return [message async for message in await self._netlink.info(self._name)]
        except NetlinkError as error:
            raise self._translated("read", error) from error

    def _translated(self, what: str, error: NetlinkError) -> WireGuardError:
        why = error.args[1] if len(error.args) > 1 else f"error {error.code}"
        if error.code == errno.EPERM:
            why = "not permitted: it takes CAP_NET_ADMIN"
        return WireGuardError(f"WireGuard on {self._name} cannot be {what}: {why}", error.code)


def _messages(change: Change) -> Iterator[tuple[Attributes, int]]:
    """A change as attributes of its peer, in as many pieces as its allowed IPs take, and how many of those each has."""
    match change:
        case AddPeer(peer):
            own: Attributes = []
            if peer.preshared:
                own.append(["WGPEER_A_PRESHARED_KEY", b64encode(peer.preshared)])
            if peer.endpoint is not None:
                own.append(_endpoint(peer.endpoint))
            if peer.keepalive:
                own.append(_keepalive(peer.keepalive))
            yield from _allowing(peer.key, own, peer.allowed, _REPLACE_ALLOWED, 0)
        case RemovePeer(key):
            yield _peer(key, _REMOVE | _UPDATE_ONLY), 0
        case SetAllowed(key, allowed, only):
            yield from _allowing(key, [], allowed, _REPLACE_ALLOWED if only else 0, _UPDATE_ONLY)
        case SetPreshared(key, preshared):
            yield [*_peer(key), ["WGPEER_A_PRESHARED_KEY", b64encode(preshared or _NONE)]], 0
        case SetEndpoint(key, endpoint):
            yield [*_peer(key), _endpoint(endpoint)], 0
        case SetKeepalive(key, keepalive):
            yield [*_peer(key), _keepalive(keepalive)], 0
        case _:
            assert_never(change)


def _peer(key: bytes, flags: int = _UPDATE_ONLY) -> Attributes:
    return [["WGPEER_A_PUBLIC_KEY", b64encode(key)], ["WGPEER_A_FLAGS", flags]]


def _endpoint(endpoint: Endpoint) -> list[Any]:
    return ["WGPEER_A_ENDPOINT", {"addr": endpoint.host, "port": endpoint.port}]


def _keepalive(seconds: int) -> list[Any]:
    return ["WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL", seconds]


def _allowing(
    key: bytes, own: Attributes, allowed: Sequence[IPv6Network], first: int, known: int
) -> Iterator[tuple[Attributes, int]]:
    """The pieces that give a peer `own` and its allowed IPs; `first` are the first piece's flags beside `known`."""
    for at in range(0, max(1, len(allowed)), ALLOWED_AT_ONCE):
        networks = allowed[at : at + ALLOWED_AT_ONCE]
        flags = first | known if at == 0 else _UPDATE_ONLY
        addresses = [
            {
                "attrs": [
                    ["WGALLOWEDIP_A_FAMILY", AF_INET6],
                    ["WGALLOWEDIP_A_IPADDR", network.network_address.packed],
                    ["WGALLOWEDIP_A_CIDR_MASK", network.prefixlen],
                ]
            }
            for network in networks
        ]
        yield (
            [*_peer(key, flags), *(own if at == 0 else ()), ["WGPEER_A_ALLOWEDIPS", addresses]],
            len(networks),
        )


def merged(messages: Iterable[Any]) -> Actual:
    """The interface from a dump's messages: many peers, and one peer with many allowed IPs, come in several.

    The private key is in them; it goes no further.
    """
    public, port, peers = b"", 0, dict[bytes, PeerState]()
    for message in messages:
        public = b64decode(message.get("public_key") or b"") or public
        port = message.get("listen_port") or port
        for entry in message.get("peers") or ():
            key = b64decode(entry.get("public_key"))
            allowed = frozenset(_networks(entry.get("allowedips") or ()))
            if key in peers:
                peers[key] = msgspec.structs.replace(peers[key], allowed=peers[key].allowed | allowed)
            else:
                peers[key] = _state(key, allowed, entry)
    return Actual(public=public, port=port, peers=peers)


def _networks(entries: Iterable[Any]) -> Iterator[IPv6Network]:
    for entry in entries:
        network = ip_network(entry["addr"])
        if isinstance(network, IPv6Network):
            yield network


def _state(key: bytes, allowed: frozenset[IPv6Network], entry: Any) -> PeerState:
    preshared = b64decode(entry.get("preshared_key") or b"")
    endpoint = entry.get("endpoint")
    handshake = entry.get("last_handshake_time") or {"tv_sec": 0, "tv_nsec": 0}
    return PeerState(
        key=key,
        allowed=allowed,
        preshared=b"" if preshared == _NONE else preshared,
        endpoint=Endpoint(endpoint["addr"], endpoint["port"]) if endpoint else None,
        keepalive=entry.get("persistent_keepalive_interval") or 0,
        handshake=handshake["tv_sec"] + handshake["tv_nsec"] / 1e9,
        rx=entry.get("rx_bytes") or 0,
        tx=entry.get("tx_bytes") or 0,
    )


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; when the caller is cancelled it still runs to its end before that takes effect."""
    task = asyncio.create_task(work, name="wireguard request")  # noqa: TID251 - owned here, awaited to its end
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # looked at, so that nobody complains
        raise


def port_taken(port: int) -> WireGuardError:
    return WireGuardError(
        f"UDP port {port} is another program's: end that one, or set another `port` under [mesh]",
        errno.EADDRINUSE,
    )
