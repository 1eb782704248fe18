"""What sessions are doing right now, read from their last records: only of those on the screen, and not too often."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from daemon.client import ApiFailure, Unreachable
from daemon.plain import line
from daemon.protocol import api
from daemon.protocol.records import Record
from daemon.view import Fold

BACK: Final = 40  # records from the end that are looked through for a call without a result
PAUSE: Final = 0.25  # seconds between two sessions that are looked at
LOOKED_AT: Final = frozenset({"stepping", "interrupted", "failed"})  # statuses that say too little


class Source(Protocol):
    """Where records are read; `daemon.client.Client` is one."""

    async def headers(self, id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]: ...

    async def records(self, id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]: ...


class Doing:
    """A sentence for each session that was looked at. `changed` is told whose is new."""

    def __init__(self, source: Source, changed: Callable[[str], None]) -> None:
        self._source = source
        self._changed = changed
        self._known: dict[str, tuple[int, str]] = {}
        self._wanted: dict[str, api.Info] = {}
        self._call = asyncio.Event()

    def of(self, info: api.Info) -> str:
        """What is known of it, empty for nothing: an older word is good for a session still at work."""
        if info.status not in LOOKED_AT:
            return ""
        n, text = self._known.get(info.id, (0, ""))
        return text if n == info.n or info.status == "stepping" else ""

    def want(self, infos: Iterable[api.Info]) -> None:
        """These are on the screen: look at those of which too little is known, and at no others."""
        self._wanted = {
            info.id: info
            for info in infos
            if info.status in LOOKED_AT and self._known.get(info.id, (0, ""))[0] != info.n
        }
        if self._wanted:
            self._call.set()

    async def run(self) -> None:
        """Look at what is wanted, for ever."""
        while True:
            await self._call.wait()
            self._call.clear()
            while self._wanted:
                id, info = next(iter(self._wanted.items()))
                del self._wanted[id]
                try:
                    text = await self._look(info)
                except (ApiFailure, Unreachable):
                    text = ""
                self._known[id] = (info.n, text)
                self._changed(id)
                await asyncio.sleep(PAUSE)

    async def _look(self, info: api.Info) -> str:
        found = await self._source.headers(info.id, max(0, info.n - BACK), BACK)
        n = telling(found)
        if not n:
            return at_work(found) if info.status == "stepping" else ""
        read = await self._source.records(info.id, n - 1, 1)
        return said(read[0]) if read else ""


def telling(found: Sequence[Record]) -> int:
    """The number of the record that says most: the error at the end, or the last call that has no result."""
    if found and found[-1].kind == "error":
        return found[-1].n
    done = {record.header.for_ for record in found if record.kind == "result"}
    waiting = [record.n for record in found if record.kind == "call" and record.id not in done]
    return waiting[-1] if waiting else 0


def at_work(found: Sequence[Record]) -> str:
    """What a session does that has no call open."""
    kind = found[-1].kind if found else ""
    return {"thinking": "thinks", "text": "answers", "call": "calls"}.get(kind, "asks the model")


def said(record: Record) -> str:
    """A call or an error in a line."""
    item = Fold().add(record)
    first = next((row for row in item.body.split("\n") if row.strip()), "")
    if item.kind == "call":
        return line(f"{item.title} · {first}" if first else item.title)
    return line(first or item.title.partition(" via ")[0])
