"""Run file work off the loop, in the store's own threads; what is begun is ended, whoever stops waiting."""

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

COUNT: Final = 16  # syncs of different files wait for the disk at the same time; more gained nothing


class Threads:
    """`COUNT` threads, and the tasks that must outlive their callers."""

    def __init__(self, count: int = COUNT) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(count, "statefile")
        self._tasks: set[asyncio.Task[Any]] = set()

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        """Begin blocking work; the answer is the thread's own future, for callbacks."""
        return self._executor.submit(work, *args, **kwargs)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What blocking work returns. A caller that is cancelled leaves the work running to its end."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(work, *args, **kwargs)))

    async def whole(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """What a coroutine returns that a caller's cancellation must not stop half-way."""
        return await asyncio.shield(self.own(work, name))

    def own(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Begin a task that `close` waits for. Its failure is reported by whoever awaits it."""
        task = asyncio.get_running_loop().create_task(work, name=f"statefile: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have been cancelled: then nobody else looks at it

    async def idle(self) -> None:
        """Returns when no task is left."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Wait for all tasks, then let the threads go."""
        await self.idle()
        self._executor.shutdown(wait=False)
