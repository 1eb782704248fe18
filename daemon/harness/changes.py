"""Tell readers which sessions changed and when workers come and go, each session at most once until it is taken."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

WORKERS: Final = ""  # in place of a session's id: the workers changed


class Changed:
    """One reader's set of changes, oldest first. A reader that is behind has one entry a session, no more."""

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}
        self._there = asyncio.Event()

    def put(self, id: str) -> None:
        self._waiting[id] = None
        self._there.set()

    async def get(self) -> str:
        """The id of a session that changed, or WORKERS; waits for one."""
        while not self._waiting:
            self._there.clear()
            await self._there.wait()
        id = next(iter(self._waiting))
        del self._waiting[id]
        return id


class Changes:
    """All readers of changes."""

    def __init__(self) -> None:
        self._readers: set[Changed] = set()

    def put(self, id: str) -> None:
        for reader in self._readers:
            reader.put(id)

    @contextmanager
    def read(self) -> Iterator[Changed]:
        reader = Changed()
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
