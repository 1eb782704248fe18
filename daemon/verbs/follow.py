"""The verbs that show a session's records as they come: tail, run, and post with --follow."""

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final, assert_never

import msgspec
from msgspec import Struct

from daemon.chain import Chain
from daemon.client import Back, Client, Followed, Lost, Unreachable
from daemon.plain import seconds
from daemon.protocol import api, events
from daemon.protocol.records import Record, Status
from daemon.verbs.absent import warn_of_absent
from daemon.verbs.paint import Painter, is_terminal
from daemon.verbs.posting import warn_of_pictures
from daemon.verbs.reach import FAILED, OK, VIA, Where, connect, note, say_json, session_id

TICK: Final = 0.1  # seconds between two looks at the live part
SETTLE: Final = 0.05  # seconds between two looks at whether the runner has let go of a session
GIVE_UP: Final = 60.0  # seconds without a daemon; a restart takes a few
GONE: Final = frozenset({"ended", "expired"})
OVER: Final = frozenset({"closed", "failed", "ended", "expired", "damaged"})


class Look(Struct, frozen=True):
    """How records are shown. `last`: only that many of those that are there; None is all."""

    full: bool = False
    json: bool = False
    last: int | None = None


class Shown:
    """The id of the session that is shown, as soon as it is known: for what is said after Ctrl-C."""

    def __init__(self) -> None:
        self.id = ""


async def tail(place: Where, prefix: str, look: Look, follow: bool, shown: Shown) -> int:
    """Show a session's records, with `follow` also those that come until it has ended for good."""
    async with connect(place) as client:
        id = shown.id = await session_id(client, prefix)
        watch = _Watch(client, place, id, look, live=follow)
        if look.last is not None:
            n = (await client.info(id)).n
            await watch.skip(max(0, n - look.last))
        if follow:
            await watch.until(GONE)
        else:
            await watch.all()
    return OK


async def post(
    place: Where, prefix: str, parts: Sequence[api.Part], look: Look, shown: Shown, key: str = ""
) -> int:
    """Post to a session and show what comes of it, to the end of the answer."""
    async with connect(place) as client:
        id = shown.id = await session_id(client, prefix)
        watch = _Watch(client, place, id, look, live=True)
        await warn_of_pictures(client, id, parts)
        n = await client.post(id, parts, VIA, key)
        await watch.skip(n - len(parts), fold=True)
        return OK if await watch.until(OVER) == "closed" else FAILED


async def run(place: Where, create: api.Create, parts: Sequence[api.Part], look: Look, shown: Shown) -> int:
    """Make a session, post to it and show what comes of it, to the end of the answer."""
    async with connect(place) as client:
        id = shown.id = await client.create(create)
        if not look.json:  # each line has it there
            note(f"the session is {id}")
        await warn_of_absent(client, create.workers)
        watch = _Watch(client, place, id, look, live=True)
        await warn_of_pictures(client, id, parts)
        await client.post(id, parts, VIA)
        return OK if await watch.until(OVER) == "closed" else FAILED


def as_json(record: Record, session: str) -> dict[str, Any]:
    """A record as one object: its header, whose `session` it is, and its body as text where it is text or JSON."""
    shown: dict[str, Any] = msgspec.json.decode(record.raw)
    shown["session"] = session
    if events.carries_text(record.header.type):
        shown["body"] = record.body.decode("utf-8", "replace")
    return shown


class _Watch:
    """One session's records on their way to the screen."""

    def __init__(self, client: Client, place: Where, id: str, look: Look, *, live: bool) -> None:
        self._client = client
        self._place = place
        self._id = id
        self._json = look.json
        self._painter = Painter(
            live=live and not look.json and is_terminal(sys.stdout),
            full=look.full,
            retry=f"{place.command} retry {id}",
        )
        self._chain = Chain(id)
        self._after = 0
        self._lost_at = 0.0
        self._tries = 0  # to connect again, that failed

    async def skip(self, last: int, fold: bool = False) -> None:
        """Take the records up to `last` as seen; with `fold` they count for where the session stands."""
        self._after = last
        if last and fold:
            async for record in self._client.stream(self._id, 0, last):
                self._chain.add(record)
                self._painter.skip(record)
        elif last and not self._json:
            for record in await self._client.headers(self._id, 0, last):
                self._painter.skip(record)

    async def all(self) -> None:
        """Show the records that are there."""
        async for record in self._client.stream(self._id, self._after):
            self._record(record)

    async def until(self, over: frozenset[str]) -> Status:
        """Show records until where the session stands is one of `over`, and say which."""
        try:
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(self._tick(), name="live part")
                followed = self._client.follow(self._id, self._after, self._painter.live)
                async with aclosing(followed):
                    async for event in followed:
                        self._take(event)
                        if isinstance(event, Record) and await self._is_over(event.n, over):
                            break
                ticking.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # only one can be in it: the ticker raises nothing
        finally:
            self._painter.close()
        return self._chain.status

    async def _is_over(self, n: int, over: frozenset[str]) -> bool:
        """Whether record `n` was the last: an error may follow a step that looks like the end."""
        while self._chain.status in over:
            found = await self._client.info(self._id)
            if found.n > n:
                return False  # what is new is on its way here
            if found.status in over:
                return True
            await asyncio.sleep(SETTLE)
        return False

    async def _tick(self) -> None:
        while self._painter.live:
            await asyncio.sleep(TICK)
            self._painter.tick()

    def _take(self, event: Followed) -> None:
        match event:
            case Record():
                self._chain.add(event)
                self._record(event)
            case api.Delta():
                self._painter.delta(event)
            case api.RetryEvent():
                wait = f"in {seconds(event.wait)}" if event.wait else "now"
                self._note(f"{event.why}: trying again {wait}, try {event.attempt}")
            case api.Restart():
                self._painter.restart()
            case Lost():
                self._lost(event)
            case Back():
                if self._tries > 1:
                    self._note("it is back")
                self._tries = 0
            case _:
                assert_never(event)

    def _lost(self, event: Lost) -> None:
        """A connection that is there again at once is not worth a word. Raises Unreachable after GIVE_UP."""
        now = time.monotonic()
        self._tries += 1
        if self._tries == 1:
            self._lost_at = now
            self._painter.lost()
        elif self._tries == 2:
            start = f"; `{self._place.command} up` starts it" if self._place.here else ""
            self._note(f"{event.why.partition(';')[0]}: waiting for it to come back{start}")
        elif now - self._lost_at > GIVE_UP:
            raise Unreachable(event.why)

    def _note(self, text: str) -> None:
        if not self._json:
            self._painter.note(text)

    def _record(self, record: Record) -> None:
        if self._json:
            say_json(as_json(record, self._id))
        else:
            self._painter.record(record)
