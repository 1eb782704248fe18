"""The workers that this daemon knows: their connections as they come and go, and who waits for one."""

import asyncio
import math
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from msgspec.structs import replace

from daemon.connection import Clock, Connection
from daemon.cordons import Cordons
from daemon.protocol import api, frames
from daemon.requests import Lost

Make = Callable[[int], frames.ToWorker]  # a frame, given its request's id
log = structlog.get_logger()

REDIAL: Final = 10.0  # seconds given to a worker that has been gone for long: twice its longest pause
KEPT: Final = 10_000  # frames owed to a worker that is away, and interrupted runs; the oldest go first


class WorkerGone(Exception):
    """The worker is not here and did not come back within the grace. `started`: the call may have reached it, so
    nobody can say what it did; otherwise nothing was done."""

    def __init__(self, worker: str, reason: str, started: bool) -> None:
        what = "interrupted, effect unknown" if started else "nothing was done"
        super().__init__(f"worker {worker!r} is gone ({reason}): {what}")
        self.started = started


class Cordoned(Exception):
    """The worker takes nothing new, by its operator's word: nothing was done."""

    def __init__(self, worker: str) -> None:
        super().__init__(
            f"worker {worker!r} is cordoned by the operator: it takes nothing new, so nothing was done. "
            "What runs there goes on."
        )


class Call:
    """One call on its way. `asked`: the worker may have got it, at `since` or later. `begun`: it goes on with what was
    begun, which a cordon does not stop."""

    def __init__(self, session: str, call: str, asked: bool, since: float, begun: bool = False) -> None:
        self.session = session
        self.call = call
        self.asked = asked
        self.since = since
        self.begun = begun

    def ask(self, now: float) -> None:
        """It goes out now, unless it did before."""
        if not self.asked:
            self.asked, self.since = True, now


