"""Append records to one session's file, and know which are on disk. One writer per file."""

import asyncio
import itertools
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import structs

from daemon.protocol import records
from daemon.protocol.records import Record
from daemon.statefile import blocks, ready
from daemon.statefile.descriptors import Descriptors
from daemon.statefile.errors import (
    DamagedError,
    MissingError,
    NoSpaceError,
    ReopenError,
    StateFileError,
)
from daemon.statefile.reader import Reader
from daemon.statefile.scan import Scan

ON_LOOP: Final = 1 << 20  # bytes of bodies up to which an append is faster than the way to a thread

log = logging.getLogger(__name__)


def stored(drafts: Sequence[Record], first: int, now: datetime) -> tuple[list[Record], list[bytes]]:
    """(records, their bytes): the drafts numbered from `first`, with time, length and, where empty, an id.

    Raises BadRecord for what no file takes.
    """
    time = now.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    done, pieces = [], []
    for n, draft in enumerate(drafts, first):
        header = draft.header
        id = header.id or secrets.token_hex(8)
        header = structs.replace(header, n=n, id=id, time=time, len=len(draft.body))
        line, data = records.encode(Record(header, draft.body))
        done.append(Record(header, draft.body, line))
        pieces.append(data)
    return done, pieces


class Log(Reader):
    """One session's file. The store makes it, and there is one for a file.

    A file with damage is not written. `broken`: the disk did not confirm a write; nothing more is written through
    this object, the session has to be opened again. `fresh`: the file was found, not made: it is looked at first.
    """

    def __init__(
        self,
        path: Path,
        scan: Scan,
        descriptors: Descriptors,
        fd: int,
        *,
        clock: Callable[[], datetime],
        sync: Callable[[int], None],
        fresh: bool,
    ) -> None:
        super().__init__(path, scan, descriptors, fd)
        self._file.fresh = fresh
        self._torn = scan.torn
        self._clock = clock
        self._sync = sync
        self._lock = asyncio.Lock()
        self._preparing: asyncio.Task[None] | None = None
        self._error: StateFileError | None = None
        self._broke: asyncio.Task[None] | None = None
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._wanted = self.n  # durable up to here is what somebody waits for
        self._syncing = False
        self._dirty = (
            False  # records past durable_n: the descriptor stays pinned, it is the one to be told of errors
        )

    @property
    def broken(self) -> bool:
        return self._error is not None

    @property
    def due_n(self) -> int:
        return max(self.durable_n, min(self._wanted, self.n))

    # Writing

    async def append(self, *drafts: Record, durable: bool = True) -> list[Record]:
        """Append all drafts as one write, or none, and return them as they are stored.

        With `durable` they are on disk when this returns. Without, a cancelled call of up to ON_LOOP bytes has
        written nothing; a larger one may have. Raises NoSpaceError (the file is whole and without them),
        DamagedError, ReopenError, BadRecord.
        """
        if not drafts:
            return []
        if sum(len(draft.body) for draft in drafts) > ON_LOOP:
            done = await self._threads.whole(self._append(drafts, large=True), f"append {self.id}")
        else:
            done = await self._append(drafts, large=False)
        if durable:
            await self._settle(done[-1].n)
        return done

    async def sync(self) -> None:
        """Returns when every record appended so far is on disk. Raises ReopenError."""
        self._check()  # those of a broken log may be cut off by now
        await self._settle(self.n)

    async def _append(self, drafts: Sequence[Record], large: bool) -> list[Record]:
        async with self._lock:
            fd = await self._writable()
            kept = False
            try:
                if large:
                    done, pieces = await self._threads.run(stored, drafts, self.n + 1, self._clock())
                    await self._threads.run(blocks.put, fd, b"".join(pieces), self._end)
                else:
                    done, pieces = stored(drafts, self.n + 1, self._clock())
                    blocks.put(fd, pieces[0] if len(pieces) == 1 else b"".join(pieces), self._end)
                self._offsets.extend(itertools.accumulate(map(len, pieces[:-1]), initial=self._end))
                self._end += sum(map(len, pieces))
                self.n += len(done)
                kept = not self._dirty  # pinned until it is synced
                self._dirty = True
                return done
            except asyncio.CancelledError:
                self._break("a write was stopped half-way")
                raise
            except (OSError, blocks.Changed) as error:
                raise self._not_written(error) from error
            finally:
                if not kept:
                    self._file.unpin()

    def _not_written(self, error: OSError | blocks.Changed) -> StateFileError:
        if isinstance(error, blocks.Changed):
            return self._break(f"another program changed the file: {error}", cut=False)
        if isinstance(error, blocks.Uncut):
            return self._break(f"a failed write could not be cut off: {error.strerror}")
        if isinstance(error, FileNotFoundError):
            return MissingError(self.id)
        log.error("session %s: nothing was written: %s", self.id, error.strerror)
        return NoSpaceError(f"session {self.id} cannot be written: {error.strerror}")

    async def _writable(self) -> int:
        """The pinned descriptor, when the file was looked at since it was opened."""
        self._check()
        if self.damage is not None:
            raise DamagedError(self.id, self.damage)
        try:
            fd = await self._file.pin()
        except OSError as error:
            raise self._not_written(error) from error
        ready = False
        try:
            if self._file.fresh:
                if self._preparing is None:
                    self._preparing = self._threads.own(self._prepare(), f"prepare {self.id}")
                await asyncio.shield(self._preparing)
            self._check()
            ready = True
            return fd
        finally:
            if not ready:
                self._file.unpin()

    async def _prepare(self) -> None:
        try:
            fd = await self._file.pin()
            try:
                now = self._clock()
                await self._threads.run(ready.make_ready, fd, self.path, self._end, self._torn, now)
                self._file.fresh = False
                self._torn = 0
            finally:
                self._file.unpin()
        except (OSError, blocks.Changed) as error:
            raise self._not_written(error) from error
        except blocks.Unread as error:
            raise self.not_read(error) from error
        finally:
            self._preparing = None

    # Durability

    async def wait(self, after: int) -> None:
        """Returns once `durable_n` is over `after`. Raises ReopenError, StateFileError when the store is closed."""
        await self._reach(after + 1)

    async def _settle(self, n: int) -> None:
        self._wanted = max(self._wanted, n)
        self._start_sync()
        await self._reach(n)

    async def _reach(self, n: int) -> None:
        while self.durable_n < n:
            self._check()
            future = asyncio.get_running_loop().create_future()
            self._waiting[future] = n
            try:
                await future
            finally:
                del self._waiting[future]

    def _start_sync(self) -> None:
        """Begin a sync of all that is written now. Who comes while it runs is for the next one."""
        if self._syncing or self._error is not None or self._wanted <= self.durable_n:
            return
        self._syncing = True
        self._file.pin_open()
        tell = partial(self._tell, asyncio.get_running_loop(), self.n)
        self._threads.submit(self._sync, self._file.fd).add_done_callback(tell)

    def _tell(self, loop: asyncio.AbstractEventLoop, n: int, done: Future[None]) -> None:
        """In the thread: hand a sync's outcome to the loop."""
        loop.call_soon_threadsafe(self._synced, n, done)

    def _synced(self, n: int, done: Future[None]) -> None:
        self._syncing = False
        self._file.unpin()
        if self._error is not None:
            return  # these records may have been cut off since
        if (error := done.exception()) is not None:
            # The kernel reports a failed write once, and the next sync would succeed without it.
            self._break(f"the disk did not confirm a write: {error}")
            return
        self.durable_n = n
        self._wake(n)
        if n == self.n:
            self._clean()
        self._start_sync()

    def _wake(self, n: int) -> None:
        for future, wanted in self._waiting.items():
            if wanted <= n and not future.done():
                future.set_result(None)

    def _clean(self) -> None:
        if self._dirty:
            self._dirty = False
            self._file.unpin()

    def _check(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)

    def _break(self, why: str, cut: bool = True) -> ReopenError:
        """Write nothing more, cut off what nobody was told of, and let go of all who wait."""
        error = ReopenError(f"session {self.id} has to be opened again: {why}")
        if self._error is None:
            log.error("%s", error)
            self._error = error
            self._broke = self._threads.own(self._cut_back(cut), f"cut back {self.id}")
            self._wake_all()
        return error

    async def _cut_back(self, cut: bool) -> None:
        async with self._lock:
            end = self._edge(self.durable_n)
            if cut:
                try:
                    fd = await self._file.pin()
                    try:
                        await self._threads.run(os.ftruncate, fd, end)
                    finally:
                        self._file.unpin()
                except OSError as error:
                    log.error("session %s: could not be cut back: %s", self.id, error.strerror)
            self.n, self._end = self.durable_n, end
            del self._offsets[self.n :]
            self._clean()

    def _wake_all(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def at_rest(self) -> None:
        """Returns when a broken log no longer touches its file."""
        if self._broke is not None:
            await asyncio.wait({self._broke})

    async def close(self) -> None:
        """Sync what is not yet, then refuse everything. For the store."""
        async with self._lock:
            try:
                await self._settle(self.n)
            except StateFileError as error:
                log.error("session %s: closed with records that may not be on disk: %s", self.id, error)
            self._error = self._error or StateFileError("the data folder is closed")
            self._wake_all()
            self._file.end()
