"""Files over a connection: piece by piece, with a window, so that neither side holds a whole one."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from daemon.protocol import frames, framing
from daemon.worker import files, runs
from daemon.worker.access import EVERYWHERE, Access
from daemon.worker.patience import Used, limited
from daemon.worker.reading import Reading
from daemon.worker.refusal import Refusal
from daemon.worker.writes import Writes


class Credit:
    """How many bytes of one read may be on the way."""

    def __init__(self) -> None:
        self._left = frames.WINDOW
        self._more = asyncio.Event()

    def give(self, amount: int) -> None:
        """The peer has taken up `amount` more."""
        self._left = min(frames.WINDOW, self._left + max(0, amount))
        self._more.set()

    async def take(self, amount: int) -> None:
        """Wait until `amount` may go out."""
        while self._left < amount:
            self._more.clear()
            await self._more.wait()
        self._left -= amount


class Upload:
    """Pieces of one write that have come and wait to be taken up."""

    def __init__(self) -> None:
        self._over = False
        self._pieces: deque[tuple[bytes, bool]] = deque()
        self._waiting = 0
        self._more = asyncio.Event()

    def put(self, data: bytes, last: bool) -> None:
        """Take a piece. Raises FramingError for more than the window."""
        if self._over:
            return
        self._pieces.append((data, last))
        self._waiting += len(data)
        if self._waiting > frames.WINDOW + frames.MAX_BODY:
            raise framing.FramingError(f"more of a write than its window of {frames.WINDOW} bytes")
        self._more.set()

    async def get(self) -> tuple[bytes, bool]:
        """The next piece, and whether it is the last."""
        while not self._pieces:
            self._more.clear()
            await self._more.wait()
        data, last = self._pieces.popleft()
        self._waiting -= len(data)
        return data, last

    def close(self) -> None:
        """It was answered: what has come of it and what still comes is dropped."""
        self._over = True
        self._pieces.clear()
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Bytes that wait. No `__len__`: one of which nothing waits is still there."""
        return self._waiting


async def send_file(
    frame: frames.Read,
    credit: Credit,
    room: AbstractAsyncContextManager[object],
    send: Callable[[frames.Bytes, bytes], Awaitable[None]],
    access: Access = EVERYWHERE,
) -> None:
    """Answer a `read` with its pieces, each of which is in memory within `room`. Raises Refusal."""
    reading = await limited(Reading, frame, access, undo=Reading.close)
    used = Used(reading.close)
    try:
        last = False
        while not last:
            await credit.take(frames.PIECE)
            async with room:
                data, last = await used.do(reading.piece)
                credit.give(frames.PIECE - len(data))
                answer = frames.Bytes(
                    id=frame.id,
                    size=reading.size,
                    lines=reading.lines if last else 0,
                    end=last and reading.end,
                    last=last,
                )
                await send(answer, data)
    finally:
        await used.end()


async def receive_file(
    frame: frames.Write,
    upload: Upload,
    writes: Writes,
    taken: Callable[[int], None],
    access: Access = EVERYWHERE,
) -> int:
    """Carry out a `write` of which `frame` is the first piece; the bytes written. Raises Refusal.

    `taken` is told of every piece that was taken up. Cancelled before the last one, it leaves the file as it was.
    """
    if bool(frame.session) != bool(frame.call):
        raise Refusal("bad_request", "`session` and `call` go together: give both, or neither")
    if max(len(frame.session), len(frame.call)) > runs.MAX_ID:
        raise Refusal("bad_request", f"`session` and `call` have at most {runs.MAX_ID} characters each")
    if frame.undoes and not frame.remove:
        raise Refusal(
            "bad_request", "`undoes` goes with `remove`: only a file that was made can be taken back"
        )
    key = (frame.session, frame.call) if frame.call else None
    if (before := await writes.before(key)) is not None:
        return before
    writing: files.Writing | files.Appending
    if frame.append:
        writing = await limited(files.Appending, frame, access, undo=files.Appending.drop)
    else:
        tidy = await writes.made(frame.undoes) if frame.undoes else ()
        writing = await limited(files.Writing, frame, access, undo=files.Writing.drop)
        writing.tidy = tidy
    used = Used(writing.drop)
    try:
        last = False
        while not last:
            data, last = await upload.get()
            await used.do(writing.add, data)
            if not last:
                taken(len(data))
        await used.do(writing.seal)
    except BaseException:
        await used.end()
        raise
    return await writes.commit(writing, key)
