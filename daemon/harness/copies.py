"""Keep each session's file on its workers up to date, without pictures: an agent can search its own past there.

A session is never held up by it: what fails is tried again when the session pauses next, or when the worker comes.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Final

import structlog
from msgspec import Struct

from daemon.harness.errors import HarnessError
from daemon.pool import Cordoned, Pool, Refused, WorkerGone
from daemon.protocol import frames, records
from daemon.protocol.events import carries_text
from daemon.statefile.errors import StateFileError
from daemon.statefile.interface import SessionLog

AT_ONCE: Final = 4  # transfers: many sessions that pause together must not starve the calls of others
MARKS: Final = 10_000  # copies of which is remembered how far they are; the others' workers are asked
BEHIND: Final = 1000  # sessions that a worker catches up with when it comes; the others do when they pause
MAX_FILE: Final = 1 << 30  # bytes of a session's file that is copied: a worker keeps no more of all together
REWRITTEN: Final = ("changed", "not_found", "not_regular")  # why nothing can be put behind what is there

Key = tuple[str, str]  # worker, session

log = structlog.get_logger()


class Mark(Struct, frozen=True):
    """How far a copy is: records 1 to `n`, in `size` bytes, of which `hash` has taken up all."""

    n: int
    size: int
    hash: "hashlib._Hash"


def path(scratch: str, session: str) -> str:
    """Where a session's file is on a worker with this scratch folder."""
    return f"{scratch}/sessions/{session}.state"


def _start() -> Mark:
    return Mark(0, 0, hashlib.sha256())


class Copies:
    """The copies on one pool's workers. `open` gives a session's file; the tasks live in `group`."""

    def __init__(
        self, pool: Pool, group: asyncio.TaskGroup, open: Callable[[str], Awaitable[SessionLog]]
    ) -> None:
        self._pool = pool
        self._group = group
        self._open = open
        self._marks: OrderedDict[Key, Mark] = OrderedDict()
        self._behind: dict[str, dict[str, None]] = {}
        self._again: set[Key] = set()
        self._going: dict[Key, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._closed = False

    def update(self, session: str, workers: Iterable[str]) -> None:
        """Bring a session's file up to date on these workers, in the background."""
        for worker in workers:
            key = (worker, session)
            if self._closed:
                return
            if key in self._going:
                self._again.add(key)
            elif self._is_here(worker):
                self._going[key] = self._group.create_task(
                    self._keep(key), name=f"copy {session} to {worker}"
                )
            else:
                self._miss(key)

    def workers_changed(self) -> None:
        """Let workers that are here catch up."""
        for worker in [name for name in self._behind if self._is_here(name)]:
            for session in self._behind.pop(worker):
                self.update(session, (worker,))

    async def close(self) -> None:
        """Give up what goes on."""
        self._closed = True
        for task in list(self._going.values()):
            task.cancel()
        if self._going:
            await asyncio.wait(self._going.values())

    def _is_here(self, worker: str) -> bool:
        return self._pool.hello(worker) is not None and not self._pool.cordoned(worker)

    def _miss(self, key: Key) -> None:
        missed = self._behind.setdefault(key[0], {})
        missed[key[1]] = None
        if len(missed) > BEHIND:
            del missed[next(iter(missed))]

    async def _keep(self, key: Key) -> None:
        worker, session = key
        try:
            while True:
                self._again.discard(key)
                async with self._slots:
                    await self._bring(key)
                if key not in self._again:
                    return
        except (WorkerGone, Cordoned):
            self._marks.pop(key, None)
            self._miss(key)
        except (Refused, StateFileError, HarnessError) as error:
            self._marks.pop(key, None)
            log.warning("a session's file was not copied", session=session, worker=worker, why=str(error))
        except Exception:  # its fault must not end the daemon's group, nor the session
            self._marks.pop(key, None)
            log.exception("a session's file was not copied", session=session, worker=worker)
        finally:
            self._going.pop(key, None)

    async def _bring(self, key: Key) -> None:
        worker, session = key
        source = await self._open(session)
        tip = source.durable_n
        if source.span(0, tip)[1] > MAX_FILE:
            return
        hello = self._pool.hello(worker)
        if hello is None:
            raise WorkerGone(worker, "it has just gone", started=False)
        place = path(hello.scratch, session)
        mark = self._marks.get(key)
        if mark is not None and mark.n == tip:
            return
        if mark is None or mark.n > tip:
            mark = await self._found(source, tip, await self._size(worker, place))
        try:
            made = await self._send(worker, place, source, mark, tip)
        except Refused as refused:
            if not mark.n or refused.code not in REWRITTEN:
                raise
            made = await self._send(worker, place, source, _start(), tip)
        self._marks[key] = made
        self._marks.move_to_end(key)
        while len(self._marks) > MARKS:
            self._marks.popitem(last=False)

    async def _size(self, worker: str, place: str) -> int:
        try:
            return await self._pool.size(worker, place)
        except Refused:
            return 0

    async def _found(self, source: SessionLog, tip: int, size: int) -> Mark:
        """Where a copy of this size ends, if it is one; its check sum is compared when something is put behind it."""
        at = _start()
        if not size:
            return at
        done, n = 0, 0
        async with aclosing(_copied(source, 0, tip)) as copied:
            async for data in copied:
                at.hash.update(data)
                done, n = done + len(data), n + 1
                if done >= size:
                    break
        return Mark(n, done, at.hash) if done == size else _start()

    async def _send(self, worker: str, place: str, source: SessionLog, mark: Mark, tip: int) -> Mark:
        """Put the records after `mark` behind what is there; all of them in its place where the mark is the start."""
        hash, size = mark.hash.copy(), mark.size

        async def pieces() -> AsyncGenerator[bytes, None]:
            nonlocal size
            held = bytearray()
            async with aclosing(_copied(source, mark.n, tip)) as copied:
                async for data in copied:
                    hash.update(data)
                    size += len(data)
                    held += data
                    while len(held) >= frames.PIECE:
                        yield bytes(held[: frames.PIECE])
                        del held[: frames.PIECE]
            if held:
                yield bytes(held)

        await self._pool.pour(worker, place, pieces(), behind=mark.hash.hexdigest() if mark.n else "")
        return Mark(tip, size, hash)


async def _copied(source: SessionLog, after: int, tip: int) -> AsyncGenerator[bytes, None]:
    """The records after `after`, each as it stands in a copy. Raises StateFileError, and ValueError for no records."""
    decoder = records.decoder()
    async with aclosing(source.chunks(after, tip - after)) as chunks:
        async for chunk in chunks:
            decoder.feed(chunk)
            while (unit := decoder.next()) is not None:
                header, line, body = unit
                text = carries_text(header.type) or not body
                yield b"%b\n%b\n" % (line, body) if text else records.without_body(line)
