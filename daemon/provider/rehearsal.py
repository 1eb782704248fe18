"""The built-in provider: answers from a script, over the same wire, decoder and retries as a real one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from daemon.provider import patch, playing, script
from daemon.provider.anthropic import OWNED, Anthropic
from daemon.provider.base import Answer, Decoder, Model, ProviderError, Query, Request, Wire
from daemon.provider.models import TEXT_AND_IMAGES

SESSION: Final = "x-rehearsal-session"  # tells the sessions' faults apart
CONTEXT: Final = 200_000  # tokens it pretends to hold, so that a session's gauge has a scale
MAX_TRIES: Final = 10_000  # (session, step) pairs whose tries are remembered
URL: Final = "rehearsal:"


class Rehearsal:
    """Plays the scripts `names`, from `folder` or those shipped. `speed` 2 is twice as fast, 0 without any pause.

    The step that is played is read off the request, so it is right after a restart and in a copy too. The tries of a
    step that has faults are counted here, by session.
    """

    def __init__(
        self,
        names: Iterable[str] = ("tour", "echo", "chaos"),
        *,
        folder: Path | None = None,
        speed: float = 1.0,
        name: str = "rehearsal",
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self._models = tuple(Model(script, CONTEXT, 0, TEXT_AND_IMAGES) for script in names)
        self._folder = folder
        self._speed = speed
        self._sleep = sleep
        self._wire = Anthropic(name, url=URL, known=self._models)
        self._tries: dict[tuple[str, int], int] = {}

    def compile(self, query: Query, wire: Wire) -> Request:
        """A Messages request; see `base.Provider`."""
        request = self._wire.compile(query, wire)
        return msgspec.structs.replace(request, headers={**request.headers, SESSION: query.session})

    def decoder(self) -> Decoder:
        return self._wire.decoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return self._wire.error(status, headers, body)

    def check_params(self, params: Mapping[str, Any]) -> str:
        return patch.refused(params, OWNED)

    def problems(self, request: Request) -> list[str]:
        return self._wire.problems(request)

    def models(self) -> Sequence[Model]:
        return self._models

    @asynccontextmanager
    async def transport(self, request: Request) -> AsyncIterator[Answer]:
        """Answer from the script that the request's model names."""
        session = request.headers.get(SESSION, "")
        seen = playing.scene(request.body, session)
        try:
            play = await asyncio.to_thread(script.load, seen.values["model"], self._folder)
        except script.BadScript as error:
            yield _error(400, {}, "invalid_request_error", str(error))
            return
        number, step = playing.choose(play, seen)
        wrong = self._wrong(step, session, number)
        if wrong is not None and wrong.kind == "status":
            await self._pause(play.delay if step.delay is None else step.delay)
            yield _error(wrong.status, wrong.headers, wrong.type, wrong.message)
            return
        found = playing.pieces(play, step, seen.answers, len(request.body), wrong)
        yield Answer(200, {"content-type": "text/event-stream"}, self._chunks(found))

    def _wrong(self, step: script.Step, session: str, number: int) -> script.Fault | None:
        played = self._tries.pop((session, number), 0)
        wrong = playing.fault(step, played)
        if wrong is not None:
            self._tries[session, number] = played + 1
            if len(self._tries) > MAX_TRIES:
                del self._tries[next(iter(self._tries))]
        return wrong

    async def _chunks(self, found: Iterable[playing.Piece]) -> AsyncIterator[bytes]:
        for piece in found:
            await self._pause(piece.pause)
            if piece.drop:
                raise ConnectionResetError("the script breaks the connection here")
            yield piece.data

    async def _pause(self, seconds: float) -> None:
        if seconds and self._speed:
            await self._sleep(seconds / self._speed)


def _error(status: int, headers: Mapping[str, str], kind: str, message: str) -> Answer:
    body = msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
    names = {"content-type": "application/json"} | {name.lower(): value for name, value in headers.items()}
    return Answer(status, names, _whole(body))


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    yield body
