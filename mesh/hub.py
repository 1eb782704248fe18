"""The harness's side of the mesh: registry, interface and entrance, kept up while they are needed.

Nothing is opened before it is needed: the files are made by the first token, and the ports are open while there is a
node or a token that lets one join, and LINGER longer, so that who comes late is told why.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from socket import socket
from typing import Final

import structlog

from mesh import reachable, script
from mesh.entrance import Entrance
from mesh.join import Reply
from mesh.keys import PrivateFileError
from mesh.members import Member
from mesh.members import Path as Way
from mesh.nodes import Grant, Node
from mesh.parts import Daemon, Down, Fault, Interface, Issued, Options, Phase, Status
from mesh.peering import Peering
from mesh.plan import Wanted
from mesh.registry import LIFETIME, RegistryError
from mesh.script import ScriptError
from mesh.store import Disk, Store

POLL: Final = 3.0  # seconds between two looks at the interface
LINGER: Final = 3600.0  # seconds that the ports stay open after the last need of them
FIRST_WAIT: Final = 1.0  # seconds before what failed is tried again; doubled each time
LONGEST_WAIT: Final = 60.0
LACKS: Final = "machines that join cannot install Outrider from here"
START: Final = 25.0  # seconds that a token waits for the mesh to come up

log = structlog.get_logger("mesh.hub")


class Mesh:
    """One harness's mesh, in its data folder. `run` keeps it; everything else may be called meanwhile.

    `opening` makes the interface; `now`: seconds since the epoch; `hosts`: this machine's own. What reads or changes
    the registry raises RegistryError, and PrivateFileError where it is opened.
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
        self._options = options
        self._daemon = daemon
        self._opening = opening
        self._now = now
        self._poll = poll
        self._entrance = Entrance(options, daemon, hosts, now, self._joined)
        self._disk = Disk(data, self._entrance.offer, now, daemon.names)
        self._peering = Peering(options, now)
        self._moved: socket | None = None  # where workers dial from now on
        self._held = 0
        self._needed_until = 0.0
        self._phase: Phase = "idle" if options.enabled else "off"
        self._why = "" if options.enabled else "mesh.backend is off in outrider.toml"
        self._tries = 0  # that failed
        self._woken = asyncio.Event()
        self._news = asyncio.Event()

    # What others ask

    def name_at(self, host: str) -> str | None:
        """The name of the node that has this address inside the mesh; None: it is nobody's, or the harness's own."""
        if (store := self._disk.opened) is None:
            return None
        node = self._peering.at(store, host)
        return None if node is None else node.name

    def named(self, name: str) -> bool:
        """Whether there is a node of this name."""
        return self._peering.named(name)

    def members(self) -> tuple[Member, ...]:
        """Every node, as it stood at the last look."""
        store = self._disk.opened
        return () if store is None else self._peering.members(store, self._entrance.relay)

    def status(self) -> Status:
        """How it stands."""
        options, entrance, up = self._options, self._entrance, self._phase == "up"
        return Status(
            phase="failing" if up and entrance.why else self._phase,
            name=options.name,
            why=self._why or entrance.why or (entrance.lacks and f"{LACKS}: {entrance.lacks}"),
            said=self._peering.said,
            address=self._disk.opened.address if self._disk.opened is not None else "",
            port=options.port if up else 0,
            control=options.control if up else 0,
            join=entrance.addresses,
            endpoints=tuple(map(str, entrance.offer().endpoints)) if up else (),
            nodes=len(self._peering),
            relay=entrance.counts,
        )

    async def issue(
        self, *, label: str = "", uses: int = 1, lifetime: float = LIFETIME, ephemeral: bool = False
    ) -> Issued:
        """Make a token, with the mesh up for who joins by it. Raises Down, ValueError (the field first)."""
        if not self._options.enabled:
            raise Down(f'{self._why}: set it to "auto" under [mesh], then `outrider down` and `outrider up`')
        with self._holding():
            store = await self._all_up()
            try:
                served = await self._entrance.renew(store)
            except ScriptError as error:
                raise Down(f"no machine can join: {error}") from error
            places = self._entrance.places()
            make = partial(
                store.hub.issue, places, label=label, uses=uses, lifetime=lifetime, ephemeral=ephemeral
            )
            text, grant = await asyncio.to_thread(make)
        log.info("join token made", id=grant.id, name=label, uses=uses, ephemeral=ephemeral)
        return Issued(text=text, line=script.shell_line(places, script.sha256(served), text), grant=grant)

    async def grants(self) -> tuple[Grant, ...]:
        """Every token that was made."""
        store = await self._disk.open_if_made()
        return () if store is None else await asyncio.to_thread(store.registry.grants)

    async def revoke(self, number: int) -> bool:
        """Let a token admit nobody any more; False where there is none of this id, or it was revoked before."""
        store = await self._disk.open_if_made()
        if store is None or not await asyncio.to_thread(store.registry.revoke, number):
            return False
        log.info("join token revoked", id=number)
        return True

    async def remove(self, name: str, why: str = "its operator removed it") -> bool:
        """Put a node out for good: it is refused from the registry's word on, its peer and connection go at once.

        False where there is none of this name. Where it raises, nothing has changed.
        """
        if (store := await self._disk.open_if_made()) is None:
            return False
        node = await asyncio.to_thread(store.registry.named, name)
        if node is None or not await asyncio.to_thread(store.registry.remove, node.number):
            return False
        self._peering.forget(node)
        self._daemon.cut(name)
        log.info("worker removed from the mesh", worker=name, why=why)
        try:
            await self._peering.sync(store)
        except Fault as error:
            log.warning("a removed worker's peer is still there", worker=name, why=str(error))
            self._woken.set()
        return True

    async def close(self) -> None:
        """Let another process open the registry."""
        await self._disk.close()

    def wake(self) -> None:
        """Have it look now at what it would look at later."""
        self._woken.set()

    # Keeping it

    async def run(self) -> None:
        """Keep the mesh up whenever it is needed, until cancelled."""
        if not self._options.enabled:
            return await self._show_those_who_joined()
        wait = FIRST_WAIT
        while True:
            self._woken.clear()
            failed = ""
            try:
                store = await self._disk.open_if_made()
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
            if not failed:
                self._be("idle", "")
                await self._rest(None)
                continue
            log.warning("the mesh is not up", why=failed, again_in=wait)
            self._tries += 1
            self._be("failing", failed)
            await self._rest(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _show_those_who_joined(self) -> None:
        try:
            if (store := await self._disk.open_if_made()) is not None:
                await self._peering.read(store)
                self._daemon.changed()
        except (RegistryError, PrivateFileError) as error:
            log.error("who has joined is not known", why=str(error))

    async def _be_up(self, store: Store) -> None:
        """Be up until nothing needs it. Raises Fault, RegistryError."""
        self._be("starting", "")
        nodes = await self._peering.read(store)
        async with self._opening(self._peering.wanted(store, nodes)) as interface, AsyncExitStack() as stack:
            stack.callback(self._let_go)
            self._moved = await interface.listen(self._options.control, self._move)
            self._peering.begin(interface)
            await self._peering.sync(store)  # who was removed or joined since the registry was read
            door = await stack.enter_async_context(AsyncExitStack())
            stack.push_async_callback(self._entrance.close)
            log.info("the mesh is up", how=interface.said, nodes=len(nodes))
            while True:
                await self._keep_admitting(door)
                await self._entrance.keep(store, bool(self._held))
                self._be("up", "")
                await self.look()
                if not await self._is_needed(store):
                    log.info("the mesh goes down: no worker has joined, and no token lets one")
                    return
                await self._rest(self._poll)

    def _let_go(self) -> None:
        self._drop_moved()
        self._peering.end()
        self._daemon.changed()

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

    async def look(self) -> None:
        """Look at the interface once: who is heard, who is quiet, and who goes. Raises Fault."""
        if (store := self._disk.opened) is None:
            return
        before = self._ways()
        if not await self._peering.look(store):
            return
        try:
            for node in await self._peering.expired(store, self._daemon.awaited()):
                await self.remove(node.name, "it is ephemeral and was not heard of for too long")
        except RegistryError as error:
            log.error("what was heard of workers is not kept", why=str(error))
        if before != self._ways():
            self._daemon.changed()

    def _ways(self) -> list[tuple[Node, Way]]:
        """What of the members is news when it changes."""
        return [(member.node, member.path) for member in self.members()]

    async def _is_needed(self, store: Store) -> bool:
        """Whether somebody has joined or could. Raises RegistryError."""
        now = self._now()
        needed = bool(
            self._held
            or await asyncio.to_thread(store.registry.nodes)
            or await asyncio.to_thread(store.lets_join, now)
        )
        if needed:
            self._needed_until = now + LINGER
        lets_hear = self._phase == "up" and bool(self._entrance.addresses)  # whoever comes late, why not
        return needed or (lets_hear and now < self._needed_until)

    async def _joined(self, reply: Reply) -> None:
        """A machine has joined: it is a peer before it is told so. Or it leaves, and is out by then."""
        if reply.stuck is not None and (store := self._disk.opened) is not None:
            await self._peering.begin_anew(store, reply.stuck)
        if reply.node is None:
            return
        if reply.left:
            await self.remove(reply.node.name, "it left")
            return
        await self._peering.sync(await self._disk.open())
        log.info("a machine joined the mesh", worker=reply.node.name, hostname=reply.node.facts.hostname)
        self._daemon.changed()

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Needed, as long as the context is open. Where it fails, what it alone needed goes down at once."""
        self._held += 1
        try:
            yield
        except BaseException:
            self._woken.set()
            raise
        finally:
            self._held -= 1

    async def _all_up(self) -> Store:
        """Return when machines can join; what failed is tried again at once. Raises Down."""
        store = await self._disk.open()
        failed = self._tries + self._entrance.tries
        self._woken.set()
        try:
            async with asyncio.timeout(START):
                while not self._entrance.addresses or self._peering.interface is None:
                    if self._tries + self._entrance.tries > failed:
                        raise Down(f"the mesh is not up: {self._why or self._entrance.why}")
                    await self._news.wait()
        except TimeoutError:
            raise Down(f"the mesh did not come up within {START:.0f} s; the daemon's log says more") from None
        return store

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
