"""The mesh as the rest of the daemon has it: made from the settings, its words those of the API, its refusals too."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog
from msgspec.structs import replace

from daemon import admission
from daemon.admission import Door
from daemon.config import ConfigError
from daemon.harness.errors import Conflict, Invalid, NoSpace, NotFound
from daemon.meshtable import MeshTable
from daemon.ownfile import OwnFileError
from daemon.protocol import api
from daemon.protocol.dialing import LOCAL
from daemon.release import WheelError
from mesh import interface, keys, naming, reachable, shelf
from mesh.address import BadPlaceError
from mesh.hub import Mesh
from mesh.keeping import kept
from mesh.keys import PrivateFileError
from mesh.members import Member
from mesh.nodes import Grant
from mesh.parts import Down, Goods, Interface, Issued, Options
from mesh.plan import Wanted
from mesh.registry import RegistryError
from mesh.shelf import Shelf
from mesh.wheelhouse import Wheel

EXAMINED: Final = 60.0  # seconds for which what was found out of this machine holds
NO_WHEEL: Final = 60.0  # seconds before a wheel that could not be made is tried again

log = structlog.get_logger()

Opening = Callable[[Wanted], AbstractAsyncContextManager[Interface]]
Examining = Callable[[], Awaitable[tuple[bool, str]]]


class Workers(Protocol):
    """What the mesh asks of the pool, beside what a door does."""

    def names(self) -> tuple[str, ...]: ...

    def awaited(self) -> set[str]: ...

    def remove(self, name: str) -> None: ...

    def knows(self, name: str) -> bool: ...

    def cordoned(self, name: str) -> bool: ...

    async def cordon(self, name: str, cordoned: bool) -> None: ...


class Meshed:
    """One daemon's mesh: what the API asks of it, and what it asks of the daemon.

    `workers` is the pool, at whose `door` those of the mesh are; `changed` is called when `joined` is another;
    `group` owns what it begins. `opening` and `now` are the real ones unless given.
    """

    def __init__(
        self,
        data: Path,
        table: MeshTable,
        workers: Workers,
        offer: admission.Offer,
        door: Callable[[admission.Admission], Door],
        changed: Callable[[], None],
        group: asyncio.TaskGroup,
        *,
        opening: Opening | None = None,
        examine: Examining | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        made = opening or partial(interface.opening, folder=data / keys.FOLDER, backend=table.backend)
        self.mesh = Mesh(data, options(table), self, made, now=now)
        self._workers = workers
        self._offer = offer
        self._door = door(admission.Registered(self.mesh.name_at))
        self._changed = changed
        self._group = group
        self._now = now
        self._shelf = Shelf(data / shelf.FOLDER)
        self._no_wheel_until = 0.0
        self._no_wheel = ""  # why
        self._examine = examine or partial(interface.examine, table.backend, table.port)
        self._examined: tuple[float, bool, str] = (-EXAMINED, True, "")

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep the mesh up while it is needed, and the context is open."""
        async with kept(self.mesh, self._group):
            try:
                yield
            finally:
                await self._door.hang_up()  # while there is an interface to say it by

    def joined(self) -> Mapping[str, api.WorkerInfo]:
        """The machines that joined, by name."""
        return {member.node.name: _worker(member) for member in self.mesh.members()}

    # What the API asks

    def describe(self) -> api.MeshInfo:
        """How the mesh stands."""
        found = self.mesh.status()
        relay = (
            None
            if found.relay is None
            else msgspec.convert(found.relay, api.RelayCounts, from_attributes=True)
        )
        return api.MeshInfo(
            state=found.phase,
            name=found.name,
            why=found.why,
            how=found.said,
            address=found.address,
            port=found.port,
            control=found.control,
            join=found.join,
            endpoints=found.endpoints,
            workers=found.nodes,
            relay=relay,
        )

    async def examined(self) -> api.MeshInfo:
        """The same; and of a mesh that nobody has needed yet, how it would be made, or why it cannot."""
        found = self.describe()
        if found.state != "idle":
            return found
        at, can, said = self._examined
        if self._now() >= at + EXAMINED:
            can, said = await self._examine()
            self._examined = (self._now(), can, said)
        return replace(found, how=said) if can else replace(found, why=said)

    async def tokens(self) -> Sequence[api.TokenInfo]:
        """Every join token, by id. Raises NoSpace."""
        with _translated():
            grants = await self.mesh.grants()
        members = self.mesh.members()
        return [
            _token(grant, self._now(), [m.node.name for m in members if m.node.token == grant.id])
            for grant in grants
        ]

    async def make_token(self, new: api.NewToken) -> api.TokenMade:
        """Make a join token, with the mesh up for it. Raises Conflict, Invalid, NoSpace."""
        with _translated():
            made = await self.mesh.issue(
                label=new.name, uses=new.uses, lifetime=new.expires, ephemeral=new.ephemeral
            )
        return _made(made)

    async def revoke_token(self, id: int) -> None:
        """Let a token admit nobody any more. Raises NotFound, NoSpace."""
        with _translated():
            if not await self.mesh.revoke(id):
                if any(grant.id == id for grant in await self.mesh.grants()):
                    return  # it was, before
                raise NotFound(f"there is no token {id}; `outrider token` lists them")

    async def remove_worker(self, name: str) -> None:
        """Put a worker of the mesh out for good. Raises NotFound, Conflict for one that is not of the mesh, NoSpace."""
        with _translated():
            if await self.mesh.remove(name):
                return
        if name == LOCAL:
            raise Conflict(
                f"{name} is the worker that this daemon keeps by itself, and cannot be removed; "
                f"`outrider worker cordon {name}` has it take nothing new"
            )
        if self._workers.knows(name):
            raise Conflict(
                f"{name} has not joined the mesh, it dials at this machine's socket: `outrider worker down` there "
                "ends it"
            )
        raise NotFound(f"there is no worker {name}")

    # What the mesh asks

    def names(self) -> tuple[str, ...]:
        return self._workers.names()

    def awaited(self) -> set[str]:
        return self._workers.awaited()

    def cut(self, name: str) -> None:
        self._workers.remove(name)
        if self._workers.cordoned(name):  # or the next one of this name would be
            self._group.create_task(self._uncordon(name), name=f"uncordon {name}, which was removed")

    async def _uncordon(self, name: str) -> None:
        try:
            await self._workers.cordon(name, False)
        except OwnFileError as error:
            log.warning("a worker that was removed is still cordoned", worker=name, why=str(error))

    def changed(self) -> None:
        self._changed()

    def admitting(self, sock: socket.socket) -> AbstractAsyncContextManager[None]:
        return self._door.open(sock)

    async def goods(self) -> Goods:
        wheels = await asyncio.to_thread(self._shelf.read)
        if self._now() < self._no_wheel_until:
            return Goods(None, wheels, self._no_wheel)
        try:
            made = await self._offer.wheel()
        except WheelError as error:
            log.warning("machines that join cannot install this release from here", why=str(error))
            self._no_wheel_until = self._now() + NO_WHEEL
            self._no_wheel = str(error)
            return Goods(None, wheels, self._no_wheel)
        return Goods(Wheel(made.name, made.sha256, made.size, made.path), wheels)


