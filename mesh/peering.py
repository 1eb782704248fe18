"""The hub's peers: the registry's nodes on the interface, what is heard of each, and who of them has to go."""

import asyncio
from collections.abc import Callable, Container, Sequence
from ipaddress import AddressValueError, IPv6Address

from mesh import address, expiry, members
from mesh.members import Member, Via, Watch
from mesh.nodes import Node
from mesh.parts import Interface, Options
from mesh.plan import Actual, Wanted
from mesh.store import Store
from mesh.wanted import hub_wanted


class Peering:
    """Over all of the hub's interfaces; `interface` is the one that is up. `now`: seconds since the epoch."""

    def __init__(self, options: Options, now: Callable[[], float]) -> None:
        self._options = options
        self._now = now
        self._nodes: dict[int, Node] = {}
        self._actual: Actual | None = None
        self._watch = Watch()
        self._since = 0.0
        self._stale = False  # the interface may not have the peers of the registry
        self._turn = asyncio.Lock()  # changes of the peers, in the order of those of the registry
        self.interface: Interface | None = None

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def said(self) -> str:
        """How the interface is made, empty while none is up."""
        return "" if self.interface is None else self.interface.said

    def at(self, store: Store, host: str) -> Node | None:
        """The node that has this address inside the mesh."""
        try:
            number = address.number_of(store.network, IPv6Address(host.partition("%")[0]))
        except AddressValueError:
            return None
        return self._nodes.get(number) if number is not None else None

    def named(self, name: str) -> bool:
        """Whether there is a node of this name."""
        return any(node.name == name for node in self._nodes.values())

    def members(self, store: Store, relay: Via | None) -> tuple[Member, ...]:
        """Every node, as it stood at the last look."""
        peers = self._actual.peers if self._actual is not None else {}
        return members.members(self._nodes.values(), store.network, peers, relay)

    def begin(self, interface: Interface) -> None:
        """This interface is up from now on."""
        self.interface, self._watch, self._since = interface, Watch(), self._now()

    def end(self) -> None:
        """There is none."""
        self.interface, self._actual = None, None

    def forget(self, node: Node) -> None:
        """It was removed, whether or not the interface can be told."""
        self._nodes.pop(node.number, None)

    async def read(self, store: Store) -> Sequence[Node]:
        """Know the registry's nodes; they. Raises RegistryError."""
        nodes = await asyncio.to_thread(store.registry.nodes)
        self._nodes = {node.number: node for node in nodes}
        return nodes

    def wanted(self, store: Store, nodes: Sequence[Node]) -> Wanted:
        """The interface with these peers."""
        return hub_wanted(nodes, store.keys.wireguard, self._options.port, self._options.mtu)

    async def sync(self, store: Store) -> None:
        """Have the interface's peers be the registry's nodes. Raises Fault, RegistryError."""
        async with self._turn:
            self._stale = True
            nodes = await self.read(store)
            if self.interface is not None:
                await self.interface.keep(self.wanted(store, nodes))
            self._stale = False

    async def begin_anew(self, store: Store, node: Node) -> None:
        """Have a node that gets nothing through be a new peer: WireGuard takes no handshake that is older than one that
        it has seen, so one that was made while the node's clock was ahead would keep it out until then.

        Raises Fault, RegistryError.
        """
        interface, actual = self.interface, self._actual
        peer = actual.peers.get(node.key) if actual is not None else None
        if not interface or not peer or not expiry.stale(peer.handshake, self._now()):
            return
        async with self._turn:
            others = [each for each in self._nodes.values() if each.number != node.number]
            await interface.keep(self.wanted(store, others))
        await self.sync(store)

    async def look(self, store: Store) -> bool:
        """Look at the interface once; False where none is up. Raises Fault, RegistryError."""
        if self.interface is None:
            return False
        if self._stale:
            await self.sync(store)
        self._actual = await self.interface.state()
        return True

    async def expired(self, store: Store, awaited: Container[str]) -> list[Node]:
        """Keep who is quiet by the last look; the ephemeral nodes that were for too long. Raises RegistryError.

        `awaited`: names of workers whose runs are waited for.
        """
        if self._actual is None:
            return []
        options, now, nodes = self._options, self._now(), self._nodes.values()
        heard = self._watch.heard(nodes, self._actual, now)
        if changes := expiry.noted(nodes, heard, self._since, now, options.quiet, options.still):
            await asyncio.to_thread(store.registry.note, changes)
            await self.read(store)
        return expiry.expired(self._nodes.values(), awaited, self._since, now, options.gone)
