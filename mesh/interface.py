"""The hub's interface: a node that listens, its errors those that the hub knows. Loads the node when one is needed."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

import msgspec

from mesh.parts import Fault, Interface
from mesh.plan import Actual, Clash, Wanted

if TYPE_CHECKING:
    from mesh.node import Node


class _Kept:
    """A node that is up."""

    def __init__(self, node: "Node", errors: tuple[type[Exception], ...]) -> None:
        self._node = node
        self._errors = errors

    @property
    def said(self) -> str:
        return self._node.said

    async def keep(self, wanted: Wanted) -> None:
        try:
            await self._node.keep(wanted)
        except self._errors as error:
            raise Fault(str(error)) from error

    async def state(self) -> Actual:
        try:
            return await self._node.state()
        except self._errors as error:
            raise Fault(str(error)) from error

    async def listen(self, port: int, moved: Callable[[socket], None]) -> socket:
        try:
            return await self._node.listen(port, moved)
        except self._errors as error:
            raise Fault(f"nothing can listen at TCP port {port} inside of the mesh: {error}") from error


async def examine(backend: str, port: int) -> tuple[bool, str]:
    """Whether there can be a mesh on this machine, and how it would be made or why it cannot, in a sentence."""
    from mesh.handle import HelperError
    from mesh.handle import examine as ask
    from mesh.picking import Backend, Off

    try:
        found = await ask(msgspec.convert(backend, Backend), port)
    except HelperError as error:
        return False, str(error)
    return not isinstance(found, Off), found.said


@asynccontextmanager
async def opening(wanted: Wanted, folder: Path, backend: str) -> AsyncIterator[Interface]:
    """The interface, while the context is open; its logs and its lock are in `folder`. Raises Fault."""
    # A netlink library comes with these, which loads slowly.
    from mesh.node import MeshError, MeshOff, Node
    from mesh.picking import Backend

    node = Node(wanted, folder=folder, backend=msgspec.convert(backend, Backend), listens=True)
    try:
        await node.__aenter__()
    except MeshOff as error:
        raise Fault(str(error), off=True) from error
    except (MeshError, Clash) as error:
        raise Fault(str(error)) from error
    try:
        yield _Kept(node, (MeshError, Clash, OSError))
    finally:
        await node.__aexit__(None, None, None)
