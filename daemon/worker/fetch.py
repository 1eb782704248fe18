"""Connections to the harness beside the one that works: its release is fetched over one, news are told over another."""

import asyncio
import contextlib
import hashlib
import os
from asyncio import StreamReader
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from daemon.protocol import frames
from daemon.worker import link

MAX_WHEEL: Final = 64 << 20  # bytes; ours has half of one
FIRST_WAIT: Final = 3 * frames.HELLO_WAIT  # seconds: the harness may have to make its wheel first

Dial = Callable[[], Awaitable[link.Stream]]


class UpdateError(Exception):
    """This update failed, and would again; the message says why."""


@contextlib.asynccontextmanager
async def offered(dial: Dial, greeting: bytes) -> AsyncIterator[tuple[frames.Update, StreamReader]]:
    """What the harness offers to one that greets so, and the stream that its wheel comes on. Raises link.Gone."""
    reader, writer = await dial()
    try:
        writer.write(greeting)
        try:
            async with asyncio.timeout(FIRST_WAIT):
                line = await link.first_line(reader)
                if (update := link.update_of(line)) is None:
                    raise link.Gone(
                        "the harness sent no update" if line else "the harness closed the connection"
                    )
                await reader.readexactly(1)  # the newline after its empty body
        except asyncio.IncompleteReadError:
            raise link.Gone("the connection ended within an update") from None
        except TimeoutError:
            raise link.Gone(f"the harness said nothing for {FIRST_WAIT:g} s") from None
        except OSError as error:
            raise link.Gone(f"the connection broke: {error.strerror or error}") from error
        yield update, reader
    finally:
        writer.transport.abort()


async def take(reader: StreamReader, update: frames.Update, folder: Path) -> Path:
    """The wheel of an update, checked; whose file it is to remove. Raises link.Gone and UpdateError."""
    if not 0 < update.size <= MAX_WHEEL:
        raise UpdateError(f"its wheel has {update.size} bytes, where 1 to {MAX_WHEEL} are taken")
    path = folder / f".{os.getpid()}.whl"
    try:
        await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        file = await asyncio.to_thread(open, path, "wb", 0)
        try:
            digest = hashlib.sha256()
            async for data in _pieces(reader, update.size):
                digest.update(data)
                await asyncio.to_thread(file.write, data)
        except BaseException:
            await asyncio.to_thread(path.unlink, missing_ok=True)
            raise
        finally:
            file.close()
    except OSError as error:
        raise UpdateError(f"it cannot be written to {folder}: {error.strerror or error}") from error
    if digest.hexdigest() != update.sha256:
        await asyncio.to_thread(path.unlink, missing_ok=True)
        raise UpdateError("what came has another SHA-256 than the daemon said")
    return path


async def _pieces(reader: StreamReader, size: int) -> AsyncIterator[bytes]:
    """So many bytes. Raises link.Gone where they do not come."""
    while size:
        try:
            async with asyncio.timeout(frames.DEAD_AFTER):
                data = await reader.read(min(size, link.PIECE))
        except TimeoutError:
            raise link.Gone(f"the harness sent nothing for {frames.DEAD_AFTER:g} s") from None
        except OSError as error:
            raise link.Gone(f"the connection broke: {error.strerror or error}") from error
        if not data:
            raise link.Gone("the connection ended within the release")
        size -= len(data)
        yield data


async def note(dial: Dial, greeting: bytes) -> None:
    """Tell the harness; what does not arrive is in the next greeting."""
    with contextlib.suppress(link.Gone, OSError, TimeoutError):
        _, writer = await dial()
        try:
            writer.write(greeting)
            async with asyncio.timeout(frames.HELLO_WAIT):
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()
