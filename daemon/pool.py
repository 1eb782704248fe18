"""Which workers are here, and calling one: at most once, whatever becomes of its connection."""

import asyncio
import math
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeVar

import structlog
from msgspec.structs import replace

from daemon import exchange
from daemon.connection import Clock, Connection, Lost
from daemon.exchange import Content, Output, Refused
from daemon.protocol import api, frames

__all__ = ["Content", "Output", "Pool", "Refused", "WorkerGone"]

T = TypeVar("T")
Make = Callable[[int], frames.ToWorker]  # a frame, given its request's id
log = structlog.get_logger()

MAX_READ: Final = 16 << 20  # bytes that `read` holds unless told: a camera's photo fits
REDIAL: Final = 10.0  # seconds given to a worker that has been gone for long: twice its longest pause
FAULTS: Final = 3  # connections that broke the protocol, after which a call is given up: each cuts the others
YOUNGER: Final = "the worker's journal is younger than the call, so it may have run before that was lost"
OTHER: Final = "what has the worker's name now is not what the call was sent to, so it may have run there"
KEPT: Final = 10_000  # frames owed to a worker that is away, and interrupted runs; the oldest go first


class WorkerGone(Exception):
    """The worker is not here and did not come back within the grace. `started`: the call may have reached it, so
    nobody can say what it did; otherwise nothing was done."""

    def __init__(self, worker: str, reason: str, started: bool) -> None:
        what = "interrupted, effect unknown" if started else "nothing was done"
        super().__init__(f"worker {worker!r} is gone ({reason}): {what}")
        self.started = started


class _Call:
    """One call on its way. `asked`: the worker may have got it, at `since` or later."""

    def __init__(self, session: str, call: str, asked: bool, since: float) -> None:
        self.session = session
        self.call = call
        self.asked = asked
        self.since = since

    def ask(self, now: float) -> None:
        """It goes out now, unless it did before."""
        if not self.asked:
            self.asked, self.since = True, now


class _Worker:
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
        self.gone = now  # the clock's time when its connection was lost
        self.seen: datetime | None = None
        self.dialed = False
        self.calls: set[_Call] = set()
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


