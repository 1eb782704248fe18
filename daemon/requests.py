"""The open requests of one connection: each gets its answers in order, and hears when no more can come."""

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from daemon.protocol import frames
from daemon.protocol.framing import FramingError

HELD: Final = frames.WINDOW + frames.MAX_BODY  # bytes of one request's answers that wait to be taken up
FRAME_COST: Final = 256  # bytes that a frame without a body is counted as, so that none is free

Answer = (
    frames.Output
    | frames.Going
    | frames.Unknown
    | frames.Result
    | frames.Bytes
    | frames.Done
    | frames.Error
    | frames.Window
)


class Lost(Exception):
    """The connection has ended; the message says why. `fault`: the worker broke the protocol."""

    def __init__(self, reason: str, fault: bool = False) -> None:
        super().__init__(reason)
        self.fault = fault


class Request:
    """The answers to one request, in order. A context manager: when it ends, further answers are dropped."""

    def __init__(self, requests: "Requests", id: int) -> None:
        self.id = id
        self._requests = requests
        self._answers: deque[tuple[Answer, bytes]] = deque()
        self._held = 0
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.forget(self.id)

    def poll(self) -> tuple[Answer, bytes] | None:
        """The next answer if it is here."""
        if not self._answers:
            return None
        answer, body = self._answers.popleft()
        self._held -= FRAME_COST + len(body)
        return answer, body

    async def next(self) -> tuple[Answer, bytes]:
        """The next answer. Raises Lost once the connection has ended and all that came before is taken."""
        while (got := self.poll()) is None:
            self._requests.check()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return got

    def put(self, answer: Answer, body: bytes) -> None:
        """Add an answer. Raises FramingError for more than the window allows."""
        self._held += FRAME_COST + len(body)
        if self._held > HELD:
            raise FramingError(
                f"over {HELD} bytes of answers to request {self.id}, which the window does not allow"
            )
        self._answers.append((answer, body))
        self.wake()

    def wake(self) -> None:
        """Let `next` look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Requests:
    """The open requests of one connection. Sockets, frames' bytes and time are somebody else's."""

    def __init__(self) -> None:
        self._open: dict[int, Request] = {}
        self._later: dict[int, Callable[[], None]] = {}
        self._last = 0
        self._lost: tuple[str, bool] | None = None

    def new_id(self) -> int:
        """An id whose answers are dropped."""
        self._last += 1
        return self._last

    def open(self) -> Request:
        """A new request. Raises Lost."""
        self.check()
        request = Request(self, self.new_id())
        self._open[request.id] = request
        return request

    def forget(self, id: int) -> None:
        """Drop the answers to a request from now on."""
        self._open.pop(id, None)

    def later(self, id: int, then: Callable[[], None]) -> None:
        """Have `then` called once when an answer comes to a request for which nobody waits any more."""
        self._later[id] = then

    def deliver(self, answer: Answer, body: bytes) -> None:
        """Hand an answer to its request. Raises FramingError when nobody ever made that request."""
        if (request := self._open.get(answer.id)) is not None:
            request.put(answer, body)
        elif (then := self._later.pop(answer.id, None)) is not None:
            then()
        elif not 0 < answer.id <= self._last:
            raise FramingError(f"an answer to request {answer.id}, which nobody made")

    def lose(self, reason: str, fault: bool) -> bool:
        """Every request ends with Lost; False when that was so before."""
        if self._lost is not None:
            return False
        self._lost = (reason, fault)
        for request in self._open.values():
            request.wake()
        return True

    @property
    def lost(self) -> Lost | None:
        """Why the connection ended, None while it goes on."""
        return None if self._lost is None else Lost(*self._lost)

    def check(self) -> None:
        """Raise Lost if the connection has ended."""
        if self._lost is not None:
            raise Lost(*self._lost)
