"""One worker's connection at the harness's end: what is sent in turn, pings, and why it ended."""

import asyncio
import mmap
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, NoReturn, Protocol

from daemon.protocol import frames
from daemon.protocol.framing import FramingError
from daemon.requests import Answer, Lost, Request, Requests

READ: Final = 256 << 10  # bytes taken from the socket at once: one piece of a transfer
ALL: Final = 1 << 30  # more than a stream's reader ever holds
BACKLOG: Final = 4 << 20  # bytes of short frames a worker may leave unread; by then it reads nothing at all
LATE: Final = 1.0  # seconds after its time a timer fires only when this process stood still


class Timer(Protocol):
    """A call that is planned."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Seconds that only grow, and calls at a time; every event loop is one."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


class Silence:
    """When a silent peer is pinged and when it is given up. Pure; all times in seconds of one clock."""

    def __init__(self, now: float) -> None:
        self.heard = now
        self._due = now + frames.PING_AFTER

    def check(self, now: float) -> tuple[Literal["wait", "ping", "dead"], float]:
        """What is to be done at `now`, and when to ask again."""
        if now > self._due + LATE:  # we stood still: what it sent meanwhile waits in the socket
            self.heard = max(self.heard, now - frames.PING_AFTER)
        if now >= self.heard + frames.DEAD_AFTER:
            return "dead", now
        if now >= self.heard + frames.PING_AFTER:
            self._due = min(now + frames.PING_AFTER, self.heard + frames.DEAD_AFTER)
            return "ping", self._due
        self._due = self.heard + frames.PING_AFTER
        return "wait", self._due


class Connection(asyncio.BufferedProtocol):
    """One stream to a worker. `hello`, then `serve` until it ends; beside them any number of requests.

    Starts no task. It ends by `end`, with the first reason given; then every method that sends or waits raises Lost.
    From its hello on it is the transport's own protocol: an answer wakes who waits for it, and nobody in between.
    """

    def __init__(self, reader: StreamReader, writer: StreamWriter, clock: Clock) -> None:
        self._reader: StreamReader | None = reader  # until it is the protocol itself
        self._writer = writer
        self._transport = writer.transport
        self._clock = clock
        self._decoder = frames.harness_decoder()
        self._buffer = memoryview(
            mmap.mmap(-1, READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        )  # as far as it is used
        self._requests = Requests()
        self._serving = False
        self._over = asyncio.Event()
        self._closed = asyncio.Event()
        self._turn = asyncio.Lock()  # fair, so the pieces of transfers and everything else go round
        self._queue = 0  # who waits for it, or has it
        self._room = asyncio.Event()  # the worker takes what is sent
        self._room.set()
        self._silence = Silence(clock.time())
        self.said: frames.Hello | None = None
        self.journal = (
            0.0  # the clock's time when the worker's journal was begun, never earlier than it really was
        )
        self._written = 0  # bytes given to the transport
        self._taken = (0, clock.time())  # how many of them had left it, and when that last grew
        self._timer = clock.call_at(clock.time() + frames.HELLO_WAIT, self._no_hello)

    @property
    def lost(self) -> Lost | None:
        """Why it ended, None while it is here."""
        return self._requests.lost

    @property
    def heard(self) -> float:
        """The clock's time when the worker was last heard."""
        return self._silence.heard

    def request(self) -> Request:
        """A new request, to be used in a `with`. Raises Lost."""
        return self._requests.open()

    def later(self, request: Request, then: Callable[[], None]) -> None:
        """Have `then` called when the answer to a request comes after nobody waits for it any more."""
        self._requests.later(request.id, then)

    def new_id(self) -> int:
        """An id for a request whose answer nobody waits for."""
        return self._requests.new_id()

    async def send(self, data: bytes) -> None:
        """Write one frame's bytes in turn, once the worker has taken up most of what was written before.

        Frames of callers that wait go out in the order in which they called. Raises Lost.
        """
        if not self._queue and self._room.is_set():
            self._requests.check()
            self._write(data)
            if self._room.is_set():
                return
            data = b""
        self._queue += 1
        try:
            async with self._turn:
                self._requests.check()
                if data:
                    self._write(data)
                await self._room.wait()
                self._requests.check()
        finally:
            self._queue -= 1

    def post(self, frame: frames.ToWorker) -> None:
        """Write a short frame now, whoever waits. Nothing happens on a connection that has ended."""
        if self.lost is not None:
            return
        self._write(frames.encode(frame))
        if self._transport.get_write_buffer_size() > BACKLOG:
            self.end("the worker does not read what is sent to it")

    def fault(self, reason: str) -> NoReturn:
        """End it because the worker broke the protocol. Raises Lost."""
        self.end(reason, fault=True)
        raise Lost(reason, fault=True)

    def break_off(self, what: str, answer: Answer) -> NoReturn:
        """End it for an answer that the protocol does not know to `what`. Raises Lost."""
        self.fault(f"it answered {what} with {type(answer).__name__.lower()!r}")

    async def hello(self) -> frames.Hello:
        """The first frame. Raises Lost when another comes, or none within HELLO_WAIT."""
        frame = await self._first()
        if not isinstance(frame, frames.Hello):
            self.fault("its first frame was not a hello")
        self._timer.cancel()
        self._watch()
        self.said = frame
        self.journal = self.heard - frame.journal_age
        return frame

    async def _first(self) -> frames.ToHarness:
        """The first frame, taken from the stream, which is over then: what follows comes to us."""
        assert self._reader is not None
        unit = None
        while unit is None:
            self._requests.check()
            try:
                if (unit := self._decoder.next()) is not None:
                    continue
                data = await self._reader.read(ALL)
            except FramingError as error:
                self.fault(f"it sent what is not a frame: {error}")
            except OSError as error:
                self.end(f"the connection broke: {error}")
            else:
                if data:
                    self._silence.heard = self._clock.time()
                    self._decoder.feed(data)
                else:
                    self._closed_by_peer()
        if not self._reader.at_eof():  # nor does it hold anything: all of it was just taken
            self._reader = None
            self._transport.set_protocol(self)
        return unit[0]

    async def serve(self) -> None:
        """Hand answers to their requests and answer pings until the connection ends. Raises Lost, nothing else."""
        self._serving = True
        self._take_up()
        if self._reader is not None:
            self._closed_by_peer()
        await self._over.wait()
        self._requests.check()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.lost is None:
            self._silence.heard = self._clock.time()
            self._decoder.feed(self._buffer[:nbytes])
            if self._serving:
                self._take_up()

    def eof_received(self) -> None:
        self._closed_by_peer()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self.end(f"the connection broke: {error}")
        self._closed_by_peer()
        self._closed.set()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def _take_up(self) -> None:
        try:
            while self.lost is None and (unit := self._decoder.next()) is not None:
                self._hear(unit[0], unit[2])
        except FramingError as error:
            self.end(f"it sent what is not a frame: {error}", fault=True)
        except Lost:
            pass  # by what it said

    def _hear(self, frame: frames.ToHarness, body: bytes) -> None:
        """Take up one frame. Raises Lost where it ends the connection."""
        match frame:
            case frames.Ping():
                self.post(frames.Pong())
            case frames.Pong():
                pass
            case frames.Hello():
                self.fault("it said hello twice")
            case frames.Error(id=0):
                why = body[: frames.MAX_REASON].decode("utf-8", "replace")
                self.fault(f"it ended the connection: {why}")
            case _:
                try:
                    self._requests.deliver(frame, body)
                except FramingError as error:
                    self.fault(str(error))

    def _closed_by_peer(self) -> None:
        self.end("it closed the connection" + (" within a frame" if self._decoder.pending else ""))

    def end(self, reason: str, *, fault: bool = False) -> None:
        """End the connection; what is in the socket's buffers still goes out, what is in ours does not."""
        if not self._requests.lose(reason, fault):
            return
        self._timer.cancel()
        self._over.set()
        self._room.set()
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    async def closed(self) -> None:
        """Wait until the stream's descriptor is closed, which takes no peer. Call `end` before."""
        if self._reader is None:
            await self._closed.wait()
            return
        with suppress(OSError):  # how it ended was told where it was noticed
            await self._writer.wait_closed()

    def _write(self, data: bytes) -> None:
        self._transport.write(data)
        self._written += len(data)

    def _no_hello(self) -> None:
        self.end(f"no hello within {frames.HELLO_WAIT:g} s")

    def _watch(self) -> None:
        now = self._clock.time()
        if self._stuck(now):
            self.end(f"it took nothing up for {frames.DEAD_AFTER:g} s")
            return
        act, again = self._silence.check(now)
        if act == "dead":
            self.end(f"silent for {frames.DEAD_AFTER:g} s")
            return
        if act == "ping":
            self.post(frames.Ping())
        if self.lost is None:
            self._timer = self._clock.call_at(again, self._watch)

    def _stuck(self, now: float) -> bool:
        """Whether what is to be sent has not moved for so long that the worker, though it speaks, does not read."""
        waiting = self._transport.get_write_buffer_size()
        taken, since = self._taken
        if not waiting or self._written - waiting > taken:
            self._taken = (self._written - waiting, now)
            return False
        return now >= since + frames.DEAD_AFTER
