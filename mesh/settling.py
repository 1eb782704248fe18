"""Have an interface be as wanted, by whichever helper keeps it now: its peers and its MTU."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from mesh import plan as planning
from mesh import verbs
from mesh.channel import MAX
from mesh.handle import Handle
from mesh.plan import Actual, Change, Endpoint, Peer, PeerState, SetEndpoint, SetKeepalive, Wanted

GREETING: Final = 60  # seconds: any keepalive that is set makes WireGuard say something at once
ROOM: Final = MAX - 1024  # bytes of the changes of one message


class Settling:
    """One interface's, over all of its helpers; all of it raises HelperError. Changes wait for each other."""

    def __init__(self, wanted: Wanted) -> None:
        planning.check(wanted.peers.values())
        self.wanted = wanted
        self.port = wanted.port  # the UDP port that is, once there is one
        self.mtu = wanted.mtu  # that is
        self._known: dict[bytes, PeerState] | None = None  # what the peers are; None: not known
        self._endpoints: dict[bytes, Endpoint] = {}  # where the peers were when last somebody looked
        self._writing = asyncio.Lock()

    async def take_up(self, handle: Handle) -> None:
        """Have the interface of a helper that is new be as wanted."""
        async with self._writing:
            seen = self._endpoints
            actual = await self.read(handle)
            self.port = actual.port
            self._known = actual.peers
            if seen and not actual.peers:
                await self._wake(handle, seen)
            await self._reconcile(handle)

    async def settle(self, handle: Handle) -> None:
        """Have it as wanted now."""
        async with self._writing:
            await self._resize(handle, self.wanted.mtu)
            await self._reconcile(handle)

    async def point(self, handle: Handle, key: bytes, endpoint: Endpoint) -> None:
        """Have a peer be sent to there, and say something to it at once."""
        async with self._writing:
            if (peer := self.wanted.peers.get(key)) is None:
                return
            known = self._known if self._known is not None else (await self.read(handle)).peers
            # WireGuard says something when a keepalive is set where there was none. The endpoint is set first: any
            # change may set off a handshake that is due, and to the old one it would be in vain, and the next 5 s on.
            changes: list[Change] = [
                SetEndpoint(key, endpoint),
                SetKeepalive(key, 0),
                SetKeepalive(key, peer.keepalive),
            ]
            await self._change(handle, changes, known)

    async def resize(self, handle: Handle, mtu: int) -> None:
        """Set the MTU, in bytes."""
        async with self._writing:
            self.wanted = msgspec.structs.replace(self.wanted, mtu=mtu)
            await self._resize(handle, mtu)

    async def read(self, handle: Handle) -> Actual:
        """What the interface is now."""
        answers, _ = await handle.ask(verbs.Read(id=handle.id()))
        last = answers[-1]
        assert isinstance(last, verbs.Interface)
        peers = {peer.key: peer for page in answers if isinstance(page, verbs.Page) for peer in page.peers}
        self._endpoints = {key: peer.endpoint for key, peer in peers.items() if peer.endpoint is not None}
        return Actual(public=last.public, port=last.port, peers=peers)

    async def _wake(self, handle: Handle, endpoints: Mapping[bytes, Endpoint]) -> None:
        """After a loss of all sessions, greet the peers where they were last: else they would take 15 s to notice."""
        peers = {
            key: msgspec.structs.replace(peer, endpoint=endpoints[key], keepalive=peer.keepalive or GREETING)
            for key, peer in self.wanted.peers.items()
            if key in endpoints
        }
        await self._change(handle, planning.plan(peers, {}), {})

    async def _reconcile(self, handle: Handle) -> None:
        known = (await self.read(handle)).peers if self._known is None else self._known
        await self._change(handle, planning.plan(_spoken_to(self.wanted.peers, known), known), known)

    async def _change(self, handle: Handle, changes: Sequence[Change], known: dict[bytes, PeerState]) -> None:
        self._known = None  # until it is done
        for some in _fitting(changes):
            await handle.ask(verbs.Apply(id=handle.id(), changes=some))
        self._known = planning.applied(known, changes)

    async def _resize(self, handle: Handle, mtu: int) -> None:
        if mtu != self.mtu:
            await handle.ask(verbs.Resize(id=handle.id(), mtu=mtu))
            self.mtu = mtu


def _spoken_to(wanted: Mapping[bytes, Peer], known: Mapping[bytes, PeerState]) -> dict[bytes, Peer]:
    """The peers, without a keepalive for those that nothing can be sent to yet.

    WireGuard would begin a handshake that goes nowhere, and no other for 5 s, whatever endpoint it gets meanwhile.
    """
    return {
        key: msgspec.structs.replace(peer, keepalive=0)
        if peer.keepalive and peer.endpoint is None and (key not in known or known[key].endpoint is None)
        else peer
        for key, peer in wanted.items()
    }


def _fitting(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """The changes in messages that are not too long."""
    some: list[Change] = []
    size = 0
    for change in changes:
        length = len(verbs.encode(verbs.Apply(id=0, changes=[change])))
        if some and size + length > ROOM:
            yield some
            some, size = [], 0
        some.append(change)
        size += length
    if some:
        yield some
