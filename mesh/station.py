"""The helper's interface: made in a network namespace of its own, with its UDP socket where the helper was started."""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from ipaddress import IPv6Address
from pathlib import Path
from types import TracebackType
from typing import Final, Self, assert_never

import msgspec

from mesh import privilege, verbs, ways
from mesh.picking import Picked
from mesh.plan import AddPeer, Change, Endpoint, PeerState, SetEndpoint
from mesh.wireguard.base import Engine, WireGuardError
from mesh.wireguard.kernel import Kernel
from mesh.wireguard.links import Links
from mesh.wireguard.userspace import Userspace

BACKLOG: Final = 128  # connections that wait to be accepted
# What sending says where an echo cannot come: too long; the peer has no endpoint yet; no way to it.
NO_ECHO: Final = (errno.EMSGSIZE, errno.EDESTADDRREQ, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENOKEY)
FORWARDING: Final = Path("/proc/sys/net/ipv6/conf/all/forwarding")
# Of our own namespace, and of IPv6 too: 1 has TCP find by itself what a way takes that drops large packets in silence,
# some seconds after it began to. What nothing is lost of is as before.
PROBING: Final = Path("/proc/sys/net/ipv4/tcp_mtu_probing")
WAY_WAIT: Final = 10.0  # seconds for the way out to be there
LOOK_EVERY: Final = 0.02  # seconds between two looks

_ECHO_REQUEST: Final = 128
_ECHO_REPLY: Final = 129
_ICMP6_FILTER: Final = 1
_HEADERS: Final = 48  # bytes before an echo's own: IPv6 40, ICMPv6 8

Reply = tuple[verbs.Answer, Sequence[int]]


