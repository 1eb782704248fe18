"""Follow a session, or the daemon, event by event over as many connections as it takes."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final, TypeVar

from msgspec import Struct

from daemon.asking import ApiFailure, Asker, Cut, Unreachable
from daemon.protocol import api
from daemon.protocol.events import (
    DAEMON,
    LAST_ID_HEADER,
    SESSION,
    BadEvent,
    DaemonEvent,
    Decoder,
    SessionEvent,
)
from daemon.protocol.records import Record

FIRST_WAIT: Final = 0.1  # seconds before the first try to connect again; doubled each time
LONGEST_WAIT: Final = 5.0  # seconds; a daemon that is back is noticed soon enough
SILENCE: Final = 3 * api.HEARTBEAT  # seconds without a byte, after which an event stream is dead

T = TypeVar("T")
S = TypeVar("S")


class Lost(Struct, frozen=True):
    """The connection of a followed session is lost: why, and in how many seconds it is tried again."""

    why: str
    wait: float


class Back(Struct, frozen=True):
    """The connection of a followed session is there again."""


Followed = Record | api.Delta | api.RetryEvent | api.Restart | Lost | Back
Watched = api.State | api.Info | api.Workers | Lost | Back


class Pace(Struct, frozen=True):
    """How long to wait before another try, in seconds."""

    first: float = FIRST_WAIT
    longest: float = LONGEST_WAIT

    def wait(self, tries: int) -> float:
        """Seconds before a try, a little different for each client, so that many do not come at once."""
        most = min(self.longest, self.first * 2.0 ** min(tries, 20))
        return most * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


class Line(Struct, frozen=True):
    """A way to a daemon on which it is followed. `silence`: seconds without a byte after which a stream is dead."""

    asker: Asker
    pace: Pace
    silence: float = SILENCE

    def session(self, id: str, after: int, deltas: bool) -> AsyncGenerator[Followed, None]:
        """See Client.follow."""
        last = after

        def take(event: SessionEvent) -> Followed:
            nonlocal last
            if isinstance(event, api.ApiError):
                raise ApiFailure(event.error.code, event.error.message)
            if isinstance(event, Record):
                if event.n != last + 1:
                    raise Cut(f"record {event.n} came where {last + 1} was due")
                last = event.n
            return event

        path, query = api.EVENTS.format(id=id), {"deltas": "1"} if deltas else {}
        return self._stream(path, query, lambda: {LAST_ID_HEADER: str(last)}, lambda: Decoder(SESSION), take)

    def daemon(self, first: int) -> AsyncGenerator[Watched, None]:
        """See Client.events."""

        def take(event: DaemonEvent) -> Watched:
            if isinstance(event, api.ApiError):
                raise ApiFailure(event.error.code, event.error.message)
            return event

        query = {"limit": str(first)}
        return self._stream(api.ALL_EVENTS, query, dict, lambda: Decoder(DAEMON), take)

    async def _stream(
        self,
        path: str,
        query: Mapping[str, str],
        headers: Callable[[], Mapping[str, str]],
        decoder: Callable[[], Decoder[T]],
        take: Callable[[T], S],
    ) -> AsyncGenerator[S | Lost | Back, None]:
        """The events at `path`, each as `take` gives it, over as many connections as it needs."""
        clock = asyncio.get_running_loop().time
        where = self.asker.where
        tries, lost = 0, False
        while True:
            began, wait = clock(), self.pace.wait(tries)
            try:
                async with self.asker.request(
                    "GET", path, query, headers=headers(), silence=self.silence
                ) as answer:
                    if lost:
                        yield Back()
                        lost = False
                    decoded = decoder()
                    async for piece in answer.content.iter_any():
                        decoded.feed(piece)
                        while (event := decoded.next()) is not None:
                            taken = take(event)
                            tries = 0
                            yield taken
                why = f"{where} ended the stream"
            except (Unreachable, BadEvent) as error:
                why = str(error)
            except ApiFailure as error:
                if error.status < 500 and error.status != 429:
                    raise
                why, wait = error.message, max(wait, error.retry_after)
            tries = 0 if clock() - began > self.pace.longest else tries + 1
            lost = True
            yield Lost(why, wait)
            await asyncio.sleep(wait)
