"""The link: dials the harness, splices it with the keeper, and dials again for ever; it holds nothing to be lost."""

import asyncio
import contextlib
import logging
import random
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import msgspec

from daemon.protocol import dialing, frames

FIRST_WAIT: Final = 0.2  # seconds until the harness is dialled again; doubled each time
LONGEST_WAIT: Final = 5.0
HELD: Final = (
    LONGEST_WAIT  # seconds after which a connection counts as one: two links of one name do not race
)
PIECE: Final = 64 << 10  # bytes taken from one side at once; a few of these are all that is ever held
FIRST_LINE: Final = max(frames.MAX_HEADER, dialing.MAX_LINE) + 1  # bytes of the harness's first line
CLOSE_WAIT: Final = 2.0  # seconds for what was written last to be taken up
STUCK: Final = (
    2 * frames.DEAD_AFTER
)  # seconds in which the harness has to take up one piece: what holds less is dead

Stream = tuple[StreamReader, StreamWriter]
log = logging.getLogger(__name__)


class Gone(Exception):
    """A side cannot be reached, or its connection ended; the message says why."""


class Redial:
    """How long to wait before the next try: FIRST_WAIT, doubled up to LONGEST_WAIT, each half to whole of it.

    `random` gives a number from 0 to 1.
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._next = FIRST_WAIT

    def wait(self) -> float:
        """Seconds until the next try."""
        whole, self._next = self._next, min(2 * self._next, LONGEST_WAIT)
        return whole * (0.5 + self._random() / 2)

    def held(self) -> None:
        """A connection has held: the next loss is a new one."""
        self._next = FIRST_WAIT


class Link:
    """Splices one harness with one keeper. `harness` and `keeper` open a stream each, or raise Gone.

    `greeting` gives what the harness is told before the first frame. `release` is this link's own: an update to another
    one goes to `update`, which is called with None where a harness asks for none; one to its own is for the keeper.
    `tell` is called with what becomes of the connection: None when it is made, why when it ended or could not be made.
    `now` and `sleep` are in seconds.
    """

    def __init__(
        self,
        *,
        harness: Callable[[], Awaitable[Stream]],
        keeper: Callable[[], Awaitable[Stream]],
        release: str,
        greeting: Callable[[], bytes] = bytes,
        update: Callable[[frames.Update | None], None] = lambda _: None,
        tell: Callable[[str | None], Awaitable[None]],
        random: Callable[[], float] = random.random,
        now: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._harness = harness
        self._keeper = keeper
        self._greeting = greeting
        self._release = release
        self._update = update
        self._tell = tell
        self._redial = Redial(random)
        self._now = now
        self._sleep = sleep

    async def run(self) -> NoReturn:
        """Be connected, for ever."""
        now = self._now or asyncio.get_running_loop().time
        while True:
            since = None
            try:
                async with contextlib.AsyncExitStack() as streams:
                    keeper = await _opened(streams, self._keeper)
                    harness = await _opened(streams, self._harness)
                    harness[1].write(self._greeting())
                    since = now()
                    await self._tell(None)
                    await splice(harness, keeper, self._taken, now)
            except Gone as gone:
                await self._tell(str(gone))
            if since is not None and now() - since >= HELD:
                self._redial.held()
            await self._sleep(self._redial.wait())

    def _taken(self, update: frames.Update | None) -> bool:
        ours = update is None or update.release != self._release
        self._update(update if ours else None)
        return ours and update is not None


async def _opened(streams: contextlib.AsyncExitStack, open: Callable[[], Awaitable[Stream]]) -> Stream:
    reader, writer = await open()
    streams.push_async_callback(_close, writer)
    return reader, writer


async def _close(writer: StreamWriter) -> None:
    """Close a stream once what was written is out, or soon."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_WAIT):
            await writer.wait_closed()
    writer.transport.abort()


class _Heard:
    """When the harness was last heard, by the clock `now`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.note()

    def note(self) -> None:
        self._at = self._now()

    @property
    def silent(self) -> float:
        """Seconds since then."""
        return self._now() - self._at


async def splice(
    harness: Stream, keeper: Stream, taken: Callable[[frames.Update | None], bool], now: Callable[[], float]
) -> NoReturn:
    """Carry bytes both ways until one side ends. Raises Gone, which says which.

    `taken` gets an update that the harness begins with, or None; it says whether that is not for the keeper.
    """
    heard = _Heard(now)
    async with asyncio.TaskGroup() as group:
        up = group.create_task(_up(keeper[0], harness[1], heard), name="keeper to harness")
        down = group.create_task(_down(harness[0], keeper[1], taken, heard), name="harness to keeper")
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        ended = down if down.done() else up
        for way in {up, down} - {ended}:
            way.cancel()
    raise Gone(ended.result())


async def _up(keeper: StreamReader, harness: StreamWriter, heard: _Heard) -> str:
    """A keeper gives a silent harness up by itself, and has no way to say so here but to close."""
    broke = await _carry(keeper, harness, "the keeper", "the harness", STUCK)
    if not broke and heard.silent >= frames.DEAD_AFTER:
        return f"the harness was silent for {heard.silent:.0f} s"
    return broke or "the keeper closed its connection"


async def _down(
    harness: StreamReader,
    keeper: StreamWriter,
    taken: Callable[[frames.Update | None], bool],
    heard: _Heard,
) -> str:
    """The beginning is looked at: it may be a refusal, or an update, which is nothing for the keeper."""
    try:
        line = await first_line(harness)
        update = update_of(line)
        if line and taken(update) and update is not None:
            await harness.readexactly(1)  # the newline after its empty body
            if update.refused:
                return f"the harness refused it: {update.refused}"
            line = b""
    except asyncio.IncompleteReadError:
        return "the connection to the harness broke within an update"
    except OSError as error:
        return f"the connection to the harness broke: {error.strerror or error}"
    except Gone as gone:
        return str(gone)
    heard.note()
    keeper.write(line)
    if broke := await _carry(harness, keeper, "the harness", "the keeper", None, heard.note):
        return broke
    return "the harness closed the connection"


async def first_line(harness: StreamReader) -> bytes:
    """What a harness says first, a part of it where it closes meanwhile. Raises Gone for a refusal, and OSError."""
    try:
        line = await harness.readuntil(b"\n")
    except asyncio.IncompleteReadError as ended:
        line = ended.partial
    except asyncio.LimitOverrunError:
        raise Gone("what answers is no harness: its first line does not end") from None
    if line and not dialing.is_frame(line):
        raise Gone(f"the harness refused it: {dialing.reason_of(line)}")
    return line


def update_of(line: bytes) -> frames.Update | None:
    """The update that a line is the header of, None for any other."""
    try:
        return msgspec.json.decode(line, type=frames.Update)
    except msgspec.MsgspecError:
        return None


async def _carry(
    source: StreamReader,
    sink: StreamWriter,
    of: str,
    to: str,
    within: float | None,
    came: Callable[[], None] = lambda: None,
) -> str:
    """Carry bytes until the source ends, empty then; what broke otherwise. `came` is called at each piece.

    `within`: seconds in which the sink has to take up one piece.
    """
    side = of
    try:
        while data := await source.read(PIECE):
            came()
            side = to
            sink.write(data)
            try:
                async with asyncio.timeout(within):
                    await sink.drain()
            except TimeoutError as error:
                if error.errno is not None:  # the system's own, for a connection
                    raise
                return f"{to} took nothing up for {within:.0f} s"
            side = of
    except OSError as error:
        return f"the connection to {side} broke: {error.strerror or error}"
    return ""
