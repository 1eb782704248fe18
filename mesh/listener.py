"""The join listener: plain HTTP for machines that are not in the mesh yet, and nothing but what they need.

Anybody can reach it. What passes is sealed, or checked against a hash that the machine has; so what is left to guard
is the harness: every request has its limits in bytes and seconds, every address its share of the connections.
"""

import asyncio
import errno
import os
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import structlog
from aiohttp import web
from msgspec import Struct

from mesh import wheelhouse
from mesh.join import JOIN_PATH, KEY_PATH, Reply
from mesh.messages import MAX_ASK
from mesh.relay import PATH as RELAY_PATH
from mesh.relay import SERVER, Relay, source
from mesh.standing import PATH as STANDING_PATH
from mesh.wheelhouse import Wheel, Wheelhouse

SCRIPT_PATH: Final = "/join.sh"
RELEASE: Final = "/release/"
BACKLOG: Final = 256  # connections that wait to be accepted: a fleet may start at once
CHUNK: Final = 256 << 10  # bytes of a file that are read at a time
JOINING: Final = (
    4  # joins that are worked on at once: the registry takes them one after the other in any case
)
FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 5\r\nConnection: close\r\n\r\n"
)
_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([0-9.]+)):([0-9]{1,5})")

_FIX: Final = {
    errno.EADDRINUSE: "; end what has the port, or set another in `join_listen` under [mesh]",
    errno.EADDRNOTAVAIL: "; it is no address of this machine: [::] is all that it has",
    errno.EACCES: "; a user may take ports from 1024 on",
}

log = structlog.get_logger("mesh.listener")


class ListenError(Exception):
    """The join listener cannot listen there; the message says why and what would do."""


class Joins(Protocol):
    """Who lets machines join: `mesh.join.Hub`. `join` blocks and is called in threads."""

    def key(self) -> bytes:
        """The public join key."""
        ...

    def join(self, body: bytes, peer: str, /) -> Reply:
        """What to respond to this body, sent from that address."""
        ...

    def standing(self, body: bytes, peer: str, /) -> Reply:
        """The same for a machine that asks how it stands, or leaves."""
        ...


class Offered(Struct, frozen=True, kw_only=True):
    """What there is to fetch: the join script as it is served, the daemon's own wheel, and others."""

    script: bytes
    wheel: Wheel | None = None
    wheelhouse: Wheelhouse | None = None


class Limits(Struct, frozen=True, kw_only=True):
    """Times in seconds. Of the connections most are the relay's, which has limits of its own."""

    most: int = 1024
    each: int = 96  # of one address: what the relay allows, and some who join
    head: float = 10.0  # until a request's head is there
    body: float = 10.0  # until its body is
    chunk: float = 60.0  # until a piece of a file is taken: over 4 kB a second


async def _nobody_waits(_: Reply) -> None:
    pass


@asynccontextmanager
async def listening(
    addresses: Sequence[str],
    joins: Joins,
    offered: Callable[[], Offered],
    *,
    relay: Relay | None = None,
    joined: Callable[[Reply], Awaitable[None]] = _nobody_waits,
    limits: Limits | None = None,
) -> AsyncIterator[tuple[str, ...]]:
    """Serve on each ADDRESS:PORT for as long as the context is open; gives the addresses, with the ports picked for 0.

    `[::]` takes IPv4 too. `joined` is awaited before the response to who joined or leaves goes out. Raises ListenError.
    """
    made = _Listener(joins, offered, relay, joined, limits or Limits())
    runner = web.ServerRunner(made.server(), shutdown_timeout=2.0)
    await runner.setup()
    try:
        for address in addresses:
            await web.SockSite(runner, _bind(address), backlog=BACKLOG).start()
        yield tuple(_shown(name) for name in runner.addresses)
    finally:
        if relay is not None:
            relay.end()
        await runner.cleanup()