class Worker:
    """What is known of the worker of one name, and who waits for it."""

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.connection: Connection | None = None
        self.hello: frames.Hello | None = None  # the last that was heard
        self.journal: str | None = None  # the one that it came with last
        self.took = -math.inf  # the clock's time when it came with another one than before
        self.refused = False
        self.removed = False
        self.reason = "it has not dialed"
        self.note = ""  # what is to be known of it while it is here
        self.gone = now  # the clock's time when its connection was lost
        self.seen: datetime | None = None
        self.dialed = False
        self.calls: set[Call] = set()
        self.waiters: dict[asyncio.Future[None], None] = {}  # in the order in which they came
        self.owed: dict[tuple[str, ...], Make] = {}
        self.stopped: dict[tuple[str, str], None] = {}  # runs that were interrupted: not to be started

    @property
    def here(self) -> Connection | None:
        """Its connection, if that has not ended."""
        return self.connection if self.connection is not None and self.connection.lost is None else None

    def owe(self, key: tuple[str, ...], make: Make) -> None:
        """Keep a frame until it is answered or sent on the next connection."""
        self.owed[key] = make
        if len(self.owed) > KEPT:
            del self.owed[next(iter(self.owed))]

    def stop(self, session: str, call: str) -> None:
        """Have a run not started, if it has not been."""
        self.stopped[session, call] = None
        if len(self.stopped) > KEPT:
            del self.stopped[next(iter(self.stopped))]

    def wake(self) -> None:
        """Let those who wait look again."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


class Roster:
    """The workers of one daemon. `grace`: seconds that a call waits for a worker that lost its connection.

    `on_change` is called when `list` would answer otherwise. `clock` is the running loop unless given; `wall` the
    time of day. `joined`: by name, what is known of the machines that joined the mesh.
    """

    def __init__(
        self,
        *,
        release: str,
        grace: float = 600.0,
        on_change: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        cordons: Cordons | None = None,
        joined: Callable[[], Mapping[str, api.WorkerInfo]] = dict,
    ) -> None:
        self._joined = joined
        self._cordons = cordons or Cordons()
        self._release = release
        self._grace = grace
        self._on_change = on_change
        self._given_clock = clock
        self._wall = wall
        self._workers: dict[str, Worker] = {}

    async def serve(self, name: str, reader: StreamReader, writer: StreamWriter) -> None:
        """Be the harness's end of one connection of worker `name` until it ends, and close it.

        From its hello on it replaces a connection there was under that name. Raises nothing for what the worker does.
        """
        connection = Connection(reader, writer, self._clock)
        worker = self._worker(name)
        worker.dialed = True
        admitted = False
        try:
            hello = await connection.hello()
            admitted = self._admit(worker, connection, hello)
            await connection.serve()
        except Lost:
            pass  # `connection.lost` keeps the reason
        finally:
            connection.end("this daemon let it go")
            self._leave(worker, connection, admitted)
            await connection.closed()

    def note(self, name: str, text: str) -> None:
        """Show this of a worker beside its state while it is here, until another note comes; empty: nothing."""
        worker = self._worker(name)
        if worker.note != text:
            worker.note = text
            self._on_change()

    def turn_away(self, name: str, reason: str) -> None:
        """List a worker that is not let in, unless it is here by another connection."""
        worker = self._worker(name)
        if worker.here is None:
            worker.dialed = worker.refused = True
            worker.reason, worker.seen = reason, self._wall()
            self._on_change()

    def remove(self, name: str) -> None:
        """Forget a worker that was removed: its connection ends, and calls that wait for it get WorkerGone."""
        if (worker := self._workers.pop(name, None)) is None:
            return
        worker.removed, worker.reason = True, "it was removed"
        if worker.connection is not None:
            worker.connection.end(worker.reason)
        worker.wake()
        self._on_change()

    def knows(self, name: str) -> bool:
        """Whether a worker of this name has dialed, joined the mesh, or is cordoned."""
        return self._has_dialed(name) or name in self._cordons or name in self._joined()

    def names(self) -> tuple[str, ...]:
        """The names of all that dialed or are cordoned. May be called in any thread."""
        dialed = [worker.name for worker in tuple(self._workers.values()) if worker.dialed]
        return (*dialed, *self._cordons)

    def awaited(self) -> set[str]:
        """The names of workers that calls wait for."""
        return {worker.name for worker in self._workers.values() if worker.calls}

    def cordoned(self, name: str) -> bool:
        """Whether a worker takes nothing new."""
        return name in self._cordons

    async def cordon(self, name: str, cordoned: bool) -> None:
        """Have a worker take nothing new from now on, or take it again; calls that were not yet sent get Cordoned.

        Raises OwnFileError; then nothing has changed.
        """
        if await self._cordons.put(name, cordoned):
            log.info("worker cordoned" if cordoned else "worker uncordoned", worker=name)
            self._worker(name).wake()
            self._on_change()

    def hello(self, worker: str) -> frames.Hello | None:
        """What a worker said of itself; None when it is not connected."""
        known = self._workers.get(worker)
        return known.hello if known is not None and known.here is not None else None

    def list(self) -> list[api.WorkerInfo]:
        """Every worker that dialed since the daemon started, joined the mesh or is cordoned, by name."""
        joined = self._joined()
        for name in (*self._cordons, *joined):
            self._worker(name)
        return [
            self._info(worker, joined.get(name))
            for name, worker in sorted(self._workers.items())
            if self._has_dialed(name) or name in self._cordons or name in joined
        ]

    def _has_dialed(self, name: str) -> bool:
        return name in self._workers and self._workers[name].dialed

    @property
    def _clock(self) -> Clock:
        return self._given_clock or asyncio.get_running_loop()

    def _worker(self, name: str) -> Worker:
        if (worker := self._workers.get(name)) is None:
            worker = self._workers[name] = Worker(name, self._clock.time())
        return worker

    def _admit(self, worker: Worker, connection: Connection, hello: frames.Hello) -> bool:
        if hello.protocol != frames.PROTOCOL:
            connection.post(frames.Update(release=self._release))
            connection.end(
                f"it speaks protocol {hello.protocol} (release {hello.release}), this daemon speaks "
                f"{frames.PROTOCOL} (release {self._release}): install this daemon's release there"
            )
            if worker.connection is None:
                worker.hello = hello
            return False
        if worker.removed:
            connection.end("it was removed")
            return False
        if worker.journal not in (None, hello.journal):
            worker.took = self._clock.time()
        worker.journal = hello.journal
        before, worker.connection = worker.connection, connection
        worker.hello, worker.refused, worker.reason = hello, False, ""
        if before is not None:
            before.end("a newer connection of this worker replaced it")
        for make in worker.owed.values():
            connection.post(make(connection.new_id()))
        worker.owed.clear()
        log.info("worker connected", worker=worker.name, release=hello.release, hostname=hello.hostname)
        worker.wake()
        self._on_change()
        return True

    def _leave(self, worker: Worker, connection: Connection, admitted: bool) -> None:
        reason = str(connection.lost)
        log.info("worker's connection ended", worker=worker.name, why=reason)
        if worker.connection is connection:
            worker.connection = None
            worker.gone = self._clock.time()
        elif admitted or worker.connection is not None:
            return  # another one serves this worker, or did after this one
        else:
            worker.refused = True
        worker.reason, worker.seen = reason, self._seen(connection)
        self._on_change()

    async def _here(self, worker: Worker, one: Call) -> Connection:
        """The worker's connection, waited for up to the grace. Raises WorkerGone, and Cordoned for what is new."""
        least = self._clock.time() + min(self._grace, REDIAL)
        while True:
            self._check_cordon(worker.name, one)
            if (connection := worker.here) is not None:
                return connection
            until = max(worker.gone + self._grace, least)
            if worker.removed or self._clock.time() >= until:
                raise WorkerGone(worker.name, worker.reason, one.asked)
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            timer = self._clock.call_at(until, worker.wake)
            worker.waiters[waiter] = None
            try:
                await waiter
            finally:
                del worker.waiters[waiter]
                timer.cancel()

    def _check_cordon(self, name: str, one: Call) -> None:
        """Raise Cordoned for a call that nothing was done of yet."""
        if name in self._cordons and not (one.asked or one.begun):
            raise Cordoned(name)

    def _seen(self, connection: Connection) -> datetime:
        """The time of day when a connection was last heard."""
        return self._wall() - timedelta(seconds=self._clock.time() - connection.heard)

    def _info(self, worker: Worker, joined: api.WorkerInfo | None) -> api.WorkerInfo:
        here, hello = worker.here, worker.hello
        seen = self._seen(here) if here is not None else worker.seen
        info = replace(
            joined or api.WorkerInfo(worker.name, "gone"),
            state="connected" if here is not None else "refused" if worker.refused else "gone",
            reason=worker.reason or worker.note,
            seen="" if seen is None else seen.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            running=len(worker.calls),
            cordoned=worker.name in self._cordons,
        )
        if hello is None:
            return info
        return replace(
            info,
            release=hello.release,
            os=hello.os,
            arch=hello.arch,
            hostname=hello.hostname,
            interpreters=hello.interpreters,
            scratch=hello.scratch,
            home=hello.home,
            cpus=hello.cpus,
            memory=hello.memory,
        )
