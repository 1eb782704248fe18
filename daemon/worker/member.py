"""A worker's harness inside of a mesh: the interface is kept up, its best way found, and the control port dialled.

The connections are all that leads into the mesh: the interface is in a network namespace of its own, which neither
this process nor what it starts is in. Where no packet passes, the join listener is asked how this machine stands:
whether it was removed, which is the one thing that ends a worker, and whether what it was told is another by now.
"""

import asyncio
import itertools
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from daemon.worker import link, tunnel
from daemon.worker.interface import Pointing, Up
from daemon.worker.joining import FOLDER
from daemon.worker.station import CannotWork, Harness
from daemon.worker.tunnel import Tunnel
from mesh import address, asking, identity, privilege
from mesh.address import HARNESS, Place
from mesh.asking import AskError, Refused
from mesh.detour import detour
from mesh.identity import Membership, PrivateFileError
from mesh.node import MeshError, MeshOff, Node
from mesh.path import State
from mesh.picking import Backend
from mesh.relay import PATH as RELAY
from mesh.wanted import worker_wanted
from mesh.wayfinder import Relays, finding

NODE: Final = "node"  # in the mesh's folder: the helper's logs and lock
DIAL: Final = 3.0  # seconds for a connection: two packets more after the first, and it is dialled again
POINTED: Final = 10.0  # seconds for names to be resolved
ASK_EVERY: Final = 60.0  # seconds between two questions how this machine stands, half to whole of it
ASK_AGAIN: Final = 10.0  # … after one that nobody answered: the harness may be starting
UP_AGAIN: Final = 5.0  # seconds until an interface is tried again that could not be made anew
MAKING: Final = "the mesh's interface is being made"
UNKNOWN: Final = (  # join.sh looks for its beginning
    "; it does not know this machine: it has lost its registry, or is an older copy. To join anew, end this worker and "
    "use a token of `outrider token new` there"
)

log = logging.getLogger(__name__)


