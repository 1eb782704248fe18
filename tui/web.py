"""Serve the terminal UI to a browser of this machine: behind a token that opens once, and to its own page alone."""

import asyncio
import contextlib
import hmac
import os
import secrets
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import textual_serve
from aiohttp import WSMsgType, web
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from tui.page import PAGE

HOST: Final = "127.0.0.1"
NAMES: Final = (
    "127.0.0.1",
    "localhost",
)  # by which a browser of this machine, or a forwarded port, says Host
STATIC: Final = Path(textual_serve.__file__).parent / "static"
FILES: Final = {  # of textual-serve that the page uses, and their types
    "js/textual.js": "text/javascript",
    "css/xterm.css": "text/css",
    "fonts/RobotoMono-VariableFont_wght.ttf": "font/ttf",
    "fonts/RobotoMono-Italic-VariableFont_wght.ttf": "font/ttf",
}
DRIVER: Final = {  # how Textual is told that a page is its terminal
    "TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver",
    "TEXTUAL_FPS": "60",
    "TEXTUAL_COLOR_SYSTEM": "truecolor",
    "TERM_PROGRAM": "textual",
}
TABS: Final = 16  # apps at once; each is a process of 60 MB
GRACE: Final = 5.0  # seconds that an app may take to end
LONGEST: Final = 32 << 20  # bytes of one message of a browser: a paste; longer than any post may be, as JSON
SIZES: Final = range(10, 1001)  # columns and rows that a browser may ask for
POLICY: Final = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'unsafe-inline'; font-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self' ws://{host}; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

