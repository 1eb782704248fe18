"""A harness's end of a keeper's socket, for the tests of this folder."""

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from daemon.protocol import frames


@dataclass
class Ran:
    """How a run ended, and the live output that came before."""

    end: frames.Result
    text: str
    live: list[bytes] = field(default_factory=list)

    @property
    def notes(self) -> str:
        return "\n".join(self.end.notes)


class Refused(Exception):
    """The keeper answered with an error frame."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Dial:
    """One connection to a keeper: `async with await Dial.to(path)`; its ids count from 1."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.hello: frames.Hello
        self.pongs = 0
        self.closed = False
        self.answering = True  # pings are answered
        self._last = 0
        self._answers: defaultdict[int, deque[tuple[Any, bytes]]] = defaultdict(deque)
        self._news = asyncio.Event()
        self._calls = 0
        self._task: asyncio.Task[None]

    @classmethod
    async def to(cls, path: Path) -> Self:
        one = cls(*await asyncio.open_unix_connection(str(path)))
        one._task = asyncio.create_task(one._listen(), name="dial")  # noqa: TID251 - ended by close
        first, _ = await one.next(0)
        assert isinstance(first, frames.Hello)
        one.hello = first
        return one

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        self.writer.close()

    async def _listen(self) -> None:
        decoder = frames.harness_decoder()
        try:
            while data := await self.reader.read(1 << 18):
                decoder.feed(data)
                while unit := decoder.next():
                    frame, _, body = unit
                    match frame:
                        case frames.Ping():
                            if self.answering:
                                self.send(frames.Pong())
                        case frames.Pong():
                            self.pongs += 1
                        case frames.Hello():
                            self._answers[0].append((frame, body))
                        case _:
                            self._answers[frame.id].append((frame, body))
                self._news.set()
        except ConnectionError:
            pass
        finally:
            self.closed = True
            self._news.set()

    def id(self) -> int:
        self._last += 1
        return self._last

    def call(self) -> str:
        """A call id that no other run of this connection has."""
        self._calls += 1
        return f"call-{self._calls}"

    def send(self, frame: frames.Frame, body: bytes = b"") -> None:
        self.writer.write(frames.encode(frame, body))

    async def next(self, id: int) -> tuple[Any, bytes]:
        """The next answer to one request; EOFError when the connection ended before it came."""
        while not self._answers[id]:
            if self.closed:
                raise EOFError
            self._news.clear()
            await self._news.wait()
        frame, body = self._answers[id].popleft()
        if isinstance(frame, frames.Error):
            raise Refused(frame.code, body.decode())
        return frame, body

    async def gone(self) -> None:
        """Return once the keeper has closed this connection."""
        while not self.closed:
            self._news.clear()
            await self._news.wait()

    def begin(self, code: str | bytes, *, session: str = "s", call: str = "", **more: Any) -> int:
        """Ask for a run; the request's id."""
        id = self.id()
        body = code.encode() if isinstance(code, str) else code
        self.send(frames.Run(id=id, session=session, call=call or self.call(), **more), body)
        return id

    async def ended(self, id: int) -> Ran:
        """How the run that request `id` waits for ended."""
        live = []
        while True:
            frame, body = await self.next(id)
            match frame:
                case frames.Output():
                    live.append(body)
                case frames.Result():
                    return Ran(frame, body.decode(), live)
                case frames.Going():
                    pass
                case other:
                    raise AssertionError(f"unexpected {other}")

    async def prints(self, id: int, what: bytes = b"") -> bytes:
        """Live output of a run up to and with `what`."""
        seen = b""
        while not seen or what not in seen:
            frame, body = await self.next(id)
            assert isinstance(frame, frames.Output), frame
            seen += body
        return seen

    async def run(self, code: str | bytes, **more: Any) -> Ran:
        return await self.ended(self.begin(code, **more))

    async def attach(self, call: str, session: str = "s") -> tuple[int, Any, bytes]:
        id = self.id()
        self.send(frames.Attach(id=id, session=session, call=call))
        return (id, *await self.next(id))

    async def interrupt(self, call: str, session: str = "s") -> str:
        id = self.id()
        self.send(frames.Interrupt(id=id, session=session, call=call))
        frame, body = await self.next(id)
        assert isinstance(frame, frames.Done)
        return body.decode()

    async def kill(self, session: str = "s") -> str:
        id = self.id()
        self.send(frames.Kill(id=id, session=session))
        frame, body = await self.next(id)
        assert isinstance(frame, frames.Done)
        return body.decode()

    async def read(self, path: str | Path, **more: Any) -> tuple[bytes, frames.Bytes]:
        """A file's bytes and the last frame."""
        id = self.id()
        self.send(frames.Read(id=id, path=str(path), **more))
        found = b""
        while True:
            frame, body = await self.next(id)
            assert isinstance(frame, frames.Bytes)
            found += body
            if frame.last:
                return found, frame
            self.send(frames.Window(id=id, bytes=len(body)))

    async def write(self, path: str | Path, data: bytes, **more: Any) -> int:
        """Write a small file in one piece; bytes written."""
        id = self.id()
        self.send(frames.Write(id=id, path=str(path), last=True, **more), data)
        frame, _ = await self.next(id)
        assert isinstance(frame, frames.Done)
        return frame.size
