"""The list of all sessions, kept in SQLite: what each file said when it was last read. It can be thrown away.

A row counts only while its file has the size and the time of change that it had then. An index that fails, or that
another release wrote, is deleted and filled again from the files.
"""

import asyncio
import contextlib
import heapq
import logging
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec import Struct, structs

from daemon.protocol.api import Info
from daemon.protocol.records import Spent, Status
from daemon.statefile.errors import AnewError, StateFileError

P = ParamSpec("P")
T = TypeVar("T")

FILE: Final = "index.db"
BESIDE: Final = ("", "-wal", "-shm", "-journal")  # what SQLite makes of its name
SCHEMA: Final = 3  # one more for each change of the table, or of how an Info is made within one release
FAILURES: Final = 3  # indexes that a process may lose on this disk, then it keeps one in memory
CHEAP: Final = 0.005  # seconds of processor time that a look at the folder may cost as often as it likes
SHARE: Final = 10  # for each second that a dearer one costs, so many seconds without one
RACY: Final = 50_000_000  # ns; a folder that changed less long ago may change again and keep its time

TABLE: Final = """
CREATE TABLE about (version TEXT NOT NULL);
CREATE TABLE sessions (
  id TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
  updated TEXT NOT NULL, status TEXT NOT NULL, info BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_time ON sessions (updated, id);
CREATE INDEX by_status ON sessions (status, updated, id);
"""

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class Row(Struct, frozen=True):
    """What a file said when it had `size` bytes and was last changed at `mtime_ns`. `spent`: what its cost is made of,
    since prices may change while files do not.
    """

    size: int
    mtime_ns: int
    info: Info
    spent: tuple[Spent, ...] = ()


class Note(Struct, frozen=True):
    """What the daemon knows of a session whose file ends at byte `size`, without reading it; `spent` as in Row."""

    size: int
    info: Info
    spent: tuple[Spent, ...] = ()


class _Kept(Struct, frozen=True, omit_defaults=True):
    """A row's last column. The info has no cost."""

    info: Info
    spent: tuple[Spent, ...] = ()


_decode = msgspec.json.Decoder(_Kept).decode


class Page(Struct, frozen=True):
    """A part of the list. `stale`: ids in it whose files changed since, so that it has to be asked for again.

    `infos` is None when there is no session to begin after.
    """

    infos: Sequence[Info] | None
    stale: Sequence[str] = ()


class Source(Protocol):
    """What the rows are held against: the sessions as they are now. Called in the index's thread."""

    def changed(self) -> int:
        """A number that differs once a session has come or gone: a time (ns), or a count."""
        ...

    def ids(self) -> Iterable[str]:
        """Every session's id. Raises StateFileError."""
        ...

    def all(self) -> Iterator[tuple[str, int, int]]:
        """(id, bytes, time of change in ns) of every session. Raises StateFileError."""
        ...

    def at(self, id: str) -> tuple[int, int] | None:
        """(Bytes, time of change) of one, None where it is not there."""
        ...


