"""Read one session's file by its records: bodies, byte ranges, header lines."""

import asyncio
import weakref
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from daemon.protocol.records import Record
from daemon.statefile import blocks
from daemon.statefile.descriptors import Descriptors, File
from daemon.statefile.errors import Damage, DamagedError, MissingError, StateFileError
from daemon.statefile.scan import Scan

P = ParamSpec("P")
T = TypeVar("T")

CHUNK: Final = 256 << 10  # bytes: what is read at once for a reader; more than that is read off the loop


class Reader:
    """One session's file, as far as it is read.

    `n`: the last record; `durable_n`: the last one that is known to be on disk, all that others are shown.
    `damage`: the first record that does not read; there are none from there on.
    """

    def __init__(self, path: Path, scan: Scan, descriptors: Descriptors, fd: int) -> None:
        self.id = path.stem
        self.path = path
        self.n = self.durable_n = len(scan.offsets)
        self.damage = scan.damage
        self._offsets = scan.offsets
        self._end = scan.end
        self._threads = descriptors.threads
        self._file = File(path, descriptors, fd)
        weakref.finalize(self, self._file.close).atexit = False

    async def read(self, first: int = 1, last: int | None = None) -> list[Record]:
        """Records `first` to `last`, those not yet durable too; less where there are less. Raises DamagedError."""
        first, last = max(first, 1), self.n if last is None else min(last, self.n)
        if first > last:
            return []
        return await self._off_loop(blocks.read_records, self._offsets[first - 1], self._edge(last), first)

    def span(self, after: int, limit: int | None = None) -> tuple[int, int]:
        """Byte range of at most `limit` durable records after record `after`. Raises ValueError past the tip."""
        last = self._last(after, limit)
        return self._edge(after), self._edge(last)

    async def chunks(self, after: int, limit: int | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes of `span`, in pieces of at most CHUNK. Raises ValueError past the tip, DamagedError."""
        start, end = self.span(after, limit)
        few = end - start <= CHUNK
        while start < end:
            stop = min(start + CHUNK, end)
            yield await (self._on_loop(start, stop) if few else self._off_loop(blocks.get, start, stop))
            start = stop

    async def headers(self, after: int, limit: int | None = None) -> bytes:
        """Header lines of at most `limit` durable records after `after`, one a line. Raises as `chunks` does."""
        last = self._last(after, limit)
        if last == after:
            return b""
        edges = [*self._offsets[after:last], self._edge(last)]
        lines = await self._off_loop(blocks.header_lines, edges)
        return b"".join(b"%b\n" % line for line in lines)

    def _last(self, after: int, limit: int | None) -> int:
        if not 0 <= after <= self.durable_n:
            raise ValueError(f"after = {after}: session {self.id} has records 1 to {self.durable_n}")
        return self.durable_n if limit is None else min(after + max(limit, 0), self.durable_n)

    def _edge(self, n: int) -> int:
        """Byte offset of the end of record `n`."""
        return self._offsets[n] if n < len(self._offsets) else self._end

    async def _on_loop(self, start: int, end: int) -> bytes:
        """A short range, from the page cache in nearly every case: faster than the way to a thread."""
        try:
            fd = await self._file.pin()
            try:
                return blocks.get(fd, start, end)
            finally:
                self._file.unpin()
        except (OSError, blocks.Unread) as error:
            raise self.not_read(error) from error

    async def _off_loop(self, work: Callable[Concatenate[int, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            fd = await self._file.pin()
            future = asyncio.wrap_future(self._threads.submit(work, fd, *args, **kwargs))
            future.add_done_callback(self._unpin)  # a cancelled reader's thread still reads
            return await asyncio.shield(future)
        except (OSError, blocks.Unread) as error:
            raise self.not_read(error) from error

    def _unpin(self, _: object) -> None:
        self._file.unpin()

    def not_read(self, error: OSError | blocks.Unread) -> StateFileError:
        """What to raise for it; bytes that were whole once and are not now make the session damaged."""
        if isinstance(error, FileNotFoundError):
            return MissingError(self.id)
        if isinstance(error, OSError):
            return StateFileError(f"session {self.id} cannot be read: {error.strerror}")
        if error.offset >= self._end:
            return StateFileError(f"session {self.id} was cut back while it was read")
        damage = Damage(bisect_right(self._offsets, error.offset), error.offset, error.reason)
        self.damage = self.damage or damage
        return DamagedError(self.id, damage)
