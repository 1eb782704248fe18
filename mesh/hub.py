"""The harness's side of the mesh: keys, registry, interface, join listener and relay, kept up while they are needed.

Nothing is opened before it is needed: the files are made by the first token, and the ports are open while there is a
node or a token that lets one join, and LINGER longer, so that who comes late is told why.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from ipaddress import AddressValueError, IPv6Address, IPv6Network
from pathlib import Path
from socket import socket
from typing import Final, Literal, Protocol

import structlog
from msgspec import Struct

from mesh import address, expiry, keys, listener, members, reachable, registry
from mesh.address import Place
from mesh.join import Hub, Offer, Reply
from mesh.keys import HubKeys, PrivateFileError
from mesh.listener import ListenError, Offered
from mesh.members import Member, Watch
from mesh.nodes import Grant, Node
from mesh.plan import Actual, Wanted
from mesh.registry import LIFETIME, Registry, RegistryError
from mesh.relay import Counts, Relay
from mesh.wanted import hub_wanted

POLL: Final = 3.0  # seconds between two looks at the interface
LINGER: Final = 3600.0  # seconds that the ports stay open after the last need of them
FIRST_WAIT: Final = 1.0  # seconds before what failed is tried again; doubled each time
LONGEST_WAIT: Final = 60.0
START: Final = 25.0  # seconds that a first token waits for the mesh to come up
LOOPBACK: Final = "127.0.0.1"  # where the relay reaches our own WireGuard

Phase = Literal["off", "idle", "starting", "failing", "up"]

log = structlog.get_logger("mesh.hub")


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


class Daemon(Protocol):
    """What the mesh asks of the daemon that it is of."""

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

    def offered(self) -> Offered:
        """What there is to fetch for machines that join. Blocks."""
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
    """A token that was made. `text` is nowhere else. `places`: the join listener's, as they stand in it."""

    text: str
    grant: Grant
    places: tuple[Place, ...]
    offered: Offered

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


class _Store(Struct, frozen=True):
    """What is on disk, opened."""

    keys: HubKeys
    registry: Registry
    hub: Hub
    network: IPv6Network


class _Joining(Struct, frozen=True):
    """The join listener, while it is open."""

    stack: AsyncExitStack
    addresses: tuple[str, ...]
    relay: Relay | None

    @property
    def port(self) -> int:
        return int(self.addresses[0].rpartition(":")[2])


