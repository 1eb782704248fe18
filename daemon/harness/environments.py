"""Which sessions may have environments on which workers, known over restarts; and the end of those that are done with.

An environment is ended when nothing was run in it for a day, when its session ends, and when that drops the worker. A
worker that is away is told when it is back.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
import structlog

from daemon import ownfile
from daemon.ownfile import OwnFileError
from daemon.pool import Pool, Refused

FILE: Final = "environments.toml"
HEAD: Final = (
    "Sessions' environments by worker: when each was last used, and why it is to end. The daemon's own."
)
IDLE: Final = 24 * 3600.0  # seconds
FORGET: Final = 30 * IDLE  # seconds after which a worker that never came back is not waited for any more
WRITE_AFTER: Final = (
    2.0  # seconds in which changes are gathered: with thousands of sessions the file is not small
)
SWEEP: Final = 600.0  # seconds between two looks at what is idle
IDLE_REASON: Final = "nothing was run in it for 24 hours"
ENDED: Final = "the session ended"
DROPPED: Final = "the session dropped this worker"

Key = tuple[str, str]  # worker, session

log = structlog.get_logger()


class _Use:
    """`last`: UNIX time. `ending`: why it is to end. `going`: runs there now."""

    __slots__ = ("ending", "going", "last")

    def __init__(self, last: float, ending: str = "") -> None:
        self.last = last
        self.ending = ending
        self.going = 0


class Environments:
    """Those of one daemon, in a file at `path` (None: in memory alone). Its tasks live in `group`."""

    def __init__(
        self, pool: Pool, group: asyncio.TaskGroup, clock: Callable[[], datetime], path: Path | None
    ) -> None:
        self._pool = pool
        self._group = group
        self._clock = clock
        self._path = path
        self._uses: dict[Key, _Use] = {}
        self._telling: set[Key] = set()
        self._changed = False  # since it was last written
        self._closing = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the file, have what was to end told to its workers before anything else, and look from time to time."""
        if self._path is not None:
            for key, use in (await asyncio.to_thread(_read, self._path)).items():
                self._uses.setdefault(key, use)
        for key, use in list(self._uses.items()):
            if use.ending:
                self.tell(*key)
        await asyncio.sleep(0)  # each is owed by now, or on its way
        self._watching = self._group.create_task(self._watch(), name="end idle environments")

    @contextmanager
    def using(self, worker: str, session: str) -> Iterator[None]:
        """Something runs in an environment for as long as this is open."""
        key = (worker, session)
        if (use := self._uses.get(key)) is None or use.ending:
            use = self._uses[key] = _Use(self._now())
            self._save()
        use.going += 1
        try:
            yield
        finally:
            use.going -= 1
            use.last = self._now()
            self._changed = True

    def mark(self, worker: str, session: str, why: str) -> None:
        """Note that a session's environments on a worker are to end, unless they are used anew before that is told."""
        self._uses.setdefault((worker, session), _Use(self._now())).ending = why
        self._save()

    def tell(self, worker: str, session: str) -> None:
        """Have what was marked ended, without waiting for it."""
        key = (worker, session)
        use = self._uses.get(key)
        if use is not None and use.ending and key not in self._telling:
            self._telling.add(key)
            self._group.create_task(self._tell(key, use), name=f"end environments of {session} on {worker}")

    def end(self, worker: str, session: str, why: str) -> None:
        """Have a session's environments on a worker ended, without waiting for it."""
        self.mark(worker, session, why)
        self.tell(worker, session)

    def sweep(self) -> None:
        """End what was idle for a day; tell workers again that are here and have not confirmed."""
        now = self._now()
        for key, use in list(self._uses.items()):
            if use.going:
                continue
            if use.ending and now - use.last >= FORGET:
                del self._uses[key]
                self._changed = True
            elif use.ending and self._pool.hello(key[0]) is not None:
                self.tell(*key)
            elif not use.ending and now - use.last >= IDLE:
                self.end(*key, IDLE_REASON)
        if self._changed:
            self._save()

    async def close(self) -> None:
        """Look no more, and write what is not yet written."""
        self._closing.set()
        if self._watching is not None:
            self._watching.cancel()
        if self._writer is not None:
            await asyncio.wait({self._writer})
        if self._changed:
            await self._write()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            self.sweep()

    def _now(self) -> float:
        return self._clock().timestamp()

    async def _tell(self, key: Key, use: _Use) -> None:
        worker, session = key
        try:
            if self._uses.get(key) is not use:
                return
            said = await self._pool.kill(worker, session, use.ending)
        except Refused as error:
            log.warning("environments not ended", session=session, worker=worker, why=error.message)
            return
        finally:
            self._telling.discard(key)
        if said is not None and self._uses.get(key) is use:  # else it is used anew, or not yet confirmed
            del self._uses[key]
            self._save()
        log.info(
            "environments ended", session=session, worker=worker, why=use.ending, said=said or "not here"
        )

    def _save(self) -> None:
        self._changed = True
        if self._writer is None and self._path is not None:
            self._writer = self._group.create_task(self._write(), name="write down environments")

    async def _write(self) -> None:
        """Write until nothing has changed since. A disk that takes nothing costs what is known over a restart."""
        try:
            while self._changed and self._path is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(WRITE_AFTER):
                        await self._closing.wait()
                self._changed = False
                tables: dict[str, dict[str, list[float | str]]] = {}
                for (worker, session), use in self._uses.items():
                    tables.setdefault(worker, {})[session] = [use.last, use.ending]
                await asyncio.to_thread(ownfile.write, self._path, tables, HEAD)
        except OwnFileError as error:
            log.error("environments are not written down", why=str(error))
        finally:
            self._writer = None


def _read(path: Path) -> dict[Key, _Use]:
    """What stands in the file; nothing where it does not read: then idle environments stay, until they are used."""
    try:
        found = msgspec.convert(ownfile.read(path), dict[str, dict[str, tuple[float, str]]])
    except (OwnFileError, msgspec.ValidationError) as error:
        log.error("who has environments is not known", why=f"{path}: {error}")
        return {}
    return {
        (worker, session): _Use(last, ending)
        for worker, sessions in found.items()
        for session, (last, ending) in sessions.items()
    }
