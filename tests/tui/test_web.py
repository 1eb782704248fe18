import asyncio
import json
import os
import signal
import socket as socketlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web

pytest.importorskip("textual_serve", reason="the extra `web` is not installed")

from tests.running import OUTRIDER, Place, place
from tests.tui.browser import browser
from tui.web import DRIVER, HOST, TABS, Server

APP = """
import sys
from textual.app import App
from textual.widgets import Label

class Small(App):
    def compose(self):
        yield Label("it is served")
    def on_key(self, event):
        if event.key == "q":
            self.exit()
        else:
            self.query_one(Label).update(f"got {event.key} at {self.size.width}")

Small().run()
"""
STUBBORN = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("__GANGLION__", flush=True)
sys.stdout.buffer.write(b"D\\0\\0\\0\\4here"); sys.stdout.buffer.flush()
signal.pause()
"""


class Web:
    """A served app and a client of it that is no browser."""

    def __init__(self, server: Server, url: str, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.url = url
        self.http = http
        self.token = server.token

    @property
    def own(self) -> dict[str, str]:
        return {"Origin": self.url}

    async def key(self) -> str:
        async with self.http.post(f"{self.url}/enter", data=self.token, headers=self.own) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.text()

    @asynccontextmanager
    async def tab(self, key: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        where = f"{self.url}/ws/{key}?width=90&height=30"
        async with self.http.ws_connect(where, headers=self.own) as socket:
            yield socket

    async def status(self, method: str, path: str, **kwargs: Any) -> int:
        async with self.http.request(method, self.url + path, **kwargs) as answer:
            return answer.status


@asynccontextmanager
async def serving(text: str, folder: Path) -> AsyncIterator[Web]:
    program = folder / "small.py"
    program.write_text(text)
    server = await asyncio.to_thread(Server, [sys.executable, "-P", str(program)])
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=20)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    url = f"http://{HOST}:{runner.addresses[0][1]}"
    try:
        async with aiohttp.ClientSession() as http:
            yield Web(server, url, http)
    finally:
        await runner.cleanup()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(APP, tmp_path) as found:
        yield found


@pytest.fixture(name="place")
def somewhere() -> Iterator[Place]:
    with place() as made:
        yield made


async def until(socket: aiohttp.ClientWebSocketResponse, words: bytes) -> None:
    """Read what the app draws until `words` are in it."""
    seen = b""
    while words not in seen:
        message = await socket.receive()
        assert message.type is WSMsgType.BINARY, (message, seen)
        seen += message.data


async def test_the_token_opens_once_and_its_key_opens_the_app(served: Web) -> None:
    key = await served.key()
    assert await served.status("POST", "/enter", data=served.token, headers=served.own) == 403
    async with served.tab(key) as socket:
        await until(socket, b"it is served")
        await socket.send_str(json.dumps(["stdin", "x"]))
        await until(socket, b"got x at 90")
        await socket.send_str(json.dumps(["resize", {"width": 100, "height": 40}]))
        await socket.send_str(json.dumps(["ping", 7]))
        while (message := await socket.receive()).type is not WSMsgType.TEXT:
            pass
        assert json.loads(message.data) == ["pong", 7]
        await socket.send_str(json.dumps(["stdin", "y"]))
        await until(socket, b"got y at 100")
    async with served.tab(key) as again:
        await until(again, b"it is served")


@pytest.mark.parametrize("token", ["", "x", "\u00e4", "A" * 32])
async def test_another_token_opens_nothing_and_uses_nothing_up(served: Web, token: str) -> None:
    assert await served.status("POST", "/enter", data=token, headers=served.own) == 403
    await served.key()


async def test_a_socket_without_the_key_is_refused(served: Web) -> None:
    await served.key()
    for key in ("x", served.token):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with served.tab(key):
                pass
        assert refused.value.status == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null", "", None])
async def test_another_page_gets_neither_the_key_nor_a_socket(served: Web, origin: str | None) -> None:
    headers = {} if origin is None else {"Origin": origin}
    assert await served.status("POST", "/enter", data=served.token, headers=headers) == 403
    key = await served.key()
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with served.http.ws_connect(f"{served.url}/ws/{key}", headers=headers):
            pass
    assert refused.value.status == 403


async def test_a_name_from_elsewhere_that_leads_here_is_refused(served: Web) -> None:
    for path in ("/", "/static/js/textual.js", "/enter"):
        assert await served.status("GET", path, headers={"Host": "evil.example"}) == 403
    assert await served.status("GET", "/", headers={"Host": "localhost:8000"}) == 200


async def test_the_page_is_kept_from_everything_but_its_own_server(served: Web) -> None:
    async with served.http.get(served.url) as answer:
        policy = answer.headers["Content-Security-Policy"]
        text = await answer.text()
        assert answer.headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "https://" not in text
    assert served.token not in text
    assert await served.status("GET", "/download/none") == 404
    assert await served.status("GET", "/static/../web.py") == 404


async def test_what_is_not_understood_is_passed_over(served: Web) -> None:
    async with served.tab(await served.key()) as socket:
        await until(socket, b"it is served")
        for said in ("{", "[]", '["stdin", 3]', '["resize", {}]', '["what"]'):
            await socket.send_str(said)
        await socket.send_str(json.dumps(["stdin", "x"]))
        await until(socket, b"got x")


async def test_a_paste_of_more_than_a_megabyte_ends_nothing(served: Web) -> None:
    async with served.tab(await served.key()) as socket:
        await until(socket, b"it is served")
        pasted = "\x1b[200~" + "line\r" * (1 << 18) + "\x1b[201~"
        await socket.send_str(json.dumps(["stdin", pasted]))
        await socket.send_str(json.dumps(["stdin", "x"]))
        await until(socket, b"got x")


async def test_there_are_so_many_tabs_and_no_more(served: Web) -> None:
    key = await served.key()
    served.server._tabs.update(web.WebSocketResponse() for _ in range(TABS))
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with served.tab(key):
            pass
    assert refused.value.status == 503
    served.server._tabs.clear()


async def test_an_app_that_does_not_end_is_ended(tmp_path: Path) -> None:
    async with serving(STUBBORN, tmp_path) as served, served.tab(await served.key()) as socket:
        await until(socket, b"here")


async def test_the_end_of_the_app_closes_the_tab(served: Web) -> None:
    async with served.tab(await served.key()) as socket:
        await until(socket, b"it is served")
        await socket.send_str(json.dumps(["stdin", "q"]))
        while (await socket.receive()).type not in (WSMsgType.CLOSE, WSMsgType.CLOSED):
            pass


async def test_a_browser_shows_the_app_and_types_into_it(served: Web) -> None:
    async with browser() as page, asyncio.timeout(50):
        await page.open(f"{served.url}/#{served.token}")
        await page.becomes("-first-byte")
        assert await page.value("location.hash") == ""
        assert await page.value("getComputedStyle(document.getElementById('said')).display") == "none"
        assert await page.value("document.cookie") == ""
        await page.type("q")
        await page.becomes("-closed")
        assert "reload" in (await page.value("document.getElementById('said').textContent")).lower()
        await page.go(served.url)
        await page.becomes("-first-byte")
        await page.open(f"{served.url}/#{served.token}")
        await page.becomes("-closed")
        assert "prints a new one" in await page.value("document.getElementById('said').textContent")


@contextmanager
def verb(place: Place, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`outrider --web` itself."""
    process = subprocess.Popen(
        [*OUTRIDER, *arguments],
        env=place.environ,
        cwd=place.work,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=40)


