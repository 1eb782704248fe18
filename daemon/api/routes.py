"""What a route is: who may use it, what it takes and what it answers; the server and the schema read the same value."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from msgspec import Struct

from daemon.api.gate import Caller
from daemon.api.parameters import Parameter
from daemon.protocol import api
from daemon.protocol.records import JSON

ALWAYS: Final = (400, 417, 500)  # any request can end in one of these
KEYED: Final = (401, 403, 429)  # and one to a route that is not open to everybody, in these
BODIED: Final = (400, 408, 413, 415)  # and one with a body, in these

Handler = Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]


class Content(Struct, frozen=True):
    """A body: JSON of `type`, or bytes that `what` tells about; `parts`: types of the JSON that is in
    those, of events first what each one's data is.

    `needed`: of a request, that it has one.
    """

    type: Any = None
    media: tuple[str, ...] = (JSON,)
    what: str = ""
    parts: tuple[Any, ...] = ()
    needed: bool = True


class Answer(Struct, frozen=True):
    """How a request that is carried out is answered. `headers`: their names and what they say."""

    status: int = 200
    content: Content | None = None
    what: str = "Done."
    headers: dict[str, str] = {}


class Route(Struct, frozen=True, kw_only=True):
    """One method of one path. `role`: the least that may use it, None for everybody. `refusals`: beside those that
    its parts can always end in.
    """

    method: str
    path: str
    handler: Handler
    what: str
    role: api.Role | None = "viewer"
    parameters: tuple[Parameter, ...] = ()
    body: Content | None = None
    answer: Answer = Answer()
    refusals: tuple[int, ...] = ()
    head: bool = True  # a GET that also takes HEAD

    @property
    def statuses(self) -> list[int]:
        """Every status of 400 and up that it can answer."""
        found = {*ALWAYS, *self.refusals}
        found.update(KEYED if self.role is not None else ())
        found.update(BODIED if self.body is not None else ())
        found.update(
            (422,) if self.body is not None and self.body.type is not None else ()
        )  # a field is wrong
        found.update((404,) if "{" in self.path else ())
        return sorted(found)


def json(type: Any, status: int = 200, what: str = "Done.", **headers: str) -> Answer:
    """An answer of JSON."""
    return Answer(status, Content(type), what, headers)


def reply(value: Any, status: int = 200) -> web.Response:
    """`value` as JSON."""
    return web.Response(status=status, body=api.encode(value), content_type=JSON)
