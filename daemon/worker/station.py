"""A worker as a program: one link a scratch folder, what it says of itself to whoever asks, and how it is ended."""

import asyncio
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from daemon.allowance import Allowance
from daemon.protocol import dialing, frames
from daemon.worker import keeper, launch, link, smallfiles, tunnel, update
from daemon.worker.tunnel import Tunnel
from daemon.worker.update import Updater

LOCK: Final = "link.lock"
STATE: Final = "link.json"
MESH: Final = "mesh"  # of a worker that joined one: what is kept for that
DIAL_WAIT: Final = 5.0  # seconds for a harness to take a connection
LOOK_WAIT: Final = 3.0  # seconds for a keeper to say hello to who only looks
AGAIN: Final = 600.0  # seconds after which a reason that stays the same is logged again

log = logging.getLogger(__name__)


class LinkBusy(Exception):
    """Another link serves this scratch folder; the message names its process."""


class CannotWork(Exception):
    """There is no way to the harness on this machine; the message says why, and what would change that."""


class Removed(Exception):
    """The harness has put this worker out for ever; the message says so, and how it would come back."""


async def _never() -> str:
    await asyncio.Event().wait()
    return ""


class Harness(Struct, frozen=True, kw_only=True):
    """The far end of a link. `where`: it in words, for logs and `status`; `dial` opens a stream whose reader has the
    limit link.FIRST_LINE, or raises link.Gone.

    `kept`: what has to be open while it is dialled; opening it raises CannotWork. `over` returns when the harness has
    put this worker out, with a sentence.
    """

    where: str
    dial: Callable[[], Awaitable[link.Stream]]
    kept: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    over: Callable[[], Awaitable[str]] = _never


class Place(Struct, frozen=True, kw_only=True):
    """Where a worker works and for whom; `name` is what it calls itself there, which the harness may know better.

    `allowed`: what holds for its keeper, whatever the harness asks.
    """

    scratch: Path
    release: str
    allowed: Allowance
    harness: Harness
    name: str


