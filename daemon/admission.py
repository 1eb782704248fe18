"""Admit the workers that dial this daemon: each connection gets its name, then it is the pool's."""

import asyncio
import os
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import structlog

from daemon.api import listening
from daemon.protocol import dialing, frames
from daemon.worker.keeper import peer

WAITING: Final = 64  # connections at once that have no name yet; more are closed
CLOSE_WAIT: Final = 2.0  # seconds for a refusal to be taken up
TAKEN: Final = 64 << 10  # bytes taken at once of what a refused one sends

Serve = Callable[[str, StreamReader, StreamWriter], Awaitable[None]]
log = structlog.get_logger()


class NotAdmitted(Exception):
    """This connection is not served; the message says why, to whoever dialed and in the log."""


class Admission(Protocol):
    """Says who is at the other end of a connection, before the first frame."""

    async def admit(self, reader: StreamReader, writer: StreamWriter) -> str:
        """The worker's name. Raises NotAdmitted."""


class OwnWord:
    """Takes a worker's own word, its first line: for a socket that only processes of our own user get at."""

    async def admit(self, reader: StreamReader, writer: StreamWriter) -> str:
        _, uid, _ = peer(writer.get_extra_info("socket"))
        if uid != os.getuid():
            raise NotAdmitted(f"user {uid} may not be a worker of user {os.getuid()}'s daemon")
        try:
            async with asyncio.timeout(frames.HELLO_WAIT):
                return dialing.name_of(await reader.readuntil(b"\n"))
        except TimeoutError:
            raise NotAdmitted(f"it did not say its name within {frames.HELLO_WAIT:g} s") from None
        except (asyncio.IncompleteReadError, OSError):
            raise NotAdmitted("it closed the connection before it had said its name") from None
        except asyncio.LimitOverrunError:
            raise NotAdmitted("its first line is too long to be a name") from None
        except dialing.BadNameError as error:
            raise NotAdmitted(str(error)) from None


class Door:
    """A listening socket at which workers dial; `group` owns the connections, which outlive the listening."""

    def __init__(self, admission: Admission, serve: Serve, group: asyncio.TaskGroup) -> None:
        self._admission = admission
        self._serve = serve
        self._group = group
        self._waiting = 0

    @asynccontextmanager
    async def open(self, sock: socket.socket) -> AsyncIterator[None]:
        """Take connections of a socket that is bound; it is closed afterwards."""
        server = await asyncio.start_server(self._dialed, sock=sock)
        try:
            yield
        finally:
            server.close()

    def _dialed(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self._waiting >= WAITING:
            log.warning("a worker's connection was closed: too many wait to be admitted", waiting=WAITING)
            writer.transport.abort()
            return
        self._waiting += 1
        self._group.create_task(self._guarded(reader, writer), name="worker's connection")

    async def _guarded(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            if name := await self._admitted(reader, writer):
                await self._serve(name, reader, writer)
        except Exception:  # the one around one connection: its fault must not end the others
            log.exception("serving a worker failed")
        finally:
            writer.close()

    async def _admitted(self, reader: StreamReader, writer: StreamWriter) -> str:
        """The worker's name, empty for one that was refused."""
        try:
            return await self._admission.admit(reader, writer)
        except NotAdmitted as refused:
            log.warning("a worker was not admitted", why=str(refused))
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_WAIT):
                    writer.write(dialing.refusal(str(refused)))
                    writer.write_eof()
                    while await reader.read(TAKEN):  # closed over what it sent, it might never read why
                        pass
            return ""
        finally:
            self._waiting -= 1


@asynccontextmanager
async def on_unix(path: Path, door: Door) -> AsyncIterator[None]:
    """Let workers of this machine dial at a Unix socket, mode 0600. Raises ListenError."""
    sock, ours = await asyncio.to_thread(listening.unix, path)
    try:
        async with door.open(sock):
            yield
    finally:
        await asyncio.to_thread(listening.remove, path, ours)
