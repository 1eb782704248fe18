"""One connection of a harness: frames in and out, requests by id, silence noticed."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final, assert_never

from daemon.protocol import frames, framing
from daemon.worker import runs, transfer
from daemon.worker.access import EVERYWHERE, Access
from daemon.worker.reaping import Ended
from daemon.worker.refusal import Refusal
from daemon.worker.writes import Writes

READ_SIZE: Final = 256 << 10  # bytes taken from the socket at once, a piece of a transfer
MAX_REQUESTS: Final = 1024  # reads, writes and kills at once on one connection
MAX_PIECES: Final = (
    64  # of files that are read, in memory at once: as many as there are threads that read them
)
MAX_DROPPED: Final = (
    16 << 10
)  # writes that are over, of which more pieces are to come: a harness gives each of them up
BEHIND: Final = 1 << 20  # bytes not yet taken by the peer, above which live output is dropped
BACKLOG: Final = 16 << 20  # the same, above which the peer is given up: it asks and does not read

log = logging.getLogger(__name__)


class Connection(asyncio.BufferedProtocol):
    """Serves one connection until it ends.

    `made` is called once it is there, and calls `serve` or `close`. `update` is called with the release a harness
    asks for, `access` gives what holds for a file that is asked for.
    """

    def __init__(
        self,
        made: Callable[["Connection"], None],
        all_runs: runs.Runs,
        writes: Writes,
        update: Callable[[str], None],
        access: Callable[[], Access] = lambda: EVERYWHERE,
    ) -> None:
        self._made = made
        self._runs = all_runs
        self._writes = writes
        self._update = update
        self._access = access
        self._transport: asyncio.Transport
        self._buffer = memoryview(bytearray(READ_SIZE))
        self._decoder = frames.worker_decoder()
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._credits: dict[int, transfer.Credit] = {}
        self._uploads: dict[int, transfer.Upload] = {}
        self._transfers: set[int] = set()  # the requests that are reads or writes: these can be given up
        self._dropped: set[int] = (
            set()
        )  # writes that are over, or never began: what still comes of them is dropped
        self._pieces = asyncio.Semaphore(MAX_PIECES)
        self._turn = asyncio.Lock()  # fair: transfers take turns, each waits for the socket
        self._room = asyncio.Event()  # the peer takes what is sent
        self._room.set()
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def socket(self) -> socket.socket:
        found: socket.socket = self._transport.get_extra_info("socket")
        return found

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.pause_reading()
        self._made(self)

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            log.info("a connection broke: %s", error)
        self._room.set()
        self._over.set()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._over.is_set():
            return
        self._heard = self._loop.time()
        self._decoder.feed(self._buffer[:nbytes])
        # None before it is served: asyncio before Python 3.11.4 reads although reading is paused from the beginning.
        if self._tasks is not None:
            self._take_all()

    def _take_all(self) -> None:
        try:
            while (unit := self._decoder.next()) and not self._over.is_set():
                self._take(unit[0], unit[2])
        except framing.FramingError as error:
            self._break_off(str(error))

    def _break_off(self, why: str) -> None:
        if self._over.is_set():
            return
        log.warning("a connection ends: %s", why)
        self._fail(0, Refusal("bad_request", f"this connection ends: {why}"))
        self._over.set()

    def eof_received(self) -> None:
        self._over.set()

    def send(self, frame: frames.ToHarness, body: bytes = b"") -> None:
        """Write a frame; on a connection that has ended it goes nowhere."""
        if self._transport.is_closing():
            return
        self._transport.write(frames.encode(frame, body))
        if self._transport.get_write_buffer_size() > BACKLOG:
            log.warning("a peer does not read what it asks for: its connection ends")
            self._transport.abort()

    @property
    def has_more(self) -> bool:
        """Whether more of what it sent waits to be taken up."""
        return self._decoder.pending > 0

    def send_live(self, frame: frames.Output, body: bytes) -> None:
        """Write live output, unless the peer is behind."""
        if self._transport.get_write_buffer_size() < BEHIND:
            self.send(frame, body)

    def close(self) -> None:
        """End it once what was sent is taken."""
        self._transport.close()

    async def serve(self, hello: frames.Hello) -> None:
        """Hello, then every frame until the peer closes, breaks the protocol or falls silent."""
        self.send(hello)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                pulse = self._tasks.create_task(self._pulse(), name="pulse")
                self._take_all()
                if not self._transport.is_closing():
                    self._transport.resume_reading()
                await self._over.wait()
                for task in (pulse, *self._requests.values()):
                    task.cancel()
        finally:
            self._over.set()
            self._runs.detach(self)
            self.close()

    async def _pulse(self) -> None:
        """Ping a silent peer, give up a dead one."""
        now = self._loop.time
        pinged = self._heard = now()
        while (silent := now() - self._heard) < frames.DEAD_AFTER:
            if silent >= frames.PING_AFTER and now() - pinged >= frames.PING_AFTER:
                self.send(frames.Ping())
                pinged = now()
            await asyncio.sleep(frames.PING_AFTER / 2)
        log.info("a connection was silent for %d s", frames.DEAD_AFTER)
        self._transport.abort()

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
                if self._writes.going((frame.session, frame.call)):
                    self._begin(frame.id, self._attach_to_write(frame))
                else:
                    self._runs.attach(self, frame)
            case frames.Interrupt():
                known = self._runs.interrupt((frame.session, frame.call))
                self.send(frames.Done(id=frame.id), b"" if known else b"this run is not going here")
            case frames.Kill():
                self._begin(frame.id, self._kill(frame))
            case frames.Read():
                self._read(frame)
            case frames.Write():
                self._write(frame, body)
            case frames.Ack():
                self._runs.ack((frame.session, frame.call))
            case frames.Update():
                self._update(frame.release)
            case frames.Window():
                self._window(frame)
            case frames.Ping():
                self.send(frames.Pong())
            case frames.Pong():
                pass
            case _:
                assert_never(frame)

    def _begin(self, id: int, work: Coroutine[Any, Any, None]) -> None:
        """Start a request as a task of this connection, answered by its own frames or by an error."""
        if id in self._requests or len(self._requests) >= MAX_REQUESTS or self._tasks is None:
            work.close()
            if id in self._requests:
                raise Refusal("bad_request", f"request {id} is still being carried out: take another id")
            raise Refusal("limit", f"{MAX_REQUESTS} requests are being carried out on this connection")
        self._requests[id] = task = self._tasks.create_task(self._guarded(id, work), name=f"request {id}")
        task.add_done_callback(lambda _: self._ended(id, work))

    def _ended(self, id: int, work: Coroutine[Any, Any, None]) -> None:
        """Forget a request, also one that was given up before it began."""
        work.close()
        del self._requests[id]
        self._transfers.discard(id)
        self._credits.pop(id, None)
        if self._uploads.pop(id, None) is not None:
            self._drop(id)

    def _drop(self, id: int) -> None:
        """Begin no write with a later piece of one that is over, up to its last one or until it is given up."""
        self._dropped.add(id)
        if len(self._dropped) > MAX_DROPPED:
            self._break_off(
                f"{MAX_DROPPED} writes are over, and neither given up nor sent to their last piece"
            )

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

    def _fail(self, id: int, refusal: Refusal) -> None:
        told = frames.Error(id=id, code=refusal.code, path=refusal.path)
        self.send(told, refusal.message.encode("utf-8", "replace"))

    async def _attach_to_write(self, frame: frames.Attach) -> None:
        with contextlib.suppress(Refusal):  # then it did not happen
            await self._writes.before((frame.session, frame.call))
        self._runs.attach(self, frame)

    async def _kill(self, frame: frames.Kill) -> None:
        if not frame.session:
            raise Refusal("bad_request", "`session` is empty: name the session whose environments are to end")
        why = frame.reason[: runs.MAX_NOTE] or "its environments were ended by the harness"
        ended = await self._runs.kill(frame.session, why)
        self.send(frames.Done(id=frame.id), sentence(ended).encode("utf-8", "replace")[: frames.MAX_TAIL])

    def _read(self, frame: frames.Read) -> None:
        credit = transfer.Credit()
        self._begin(
            frame.id, transfer.send_file(frame, credit, self._pieces, self._send_piece, self._access())
        )
        self._credits[frame.id] = credit
        self._transfers.add(frame.id)

    async def _send_piece(self, frame: frames.Bytes, body: bytes) -> None:
        async with self._turn:
            self.send(frame, body)
            await self._room.wait()
            if self._over.is_set():
                raise ConnectionResetError

    def _write(self, frame: frames.Write, body: bytes) -> None:
        if frame.id in self._dropped:
            if frame.last:
                self._dropped.discard(frame.id)
            return
        upload = self._uploads.get(frame.id)
        if upload is None:
            upload = transfer.Upload()
            try:
                self._begin(frame.id, self._receive_file(frame, upload))
            except Refusal:
                if not frame.last:
                    self._drop(frame.id)
                raise
            self._transfers.add(frame.id)
            if not frame.last:
                self._uploads[frame.id] = upload
        elif frame.last:
            del self._uploads[frame.id]
        upload.put(body, frame.last)

    async def _receive_file(self, frame: frames.Write, upload: transfer.Upload) -> None:
        def taken(size: int) -> None:
            self.send(frames.Window(id=frame.id, bytes=size))

        try:
            size = await transfer.receive_file(frame, upload, self._writes, taken, self._access())
        finally:
            upload.close()
        self.send(frames.Done(id=frame.id, size=size))

    def _window(self, frame: frames.Window) -> None:
        """More of a read may go out; a window of nothing says that the peer has given up that transfer."""
        if frame.bytes > 0:
            if credit := self._credits.get(frame.id):
                credit.give(frame.bytes)
            return
        if frame.id in self._dropped:
            self._dropped.discard(frame.id)
        elif frame.id in self._transfers:
            self._uploads.pop(frame.id, None)
            self._requests[frame.id].cancel()


def sentence(ended: Ended) -> str:
    """What a `kill` did, in words."""
    words = [f"ended {len(ended.ended)} processes" if len(ended.ended) != 1 else "ended 1 process"]
    if ended.ended:
        words.append(": " + ", ".join(map(str, ended.ended)))
    words.append("; none is left" if not ended.left else f"; left: {', '.join(map(str, ended.left))}")
    return "".join(words)
