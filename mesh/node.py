"""This machine's end of the mesh: an interface that is brought up through the helper and kept as planned."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from ipaddress import IPv6Address
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import structlog

from mesh import plan as planning
from mesh import sockets, verbs
from mesh.channel import close_all
from mesh.claim import Claim, ClaimError
from mesh.handle import ENGINE_LOG, Handle, HelperError, HelperGone, HelperOff
from mesh.picking import Backend
from mesh.plan import Actual, Endpoint, Wanted
from mesh.settling import Settling
from mesh.sockets import Listener

DIAL_WAIT: Final = 10.0  # seconds for a connection: the first packet may have to wait for a second handshake
ECHO_WAIT: Final = 2.0  # seconds for an echo
TRIES: Final = 3  # helpers that one request may lose
REPAIR_WAIT: Final = 20.0  # seconds that a caller waits for a helper that is started again
AGAIN: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before each next start of a helper that fails

T = TypeVar("T")

log = structlog.get_logger()


class MeshError(Exception):
    """The mesh could not do it; the message says why."""


class MeshOff(MeshError):
    """There is no mesh on this machine; the message says why and what would change that."""


class Node:
    """A context manager: from entering on the interface is up, until leaving; a helper that dies is started again.

    `folder`: of this node alone, for logs and a lock; it is made. `listens`: other machines are to reach the UDP port
    (on the harness). `launcher`: a command that starts the helper for us, such as `("sudo", "-n")`, which inherits the
    descriptors `lent`.
    Entering raises MeshOff and MeshError.
    """

    def __init__(
        self,
        wanted: Wanted,
        *,
        folder: Path,
        backend: Backend = "auto",
        listens: bool = False,
        launcher: Sequence[str] = (),
        lent: Sequence[int] = (),
    ) -> None:
        self._settling = Settling(wanted)
        self._folder = folder
        self._claim = Claim(folder)
        self._backend = backend
        self._listens = listens
        self._launcher = tuple(launcher)
        self._lent = tuple(lent)
        self._handle: Handle | None = None
        self._up = asyncio.Event()
        self._down = ""  # why it is not up
        self._namespace: int | None = None
        self._listeners: list[Listener] = []
        self._group = asyncio.TaskGroup()
        self._keeper: asyncio.Task[None] | None = None
        self._changes: set[asyncio.Task[None]] = set()
        self.said = ""  # how the interface is made, in a sentence; while it is up
        self.engine = ""
        self.starts = 0  # of helpers

    async def __aenter__(self) -> Self:
        try:
            await self._claim.take()
        except ClaimError as error:
            raise MeshError(str(error)) from error
        try:
            await self._group.__aenter__()
            try:
                await self._start()
            except BaseException:
                await self._group.__aexit__(None, None, None)
                raise
        except BaseException:
            self._release()
            raise
        self._keeper = self._group.create_task(self._keep_up(), name="mesh node")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeper is not None
        self._keeper.cancel()
        try:
            await asyncio.wait([self._keeper])
            self._up.clear()
            self._down = "the mesh is shut down"
            await self._close_handle()
            await self._group.__aexit__(None, None, None)
            for task in self._changes:
                task.cancel()
            if self._changes:
                await asyncio.wait(self._changes)
        finally:
            self._release()

    @property
    def name(self) -> str:
        """The interface's, inside of its namespace."""
        return self._claim.name

    @property
    def mtu(self) -> int:
        """The interface's MTU now, in bytes."""
        return self._settling.mtu

    @property
    def pid(self) -> int:
        """The helper's process."""
        return self._handle.pid if self._handle is not None else 0

    def _release(self) -> None:
        if self._namespace is not None:
            os.close(self._namespace)
        self._namespace = None
        self._claim.release()

    # The helper

    async def _keep_up(self) -> None:
        """Start the helper again whenever it ends."""
        while True:
            assert self._handle is not None
            await self._handle.ended.wait()
            why = self._handle.reason
            self._up.clear()
            self._down = why
            log.warning("the mesh is down and is brought up again", why=why)
            await self._close_handle()
            await self._start_again()

    async def _start_again(self) -> None:
        for delay in _delays():
            await asyncio.sleep(delay)
            try:
                await self._start()
                log.info("the mesh is up again", how=self.said)
                return
            except MeshError as error:
                self._down = str(error)
                log.error("the mesh cannot be brought up; it is tried again", why=str(error))

    async def _start(self) -> None:
        """Start a helper and have it bring the interface up as wanted. Raises MeshError."""
        start = verbs.Start(
            backend=self._backend,
            port=self._settling.wanted.port if self._listens else 0,
            log=str(await asyncio.to_thread(os.path.abspath, self._folder / ENGINE_LOG)),
        )
        self.starts += 1
        try:
            handle = await Handle.start(start, self._folder, self._launcher, [self._claim.lock, *self._lent])
        except HelperError as error:
            raise MeshError(str(error)) from error
        self._handle = handle
        self._reader = self._group.create_task(handle.run(), name="mesh helper")
        try:
            await self._bring_up(handle)
        except HelperOff as error:
            await self._close_handle()
            raise MeshOff(str(error)) from error
        except HelperError as error:
            await self._close_handle()
            raise MeshError(str(error)) from error
        except OSError as error:  # as of a port that cannot be listened at again, or too many open files
            await self._close_handle()
            raise MeshError(f"the mesh's interface cannot be set up: {error.strerror or error}") from error
        except BaseException:
            await self._close_handle()
            raise

    async def _bring_up(self, handle: Handle) -> None:
        kept, settling = self._namespace is not None, self._settling
        up = verbs.Up(
            id=handle.id(),
            name=self._claim.name,
            private=settling.wanted.private,
            address=settling.wanted.address,
            port=settling.port,
            mtu=settling.mtu,
        )
        answers, fds = await handle.ask(up, [] if self._namespace is None else [self._namespace])
        ready = answers[-1]
        assert isinstance(ready, verbs.Ready)
        if kept:
            close_all(fds)  # the same one
        else:
            self._namespace = fds[0] if fds else None
        handle.pid = ready.pid
        self.said, self.engine = ready.said, ready.engine
        await settling.take_up(handle)
        if not kept:
            for listener in self._listeners:
                listener.moved(await listener.open(handle))
        self._up.set()

    async def _close_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            await handle.close()
            await asyncio.wait([self._reader])

    async def _ready(self) -> Handle:
        """The helper, once it is up. Raises MeshError where it is not for REPAIR_WAIT."""
        if self._handle is not None and self._handle.ended.is_set():
            self._up.clear()  # the keeper is about to see it too
        if not self._up.is_set():
            try:
                async with asyncio.timeout(REPAIR_WAIT):
                    await self._up.wait()
            except TimeoutError:
                raise MeshError(self._down) from None
        assert self._handle is not None
        return self._handle

    # Peers

    async def keep(self, wanted: Wanted) -> None:
        """Have the interface as wanted; done when it is. Its key, address and port stay as they were at the start.

        Runs to its end, also where the caller is cancelled. Raises Clash, ValueError and MeshError.
        """
        planning.check(wanted.peers.values())
        now = self._settling.wanted
        if (wanted.private, wanted.address, wanted.port) != (now.private, now.address, now.port):
            raise ValueError("an interface's key, address and port cannot change while it is up")
        await self._shielded(self._keep(wanted))

    async def _shielded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run to the end, whatever comes of the caller."""
        task = asyncio.create_task(work, name="mesh change")  # noqa: TID251 - owned by the node, which awaits it
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await asyncio.shield(task)

    async def _keep(self, wanted: Wanted) -> None:
        self._settling.wanted = wanted
        await self._asked(self._settling.settle)

    async def point(self, key: bytes, endpoint: Endpoint) -> None:
        """Have a peer be sent to there, and say something to it at once. Raises MeshError."""
        await self._shielded(self._asked(lambda handle: self._settling.point(handle, key, endpoint)))

    async def resize(self, mtu: int) -> None:
        """Set the interface's MTU, in bytes. Raises MeshError."""
        await self._shielded(self._asked(lambda handle: self._settling.resize(handle, mtu)))

    async def state(self) -> Actual:
        """What the interface is now. Raises MeshError."""
        return await self._asked(self._settling.read)

    async def _asked(self, ask: Callable[[Handle], Coroutine[Any, Any, T]]) -> T:
        """Ask the helper, and the next one where it ends meanwhile. Raises MeshError."""
        tries = 0
        while True:
            handle = await self._ready()
            tries += 1
            try:
                return await ask(handle)
            except HelperGone as error:
                if tries == TRIES:
                    raise MeshError(str(error)) from error
            except HelperError as error:
                raise MeshError(str(error)) from error

    # Connections

    async def listen(
        self, port: int, moved: Callable[[socket.socket], None] = lambda sock: sock.close()
    ) -> socket.socket:
        """A socket that listens for TCP on the mesh's address; port 0: any. The caller closes it.

        It outlives the helper where the helper's namespace does. Where not, `moved` is called with another one for
        the same port, and the old one is to be closed. Raises MeshError and OSError.
        """
        listener = Listener(port, moved)
        sock = await self._asked(listener.open)
        self._listeners.append(listener)
        return sock

    async def dial(self, host: IPv6Address, port: int, seconds: float = DIAL_WAIT) -> socket.socket:
        """A connected TCP socket, not blocking, from the mesh's address. Raises MeshError and OSError."""
        return await self._asked(lambda handle: sockets.dial(handle, host, port, seconds))

    async def echo(self, host: IPv6Address, size: int, seconds: float = ECHO_WAIT) -> bool:
        """Whether a packet of `size` bytes comes through to there and back. Raises MeshError."""
        return await self._asked(lambda handle: sockets.echo(handle, host, size, seconds))


def _delays() -> Iterator[float]:
    yield from AGAIN
    while True:
        yield AGAIN[-1]
