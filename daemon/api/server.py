"""Serve the API on a Unix socket and on TCP for as long as a context is open."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
from aiohttp import web
from msgspec import Struct

from daemon.api import errors, listening, openapi, parameters, reading
from daemon.api.agentserver import AgentServer, Caps
from daemon.api.crowd import Crowd, room
from daemon.api.drain import Drain
from daemon.api.events import SessionEvents
from daemon.api.gate import Caller, Gate
from daemon.api.inflight import InFlight
from daemon.api.joining import Joining
from daemon.api.keys import Keys
from daemon.api.listening import ListenError
from daemon.api.native import Native
from daemon.api.needs import Harness, Mesh, Providers
from daemon.api.providing import Providing
from daemon.api.routes import Route
from daemon.api.running import Running
from daemon.api.stream import Limits
from daemon.api.turning import Turns
from daemon.api.watching import DaemonEvents
from daemon.harness.counts import Counts

__all__ = ["ListenError", "Served", "serve"]

BACKLOG: Final = (
    1024  # connections that wait to be accepted; hundreds of readers come back at once after a restart
)
FINISH: Final = 15.0  # seconds that requests have to end by themselves: a stop takes up to 10
FULL: Final = b'{"error":{"code":503,"message":"the daemon has too many connections; try again in a moment"}}'
CROWDED: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\n%b" % (len(FULL), FULL)
)
CALLER: Final = web.RequestKey("caller", Caller)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = structlog.get_logger("daemon.api")


class Served(Struct, frozen=True):
    """Where the API is: the socket's path, and each TCP address as HOST:PORT with the port that was picked.

    `drain` ends it in order, see `Drain.leave`.
    """

    socket: Path | None
    tcp: tuple[str, ...]
    drain: Drain


@asynccontextmanager
async def serve(
    harness: Harness,
    *,
    providers: Providers,
    mesh: Mesh,
    keys: Keys,
    counts: Counts,
    version: str,
    socket: Path | None = None,
    tcp: Sequence[str] = (),
    tls: ssl.SSLContext | None = None,
    insecure: bool = False,
    limits: Limits | None = None,
    caps: Caps = Caps(),  # noqa: B008 - frozen
    finish: float = FINISH,
    gate: Gate | None = None,
) -> AsyncIterator[Served]:
    """Serve `harness` on the Unix socket at `socket` (mode 0600; who opens it is admin) and on each HOST:PORT.

    Over TCP a key of `keys` is needed; with `tls` it is https. An address that is not loopback needs `tls`, unless
    `insecure`. On the way out streams and waiting reads end at once, other requests have `finish` seconds.
    Raises ListenError.
    """
    gate, limits = gate or Gate(keys), limits or Limits()
    async with InFlight(finish) as inflight, Turns(harness, caps.turns) as turns:
        drain = Drain(turns, harness.hold)
        running = Running(
            harness,
            providers,
            mesh,
            keys,
            gate,
            counts,
            DaemonEvents(harness, counts, limits),
            inflight,
            drain,
            version,
        )
        native = Native(harness, SessionEvents(harness, counts, limits), inflight, drain)
        agents = AgentServer(harness, turns, counts, limits, inflight, drain, caps)
        routes = [*running.routes(), *Joining(mesh, inflight).routes(), *native.routes(), *agents.routes()]
        routes += Providing(providers).routes()
        running.schema = openapi.document(routes, version)
        runner = _runner(routes, gate, counts, finish, limits)
        await runner.setup()
        ours: tuple[int, int] | None = None
        try:
            if socket is not None:
                listener, ours = await asyncio.to_thread(listening.unix, socket)
                await web.SockSite(runner, listener, backlog=BACKLOG).start()
            for address in tcp:
                await _start_tcp(runner, address, tls, insecure)
            yield Served(
                socket, tuple(_shown(got) for got in runner.addresses if isinstance(got, tuple)), drain
            )
        finally:
            gate.close()
            await runner.cleanup()
            if socket is not None and ours is not None:
                await asyncio.to_thread(listening.remove, socket, ours)


def _runner(routes: Sequence[Route], gate: Gate, counts: Counts, finish: float, limits: Limits) -> "_Runner":
    """The routes behind the gate."""
    free = frozenset(route.path for route in routes if route.role is None)

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in free:
            request[CALLER] = gate.admit(request)
        return await handler(request)

    async def name(request: web.Request, answer: web.StreamResponse) -> None:
        answer.headers["Server"] = errors.SERVER

    app = web.Application(middlewares=[admit])
    for route in routes:
        more = {"allow_head": route.head} if route.method == "GET" else {}
        app.router.add_routes([web.RouteDef(route.method, route.path, _checked(route), more)])
    app.on_response_prepare.append(name)
    return _Runner(
        app,
        counts,
        Crowd(limits.connections or room()),
        keepalive_timeout=limits.idle,
        handler_cancellation=True,  # a reader that goes away holds nothing; writes go on, see `inflight`
        access_log=None,
        auto_decompress=False,  # a body's limit counts the bytes that were sent
        shutdown_timeout=finish,
    )


def _checked(route: Route) -> Handler:
    """The route's handler, behind the check of the caller's role, the query's names and a body that nobody reads."""
    anybody = Caller("", "viewer")

    async def handle(request: web.Request) -> web.StreamResponse:
        caller = anybody
        if route.role is not None:
            caller = request[CALLER]
            caller.check(route.role)
        parameters.check(request, route.parameters)
        if route.body is None and request.method == "POST":
            await reading.none(request)
        return await route.handler(request, caller)

    return handle


