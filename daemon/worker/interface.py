"""A member's interface while it is up: where it points, what its connections may carry, a handshake out of turn."""

import asyncio
import logging
import time
from contextlib import suppress
from typing import Final
from weakref import WeakSet

import msgspec

from mesh import address
from mesh.address import HARNESS
from mesh.identity import Membership
from mesh.node import MeshError, Node
from mesh.path import State
from mesh.plan import Endpoint, Wanted
from mesh.spoke import Spoke
from mesh.wayfinder import Wayfinder

GREET_EVERY: Final = (
    10.0  # seconds between two handshakes out of turn: what is lost meanwhile is another thing
)

log = logging.getLogger(__name__)


class Pointing(Spoke):
    """Says when there is somewhere to send to: what is dialled before is refused, or waits a second for nothing.

    Where full packets turn out not to pass it ends the connections: the harness's end has been told that they do, and
    only with another one is it told better.
    """

    def __init__(self, node: Node, membership: Membership) -> None:
        answer = membership.answer
        super().__init__(node, answer.hub, address.address(answer.prefix, HARNESS))
        self.pointed = asyncio.Event()
        self.connections: WeakSet[asyncio.StreamWriter] = WeakSet()
        self._passes = True

    async def point(self, endpoint: Endpoint) -> None:
        await super().point(endpoint)
        self.pointed.set()

    async def measure(self) -> bool:
        self._passes = await super().measure()
        return self._passes

    async def set_mtu(self, bytes: int) -> None:
        await super().set_mtu(bytes)
        if not self._passes:
            log.info("packets of more than %d bytes do not pass: connecting anew", bytes)
            for writer in self.connections:
                writer.transport.abort()
        self._passes = True


class Up:
    """The interface while it is up, as it was `wanted`."""

    def __init__(self, node: Node, wanted: Wanted, spoke: Pointing, finder: Wayfinder) -> None:
        self.node = node
        self.wanted = wanted
        self.spoke = spoke
        self.finder = finder
        self._greeted = 0.0

    async def greet_anew(self) -> None:
        """Begin a handshake now. A harness that was started again cannot read what we send, and says nothing.

        WireGuard would take 15 s without an answer to see it. Not while other ways are tried, each of which begins with
        one. Raises no error: the next dial tells what is wrong.
        """
        now, before = time.monotonic(), self.finder.path
        if self.finder.state is State.TRYING or now < self._greeted + GREET_EVERY:
            return
        self._greeted = now
        with suppress(MeshError, OSError):
            endpoint = (await self.spoke.look()).endpoint
            wanted = msgspec.structs.replace(self.wanted, mtu=self.node.mtu)
            await self.node.keep(msgspec.structs.replace(wanted, peers={}))
            await self.node.keep(wanted)
            if endpoint is not None and self.finder.path == before:
                await self.spoke.point(endpoint)
