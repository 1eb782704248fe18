"""The native routes: read a request, make one call of the harness, write its answer."""

import asyncio
from typing import Any, Final

from aiohttp import web

from daemon.api import reading
from daemon.api.events import Events
from daemon.api.inflight import InFlight
from daemon.api.needs import Harness, Log
from daemon.harness.errors import Malformed, Unready
from daemon.protocol import api, records
from daemon.statefile.errors import StateFileError

HEADERS_TYPE: Final = f"{records.MEDIA_TYPE}; bodies=0"  # header lines alone, one a line


class Native:
    """The handlers, over one harness. `closing` is set when the daemon ends: reads that wait answer then."""

    def __init__(
        self, harness: Harness, events: Events, inflight: InFlight, closing: asyncio.Event, version: str
    ) -> None:
        self._harness = harness
        self._events = events
        self._inflight = inflight
        self._closing = closing
        self._version = api.Version(version, api.VERSION)

    def routes(self) -> list[web.AbstractRouteDef]:
        """Every route there is; each path stands in the protocol."""
        return [
            web.get("/", self.version),
            web.get(api.HEALTHZ, self.healthz),
            web.get(api.READYZ, self.readyz),
            web.get(api.SESSIONS, self.list),
            web.post(api.SESSIONS, self.create),
            web.get(api.SESSION, self.info),
            web.get(api.RECORDS, self.records, allow_head=False),
            web.post(api.RECORDS, self.post),
            web.post(api.RETRY, self.retry),
            web.post(api.STOP, self.stop),
            web.get(api.EVENTS, self._events.serve, allow_head=False),
            web.get(api.WORKERS, self.workers),
            web.get(api.PROVIDERS, self.providers),
        ]

    async def version(self, request: web.Request) -> web.Response:
        return reply(self._version)

    async def healthz(self, request: web.Request) -> web.Response:
        return reply({"status": "alive"})

    async def readyz(self, request: web.Request) -> web.Response:
        if not self._harness.ready:
            raise Unready("the daemon is starting or draining")
        return reply({"status": "ready"})

    async def list(self, request: web.Request) -> web.Response:
        status = reading.status(request)
        limit = reading.number(request, "limit", 1, api.MAX_LIST)
        after = reading.after_id(request)
        return reply(await self._harness.list(status, 100 if limit is None else limit, after))

    async def create(self, request: web.Request) -> web.Response:
        create = await reading.decoded(request, api.Create)
        id = await self._inflight.run(self._harness.create(create), "create")
        answer = reply(api.Created(id), 201)
        answer.headers["Location"] = api.SESSION.format(id=id)
        return answer

    async def info(self, request: web.Request) -> web.Response:
        return reply(await self._harness.info(reading.session_id(request)))

    async def records(self, request: web.Request) -> web.StreamResponse:
        id = reading.session_id(request)
        after = reading.number(request, "after") or 0
        limit = reading.number(request, "limit", 1)
        wait = reading.duration(request, "wait", api.MAX_WAIT)
        bodies = reading.flag(request, "bodies", True)
        log = await self._harness.log(id)
        if after > log.durable_n:
            raise Malformed(f"after: {after} is past the last record, {log.durable_n}")
        if after == log.durable_n and wait:
            await self._wait(log, after, wait)
        last = log.durable_n if limit is None else min(log.durable_n, after + limit)
        # What follows is held to `last`, however many records come while it is sent.
        answer = web.StreamResponse(headers={api.LAST_HEADER: str(last), "Cache-Control": "no-store"})
        answer.headers["Content-Type"] = records.MEDIA_TYPE if bodies else HEADERS_TYPE
        if last == after:
            answer.content_length = 0
            await answer.prepare(request)
        elif bodies:
            start, end = log.span(after, last - after)
            answer.content_length = end - start
            await answer.prepare(request)
            async for piece in log.chunks(after, last - after):
                await answer.write(piece)
        else:
            lines = await log.headers(after, last - after)
            answer.content_length = len(lines)
            await answer.prepare(request)
            await answer.write(lines)
        await answer.write_eof()
        return answer

    async def post(self, request: web.Request) -> web.Response:
        id, via = reading.session_id(request), reading.via(request)
        key = reading.idempotency_key(request)
        await self._harness.log(id)  # so that nobody sends 8 MiB to a session that is not there
        parts = await reading.parts(request)
        n = await self._inflight.run(self._harness.post(id, via, parts, key), f"post to {id}")
        return reply(api.Posted(n))

    async def retry(self, request: web.Request) -> web.Response:
        id = reading.session_id(request)
        return reply(api.Kicked(await self._inflight.run(self._harness.retry(id), f"retry of {id}")))

    async def stop(self, request: web.Request) -> web.Response:
        id, via = reading.session_id(request), reading.via(request)
        await self._inflight.run(self._harness.stop(id, via), f"stop of {id}")
        return web.Response(status=204)

    async def workers(self, request: web.Request) -> web.Response:
        return reply(self._harness.workers())

    async def providers(self, request: web.Request) -> web.Response:
        return reply(self._harness.providers())

    async def _wait(self, log: Log, after: int, seconds: float) -> None:
        """Until there is a record past `after`, the time is over, or the daemon ends. Raises StateFileError."""
        failed: list[StateFileError] = []

        async def there() -> None:
            try:
                await log.wait(after)
            except StateFileError as error:
                failed.append(error)

        async with asyncio.TaskGroup() as group:
            waits = {
                group.create_task(there(), name=f"long poll of {log.id}"),
                group.create_task(self._closing.wait(), name="long poll until the end"),
            }
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()
        if failed:
            raise failed[0]


def reply(value: Any, status: int = 200) -> web.Response:
    """`value` as JSON."""
    return web.Response(status=status, body=api.encode(value), content_type="application/json")
