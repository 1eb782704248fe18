"""Messages with file descriptors between two processes, over a SEQPACKET socket: each whole or not at all."""

import array
import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

MAX: Final = 64 << 10  # bytes of one message; a socket buffer of the smallest size that systems have takes it
MAX_FDS: Final = 4  # descriptors beside one message
_ROOM: Final = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)


class Closed(Exception):
    """The other end is gone, or said what cannot be read."""


class Channel:
    """One end. Descriptors that are sent stay the sender's; those received are the receiver's to close."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._sending = asyncio.Lock()

    @classmethod
    def pair(cls) -> tuple[Self, socket.socket]:
        """Our end and the other process's, which it is to inherit."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), theirs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._sock)
            loop.remove_writer(self._sock)
            self._sock.close()

    async def send(self, body: bytes, fds: Iterable[int] = ()) -> None:
        """Send one message. Raises Closed, and ValueError where it is empty or too long."""
        if not 0 < len(body) <= MAX:
            raise ValueError(f"a message of {len(body)} bytes: between 1 and {MAX} can be sent")
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        loop = asyncio.get_running_loop()
        async with self._sending:
            while True:
                try:
                    self._sock.sendmsg([body], control if control[0][2] else [])
                    return
                except BlockingIOError:
                    await _when(self._sock, loop.add_writer, loop.remove_writer)
                except OSError as error:
                    raise Closed("the other end is gone") from error

    async def receive(self) -> tuple[bytes, list[int]]:
        """The next message and its descriptors. Raises Closed."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return self._taken()
            except BlockingIOError:
                await _when(self._sock, loop.add_reader, loop.remove_reader)
            except ConnectionResetError:
                continue  # it is gone and has not read all; what it said before is still there, and then the end
            except OSError as error:
                raise Closed("the other end is gone") from error

    def _taken(self) -> tuple[bytes, list[int]]:
        body, control, flags, _ = self._sock.recvmsg(MAX, _ROOM, socket.MSG_CMSG_CLOEXEC)
        fds = array.array("i")
        for level, kind, data in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        if not body or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(fds)
            raise Closed("the other end is gone" if not body else "a message is longer than any may be")
        return body, list(fds)


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


async def _when(
    sock: socket.socket, add: Callable[..., None], remove: Callable[[socket.socket], object]
) -> None:
    """Wait until the socket is ready; `add` and `remove` are the loop's for the direction."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    add(sock, set_ready)
    try:
        await ready
    finally:
        if sock.fileno() >= 0:
            remove(sock)
