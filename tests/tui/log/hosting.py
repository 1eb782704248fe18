"""An app with nothing but a log, what the log said to it, and waiting for what it shows."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC
from typing import Any

from textual.app import App, ComposeResult
from textual.message import Message
from textual.pilot import Pilot

from tests.tui.log.fakes import Book, FakeSource
from tests.tui.snapshots import screen_text
from tui.log.logview import LogView
from tui.log.messages import LogMessage, Moved, Opened
from tui.log.pane import Pane

PATIENCE = 20.0


class Host(App[object]):
    """The screen that a log stands on."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[LogMessage] = []

    def compose(self) -> ComposeResult:
        yield LogView(id="log", zone=UTC)

    def _hear(self, message: Message) -> None:
        assert isinstance(message, LogMessage)
        self.heard.append(message)

    on_opened = on_failed = on_fork = on_zoom = on_copied = on_said = on_picture = on_moved = _hear


class Hosted:
    """A host that runs, with a session opened in its log."""

    def __init__(self, app: Host, pilot: Pilot[object], source: FakeSource) -> None:
        self.app = app
        self.pilot = pilot
        self.source = source

    @property
    def log(self) -> LogView:
        return self.app.query_one(LogView)

    @property
    def pane(self) -> Pane:
        return self.log.pane

    @property
    def lines(self) -> list[str]:
        """The screen's lines without the scroll bar."""
        return [
            line[:-1].rstrip() if len(line) == self.app.size.width else line for line in self.text.split("\n")
        ]

    @property
    def text(self) -> str:
        return screen_text(self.app)

    def heard(self, kind: type[LogMessage]) -> list[Any]:
        """The messages of a kind so far."""
        return [message for message in self.app.heard if isinstance(message, kind)]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, holds: Callable[[], Any]) -> None:
        """Wait until something holds."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not holds():
                    await self.pilot.pause(0.01)
        except TimeoutError:
            raise AssertionError(f"it does not come to hold; on the screen:\n{self.text}") from None

    async def sees(self, text: str) -> None:
        await self.until(lambda: text in self.text)

    async def misses(self, text: str) -> None:
        """Wait until the screen no longer shows `text`."""
        await self.until(lambda: text not in self.text)


@asynccontextmanager
async def hosted(
    book: Book, size: tuple[int, int] = (80, 24), last: int | None = None
) -> AsyncIterator[Hosted]:
    """A log that shows a book up to record `last`."""
    app = Host()
    async with app.run_test(size=size) as pilot:
        source = FakeSource(book)
        host = Hosted(app, pilot, source)
        host.log.open("s1", source, len(book.records) if last is None else last)
        host.log.focus()
        await host.until(lambda: host.heard(Opened))
        await host.until(lambda: all(worker.is_finished for worker in app.workers) and not host.log._dirty)
        await host.until(lambda: not host.log._rows.rough)
        await pilot.pause()
        yield host


def moved(host: Hosted) -> list[tuple[bool, int]]:
    """How the view stood each time it said so."""
    return [(message.follow, message.new) for message in host.heard(Moved)]