async def test_the_verb_serves_the_very_app_and_ends_with_its_signal(place: Place) -> None:
    with verb(place, "--web") as process:
        assert process.stdout is not None
        url, _, token = (await asyncio.to_thread(process.stdout.readline)).strip().partition("/#")
        assert url.startswith("http://127.0.0.1:")
        own = {"Origin": url}
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{url}/enter", data=token, headers=own) as answer:
                key = await answer.text()
            async with http.ws_connect(f"{url}/ws/{key}?width=90&height=30", headers=own) as socket:
                await until(socket, b"no daemon listens on")
                await socket.send_str(json.dumps(["stdin", "\x11"]))
                while (await socket.receive()).type not in (WSMsgType.CLOSE, WSMsgType.CLOSED):
                    pass
    assert process.returncode == 0


def test_an_app_whose_server_was_killed_ends(place: Place) -> None:
    with subprocess.Popen(
        OUTRIDER,
        env=place.environ | DRIVER,
        cwd=place.work,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as app:
        assert app.stdin is not None
        assert app.stdout is not None
        seen = b""
        while b"no daemon listens on" not in seen:
            seen += (piece := os.read(app.stdout.fileno(), 65536))
            assert piece
        app.stdin.close()  # as it is when the server is gone
        assert app.wait(40) == 128 + signal.SIGHUP


async def test_a_browser_lists_the_sessions_opens_one_and_posts_to_it(place: Place) -> None:
    await asyncio.to_thread(place.up)
    await asyncio.to_thread(place.ok, "run", "--model", "rehearsal/echo", "Mend the fence")
    with verb(place, "--web") as process:
        assert process.stdout is not None
        url = (await asyncio.to_thread(process.stdout.readline)).strip()
        async with browser() as page, asyncio.timeout(50):
            await page.open(url)
            await page.becomes("-first-byte")
            await page.shows("Mend the fence", "closed", "1 session", "f1 Help")
            await page.key("Enter", 13)
            await page.shows("write a message", "❯ message via", "step 1")
            await page.type("and paint it")
            await page.shows("│ and paint it")
            await page.key("Enter", 13)
            await page.shows("❯ message via tui", "step 2")
            await page.key("q", 81, ctrl=True)
            await page.becomes("-closed")
    (session,) = await asyncio.to_thread(place.json, "ls")
    found = await asyncio.to_thread(place.records, session["id"])
    assert [one["body"] for one in found if one["kind"] == "message"] == ["Mend the fence", "and paint it"]


def test_a_port_that_is_taken_and_a_verb_beside_it_are_told_in_a_sentence(place: Place) -> None:
    with socketlib.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        done = place.outrider(f"--web={port}")
    assert done.returncode == 2
    assert (
        done.stderr == f"outrider: --web {port}: cannot listen at 127.0.0.1:{port}: Address already in use\n"
    )
    assert "goes without a verb" in place.outrider("--web=0", "ls").stderr
