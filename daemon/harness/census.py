"""Which sessions count against a cap on their number, and which have been idle past their time to live.

It knows the sessions that were made on a surface with a cap and those with `limits.ttl`; a session's own words, told by
`saw`, keep it up to date. Whether one has expired is decided again at the moment it is written.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from daemon.protocol import api, records
from daemon.protocol.records import Config

OVER = frozenset({"ended", "expired"})
GONE = OVER | {"damaged"}  # that one can be neither used nor ended, so it must not hold a place for ever


class _Entry(Struct, frozen=True):
    surface: str
    ttl: float
    updated: datetime | None


class Census:
    """The fold of all sessions' Infos."""

    def __init__(self) -> None:
        self._known: dict[str, _Entry] = {}
        self._counts: Counter[str] = Counter()  # by surface; with the places of creates that are under way
        self._said: set[str] = set()  # told of while the sessions of the start are counted
        self.complete = asyncio.Event()  # every session that there was at the start has been seen

    def saw(self, info: api.Info) -> None:
        """What stands about a session now."""
        if not self.complete.is_set():
            self._said.add(info.id)
        self._keep(info.id, None if info.status in GONE else _entry(info))

    def found(self, info: api.Info) -> None:
        """What stood about a session when the sessions of the start were listed; what was said since counts."""
        if info.id not in self._said:
            self.saw(info)

    def counted(self) -> None:
        """Every session of the start was found."""
        self._said.clear()
        self.complete.set()

    def made(self, id: str, config: Config, now: datetime) -> None:
        """A session was made, not as a copy."""
        if not self.complete.is_set():
            self._said.add(id)
        self._keep(id, _Entry(config.surface, config.limits.ttl, now))

    def forget(self, id: str) -> None:
        """There is no such session any more."""
        self._keep(id, None)

    def count(self, surface: str) -> int:
        """Sessions of a surface that are neither ended nor expired, with those under way."""
        return self._counts[surface]

    def take(self, surface: str, most: int) -> bool:
        """Whether there is a place for one more among `most`, 0 for no cap; it is then held until `give`."""
        if most and self._counts[surface] >= most:
            return False
        self._counts[surface] += 1
        return True

    def give(self, surface: str) -> None:
        """The create has ended: its session is known by now, or there is none."""
        self._counts[surface] -= 1

    def idle(self, now: datetime) -> Iterable[str]:
        """Those that have been idle for longer than they live, as far as is known."""
        return [
            id
            for id, entry in self._known.items()
            if entry.ttl and entry.updated and (now - entry.updated).total_seconds() > entry.ttl
        ]

    def _keep(self, id: str, entry: _Entry | None) -> None:
        if (old := self._known.pop(id, None)) is not None:
            self._counts[old.surface] -= 1
        if entry is not None and (entry.surface or entry.ttl):
            self._known[id] = entry
            self._counts[entry.surface] += 1


def _entry(info: api.Info) -> _Entry:
    """A copy is made on the native surface, whatever its source was; it lives from its first own record on."""
    config, ttl = info.config, info.config.limits.ttl
    if info.from_ is not None:
        return _Entry("", ttl if info.n >= info.from_.n else 0, records.instant(info.updated))
    return _Entry(config.surface, ttl, records.instant(info.updated))