class _Listener:
    """The routes."""

    def __init__(
        self,
        joins: Joins,
        offered: Callable[[], Offered],
        relay: Relay | None,
        joined: Callable[[Reply], Awaitable[None]],
        limits: Limits,
    ) -> None:
        self._joins = joins
        self._offered = offered
        self._relay = relay
        self._joined = joined
        self._limits = limits
        self._joining = asyncio.Semaphore(JOINING)

    def server(self) -> "_Server":
        """What answers connections."""
        return _Server(
            self._answer,
            self._limits,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,  # a body's limit counts the bytes that were sent
            keepalive_timeout=self._limits.head,  # the only one there is for a head; nothing is kept alive
            lingering_time=1.0,
            max_line_size=1024,
            max_field_size=4096,
            max_headers=64,
        )

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            answer = await self._route(request)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # the one place around a request: who asked gets no more than this
            log.error("a request to the join listener failed", path=request.path[:80], exc_info=error)
            answer = _text(500, "the harness failed at this; its log says why")
        answer.force_close()
        return answer

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        path, offered = request.path, self._offered()
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
        methods: tuple[str, ...] = ("GET", "HEAD")
        if path == SCRIPT_PATH:
            handler = _fixed(offered.script, "text/x-shellscript")
        elif path == KEY_PATH:
            handler = _fixed(self._joins.key(), "application/octet-stream")
        elif path == JOIN_PATH:
            handler, methods = self._asking(self._joins.join), ("POST",)
        elif path == STANDING_PATH:
            handler, methods = self._asking(self._joins.standing), ("POST",)
        elif path == RELAY_PATH and self._relay is not None:
            handler, methods = self._relay.serve, ("GET",)
        elif (found := _file(path, offered)) is not None:
            handler = self._sending(found)
        elif (page := _page(path, offered)) is not None:
            handler = _fixed(page, "text/html")
        else:
            return _text(404, "not found")
        if request.method not in methods:
            return _text(405, "method not allowed", Allow=", ".join(methods))
        return await handler(request)

    def _asking(
        self, asked: Callable[[bytes, str], Reply]
    ) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        return lambda request: self._ask(request, asked)

    async def _ask(
        self, request: web.BaseRequest, asked: Callable[[bytes, str], Reply]
    ) -> web.StreamResponse:
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            return _text(415, "send the body as it is")
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body):
                while len(body) <= MAX_ASK and (request.content_length or 0) <= MAX_ASK:
                    if not (piece := await request.content.readany()):
                        break
                    body += piece
                else:
                    return _text(413, "too large")
        except TimeoutError:
            return _text(408, "too slow")
        except web.RequestPayloadError:
            return _text(400, "not valid HTTP")
        async with self._joining:
            reply = await asyncio.to_thread(asked, bytes(body), request.remote or "")
            if reply.fault:
                whose = (request.remote or "").removeprefix("::ffff:")
                log.error("a machine could not join", address=whose, why=reply.fault)
            if reply.status == 200:
                await self._joined(reply)
        headers = {"Retry-After": str(reply.retry_after)} if reply.retry_after else {}
        kind = "application/octet-stream" if reply.status == 200 else "text/plain; charset=utf-8"
        return _bytes(reply.status, reply.body, kind, **headers)

    def _sending(self, wheel: Wheel) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        async def send(request: web.BaseRequest) -> web.StreamResponse:
            try:
                file = await asyncio.to_thread(wheel.path.open, "rb")
            except OSError as error:
                log.error("a wheel cannot be read", path=str(wheel.path), why=error.strerror)
                return _text(404, "not found")
            left = wheel.size if request.method == "GET" else 0
            try:
                answer = web.StreamResponse(headers={"Server": SERVER, "ETag": f'"{wheel.sha256}"'})
                answer.content_type = "application/octet-stream"
                answer.content_length = wheel.size
                answer.force_close()
                await answer.prepare(request)
                while left:
                    if not (piece := await asyncio.to_thread(file.read, min(CHUNK, left))):
                        raise ConnectionResetError("the file has become shorter")
                    async with asyncio.timeout(self._limits.chunk):
                        await answer.write(piece)
                    left -= len(piece)
                return answer
            except TimeoutError:
                raise ConnectionResetError("it takes nothing up") from None
            finally:
                file.close()
                if left and request.transport is not None:
                    request.transport.abort()  # closing would wait for who does not read

        return send