def _shown(name: tuple[str, int]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _start_tcp(runner: web.AppRunner, address: str, tls: ssl.SSLContext | None, insecure: bool) -> None:
    host, port = listening.split(address, insecure or tls is not None)
    try:
        await web.TCPSite(runner, host, port, backlog=BACKLOG, ssl_context=tls).start()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)  # asyncio's own text is long
        raise ListenError(f"cannot listen on {address}: {why}") from error


class _Protocol(web.RequestHandler):
    """A connection that answers what is not HTTP in the shape of every other error; closed at once in a crowd."""

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        remote = isinstance(transport.get_extra_info("sockname"), tuple)
        if isinstance(self._manager, _Server) and not self._manager.crowd.enter(remote):
            if isinstance(transport, asyncio.WriteTransport):
                transport.write(CROWDED)
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        if isinstance(self._manager, _Server):
            self._manager.crowd.leave()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionResetError("the answer was cut")
        if status == 500:
            log.error("connection failed", exc_info=exc)
            message = "the daemon failed at this request; its log says why"
        else:
            first = (message or "").strip().partition("\n")[0].rstrip(":")
            message = f"not valid HTTP: {first or 'the request does not parse'}"
            log.info("request refused", status=status, why=message)
        answer = errors.problem(status, message)
        answer.force_close()
        return answer


class _Server(web.Server):
    def __init__(self, handler: Any, crowd: Crowd, **more: Any) -> None:
        super().__init__(handler, **more)
        self.crowd = crowd

    def __call__(self) -> web.RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


class _Runner(web.AppRunner):
    """A runner whose connections are ours, whose every failure goes through `errors.answer`, and which counts."""

    def __init__(self, app: web.Application, counts: Counts, crowd: Crowd, **more: Any) -> None:
        super().__init__(app, **more)
        self._counts = counts
        self._crowd = crowd

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        handler: Any = made.request_handler
        return _Server(
            partial(self._answer, handler),
            self._crowd,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,
        )

    async def _answer(self, handler: Handler, request: web.Request) -> web.StreamResponse:
        answer = await errors.answer(request, handler)
        self._counts.answers[answer.status] += 1
        return answer