def options(table: MeshTable) -> Options:
    """The table as the mesh takes it. Raises ConfigError."""
    for key, texts in (("endpoints", table.endpoints), ("join_endpoints", table.join_endpoints)):
        try:
            reachable.places(texts, table.port)
        except BadPlaceError as error:
            raise ConfigError(f"mesh.{key}: {error}") from error
    return Options(
        name=table.name or naming.name_of(socket.gethostname()),
        port=table.port,
        join_listen=table.listens,
        control=table.control_port,
        endpoints=table.endpoints,
        join_endpoints=table.join_endpoints,
        mtu=table.mtu,
        relay=table.relay,
        quiet=table.quiet,
        still=table.still,
        gone=table.gone,
        enabled=table.backend != "off",
    )


@contextmanager
def _translated() -> Iterator[None]:
    """Turn what the mesh refuses into what a client is told."""
    try:
        yield
    except Down as error:
        raise Conflict(str(error)) from error
    except ValueError as error:
        raise Invalid(str(error)) from error
    except (RegistryError, PrivateFileError) as error:
        raise NoSpace(f"nothing was changed: {error}") from error


def _worker(member: Member) -> api.WorkerInfo:
    node, facts = member.node, member.node.facts
    return api.WorkerInfo(
        name=node.name,
        state="gone",
        release=facts.release,
        os=facts.os,
        arch=facts.arch,
        hostname=facts.hostname,
        mesh=api.Membership(
            address=member.address,
            joined=_time(node.joined),
            token=node.token,
            ephemeral=node.ephemeral,
            path=member.path,
            endpoint=member.endpoint,
            handshake=_time(member.handshake) if member.handshake else "",
            rx=member.rx,
            tx=member.tx,
            quiet=_time(node.quiet) if node.quiet is not None else "",
        ),
    )


def _token(grant: Grant, now: float, joined: Sequence[str]) -> api.TokenInfo:
    return api.TokenInfo(
        id=grant.id,
        name=grant.label,
        state="revoked"
        if grant.revoked is not None
        else "expired"
        if now >= grant.expires
        else "good"
        if grant.uses
        else "used",
        uses=grant.uses,
        created=_time(grant.created),
        expires=_time(grant.expires),
        ephemeral=grant.ephemeral,
        joined=tuple(joined),
    )


def _made(made: Issued) -> api.TokenMade:
    grant = made.grant
    return api.TokenMade(
        id=grant.id,
        name=grant.label,
        uses=grant.uses,
        created=_time(grant.created),
        expires=_time(grant.expires),
        ephemeral=grant.ephemeral,
        token=made.text,
        line=made.line,
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
