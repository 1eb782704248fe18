"""One request and its answers on one connection: a run that is waited for, a file that is read or written."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Final, Literal

from msgspec import Struct

from daemon.connection import Connection
from daemon.protocol import frames
from daemon.protocol.framing import FramingError
from daemon.requests import Lost, Request

GRANT: Final = frames.WINDOW // 4  # bytes taken up between two window frames: few frames, never a stall


class Refused(Exception):
    """The worker refused or could not; nothing was run. The message is its sentence; `path` as in frames.Error."""

    def __init__(self, code: frames.ErrorCode, message: str, path: str = "") -> None:
        super().__init__(message)
        self.code: Final = code
        self.message: Final = message
        self.path: Final = path


class Output(Struct, frozen=True):
    """How a run ended; the fields are those of frames.Result, `text` its body: the tail of what was printed."""

    text: bytes = b""
    exit: int | None = None
    seconds: float = 0.0
    truncated: int = 0
    full_output: str = ""
    reset: str = ""
    unknown: str = ""
    stopped: Literal["", "interrupt", "timeout"] = ""
    notes: tuple[str, ...] = ()
    images: tuple[frames.Image, ...] = ()


class Content(Struct, frozen=True):
    """A file or a part of it.

    `size`: bytes of the whole file; `lines`: how many `data` holds, where lines were asked for; `end`: nothing
    follows `data` in the file.
    """

    data: bytes
    size: int
    lines: int
    end: bool


def encode(frame: frames.ToWorker, body: bytes = b"") -> bytes:
    """A frame's bytes. Raises Refused for one that is too big."""
    try:
        return frames.encode(frame, body)
    except FramingError as error:
        raise Refused("limit", str(error)) from error


def check(frame: frames.ToWorker, body: bytes = b"") -> None:
    """Raise Refused for a frame that is too big, or whose values no worker takes: it would end all calls there."""
    decoder = frames.worker_decoder()
    try:
        data = encode(frame, body)
        decoder.feed(data[: -len(body) - 1])
        decoder.next()
    except (FramingError, UnicodeEncodeError) as error:
        raise Refused("bad_request", str(error)) from error


def refusal(frame: frames.Error, body: bytes) -> Refused:
    """What the worker's error says."""
    said = body[: frames.MAX_REASON].decode("utf-8", "replace")
    return Refused(frame.code, said or frame.code, frame.path)


async def outcome(
    connection: Connection, request: Request, on_output: Callable[[bytes], None] | None
) -> Output | frames.Unknown:
    """How the run that was asked for ended, or that it never started. Raises Lost and Refused."""
    while True:
        frame, body = await request.next()
        match frame:
            case frames.Output():
                if on_output is not None and body:
                    on_output(body)
            case frames.Going():
                if on_output is not None:
                    on_output(b"")  # it was asked again: what follows may have come before
            case frames.Unknown():
                return frame
            case frames.Result():
                return Output(
                    text=body[
                        -frames.MAX_TAIL :
                    ],  # a worker that brings more is not to fill a model's context
                    exit=frame.exit,
                    seconds=frame.seconds,
                    truncated=frame.truncated,
                    full_output=frame.full_output,
                    reset=frame.reset,
                    unknown=frame.unknown,
                    stopped=frame.stopped,
                    notes=frame.notes,
                    images=frame.images,
                )
            case frames.Error():
                raise refusal(frame, body)
            case _:
                connection.break_off("a run", frame)


async def read(connection: Connection, make: Callable[[int], frames.Read], max_bytes: int) -> Content:
    """Carry out one read (`make` gets the request's id). Raises Lost, and Refused, also for over `max_bytes`."""
    with connection.request() as request:
        wanted = make(request.id)
        try:
            await connection.send(encode(wanted))
            return await _collect(connection, request, wanted, max_bytes)
        except asyncio.CancelledError:
            connection.post(_give_up(request))
            raise


async def _collect(connection: Connection, request: Request, wanted: frames.Read, max_bytes: int) -> Content:
    data = bytearray()  # not the pieces: many that hold a byte each would take much memory
    granted = 0
    while True:
        frame, body = await request.next()
        match frame:
            case frames.Bytes():
                pass
            case frames.Error():
                raise refusal(frame, body)
            case _:
                connection.break_off("a read", frame)
        if not body and not frame.last:
            connection.fault("it answered a read with an empty piece that is not the last")
        data += body
        held = len(data)
        if max(held, _coming(wanted, frame)) > max_bytes:
            if not frame.last:
                connection.post(_give_up(request))
            raise Refused(
                "limit",
                f"{wanted.path}: over {max_bytes} bytes (the file has {frame.size}); "
                "read a part of it with offset and limit",
            )
        if frame.last:
            end = frame.end or (wanted.unit == "bytes" and wanted.offset + held >= frame.size)
            lines = (
                data.count(b"\n") + (bool(data) and not data.endswith(b"\n")) if wanted.unit == "lines" else 0
            )
            return Content(data=bytes(data), size=frame.size, lines=lines, end=end)
        if held - granted >= GRANT:
            connection.post(frames.Window(id=request.id, bytes=held - granted))
            granted = held


def _coming(wanted: frames.Read, frame: frames.Bytes) -> int:
    """Bytes that a read is going to bring, as far as its first piece tells."""
    if wanted.unit == "lines" or frame.last:
        return 0
    rest = frame.size - wanted.offset
    return min(rest, wanted.limit) if wanted.limit else rest


async def write(connection: Connection, make: Callable[[int, bool], frames.Write], data: bytes) -> int:
    """Carry out one write (`make` gets the request's id and whether the piece is the last); the bytes written.

    Sends no more than the window ahead of what the worker has taken up. Raises Lost and Refused.
    """

    async def pieces() -> AsyncGenerator[bytes, None]:
        for at in range(0, len(data), frames.PIECE):
            yield data[at : at + frames.PIECE]

    return await pour(connection, make, pieces())


async def pour(
    connection: Connection, make: Callable[[int, bool], frames.Write], pieces: AsyncGenerator[bytes, None]
) -> int:
    """`write` of pieces of at most frames.PIECE bytes, taken as they can go out. Raises what `pieces` does, too."""
    with connection.request() as request:
        async with aclosing(pieces):
            try:
                return await _pour(connection, request, make, pieces)
            except (Lost, Refused):
                raise
            except BaseException:
                connection.post(_give_up(request))
                raise


async def _pour(
    connection: Connection,
    request: Request,
    make: Callable[[int, bool], frames.Write],
    pieces: AsyncIterator[bytes],
) -> int:
    window = frames.WINDOW
    waiting: bytes | None = await anext(pieces, b"")
    while True:
        got = request.poll()
        if got is None and waiting is not None and len(waiting) <= window:
            following = await anext(pieces, None)
            window -= len(waiting)
            await connection.send(encode(make(request.id, following is None), waiting))
            waiting = following
            continue
        frame, body = got or await request.next()
        match frame:
            case frames.Window():
                window += frame.bytes
            case frames.Done():
                return frame.size
            case frames.Error():
                if (
                    waiting is not None
                ):  # the worker keeps the transfer in mind for the pieces that were to come
                    connection.post(_give_up(request))
                raise refusal(frame, body)
            case _:
                connection.break_off("a write", frame)


def _give_up(request: Request) -> frames.Window:
    """The frame that ends a transfer before its time."""
    return frames.Window(id=request.id, bytes=0)
