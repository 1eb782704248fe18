"""Doubles that tests share: they keep the contract of what they stand for, and are played by the test."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from daemon.pool import Pool
from daemon.protocol import frames

T = TypeVar("T")
F = TypeVar("F", bound=frames.ToWorker)
Key = tuple[str, str]  # session, call


class FakeTimer:
    """A call planned on a FakeClock."""

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Time that stands until `advance`: seconds, and calls at a time."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self._timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None], /) -> FakeTimer:
        timer = FakeTimer(when, callback)
        self._timers = [
            one for one in self._timers if not one.cancelled
        ]  # each holds a connection, buffers and all
        self._timers.append(timer)
        return timer

    @property
    def planned(self) -> int:
        """How many calls are still to come."""
        return sum(not timer.cancelled for timer in self._timers)

    def advance(self, seconds: float) -> None:
        """Let time pass and make the calls that fall due, each at its time."""
        end = self.now + seconds
        while due := [timer for timer in self._timers if not timer.cancelled and timer.when <= end]:
            first = min(due, key=lambda timer: timer.when)
            self._timers.remove(first)
            self.now = max(self.now, first.when)
            first.callback()
        self.now = end

    def stand_still(self, seconds: float) -> None:
        """As if the process had been stopped: all that fell due is called late, at one time."""
        self.now += seconds
        self.advance(0)


class Tasks:
    """The tasks of one test: `close` ends those that still run. A task's error is its awaiter's."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Run `work` beside the test."""
        task = asyncio.get_running_loop().create_task(work, name=name or None)
        self._tasks.append(task)
        return task

    async def close(self) -> None:
        """Cancel what still runs and wait for it."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class FakeWorker:
    """A worker at the far end of a socket pair, played frame by frame, or by itself with `obey`.

    Its journal outlives its connections: `known` are the calls in it, `results` how those that ended did. `ran`
    counts how often each call was really started. `tasks` owns the pool's end of each connection, and `obey`.
    """

    def __init__(
        self,
        pool: Pool,
        tasks: Tasks,
        clock: FakeClock,
        name: str = "gpu",
        journal_age: float = 1e6,
    ) -> None:
        self.name = name
        self.body = b""
        self.journal = "journal"  # its name
        self.known: set[Key] = set()
        self.ran: Counter[Key] = Counter()
        self.results: dict[Key, bytes] = {}
        self.born = clock.time() - journal_age
        self.served: asyncio.Task[None] | None = None
        self._clock = clock
        self.pool = pool  # of the daemon that runs now
        self._tasks = tasks
        self._end: WorkerEnd | None = None
        self._attached: dict[Key, list[tuple[WorkerEnd, int]]] = {}

    @property
    def hello(self) -> frames.Hello:
        """What it says first."""
        return frames.Hello(
            protocol=frames.PROTOCOL,
            release="1.0",
            os="linux",
            arch="x86_64",
            hostname=self.name,
            interpreters=("bash", "python"),
            scratch="/scratch",
            journal=self.journal,
            journal_age=self._clock.time() - self.born,
        )

    async def dial(self, hello: frames.Hello | None = None) -> None:
        """A new connection, with the worker's own hello or another; an old one stays open."""
        await self.connect()
        self.send(hello or self.hello)

    async def connect(self) -> None:
        """A new connection without a hello."""
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        self.served = self._tasks.start(self.pool.serve(self.name, reader, writer))
        self._end = WorkerEnd(*await asyncio.open_connection(sock=ours))

    @property
    def end(self) -> "WorkerEnd":
        """The present connection."""
        assert self._end is not None
        return self._end

    async def settled(self) -> None:
        """Return once the pool has taken up all that was sent to it."""
        self.send(frames.Ping())
        await self.take(frames.Pong)

    def send(self, frame: frames.ToHarness, body: bytes = b"") -> None:
        """Send one frame."""
        self.end.send(frame, body)

    async def take(self, kind: type[F]) -> F:
        """The next frame, which has to be of that kind; its body is in `self.body`."""
        got = await self.end.next()
        assert got is not None, f"end of stream where a {kind.__name__} was expected"
        frame, self.body = got
        assert isinstance(frame, kind), f"{frame} where a {kind.__name__} was expected"
        return frame

    async def cut(self) -> None:
        """Close the connection; returns when the pool has noticed."""
        self.end.writer.close()
        await self.ended()

    async def ended(self) -> None:
        """Wait until the pool has ended the connection, and close this end."""
        assert self.served is not None
        await self.served
        self.end.writer.close()

    def lose_journal(self) -> None:
        """Its disk is new: it knows of no run, and those that went are gone."""
        self.known.clear()
        self.results.clear()
        self._attached.clear()
        self.born = self._clock.time()

    def obey(self) -> None:
        """From now on, on this connection, do what a worker does with runs; `finish` ends them."""
        self._tasks.start(self._obey(self.end))

    async def _obey(self, end: "WorkerEnd") -> None:
        while (got := await end.next()) is not None:
            frame = got[0]
            match frame:
                case frames.Run() | frames.Attach():
                    key = (frame.session, frame.call)
                    if key in self.results:
                        end.send(frames.Result(id=frame.id, exit=0), self.results[key])
                        continue
                    if isinstance(frame, frames.Attach) and key not in self.known:
                        end.send(frames.Unknown(id=frame.id))
                        continue
                    if key not in self.known:
                        self.known.add(key)
                        self.ran[key] += 1
                    end.send(frames.Going(id=frame.id))
                    self._attached.setdefault(key, []).append((end, frame.id))
                case frames.Ping():
                    end.send(frames.Pong())
                case frames.Interrupt() | frames.Kill():
                    end.send(frames.Done(id=frame.id), b"ended")
                case _:
                    pass

    def finish(self, key: Key, text: bytes) -> None:
        """A run that is known ends, whether the worker is connected or not."""
        assert key in self.known
        self.results[key] = text
        for end, id in self._attached.pop(key, []):
            end.send(frames.Result(id=id, exit=0), text)


class WorkerEnd:
    """The worker's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.decoder = frames.worker_decoder()

    def send(self, frame: frames.ToHarness, body: bytes = b"") -> None:
        """Send one frame; on a closed connection nothing."""
        if not self.writer.is_closing():
            self.writer.write(frames.encode(frame, body))

    async def next(self) -> tuple[frames.ToWorker, bytes] | None:
        """The next frame and its body; None when the harness closed the connection."""
        while (unit := self.decoder.next()) is None:
            try:
                data = await self.reader.read(1 << 20)
            except ConnectionError:
                return None
            if not data:
                return None
            self.decoder.feed(data)
        return unit[0], unit[2]
