"""Put written files in place: one at a time a path, journaled around it, at most once a call."""

import asyncio
import time
from weakref import WeakValueDictionary

from daemon.worker import files, journal
from daemon.worker.environment import Spawn
from daemon.worker.patience import begun, let_go
from daemon.worker.refusal import Refusal


class Writes:
    """The files that are being put in place. `Journal.load` settles what a keeper that died left of it."""

    def __init__(self, kept: journal.Journal, spawn: Spawn) -> None:
        self._journal = kept
        self._spawn = spawn
        self._going: dict[journal.Key, asyncio.Future[int]] = {}
        self._paths: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def going(self, key: journal.Key) -> bool:
        """Whether the write of this name is being put in place now."""
        return key in self._going

    async def before(self, key: journal.Key | None) -> int | None:
        """Bytes that the write of this name wrote before, waited for where it is going; None when there was none."""
        if key is None:
            return None
        if going := self._going.get(key):
            return await asyncio.shield(going)
        entry = self._journal.entries.get(key)
        if entry is None:
            return None
        if entry.kind != "write":
            raise Refusal(
                "bad_request", f"call {key[1]} is a run, not a write: give the write a call of its own"
            )
        return (await asyncio.to_thread(self._journal.result, key)).size

    async def made(self, key: journal.Key) -> tuple[str, ...]:
        """The folders that were made for the write of this name, the innermost first; none where it is not known."""
        entry = self._journal.entries.get(key)
        if entry is None or entry.kind != "write" or not entry.ended:
            return ()
        return (await asyncio.to_thread(self._journal.result, key)).made

    async def commit(self, writing: files.Writing | files.Appending, key: journal.Key | None) -> int:
        """Put a sealed file in place; the bytes written. Goes on to its end even when the caller is cancelled."""
        try:
            done = await self.before(key)
        except BaseException:
            await let_go(writing.drop)
            raise
        if done is not None:
            await let_go(writing.drop)
            return done
        result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if key:
            self._going[key] = result
        self._spawn(self._commit(writing, key, result), f"write {writing.path}")
        return await asyncio.shield(result)

    async def _commit(
        self, writing: files.Writing | files.Appending, key: journal.Key | None, result: asyncio.Future[int]
    ) -> None:
        lock = self._paths.setdefault(writing.path, asyncio.Lock())
        try:
            async with lock:
                await begun(self._replace, writing, key)
            result.set_result(writing.size)
        except Refusal as refusal:
            result.set_exception(refusal)
            result.exception()  # the caller may be gone
        except OSError as error:
            result.set_exception(
                Refusal("failed", f"the worker could not journal the write: {error.strerror}")
            )
            result.exception()
        except Exception:
            result.set_exception(
                Refusal(
                    "failed", "the worker has a fault, the file may be written: its log keeper.log says more"
                )
            )
            result.exception()
            raise
        finally:
            if key:
                del self._going[key]
            if not result.done():
                result.cancel()

    def _replace(self, writing: files.Writing | files.Appending, key: journal.Key | None) -> None:
        try:
            writing.check()
            if key:
                self._journal.begin(
                    journal.Meta(
                        session=key[0],
                        call=key[1],
                        kind="write",
                        started=time.time(),
                        path=writing.path,
                        temporary=writing.temporary,
                        remove=writing.remove,
                        size=writing.size,
                    )
                )
            made = writing.made
            try:
                writing.commit()
            except Refusal:
                if key and writing.temporary:
                    self._journal.forget(key)
                raise
            if key:
                self._journal.finish(
                    key, journal.Result(ended=time.time(), exit=0, size=writing.size, made=made)
                )
        finally:
            writing.drop()
