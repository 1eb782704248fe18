"""The data folder: makes, opens, copies and lists the sessions' files; one Log for a file."""

import asyncio
import logging
import os
import secrets
import stat
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from daemon.protocol.api import Origin
from daemon.protocol.records import Record, Spent, stamp
from daemon.statefile import blocks, lock, points
from daemon.statefile.descriptors import FLAGS, MAX_OPEN, Descriptors, open_file
from daemon.statefile.errors import (
    MissingError,
    NoSpaceError,
    ReopenError,
    StateFileError,
)
from daemon.statefile.files import PASSING, Files, survey
from daemon.statefile.index import Index
from daemon.statefile.interface import Survey
from daemon.statefile.publish import FROM, NAME, SESSIONS, STATE, copy_bytes, publish
from daemon.statefile.scan import Scan, irregular, scan_fd, unreadable
from daemon.statefile.threads import Threads
from daemon.statefile.writer import Log, stored

MAX_LOGS: Final = 1024  # kept though nobody uses them: 8 bytes a record each
MAX_SIDECAR: Final = 4096  # bytes; a sidecar has some 60

log = logging.getLogger(__name__)
_origin = msgspec.json.Decoder(Origin).decode


def _now() -> datetime:
    return datetime.now(UTC)


def _random_id() -> str:
    return secrets.token_hex(8)


