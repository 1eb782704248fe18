"""Keep a worker's packets on the best way to the harness: look at the tunnel, decide, act, once a second."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, Protocol, assert_never

import structlog

from mesh.address import Place
from mesh.detour import Detour, Standing
from mesh.path import (
    Action,
    Measure,
    Path,
    Probe,
    Resolve,
    Seen,
    SetEndpoint,
    SetMtu,
    StartRelay,
    State,
    StopRelay,
    decide,
)
from mesh.plan import Endpoint, PeerState

EVERY: Final = 1.0  # seconds between two looks
RESOLVE_WAIT: Final = 10.0  # seconds for all names together

log = structlog.get_logger("mesh.path")


class Tunnel(Protocol):
    """The worker's interface, with the hub as its one peer. Each may raise OSError: it is tried again."""

    async def look(self) -> PeerState:
        """The hub as WireGuard has it now."""
        ...

    async def point(self, endpoint: Endpoint) -> None:
        """Set the hub's endpoint, and its keepalive to 0 and back, which sends something there at once."""
        ...

    async def set_mtu(self, bytes: int) -> None:
        """Set the interface's MTU."""
        ...

    async def measure(self) -> bool:
        """Whether a packet as large as the MTU comes back from the hub."""
        ...


Relays = Callable[[], AbstractAsyncContextManager[Detour]]


async def resolve(places: Sequence[Place]) -> tuple[Endpoint, ...]:
    """The addresses of these places in their order, each once; those that have none are left out."""
    loop = asyncio.get_running_loop()
    found: dict[Endpoint, None] = {}
    try:
        async with asyncio.timeout(RESOLVE_WAIT):
            for place in places:
                try:
                    infos = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM)
                except OSError as error:
                    log.info("an endpoint's name is not resolved", name=place.host, why=error.strerror)
                    continue
                found.update({Endpoint(str(info[4][0]), place.port): None for info in infos})
    except TimeoutError:
        log.info("resolving the endpoints' names took too long")
    return tuple(found)