T = TypeVar("T", str, bytes)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Tab(AppService):
    """The app of one tab: a process that ends with it, at the latest after GRACE."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        socket: web.WebSocketResponse,
        downloads: DownloadManager,
    ) -> None:
        super().__init__(
            "",
            write_bytes=_tolerant(socket.send_bytes),
            write_str=_tolerant(socket.send_str),
            close=cast(Callable[[], Awaitable[None]], socket.close),
            download_manager=downloads,
        )
        self._argv = tuple(command)
        self._environ = environ

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        environment = {**self._environ, "COLUMNS": str(width), "ROWS": str(height)}
        self._process = await asyncio.create_subprocess_exec(
            *self._argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment
        )
        self._stdin = self._process.stdin
        return self._process

    async def run(self) -> None:
        """The app's output to its page; the page is told when it is over, however it came."""
        await super().run()
        await self.remote_close()

    async def end(self) -> None:
        """Ask the app to end, and end it."""
        if (process := self._process) is None or self._task is None:
            return
        await self._download_manager.cancel_app_downloads(app_service_id=self.app_service_id)
        await self.send_meta({"type": "quit"})
        try:
            async with asyncio.timeout(GRACE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        self._task.cancel()  # what it started may still hold its output open
        await asyncio.wait([self._task])
        self.stdin.close()


class Server:
    """One server: `token` lets one page in, which keeps the key that it gets for its tab.

    The key is in the page's sessionStorage, not in a cookie: cookies go to every port of a host, and other ports of
    this machine may be another user's. The token is in the URL's fragment, which no log and no other page sees.
    Making one reads files, and blocks.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.token = secrets.token_urlsafe(24)
        self._key = secrets.token_urlsafe(24)
        self._command = tuple(command)
        self._environ = os.environ | DRIVER | {"TERM_PROGRAM_VERSION": version("textual-serve")}
        self._downloads = DownloadManager()
        self._tabs: set[web.WebSocketResponse] = set()
        self._files = {name: (STATIC / name).read_bytes() for name in FILES}

    def app(self) -> web.Application:
        """The routes, each behind the guard."""
        made = web.Application(middlewares=[_guard], client_max_size=4096)
        made.add_routes(
            [
                web.get("/", self._page),
                web.post("/enter", self._enter),
                web.get("/ws/{key}", self._socket),
                web.get("/download/{key}", self._download),
                web.get("/static/{name:.+}", self._static),
            ]
        )
        made.on_shutdown.append(self._close)
        return made

    async def _close(self, _: web.Application) -> None:
        for socket in tuple(self._tabs):
            await socket.close(message=b"the server ends")

    async def _page(self, request: web.Request) -> web.StreamResponse:
        nonce = secrets.token_urlsafe(16)
        policy = POLICY.format(nonce=nonce, host=request.host)
        text = PAGE.replace("NONCE", nonce)
        return web.Response(text=text, content_type="text/html", headers={"Content-Security-Policy": policy})

    async def _static(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self._files:
            raise web.HTTPNotFound(text="there is no such file")
        return web.Response(body=self._files[name], content_type=FILES[name])

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        """The key, for the token; the token is nothing afterwards."""
        _own_page(request)
        given = await request.text()
        if not self.token or not _same(given, self.token):
            raise web.HTTPForbidden(text="this link was used before, or is not one of this server's")
        self.token = ""
        return web.Response(text=self._key)

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        _own_page(request)
        if not _same(request.match_info["key"], self._key):
            raise web.HTTPForbidden(text="not a key of this server")
        if len(self._tabs) >= TABS:
            raise web.HTTPServiceUnavailable(text=f"{TABS} tabs are open: close one")
        socket = web.WebSocketResponse(heartbeat=15, max_msg_size=LONGEST)
        await socket.prepare(request)
        self._tabs.add(socket)
        tab = Tab(self._command, self._environ, socket, self._downloads)
        try:
            await tab.start(_size(request.query.get("width"), 80), _size(request.query.get("height"), 24))
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await _pass_on(message, tab, socket)
        finally:
            self._tabs.discard(socket)
            await asyncio.shield(tab.end())
        return socket

    async def _download(self, request: web.Request) -> web.StreamResponse:
        """A file that an app gives away, under a name that nobody guesses."""
        key = request.match_info["key"]
        try:
            meta = await self._downloads.get_download_metadata(key)
        except KeyError:
            raise web.HTTPNotFound(text="there is no such download") from None
        name = "".join(char for char in meta.file_name if char.isalnum() or char in "._- ") or "file"
        answer = web.StreamResponse(
            headers={
                "Content-Type": "application/octet-stream",
                "Content-Disposition": f'attachment; filename="{name}"',
            }
        )
        await answer.prepare(request)
        async for chunk in self._downloads.download(key):
            await answer.write(chunk)
        await answer.write_eof()
        return answer


async def run(server: Server, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM, SIGINT or cancelled; `ready` gets the URL with the token.

    `port` 0 takes a free one. Raises OSError where the port cannot be had.
    """
    runner = web.AppRunner(server.app(), access_log=None, handle_signals=False, shutdown_timeout=2 * GRACE)
    await runner.setup()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        site = web.TCPSite(runner, HOST, port)
        await site.start()
        name: tuple[str, int] = runner.addresses[0]
        ready(f"http://{HOST}:{name[1]}/#{server.token}")
        await stopped.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        await runner.cleanup()


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Only for this machine's names: a page elsewhere may make its own name mean 127.0.0.1."""
    try:
        if urlsplit(f"//{request.host}").hostname not in NAMES:
            raise web.HTTPForbidden(text=f"open it by http://{HOST}")
    except ValueError:
        raise web.HTTPBadRequest(text="Host: not a name") from None
    answer = await handler(request)
    if not answer.prepared:
        answer.headers.update(HEADERS)
    return answer


def _own_page(request: web.Request) -> None:
    """Raises HTTPForbidden unless the page that asks is this server's. A program that sends no Origin is none."""
    if request.headers.getall("Origin", []) != [f"http://{request.host}"]:
        raise web.HTTPForbidden(text="Origin: only this server's own page may ask")


def _tolerant(send: Callable[[T], Awaitable[None]]) -> Callable[[T], Awaitable[None]]:
    """What an app still says when its tab is gone is read, so that it can end, and goes nowhere."""

    async def sent(data: T) -> None:
        with contextlib.suppress(ConnectionError):
            await send(data)

    return sent


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())


def _size(text: str | None, default: int) -> int:
    """Columns or rows that a browser says it has."""
    return (
        min(max(int(text), SIZES[0]), SIZES[-1]) if text and text.isdecimal() and len(text) < 6 else default
    )


async def _pass_on(message: Any, tab: Tab, socket: web.WebSocketResponse) -> None:
    """What a browser says, to the app; what is not understood is passed over."""
    try:
        match message.json():
            case ["stdin", str(text)]:
                await tab.send_bytes(text.encode("utf-8", "replace"))
            case ["resize", {"width": int(width), "height": int(height)}]:
                await tab.set_terminal_size(_size(str(width), 80), _size(str(height), 24))
            case ["ping", value]:
                await socket.send_json(["pong", value])
            case ["blur", *_]:
                await tab.blur()
            case ["focus", *_]:
                await tab.focus()
            case _:
                pass
    except ValueError:
        pass


def main(command: Sequence[str], port: int, say: Callable[[str], None]) -> None:
    """Serve the app that `command` starts until a signal. Raises OSError where the port cannot be had."""
    asyncio.run(run(Server(command), port, say))