def _file(path: str, offered: Offered) -> Wheel | None:
    """The wheel that a path names, if there is one."""
    wheel = offered.wheel
    if wheel is not None and path == RELEASE + wheel.name:
        return wheel
    if offered.wheelhouse is not None and path.startswith(wheelhouse.PATH):
        return offered.wheelhouse.files.get(path.removeprefix(wheelhouse.PATH))
    return None


def _page(path: str, offered: Offered) -> bytes | None:
    """The page of the wheelhouse that a path names, if there is one."""
    if offered.wheelhouse is None or not path.startswith(wheelhouse.PATH):
        return None
    rest = path.removeprefix(wheelhouse.PATH)
    return offered.wheelhouse.projects.get(rest.removesuffix("/")) if rest else offered.wheelhouse.index


def _fixed(body: bytes, kind: str) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return _bytes(200, body, kind)

    return answer


def _text(status: int, text: str, **headers: str) -> web.Response:
    return _bytes(status, f"{text}\n".encode(), "text/plain", **headers)


def _bytes(status: int, body: bytes, kind: str, **headers: str) -> web.Response:
    return web.Response(status=status, body=body, headers={"Server": SERVER, "Content-Type": kind, **headers})


class _Crowd:
    """Connections in all and by address."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()

    def enter(self, where: str) -> bool:
        """One more from there; false when it is one too many, and then `leave` is not called."""
        if self._open.total() >= self._limits.most or self._open[where] >= self._limits.each:
            return False
        self._open[where] += 1
        return True

    def leave(self, where: str) -> None:
        """A connection from there has ended."""
        self._open[where] -= 1
        if not self._open[where]:
            del self._open[where]


class _Protocol(web.RequestHandler):
    """A connection that is counted, and that says little about what is not HTTP."""

    __slots__ = ("_where",)
    _where: str | None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._where = None
        peer = transport.get_extra_info("peername")
        where = source(peer[0] if peer else "")
        if not isinstance(self._manager, _Server) or not isinstance(transport, asyncio.WriteTransport):
            return
        if self._manager.crowd.enter(where):
            self._where = where
        else:
            transport.write(FULL)
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._where is not None and isinstance(self._manager, _Server):
            self._manager.crowd.leave(self._where)
            self._where = None
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
        answer = _text(status, "not valid HTTP" if status < 500 else "failed")
        answer.force_close()
        return answer


class _Server(web.Server):
    def __init__(self, handler: Any, limits: Limits, **more: Any) -> None:
        super().__init__(handler, **more)
        self.crowd = _Crowd(limits)

    def __call__(self) -> web.RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


def _bind(address: str) -> socket.socket:
    """A listening socket at IP:PORT; `[::]` is every address, IPv4 and IPv6 as far as there is. Raises ListenError."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[3]) > 65535:
        raise ListenError(f"mesh.join_listen: {address!r} is not ADDRESS:PORT, such as [::]:4601")
    host, port = found[1] or found[2], int(found[3])
    try:
        if host == "::" and not socket.has_dualstack_ipv6():
            host = "0.0.0.0"  # noqa: S104 - a machine without IPv6; whoever joins comes from anywhere
        made = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=BACKLOG,
            dualstack_ipv6=host == "::",
        )
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        fix = _FIX.get(error.errno or 0, "")
        raise ListenError(f"mesh.join_listen: cannot listen on {address}: {why}{fix}") from error
    made.setblocking(False)
    return made


def _shown(name: Any) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
