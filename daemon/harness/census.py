"""Which sessions count against a cap on their number, and which have been idle past their time to live.

It knows the sessions that were made on a surface with a cap and those with `limits.ttl`; a session's own words, told by
`saw`, keep it up to date. Whether one has expired is decided again at the moment it is written.
"""

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct

from daemon.protocol import api, records
from daemon.protocol.records import Config

OVER = frozenset({"ended", "expired"})


class _Entry(Struct, frozen=True):
    surface: str
    ttl: float
    updated: datetime | None


class Census:
    """The fold of all sessions' Infos. `taken`: places that are promised to creates which are under way."""

    def __init__(self) -> None:
        self._known: dict[str, _Entry] = {}
        self._taken: dict[str, int] = {}
        self.complete = asyncio.Event()  # every session that there was at the start has been seen

    def saw(self, info: api.Info) -> None:
        """What stands about a session now."""
        config = info.config
        if info.status in OVER or not (config.surface or config.limits.ttl):
            self._known.pop(info.id, None)
            return
        self._known[info.id] = _Entry(config.surface, config.limits.ttl, records.instant(info.updated))

    def made(self, id: str, config: Config, now: datetime) -> None:
        """A session was made."""
        if config.surface or config.limits.ttl:
            self._known[id] = _Entry(config.surface, config.limits.ttl, now)

    def forget(self, id: str) -> None:
        """There is no such session any more."""
        self._known.pop(id, None)

    def count(self, surface: str) -> int:
        """Sessions of a surface that are neither ended nor expired, with those under way."""
        return sum(entry.surface == surface for entry in self._known.values()) + self._taken.get(surface, 0)

    def take(self, surface: str, most: int) -> bool:
        """Whether there is a place for one more among `most`, 0 for no cap; it is then held until `give`."""
        if most and self.count(surface) >= most:
            return False
        self._taken[surface] = self._taken.get(surface, 0) + 1
        return True

    def give(self, surface: str) -> None:
        """The create has ended: its session is known by now, or there is none."""
        self._taken[surface] -= 1

    def idle(self, now: datetime) -> Iterable[str]:
        """Those that have been idle for longer than they live, as far as is known."""
        return [
            id
            for id, entry in self._known.items()
            if entry.ttl and entry.updated and now - entry.updated > timedelta(seconds=entry.ttl)
        ]
