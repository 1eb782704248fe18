"""Sockets of the mesh, and an echo, asked of a helper: it opens them inside and hands them over."""

import socket
from collections.abc import Callable
from ipaddress import IPv6Address

from mesh import verbs
from mesh.channel import close_all
from mesh.handle import Handle, HelperError


class Listener:
    """A port of the mesh; `moved` gets a new socket when the old one's namespace is lost."""

    def __init__(self, port: int, moved: Callable[[socket.socket], None]) -> None:
        self.port = port
        self.moved = moved

    async def open(self, handle: Handle) -> socket.socket:
        """A socket that listens, always at the same port. Raises HelperError and OSError."""
        sock = await _handed(handle, verbs.Listen(id=handle.id(), port=self.port))
        self.port = sock.getsockname()[1]
        return sock


async def dial(handle: Handle, host: IPv6Address, port: int, seconds: float) -> socket.socket:
    """A connected TCP socket. Raises HelperError and OSError."""
    return await _handed(handle, verbs.Dial(id=handle.id(), host=host, port=port, timeout=seconds))


async def echo(handle: Handle, host: IPv6Address, size: int, seconds: float) -> bool:
    """Whether a packet of `size` bytes comes through to there and back. Raises HelperError."""
    answers, _ = await handle.ask(verbs.Echo(id=handle.id(), host=host, size=size, timeout=seconds))
    last = answers[-1]
    return isinstance(last, verbs.Echoed) and last.came


async def _handed(handle: Handle, request: verbs.Listen | verbs.Dial) -> socket.socket:
    try:
        _, fds = await handle.ask(request)
    except HelperError as error:
        if error.number:
            raise OSError(error.number, str(error)) from error
        raise
    sock = socket.socket(fileno=fds[0])
    close_all(fds[1:])
    sock.setblocking(False)
    return sock
