"""The app's posts and drafts: posts are sent until the daemon has them, and what it does not take comes back."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from textual.timer import Timer

from daemon.client import Client
from daemon.protocol import api
from tui.deeds import Deeds, Given
from tui.desk import Chip, Desk, Prefs, Unsent
from tui.messages import OutboxChanged
from tui.outbox import Outbox
from tui.screens.new import NewScreen
from tui.screens.session import SessionScreen

SAVE: Final = 1.0  # seconds in which changes of drafts are gathered before they are written


class Posting(Deeds):
    """The app without its watching; `outbox` has the posts on their way."""

    def __init__(
        self,
        client: Client,
        desk: Desk,
        given: Given,
        edit: Callable[[Path], Awaitable[None]] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(client, desk, given, edit)
        self.now = now
        self.linked = asyncio.Event()
        self.outbox = Outbox(client, desk, self.linked, self._outbox_changed, self._back, now)
        self._saving: Timer | None = None

    # ---- posts

    def post(
        self, session: str, text: str, parts: tuple[api.Part, ...], chips: tuple[Chip, ...] = ()
    ) -> None:
        """Send a post; it is kept until the daemon has it."""
        order = max((post.order for post in self.desk.unsent()), default=0.0) + 1
        self.desk.post(session, text, parts, chips, order)
        self._save()
        self.send()
        self._outbox_changed(session)

    def send(self) -> None:
        """Have what is not sent yet be sent."""
        for session in self.outbox.idle():
            self.work(partial(self.outbox.send, session), "outbox")

    def _outbox_changed(self, session: str) -> None:
        self.keep()
        self.mark({session} & self.roster.infos.keys())
        for screen in self.screen_stack:
            screen.post_message(OutboxChanged(session))

    def _back(self, post: Unsent, said: str, bad: bool) -> None:
        """A post goes back to the composer, before what has been written meanwhile.

        That stands in the composer where it is open: the desk has it only a little later.
        """
        for screen in reversed(self.screen_stack):
            if isinstance(screen, SessionScreen) and screen.session == post.session and screen.ready:
                screen.give_back(post.text, post.chips)
                break
        else:
            draft = self.desk.draft(post.session)
            text = f"{post.text}\n{draft.text}" if post.text and draft.text else post.text or draft.text
            self.desk.write(post.session, text, (*post.chips, *draft.chips))
        self.tell(said, bad)
        self._outbox_changed(post.session)

    # ---- what is kept

    def put_away(self) -> None:
        """What is written on the screens is kept."""
        for screen in self.screen_stack:
            if isinstance(screen, SessionScreen | NewScreen):
                screen.keep()

    def keep(self) -> None:
        """Write what changed of drafts and posts, soon."""
        if self._saving is None and self.desk.dirty:
            self._saving = self.set_timer(SAVE, self._save)

    def _save(self) -> None:
        self._saving = None
        self.work(self._write, "save")

    async def _write(self) -> None:
        before = self.desk.complaint
        await asyncio.to_thread(self.desk.save)
        if self.desk.complaint and self.desk.complaint != before:
            self.tell(self.desk.complaint, bad=True)

    def prefer(self, **changed: Any) -> None:
        """Remember something of this daemon."""
        self.desk.prefer(msgspec.structs.replace(self.desk.prefs, **changed))
        self.keep()

    @property
    def prefs(self) -> Prefs:
        """What is remembered of this daemon."""
        return self.desk.prefs
