"""The app on a daemon that is served from memory, as a person at a terminal of a given size has it."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import msgspec
from structlog.testing import capture_logs
from textual.app import App
from textual.pilot import Pilot

from daemon.api.keys import Keys
from daemon.client import Client
from daemon.harness.changes import WORKERS
from daemon.protocol import api
from tests.daemon.api.fakes import FakeHarness, FakeMesh, FakeProviders, serve
from tests.tui.snapshots import SMALL, screen_text
from tui import patches
from tui.app import OutriderApp
from tui.deeds import Given
from tui.desk import Desk

NOW = datetime(2026, 1, 2, 3, 5, 0, tzinfo=UTC)
patches.apply()  # it looks for Textual's release on the disk


class Providers(FakeProviders):
    """`kind`: of the one provider; a rehearsal takes no key. `problem`: of its key. `offered`: whom else there could
    be; one that is set is there from then on, and gives the default model.
    """

    kind = "rehearsal"
    problem = ""
    offered: tuple[api.Offer, ...] = ()

    def describe(self) -> api.Providers:
        new = [self._info(name) for name, _ in self.settings if name != "rehearsal"]
        offered = tuple(one for one in self.offered if one.name not in {info.name for info in new})
        default = f"{new[0].name}/best" if new else "rehearsal/tour"
        return api.Providers(default, (*new, self._info("rehearsal")), offered)

    def _info(self, name: str) -> api.ProviderInfo:
        info = super()._info(name)
        if name == "rehearsal":
            asks: tuple[api.Asked, ...] = () if self.kind == "rehearsal" else ("key",)
            return msgspec.structs.replace(info, kind=self.kind, problem=self.problem, asks=asks)
        given: dict[str, str] = {}
        for setting in (setting for other, setting in self.settings if other == name):
            given |= msgspec.to_builtins(setting)
        (asks,) = (one.asks for one in self.offered if one.name == name)
        return msgspec.structs.replace(
            info,
            kind=name,
            has_key=bool(given.get("key")),
            models=(api.ModelInfo(f"{name}/best"), api.ModelInfo(f"{name}/next")),
            url=given.get("url", ""),
            region=given.get("region", ""),
            asks=asks,
        )


class Daemon:
    """What stands behind the API, and where that is. `url` and `key` where it listens on TCP for a role."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.harness = FakeHarness()
        self.mesh = FakeMesh()
        self.providers = Providers()
        self.socket = folder / "api.sock"
        self.url = ""
        self.key = ""

    def workers(self, *workers: api.WorkerInfo) -> None:
        """These are the workers from now on; whoever follows is told."""
        self.harness.known_workers = list(workers)
        self.harness.changed.put(WORKERS)


@asynccontextmanager
async def daemon(role: api.Role | None = None) -> AsyncIterator[Daemon]:
    """A served one; with `role` its key may do what that role may."""
    made = Daemon(Path(tempfile.mkdtemp(prefix="or-")))
    keys = await asyncio.to_thread(Keys, made.folder / "keys.toml")
    try:
        with capture_logs():
            async with serve(
                made.harness,
                providers=made.providers,
                mesh=made.mesh,
                keys=keys,
                socket=made.socket,
                tcp=("127.0.0.1:0",) if role else (),
                finish=1,
            ) as served:
                if role:
                    made.url = f"http://{served.tcp[0]}"
                    made.key = (await keys.add(api.NewKey("laptop", role))).key
                yield made
    finally:
        await asyncio.to_thread(shutil.rmtree, made.folder)


class Screen:
    """The app as a person has it: keys in, text out."""

    def __init__(self, app: OutriderApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def text(self) -> str:
        """What the terminal shows, a line a row, without what is blank at their ends."""
        return screen_text(cast("App[object]", self.app))

    @property
    def toasts(self) -> list[str]:
        """What was told and has not gone away yet."""
        return [note.message for note in self.app._notifications]

    async def tells(self, word: str) -> None:
        """Wait until a toast has `word`."""
        async with asyncio.timeout(10):
            await self.until(lambda: any(word in text for text in self.toasts))

    async def until(self, true: Callable[[], bool]) -> None:
        """Go on once `true` is."""
        while not true():
            await self.pilot.pause(0.01)

    async def shows(self, *words: str) -> None:
        """Wait until the screen has all of `words`."""
        try:
            async with asyncio.timeout(10):
                await self.until(lambda: all(word in self.text for word in words))
        except TimeoutError:
            raise AssertionError(f"{words} did not come:\n{self.text}") from None

    async def loses(self, word: str) -> None:
        """Wait until the screen has `word` no more."""
        await self.until(lambda: word not in self.text)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def write(self, text: str) -> None:
        """Type a text."""
        await self.pilot.press(*("space" if char == " " else char for char in text))


@asynccontextmanager
async def screen(
    on: Daemon, size: tuple[int, int] = SMALL, cwd: str = "/home/ada/src"
) -> AsyncIterator[Screen]:
    """The app on a daemon."""
    desk = await asyncio.to_thread(Desk, on.folder / "state", "here")
    client = Client(on.url or on.socket, on.key)
    given = Given("here", not on.url, cwd)
    async with client:
        app = OutriderApp(client, desk, given, now=lambda: NOW)
        async with app.run_test(size=size) as pilot:
            yield Screen(app, pilot)
    await asyncio.to_thread(desk.save)  # as what starts the app does at its end
