"""The routes of sessions: read a request, make one call of the harness, write its answer."""

import asyncio
from typing import Final

from aiohttp import web

from daemon.api import parameters, reading
from daemon.api.drain import Drain
from daemon.api.events import SessionEvents
from daemon.api.gate import Caller
from daemon.api.inflight import InFlight
from daemon.api.needs import Harness, Log
from daemon.api.routes import Answer, Content, Route, json, reply
from daemon.harness.errors import Malformed
from daemon.protocol import api, events, records
from daemon.protocol.records import JSON, WorkerRef
from daemon.statefile.errors import StateFileError

HEADERS_TYPE: Final = f"{records.MEDIA_TYPE}; bodies=0"  # header lines alone, one a line
MERGE_PATCH: Final = "application/merge-patch+json"
LISTED: Final = 100  # sessions in a list unless told

READING: Final = (409, 503, 507)  # a file is damaged; its disk or the daemon fails
CHANGING: Final = (409, 410, 503, 507)  # damaged or in another state; ended; starting; no space


class Native:
    """The handlers, over one harness."""

    def __init__(self, harness: Harness, events: SessionEvents, inflight: InFlight, drain: Drain) -> None:
        self._harness = harness
        self._drain = drain
        self._events = events
        self._inflight = inflight

    def routes(self) -> list[Route]:
        """Every route of sessions; each path stands in the protocol."""
        id, via = parameters.SESSION, parameters.VIA
        numbered = "The number of the record that says so, on disk by now."
        return [
            Route(
                method="GET",
                path=api.SESSIONS,
                handler=self.list,
                what="List sessions, the newest updated first.",
                parameters=(parameters.STATUS, parameters.LIST_LIMIT, parameters.LIST_AFTER),
                answer=json(tuple[api.Info, ...], what="The sessions."),
                refusals=READING,
            ),
            Route(
                method="POST",
                path=api.SESSIONS,
                handler=self.create,
                what="Make a session, fresh or as a copy of another's first records.",
                role="operator",
                body=Content(api.Create),
                answer=json(api.Created, 201, "It is made.", Location="Where it is."),
                refusals=(404, 409, 422, 503, 507),
            ),
            Route(
                method="GET",
                path=api.SESSION,
                handler=self.info,
                what="What stands about a session.",
                parameters=(id,),
                answer=json(api.Info),
                refusals=READING,
            ),
            Route(
                method="GET",
                path=api.RECORDS,
                handler=self.records,
                what="Read a range of a session's file, byte for byte; only what is on disk.",
                parameters=(
                    id,
                    parameters.AFTER,
                    parameters.LIMIT,
                    parameters.WAIT,
                    parameters.BODIES,
                ),
                answer=Answer(
                    200,
                    Content(
                        media=(records.MEDIA_TYPE,),
                        what="For each record a line of JSON, a body of its `len` bytes and a newline.",
                    ),
                    "The records; empty where there are none.",
                    {api.LAST_HEADER: "The number of the last record in it."},
                ),
                refusals=READING,
                head=False,
            ),
            Route(
                method="POST",
                path=api.RECORDS,
                handler=self.post,
                what="Post one message, or several that belong together as multipart, one a part.",
                role="operator",
                parameters=(id, via, parameters.IDEMPOTENCY),
                body=Content(
                    media=("text/plain", "text/*", JSON, "image/*", "multipart/mixed"), what="What is posted."
                ),
                answer=json(api.Posted, what="The number of the last record, on disk by now."),
                refusals=(*CHANGING, 422),
            ),
            Route(
                method="POST",
                path=api.RETRY,
                handler=self.retry,
                what="Let a failed or stopped session go on.",
                role="operator",
                parameters=(id,),
                answer=json(api.Kicked, what="Its status by now."),
                refusals=CHANGING,
            ),
            Route(
                method="POST",
                path=api.STOP,
                handler=self.stop,
                what="Cut what a session does; it is cut when this answers.",
                role="operator",
                parameters=(id, via),
                answer=Answer(204, what="It has stopped."),
                refusals=READING,
            ),
            Route(
                method="POST",
                path=api.END,
                handler=self.end,
                what="End a session for good: it is stopped first, and its environments are ended.",
                role="operator",
                parameters=(id, via),
                answer=Answer(204, what="It has ended."),
                refusals=CHANGING,
            ),
            Route(
                method="PUT",
                path=api.WORKERS_OF,
                handler=self.set_workers,
                what="Give a session other workers; its environments on those that are dropped are ended.",
                role="operator",
                parameters=(id, via),
                body=Content(tuple[WorkerRef, ...]),
                answer=json(api.Posted, what=numbered),
                refusals=(*CHANGING, 422),
            ),
            Route(
                method="PATCH",
                path=api.CONFIG,
                handler=self.patch_config,
                what="Change a session's model, params, tools, input, context or limits from its next step on.",
                role="operator",
                parameters=(id, via),
                body=Content(api.ConfigPatch, (MERGE_PATCH, JSON)),
                answer=json(api.Posted, what=numbered),
                refusals=(*CHANGING, 422),
            ),
            Route(
                method="GET",
                path=api.CHECK,
                handler=self.check,
                what="Say whether the next request would be accepted, and what is repaired in it; nothing is sent.",
                parameters=(id, parameters.MODEL),
                answer=json(api.Check),
                refusals=(*READING, 422),
            ),
            Route(
                method="GET",
                path=api.EVENTS,
                handler=self._events.serve,
                what="Follow a session: each record once and in order, and what streams in.",
                parameters=(id, parameters.AFTER, parameters.LAST_EVENT, parameters.DELTAS),
                answer=Answer(
                    200,
                    Content(
                        media=(events.MEDIA_TYPE,),
                        what="Events `record`, `delta`, `retry`, `restart`, `error`.",
                    ),
                    "Events, for as long as they are read.",
                ),
                refusals=READING,
                head=False,
            ),
        ]

    async def list(self, request: web.Request, caller: Caller) -> web.Response:
        status, after = parameters.STATUS.of(request), parameters.LIST_AFTER.of(request)
        limit = parameters.LIST_LIMIT.of(request)
        return reply(await self._harness.list(status, limit or LISTED, after))

    async def create(self, request: web.Request, caller: Caller) -> web.Response:
        self._drain.check()
        create, named = await reading.decoded_named(request, api.Create)
        id = await self._inflight.run(self._harness.create(create, named=named), "create")
        answer = reply(api.Created(id), 201)
        answer.headers["Location"] = api.SESSION.format(id=id)
        return answer

    async def info(self, request: web.Request, caller: Caller) -> web.Response:
        return reply(await self._harness.info(parameters.SESSION.of(request)))

    async def check(self, request: web.Request, caller: Caller) -> web.Response:
        id, model = parameters.SESSION.of(request), parameters.MODEL.of(request)
        return reply(await self._harness.check(id, model))

    async def records(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        id = parameters.SESSION.of(request)
        after = parameters.AFTER.of(request) or 0
        limit = parameters.LIMIT.of(request)
        wait = parameters.WAIT.of(request)
        bodies = parameters.BODIES.of(request)
        log = await self._harness.log(id)
        if after > log.durable_n:
            raise Malformed(f"after: {after} is past the last record, {log.durable_n}")
        if after == log.durable_n and wait:
            await _wait(log, after, wait, caller.gone)
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

    async def post(self, request: web.Request, caller: Caller) -> web.Response:
        id, via = parameters.SESSION.of(request), parameters.VIA.of(request)
        key = parameters.IDEMPOTENCY.of(request)
        await self._harness.log(id)  # so that nobody sends 8 MiB to a session that is not there
        parts = await reading.parts(request)
        n = await self._inflight.run(self._harness.post(id, via, parts, key), f"post to {id}")
        return reply(api.Posted(n))

    async def retry(self, request: web.Request, caller: Caller) -> web.Response:
        self._drain.check()  # a post is kept for the next start, a retry is not
        id = parameters.SESSION.of(request)
        return reply(api.Kicked(await self._inflight.run(self._harness.retry(id), f"retry of {id}")))

    async def stop(self, request: web.Request, caller: Caller) -> web.Response:
        id, via = parameters.SESSION.of(request), parameters.VIA.of(request)
        await self._inflight.run(self._harness.stop(id, via), f"stop of {id}")
        return web.Response(status=204)

    async def end(self, request: web.Request, caller: Caller) -> web.Response:
        id, via = parameters.SESSION.of(request), parameters.VIA.of(request)
        await self._inflight.run(self._harness.end(id, via), f"end of {id}")
        return web.Response(status=204)

    async def set_workers(self, request: web.Request, caller: Caller) -> web.Response:
        id, via = parameters.SESSION.of(request), parameters.VIA.of(request)
        await self._harness.log(id)
        workers = await reading.decoded(request, tuple[WorkerRef, ...])
        call = self._harness.set_workers(id, via, workers)
        return reply(api.Posted(await self._inflight.run(call, f"workers of {id}")))

    async def patch_config(self, request: web.Request, caller: Caller) -> web.Response:
        id, via = parameters.SESSION.of(request), parameters.VIA.of(request)
        await self._harness.log(id)
        patch = await reading.decoded(request, api.ConfigPatch, (MERGE_PATCH, JSON))
        call = self._harness.patch_config(id, via, patch)
        return reply(api.Posted(await self._inflight.run(call, f"config of {id}")))


async def _wait(log: Log, after: int, seconds: float, gone: asyncio.Event) -> None:
    """Until there is a record past `after`, the time is over, or the caller is gone. Raises StateFileError."""
    failed: list[StateFileError] = []

    async def there() -> None:
        try:
            await log.wait(after)
        except StateFileError as error:
            failed.append(error)

    async with asyncio.TaskGroup() as group:
        waits = {
            group.create_task(there(), name=f"long poll of {log.id}"),
            group.create_task(gone.wait(), name="long poll until its caller is gone"),
        }
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
    if failed:
        raise failed[0]
