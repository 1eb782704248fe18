"""Blocking work on files, in threads of its own: a file system that hangs must hang neither a call nor the worker."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from daemon.worker.refusal import Refusal

T = TypeVar("T")

FILE_WAIT: Final = 60.0  # seconds for one piece of a file
LET_GO_WAIT: Final = 2.0  # seconds for a file to be let go of, before an answer goes out
_THREADS: Final = ThreadPoolExecutor(
    64, "files"
)  # those that hang are these, not the ones that all else needs


async def limited(work: Callable[..., T], *arguments: Any, undo: Callable[[T], None] | None = None) -> T:
    """Do blocking work on a file in a thread, not longer than FILE_WAIT.

    What it brings when nobody waits any more, after that time or a cancellation, is handed to `undo`.
    """
    return await _limited(begun(work, *arguments), undo)


async def _limited(future: asyncio.Future[T], undo: Callable[[T], None] | None = None) -> T:
    def late(done: asyncio.Future[T]) -> None:
        if not done.cancelled() and not done.exception() and undo:
            begun(undo, done.result())

    try:
        async with asyncio.timeout(FILE_WAIT):
            return await asyncio.shield(future)
    except TimeoutError:
        future.add_done_callback(late)
        raise Refusal("failed", f"the file system did not answer within {FILE_WAIT:.0f} s") from None
    except asyncio.CancelledError:
        future.add_done_callback(late)
        raise


class Used:
    """A file that is worked on, one thing at a time; `close` comes after the last of them, also where that hangs."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._last: asyncio.Future[Any] | None = None

    async def do(self, work: Callable[..., T], *arguments: Any) -> T:
        """As `limited`."""
        self._last = future = begun(work, *arguments)
        return await _limited(future)

    async def end(self) -> None:
        """Close it, or have it closed later."""
        if self._last is not None and not self._last.done():
            await asyncio.wait({self._last}, timeout=LET_GO_WAIT)
        if self._last is None or self._last.done():
            await let_go(self._close)
        else:
            self._last.add_done_callback(lambda _: begun(self._close))


async def let_go(work: Callable[[], None]) -> None:
    """Do what ends the use of a file; where that hangs it is left to end by itself."""
    await asyncio.wait({begun(work)}, timeout=LET_GO_WAIT)


def begun(work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """Work that has begun in a thread, to be waited for as long as it takes."""
    return asyncio.get_running_loop().run_in_executor(_THREADS, partial(work, *arguments))
