"""A network that a test can cut: a Unix socket that carries what dials it to another one."""

import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self


class Cutter:
    """Carries connections from the socket `path` to the socket `to`, for as long as its context is open.

    `cut` breaks those that are there; while `open` is false a new one is accepted and closed at once. While frozen
    nothing is carried and nothing is closed, as on a network that loses every packet. `dialed` counts connections.
    `most`: bytes that each connection carries back to who dialed before it stands still; 0 is no limit.
    """

    def __init__(self, path: Path, to: Path) -> None:
        self.path = path
        self.to = to
        self.open = True
        self.dialed = 0
        self.most = 0
        self._flows = asyncio.Event()
        self._flows.set()
        self._pipes: set[asyncio.Task[None]] = set()
        self._news = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._accept, str(self.path))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.open = False
        await self.cut()

    async def cut(self) -> None:
        """Break every connection; returns when both ends of each are closed."""
        for pipe in self._pipes:
            pipe.cancel()
        if self._pipes:
            await asyncio.wait(self._pipes)

    def freeze(self) -> None:
        """Carry nothing from now on."""
        self._flows.clear()

    def thaw(self) -> None:
        """Carry what waits, and what comes."""
        self._flows.set()

    async def dials(self, count: int) -> None:
        """Wait until `count` connections have come."""
        async with self._news:
            await self._news.wait_for(lambda: self.dialed >= count)

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        async with self._news:
            self.dialed += 1
            self._news.notify_all()
        if not self.open:
            writer.transport.abort()
            return
        pipe = asyncio.current_task()
        assert pipe is not None
        self._pipes.add(pipe)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # its owner is this object, which has cut it
        finally:
            writer.transport.abort()
            self._pipes.discard(pipe)

    async def _carry(self, reader: StreamReader, writer: StreamWriter) -> None:
        onward, back = await asyncio.open_unix_connection(str(self.to))
        try:
            async with asyncio.TaskGroup() as group:
                ways = [
                    group.create_task(self._pipe(reader, back, False), name="onward"),
                    group.create_task(self._pipe(onward, writer, True), name="back"),
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
        finally:
            back.transport.abort()

    async def _pipe(self, reader: StreamReader, writer: StreamWriter, back: bool) -> None:
        # Drained is sent then: the end of the other way aborts this one.
        writer.transport.set_write_buffer_limits(0)
        with suppress(OSError):
            carried = 0
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                if back and 0 < self.most <= carried:
                    await asyncio.Event().wait()  # until it is cut
                writer.write(data)
                await writer.drain()
                carried += len(data)
            await self._flows.wait()
            writer.write_eof()
