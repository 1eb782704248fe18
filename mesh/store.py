"""What a hub has on disk, keys and registry: opened when it is first asked for, made when it is first needed."""

import asyncio
from collections.abc import Callable, Iterable
from ipaddress import IPv6Network
from pathlib import Path

from msgspec import Struct

from mesh import address, keys, registry
from mesh.join import Hub, Offer
from mesh.keys import HubKeys
from mesh.registry import Registry


class Store(Struct, frozen=True):
    """What is on disk, opened; `hub` lets machines join, `network` is the mesh's."""

    keys: HubKeys
    registry: Registry
    hub: Hub
    network: IPv6Network

    @property
    def address(self) -> str:
        """The harness's own, inside the mesh."""
        return str(address.address(self.network, address.HARNESS))

    def lets_join(self, now: float) -> bool:
        """Whether there is a token that lets a machine join. Blocks. Raises RegistryError."""
        return any(grant.good(now) and grant.uses for grant in self.registry.grants())


class Disk:
    """The store of a data folder. `offer`: what every machine that joins is told; `now`: seconds since the epoch.

    `taken`: names that none of them gets. It and `offer` are called in threads.
    """

    def __init__(
        self,
        data: Path,
        offer: Callable[[], Offer],
        now: Callable[[], float],
        taken: Callable[[], Iterable[str]],
    ) -> None:
        self._taken = taken
        self._data = data
        self._offer = offer
        self._now = now
        self._turn = asyncio.Lock()
        self.opened: Store | None = None

    async def open(self) -> Store:
        """The store, made where there is none. Raises RegistryError, PrivateFileError."""
        async with self._turn:
            if self.opened is None:
                self.opened = await asyncio.to_thread(self._open)
        return self.opened

    async def open_if_made(self) -> Store | None:
        """The store, None where nobody has ever made a token. Raises RegistryError, PrivateFileError."""
        if self.opened is None and not await asyncio.to_thread((self._data / registry.FILE).exists):
            return None
        return await self.open()

    async def close(self) -> None:
        """Let another process open it; what is asked of it afterwards raises RegistryError."""
        if self.opened is not None:
            await asyncio.to_thread(self.opened.registry.close)

    def _open(self) -> Store:
        made = keys.hub(self._data / keys.FOLDER)
        opened = Registry(self._data / registry.FILE, made.wireguard.public, self._now, self._taken)
        hub = Hub(made, opened, self._offer, self._now)
        return Store(made, opened, hub, address.prefix(made.wireguard.public))
