"""A hub on an interface and a daemon that the test plays, and machines that join it over its own listener."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec

from mesh import token
from mesh.address import Place
from mesh.hub import Mesh
from mesh.join import Failed, Get, Joined, Joining
from mesh.keeping import kept
from mesh.nodes import Facts
from mesh.parts import Fault, Goods, Interface, Options, Status
from mesh.plan import Actual, Endpoint, PeerState, Wanted
from tests.mesh.joining import Clock, worker_keys

PORT = 51820
OPTIONS = Options(name="hub", port=PORT, join_listen=("127.0.0.1:0",), endpoints=("127.0.0.1",), relay=False)


class FakeInterface:
    """Has the peers that it is told, at once; a test says what is heard of them, or breaks it."""

    said = "a test's own"

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.heard: dict[bytes, PeerState] = {}
        self.broken = ""
        self.had: list[set[bytes]] = []  # the peers after each change
        self.moved: Callable[[socket.socket], None] | None = None

    async def keep(self, wanted: Wanted) -> None:
        self._check()
        self.wanted = wanted
        self.had.append(set(wanted.peers))

    async def state(self) -> Actual:
        self._check()
        peers = {
            key: self.heard.get(key, PeerState(key=key, allowed=frozenset(peer.allowed)))
            for key, peer in self.wanted.peers.items()
        }
        return Actual(public=b"", port=self.wanted.port, peers=peers)

    async def listen(self, port: int, moved: Callable[[socket.socket], None]) -> socket.socket:
        self._check()
        self.moved = moved
        return socket.create_server(("127.0.0.1", 0))

    def hear(self, key: bytes, handshake: float = 0.0, rx: int = 0, host: str = "198.51.100.7") -> None:
        """From now on this is what the peer is."""
        self.heard[key] = state(key, handshake, rx, host)

    def _check(self) -> None:
        if self.broken:
            raise Fault(self.broken)


def state(key: bytes, handshake: float = 0.0, rx: int = 0, host: str = "198.51.100.7") -> PeerState:
    """A peer as an interface has it."""
    return PeerState(
        key=key, allowed=frozenset(), handshake=handshake, rx=rx, tx=7, endpoint=Endpoint(host, 9)
    )


class FakeDaemon:
    """What a hub asks of its daemon; `news` is set by each change."""

    def __init__(self) -> None:
        self.waits_for: set[str] = set()
        self.gone: list[str] = []
        self.doors: list[socket.socket] = []
        self.news = asyncio.Event()
        self.has = Goods()
        self.others: list[str] = []

    def names(self) -> Sequence[str]:
        return self.others

    def awaited(self) -> Container[str]:
        return self.waits_for

    def cut(self, name: str) -> None:
        self.gone.append(name)

    def changed(self) -> None:
        self.news.set()

    @asynccontextmanager
    async def admitting(self, sock: socket.socket) -> AsyncIterator[None]:
        self.doors.append(sock)
        self.news.set()
        try:
            yield
        finally:
            sock.close()
            self.doors.remove(sock)
            self.news.set()

    async def goods(self) -> Goods:
        return self.has

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for a change after which this holds."""
        while not true():
            self.news.clear()
            await self.news.wait()


async def join(text: str, number: int, clock: Callable[[], float]) -> Joined | Failed:
    """Machine `number` joins with this token, at the listener that it names."""
    facts = Facts(f"gpu-{number}", "linux", "x86_64", "1")
    joining = Joining(token.decode(text), facts, worker_keys(number), clock)
    async with aiohttp.ClientSession() as session:
        while True:
            step = joining.next()
            if isinstance(step, Joined | Failed):
                return step
            method, body = ("GET", None) if isinstance(step, Get) else ("POST", step.body)
            url = f"http://{step.place}{step.path}"
            try:
                async with session.request(method, url, data=body) as answer:
                    joining.feed(answer.status, await answer.read())
            except aiohttp.ClientError as error:
                joining.lost(str(error))


class Star:
    """A hub with what is around it. `failing`: why no interface comes up; `heard`: what one begins with."""

    def __init__(self, data: Path, options: Options, clock: Clock, poll: float) -> None:
        self.data = data
        self.clock = clock
        self.daemon = FakeDaemon()
        self.interfaces: list[FakeInterface] = []
        self.up: FakeInterface | None = None
        self.heard: dict[bytes, PeerState] = {}
        self.failing: Exception | None = None
        self.mesh = Mesh(
            data, options, self.daemon, self._opening, now=clock, hosts=lambda: ["127.0.0.1"], poll=poll
        )

    def _opening(self, wanted: Wanted) -> AbstractAsyncContextManager[Interface]:
        return self._opened(wanted)

    @asynccontextmanager
    async def _opened(self, wanted: Wanted) -> AsyncIterator[Interface]:
        if self.failing is not None:
            raise self.failing
        self.up = FakeInterface(wanted)
        self.up.heard = dict(self.heard)
        self.interfaces.append(self.up)
        try:
            yield self.up
        finally:
            self.up = None

    @property
    def interface(self) -> FakeInterface:
        assert self.up is not None
        return self.up

    @property
    def status(self) -> Status:
        return self.mesh.status()

    async def phase(self, phase: str) -> Status:
        """Wait for it."""
        await self.daemon.until(lambda: self.status.phase == phase)
        return self.status

    def key(self, number: int) -> bytes:
        return worker_keys(number).public

    async def join(self, text: str, number: int) -> Joined | Failed:
        """Machine `number` joins over the network."""
        return await join(text, number, self.clock)

    async def joined(self, number: int = 2, *, ephemeral: bool = False) -> str:
        """A machine that has joined; its name."""
        issued = await self.mesh.issue(ephemeral=ephemeral)
        done = await self.join(issued.text, number)
        assert isinstance(done, Joined), done
        return done.answer.name


@asynccontextmanager
async def star(
    data: Path,
    clock: Clock | None = None,
    *,
    heard: dict[bytes, PeerState] | None = None,
    failing: Exception | None = None,
    poll: float = 3600.0,
    **more: object,
) -> AsyncIterator[Star]:
    """A hub that runs; it looks when it is woken, or `mesh.look` is called."""
    made = Star(data, msgspec.structs.replace(OPTIONS, **more), clock or Clock(), poll)
    made.heard, made.failing = heard or {}, failing
    async with asyncio.TaskGroup() as group, kept(made.mesh, group):
        yield made


def places_of(text: str) -> Sequence[Place]:
    return token.decode(text).places