class State(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a link says of itself, in link.json. Times are UTC, empty where there was none.

    `since`: when it came to its present state; `connected`: when it was connected last; `reason`: why it is not; `pid`:
    whose word it is, 0 where that is not known.
    """

    name: str
    harness: str
    release: str
    state: Literal["dialing", "connected"] = "dialing"
    since: str = ""
    connected: str = ""
    reason: str = ""
    pid: int = 0


class Standing(Struct, frozen=True, kw_only=True):
    """A worker as it is now. `link`, `keeper`: process ids, 0 where none runs; the keeper's part is its own word.

    `state` is `down` where no link runs: what is known of the link is then of the last one. `update`: how the last
    update failed, in a sentence. `mesh`: its end of the mesh, where it joined one.
    """

    scratch: str
    name: str = ""
    harness: str = ""
    state: Literal["down", "dialing", "connected"] = "down"
    since: str = ""
    connected: str = ""
    reason: str = ""
    update: str = ""
    link: int = 0
    link_release: str = ""
    keeper: int = 0
    keeper_release: str = ""
    interpreters: tuple[str, ...] = ()
    running: int = 0
    environments: int = 0
    mesh: Tunnel | None = None


async def work(place: Place) -> Path | None:
    """Be this worker's link, with a keeper beside it, until SIGTERM or SIGINT, or until it is to be another release.

    The keeper stays. That release's interpreter, to go on as at once; None after a signal. Raises LinkBusy and
    CannotWork; and Removed, when the keeper has ended too.
    """
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    try:
        await asyncio.to_thread(smallfiles.make_folder, place.scratch)
        with keeper.locked(place.scratch / LOCK):
            async with place.harness.kept():
                python = await _until(ending, place)
    except Removed:
        await launch.end(place.scratch)
        raise
    except keeper.Busy:
        pid = await asyncio.to_thread(keeper.holder, place.scratch / LOCK)
        raise LinkBusy(f"process {pid} is the worker of {place.scratch} already") from None
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    if python is None:
        pid = await asyncio.to_thread(keeper.holder, place.scratch / keeper.LOCK)
        log.info("the link ends; the keeper, process %d, goes on with what runs there", pid)
    return python


async def _until(ending: asyncio.Event, place: Place) -> Path | None:
    """Be linked until the end is asked for, or another release is there: its interpreter."""
    updater = Updater(
        place.scratch,
        place.release,
        dial=place.harness.dial,
        greeting=lambda purpose, news: greeting(place, purpose, news),
        allowed=place.allowed.update,
    )
    await updater.load()
    async with asyncio.TaskGroup() as group:
        linking = group.create_task(linked(place, updater).run(), name="link")
        updating = group.create_task(updater.run(), name="update")
        waiting = group.create_task(ending.wait(), name="end")
        over = group.create_task(_awaited(place.harness.over), name="over")
        await asyncio.wait({updating, waiting, over}, return_when=asyncio.FIRST_COMPLETED)
        python = updating.result() if updating.done() and not waiting.done() else None
        why = over.result() if over.done() else ""
        for task in (linking, updating, waiting, over):
            task.cancel()
    if why:
        raise Removed(why)
    return python


async def _awaited(wait: Callable[[], Awaitable[str]]) -> str:
    return await wait()


def greeting(place: Place, purpose: str, news: str) -> bytes:
    """What a link says first; `news` is of an update."""
    said = dialing.Greeting(place.name, frames.PROTOCOL, place.release, purpose, news)
    return dialing.greeting(said)


def on_socket(path: Path) -> Harness:
    """A harness of this machine, at its socket for workers."""
    return Harness(where=str(path), dial=lambda: dial(path))


def linked(place: Place, updater: Updater) -> link.Link:
    """The link of a place."""
    log_of = Log(place)
    return link.Link(
        harness=place.harness.dial,
        keeper=lambda: keep(place),
        release=place.release,
        greeting=lambda: greeting(place, dialing.WORK, updater.standing()),
        update=updater.asked,
        tell=log_of.tell,
    )


async def dial(socket: Path) -> link.Stream:
    """A stream to the harness's Unix socket. Raises Gone."""
    try:
        async with asyncio.timeout(DIAL_WAIT):
            return await asyncio.open_unix_connection(str(socket), limit=link.FIRST_LINE)
    except TimeoutError:
        raise link.Gone(f"the harness does not answer at {socket}") from None
    except OSError as error:
        raise link.Gone(f"the harness is not at {socket}: {error.strerror or error}") from error


async def keep(place: Place) -> link.Stream:
    """A stream to the keeper, which is started where none runs. Raises Gone."""
    try:
        path = await launch.ensure(place.scratch, place.release, place.allowed)
        return await asyncio.open_unix_connection(str(path), limit=link.PIECE)
    except launch.LaunchError as error:
        raise link.Gone(str(error)) from error
    except OSError as error:
        raise link.Gone(f"the keeper went as it was asked: {error.strerror or error}") from error


class Log:
    """Keeps link.json and the log: each change is told, a reason that stays is told now and then."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._state = State(
            name=place.name, harness=place.harness.where, release=place.release, pid=os.getpid()
        )
        self._said = 0.0

    async def tell(self, reason: str | None) -> None:
        """What became of the connection: None when it is made, why when it is not or no more."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        before = self._state
        passed = asyncio.get_running_loop().time()
        if reason is None:
            log.info("connected to %s as %s", self._place.harness.where, self._place.name)
            made = msgspec.structs.replace(before, state="connected", since=now, connected=now)
        else:
            if reason != before.reason or before.state == "connected" or passed >= self._said + AGAIN:
                log.warning("not connected, dialling again: %s", reason)
                self._said = passed
            since = before.since if before.state == "dialing" and before.since else now
            made = msgspec.structs.replace(before, state="dialing", since=since, reason=reason)
        if made == before:
            return
        self._state = made
        with suppress(OSError):  # who looks sees an older state; the connection is worth more
            await asyncio.to_thread(
                smallfiles.write_whole, self._place.scratch / STATE, msgspec.json.encode(made)
            )


async def look(scratch: Path) -> Standing:
    """How the worker of a scratch folder stands. Starts nothing."""
    pid = await asyncio.to_thread(keeper.holder, scratch / LOCK)
    said = await asyncio.to_thread(smallfiles.read, scratch / STATE, State)
    found = Standing(
        scratch=str(scratch),
        update=update.sentence(await asyncio.to_thread(update.load, scratch), time.time()),
        link=pid,
        keeper=await asyncio.to_thread(keeper.holder, scratch / keeper.LOCK),
        mesh=await tunnel.ask(scratch),
    )
    if said is not None:
        its = said.pid in (0, pid)  # else of a link before this one, which has not said anything yet
        found = msgspec.structs.replace(
            found,
            name=said.name,
            harness=said.harness,
            state=(said.state if its else "dialing") if pid else "down",
            since=said.since if pid and its else "",
            connected=said.connected,
            reason="" if said.state == "connected" else said.reason,  # else one from before it was
            link_release=said.release if pid else "",
        )
    if (hello := await _hello(scratch / keeper.SOCKET)) is None:
        return found
    return msgspec.structs.replace(
        found,
        keeper_release=hello.release,
        interpreters=hello.interpreters,
        running=hello.running,
        environments=hello.environments,
    )


async def _hello(path: Path) -> frames.Hello | None:
    """What a keeper says of itself, None where it does not answer."""
    with suppress(OSError, TimeoutError, launch.LaunchError):
        async with asyncio.timeout(LOOK_WAIT):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                return await launch.hello_of(reader)
            finally:
                writer.close()
    return None


async def end(scratch: Path) -> tuple[int, int]:
    """End the link and then the keeper of a scratch folder; their process ids, 0 for one that did not run."""
    found = tuple([await asyncio.to_thread(keeper.holder, scratch / name) for name in (LOCK, keeper.LOCK)])
    await asyncio.to_thread(launch.end_holder, scratch / LOCK)
    await launch.end(scratch)
    return found[0], found[1]


async def check(release: str) -> None:
    """Have a keeper of this installation started in a folder of its own, greet, and end. Raises LaunchError."""
    scratch = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="outrider-"))
    try:
        path = await launch.ensure(scratch, release)
        hello = await _hello(path)
        if hello is None or hello.release != release:
            raise launch.LaunchError("its keeper was started and does not answer")
    finally:
        await launch.end(scratch)
        await asyncio.to_thread(shutil.rmtree, scratch)


def log_to_stderr() -> None:
    """Have the link's log on stderr."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("asyncio").setLevel(logging.WARNING)
