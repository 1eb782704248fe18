"""One connection of a harness: frames in and out, requests by id, big transfers with a window."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, assert_never

from daemon.protocol import frames, framing
from daemon.worker import files, journal, runs
from daemon.worker.refusal import Refusal

READ_SIZE: Final = 256 << 10  # bytes taken from the socket at once
MAX_REQUESTS: Final = 1024  # reads and writes at once on one connection
BEHIND: Final = 1 << 20  # bytes not yet taken by the peer, above which live output is dropped
FILE_WAIT: Final = 60.0  # seconds for one piece of a file: a file system that hangs must not hang a call

T = TypeVar("T")

log = logging.getLogger(__name__)


class Credit:
    """How many bytes of one transfer may be on the way."""

    def __init__(self) -> None:
        self._left = frames.WINDOW
        self._more = asyncio.Event()

    def give(self, amount: int) -> None:
        self._left = min(frames.WINDOW, self._left + max(0, amount))
        self._more.set()

    async def take(self, amount: int) -> None:
        while self._left < amount:
            self._more.clear()
            await self._more.wait()
        self._left -= amount


class Upload:
    """Pieces of a file that have come and wait to be written."""

    def __init__(self) -> None:
        self.pieces: deque[tuple[bytes, bool]] = deque()
        self.waiting = 0
        self.more = asyncio.Event()
        self.over = False  # it was answered: what still comes is dropped

    def put(self, data: bytes, last: bool) -> None:
        self.pieces.append((data, last))
        self.waiting += len(data)
        self.more.set()

    async def get(self) -> tuple[bytes, bool]:
        while not self.pieces:
            self.more.clear()
            await self.more.wait()
        data, last = self.pieces.popleft()
        self.waiting -= len(data)
        return data, last


class Connection:
    """Serves one connection until it ends; `update` is called with the release a harness asks for."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        all_runs: runs.Runs,
        update: Callable[[str], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._runs = all_runs
        self._update = update
        self._credits: dict[int, Credit] = {}
        self._uploads: dict[int, Upload] = {}
        self._busy: set[int] = set()
        self._turn = asyncio.Lock()
        self._heard = 0.0
        self._tasks: asyncio.TaskGroup | None = None

    def send(self, frame: frames.ToHarness, body: bytes = b"") -> None:
        if not self._writer.is_closing():
            self._writer.write(frames.encode(frame, body))

    def send_live(self, frame: frames.Output, body: bytes) -> None:
        if self._writer.transport.get_write_buffer_size() < BEHIND:
            self.send(frame, body)

    async def serve(self, hello: frames.Hello) -> None:
        """Hello, then every frame until the peer closes, breaks the protocol or falls silent."""
        self.send(hello)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                pulse = self._tasks.create_task(self._pulse(), name="pulse")
                await self._receive()
                pulse.cancel()
                self._writer.transport.abort() if self._silent() else self._writer.close()
                raise _Over
        except* _Over:
            pass
        finally:
            self._runs.detach(self)
            self._writer.close()

    async def _receive(self) -> None:
        decoder = frames.worker_decoder()
        self._heard = asyncio.get_running_loop().time()
        try:
            while data := await self._reader.read(READ_SIZE):
                self._heard = asyncio.get_running_loop().time()
                decoder.feed(data)
                while unit := decoder.next():
                    self._take(unit[0], unit[2])
        except framing.FramingError as error:
            self._fail(0, Refusal("bad_request", f"this connection ends: {error}"))
        except OSError:
            pass  # reset, or given up: the peer will dial again

    def _silent(self) -> bool:
        return asyncio.get_running_loop().time() - self._heard >= frames.DEAD_AFTER

    async def _pulse(self) -> None:
        while not self._silent():
            await asyncio.sleep(frames.PING_AFTER / 2)
            if asyncio.get_running_loop().time() - self._heard >= frames.PING_AFTER:
                self.send(frames.Ping())
        self._writer.transport.abort()

    def _take(self, frame: frames.ToWorker, body: bytes) -> None:
        try:
            self._carry_out(frame, body)
        except Refusal as refusal:
            self._fail(getattr(frame, "id", 0), refusal)

    def _carry_out(self, frame: frames.ToWorker, body: bytes) -> None:
        match frame:
            case frames.Run():
                self._runs.run(self, frame, body)
            case frames.Attach():
                self._runs.attach(self, frame)
            case frames.Interrupt():
                known = self._runs.interrupt((frame.session, frame.call))
                self.send(frames.Done(id=frame.id), b"" if known else b"this run is not going here")
            case frames.Kill():
                self._begin(frame.id, self._kill(frame))
            case frames.Read():
                self._begin(frame.id, self._read(frame))
            case frames.Write():
                self._write(frame, body)
            case frames.Ack():
                self._runs.ack((frame.session, frame.call))
            case frames.Update():
                self._update(frame.release)
            case frames.Window():
                if credit := self._credits.get(frame.id):
                    credit.give(frame.bytes)
            case frames.Ping():
                self.send(frames.Pong())
            case frames.Pong():
                pass
            case _:
                assert_never(frame)

    def _begin(self, id: int, work: Coroutine[Any, Any, None]) -> None:
        """Start a request as a task of this connection, answered by its own frames or by an error."""
        if id in self._busy or len(self._busy) >= MAX_REQUESTS or self._tasks is None:
            work.close()
            if id in self._busy:
                raise Refusal("bad_request", f"request {id} is still being carried out: take another id")
            raise Refusal("limit", f"{MAX_REQUESTS} requests are being carried out on this connection")
        self._busy.add(id)
        self._tasks.create_task(self._guarded(id, work), name=f"request {id}")

    async def _guarded(self, id: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Refusal as refusal:
            self._fail(id, refusal)
        except ConnectionError:
            pass  # nobody is there to be answered
        except Exception:  # the one around one request: its fault must not end the others
            log.exception("request %d failed", id)
            self._fail(id, Refusal("failed", "the worker has a fault: its log keeper.log says more"))
        finally:
            self._busy.discard(id)

    def _fail(self, id: int, refusal: Refusal) -> None:
        self.send(frames.Error(id=id, code=refusal.code), refusal.message.encode("utf-8", "replace"))

    async def _kill(self, frame: frames.Kill) -> None:
        ended = await self._runs.kill(frame.session, "its environments were ended by the harness")
        lines = [f"ended: {one}" for one in ended.ended] + [f"left: {one}" for one in ended.left]
        self.send(
            frames.Done(id=frame.id),
            "\n".join(lines)[: frames.MAX_TAIL].encode("utf-8", "replace")[: frames.MAX_BODY],
        )

    async def _read(self, frame: frames.Read) -> None:
        path = files.resolve(frame.path, frame.cwd)
        reading = await limited(files.Reading, path, frame)
        credit = self._credits[frame.id] = Credit()
        try:
            last = False
            while not last:
                data, last = await limited(reading.piece)
                await credit.take(len(data))
                async with self._turn:  # transfers take turns, each waits for the socket
                    self.send(
                        frames.Bytes(
                            id=frame.id,
                            size=reading.size,
                            lines=reading.lines if last else 0,
                            end=last and reading.end,
                            last=last,
                        ),
                        data,
                    )
                    await self._writer.drain()
        finally:
            del self._credits[frame.id]
            reading.close()

    def _write(self, frame: frames.Write, body: bytes) -> None:
        upload = self._uploads.get(frame.id)
        if upload is None:
            upload = self._uploads[frame.id] = Upload()
            try:
                self._begin(frame.id, self._receive_file(frame, upload))
            except Refusal:
                upload.over = True
                if frame.last:
                    del self._uploads[frame.id]
                raise
        if not upload.over:
            upload.put(body, frame.last)
            if upload.waiting > frames.WINDOW + frames.MAX_BODY:
                raise framing.FramingError(
                    f"more than the window of {frames.WINDOW} bytes was sent of write {frame.id}"
                )
        elif frame.last:
            del self._uploads[frame.id]

    async def _receive_file(self, frame: frames.Write, upload: Upload) -> None:
        last = False
        key = (frame.session, frame.call)
        writing: files.Writing | None = None
        try:
            if frame.call and key in self._runs.journal.entries:
                result = await asyncio.to_thread(self._runs.journal.result, key)
                self.send(frames.Done(id=frame.id, size=result.size), b"it was written before")
                return
            path = files.resolve(frame.path, frame.cwd)
            writing = await limited(files.Writing, path, frame.mode, frame.expect)
            while not last:
                data, last = await upload.get()
                await limited(writing.add, data)
                if not last:
                    self.send(frames.Window(id=frame.id, bytes=len(data)))
            await limited(writing.seal)
            await asyncio.shield(asyncio.to_thread(self._commit, writing, key if frame.call else None))
            self.send(frames.Done(id=frame.id, size=writing.size))
        finally:
            last = last or any(final for _, final in upload.pieces)
            upload.over = True
            upload.pieces.clear()
            if last:
                self._uploads.pop(frame.id, None)
            if writing is not None:
                writing.drop()

    def _commit(self, writing: files.Writing, key: journal.Key | None) -> None:
        """Put the file in place; journaled around it, so that after any crash it is known whether it happened."""
        kept = self._runs.journal
        writing.check()
        if key:
            kept.begin(
                journal.Meta(
                    session=key[0],
                    call=key[1],
                    kind="write",
                    started=time.time(),
                    path=writing.path,
                    temporary=writing.temporary,
                    size=writing.size,
                )
            )
        try:
            writing.commit()
        except BaseException:
            if key:
                kept.forget(key)
            raise
        if key:
            kept.finish(key, journal.Result(ended=time.time(), exit=0, size=writing.size))


class _Over(Exception):
    """The connection has ended: its requests end with it."""


async def limited(work: Callable[..., T], *arguments: Any) -> T:
    """Do blocking work on a file in a thread, not longer than FILE_WAIT."""
    try:
        async with asyncio.timeout(FILE_WAIT):
            return await asyncio.to_thread(work, *arguments)
    except TimeoutError:
        raise Refusal("failed", f"the file system did not answer within {FILE_WAIT:.0f} s") from None
