"""This machine's end of the mesh: an interface that is brought up through the helper and kept as planned."""

import asyncio
import fcntl
import hashlib
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv6Address
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec
import structlog

from mesh import plan as planning
from mesh import verbs
from mesh.channel import MAX, close_all
from mesh.handle import ENGINE_LOG, Handle, HelperError, HelperGone, HelperOff
from mesh.picking import Backend
from mesh.plan import Actual, Change, Endpoint, Peer, PeerState, SetEndpoint, SetKeepalive, Wanted

DIAL_WAIT: Final = 10.0  # seconds for a connection: the first packet may have to wait for a second handshake
ECHO_WAIT: Final = 2.0  # seconds for an echo
TRIES: Final = 3  # helpers that one request may lose
REPAIR_WAIT: Final = 20.0  # seconds that a caller waits for a helper that is started again
AGAIN: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before each next start of a helper that fails
GREETING: Final = 60  # seconds: any keepalive that is set makes WireGuard say something at once
LOCK: Final = (
    "node.lock"  # in the folder; held by the node and its helper, so that it is free when both are gone
)
LOCK_WAIT: Final = 10.0  # seconds for the helper of a node that was killed to be gone
LOCK_LOOK: Final = 0.05  # seconds between two looks
ROOM: Final = MAX - 1024  # bytes of the changes of one message

T = TypeVar("T")

log = structlog.get_logger()


class MeshError(Exception):
    """The mesh could not do it; the message says why."""


class MeshOff(MeshError):
    """There is no mesh on this machine; the message says why and what would change that."""


def interface_name(folder: Path) -> str:
    """A name of 14 characters that no other folder's interface on this machine has."""
    return f"or{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:12]}"


