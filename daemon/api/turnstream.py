"""A turn as a stream of frames, live or from any record on; it ends with exactly one session.ended."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from daemon.api.frames import Frames
from daemon.api.gate import Caller
from daemon.api.needs import Harness, Live, Log
from daemon.api.stream import Limits, Stream
from daemon.harness.errors import HarnessError
from daemon.protocol import api, records
from daemon.protocol.agentserver import Reason
from daemon.statefile.errors import StateFileError

BATCH: Final = 256  # records read in one go
BYTES: Final = 1 << 20  # of them, unless one alone is more
STEP: Final = b'"kind":"step"'
SAYING: Final = frozenset({"message", "step", "error", "end"})  # how a turn stands
SOON: Final = 0.2  # seconds until a session that nobody steps yet is looked at again
RESTING: Final[dict[str, Reason | None]] = {  # what a session rests as, and what that says of its turn
    "closed": None,
    "failed": None,
    "ended": "cancelled",
    "expired": "cancelled",
    "damaged": "error",
}
WAITING: Final = frozenset({"open", "interrupted"})  # for a step

UNTAKEN: Final = (
    "nobody steps this session any more, since what came next could not be recorded: make room in the data folder, "
    "then retry it"
)


class TurnStream(Stream):
    """The frames of the records after `cursor`, until the session rests and all of it is told."""

    def __init__(
        self,
        request: web.Request,
        caller: Caller,
        limits: Limits,
        harness: Harness,
        log: Log,
        info: api.Info,
        live: Live | None,
        cursor: int,
        warnings: Sequence[str],
        traceparent: str,
    ) -> None:
        super().__init__(request, caller, limits, {"session": log.id})
        self._harness = harness
        self._log = log
        self._info = info
        self._live = live
        self._cursor = cursor
        self._warnings = warnings
        self._traceparent = traceparent
        self._frames: Frames | None = None
        self._stuck = False
        self.told_end = False

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run beside the stream."""
        live = [] if self._live is None else [self._watch_live(self._live)]
        return [self.watch_records(self._log), self._watch_rest(), *live]

    async def write(self) -> None:
        try:
            if self._frames is None:
                frames = await self._begin()
                await self.send(frames.started(self._info, self._warnings))
                self._frames = frames
            while True:
                last = self._log.durable_n  # what streamed before these is there by now, and goes out before
                until = await self._write_live(self._frames, last)
                if self._cursor >= last or not await self._write_records(self._frames, until):
                    break
            await self._write_end(self._frames)
        except (StateFileError, HarnessError) as error:
            self.lose(error)

    async def last(self) -> None:
        """The end of a stream whose turn goes on without it."""
        if self.told_end:
            return
        begun = b""
        if (frames := self._frames) is None:
            frames = Frames(self._log.id, traceparent=self._traceparent, began=_now())
            begun = frames.started(self._info, self._warnings)
        with suppress(HarnessError):
            self._info = await self._harness.info(self._log.id)
        self.told_end = True
        await self.send(begun + frames.left(self._info, _now()))

    async def _begin(self) -> Frames:
        """The fold as it stands at the cursor."""
        if not self._cursor:
            return Frames(self._log.id, traceparent=self._traceparent, began=_now())
        lines = await self._log.headers(0, self._cursor)
        last = _header(lines, len(lines))
        frames = Frames(self._log.id, lines.count(STEP), last.step, self._traceparent, _now())
        end = len(lines)
        while end and last.kind not in SAYING:
            end = lines.rfind(b"\n", 0, end - 1) + 1
            last = _header(lines, end) if end else last
        if end:
            for record in await self._log.read(last.n, last.n):
                frames.passed(record)
        return frames

    async def _write_live(self, frames: Frames, last: int) -> int:
        """Tell what streams at the cursor; up to which record to go on, of those up to `last`."""
        if self._live is None:
            return last
        pieces, until = self._live.take(self._cursor), self._live.until(self._cursor, last)
        if told := b"".join(frames.live(piece, _now()) for piece in pieces):
            await self.send(told)
        return until

    async def _write_records(self, frames: Frames, last: int) -> bool:
        """Tell those up to `last`; False where they are not there."""
        while self._cursor < last:
            count = min(last - self._cursor, BATCH)
            while count > 1:
                start, end = self._log.span(self._cursor, count)
                if end - start <= BYTES:
                    break
                count //= 2
            found = await self._log.read(self._cursor + 1, self._cursor + count)
            if not found:
                return False  # cut off meanwhile: who watches the records says why
            self._cursor += len(found)
            if told := frames.of(found):
                await self.send(told)
        return True

    async def _write_end(self, frames: Frames) -> None:
        self._info = info = await self._harness.info(self._log.id)
        if info.n > self._cursor:
            return
        if rests(info):
            self.told_end = self.over = True
            await self.send(frames.ended(info, RESTING.get(info.status)))
        elif self._stuck and info.status in WAITING:
            self.told_end = self.over = True
            await self.send(frames.lost(info, UNTAKEN, "no_space", _now()))

    async def _watch_rest(self) -> None:
        """Wake the stream each time the session rests; it is the stream that looks whether that is the end.

        One that waits for a step is stepped at once, or as soon as a start comes to it; where nobody does, it is stuck.
        """
        n = -1
        while not self.over:
            try:
                await self._harness.rested(self._log.id)
                info = await self._harness.info(self._log.id)
            except HarnessError:
                self.over = True
                self.woken.set()
                return
            self._stuck = self._harness.resumed and info.status in WAITING and info.n == n
            n = info.n if self._harness.resumed else -1
            self.woken.set()
            await asyncio.sleep(SOON)

    async def _watch_live(self, live: Live) -> None:
        while True:
            await live.wait()
            self.woken.set()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _header(lines: bytes, end: int) -> records.Header:
    """Of the line that ends at `end`."""
    return records.parse_header(lines[lines.rfind(b"\n", 0, end - 1) + 1 : end - 1])


def rests(info: api.Info) -> bool:
    """Whether nothing of this session is under way, nor will be before somebody says something."""
    waits = info.from_ is not None and info.n < info.from_.n  # a copy, for what it was made for
    return info.status in RESTING or (waits and info.status in WAITING)