class Refusal(Exception):
    """What was asked cannot be done; the message goes to the node. `number`: the errno."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number = number


class Station:
    """A context manager. Entering makes the interface and gives up what rights it takes; leaving removes it.

    `fds`: the network namespace of a station that ended, to go on in, or none. Raises WireGuardError.
    """

    def __init__(self, start: verbs.Start, picked: Picked, up: verbs.Up, fds: Sequence[int]) -> None:
        self._start = start
        self._picked = picked
        self._up = up
        self._before = fds
        self._own: int | None = None
        self._stack = AsyncExitStack()
        self._engine: Engine
        self._links: Links
        self._echo: socket.socket
        self._sequence = 0
        self._outward: dict[Endpoint, Endpoint] = {}  # by how they are reached from where our UDP socket is

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            try:
                await self._make(stack)
            except OSError as error:
                raise WireGuardError(f"the interface cannot be made: {error}", error.errno or 0) from error
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _make(self, stack: AsyncExitStack) -> None:
        name = self._up.name
        root = os.geteuid() == 0 and not self._picked.way_out
        user = privilege.NOBODY if root else os.geteuid()
        async with Links() as outside:
            if self._picked.way_out:
                await _way_is_there(outside)
            userspace = (
                await self._start_process(stack, user) if self._picked.engine == "wireguard-go" else None
            )
            if not self._picked.way_out:
                self._own = self._enter(stack)
            self._links = links = await stack.enter_async_context(Links())
            await links.up("lo")
            if FORWARDING.read_text().strip() != "0":
                FORWARDING.write_text("0")
            with suppress(
                OSError
            ):  # not to be written in some containers: a lost connection has the MTU measured
                PROBING.write_text("1")
            if userspace is not None:
                self._engine = userspace
                if self._own is not None:
                    await outside.move(name, self._own)
            else:
                await self._kernel(stack, outside)
        await links.resize(name, self._up.mtu)
        await links.address(name, self._up.address)
        await links.up(name)
        await self._engine.listen(self._up.private, self._up.port)
        self._echo = stack.enter_context(_echo_socket())
        privilege.keep_only_net_admin(user, inherit=False)

    async def _start_process(self, stack: AsyncExitStack, user: int) -> Userspace:
        try:
            privilege.private_run(user)
            privilege.lend_tun(user)
        except OSError as error:
            raise WireGuardError(
                f"wireguard-go cannot be given a place of its own: {error.strerror}"
            ) from error

        def prepare() -> None:
            privilege.keep_only_net_admin(user, inherit=True)
            privilege.die_with_parent()

        engine = await Userspace.start(self._picked.program, self._up.name, Path(self._start.log), prepare)
        stack.push_async_callback(engine.close)
        return engine

    def _enter(self, stack: AsyncExitStack) -> int:
        """Go into a network namespace of our own: that of the station before us, or a new one."""
        try:
            if self._before:
                here, given = os.stat("/proc/self/ns/net"), os.fstat(self._before[0])
                if (here.st_dev, here.st_ino) == (given.st_dev, given.st_ino):  # whoever asks may not be root
                    raise WireGuardError("the namespace to go on in is not the mesh's own", errno.EPERM)
                privilege.enter(self._before[0])
            else:
                privilege.unshare(privilege.NEWNET)
        except OSError as error:
            raise WireGuardError(f"no network namespace: {error.strerror}", error.errno or 0) from error
        own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, own)
        return own

    async def _kernel(self, stack: AsyncExitStack, outside: Links) -> None:
        name = self._up.name
        if (
            await self._links.kind(name) != "wireguard"
        ):  # else it is of the station before us, with its sessions
            await self._links.remove(name)
            await outside.add_wireguard(name, self._up.mtu, self._own)
        stack.push_async_callback(self._links.remove, name)
        self._engine = await stack.enter_async_context(Kernel(name))

    def ready(self, id: int) -> verbs.Ready:
        return verbs.Ready(id=id, pid=os.getpid(), engine=self._picked.engine, said=self._picked.said)

    def namespaces(self) -> list[int]:
        """The network namespace, where another helper could go on in it."""
        return [] if self._own is None else [self._own]

    async def ended(self) -> str:
        """Wait until WireGuard ends by itself; why."""
        return await self._engine.ended()

    async def answers(self, request: verbs.Request) -> AsyncIterator[Reply]:
        """What is answered, with the descriptors that go along, which are then the caller's to close.

        Raises Refusal, WireGuardError and OSError.
        """
        match request:
            case verbs.Apply(id=id, changes=changes):
                await self._engine.apply([self._inward(change) for change in changes])
                yield verbs.Done(id=id), ()
            case verbs.Read(id=id):
                actual = await self._engine.read()
                peers = [self._outer(peer) for peer in actual.peers.values()]
                for at in range(0, len(peers), verbs.PAGE):
                    yield verbs.Page(id=id, peers=peers[at : at + verbs.PAGE]), ()
                yield verbs.Interface(id=id, public=actual.public, port=actual.port), ()
            case verbs.Listen(id=id, port=port):
                yield verbs.Given(id=id), [self._listen(port)]
            case verbs.Dial(id=id, host=host, port=port, timeout=timeout):
                yield verbs.Given(id=id), [await _dial(host, port, timeout)]
            case verbs.Echo(id=id, host=host, size=size, timeout=timeout):
                yield verbs.Echoed(id=id, came=await self._echoed(host, size, timeout)), ()
            case verbs.Resize(id=id, mtu=mtu):
                await self._links.resize(self._up.name, mtu)
                yield verbs.Done(id=id), ()
            case verbs.Up() | verbs.Down():
                raise Refusal(f"{type(request).__name__} is not asked while it is up")
            case _:
                assert_never(request)

    def _inward(self, change: Change) -> Change:
        """The change with its endpoint as it is reached from where our UDP socket is."""
        match change:
            case SetEndpoint(key, endpoint):
                return SetEndpoint(key, self._inner(endpoint))
            case AddPeer(peer) if peer.endpoint is not None:
                return AddPeer(msgspec.structs.replace(peer, endpoint=self._inner(peer.endpoint)))
            case _:
                return change

    def _inner(self, endpoint: Endpoint) -> Endpoint:
        inner = ways.inward(endpoint, self._picked.way_out)
        if inner != endpoint:
            self._outward[inner] = endpoint
        return inner

    def _outer(self, peer: PeerState) -> PeerState:
        outer = self._outward.get(peer.endpoint) if peer.endpoint is not None else None
        return peer if outer is None else msgspec.structs.replace(peer, endpoint=outer)

    def _listen(self, port: int) -> int:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((str(self._up.address.ip), port))
            sock.listen(BACKLOG)
            return sock.detach()

    async def _echoed(self, host: IPv6Address, size: int, seconds: float) -> bool:
        self._sequence = self._sequence % 0xFFFF + 1
        head = struct.pack("!BxHHH", _ECHO_REQUEST, 0, os.getpid() & 0xFFFF, self._sequence)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                await loop.sock_sendto(self._echo, head + bytes(size - _HEADERS), (str(host), 0))
                while True:
                    got, source = await loop.sock_recvfrom(self._echo, 65536)
                    if got[0] == _ECHO_REPLY and got[4:8] == head[4:8] and IPv6Address(source[0]) == host:
                        return len(got) == size - _HEADERS + len(head)
        except TimeoutError:
            return False
        except OSError as error:
            if error.errno in NO_ECHO:
                return False
            raise


def _echo_socket() -> socket.socket:
    """For echoes; made while there is the right to, and deaf to all but replies."""
    sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.IPPROTO_ICMPV6)
    block = [0xFFFFFFFF] * 8
    block[_ECHO_REPLY // 32] &= ~(1 << _ECHO_REPLY % 32) & 0xFFFFFFFF
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DONTFRAG, 1)
    sock.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, struct.pack("=8I", *block))
    return sock


async def _dial(host: IPv6Address, port: int, seconds: float) -> int:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().sock_connect(sock, (str(host), port))
        except TimeoutError:
            raise Refusal(f"no answer from {host} within {seconds:g} s", errno.ETIMEDOUT) from None
        return sock.detach()


async def _way_is_there(links: Links) -> None:
    """Wait until the way out has made its interface."""
    try:
        async with asyncio.timeout(WAY_WAIT):
            while not await links.routed():  # noqa: ASYNC110 - another process's doing
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        raise WireGuardError("the way out of the user namespace made no route") from None