class Mesh:
    """One harness's mesh, in its data folder. `run` keeps it; everything else may be called meanwhile.

    `opening` makes the interface; `now`: seconds since the epoch; `hosts`: this machine's own.
    """

    def __init__(
        self,
        data: Path,
        options: Options,
        daemon: Daemon,
        opening: Callable[[Wanted], AbstractAsyncContextManager[Interface]],
        *,
        now: Callable[[], float] = time.time,
        hosts: Callable[[], Sequence[str]] = reachable.own_hosts,
        poll: float = POLL,
    ) -> None:
        self._data = data
        self._options = options
        self._daemon = daemon
        self._opening = opening
        self._now = now
        self._hosts = hosts
        self._poll = poll
        self._store: _Store | None = None
        self._nodes: dict[int, Node] = {}
        self._interface: Interface | None = None
        self._joining: _Joining | None = None
        self._offered: Offered | None = None
        self._actual: Actual | None = None
        self._watch = Watch()
        self._since = 0.0
        self._here: tuple[str, ...] = ()  # this machine's own hosts
        self._moved: socket | None = None  # where workers dial from now on
        self._stale = False  # the interface may not have the peers of the registry
        self._held = 0
        self._needed_until = 0.0
        self._phase: Phase = "idle" if options.enabled else "off"
        self._why = "" if options.enabled else "mesh.backend is off in outrider.toml"
        self._why_not_joining = ""
        self._tries = 0  # that failed
        self._listen_wait = FIRST_WAIT
        self._listen_again = 0.0
        self._turn = asyncio.Lock()  # changes of the peers, in the order of those of the registry
        self._opening_store = asyncio.Lock()
        self._woken = asyncio.Event()
        self._news = asyncio.Event()

    # What others ask

    def name_at(self, host: str) -> str | None:
        """The name of the node that has this address inside the mesh; None: it is nobody's, or the harness's own."""
        if self._store is None:
            return None
        try:
            number = address.number_of(self._store.network, IPv6Address(host.partition("%")[0]))
        except AddressValueError:
            return None
        node = self._nodes.get(number) if number is not None else None
        return None if node is None else node.name

    def named(self, name: str) -> bool:
        """Whether there is a node of this name."""
        return any(node.name == name for node in self._nodes.values())

    def members(self) -> tuple[Member, ...]:
        """Every node, as it stood at the last look."""
        if self._store is None:
            return ()
        peers = self._actual.peers if self._actual is not None else {}
        relay = self._joining.relay if self._joining is not None else None
        return members.members(self._nodes.values(), self._store.network, peers, relay)

    def status(self) -> Status:
        """How it stands."""
        options, joining, store = self._options, self._joining, self._store
        up = self._phase == "up"
        return Status(
            phase="failing" if up and self._why_not_joining else self._phase,
            name=options.name,
            why=self._why or self._why_not_joining,
            said=self._interface.said if self._interface is not None else "",
            address=str(address.address(store.network, address.HARNESS)) if store is not None else "",
            port=options.port if up else 0,
            control=options.control if up else 0,
            join=joining.addresses if joining is not None else (),
            endpoints=tuple(map(str, self._offer().endpoints)) if up else (),
            nodes=len(self._nodes),
            relay=joining.relay.counts() if joining is not None and joining.relay is not None else None,
        )

    async def issue(
        self, *, label: str = "", uses: int = 1, lifetime: float = LIFETIME, ephemeral: bool = False
    ) -> Issued:
        """Make a token, with the mesh up for who joins by it.

        Raises Down, ValueError (the field first), TokenError, RegistryError and PrivateFileError.
        """
        self._check_enabled()
        with self._holding():
            joining = await self._all_up()
            store = await self._opened()
            self._offered = offered = await asyncio.to_thread(self._daemon.offered)
            places = self._places(joining)
            text, grant = await asyncio.to_thread(
                partial(
                    store.hub.issue, places, label=label, uses=uses, lifetime=lifetime, ephemeral=ephemeral
                )
            )
        log.info("join token made", id=grant.id, name=label, uses=uses, ephemeral=ephemeral)
        return Issued(text=text, grant=grant, places=places, offered=offered)

    async def grants(self) -> tuple[Grant, ...]:
        """Every token that was made. Raises RegistryError, PrivateFileError."""
        store = await self._opened_if_made()
        return () if store is None else await asyncio.to_thread(store.registry.grants)

    async def revoke(self, number: int) -> bool:
        """Let a token admit nobody any more; False where there is none of this id, or it was revoked before.

        Raises RegistryError, PrivateFileError."""
        store = await self._opened_if_made()
        if store is None or not await asyncio.to_thread(store.registry.revoke, number):
            return False
        log.info("join token revoked", id=number)
        return True

    async def remove(self, name: str, why: str = "its operator removed it") -> bool:
        """Put a node out for good: it is refused from the registry's word on, its peer and connection go at once.

        False where there is none of this name. Raises RegistryError, PrivateFileError; then nothing has changed.
        """
        store = await self._opened_if_made()
        if store is None:
            return False
        found = next((node for node in self._nodes.values() if node.name == name), None)
        if found is None or not await asyncio.to_thread(store.registry.remove, found.number):
            return False
        self._nodes.pop(found.number, None)
        self._daemon.cut(name)
        log.info("worker removed from the mesh", worker=name, why=why)
        try:
            await self._sync(store)
        except Fault as error:
            log.warning("a removed worker's peer is still there", worker=name, why=str(error))
            self._woken.set()
        return True

    def wake(self) -> None:
        """Have it look now at what it would look at later."""
        self._woken.set()

    # Keeping it

    async def run(self) -> None:
        """Keep the mesh up whenever it is needed, until cancelled."""
        if self._phase == "off":
            return
        wait = FIRST_WAIT
        while True:
            self._woken.clear()
            failed = ""
            try:
                store = await self._opened_if_made()
                if store is not None and await self._is_needed(store):
                    await self._be_up(store)
                    wait = FIRST_WAIT
            except Fault as error:
                failed = str(error)
                wait = LONGEST_WAIT if error.off else wait
            except (RegistryError, PrivateFileError) as error:
                failed = str(error)
            except Exception as error:  # the one around the mesh: its fault must not end the daemon
                log.exception("the mesh failed")
                failed = f"the mesh failed inside ({type(error).__name__}); the daemon's log says more"
            if failed:
                log.warning("the mesh is not up", why=failed, again_in=wait)
                self._tries += 1
                self._be("failing", failed)
                await self._rest(wait)
                wait = min(2 * wait, LONGEST_WAIT)
            else:
                self._be("idle", "")
                wait = FIRST_WAIT
                if not self._woken.is_set():
                    await self._rest(None)

    async def _be_up(self, store: _Store) -> None:
        """Be up until nothing needs it. Raises Fault, RegistryError."""
        self._be("starting", "")
        nodes = await asyncio.to_thread(store.registry.nodes)
        async with self._opening(self._wanted(store, nodes)) as interface, AsyncExitStack() as stack:
            stack.callback(self._let_go)
            stack.callback(self._drop_moved)
            self._moved = await interface.listen(self._options.control, self._move)
            self._interface, self._watch, self._since = interface, Watch(), self._now()
            self._nodes = {node.number: node for node in nodes}
            await self._sync(store)  # who was removed or joined since the registry was read
            door = await stack.enter_async_context(AsyncExitStack())
            stack.push_async_callback(self._stop_joining)
            self._listen_wait, self._listen_again = FIRST_WAIT, 0.0
            log.info("the mesh is up", how=interface.said, nodes=len(nodes))
            while True:
                await self._keep_admitting(door)
                await self._keep_joining(store)
                self._be("up", "")
                await self.look()
                if not await self._is_needed(store):
                    log.info("the mesh goes down: no worker has joined, and no token lets one")
                    return
                await self._rest(self._poll)

    def _move(self, sock: socket) -> None:
        """Workers dial at another socket from now on."""
        self._drop_moved()
        self._moved = sock
        self._woken.set()

    def _drop_moved(self) -> None:
        if self._moved is not None:
            self._moved.close()
            self._moved = None

    async def _keep_admitting(self, door: AsyncExitStack) -> None:
        """Let workers dial at the newest socket; connections that there are stay."""
        if (sock := self._moved) is not None:
            await door.aclose()
            self._moved = None
            await door.enter_async_context(self._daemon.admitting(sock))

    def _let_go(self) -> None:
        self._interface, self._actual = None, None
        self._daemon.changed()

    async def look(self) -> None:
        """Look at the interface once: who is heard, who is quiet, and who goes. Raises Fault."""
        store, interface = self._store, self._interface
        if store is None or interface is None:
            return
        before = [(member.node.number, member.path) for member in self.members()]
        if self._stale:
            await self._sync(store)
        self._actual = actual = await interface.state()
        now = self._now()
        heard = self._watch.heard(self._nodes.values(), actual, now)
        options = self._options
        try:
            changes = expiry.noted(
                self._nodes.values(), heard, self._since, now, options.quiet, options.still
            )
            if changes:
                await asyncio.to_thread(store.registry.note, changes)
                await self._read(store)
            awaited = self._daemon.awaited()
            for node in expiry.expired(self._nodes.values(), awaited, self._since, now, options.gone):
                await self.remove(node.name, "it is ephemeral and was not heard of for too long")
        except RegistryError as error:
            log.error("what was heard of workers is not kept", why=str(error))
            changes = {}
        if changes or before != [(member.node.number, member.path) for member in self.members()]:
            self._daemon.changed()

    async def _is_needed(self, store: _Store) -> bool:
        """Whether somebody has joined or could. Raises RegistryError."""
        now = self._now()
        if self._held or self._nodes or await asyncio.to_thread(_lets_join, store.registry, now):
            self._needed_until = now + LINGER
            return True
        return self._phase == "up" and now < self._needed_until

    # The join listener

    async def _keep_joining(self, store: _Store) -> None:
        """Open the join listener where it is not, and keep what it offers new."""
        try:
            self._offered = await asyncio.to_thread(self._daemon.offered)
            self._here = tuple(await asyncio.to_thread(self._hosts))
            if self._joining is None and (self._now() >= self._listen_again or self._held):
                self._joining = await self._start_joining(store)
                self._why_not_joining = ""
                self._listen_wait = FIRST_WAIT
                log.info("machines can join", at=list(self._joining.addresses))
        except ListenError as error:
            self._tries += 1
            self._listen_again = self._now() + self._listen_wait
            if str(error) != self._why_not_joining:
                log.warning("no machine can join", why=str(error))
            self._why_not_joining = str(error)
            self._listen_wait = min(2 * self._listen_wait, LONGEST_WAIT)

    async def _start_joining(self, store: _Store) -> _Joining:
        relay = Relay((LOOPBACK, self._options.port)) if self._options.relay else None
        async with AsyncExitStack() as stack:
            addresses = await stack.enter_async_context(
                listener.listening(
                    self._options.join_listen,
                    store.hub,
                    self._on_offer,
                    relay=relay,
                    joined=partial(self._joined, store),
                )
            )
            return _Joining(stack.pop_all(), addresses, relay)
        raise AssertionError("a stack lets no error pass")

    async def _stop_joining(self) -> None:
        joining, self._joining, self._why_not_joining = self._joining, None, ""
        if joining is not None:
            await joining.stack.aclose()

    def _on_offer(self) -> Offered:
        assert self._offered is not None, "it is there before the listener is"
        return self._offered

    async def _joined(self, store: _Store, reply: Reply) -> None:
        """A machine has joined: it is a peer before it is told so."""
        assert reply.node is not None
        await self._sync(store)
        log.info("a machine joined the mesh", worker=reply.node.name, hostname=reply.node.facts.hostname)
        self._daemon.changed()

    def _offer(self) -> Offer:
        """What every worker is told."""
        options = self._options
        return Offer(
            harness=options.name,
            endpoints=reachable.places(options.endpoints or self._here, options.port),
            control=options.control,
            mtu=options.mtu,
        )

    def _places(self, joining: _Joining) -> tuple[Place, ...]:
        """What tokens name."""
        options = self._options
        hosts = options.join_endpoints or [place.host for place in self._offer().endpoints]
        return tuple(dict.fromkeys(reachable.places(hosts, joining.port)))

    # The registry

    async def _opened(self) -> _Store:
        """The registry, made where there is none. Raises RegistryError, PrivateFileError."""
        async with self._opening_store:
            if self._store is None:
                self._store = await asyncio.to_thread(self._open)
                await self._read(self._store)
        return self._store

    async def _opened_if_made(self) -> _Store | None:
        """The registry, None where nobody has ever made a token. Raises RegistryError, PrivateFileError."""
        if self._store is None and not await asyncio.to_thread((self._data / registry.FILE).exists):
            return None
        return await self._opened()

    def _open(self) -> _Store:
        made = keys.hub(self._data / keys.FOLDER)
        opened = Registry(self._data / registry.FILE, made.wireguard.public, self._now)
        hub = Hub(made, opened, self._offer, self._now)
        return _Store(made, opened, hub, address.prefix(made.wireguard.public))

    async def close(self) -> None:
        """Let another process open the registry."""
        if self._store is not None:
            await asyncio.to_thread(self._store.registry.close)

    async def _read(self, store: _Store) -> Sequence[Node]:
        nodes = await asyncio.to_thread(store.registry.nodes)
        self._nodes = {node.number: node for node in nodes}
        return nodes

    async def _sync(self, store: _Store) -> None:
        """Have the interface's peers be the registry's nodes. Raises Fault, RegistryError."""
        async with self._turn:
            self._stale = True
            nodes = await self._read(store)
            if self._interface is not None:
                await self._interface.keep(self._wanted(store, nodes))
            self._stale = False

    def _wanted(self, store: _Store, nodes: Sequence[Node]) -> Wanted:
        return hub_wanted(nodes, store.keys.wireguard, self._options.port, self._options.mtu)

    # Waiting

    def _check_enabled(self) -> None:
        if not self._options.enabled:
            raise Down(f'{self._why}: set it to "auto" under [mesh], then `outrider down` and `outrider up`')

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Needed, as long as the context is open."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    async def _all_up(self) -> _Joining:
        """Return when machines can join; what failed is tried again at once. Raises Down."""
        await self._opened()
        failed = self._tries
        self._woken.set()
        try:
            async with asyncio.timeout(START):
                while self._joining is None or self._interface is None:
                    if self._tries > failed:
                        raise Down(f"the mesh is not up: {self._why or self._why_not_joining}")
                    await self._news.wait()
        except TimeoutError:
            raise Down(f"the mesh did not come up within {START:.0f} s; the daemon's log says more") from None
        return self._joining

    def _be(self, phase: Phase, why: str) -> None:
        changed = (phase, why) != (self._phase, self._why)
        self._phase, self._why = phase, why
        news, self._news = self._news, asyncio.Event()
        news.set()
        if changed:
            self._daemon.changed()

    async def _rest(self, seconds: float | None) -> None:
        """Until it is woken, or the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()


@asynccontextmanager
async def kept(mesh: Mesh, group: asyncio.TaskGroup) -> AsyncIterator[None]:
    """Keep the mesh in a task of `group` while the context is open; all of it is down afterwards."""
    task = group.create_task(mesh.run(), name="mesh")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        await mesh.close()


def _lets_join(registry: Registry, now: float) -> bool:
    return any(grant.good(now) and grant.uses for grant in registry.grants())
