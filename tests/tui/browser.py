"""A headless Chromium, asked by its DevTools protocol."""

import asyncio
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.needed import missing

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-proxy-server",
    "--remote-debugging-port=0",
    "--window-size=1000,600",
)
# The page draws its terminal on a canvas; what stands in it is read from the terminal itself.
HOOK = """
Object.defineProperty(Object.prototype, "canvasAddon", {
  configurable: true,
  set(value) {
    window.shownTerminal = this.terminal;
    Object.defineProperty(this, "canvasAddon", { value, writable: true });
  },
});
window.shownText = () => {
  const buffer = window.shownTerminal.buffer.active;
  return Array.from({ length: window.shownTerminal.rows },
    (_, y) => buffer.getLine(buffer.viewportY + y)?.translateToString(true) ?? "").join("\\n");
};
"""


def chromium() -> str:
    """The browser's path; skips loudly where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        missing("no Chromium on the PATH: install the package chromium, and the browser's tests run")
    return found


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._session = ""

    async def ask(self, method: str, **params: Any) -> Any:
        """The answer to one command."""
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        await self._socket.send_json({"id": number, "method": method, "params": params} | session)
        while True:
            said = await self._socket.receive_json()
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]

    async def open(self, url: str) -> None:
        """Show a page in a tab of its own."""
        self._session = ""
        made = await self.ask("Target.createTarget", url="about:blank")
        found = await self.ask("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self._session = found["sessionId"]
        await self.ask("Page.enable")
        await self.ask("Page.addScriptToEvaluateOnNewDocument", source=HOOK)
        await self.go(url)

    async def go(self, url: str) -> None:
        """Show a page in this tab."""
        await self.ask("Page.navigate", url=url)

    async def value(self, script: str) -> Any:
        """What an expression is, once it is settled where it is a promise."""
        found = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def becomes(self, name: str) -> None:
        """Wait until the body has a class."""
        await self.value(
            f"""new Promise(done => {{
              const look = () => document.body?.classList.contains({name!r}) && done(true);
              new MutationObserver(look).observe(
                document, {{subtree: true, childList: true, attributes: true}});
              look();
            }})"""
        )

    async def shows(self, *words: str) -> str:
        """Wait until the page's terminal has all of `words`; what stands in it."""
        found = await self.value(
            f"""new Promise(done => {{
              const look = () => {{
                const text = window.shownText();
                if ({json.dumps(words)}.every(word => text.includes(word))) done(text);
              }};
              window.shownTerminal.onWriteParsed(look);
              look();
            }})"""
        )
        return str(found)

    async def type(self, text: str) -> None:
        for char in text:
            await self.ask("Input.dispatchKeyEvent", type="char", text=char)

    async def key(self, key: str, code: int, ctrl: bool = False) -> None:
        for type in ("rawKeyDown", "keyUp"):
            await self.ask(
                "Input.dispatchKeyEvent",
                type=type,
                key=key,
                windowsVirtualKeyCode=code,
                modifiers=2 if ctrl else 0,
            )


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A browser with a profile of its own, ended afterwards."""
    program, profile = chromium(), Path(tempfile.mkdtemp(prefix="or-"))
    process = await asyncio.create_subprocess_exec(
        program,
        *FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        env={"HOME": str(profile), "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    drain: asyncio.Task[bytes] | None = None
    try:
        while not (found := re.search(rb"ws://\S+", line := await process.stderr.readline())):
            assert line, "the browser ended"
        drain = asyncio.get_running_loop().create_task(process.stderr.read())
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(found[0].decode(), max_msg_size=0) as socket,
        ):
            yield Page(socket)
            await socket.send_json({"id": 0, "method": "Browser.close"})
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if drain is not None:
            await drain
        shutil.rmtree(profile, ignore_errors=True)
