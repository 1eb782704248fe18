"""The sessions that are loaded, least recently used dropped first, and the list of all others, from the index."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from daemon.chain import Chain
from daemon.harness import infos
from daemon.harness.changes import Changes
from daemon.harness.counts import Counts
from daemon.harness.errors import Malformed, NotFound, translated
from daemon.harness.live import LiveReaders
from daemon.harness.session import Session
from daemon.protocol import api
from daemon.protocol.records import Record, Status
from daemon.provider import prices
from daemon.statefile.errors import AnewError, Damage, StateFileError
from daemon.statefile.index import Note, Page, Row
from daemon.statefile.interface import SessionLog, SessionStore

KEPT: Final = 64  # idle sessions kept in memory
BATCH: Final = 64  # files read in one go; the first ones are known before the last are read
MAX_LINEAGE: Final = 1000  # copies of copies that are followed
TRIES: Final = 3  # times a page is asked for while other programs change the files in it

T = TypeVar("T")


class Sessions:
    """Loads a session's file once and keeps it while it is in use.

    A write touches its session; the index is told when the session rests or leaves memory, and until then what is in
    memory counts. A touched session that is not in memory is read from its file before the next list.
    """

    def __init__(
        self, store: SessionStore, release: str, counts: Counts, cost: prices.Costs = prices.unknown
    ) -> None:
        self._store = store
        self._counts = counts
        self._cost = cost
        self._index = store.index(release, cost)
        self.changes = Changes()
        self.kept = KEPT
        self.looked = (
            asyncio.Event()
        )  # the list says what is there: before, not every file has been looked at
        self._loaded: OrderedDict[str, Session] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._readers: WeakValueDictionary[str, LiveReaders] = WeakValueDictionary()
        self._touched: set[str] = set()
        self._notes: dict[str, Note] = {}  # for the index, not yet given to it
        self._writer: asyncio.Task[None] | None = None
        self._catching: set[asyncio.Task[None]] = set()
        self._one_catches = asyncio.Lock()

    async def get(self, id: str) -> Session:
        """The session, loaded where it was not. Raises NotFound, Unready, NoSpace."""
        if (session := self._at_hand(id)) is not None:
            self._loaded.move_to_end(id)
            return session
        lock = self._locks.setdefault(id, asyncio.Lock())
        async with lock:
            if (session := self._at_hand(id)) is None:
                with translated():
                    session = await self._load(id)
                self._shed()  # of the others: who asked for this one is about to work on it
                self._loaded[id] = session
                self._touched.add(id)  # what it says now may not be what the index says
            return session

    async def log(self, id: str) -> SessionLog:
        """The session's log, without folding its records. Raises NotFound, Unready, NoSpace."""
        if (session := self._at_hand(id)) is not None and not session.log.broken:
            return session.log
        with translated():
            return await self._store.open(id)

    async def info(self, id: str) -> api.Info:
        """What stands about a session. Raises NotFound, Unready."""
        if (session := self._at_hand(id)) is not None:
            return self.describe(session)
        if (note := self._notes.get(id)) is not None:
            return note.info
        with translated():
            self._store.check_id(id)
            if id not in self._touched and (known := await self._index.get(id)) is not None:
                return known
            row = (await self._read([id])).get(id)
        if row is None:
            raise NotFound(f"there is no session {id}")
        return row.info

    async def list(self, status: Status | None, limit: int, after: str) -> Sequence[api.Info]:
        """At most `limit` sessions, newest updated first. Raises Malformed for an unknown `after`, Unready."""
        await self.looked.wait()
        with translated():
            page = await self._caught_up(lambda: self._page(status, limit, after))
        if page.infos is None:
            raise Malformed(f"after: there is no session {after}")
        return page.infos

    async def tally(self) -> Mapping[Status, int]:
        """How many sessions are in each status. Raises Unready."""
        await self.looked.wait()
        with translated():
            return await self._caught_up(lambda: self._index.tally(self._in_memory()))

    async def look(self, statuses: Collection[Status]) -> AsyncIterator[Iterable[str]]:
        """Look which files changed since the last run, and read those; gives the ids of all sessions in `statuses`.

        First those that the index knows, then the others as they are read, those last written first.
        """
        with translated():
            behind, waiting = await self._behind_and_waiting(statuses)
            changed = set(behind)
            yield [id for id in waiting if id not in changed]
            for at in range(0, len(behind), BATCH):
                read = await self._read(behind[at : at + BATCH])
                yield [id for id, row in read.items() if row is not None and row.info.status in statuses]

    def readers(self, id: str) -> LiveReaders:
        """The live readers of a session, loaded or not."""
        return self._readers.setdefault(id, LiveReaders())

    def tasks(self) -> Sequence[asyncio.Task[Any]]:
        """Every task that works on a session."""
        found: list[asyncio.Task[Any]] = []
        for session in self._loaded.values():
            own = (session.runner, session.one_pass, *session.calls.values())
            found += [task for task in own if task is not None and not task.done()]
        return found

    def touch(self, id: str) -> None:
        """Called at each write: the index no longer has the last word on this session."""
        self._touched.add(id)
        self.changes.put(id)

    def made(self, log: SessionLog, found: Sequence[Record]) -> None:
        """Called for a new session of these records: its file need not be read for the list."""
        chain = Chain()
        if log.id in self._loaded or log.n != len(found) or infos.fold(chain, found) is not None:
            self.touch(log.id)  # somebody else was there already
            return
        about = infos.describe(log.id, chain, None, None, readable=log.durable_n, cost=self._cost)
        self._take_down(log.id, Note(log.span(log.n)[1], about, chain.spent))
        self.changes.put(log.id)

    def rest(self, session: Session) -> None:
        """Called when nobody steps the session any more."""
        self.changes.put(session.id)
        self._note(session)

    def describe(self, session: Session) -> api.Info:
        return infos.describe(
            session.id,
            session.chain,
            session.damage,
            session.origin,
            stepping=session.stepping,
            readable=session.log.durable_n,
            cost=self._cost,
        )

    async def close(self) -> None:
        """Tell the index what it does not know yet, and close it."""
        for session in list(self._loaded.values()):
            self._note(session)
        while tasks := [*self._catching, *([self._writer] if self._writer is not None else [])]:
            await asyncio.wait(tasks)
        await self._index.close()

    def _at_hand(self, id: str) -> Session | None:
        """The session as it is loaded. One whose log is broken is dropped as soon as nobody works on it."""
        session = self._loaded.get(id)
        if session is not None and session.log.broken and session.runner is None and not session.calls:
            del self._loaded[id]  # it holds records that were cut off
            self.touch(id)
            return None
        return session

    async def _load(self, id: str) -> Session:
        log = await self.log(id)
        found = await log.read()
        origin, first = await asyncio.to_thread(self._lineage, id)
        chain = Chain(first)
        bad = await asyncio.to_thread(infos.fold, chain, found)
        session = Session(id, log, chain, self.readers(id), self.touch, self._counts)
        session.origin = origin
        if origin is not None:  # the source's keys are not the copy's
            chain.posts = {key: n for key, n in chain.posts.items() if n >= origin.n}
        if bad is not None:
            session.bad = Damage(chain.n + 1, log.span(chain.n, 1)[0], str(bad))
        return session

    def _lineage(self, id: str) -> tuple[api.Origin | None, str]:
        """Where a session was copied from, and the first session of that line, whose id stands in its text."""
        nearest = origin = self._store.origin(id)
        for _ in range(MAX_LINEAGE):
            if origin is None:
                break
            id = origin.session
            origin = self._store.origin(id)
        return nearest, id

    def _shed(self) -> None:
        """Make room for one more, as far as there are idle ones."""
        extra = len(self._loaded) + 1 - self.kept
        for session in list(self._loaded.values()) if extra > 0 else ():
            if extra > 0 and not session.busy:
                self._note(session)
                del self._loaded[session.id]
                extra -= 1

    # The index

    def _note(self, session: Session) -> None:
        """Take down what stands about a touched session that is all on disk."""
        log = session.log
        if session.id in self._touched and not session.stepping and not log.broken and log.n == log.durable_n:
            self._touched.discard(session.id)
            note = Note(log.span(log.n)[1], self.describe(session), session.chain.spent)
            self._take_down(session.id, note)

    def _take_down(self, id: str, note: Note) -> None:
        self._notes[id] = note
        if self._writer is None:
            loop = asyncio.get_running_loop()
            self._writer = loop.create_task(self._write(), name="notes for the index")

    async def _write(self) -> None:
        """Give the index all notes, those that came meanwhile as the next batch."""
        try:
            while self._notes:
                notes, self._notes = self._notes, {}
                for id in await self._index.note(notes):
                    self._touched.add(id)  # its file is gone, or is not as we know it
                    if (session := self._loaded.get(id)) is not None and not session.busy:
                        del self._loaded[id]
        except StateFileError:
            self._touched.update(self._notes)
            self._notes = {}
        finally:
            self._writer = None

    async def _behind_and_waiting(self, statuses: Collection[Status]) -> tuple[Sequence[str], Sequence[str]]:
        for _ in range(TRIES):
            behind = await self._index.behind()
            with suppress(AnewError):
                return behind, await self._index.waiting(statuses)
        return await self._index.behind(), []  # all of them are read, whatever their status

    async def _page(self, status: Status | None, limit: int, after: str) -> Page:
        newer: dict[str, api.Info] = {}
        page = await self._index.page(status, limit, after, self._in_memory())
        for _ in range(TRIES):
            if not page.stale:
                break
            read = await self._read(page.stale)
            newer |= {id: row.info for id, row in read.items() if row is not None}
            page = await self._index.page(status, limit, after, newer | self._in_memory())
        return page

    async def _caught_up(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What the index answers when it knows all there is. One that fails meanwhile is filled and asked again."""
        for _ in range(TRIES):
            await self._catch_up()
            with suppress(AnewError):
                return await ask()
        await self._catch_up()
        return await ask()

    async def _catch_up(self) -> None:
        """Make the index know of every file, and of each touched session that memory does not describe.

        It goes on when who asked does not wait for it: the index names what it lacks once.
        """
        task = asyncio.get_running_loop().create_task(self._catch(), name="catch up with the files")
        self._catching.add(task)
        task.add_done_callback(self._catching.discard)
        await asyncio.shield(task)

    async def _catch(self) -> None:
        async with self._one_catches:  # a second one would take what the first still reads for known
            await self._read_behind()

    async def _read_behind(self) -> None:
        behind = await self._index.behind()
        for id in [id for id in self._touched if id in self._loaded]:
            if (session := self._at_hand(id)) is not None and not session.busy:
                self._note(session)
        if self._writer is not None:
            await asyncio.wait({self._writer})
        behind = list({*behind, *(id for id in self._touched if id not in self._loaded)})
        for at in range(0, len(behind), BATCH):
            await self._read(behind[at : at + BATCH])

    async def _read(self, ids: Sequence[str]) -> Mapping[str, Row | None]:
        """Read these sessions' files into the index. The mark goes first, so that a write in between marks it anew."""
        self._touched.difference_update(id for id in ids if id not in self._loaded)
        rows = await asyncio.to_thread(infos.read, self._store, ids, self._cost)
        await self._index.put(rows)
        for id, row in rows.items():
            if row is None and (session := self._loaded.get(id)) is not None and not session.busy:
                del self._loaded[id]
                self._touched.discard(id)
        return rows

    def _in_memory(self) -> dict[str, api.Info]:
        """What the index does not say: of sessions that are stepped, or were written to since they were noted."""
        found = {id: note.info for id, note in self._notes.items()}
        for id, session in self._loaded.items():
            if session.stepping or id in self._touched:
                found[id] = self.describe(session)
        return found