class Listener:
    """A port of the mesh; `moved` gets a new socket when the old one's namespace is lost."""

    def __init__(self, port: int, moved: Callable[[socket.socket], None]) -> None:
        self.port = port
        self.moved = moved


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
        planning.check(wanted.peers.values())
        self._wanted = wanted
        self._folder = folder
        self._backend = backend
        self._listens = listens
        self._launcher = tuple(launcher)
        self._lent = tuple(lent)
        self._name = ""
        self._port = wanted.port
        self._mtu = wanted.mtu
        self._known: dict[bytes, PeerState] | None = None  # what the peers are; None: not known
        self._writing = asyncio.Lock()
        self._handle: Handle | None = None
        self._up = asyncio.Event()
        self._down = ""  # why it is not up
        self._namespace: int | None = None
        self._listeners: list[Listener] = []
        self._group = asyncio.TaskGroup()
        self._keeper: asyncio.Task[None] | None = None
        self._endpoints: dict[bytes, Endpoint] = {}  # where the peers were when last somebody looked
        self._changes: set[asyncio.Task[None]] = set()
        self._lock = -1
        self.said = ""  # how the interface is made, in a sentence; while it is up
        self.engine = ""
        self.starts = 0  # of helpers

    async def __aenter__(self) -> Self:
        self._name = await asyncio.to_thread(self._claim)
        try:
            await self._take_lock()
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
    def mtu(self) -> int:
        """The interface's MTU now, in bytes."""
        return self._mtu

    @property
    def pid(self) -> int:
        """The helper's process."""
        return self._handle.pid if self._handle is not None else 0

    # Lock and folder

    def _claim(self) -> str:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise MeshError(f"{self._folder} cannot be used for the mesh: {error.strerror}") from error
        return interface_name(self._folder)

    async def _take_lock(self) -> None:
        """One node a folder; also the helper of one that was killed has to be gone."""
        try:
            async with asyncio.timeout(LOCK_WAIT):
                while not self._try_lock():  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(LOCK_LOOK)
        except TimeoutError:
            raise MeshError(
                f"another process keeps the mesh of {self._folder} (it holds {LOCK} there): end that one first"
            ) from None

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _release(self) -> None:
        close_all(fd for fd in (self._lock, self._namespace) if fd is not None and fd >= 0)
        self._lock, self._namespace = -1, None

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
            port=self._wanted.port if self._listens else 0,
            log=str(await asyncio.to_thread(os.path.abspath, self._folder / ENGINE_LOG)),
        )
        self.starts += 1
        try:
            handle = await Handle.start(start, self._folder, self._launcher, [self._lock, *self._lent])
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
        except BaseException:
            await self._close_handle()
            raise

    async def _bring_up(self, handle: Handle) -> None:
        kept = self._namespace is not None
        up = verbs.Up(
            id=handle.id(),
            name=self._name,
            private=self._wanted.private,
            address=self._wanted.address,
            port=self._port,
            mtu=self._mtu,
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
        async with self._writing:
            seen = self._endpoints
            actual = await self._read(handle)
            self._port = actual.port
            self._known = actual.peers
            if seen and not actual.peers:
                await self._wake(handle, seen)
            await self._reconcile(handle)
        if not kept:
            for listener in self._listeners:
                listener.moved(await self._open(handle, listener))
        self._up.set()

    async def _wake(self, handle: Handle, endpoints: Mapping[bytes, Endpoint]) -> None:
        """After a loss of all sessions, greet the peers where they were last: else they would take 15 s to notice."""
        peers = {
            key: msgspec.structs.replace(peer, endpoint=endpoints[key], keepalive=peer.keepalive or GREETING)
            for key, peer in self._wanted.peers.items()
            if key in endpoints
        }
        await self._change(handle, planning.plan(peers, {}), {})

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
        now = self._wanted
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
        self._wanted = wanted
        await self._asked(self._settle)

    async def _settle(self, handle: Handle) -> None:
        """Have the interface as wanted now."""
        async with self._writing:
            await self._resize(handle, self._wanted.mtu)
            await self._reconcile(handle)

    async def _reconcile(self, handle: Handle) -> None:
        known = (await self._read(handle)).peers if self._known is None else self._known
        await self._change(handle, planning.plan(_spoken_to(self._wanted.peers, known), known), known)

    async def _change(self, handle: Handle, changes: Sequence[Change], known: dict[bytes, PeerState]) -> None:
        self._known = None  # until it is done
        for some in _fitting(changes):
            await handle.ask(verbs.Apply(id=handle.id(), changes=some))
        self._known = planning.applied(known, changes)

    async def point(self, key: bytes, endpoint: Endpoint) -> None:
        """Have a peer be sent to there, and say something to it at once. Raises MeshError."""
        await self._shielded(self._point(key, endpoint))

    async def _point(self, key: bytes, endpoint: Endpoint) -> None:
        handle = await self._ready()
        peer = self._wanted.peers.get(key)
        if peer is None:
            return
        async with self._writing:
            known = self._known if self._known is not None else (await self._read(handle)).peers
            # WireGuard says something when a keepalive is set where there was none. The endpoint is set first: any
            # change may set off a handshake that is due, and to the old one it would be in vain, and the next 5 s on.
            changes: list[Change] = [
                SetEndpoint(key, endpoint),
                SetKeepalive(key, 0),
                SetKeepalive(key, peer.keepalive),
            ]
            try:
                await self._change(handle, changes, known)
            except HelperError as error:
                raise MeshError(str(error)) from error

    async def resize(self, mtu: int) -> None:
        """Set the interface's MTU, in bytes. Raises MeshError."""
        await self._shielded(self._resize_alone(mtu))

    async def _resize_alone(self, mtu: int) -> None:
        handle = await self._ready()
        async with self._writing:
            self._wanted = msgspec.structs.replace(self._wanted, mtu=mtu)
            try:
                await self._resize(handle, mtu)
            except HelperError as error:
                raise MeshError(str(error)) from error

    async def _resize(self, handle: Handle, mtu: int) -> None:
        if mtu != self._mtu:
            await handle.ask(verbs.Resize(id=handle.id(), mtu=mtu))
            self._mtu = mtu

    async def state(self) -> Actual:
        """What the interface is now. Raises MeshError."""
        return await self._asked(self._read)

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

    async def _read(self, handle: Handle) -> Actual:
        answers, _ = await handle.ask(verbs.Read(id=handle.id()))
        last = answers[-1]
        assert isinstance(last, verbs.Interface)
        peers = {peer.key: peer for page in answers if isinstance(page, verbs.Page) for peer in page.peers}
        self._endpoints = {key: peer.endpoint for key, peer in peers.items() if peer.endpoint is not None}
        return Actual(public=last.public, port=last.port, peers=peers)

    # Connections

    async def listen(
        self, port: int, moved: Callable[[socket.socket], None] = lambda sock: sock.close()
    ) -> socket.socket:
        """A socket that listens for TCP on the mesh's address; port 0: any. The caller closes it.

        It outlives the helper where the helper's namespace does. Where not, `moved` is called with another one for
        the same port, and the old one is to be closed. Raises MeshError and OSError.
        """
        listener = Listener(port, moved)
        sock = await self._asked(lambda handle: self._open(handle, listener))
        self._listeners.append(listener)
        return sock

    async def _open(self, handle: Handle, listener: Listener) -> socket.socket:
        sock = await _socket(handle, verbs.Listen(id=handle.id(), port=listener.port))
        listener.port = sock.getsockname()[1]
        return sock

    async def dial(self, host: IPv6Address, port: int, seconds: float = DIAL_WAIT) -> socket.socket:
        """A connected TCP socket, not blocking, from the mesh's address. Raises MeshError and OSError."""
        return await self._asked(
            lambda handle: _socket(handle, verbs.Dial(id=handle.id(), host=host, port=port, timeout=seconds))
        )

    async def echo(self, host: IPv6Address, size: int, seconds: float = ECHO_WAIT) -> bool:
        """Whether a packet of `size` bytes comes through to there and back. Raises MeshError."""
        return await self._asked(
            lambda handle: _echoed(handle, verbs.Echo(id=handle.id(), host=host, size=size, timeout=seconds))
        )


async def _echoed(handle: Handle, request: verbs.Echo) -> bool:
    answers, _ = await handle.ask(request)
    last = answers[-1]
    return isinstance(last, verbs.Echoed) and last.came


async def _socket(handle: Handle, request: verbs.Listen | verbs.Dial) -> socket.socket:
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


def _spoken_to(wanted: Mapping[bytes, Peer], known: Mapping[bytes, PeerState]) -> dict[bytes, Peer]:
    """The peers, without a keepalive for those that nothing can be sent to yet.

    WireGuard would begin a handshake that goes nowhere, and no other for 5 s, whatever endpoint it gets meanwhile.
    """
    return {
        key: msgspec.structs.replace(peer, keepalive=0)
        if peer.keepalive and peer.endpoint is None and (key not in known or known[key].endpoint is None)
        else peer
        for key, peer in wanted.items()
    }


def _fitting(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """The changes in messages that are not too long."""
    some: list[Change] = []
    size = 0
    for change in changes:
        length = len(verbs.encode(verbs.Apply(id=0, changes=[change])))
        if some and size + length > ROOM:
            yield some
            some, size = [], 0
        some.append(change)
        size += length
    if some:
        yield some


def _delays() -> Iterator[float]:
    yield from AGAIN
    while True:
        yield AGAIN[-1]
