"""Send posts in order and once: each is tried under its own key until the daemon takes or refuses it."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from daemon.client import ApiFailure, Unreachable
from daemon.protocol import api
from tui.desk import Desk, Unsent

VIA: Final = "tui"  # how records name this client
AGAIN: Final = 1.0  # seconds until a post is tried again where the link is said to be well
LONGEST: Final = 30.0  # seconds at most between two tries


class Poster(Protocol):
    """Where posts go; `daemon.client.Client` is one."""

    async def post(self, id: str, parts: tuple[api.Part, ...], via: str, key: str = "") -> int:
        """Append one message per part; the last one's number, durable by then."""
        ...


class Outbox:
    """The posts of a desk on their way. `linked` is set while the daemon answers.

    `changed` is told which session's posts changed, `refused` which post the daemon will not take and why.
    """

    def __init__(
        self,
        poster: Poster,
        desk: Desk,
        linked: asyncio.Event,
        changed: Callable[[str], None],
        refused: Callable[[Unsent, str], None],
    ) -> None:
        self._poster = poster
        self._desk = desk
        self._linked = linked
        self._changed = changed
        self._refused = refused
        self._busy: set[str] = set()

    def idle(self) -> list[str]:
        """Sessions with posts that nobody sends yet: `send` each."""
        return [
            id for id in dict.fromkeys(post.session for post in self._desk.unsent()) if id not in self._busy
        ]

    async def send(self, session: str) -> None:
        """Send a session's posts one after another, until there is none."""
        if session in self._busy:
            return
        self._busy.add(session)
        try:
            while found := self._desk.unsent(session):
                await self._one(found[0])
        finally:
            self._busy.discard(session)

    async def _one(self, post: Unsent) -> None:
        wait = AGAIN
        while True:
            why = ""
            await self._linked.wait()
            try:
                await self._poster.post(post.session, post.parts, VIA, post.key)
            except Unreachable:
                pass
            except ApiFailure as error:
                if error.status < 500 and error.status != 429:
                    why = error.message
                else:
                    wait = max(wait, error.retry_after)
            else:
                self._desk.sent(post.key)
                self._changed(post.session)
                return
            if why:
                self._desk.sent(post.key)
                self._refused(post, why)
                return
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST)
