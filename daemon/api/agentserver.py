"""The agent-server surface's routes: sessions of declared agents, a turn at a time, over the same harness."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final

from aiohttp import web
from msgspec import Struct

from daemon.api import parameters, reading
from daemon.api.drain import Drain
from daemon.api.errors import Refusal
from daemon.api.gate import Caller
from daemon.api.inflight import InFlight
from daemon.api.needs import Harness
from daemon.api.routes import Answer, Content, Route, json, reply
from daemon.api.stream import Limits
from daemon.api.turning import TRY_AGAIN, Turns
from daemon.api.turnstream import TurnStream
from daemon.harness.counts import Counts
from daemon.harness.errors import Ended, HarnessError, Malformed, NotFound
from daemon.protocol import agentserver as wire
from daemon.protocol import api, events, records

SAID: Final = "v1"  # who acts here, where the caller's key has no name
OVER: Final = frozenset({"ended", "expired"})
READING: Final = (409, 503, 507)
FRAMES: Final = Answer(
    200,
    Content(
        media=(events.MEDIA_TYPE,),
        what="Frames `session.started`, `message`, `message.delta`, `model.request`, `model.response`, `tool.call`, "
        "`tool.result`, `warning`, `error`; the last is one `session.ended`.",
        parts=(wire.Frame, *wire.TYPES),
    ),
    "Frames, to the end of the turn.",
)


class Caps(Struct, frozen=True):
    """What this surface allows, 0 for no limit. `turns`: at once; `sessions`: made here, that have neither ended nor
    expired; `ttl`: seconds that one may be idle.
    """

    turns: int = 8
    sessions: int = 1000
    ttl: float = 0.0


class AgentServer:
    """The handlers, over one harness."""

    def __init__(
        self,
        harness: Harness,
        turns: Turns,
        counts: Counts,
        limits: Limits,
        inflight: InFlight,
        drain: Drain,
        caps: Caps,
    ) -> None:
        self._harness = harness
        self._turns = turns
        self._counts = counts
        self._limits = limits
        self._inflight = inflight
        self._drain = drain
        self._caps = caps

    def routes(self) -> list[Route]:
        """Every route of this surface; each path stands in the protocol."""
        id = parameters.SESSION
        return [
            Route(
                method="POST",
                path=wire.SESSIONS,
                handler=self.create,
                what="Make a session of a declared agent. An empty body is one without inputs.",
                role="operator",
                body=Content(wire.NewSession, needed=False),
                answer=json(wire.Session, 201, "It is made.", Location="Where it is."),
                refusals=(409, 422, 429, 503, 507),
            ),
            Route(
                method="GET",
                path=wire.SESSIONS,
                handler=self.list,
                what="List sessions of both surfaces, the newest updated first.",
                parameters=(parameters.ACTIVE, parameters.LIST_LIMIT, parameters.LIST_AFTER),
                answer=json(tuple[wire.Session, ...], what="The sessions."),
                refusals=READING,
            ),
            Route(
                method="GET",
                path=wire.SESSION,
                handler=self.get,
                what="One session.",
                parameters=(id,),
                answer=json(wire.Session),
                refusals=READING,
            ),
            Route(
                method="DELETE",
                path=wire.SESSION,
                handler=self.delete,
                what="End a session; a running turn is stopped first. One that has ended stays so.",
                role="operator",
                parameters=(id,),
                answer=Answer(204, what="It has ended."),
                refusals=READING,
            ),
            Route(
                method="POST",
                path=wire.TURNS,
                handler=self.turn,
                what="Say something to a session that rests, and follow what comes of it.",
                role="operator",
                parameters=(id, parameters.DELTAS, parameters.ON_DISCONNECT, parameters.TRACEPARENT),
                body=Content(wire.NewTurn),
                answer=FRAMES,
                refusals=(409, 422, 429, 503, 507),
            ),
            Route(
                method="GET",
                path=wire.EVENTS,
                handler=self.events,
                what="The frames of a session from any record on, to the end of the turn that runs.",
                parameters=(id, parameters.AFTER, parameters.LAST_EVENT, parameters.DELTAS),
                answer=FRAMES,
                refusals=READING,
                head=False,
            ),
        ]

    async def create(self, request: web.Request, caller: Caller) -> web.Response:
        self._drain.check()
        new = await reading.decoded(request, wire.NewSession, empty=wire.NewSession())
        asked = api.Create(agent=new.agent, inputs=new.inputs, limits=records.Limits(ttl=self._caps.ttl))
        info = await self._harness.info(await self._inflight.run(self._create(asked), "create"))
        answer = reply(_session(info), 201)
        answer.headers["Location"] = wire.SESSION.format(id=info.id)
        return answer

    async def _create(self, asked: api.Create) -> str:
        """The place that it takes is held until its session is counted, also when its client is gone."""
        census = self._harness.census
        await census.complete.wait()
        self._drain.check()
        if not census.take(wire.SURFACE, self._caps.sessions):
            why = f"there are {self._caps.sessions} sessions, which is the most; end one, or let one expire"
            raise Refusal(429, why, {"Retry-After": TRY_AGAIN})
        try:
            return await self._harness.create(asked, wire.SURFACE)
        finally:
            census.give(wire.SURFACE)

    async def list(self, request: web.Request, caller: Caller) -> web.Response:
        status, after = parameters.ACTIVE.of(request), parameters.LIST_AFTER.of(request)
        limit = parameters.LIST_LIMIT.of(request) or api.MAX_LIST
        found: list[wire.Session] = []
        while len(found) < limit:
            page = await self._page(status, after)
            found += [session for info in page if (session := _session(info)).status == status or not status]
            if len(page) < api.MAX_LIST:
                break
            after = page[-1].id
        return reply(found[:limit])

    async def _page(self, status: str, after: str) -> Sequence[api.Info]:
        kind = status if status in OVER else None
        return await self._harness.list(kind, api.MAX_LIST, after)  # type: ignore[arg-type] # ended or expired

    async def get(self, request: web.Request, caller: Caller) -> web.Response:
        return reply(_session(await self._harness.info(parameters.SESSION.of(request))))

    async def delete(self, request: web.Request, caller: Caller) -> web.Response:
        id = parameters.SESSION.of(request)
        with suppress(Ended):
            await self._inflight.run(self._harness.end(id, caller.name or SAID), f"end of {id}")
        return web.Response(status=204)

    async def turn(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        id = parameters.SESSION.of(request)
        stop = parameters.ON_DISCONNECT.of(request) == "stop"
        self._drain.check()
        await self._live(id)
        new = await reading.decoded(request, wire.NewTurn)
        if not new.input.strip():
            raise Malformed("input: it is blank; say something")
        via = caller.name or SAID
        stream: TurnStream | None = None
        begun = self._inflight.begin(self._begin(id, via, new.input), f"turn of {id}")
        try:
            n = await asyncio.shield(begun)
            with ExitStack() as stack:
                stream = await self._stream(stack, request, caller, id, n - 1)
                return await stream.serve(stream.work())
        except Ended as error:
            raise NotFound(str(error)) from error
        finally:
            told = stream is not None and stream.told_end
            if stop and not told and not caller.gone.is_set():
                await self._inflight.run(self._stop(begun, id, via), f"stop of {id}")

    async def _begin(self, id: str, via: str, text: str) -> int:
        """Nothing is awaited between the look at the drain and the count that it waits for."""
        self._drain.check()
        return await self._turns.begin(id, via, text)

    async def events(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        id = parameters.SESSION.of(request)
        after, seen = parameters.AFTER.of(request), parameters.LAST_EVENT.of(request)
        cursor = (after or 0) if seen is None else seen
        log = await self._harness.log(id)
        if cursor > log.durable_n:
            raise Malformed(f"after: {cursor} is past the last record, {log.durable_n}")
        with ExitStack() as stack:
            stream = await self._stream(stack, request, caller, id, cursor)
            return await stream.serve(stream.work())

    async def _live(self, id: str) -> None:
        """Raises NotFound for a session that no turn can be taken with."""
        info = await self._harness.info(id)
        if info.status in OVER:
            raise NotFound(f"session {id} has {info.status}; it can be read, and a new one can go on")

    async def _stream(
        self, stack: ExitStack, request: web.Request, caller: Caller, id: str, cursor: int
    ) -> TurnStream:
        log = await self._harness.log(id)
        info = await self._harness.info(id)
        stack.enter_context(self._counts.reader("session"))
        return TurnStream(
            request,
            caller,
            self._limits,
            self._harness,
            log,
            info,
            stack.enter_context(self._harness.live(id)) if parameters.DELTAS.of(request) else None,
            cursor,
            agent.warnings if (agent := self._harness.agents.get(info.config.agent)) else (),
            parameters.TRACEPARENT.of(request),
        )

    async def _stop(self, begun: asyncio.Task[int], id: str, via: str) -> None:
        """The client went away, and asked that the turn goes with it."""
        await asyncio.wait({begun})
        if begun.cancelled() or begun.exception() is not None:
            return
        if self._turns.goes_on(id, begun.result()):  # and it is no later one of somebody else's
            with suppress(HarnessError):  # it has ended by itself
                await self._harness.stop(id, via)


def _session(info: api.Info) -> wire.Session:
    status: wire.Status = "active"
    if info.status == "ended" or info.status == "expired":
        status = info.status
    return wire.Session(info.id, info.config.agent, wire.RUNTIME, status, info.created or None)
