"""What streams past a session's live readers: deltas, retries and restarts, which nobody needs to have whole."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from daemon.protocol.api import Delta, Restart, RetryEvent

MAX_WAITING: Final = (
    1000  # events a slow reader may have waiting; older ones go, the record that follows has all
)


LiveEvent = Delta | RetryEvent | Restart


class Live:
    """One reader's queue of live events."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, LiveEvent]] = deque(maxlen=MAX_WAITING)
        self._there = asyncio.Event()

    def put(self, n: int, event: LiveEvent) -> None:
        self._events.append((n, event))
        self._there.set()

    async def get(self) -> LiveEvent:
        """The oldest event not yet taken; waits for one."""
        return (await self.placed())[1]

    async def placed(self) -> tuple[int, LiveEvent]:
        """The same, after the number of the last record that there was before it."""
        while not self._events:
            self._there.clear()
            await self._there.wait()
        return self._events.popleft()


class LiveReaders:
    """The readers of one session."""

    def __init__(self) -> None:
        self._readers: set[Live] = set()
        self.tip: Callable[[], int] = lambda: 0  # the session's last record, as the session has it

    def __bool__(self) -> bool:
        return bool(self._readers)

    def put(self, event: LiveEvent) -> None:
        for reader in self._readers:
            reader.put(self.tip(), event)

    @contextmanager
    def read(self) -> Iterator[Live]:
        reader = Live()
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
