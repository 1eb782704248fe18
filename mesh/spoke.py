"""A worker's interface for the wayfinder: the hub is its one peer; looked at, pointed at and measured by a node."""

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address
from typing import Final

from mesh.node import MeshError, Node
from mesh.plan import Endpoint, PeerState

TRIES: Final = 3  # echoes of a full packet before it counts as one that does not pass: any can be lost
SMALL: Final = 128  # bytes of an echo that passes everywhere
PATIENCE: Final = 1.0  # seconds for an echo


class Spoke:
    """`hub`: the harness's public key; `address`: its own in the mesh. Every method may raise OSError."""

    def __init__(self, node: Node, hub: bytes, address: IPv6Address) -> None:
        self._node = node
        self._hub = hub
        self._address = address

    async def look(self) -> PeerState:
        """The hub as WireGuard has it now."""
        with _as_oserror():
            state = await self._node.state()
        peer = state.peers.get(self._hub)
        if peer is None:
            raise OSError("the interface does not know the harness")
        return peer

    async def point(self, endpoint: Endpoint) -> None:
        """Set the hub's endpoint, and say something there at once."""
        with _as_oserror():
            await self._node.point(self._hub, endpoint)

    async def set_mtu(self, bytes: int) -> None:
        """Set the interface's MTU."""
        with _as_oserror():
            await self._node.resize(bytes)

    async def measure(self) -> bool:
        """Whether a packet as large as the MTU comes back from the hub; raises where nothing at all does."""
        with _as_oserror():
            for _ in range(TRIES):
                if await self._node.echo(self._address, self._node.mtu, PATIENCE):
                    return True
            if not await self._node.echo(self._address, SMALL, PATIENCE):
                raise OSError("the harness sends no echo")
        return False


@contextmanager
def _as_oserror() -> Iterator[None]:
    try:
        yield
    except MeshError as error:
        raise OSError(str(error)) from error
