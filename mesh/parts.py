"""What a hub is made with and what it says of itself: the shapes of its daemon and its interface, options, status."""

from collections.abc import Callable, Container, Iterable
from contextlib import AbstractAsyncContextManager
from socket import socket
from typing import Literal, Protocol

from msgspec import Struct

from mesh import expiry
from mesh.nodes import Grant
from mesh.plan import Actual, Wanted
from mesh.relay import Counts
from mesh.wheelhouse import Wheel, Wheelhouse

Phase = Literal["off", "idle", "starting", "failing", "up"]


class Down(Exception):
    """The mesh is not up, or cannot do this; the message says why and what would change that."""


class Fault(Exception):
    """The interface cannot be brought up, or has ended; the message says why. `off`: no try will do better."""

    def __init__(self, message: str, off: bool = False) -> None:
        super().__init__(message)
        self.off = off


class Interface(Protocol):
    """The harness's end of the tunnels, while a context is open. Every call raises Fault."""

    @property
    def said(self) -> str:
        """Which WireGuard it is and how it is made here, in a sentence."""
        ...

    async def keep(self, wanted: Wanted) -> None:
        """Have the peers be these from now on; done when they are."""
        ...

    async def state(self) -> Actual:
        """What the interface is now."""
        ...

    async def listen(self, port: int, moved: Callable[[socket], None]) -> socket:
        """A socket that listens for TCP at our address inside the mesh.

        `moved`: gets another one where this one's network namespace was lost.
        """
        ...


class Goods(Struct, frozen=True):
    """The daemon's own wheel, and those of its dependencies; None where there are none. `why` there is no own."""

    wheel: Wheel | None = None
    wheelhouse: Wheelhouse | None = None
    why: str = ""


class Daemon(Protocol):
    """What the mesh asks of the daemon that it is of."""

    def names(self) -> Iterable[str]:
        """The names of workers there are already, of the mesh or not. Called in threads."""
        ...

    def awaited(self) -> Container[str]:
        """The names of workers whose runs are waited for."""
        ...

    def cut(self, name: str) -> None:
        """End the connection of a worker that was removed, and what waits for it."""
        ...

    def changed(self) -> None:
        """What `members` or `status` say is another now."""
        ...

    def admitting(self, sock: socket) -> AbstractAsyncContextManager[None]:
        """Serve the workers that dial at this socket, while the context is open; it is closed then."""
        ...

    async def goods(self) -> Goods:
        """What there is to install for machines that join."""
        ...


class Options(Struct, frozen=True, kw_only=True):
    """How the mesh is set up. Endpoints are HOST or HOST:PORT; empty ones are this machine's own addresses.

    Times in seconds: `quiet` without a handshake and `still` without a byte until a node is quiet, `gone` until an
    ephemeral one that is quiet is removed.
    """

    name: str
    port: int = 51820
    join_listen: tuple[str, ...] = ("[::]:4601",)
    control: int = 4602
    endpoints: tuple[str, ...] = ()
    join_endpoints: tuple[str, ...] = ()
    mtu: int = 1420
    relay: bool = True
    quiet: float = expiry.HANDSHAKE
    still: float = expiry.BYTES
    gone: float = expiry.GONE
    enabled: bool = True


class Issued(Struct, frozen=True, kw_only=True):
    """A token that was made. `text` is nowhere else, but in `line`, which makes a machine a worker in any shell."""

    text: str
    line: str
    grant: Grant

    def __repr__(self) -> str:
        return f"Issued(grant={self.grant!r})"


class Status(Struct, frozen=True, kw_only=True):
    """How the mesh stands. `why`: what is not as it should be. `join`: where the join listener is, with its ports."""

    phase: Phase
    name: str
    why: str = ""
    said: str = ""
    address: str = ""
    port: int = 0
    control: int = 0
    join: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    nodes: int = 0
    relay: Counts | None = None