class Pool:
    """The workers of one daemon. `grace`: seconds that a call waits for a worker that lost its connection.

    `on_change` is called when `list` would answer otherwise. `clock` is the running loop unless given; `wall` the
    time of day.
    """

    def __init__(
        self,
        *,
        release: str,
        grace: float = 600.0,
        on_change: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._release = release
        self._grace = grace
        self._on_change = on_change
        self._given_clock = clock
        self._wall = wall
        self._workers: dict[str, _Worker] = {}

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

    def remove(self, name: str) -> None:
        """Forget a worker that was removed: its connection ends, and calls that wait for it get WorkerGone."""
        if (worker := self._workers.pop(name, None)) is None:
            return
        worker.removed, worker.reason = True, "it was removed"
        if worker.connection is not None:
            worker.connection.end(worker.reason)
        worker.wake()
        self._on_change()

    async def run(
        self,
        worker: str,
        session: str,
        call: str,
        code: str,
        *,
        interpreter: str = "",
        cwd: str = "",
        timeout: float = 600.0,  # noqa: ASYNC109 - the worker keeps it
        age: float | None = None,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Output:
        """Run `code` on a worker, at most once for this session and call, and wait for its end.

        A lost connection is waited out up to the grace; then the run is found again and its result taken. `timeout`
        in seconds, kept by the worker. `age`: seconds since the call was recorded, given when an earlier daemon may
        have sent it: then the worker is asked first. `on_output` gets the newest output as it comes, with gaps.
        Raises WorkerGone and Refused. Cancelling forgets the answer, the run itself goes on.
        """
        frame = frames.Run(
            id=0, session=session, call=call, interpreter=interpreter, cwd=cwd, timeout=timeout
        )
        body = code.encode("utf-8", "replace")
        exchange.check(frame)
        exchange.encode(frame, body)

        async def attempt(connection: Connection, one: _Call) -> Output:
            if one.asked and (output := await self._attach(worker, connection, one, on_output)) is not None:
                return output
            if (session, call) in self._worker(worker).stopped:
                return Output(stopped="interrupt", notes=("it was not started",))
            one.ask(self._clock.time())
            with connection.request() as request:
                await connection.send(exchange.encode(replace(frame, id=request.id), body))
                end = await exchange.outcome(connection, request, on_output)
                if isinstance(end, frames.Unknown):
                    connection.break_off("a run", end)
                return end

        return await self._through(worker, self._call(session, call, age), attempt)

    async def attach(self, worker: str, session: str, call: str, *, age: float) -> Output | None:
        """How a run or write that was asked for `age` seconds ago, perhaps, ended; None when it never started.

        Waits for it if it is going. Never starts anything. Raises WorkerGone.
        """
        return await self._through(
            worker, self._call(session, call, age), lambda on, one: self._attach(worker, on, one, None)
        )

    async def read(
        self,
        worker: str,
        path: str,
        *,
        cwd: str = "",
        offset: int = 0,
        limit: int = 0,
        unit: Literal["bytes", "lines"] = "bytes",
        max_bytes: int = MAX_READ,
    ) -> Content:
        """A file, or `limit` bytes or lines of it from `offset` (lines count from 1; 0 is up to the end).

        A lost connection is waited out up to the grace and the read begun again. Raises WorkerGone, and Refused,
        with code `limit` for more than `max_bytes`, of which no more than a window is ever transferred.
        """
        frame = frames.Read(id=0, path=path, cwd=cwd, offset=offset, limit=limit, unit=unit)
        exchange.check(frame)
        return await self._through(
            worker,
            self._call("", "", None),
            lambda on, _: exchange.read(on, lambda id: replace(frame, id=id), max_bytes),
        )

    async def write(
        self,
        worker: str,
        path: str,
        data: bytes,
        *,
        cwd: str = "",
        mode: int = 0o644,
        session: str = "",
        call: str = "",
        expect: str = "",
        like: str = "",
        remove: bool = False,
        age: float | None = None,
    ) -> int:
        """Replace a file as a whole; the number of bytes written.

        With `session` and `call` it happens at most once, like a run: what was lost with the connection is found
        again, and WorkerGone is raised where the worker's journal is younger than the call. Without them a lost
        connection has it written again. `mode`, `expect`, `like`, `remove` as in frames.Write; `age` as in `run`.
        Raises Refused.
        """
        frame = frames.Write(
            id=0,
            path=path,
            cwd=cwd,
            session=session,
            call=call,
            mode=mode,
            expect=expect,
            like=like,
            remove=remove,
        )
        exchange.check(frame)

        async def attempt(connection: Connection, one: _Call) -> int:
            why = self._lost_to(worker, connection, one)
            if call and one.asked and why and not _knows(connection, one):
                raise WorkerGone(worker, why, started=True)
            one.ask(self._clock.time())
            return await exchange.write(connection, lambda id, last: replace(frame, id=id, last=last), data)

        return await self._through(worker, self._call(session, call, age), attempt)

    async def interrupt(self, worker: str, session: str, call: str) -> None:
        """Have one run ended. Returns when the worker has begun; its result comes to `run`.

        Returns at once when the worker is not here: it is told as soon as it dials again.
        """
        to = self._worker(worker)
        to.stop(session, call)
        try:
            await self._tell(
                to,
                ("interrupt", session, call),
                lambda id: frames.Interrupt(id=id, session=session, call=call),
            )
        except Refused as refused:
            log.info(
                "interrupt not carried out", worker=worker, session=session, call=call, why=refused.message
            )

    async def kill(self, worker: str, session: str) -> str:
        """Have every process of a session ended; the worker's sentence on what was ended and is left.

        Returns at once when the worker is not here: it is told as soon as it dials again. Raises Refused.
        """
        to = self._worker(worker)
        said = await self._tell(to, ("kill", session), lambda id: frames.Kill(id=id, session=session))
        return f"worker {worker!r} is not connected; told when it is" if said is None else said

    def asked(self, worker: str, session: str, call: str) -> bool:
        """Whether a worker may have got this call: False only for one that waits here and was never sent."""
        mine = [one for one in self._worker(worker).calls if (one.session, one.call) == (session, call)]
        return not mine or any(one.asked for one in mine)

    def ack(self, worker: str, session: str, call: str) -> None:
        """Tell the worker that this call's result is safe, now or when it dials again. Never waits."""
        to = self._worker(worker)
        if (connection := to.here) is not None:
            connection.post(frames.Ack(session=session, call=call))
        else:
            to.owe(("ack", session, call), lambda id: frames.Ack(session=session, call=call))

    def hello(self, worker: str) -> frames.Hello | None:
        """What a worker said of itself; None when it is not connected."""
        known = self._workers.get(worker)
        return known.hello if known is not None and known.here is not None else None

    def list(self) -> list[api.WorkerInfo]:
        """Every worker that dialed since the daemon started, by name."""
        return [self._info(worker) for _, worker in sorted(self._workers.items()) if worker.dialed]

    @property
    def _clock(self) -> Clock:
        return self._given_clock or asyncio.get_running_loop()

    def _worker(self, name: str) -> _Worker:
        if (worker := self._workers.get(name)) is None:
            worker = self._workers[name] = _Worker(name, self._clock.time())
        return worker

    def _call(self, session: str, call: str, age: float | None) -> _Call:
        return _Call(session, call, age is not None, self._clock.time() - (age or 0.0))

    def _admit(self, worker: _Worker, connection: Connection, hello: frames.Hello) -> bool:
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

    def _leave(self, worker: _Worker, connection: Connection, admitted: bool) -> None:
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

    async def _through(
        self, name: str, one: _Call, attempt: Callable[[Connection, _Call], Awaitable[T]]
    ) -> T:
        """Attempt a call on the worker's connection, again on its next one for as long as they are lost."""
        worker = self._worker(name)
        worker.calls.add(one)
        faults = 0
        try:
            while True:
                connection = await self._here(worker, one)
                try:
                    return await attempt(connection, one)
                except Lost as lost:
                    faults += lost.fault
                    if faults == FAULTS:
                        raise WorkerGone(name, str(lost), one.asked) from lost
        finally:
            worker.calls.discard(one)

    async def _here(self, worker: _Worker, one: _Call) -> Connection:
        """The worker's connection, waited for up to the grace. Raises WorkerGone."""
        least = self._clock.time() + min(self._grace, REDIAL)
        while (connection := worker.here) is None:
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
        return connection

    async def _attach(
        self, worker: str, connection: Connection, one: _Call, on_output: Callable[[bytes], None] | None
    ) -> Output | None:
        """How a call that may have begun ended; None when it never did."""
        with connection.request() as request:
            await connection.send(
                exchange.encode(frames.Attach(id=request.id, session=one.session, call=one.call))
            )
            try:
                end = await exchange.outcome(connection, request, on_output)
            except Refused as refused:
                return Output(unknown=refused.message)
        if not isinstance(end, frames.Unknown):
            return end
        if why := self._lost_to(worker, connection, one):
            return Output(unknown=why)
        one.asked = False
        return None

    def _lost_to(self, worker: str, connection: Connection, one: _Call) -> str:
        """Why a call that this connection's journal does not know may have run all the same; empty: it did not."""
        if connection.journal > one.since:
            return YOUNGER
        return OTHER if self._worker(worker).took > one.since else ""

    async def _tell(self, worker: _Worker, key: tuple[str, ...], make: Make) -> str | None:
        """The worker's answer to a frame, None when it is not here; then, or given up, it is owed. Raises Refused.

        Given up, it is owed until the answer comes after all: told again on a later connection, a kill would end
        what was begun since.
        """
        worker.owe(key, make)
        if (connection := worker.here) is None:
            return None

        def settled() -> None:
            if worker.owed.get(key) is make:
                del worker.owed[key]

        try:
            with connection.request() as request:
                try:
                    await connection.send(exchange.encode(make(request.id)))
                    frame, body = await request.next()
                except asyncio.CancelledError:
                    connection.later(request, settled)
                    raise
        except Lost:
            return None
        settled()
        match frame:
            case frames.Done():
                return body.decode("utf-8", "replace")
            case frames.Error():
                raise exchange.refusal(frame, body)
            case _:
                return None

    def _seen(self, connection: Connection) -> datetime:
        """The time of day when a connection was last heard."""
        return self._wall() - timedelta(seconds=self._clock.time() - connection.heard)

    def _info(self, worker: _Worker) -> api.WorkerInfo:
        here, hello = worker.here, worker.hello
        seen = self._seen(here) if here is not None else worker.seen
        info = api.WorkerInfo(
            name=worker.name,
            state="connected" if here is not None else "refused" if worker.refused else "gone",
            reason=worker.reason,
            seen="" if seen is None else seen.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            running=len(worker.calls),
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


def _knows(connection: Connection, one: _Call) -> bool:
    return connection.said is not None and (one.session, one.call) in connection.said.runs
