"""The app under test: started on a fake client, and waited for by what it shows, never by time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.widget import Widget

from tests.tui.daemonfake import FakeClient
from tests.tui.snapshots import rendered
from tui.app import OutriderApp
from tui.deeds import Given
from tui.desk import Desk

PATIENCE = 20.0  # seconds that something is waited for
CLOCK = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)


class Driver:
    """An app that runs."""

    def __init__(self, app: OutriderApp, pilot: Pilot[None], client: FakeClient) -> None:
        self.app = app
        self.pilot = pilot
        self.client = client

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def write(self, text: str) -> None:
        names = {" ": "space", "\n": "ctrl+j"}
        await self.pilot.press(*(names.get(char, char) for char in text))

    async def until(self, holds: Callable[[], Any]) -> None:
        """Wait until something holds."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not holds():
                    await self.pilot.pause(0.01)
        except TimeoutError:
            raise AssertionError(f"it does not come to hold; on the screen:\n{self.text()}") from None

    async def sees(self, text: str) -> None:
        """Wait until the screen shows `text`."""
        await self.until(lambda: text in self.text())

    def text(self) -> str:
        """What the screen shows, line by line."""
        width, height = self.app.size
        return (
            "\n".join("".join(segment.text for segment in strip) for strip in rendered(self.app)[:height])
            if width
            else ""
        )

    def said(self) -> list[str]:
        """What toasts say."""
        return [notification.message for notification in self.app._notifications]

    def one(self, kind: type[Any]) -> Any:
        """The widget of that kind."""
        found: Widget = self.app.screen.query_one(kind)
        return found


@asynccontextmanager
async def running(
    client: FakeClient,
    folder: Path,
    size: tuple[int, int] = (100, 30),
    edit: Callable[[Path], Awaitable[None]] | None = None,
    **given: Any,
) -> AsyncIterator[Driver]:
    """The app on `client`, its drafts in `folder`. Drafts are saved when it has ended, as `main` does it."""
    usual: dict[str, Any] = {"where": "/nowhere/api.sock", "here": True, "cwd": str(folder)}
    desk = await asyncio.to_thread(Desk, folder / "state", "/nowhere/api.sock")
    app = OutriderApp(client, desk, Given(**(usual | given)), now=lambda: CLOCK, edit=edit)
    async with app.run_test(size=size, notifications=True) as pilot:
        yield Driver(app, pilot, client)
    await asyncio.to_thread(desk.save)
