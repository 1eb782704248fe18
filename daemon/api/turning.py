"""Turns of the agent-server surface: so many at once and no more, each counted until its session rests.

Those that an earlier daemon began go on after a start and are counted too.
"""

import asyncio
from types import TracebackType
from typing import Final, Self

import structlog

from daemon.api.errors import Refusal
from daemon.api.needs import Harness
from daemon.harness.errors import HarnessError
from daemon.protocol import api
from daemon.protocol.records import TEXT

TRY_AGAIN: Final = "1"  # seconds: a turn may end at any moment

log = structlog.get_logger("daemon.api")


class Turns:
    """The owner of the tasks that wait for turns to end. A context manager: on the way out nothing is waited for.

    `most`: turns at once, 0 for any number.
    """

    def __init__(self, harness: Harness, most: int) -> None:
        self._harness = harness
        self._most = most
        self._running = 0
        self._current: dict[str, int] = {}  # the record that began each
        self._tasks: set[asyncio.Task[None]] = set()
        self._none = asyncio.Event()
        self._none.set()
        self._left = False

    @property
    def running(self) -> int:
        """Turns that were begun, here or by an earlier daemon, and have not ended."""
        return self._running

    async def begin(self, id: str, via: str, text: str) -> int:
        """Post a turn's input to a session that rests; the record's number. Raises Refusal when there are too many,
        and what Harness.post raises.
        """
        if self._most and self._running >= self._most:
            why = (
                f"{self._running} turns are running, which is the most at once; try again when one has ended"
            )
            raise Refusal(429, why, {"Retry-After": TRY_AGAIN})
        self._running += 1
        self._none.clear()
        try:
            n = await self._harness.post(id, via, (api.Part(TEXT, text.encode()),), turn=True)
        except BaseException:
            self._ended()
            raise
        self._watch(id, n)
        return n

    def adopt(self, id: str, n: int) -> None:
        """Count a turn that goes on by itself; there may be more than `most` of them."""
        if id not in self._current and not self._left:
            self._running += 1
            self._none.clear()
            self._watch(id, n)

    def _watch(self, id: str, n: int) -> None:
        self._current[id] = n
        task = asyncio.create_task(self._follow(id, n), name=f"turn of {id}")  # noqa: TID251 - owned by this object
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def goes_on(self, id: str, n: int) -> bool:
        """Whether the session's turn is still the one that record `n` began."""
        return self._current.get(id) == n

    async def over(self) -> None:
        """Return once no turn is running."""
        await self._none.wait()

    async def _follow(self, id: str, n: int) -> None:
        try:
            await self._harness.rested(id)
        except HarnessError as error:
            log.warning("a turn's end was not seen", session=id, why=str(error))
        finally:
            if self.goes_on(id, n):
                del self._current[id]
            self._ended()

    def _ended(self) -> None:
        self._running -= 1
        if not self._running:
            self._none.set()

    async def __aenter__(self) -> Self:
        self._harness.on_turn(self.adopt)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
