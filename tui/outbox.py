"""Send posts in order and once: each is tried under its own key until the daemon takes or refuses it."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from msgspec import Struct

from daemon.client import ApiFailure, Unreachable
from daemon.plain import line
from daemon.protocol import api
from tui.desk import Desk, Unsent

VIA: Final = "tui"  # how records name this client
AGAIN: Final = 1.0  # seconds until a post is tried again where the link is said to be well
LONGEST: Final = 30.0  # seconds at most between two tries
WHY: Final = 500  # characters of a daemon's words
NOTHING_DONE: Final = frozenset({429, 503, 507})  # answers after which nothing was taken


class Poster(Protocol):
    """Where posts go; `daemon.client.Client` is one."""

    async def post(self, id: str, parts: tuple[api.Part, ...], via: str, key: str = "") -> int:
        """Append one message per part; the last one's number, durable by then."""
        ...


class Hitch(Struct, frozen=True):
    """Why the daemon does not take a post for now, in its words, and when it is tried again."""

    why: str
    again: datetime


class Outbox:
    """The posts of a desk on their way. `linked` is set while the daemon answers.

    `changed` is told whose posts changed. `back` gets a post that will not be sent any more, a sentence about it, and
    whether that is bad: the daemon refused it, or `take_back` was called.
    """

    def __init__(
        self,
        poster: Poster,
        desk: Desk,
        linked: asyncio.Event,
        changed: Callable[[str], None],
        back: Callable[[Unsent, str, bool], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._poster = poster
        self._desk = desk
        self._linked = linked
        self._changed = changed
        self._back = back
        self._now = now
        self._busy: dict[
            str, asyncio.Event
        ] = {}  # sessions whose posts are sent; set where one is taken back
        self._hitches: dict[str, Hitch] = {}  # by a post's key, as all below
        self._trying: set[str] = set()
        self._wanted: set[str] = set()  # back, once the try that goes on has come to nothing
        self._doubtful = {post.key for post in desk.unsent()}  # may have arrived: who sent them last knows

    def idle(self) -> list[str]:
        """Sessions with posts that nobody sends yet: `send` each."""
        return [
            id for id in dict.fromkeys(post.session for post in self._desk.unsent()) if id not in self._busy
        ]

    def hitch(self, post: Unsent) -> Hitch | None:
        """What keeps a post from being taken, as far as the daemon has told."""
        return self._hitches.get(post.key)

    def leaves(self, post: Unsent) -> bool:
        """Whether it is taken back, if the try that goes on comes to nothing."""
        return post.key in self._wanted

    async def send(self, session: str) -> None:
        """Send a session's posts one after another, until there is none."""
        if session in self._busy:
            return
        self._busy[session] = asyncio.Event()
        try:
            while found := self._desk.unsent(session):
                await self._one(found[0])
        finally:
            del self._busy[session]

    def take_back(self, session: str) -> bool:
        """Do not send a session's newest post: it goes back, where it is on the wire once that has come to nothing.

        False where there is none.
        """
        posts = [post for post in self._desk.unsent(session) if post.key not in self._wanted]
        if not posts:
            return False
        if posts[-1].key in self._trying:
            self._wanted.add(posts[-1].key)
            self._changed(session)
        else:
            self._return(posts[-1])
        return True

    def _return(self, post: Unsent) -> None:
        doubtful = post.key in self._doubtful
        self._over(post)
        if post.session in self._busy:
            self._busy[post.session].set()
        if doubtful:
            said = "taken back; it may have arrived before: look at the log before you send it again"
        else:
            said = "taken back: it was not posted"
        self._back(post, said, doubtful)

    def _over(self, post: Unsent) -> None:
        self._desk.sent(post.key)
        self._hitches.pop(post.key, None)
        self._wanted.discard(post.key)
        self._doubtful.discard(post.key)

    async def _one(self, post: Unsent) -> None:
        wait = AGAIN
        while True:
            await self._linked.wait()
            if post not in self._desk.unsent(post.session):
                return
            failure: ApiFailure | None = None
            self._trying.add(post.key)
            try:
                await self._poster.post(post.session, post.parts, VIA, post.key)
            except Unreachable:
                self._doubtful.add(post.key)
            except ApiFailure as error:
                failure = error
            else:
                self._over(post)
                self._changed(post.session)
                return
            finally:
                self._trying.discard(post.key)
            if failure is not None and failure.status < 500 and failure.status != 429:
                self._over(post)
                self._back(post, f"not posted: {line(failure.message, WHY)}", True)
                return
            if failure is not None:
                wait = max(wait, failure.retry_after)
                if failure.status not in NOTHING_DONE:
                    self._doubtful.add(post.key)
            if post.key in self._wanted:
                self._return(post)
                return
            self._tell(post, failure, wait)
            await self._pause(post.session, wait)
            wait = min(wait * 2, LONGEST)

    def _tell(self, post: Unsent, failure: ApiFailure | None, wait: float) -> None:
        """What is known of the try that came to nothing; of a lost connection the link tells."""
        if failure is None:
            self._hitches.pop(post.key, None)
        else:
            again = self._now() + timedelta(seconds=wait)
            self._hitches[post.key] = Hitch(line(failure.message, WHY), again)
        self._changed(post.session)

    async def _pause(self, session: str, seconds: float) -> None:
        """Wait, but not for a post that is taken back."""
        taken = self._busy[session]
        taken.clear()
        try:
            async with asyncio.timeout(seconds):
                await taken.wait()
        except TimeoutError:
            return
