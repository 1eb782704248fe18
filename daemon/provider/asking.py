"""Ask servers which models they have, behind whoever wants to know: one request to each at a time, not too often."""

import asyncio
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import aiohttp
import structlog
from msgspec import Struct

from daemon.provider.base import Lister, Provider, ProviderError
from daemon.provider.listing import list_models

RECENT: Final = 5.0  # seconds for which a server's list is good
AGAIN: Final = 1.0  # seconds until one that gave none is asked again: somebody may just have started it

log = structlog.get_logger()


class _Asked(Struct):
    """The last request to a server: the provider as it was then, the task while it is under way, from when on a next
    one is worth it, and why it brought no list.
    """

    provider: Lister
    task: asyncio.Task[None] | None = None
    again: float = 0.0
    why: str = ""

    @property
    def good(self) -> bool:
        return self.task is not None or time.monotonic() < self.again


class Asking:
    """The owner of the tasks that ask. A context manager: on the way out nothing is waited for."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._asked: dict[str, _Asked] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, providers: Mapping[str, Provider]) -> None:
        """Begin to ask each of these whose server lists its models, unless it is asked now or was a moment ago."""
        for name, provider in providers.items():
            if not isinstance(provider, Lister) or not provider.lists:
                continue
            last = self._asked.get(name)
            if last is not None and last.provider is provider and last.good:
                continue
            asked = self._asked[name] = _Asked(provider)
            asked.task = asyncio.create_task(self._ask(name, asked), name=f"models of {name}")  # noqa: TID251 - owned by this object
            self._tasks.add(asked.task)
            asked.task.add_done_callback(self._tasks.discard)

    def pending(self, name: str) -> bool:
        """Whether this provider's server is being asked now."""
        return (asked := self._asked.get(name)) is not None and asked.task is not None

    def why(self, name: str) -> str:
        """Why this provider's server gave no list when it was last asked; empty where it did, or was not."""
        return asked.why if (asked := self._asked.get(name)) is not None else ""

    async def wait(self, limit: float) -> None:
        """Return once all that are asked now have answered, or after `limit` seconds."""
        tasks = {asked.task for asked in self._asked.values() if asked.task is not None}
        if tasks and limit > 0:
            await asyncio.wait(tasks, timeout=limit)

    async def _ask(self, name: str, asked: _Asked) -> None:
        good = AGAIN
        try:
            await list_models(asked.provider, self._http)
            good = RECENT
        except ProviderError as error:
            log.info("no list of models", provider=name, why=error.message)
            asked.why = error.message
        finally:
            asked.task, asked.again = None, time.monotonic() + good

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
