"""Listen on a Unix socket and on loopback, and serve the API there for as long as a context is open."""

import asyncio
import ipaddress
import os
import re
import socket
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
from aiohttp import web
from msgspec import Struct

from daemon.api import errors
from daemon.api.events import Events, Limits
from daemon.api.inflight import InFlight
from daemon.api.native import Native
from daemon.api.needs import Harness
from daemon.protocol import api

BACKLOG: Final = (
    1024  # connections that wait to be accepted; hundreds of readers come back at once after a restart
)
FINISH: Final = 15.0  # seconds that requests have to end by themselves: a stop takes up to 10
MAX_PATH: Final = 107  # bytes of a Unix socket's path
OPEN: Final = frozenset({api.HEALTHZ, api.READYZ})  # served to everybody
_ADDRESS: Final = re.compile(r"(\[[^\]]*\]|[^:\[\]]*):([0-9]{1,5})")

log = structlog.get_logger("daemon.api")


class ListenError(Exception):
    """An address cannot be listened on; the message says why and what would do."""


class Served(Struct, frozen=True):
    """Where the API is: the socket's path, and each TCP address as HOST:PORT with the port that was picked."""

    socket: Path | None
    tcp: tuple[str, ...]


@asynccontextmanager
async def serve(
    harness: Harness,
    *,
    version: str,
    socket: Path | None = None,
    tcp: Sequence[str] = (),
    limits: Limits | None = None,
    finish: float = FINISH,
) -> AsyncIterator[Served]:
    """Serve `harness` on the Unix socket at `socket` (mode 0600; who opens it is admin) and on each HOST:PORT.

    On the way out streams and waiting reads end at once, other requests have `finish` seconds. Raises ListenError.
    """
    closing = asyncio.Event()
    async with InFlight(finish) as inflight:
        routes = Native(harness, Events(harness, closing, limits), inflight, closing, version).routes()
        runner = _runner(routes, finish)
        await runner.setup()
        ours: tuple[int, int] | None = None
        try:
            if socket is not None:
                listener = await asyncio.to_thread(_listener, socket)
                ours = await asyncio.to_thread(_identity, socket)
                await web.SockSite(runner, listener, backlog=BACKLOG).start()
            for address in tcp:
                await _start_tcp(runner, address)
            yield Served(socket, tuple(_shown(got) for got in runner.addresses if isinstance(got, tuple)))
        finally:
            closing.set()
            await runner.cleanup()
            if socket is not None and ours is not None:
                await asyncio.to_thread(_remove, socket, ours)


def _runner(routes: Sequence[web.AbstractRouteDef], finish: float) -> "_Runner":
    """The routes behind the check of who asks."""
    app = web.Application(middlewares=[admit])
    app.add_routes(routes)
    app.on_response_prepare.append(_name)
    return _Runner(
        app,
        handler_cancellation=True,  # a reader that goes away holds nothing; writes go on, see `inflight`
        access_log=None,
        auto_decompress=False,  # a body's limit counts the bytes that were sent
        shutdown_timeout=finish,
    )


async def _name(request: web.Request, answer: web.StreamResponse) -> None:
    answer.headers["Server"] = errors.SERVER


def _shown(name: tuple[str, int]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@web.middleware
async def admit(request: web.Request, handler: errors.Handler) -> web.StreamResponse:
    """Let the Unix socket's peers do anything, and others ask only whether the daemon lives: there are no keys yet."""
    name = request.transport.get_extra_info("sockname") if request.transport is not None else ()
    if not isinstance(name, tuple) or request.path in OPEN:
        return await handler(request)
    raise errors.Refusal(
        401,
        "this release takes no keys: over TCP it serves /healthz and /readyz alone; use the Unix socket",
        {"WWW-Authenticate": "Bearer"},
    )


async def _start_tcp(runner: web.AppRunner, address: str) -> None:
    host, port = split(address)
    try:
        await web.TCPSite(runner, host, port, backlog=BACKLOG).start()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)  # asyncio's own text is long
        raise ListenError(f"cannot listen on {address}: {why}") from error


def split(address: str) -> tuple[str, int]:
    """(host, port) of a loopback HOST:PORT. Raises ListenError for any other address."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65535:
        raise ListenError(f"{address!r} is not HOST:PORT, such as 127.0.0.1:4600")
    host = "127.0.0.1" if found[1] == "localhost" else found[1].strip("[]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise ListenError(f"{address!r}: write the host as an IP address, such as 127.0.0.1:4600") from None
    if not loopback:
        raise ListenError(
            f"{address} is not a loopback address: it needs TLS and keys, which this release does not have; "
            "listen on 127.0.0.1"
        )
    return host, int(found[2])


def _listener(path: Path) -> socket.socket:
    """A bound socket at `path`, mode 0600 from before anybody can connect. Raises ListenError."""
    if len(os.fsencode(path)) > MAX_PATH:
        raise ListenError(
            f"{path} is too long for a Unix socket: at most {MAX_PATH} bytes; use a shorter folder"
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_way(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            path.chmod(0o600)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ListenError(f"cannot listen on {path}: {error.strerror or error}") from error
    return listener


def _make_way(path: Path) -> None:
    """Remove the socket that an ended daemon left. Raises ListenError when somebody listens, or it is no socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path} is there and is not a socket; move it away or name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except TimeoutError:
            pass  # a full queue is a listener's
    raise ListenError(f"another daemon listens on {path}; end it, or use another data folder")


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _remove(path: Path, ours: tuple[int, int]) -> None:
    """Remove the socket unless another daemon's stands there by now."""
    try:
        if _identity(path) == ours:
            path.unlink()
    except FileNotFoundError:
        pass


class _Protocol(web.RequestHandler):
    """A connection that answers what is not HTTP in the shape of every other error."""

    __slots__ = ()

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
    def __call__(self) -> web.RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


class _Runner(web.AppRunner):
    """A runner whose connections are ours and whose every failure goes through `errors.answer`."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        handler: Any = made.request_handler
        return _Server(
            partial(errors.answer, handler=handler),
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,
        )