class Wayfinder:
    """Use `finding`. `relays` opens a detour; None where the harness has no relay."""

    def __init__(
        self,
        tunnel: Tunnel,
        places: Sequence[Place],
        relays: Relays | None,
        full: int,
        every: float,
        clock: Callable[[], float],
    ) -> None:
        self._tunnel = tunnel
        self._places = places
        self._relays = relays
        self._every = every
        self._clock = clock
        self._path = Path(full=full, relays=relays is not None)
        self._addresses: tuple[Endpoint, ...] = ()
        self._detour: Detour | None = None
        self._fits: bool | None = None
        self._suspect = False
        self._doubt = False
        self._answered: Endpoint | None = None
        self._work: dict[str, asyncio.Task[None]] = {}
        self._stack = AsyncExitStack()
        self._wake = asyncio.Event()

    @property
    def state(self) -> State:
        """By which way packets go."""
        return self._path.state or State.TRYING

    @property
    def path(self) -> str:
        """The way in a word and an address, for people: `direct 192.0.2.1:51820`, `relay` …"""
        match self.state:
            case State.RELAYED:
                return "relay"
            case State.DIRECT:
                return f"direct {_shown(self._path.endpoint)}"
            case State.TRYING:
                return f"trying {_shown(self._path.endpoint)}"

    def relay(self) -> Standing | None:
        """How the relay's connection stands, None while there is none."""
        return self._detour.standing() if self._detour is not None else None

    def suspect(self) -> None:
        """What goes through the tunnel has got no answer for a while: if nothing at all comes, try other ways now."""
        self._suspect = True
        self.look_again()

    def doubt(self) -> None:
        """A connection is made, maybe in place of one that fell silent: look again whether full packets pass."""
        self._doubt = True
        self.look_again()

    def look_again(self) -> None:
        """Something has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Look, decide and act until cancelled."""
        self._addresses = await resolve(self._places)
        while True:
            self._wake.clear()
            try:
                await self._step()
            except OSError as error:
                log.warning("the tunnel is not as it should be", why=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._wake.wait()

    async def close(self) -> None:
        """End what goes on beside."""
        work = list(self._work.values())
        for task in work:
            task.cancel()
        if work:
            await asyncio.wait(work)
        await self._stop_relay()

    async def _step(self) -> None:
        seen = self._see(await self._tunnel.look())
        before = self.path
        self._path, did = decide(self._path, seen)
        self._answered, self._suspect, self._doubt = None, False, False
        if self.path != before:
            log.info("the way to the harness has changed", before=before, now=self.path)
        for action in did:
            await self._do(action)

    def _see(self, peer: PeerState) -> Seen:
        now = self._clock()
        standing = self.relay()
        return Seen(
            now=now,
            addresses=self._addresses,
            endpoint=peer.endpoint,
            handshake=now - max(0.0, time.time() - peer.handshake) if peer.handshake else None,
            rx=peer.rx,
            tx=peer.tx,
            relay=None if self._detour is None else Endpoint(*self._detour.address),
            down=now - standing.away if standing is not None and standing.away else None,
            probing="probe" in self._work,
            answered=self._answered,
            fits=self._fits,
            suspect=self._suspect,
            doubt=self._doubt and "measure" not in self._work,
        )

    async def _do(self, action: Action) -> None:
        match action:
            case SetEndpoint(endpoint):
                await self._tunnel.point(endpoint)
            case SetMtu(bytes):
                await self._tunnel.set_mtu(bytes)
            case StartRelay():
                if self._relays is not None and self._detour is None:
                    self._detour = await self._stack.enter_async_context(self._relays())
                    self.look_again()
            case StopRelay():
                await self._stop_relay()
            case Probe(endpoints):
                if self._detour is not None:
                    self._beside("probe", self._try(self._detour, endpoints))
            case Resolve():
                self._beside("resolve", self._resolve())
            case Measure():
                self._fits = None
                self._beside("measure", self._measure())
            case _:
                assert_never(action)

    async def _stop_relay(self) -> None:
        self._end("probe")
        self._detour = None
        await self._stack.aclose()

    async def _try(self, detour: Detour, endpoints: Sequence[Endpoint]) -> None:
        found = await detour.probe(*((each.host, each.port) for each in endpoints))
        self._answered = Endpoint(*found) if found is not None else None

    async def _resolve(self) -> None:
        self._addresses = await resolve(self._places) or self._addresses

    async def _measure(self) -> None:
        try:
            self._fits = await self._tunnel.measure()
        except OSError as error:
            log.info("the MTU cannot be measured", why=str(error))

    def _beside(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Have this done beside the looking, instead of what was under way by that name."""
        self._end(name)
        task = asyncio.create_task(work, name=f"mesh {name}")  # noqa: TID251 - owned by this object, ended in `close`
        self._work[name] = task
        task.add_done_callback(lambda _: self._done(name, task))

    def _done(self, name: str, task: "asyncio.Task[None]") -> None:
        if self._work.get(name) is task:
            del self._work[name]
        self.look_again()

    def _end(self, name: str) -> None:
        if (task := self._work.pop(name, None)) is not None:
            task.cancel()


def _shown(endpoint: Endpoint | None) -> str:
    return "nothing" if endpoint is None else str(Place(endpoint.host, endpoint.port))


@asynccontextmanager
async def finding(
    tunnel: Tunnel,
    places: Sequence[Place],
    relays: Relays | None,
    *,
    full: int = 1420,
    every: float = EVERY,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Wayfinder]:
    """Keep the tunnel's packets on the best way for as long as the context is open.

    `places`: the harness's WireGuard, in the order to try; `relays` opens the relay's end, None where there is none;
    `full`: the MTU of a direct way, in bytes; `every`: seconds between two looks; `clock` goes only forward.
    """
    made = Wayfinder(tunnel, places, relays, full, every, clock)
    running = asyncio.create_task(made.run(), name="mesh path")  # noqa: TID251 - owned by this context
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.wait([running])
        await made.close()
        if not running.cancelled():
            running.result()  # never swallow what ended it