class Member:
    """One worker of one mesh. `backend` and `mtu`: of the machine's configuration; 0 bytes: as the harness says.

    `launcher`: a command that starts the mesh's helper for us, which inherits the descriptors `lent`.
    """

    def __init__(
        self,
        scratch: Path,
        membership: Membership,
        *,
        backend: str = "auto",
        mtu: int = 0,
        launcher: tuple[str, ...] = (),
        lent: tuple[int, ...] = (),
    ) -> None:
        self._scratch = scratch
        self._membership = membership
        self._backend = msgspec.convert(backend, Backend)
        self._mtu = mtu
        self._launcher = launcher
        self._lent = lent
        self._up: Up | None = None
        self._why = MAKING
        self._renewed = asyncio.Event()
        self._over = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._unknown = ""  # that the harness does not know this machine, or what it has against it
        self._asked = 0.0
        self._unheard = ""  # why nobody said how this machine stands
        self._asking: asyncio.Task[None] | None = None

    @property
    def harness(self) -> Harness:
        """The far end, for the link."""
        answer = self._membership.answer
        where = f"{answer.harness or 'the harness'} at [{self._hub}]:{answer.control}"
        return Harness(where=where, dial=self.dial, kept=self.kept, over=self.over)

    @property
    def _hub(self) -> IPv6Address:
        return address.address(self._membership.answer.prefix, HARNESS)

    async def over(self) -> str:
        """Wait until the harness has put this machine out; what to say then. Raises what ended the mesh otherwise."""
        await self._over.wait()
        if self._keeping is not None and self._keeping.done():
            self._keeping.result()
        return (
            f"{self._membership.answer.harness or 'the harness'} has removed this machine from its mesh: join again "
            "with `outrider worker --join TOKEN`, a token of `outrider token new` there"
        )

    # The interface

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """The interface, while the context is open; one that cannot be made is tried again for ever.

        Raises CannotWork where this machine lacks what it takes, or its key cannot be read, as it begins.
        """
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(tunnel.answering(self._scratch, self.say))
            except OSError as error:
                raise CannotWork(f"{self._scratch / tunnel.SOCKET} cannot be: {error.strerror}") from error
            keeping = asyncio.create_task(self._keep(first), name="mesh member")  # noqa: TID251 - owned by this context
            keeping.add_done_callback(lambda _: self._over.set())
            self._keeping = keeping
            stack.push_async_callback(self._end, keeping)
            await asyncio.wait({first, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                keeping.result()
            await first
            yield

    async def _end(self, keeping: "asyncio.Task[None]") -> None:
        tasks = {task for task in (keeping, self._asking) if task is not None}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()  # never swallow what ended it

    async def _keep(self, first: "asyncio.Future[None]") -> None:
        """Have the interface up by what the membership says now."""
        while True:
            self._renewed.clear()
            try:
                async with self._opened() as up:
                    self._up = up
                    log.info("the mesh is up: %s", up.node.said)
                    if not first.done():
                        first.set_result(None)
                    await self._renewed.wait()
                    log.info("the mesh is set up anew: the harness says other things by now")
            except (MeshError, PrivateFileError) as error:
                # A machine that boots may have no network yet, and whoever started us does not look any more.
                if not first.done() and isinstance(error, MeshOff | PrivateFileError):
                    first.set_exception(CannotWork(str(error)))
                    return
                if self._why != str(error):
                    log.error("the mesh cannot be set up, it is tried again: %s", error)
                self._why = str(error)
                if not first.done():
                    first.set_result(None)
                await asyncio.sleep(UP_AGAIN)
            finally:
                self._up = None

    @property
    def _folder(self) -> Path:
        return self._scratch / FOLDER

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Up]:
        membership = self._membership
        answer = membership.answer
        pair = await asyncio.to_thread(identity.pair, self._folder)
        wanted = worker_wanted(answer, pair, mtu=min(self._mtu or answer.mtu, answer.mtu))
        node = Node(
            wanted,
            folder=self._folder / NODE,
            backend=self._backend,
            launcher=self._launcher,
            lent=self._lent,
        )
        async with node:
            # Of a user namespace its way out decides by which port WireGuard's packets come.
            port = 0 if "user namespace" in node.said else (await node.state()).port
            spoke = Pointing(node, membership)
            relays = _relays(membership.places, port) if answer.relay else None
            async with finding(spoke, answer.endpoints, relays, full=wanted.mtu) as finder:
                yield Up(node, wanted, spoke, finder)

    # Dialling

    async def dial(self) -> link.Stream:
        """A connection to the harness's control port. Raises link.Gone."""
        up = self._up
        if up is None:
            if self._why != MAKING:
                self._wonder()
            raise link.Gone(f"{self._why}{self._unknown}")
        try:
            async with asyncio.timeout(POINTED):
                await up.spoke.pointed.wait()
        except TimeoutError:
            self._no_answer(up)
            raise link.Gone(
                "none of the harness's endpoints has an address: are its names resolved here?"
            ) from None
        try:
            sock = await up.node.dial(self._hub, self._membership.answer.control, DIAL)
        except ConnectionRefusedError:
            raise link.Gone("the harness is reached, and takes no workers now") from None
        except (MeshError, OSError) as error:
            self._no_answer(up)
            if isinstance(error, TimeoutError):
                await up.greet_anew()
            raise link.Gone(f"{self._spoken(error)} ({up.finder.path}){self._unknown}") from error
        self._unknown = ""
        if up.finder.state is State.RELAYED:
            # It may be heard elsewhere by now, and by the relay nothing would ever fail. When this connection is lost
            # the question is another one, and does not wait for long.
            self._wonder(ASK_AGAIN)
        try:
            stream = await asyncio.open_connection(sock=sock, limit=link.FIRST_LINE)
        except OSError as error:
            sock.close()
            raise link.Gone(f"the connection broke: {error.strerror or error}") from error
        up.spoke.connections.add(stream[1])
        up.finder.doubt()
        return stream

    def _spoken(self, error: Exception) -> str:
        name = self._membership.answer.harness or "the harness"
        if isinstance(error, TimeoutError):
            return f"{name} does not answer"
        return (
            f"{name} is not reached: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        )

    def _no_answer(self, up: Up) -> None:
        """Nothing came back: try other ways, and ask what became of this machine."""
        up.finder.suspect()
        self._wonder()

    def _wonder(self, wait: float = ASK_EVERY) -> None:
        """Ask what became of this machine, once it is time to ask again; `wait`: seconds until the time after that."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(wait), name="mesh standing")  # noqa: TID251 - ended by `_end`

    async def _ask(self, wait: float) -> None:
        """Learn from the join listener what became of this machine."""
        await asyncio.sleep(self._asked - time.monotonic())
        before = self._membership
        try:
            pair = await asyncio.to_thread(identity.pair, self._folder)
            told, answer, place = await asking.stand(before, pair, os.environ)
            self._unheard = ""
            if told.state == "removed":
                gone = msgspec.structs.replace(before, removed=True)
                await asyncio.to_thread(identity.save, self._folder, gone)
                self._over.set()
            elif answer is None:
                self._unknown = UNKNOWN
            elif (renewed := asking.renewed(before, answer, place)) != before:
                await asyncio.to_thread(identity.save, self._folder, renewed)
                self._membership = renewed
                if answer != before.answer:
                    self._renewed.set()
        except AskError as error:
            if self._unheard != str(error):  # a network may be away for days
                log.info("how this machine stands is not known: %s", error)
            self._unheard = str(error)
            self._unknown = f"; {error}" if isinstance(error, Refused) else ""
            wait = ASK_AGAIN
        except PrivateFileError as error:
            log.error("%s", error)
        self._asked = time.monotonic() + wait * random.uniform(0.5, 1.0)  # noqa: S311 - so that not all ask at once

    # What is said of it

    async def say(self) -> Tunnel:
        """How it stands now."""
        answer = self._membership.answer
        said = Tunnel(name=answer.name, harness=answer.harness, address=str(answer.address), path=self._why)
        if (up := self._up) is None:
            return said
        standing = up.finder.relay()
        relay = "" if standing is None else f"{standing.state}{standing.reason and f': {standing.reason}'}"
        if standing is not None and standing.proxy:
            relay += f", by the proxy {standing.proxy}"
        said = msgspec.structs.replace(
            said, path=up.finder.path, relay=relay, how=up.node.said, mtu=up.node.mtu
        )
        with suppress(OSError):
            peer = await up.spoke.look()
            at = datetime.fromtimestamp(peer.handshake, UTC).isoformat(timespec="milliseconds")
            said = msgspec.structs.replace(
                said,
                handshake=at.replace("+00:00", "Z") if peer.handshake else "",
                rx=peer.rx,
                tx=peer.tx,
            )
        return said


def _relays(places: Sequence[Place], port: int) -> Relays:
    """Opens the relay's end, by one place of the join listener after the other. `port`: our WireGuard's; 0: any."""
    turn = itertools.cycle(places)
    return lambda: detour(f"ws://{next(turn)}{RELAY}", wireguard=port, environ=os.environ)


def prepare() -> None:
    """Have what the mesh says in the link's log, and let no other process of this user take this one's connections."""
    privilege.close_to_others()
    structlog.configure(
        processors=[_plainly],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _plainly(_: Any, __: str, event: structlog.typing.EventDict) -> str:
    said = str(event.pop("event"))
    more = ", ".join(f"{name}: {value}" for name, value in event.items() if value != "")
    return f"{said} ({more})" if more else said
