"""The sessions that are loaded, least recently used dropped first, and what is known of those that are not."""

import asyncio
from collections import OrderedDict
from typing import Any, Final
from weakref import WeakValueDictionary

from daemon.chain import Chain
from daemon.harness.changes import Changes
from daemon.harness.errors import NotFound
from daemon.harness.live import LiveReaders
from daemon.harness.session import Session
from daemon.protocol import api, records
from daemon.protocol.records import Config, Record, Status
from daemon.statefile.errors import Damage, MissingError
from daemon.statefile.store import Store
from daemon.statefile.writer import Log

KEPT: Final = 64  # idle sessions kept in memory


class Sessions:
    """Loads a session's file once and keeps it while it is in use."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.changes = Changes()
        self._loaded: OrderedDict[str, Session] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._readers: WeakValueDictionary[str, LiveReaders] = WeakValueDictionary()
        self._infos: dict[str, api.Info] = {}

    async def get(self, id: str) -> Session:
        """The session, loaded where it was not. Raises NotFound."""
        if (session := self._loaded.get(id)) is not None:
            self._loaded.move_to_end(id)
            return session
        lock = self._locks.setdefault(id, asyncio.Lock())
        async with lock:
            if (session := self._loaded.get(id)) is None:
                session = await self._load(id)
                self._loaded[id] = session
                self.note(session)
                self._shed()
            return session

    async def log(self, id: str) -> Log:
        """The session's log, without folding its records. Raises NotFound."""
        if (session := self._loaded.get(id)) is not None:
            return session.log
        try:
            return await self._store.open(id)
        except MissingError as error:
            raise NotFound(f"there is no session {id}") from error

    async def info(self, id: str) -> api.Info:
        """What stands about a session; from memory for one that nothing has touched. Raises NotFound."""
        if (session := self._loaded.get(id)) is not None:
            return self.describe(session)
        if (known := self._infos.get(id)) is not None:
            return known
        return self.describe(await self.get(id))

    def readers(self, id: str) -> LiveReaders:
        """The live readers of a session, loaded or not."""
        return self._readers.setdefault(id, LiveReaders())

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Every task that works on a session."""
        found: list[asyncio.Task[Any]] = []
        for session in self._loaded.values():
            own = (session.runner, session.one_pass, *session.calls.values())
            found += [task for task in own if task is not None and not task.done()]
        return found

    def note(self, session: Session) -> None:
        """Keep what stands about a session for when it is not loaded."""
        self._infos[session.id] = self.describe(session)
        self.changes.put(session.id)

    def forget(self, session: Session) -> None:
        """Drop a session from memory; its file is read again at the next use."""
        self.note(session)
        self._loaded.pop(session.id, None)

    def describe(self, session: Session) -> api.Info:
        chain, damage = session.chain, session.damage
        status: Status = "stepping" if session.stepping else chain.status
        if damage is not None:
            status = "damaged"
        return api.Info(
            id=session.id,
            status=status,
            config=chain.config or Config(model=""),
            created=chain.created,
            updated=chain.updated,
            n=chain.n,
            prompt=chain.prompt,
            usage=chain.usage,
            title=chain.title,
            from_=session.origin,
            damage=f"record {damage.n} at byte {damage.offset}: {damage.reason}"
            if damage is not None
            else "",
        )

    async def _load(self, id: str) -> Session:
        log = await self.log(id)
        found = await log.read()
        chain, bad = await asyncio.to_thread(_fold, found, id)
        session = Session(id, log, chain, self.readers(id), self.changes.put)
        session.origin = origin = await asyncio.to_thread(self._store.origin, id)
        if origin is not None:  # the source's keys are not the copy's
            chain.posts = {key: n for key, n in chain.posts.items() if n >= origin.n}
        if bad is not None:
            session.bad = Damage(chain.n + 1, log.span(chain.n, 1)[0], str(bad))
        return session

    def _shed(self) -> None:
        extra = len(self._loaded) - KEPT
        for session in list(self._loaded.values()) if extra > 0 else ():
            if extra > 0 and not session.busy:
                self.forget(session)
                extra -= 1


def _fold(found: list[Record], id: str) -> tuple[Chain, records.BadRecord | None]:
    """The chain of these records, up to one whose body does not parse."""
    chain = Chain(id)
    try:
        for record in found:
            chain.add(record)
    except records.BadRecord as error:
        return chain, error
    return chain, None
