"""Calls that change something: each runs to its end, also when the client that asked for it goes away."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

from daemon.harness.errors import HarnessError

T = TypeVar("T")

log = structlog.get_logger("daemon.api")


class InFlight:
    """The owner of such calls' tasks. A context manager: on the way out they have `finish` seconds to end."""

    def __init__(self, finish: float) -> None:
        self._finish = finish
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, call: Coroutine[Any, Any, T], name: str) -> T:
        """The call's result. When the waiting is cancelled the call is not."""
        task = self.begin(call, name)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_tell)
            raise

    def begin(self, call: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """The call as a task, to be awaited shielded by who wants its result."""
        task = asyncio.create_task(call, name=name)  # noqa: TID251 - owned by this object, which awaits it at its end
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._finish)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


def _tell(task: asyncio.Task[Any]) -> None:
    """Log a failure that nobody waits for any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        if isinstance(error, HarnessError):
            log.info("request refused", call=task.get_name(), why=str(error), client="gone")
        else:
            log.error("request failed", call=task.get_name(), client="gone", exc_info=error)