class Store:
    """The sessions under `data`. `sync` makes appends to a descriptor durable (os.fdatasync).

    One process works on a folder: hold `lock` while there is a store.
    """

    def __init__(
        self,
        data: Path,
        *,
        clock: Callable[[], datetime] = _now,
        new_id: Callable[[], str] = _random_id,
        sync: Callable[[int], None] = os.fdatasync,
        max_logs: int = MAX_LOGS,
        max_open: int = MAX_OPEN,
    ) -> None:
        self._data = data
        self._sessions = data / SESSIONS
        self._clock = clock
        self._new_id = new_id
        self._sync = sync
        self._max_logs = max_logs
        self._threads = Threads()
        self._descriptors = Descriptors(self._threads, max_open)
        self._live: WeakValueDictionary[str, Log] = (
            WeakValueDictionary()
        )  # all there are, so that there is one
        self._recent: OrderedDict[str, Log] = OrderedDict()
        self._opening: dict[str, asyncio.Task[Log]] = {}
        self._suspect: set[str] = set()  # the disk did not confirm a write: memory may hold what it does not
        self._closed = False

    def lock(self) -> AbstractContextManager[None]:
        """Make the folder (0700) and hold its lock. Blocks: enter it before the loop runs, or in a thread.

        Raises LockedError, which names the holder's process id, and StateFileError.
        """
        return lock.hold(self._data)

    def index(
        self, version: str, cost: Callable[[Sequence[Spent]], float | None] = lambda spent: None
    ) -> Index:
        """The list of sessions as it was last known, for this release; `cost` as Index has it. Close it before the
        store.
        """
        return Index(self._data, Files(self._data), version, cost)

    def check_id(self, id: str) -> None:
        """Raises MissingError for what is no id."""
        points.check_id(id)

    def survey(self, id: str, add: Callable[[Record], None]) -> Survey:
        """See interface.SessionStore."""
        self.check_id(id)
        return survey(self._sessions / f"{id}{STATE}", add)

    def ids(self) -> list[str]:
        """Every session's id, sorted. Reads the folder: blocks, call it in a thread."""
        try:
            with os.scandir(self._sessions) as entries:
                return sorted(match[1] for entry in entries if (match := NAME.fullmatch(entry.name)))
        except FileNotFoundError:
            return []

    async def create(self, *drafts: Record) -> tuple[str, Log]:
        """A new session of these records, durable. Raises NoSpaceError, BadRecord; then there is none."""
        if not drafts:
            raise ValueError("a session begins with its start record; none was given")
        self._check()
        return await self._threads.whole(self._create(drafts), "create")

    async def open(self, id: str) -> Log:
        """The session's log; reads the whole file where it is not at hand. Raises MissingError, ReopenError.

        A damaged file opens, with the log's `damage` set. A broken log is replaced by what is on disk.
        """
        found = self._live.get(id)
        if found is None or found.broken:
            self._check()
            self.check_id(id)
            task = self._opening.get(id)
            if task is None:
                task = self._opening[id] = self._threads.own(self._load(id, found), f"open {id}")
            found = await asyncio.shield(task)
        self._keep(found)
        return found

    async def copy(self, id: str, n: int) -> str:
        """A new session of records 1 to n-1, byte for byte, without an end record; its id.

        Raises CopyPointError where they do not make a session that can go on, MissingError, DamagedError,
        NoSpaceError.
        """
        source = await self.open(id)
        tip = source.durable_n
        lines = (await source.headers(0)).split(b"\n")[:-1]
        at = await self._threads.run(points.check, id, n, tip, lines)
        return await self._threads.whole(self._copy(source, at), f"copy {id}")

    def origin(self, id: str) -> Origin | None:
        """What a copied session was copied from; None for another, and where the sidecar is lost or damaged."""
        try:
            fd = os.open(self._sessions / f"{id}{FROM}", os.O_RDONLY | FLAGS)
        except OSError:
            return None
        try:
            return _origin(os.pread(fd, MAX_SIDECAR, 0))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("session %s: where it was copied from does not read: %s", id, error)
            return None
        finally:
            os.close(fd)

    async def close(self) -> None:
        """Sync every log and close every descriptor. The store and its logs refuse everything afterwards."""
        self._closed = True
        await self._threads.idle()
        for found in list(self._live.values()):
            await found.close()
        await self._threads.close()

    def _check(self) -> None:
        if self._closed:
            raise StateFileError(f"the data folder {self._data} is closed")

    def _keep(self, found: Log) -> None:
        self._recent[found.id] = found
        self._recent.move_to_end(found.id)
        while len(self._recent) > self._max_logs:
            self._recent.popitem(last=False)  # whoever uses it keeps it alive, and `open` finds it in `_live`

    def _log(self, id: str, scan: Scan, fd: int, fresh: bool) -> Log:
        path = self._sessions / f"{id}{STATE}"
        made = Log(path, scan, self._descriptors, fd, clock=self._clock, sync=self._sync, fresh=fresh)
        self._live[id] = made
        return made

    async def _create(self, drafts: tuple[Record, ...]) -> tuple[str, Log]:
        _, pieces = stored(drafts, 1, self._clock())
        ends = list(accumulate(map(len, pieces)))
        id, fd = await self._publish(partial(blocks.put, data=b"".join(pieces), offset=0))
        made = self._log(id, Scan(array("Q", [0, *ends[:-1]]), ends[-1]), fd, fresh=False)
        self._keep(made)
        return id, made

    async def _copy(self, source: Log, n: int) -> str:
        fill = partial(copy_bytes, source.path, source.span(0, n - 1)[1])
        try:
            id, fd = await self._publish(fill, Origin(source.id, n, stamp(self._clock())))
        except blocks.Unread as error:
            raise source.not_read(error) from error
        os.close(fd)
        return id

    async def _publish(self, fill: Callable[[int], None], origin: Origin | None = None) -> tuple[str, int]:
        try:
            return await self._threads.run(publish, self._data, fill, self._new_id, origin)
        except OSError as error:
            log.error("a session was not made: %s", error.strerror)
            raise NoSpaceError(f"{self._sessions} cannot be written: {error.strerror}") from error

    async def _load(self, id: str, broken: Log | None) -> Log:
        try:
            if broken is not None:
                self._suspect.add(id)
                await broken.at_rest()
            fd, scan = await self._threads.run(self._read, id, id in self._suspect)
            self._suspect.discard(id)
            return self._log(id, scan, fd, fresh=True)
        except ReopenError:
            self._suspect.add(id)
            raise
        finally:
            del self._opening[id]

    def _read(self, id: str, suspect: bool) -> tuple[int, Scan]:
        """(Descriptor or -1, what is on disk). Blocks."""
        try:
            fd = open_file(self._sessions / f"{id}{STATE}")
        except FileNotFoundError:
            raise MissingError(id) from None
        except OSError as error:
            if error.errno in PASSING:
                raise StateFileError(f"session {id} cannot be opened: {error.strerror}") from error
            return -1, unreadable(error)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                return -1, irregular()
            self._sync(
                fd
            )  # a killed daemon may have left more than the disk has; readers see durable records only
            if suspect:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # so that the scan reads from the disk
            return fd, scan_fd(fd)
        except OSError as error:
            os.close(fd)
            raise ReopenError(
                f"session {id}: the disk does not confirm what is in it: {error.strerror}"
            ) from error
