"""The daemon's event stream: every session as it changes, and the workers as they come and go."""

import asyncio

from aiohttp import web

from daemon.api.gate import Caller
from daemon.api.needs import Changed, Harness
from daemon.api.parameters import FIRST_LIMIT
from daemon.api.stream import Limits, Stream
from daemon.harness.changes import WORKERS
from daemon.harness.counts import Counts
from daemon.harness.errors import HarnessError
from daemon.protocol import api, events


class DaemonEvents:
    """The streams of all that changes."""

    def __init__(self, harness: Harness, counts: Counts, limits: Limits) -> None:
        self._harness = harness
        self._counts = counts
        self._limits = limits

    async def serve(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """GET /events."""
        limit = FIRST_LIMIT.of(request)
        # Told of changes before the state is read, so that none falls between.
        with self._counts.reader("daemon"), self._harness.changes() as changed:
            reader = _Reader(request, caller, self._limits, self._harness, changed)
            reader.first = api.FIRST if limit is None else limit
            return await reader.serve([reader.watch()])


class _Reader(Stream):
    """One open stream. What changes while it is behind comes once, as it is by then."""

    def __init__(
        self, request: web.Request, caller: Caller, limits: Limits, harness: Harness, changed: Changed
    ) -> None:
        super().__init__(request, caller, limits, {})
        self.first: int | None = None  # how many sessions the state has that is still to be sent
        self._harness = harness
        self._changed = changed
        self._next: str | None = None
        self._taken = asyncio.Event()

    async def watch(self) -> None:
        """Take one change at a time: those that wait are gathered where they come from."""
        while True:
            self._next = await self._changed.get()
            self.woken.set()
            await self._taken.wait()
            self._taken.clear()

    async def write(self) -> None:
        if self.first is not None:
            try:
                sessions = await self._harness.list(limit=self.first) if self.first else ()
            except HarnessError as error:
                return await self.refuse(error.status, str(error))
            self.first = None
            await self.send(events.encode(api.State(tuple(sessions), tuple(self._harness.workers()))))
        if self._next is None:
            return None
        id, self._next = self._next, None
        if id == WORKERS:
            await self.send(events.encode(api.Workers(tuple(self._harness.workers()))))
        else:
            try:
                info = await self._harness.info(id)
            except HarnessError:
                pass  # it was removed by hand
            else:
                await self.send(events.encode(info))
        self._taken.set()
        return None
