"""What the state file's tests share: a clock, a disk that can be held and can fail, and files' bytes."""

import asyncio
import os
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import structs

from daemon.protocol.records import Record, draft
from daemon.statefile.writer import stored

NOW = datetime(2026, 3, 4, 5, 6, 7, 891_000, UTC)


class Clock:
    """A second later at each look."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


class Disk:
    """A sync that counts its calls, can be held, and fails with `error` while there is one."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: OSError | None = None
        self._go = threading.Event()
        self._go.set()
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def __call__(self, fd: int) -> None:
        self.calls += 1
        if self._waiting is not None:
            loop, begun = self._waiting
            loop.call_soon_threadsafe(begun.set)
        assert self._go.wait(30), "nobody let the disk go"
        if self.error is not None:
            raise self.error
        os.fdatasync(fd)

    def hold(self) -> asyncio.Event:
        """Hold every sync from now on; the event is set when one has begun."""
        begun = asyncio.Event()
        self._waiting = asyncio.get_running_loop(), begun
        self._go.clear()
        return begun

    def let_go(self) -> None:
        self._go.set()


def some(count: int = 3) -> list[Record]:
    """Drafts of a small session's first records."""
    more = [draft("message", f"line {k}\nand more", via="test") for k in range(3, count + 1)]
    return [draft("start"), draft("config", b'{"model":"rehearsal/tour"}', "application/json"), *more][:count]


def pieces(drafts: Sequence[Record], first: int = 1) -> list[bytes]:
    """The bytes of each of these records in a file, the same each time."""
    named = [
        Record(structs.replace(each.header, id=each.id or f"{n:016x}"), each.body)
        for n, each in enumerate(drafts, first)
    ]
    return stored(named, first, NOW)[1]