class Index:
    """The index of one data folder, or in memory where `data` is None. All of it runs in one thread, one call after the
    other as they were made.

    `version` is the release: what another one wrote is not read. `cost` is called in that thread, for each session that
    is given. A call on an index that fails is made again on the next one; what tells of many sessions raises AnewError
    there until `behind` was asked. All raise StateFileError when that does not help, and once it is closed.
    """

    def __init__(
        self,
        data: Path | None,
        source: Source,
        version: str,
        cost: Callable[[Sequence[Spent]], float | None] = lambda spent: None,
    ) -> None:
        self._cost = cost
        self._path = data / FILE if data is not None else None
        self._source = source
        self._version = f"{SCHEMA} {version}"
        self._executor = ThreadPoolExecutor(1, "index")
        self._closed = False
        self._db: sqlite3.Connection | None = None
        self._failures = 0
        self._anew = False  # it failed and is empty again, and nobody has asked what it does not know
        self._known: int | None = (
            None  # the folder's time of change when we looked; None: every file is looked at
        )
        self._rest = 0.0  # no further look before this moment

    async def behind(self) -> list[str]:
        """Ids of sessions that it does not know as they are, those last written first; gone ones too.

        The first time every file is looked at, later the folder alone, and not that while nothing changed there or a
        look takes long.
        """
        return await self._run(self._behind)

    async def put(self, rows: Mapping[str, Row | None]) -> None:
        """Keep what was read of these sessions; None for a file that is not there."""
        await self._run(self._put, rows)

    async def note(self, notes: Mapping[str, Note]) -> list[str]:
        """Keep what is known of these sessions; the ids of those whose files are not as they should be."""
        return await self._run(self._note, notes)

    async def get(self, id: str) -> Info | None:
        """What it knows of a session, None when that is nothing or the file changed since."""
        return await self._run(self._get, id)

    async def waiting(self, statuses: Collection[Status]) -> list[str]:
        """Ids of all sessions in one of these statuses, newest updated first."""
        return await self._run(self._waiting, statuses)

    async def tally(self, newer: Mapping[str, Info]) -> Mapping[Status, int]:
        """How many sessions are in each status; what is in `newer` counts."""
        return await self._run(self._tally, newer)

    async def page(self, status: Status | None, limit: int, after: str, newer: Mapping[str, Info]) -> Page:
        """At most `limit` sessions, newest updated first, from the one after `after`; what is in `newer` counts."""
        return await self._run(self._page, status, limit, after, newer)

    async def close(self) -> None:
        """Write what is left and close the file."""
        if not self._closed:
            self._closed = True
            await asyncio.wrap_future(self._executor.submit(self._drop))
            self._executor.shutdown(wait=False)

    async def _run(
        self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._closed:
            where = f"the data folder {self._path.parent}" if self._path else "the list of sessions"
            raise StateFileError(f"{where} is closed")

        def whole() -> T:
            while True:
                try:
                    with self._open() as db:
                        return work(db, *args, **kwargs)
                except sqlite3.Error as error:
                    if self._failures >= FAILURES:
                        raise StateFileError(f"the list of sessions cannot be kept: {error}") from error
                    self._lose(error)

        return await asyncio.shield(asyncio.wrap_future(self._executor.submit(whole)))

    # In the thread

    def _open(self) -> sqlite3.Connection:
        """The connection; as a context it is a transaction. Raises sqlite3.Error."""
        if self._db is None:
            path = None if self._failures >= FAILURES else self._path
            if path is not None:
                with contextlib.suppress(OSError):  # SQLite's own attempt says what is wrong
                    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = db = sqlite3.connect(path or ":memory:")
            db.execute("PRAGMA locking_mode = EXCLUSIVE")  # one daemon; and there is no file of shared memory
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")  # whole after a power cut; what it lost is read again
            tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if not tables:
                db.executescript(TABLE)
                with db:
                    db.execute("INSERT INTO about VALUES (?)", (self._version,))
            elif (said := db.execute("SELECT version FROM about").fetchone()) != (self._version,):
                raise sqlite3.DatabaseError(f"it is of version {said and said[0]}")
        return self._db

    def _lose(self, error: sqlite3.Error) -> None:
        """Delete an index that failed; the next one begins empty."""
        self._failures += 1
        log.warning("the list of sessions is made anew from their files: %s: %s", self._path, error)
        if self._failures == FAILURES:
            log.error("%s cannot be kept: until the next start the list is in memory", self._path)
        self._drop()
        self._known, self._rest, self._anew = None, 0.0, True
        for end in BESIDE if self._path else ():
            with contextlib.suppress(OSError):
                os.unlink(f"{self._path}{end}")

    def _drop(self) -> None:
        if self._db is not None:
            db, self._db = self._db, None
            with contextlib.suppress(sqlite3.Error):
                db.close()

    def _behind(self, db: sqlite3.Connection) -> list[str]:
        changed = self._source.changed()
        if self._known is not None and (changed == self._known or time.monotonic() < self._rest):
            return []
        start = time.thread_time()
        found = self._differing(db) if self._known is None else self._unknown(db)
        cost = time.thread_time() - start
        self._rest = time.monotonic() + (SHARE * cost if cost > CHEAP else 0)
        self._known = changed if time.time_ns() - changed > RACY else 0
        self._anew = False
        return found

    def _check_filled(self) -> None:
        if self._anew:
            raise AnewError("the list of sessions is made anew from their files")

    def _differing(self, db: sqlite3.Connection) -> list[str]:
        known = {id: (size, when) for id, size, when in db.execute("SELECT id, size, mtime_ns FROM sessions")}
        changed = []
        for id, size, mtime_ns in self._source.all():
            if known.pop(id, None) != (size, mtime_ns):
                changed.append((mtime_ns, id))
        return [*(id for _, id in sorted(changed, reverse=True)), *known]

    def _unknown(self, db: sqlite3.Connection) -> list[str]:
        known = {id for (id,) in db.execute("SELECT id FROM sessions")}
        return sorted(known ^ set(self._source.ids()))

    def _put(self, db: sqlite3.Connection, rows: Mapping[str, Row | None]) -> None:
        db.executemany(
            "DELETE FROM sessions WHERE id = ?", [(id,) for id, row in rows.items() if row is None]
        )
        for id, row in rows.items():
            if row is not None:
                self._set(db, id, row)

    def _set(self, db: sqlite3.Connection, id: str, row: Row) -> None:
        info = row.info
        try:
            kept = _Kept(structs.replace(info, cost=None), row.spent)
            values = (id, row.size, row.mtime_ns, info.updated, info.status, _encode(kept))
            db.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?)", values)
        except (ValueError, OverflowError) as error:  # text that is not Unicode, a number no JSON of ours has
            log.warning("session %s is not in the list's index: %s", id, error)

    def _note(self, db: sqlite3.Connection, notes: Mapping[str, Note]) -> list[str]:
        refused = []
        for id, note in notes.items():
            now = self._source.at(id)
            if now is not None and now[0] == note.size:
                self._set(db, id, Row(note.size, now[1], note.info, note.spent))
            else:
                refused.append(id)
        return refused

    def _get(self, db: sqlite3.Connection, id: str) -> Info | None:
        row = db.execute("SELECT size, mtime_ns, info FROM sessions WHERE id = ?", (id,)).fetchone()
        if row is None or self._source.at(id) != (row[0], row[1]):
            return None
        return self._info(row[2])

    def _waiting(self, db: sqlite3.Connection, statuses: Collection[Status]) -> list[str]:
        self._check_filled()
        places = ", ".join("?" * len(statuses))
        asked = f"SELECT id FROM sessions WHERE status IN ({places}) ORDER BY updated DESC, id DESC"  # noqa: S608 - question marks
        return [id for (id,) in db.execute(asked, tuple(statuses))]

    def _tally(self, db: sqlite3.Connection, newer: Mapping[str, Info]) -> Mapping[Status, int]:
        self._check_filled()
        found: Counter[Status] = Counter(
            dict(db.execute("SELECT status, count(*) FROM sessions GROUP BY status"))
        )
        for id, info in newer.items():
            for (old,) in db.execute("SELECT status FROM sessions WHERE id = ?", (id,)):
                found[old] -= 1
            found[info.status] += 1
        return +found

    def _page(
        self, db: sqlite3.Connection, status: Status | None, limit: int, after: str, newer: Mapping[str, Info]
    ) -> Page:
        self._check_filled()
        before = ("\U0010ffff", "")
        if after:
            found = db.execute("SELECT updated FROM sessions WHERE id = ?", (after,)).fetchone()
            if after in newer:
                found = (newer[after].updated,)
            if found is None:
                return Page(None)
            before = (found[0], after)
        fresh = sorted(
            (
                (info.updated, id, info)
                for id, info in newer.items()
                if (info.updated, id) < before and status in (None, info.status)
            ),
            key=_place,
            reverse=True,
        )
        infos: list[Info] = []
        stale: list[str] = []
        with contextlib.closing(db.cursor()) as cursor:
            kept = self._rows(cursor, status, before, newer, stale)
            for _, _, info in heapq.merge(kept, fresh, key=_place, reverse=True):
                if len(infos) + len(stale) >= limit:
                    break
                if info is not None:
                    infos.append(info)
        return Page(infos, stale)

    def _rows(
        self,
        cursor: sqlite3.Cursor,
        status: Status | None,
        before: tuple[str, str],
        without: Collection[str],
        stale: list[str],
    ) -> Iterator[tuple[str, str, Info | None]]:
        """The rows of a page; for one that does not count its id goes to `stale`, and None stands for its Info."""
        where = "(updated, id) < (?, ?)" + (" AND status = ?" if status is not None else "")
        asked = f"SELECT updated, id, size, mtime_ns, info FROM sessions WHERE {where} ORDER BY updated DESC, id DESC"  # noqa: S608 - as above
        values = before if status is None else (*before, status)
        for updated, id, size, mtime_ns, encoded in cursor.execute(asked, values):
            if id not in without:
                info = self._info(encoded) if self._source.at(id) == (size, mtime_ns) else None
                if info is None:
                    stale.append(id)
                yield updated, id, info

    def _info(self, encoded: bytes) -> Info | None:
        try:
            kept = _decode(encoded)
        except ValueError:
            return None
        return structs.replace(kept.info, cost=self._cost(kept.spent) if kept.spent else None)


def _place(entry: tuple[str, str, Info | None]) -> tuple[str, str]:
    return entry[0], entry[1]
