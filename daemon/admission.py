"""Admit the workers that dial this daemon: each gets its name, and the daemon's release; then it is the pool's."""

import asyncio
import os
import socket
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import structlog
from msgspec.structs import replace

from daemon import release as release_of_this
from daemon.anteroom import Anteroom
from daemon.api import listening
from daemon.protocol import dialing, frames
from daemon.protocol.dialing import Greeting
from daemon.release import Wheel, WheelError
from daemon.worker.keeper import peer

MOST: Final = (
    16  # connections of one worker at once: it has one, one or two more for an update, and some that it lost
)
CROWD_EVERY: Final = 60.0  # seconds between two words on connections that were closed for want of a place
HANG_UP: Final = 0.5  # seconds for workers to hear that this daemon goes
CLOSE_WAIT: Final = 2.0  # seconds for a refusal to be taken up
TAKEN: Final = 64 << 10  # bytes taken at once of what a refused one sends
FOLDER: Final = "release"  # in the data folder: the daemon's own wheel

log = structlog.get_logger()


class NotAdmitted(Exception):
    """This connection is not served; the message says why, to whoever dialed and in the log."""


class Admission(Protocol):
    """Says who is at the other end of a connection, before anything is read from it."""

    async def admit(self, sock: socket.socket) -> str:
        """The worker's name; empty: the one that it gives itself. Raises NotAdmitted."""

    def check(self, sock: socket.socket, name: str) -> None:
        """See that a worker may be served here under this name, now. Raises NotAdmitted."""


class OwnWord:
    """Takes a worker's own word, its first line: for a socket that only processes of our own user get at.

    `taken`: whether a name is another's.
    """

    def __init__(self, taken: Callable[[str], bool] = lambda name: False) -> None:
        self._taken = taken

    async def admit(self, sock: socket.socket) -> str:
        _, uid, _ = peer(sock)
        if uid != os.getuid():
            raise NotAdmitted(f"user {uid} may not be a worker of user {os.getuid()}'s daemon")
        return ""

    def check(self, sock: socket.socket, name: str) -> None:
        if self._taken(name):
            raise NotAdmitted(
                f"the name {name} is that of a machine that joined the mesh: give the worker another"
            )


class Registered:
    """Takes the registry's word, by the address inside the mesh: nobody sends from there but who has its key.

    `name_at`: the name of who has an address now, None where nobody may.
    """

    def __init__(self, name_at: Callable[[str], str | None]) -> None:
        self._name_at = name_at

    async def admit(self, sock: socket.socket) -> str:
        try:
            host = sock.getpeername()[0]
        except OSError as error:
            raise NotAdmitted(f"it is gone: {error.strerror}") from error
        if not (name := self._name_at(host)):
            raise NotAdmitted(f"no worker has the address {host}: it was removed, or has never joined")
        return name

    def check(self, sock: socket.socket, name: str) -> None:
        try:
            same = self._name_at(sock.getpeername()[0]) == name
        except OSError:
            same = False
        if not same:
            raise NotAdmitted(f"worker {name} was removed, or is gone")


class Workers(Protocol):
    """What the pool does for those that dial."""

    async def serve(self, name: str, reader: StreamReader, writer: StreamWriter) -> None:
        """Be the harness's end of one connection until it ends."""

    def note(self, name: str, text: str) -> None:
        """Show this of a worker beside its state, until another note comes; empty: nothing."""

    def turn_away(self, name: str, reason: str) -> None:
        """List a worker that is not let in, unless it is here by another connection."""


