"""Call a worker: at most once, whatever becomes of its connection."""

from asyncio import CancelledError
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, Literal, TypeVar

import structlog
from msgspec.structs import replace

from daemon import exchange
from daemon.connection import Connection
from daemon.exchange import Content, Output, Refused
from daemon.protocol import frames
from daemon.requests import Lost
from daemon.roster import Call, Cordoned, Make, Roster, Worker, WorkerGone

__all__ = ["Content", "Cordoned", "Output", "Pool", "Refused", "WorkerGone"]

T = TypeVar("T")
log = structlog.get_logger()

MAX_READ: Final = 16 << 20  # bytes that `read` holds unless told: a camera's photo fits
FAULTS: Final = 3  # connections that broke the protocol, after which a call is given up: each cuts the others
YOUNGER: Final = "the worker's journal is younger than the call, so it may have run before that was lost"
OTHER: Final = "what has the worker's name now is not what the call was sent to, so it may have run there"


class Pool(Roster):
    """The workers that can be called.

    A cordoned one takes nothing new: Cordoned is raised for what was not yet sent. What was goes on, and what is said
    to be `begun`: a later part of one call, so that it is not left half done.
    """

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
        have sent it: then the worker is asked first. `on_output` gets the newest output as it comes, with gaps; an
        empty piece where the run was found again, whose newest output follows, also what came before.
        Raises WorkerGone, Refused and Cordoned. Cancelling forgets the answer, the run itself goes on.
        """
        frame = frames.Run(
            id=0, session=session, call=call, interpreter=interpreter, cwd=cwd, timeout=timeout
        )
        body = code.encode("utf-8", "replace")
        exchange.check(frame, body)

        async def attempt(connection: Connection, one: Call) -> Output:
            if one.asked and (output := await self._attach(worker, connection, one, on_output)) is not None:
                return output
            self._check_cordon(worker, one)
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
        begun: bool = False,
    ) -> Content:
        """A file, or `limit` bytes or lines of it from `offset` (lines count from 1; 0 is up to the end).

        A lost connection is waited out up to the grace and the read begun again. Raises WorkerGone, Cordoned, and
        Refused, with code `limit` for more than `max_bytes`, of which no more than a window is ever transferred.
        """
        frame = frames.Read(id=0, path=path, cwd=cwd, offset=offset, limit=limit, unit=unit)
        exchange.check(frame)
        return await self._through(
            worker,
            self._call("", "", None, begun),
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
        undoes: tuple[str, str] | None = None,
        age: float | None = None,
        begun: bool = False,
    ) -> int:
        """Replace a file as a whole; the number of bytes written.

        With `session` and `call` it happens at most once, like a run: what was lost with the connection is found
        again, and WorkerGone is raised where the worker's journal is younger than the call. Without them a lost
        connection has it written again. `mode`, `expect`, `like`, `remove`, `undoes` as in frames.Write; `age` as in
        `run`. Raises Refused and Cordoned.
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
            undoes=undoes,
        )
        exchange.check(frame)

        async def attempt(connection: Connection, one: Call) -> int:
            why = self._lost_to(worker, connection, one)
            if call and one.asked and why and not _knows(connection, one):
                raise WorkerGone(worker, why, started=True)
            one.ask(self._clock.time())
            return await exchange.write(connection, lambda id, last: replace(frame, id=id, last=last), data)

        return await self._through(worker, self._call(session, call, age, begun), attempt)

    async def size(self, worker: str, path: str) -> int:
        """Bytes of a file; waits for no worker. Raises WorkerGone, Cordoned, Refused."""
        connection = self._now(worker)
        frame = frames.Read(id=0, path=path, limit=1)
        try:
            return (await exchange.read(connection, lambda id: replace(frame, id=id), MAX_READ)).size
        except Lost as lost:
            raise WorkerGone(worker, str(lost), started=False) from lost

    async def pour(
        self,
        worker: str,
        path: str,
        pieces: AsyncGenerator[bytes, None],
        *,
        behind: str = "",
        mode: int = 0o600,
    ) -> None:
        """Write a file of any size, piece by piece; waits for no worker, and is not tried again.

        `behind`: the SHA-256 (hex) of what is there, behind which the pieces are put. Raises WorkerGone, Cordoned,
        Refused (of code `changed` where something else is there), and what `pieces` raises.
        """
        connection = self._now(worker)
        frame = frames.Write(id=0, path=path, mode=mode, expect=behind, append=bool(behind))
        exchange.check(frame)
        try:
            await exchange.pour(connection, lambda id, last: replace(frame, id=id, last=last), pieces)
        except Lost as lost:
            raise WorkerGone(worker, str(lost), started=True) from lost

    def _now(self, name: str) -> Connection:
        """The worker's connection, if it is here and takes what is new. Raises WorkerGone, Cordoned."""
        worker = self._worker(name)
        if self.cordoned(name):
            raise Cordoned(name)
        if (connection := worker.here) is None:
            raise WorkerGone(name, worker.reason, started=False)
        return connection

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

    async def kill(self, worker: str, session: str, reason: str = "") -> str | None:
        """Have every process of a session ended; the worker's sentence on what was ended and is left.

        None, at once, when the worker is not here: it is told as soon as it dials again. `reason`: what the session's
        next run there is told. Raises Refused.
        """
        return await self._tell(
            self._worker(worker),
            ("kill", session),
            lambda id: frames.Kill(id=id, session=session, reason=reason),
        )

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

    def _call(self, session: str, call: str, age: float | None, begun: bool = False) -> Call:
        return Call(session, call, age is not None, self._clock.time() - (age or 0.0), begun)

    async def _through(self, name: str, one: Call, attempt: Callable[[Connection, Call], Awaitable[T]]) -> T:
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

    async def _attach(
        self, worker: str, connection: Connection, one: Call, on_output: Callable[[bytes], None] | None
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

    def _lost_to(self, worker: str, connection: Connection, one: Call) -> str:
        """Why a call that this connection's journal does not know may have run all the same; empty: it did not."""
        if connection.journal > one.since:
            return YOUNGER
        return OTHER if self._worker(worker).took > one.since else ""

    async def _tell(self, worker: Worker, key: tuple[str, ...], make: Make) -> str | None:
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
                except CancelledError:
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


def _knows(connection: Connection, one: Call) -> bool:
    return connection.said is not None and (one.session, one.call) in connection.said.runs