class Offer:
    """This daemon's release, for workers of others: the wheel is made when the first one asks, and kept."""

    def __init__(
        self, release: str, folder: Path, make: Callable[[Path], Wheel] = release_of_this.wheel
    ) -> None:
        self.release = release
        self._folder = folder
        self._make = make
        self._made: Wheel | None = None
        self._turn = asyncio.Lock()

    async def wheel(self) -> Wheel:
        """The daemon's own wheel. Raises WheelError."""
        async with self._turn:
            if self._made is None or not await asyncio.to_thread(self._made.path.is_file):
                self._made = await asyncio.to_thread(self._make, self._folder)
        return self._made

    async def update(self, refused: str = "") -> tuple[frames.Update, Wheel | None]:
        """What a worker of another release is told, and the wheel where there is one."""
        try:
            made = await self.wheel()
        except WheelError as error:
            log.warning("workers of other releases cannot update themselves", why=str(error))
            return frames.Update(release=self.release, missing=str(error), refused=refused), None
        update = frames.Update(release=self.release, sha256=made.sha256, size=made.size, refused=refused)
        return update, made


class Door:
    """A listening socket at which workers dial; `group` owns the connections, which outlive the listening."""

    def __init__(
        self, admission: Admission, workers: Workers, offer: Offer, group: asyncio.TaskGroup
    ) -> None:
        self._admission = admission
        self._workers = workers
        self._offer = offer
        self._group = group
        self._waiting: Anteroom[StreamWriter] = Anteroom()
        self._named: Counter[str] = Counter()  # connections by the worker's name
        self._told = -CROWD_EVERY
        self._writers: set[StreamWriter] = set()
        self._fewer = asyncio.Event()

    async def hang_up(self) -> None:
        """Let every worker that dialed here know that this daemon goes, so that it dials again at once.

        Returns when they know, or soon.
        """
        for writer in self._writers:
            with suppress(OSError):
                writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        with suppress(TimeoutError):
            async with asyncio.timeout(HANG_UP):
                while self._writers:
                    self._fewer.clear()
                    await self._fewer.wait()

    @asynccontextmanager
    async def open(self, sock: socket.socket) -> AsyncIterator[None]:
        """Take connections of a socket that is bound; it is closed afterwards."""
        server = await asyncio.start_server(self._dialed, sock=sock)
        try:
            yield
        finally:
            server.close()

    def _dialed(self, reader: StreamReader, writer: StreamWriter) -> None:
        address = _address(writer)
        if (goes := self._waiting.enter(address, writer)) is not None:
            self._tell_of_a_crowd(_address(goes))
            goes.transport.abort()
            if goes is writer:
                return
        self._group.create_task(self._guarded(reader, writer), name="worker's connection")

    def _tell_of_a_crowd(self, address: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._told + CROWD_EVERY:  # who dials without end is not to fill the log
            self._told = now
            log.warning(
                "connections are closed: too many wait to be admitted", most_of=address or "this machine"
            )

    async def _guarded(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if (said := await self._admitted(reader, writer)) is not None:
                self._named[said.name] += 1
                try:
                    await self._received(said, reader, writer)
                finally:
                    self._named[said.name] -= 1
                    self._named += Counter()  # without those that have none
        except NotAdmitted as refused:
            log.warning("a worker was not admitted", why=str(refused))
        except Exception:  # the one around one connection: its fault must not end the others
            log.exception("serving a worker failed")
        finally:
            self._writers.discard(writer)
            self._fewer.set()
            writer.close()

    async def _admitted(self, reader: StreamReader, writer: StreamWriter) -> Greeting | None:
        """What the worker says of itself, under the name that it has here; None for one that was refused."""
        try:
            sock = writer.get_extra_info("socket")
            said = await _greeting(reader, await self._admission.admit(sock))
            self._admission.check(sock, said.name)
            if self._named[said.name] >= MOST:
                raise NotAdmitted(f"worker {said.name} has {MOST} connections already")
            return said
        except NotAdmitted as refused:
            log.warning("a worker was not admitted", why=str(refused))
            await _last_word(reader, writer, dialing.refusal(str(refused)))
            return None
        finally:
            self._waiting.leave(_address(writer), writer)

    async def _received(self, said: Greeting, reader: StreamReader, writer: StreamWriter) -> None:
        """Do what the connection is for. One that does not say its release is the pool's to judge, by its hello."""
        other = bool(said.release) and said.release != self._offer.release
        self._workers.note(said.name, self._news(said) if other else "")
        match said.purpose:
            case dialing.NOTE:
                pass
            case dialing.WHEEL:
                await self._send_wheel(said, writer)
            case dialing.WORK if said.protocol not in (0, frames.PROTOCOL):
                why = (
                    f"it speaks protocol {said.protocol} (release {said.release}), this daemon speaks "
                    f"{frames.PROTOCOL} (release {self._offer.release})"
                )
                self._workers.turn_away(said.name, f"{why}; {said.update or 'it was told to update itself'}")
                update, _ = await self._offer.update(why)
                await _last_word(reader, writer, frames.encode(update))
            case dialing.WORK:
                if other:
                    update, _ = await self._offer.update()
                    writer.write(frames.encode(update))
                self._admission.check(
                    writer.get_extra_info("socket"), said.name
                )  # making a wheel took its time
                await self._workers.serve(said.name, reader, writer)
            case _:
                why = f"this daemon knows no connection for {said.purpose!r}"
                await _last_word(reader, writer, dialing.refusal(why))

    def _news(self, said: Greeting) -> str:
        return f"this daemon is of release {self._offer.release}: {said.update or 'it was told to update itself'}"

    async def _send_wheel(self, said: Greeting, writer: StreamWriter) -> None:
        """The wheel, at the pace of the network; one that does not move for DEAD_AFTER is given up."""
        update, made = await self._offer.update()
        log.info("a worker gets this release", worker=said.name, its=said.release, why_not=update.missing)
        try:
            await _moved(writer, frames.encode(update))
            if made is not None:
                file = await asyncio.to_thread(made.path.open, "rb")
                try:
                    while piece := await asyncio.to_thread(file.read, frames.PIECE):
                        await _moved(writer, piece)
                finally:
                    file.close()
            writer.write_eof()
            async with asyncio.timeout(frames.DEAD_AFTER):
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError) as error:
            log.info(
                "a worker did not take this release", worker=said.name, why=str(error) or "it stood still"
            )
            writer.transport.abort()


def _address(writer: StreamWriter) -> str:
    """Where a connection comes from, empty for one of this machine's."""
    peername = writer.get_extra_info("peername")
    return str(peername[0]) if isinstance(peername, tuple) else ""


async def _greeting(reader: StreamReader, name: str) -> Greeting:
    """The first line, `name` in place of its own where that is known. Raises NotAdmitted."""
    try:
        async with asyncio.timeout(frames.HELLO_WAIT):
            said = dialing.greeted(await reader.readuntil(b"\n"))
    except TimeoutError:
        raise NotAdmitted(f"it did not say its name within {frames.HELLO_WAIT:g} s") from None
    except (asyncio.IncompleteReadError, OSError):
        raise NotAdmitted("it closed the connection before it had said its name") from None
    except asyncio.LimitOverrunError:
        raise NotAdmitted("its first line is too long to be a greeting") from None
    except dialing.BadNameError as error:
        raise NotAdmitted(str(error)) from None
    return replace(said, name=name) if name else said


async def _moved(writer: StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(frames.DEAD_AFTER):
        await writer.drain()


async def _last_word(reader: StreamReader, writer: StreamWriter, data: bytes) -> None:
    """Say this and no more, and have it heard: closed over what it sent, the worker might never read it."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_WAIT):
            writer.write(data)
            writer.write_eof()
            while await reader.read(TAKEN):
                pass


@asynccontextmanager
async def on_unix(path: Path, door: Door) -> AsyncIterator[None]:
    """Let workers of this machine dial at a Unix socket, mode 0600. Raises ListenError."""
    sock, ours = await asyncio.to_thread(listening.unix, path)
    try:
        async with door.open(sock):
            yield
    finally:
        await asyncio.to_thread(listening.remove, path, ours)
