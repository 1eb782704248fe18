"""The values a request carries beside its body: each is read, checked and described by one object."""

import re
from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

from aiohttp import web
from msgspec import Struct

from daemon.api.errors import shown
from daemon.harness.errors import Malformed, NotFound
from daemon.protocol import agentserver, api, events
from daemon.protocol.records import Status

SESSION_ID: Final = r"^[0-9a-f]{16}$"
TRACE: Final = r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"
MOST: Final = 10**15 - 1  # where a number has no bound of its own: what every client's numbers hold exactly
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m)?")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}

Schema = dict[str, Any]


class Parameter(Struct, frozen=True, kw_only=True):
    """One value of a request: `what` says in a sentence what it is for."""

    name: str
    what: str
    where: Literal["query", "header", "path"] = "query"
    required: bool = False

    def given(self, request: web.Request) -> str | None:
        """Its text, None where it is not given. Raises Malformed when it is given twice."""
        if self.where == "path":
            return request.match_info[self.name]
        found = (request.headers if self.where == "header" else request.query).getall(self.name, [])
        if len(found) > 1:
            raise Malformed(f"{self.name}: given {len(found)} times; give it once")
        return found[0] if found else None

    def schema(self) -> Schema:
        """What its text can be, as JSON Schema."""
        return {"type": "string"}


class Number(Parameter, frozen=True, kw_only=True):
    """A whole number."""

    low: int = 0
    high: int | None = None

    def of(self, request: web.Request) -> int | None:
        """The number, None where it is not given. Raises Malformed."""
        if (text := self.given(request)) is None:
            return None
        high = MOST if self.high is None else self.high
        if not _NUMBER.fullmatch(text) or not self.low <= int(text) <= high:
            to = "up" if self.high is None else f"to {self.high}"
            raise Malformed(f"{self.name}: {shown(text)} is not a whole number from {self.low} {to}")
        return int(text)

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": MOST if self.high is None else self.high}


class Flag(Parameter, frozen=True, kw_only=True):
    """0 or 1."""

    default: bool = False

    def of(self, request: web.Request) -> bool:
        """Whether it is 1. Raises Malformed."""
        text = self.given(request)
        if text not in (None, "0", "1"):
            raise Malformed(f"{self.name}: {shown(text)} is neither 0 nor 1")
        return self.default if text is None else text == "1"

    def schema(self) -> Schema:
        return {"type": "string", "enum": ["0", "1"], "default": str(int(self.default))}


class Duration(Parameter, frozen=True, kw_only=True):
    """A time: `30s`, `500ms`, `2m`, or seconds alone. `most`: seconds."""

    most: float

    def of(self, request: web.Request) -> float:
        """Seconds, 0 where it is not given. Raises Malformed."""
        if (text := self.given(request)) is None:
            return 0.0
        found = _DURATION.fullmatch(text)
        if found is None:
            raise Malformed(
                f"{self.name}: {shown(text)} is not a time; write it as 30s, 500ms, 2m or 30 (seconds)"
            )
        seconds = float(found[1]) * _UNITS[found[2]]
        if seconds > self.most:
            raise Malformed(f"{self.name}: {shown(text)} is too long; at most {self.most:g}s")
        return seconds

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{_DURATION.pattern}$", "example": "30s"}


class OneStatus(Parameter, frozen=True, kw_only=True):
    """A session's status."""

    def of(self, request: web.Request) -> Status | None:
        """The status, None where it is not given. Raises Malformed."""
        text = self.given(request)
        known: tuple[Status, ...] = get_args(Status)
        if text is None:
            return None
        for one in known:
            if text == one:
                return one
        raise Malformed(f"{self.name}: {shown(text)} is none; there are {', '.join(known)}")

    def schema(self) -> Schema:
        return {"type": "string", "enum": list(get_args(Status))}


class Choice(Parameter, frozen=True, kw_only=True):
    """One of a few words."""

    words: tuple[str, ...]

    def of(self, request: web.Request) -> str:
        """The word, empty where it is not given. Raises Malformed."""
        text = self.given(request)
        if text is not None and text not in self.words:
            raise Malformed(f"{self.name}: {shown(text)} is none; there are {', '.join(self.words)}")
        return text or ""

    def schema(self) -> Schema:
        return {"type": "string", "enum": list(self.words)}


class TraceParent(Parameter, frozen=True, kw_only=True):
    """The caller's span, as W3C Trace Context has it; what does not read as one is none, as the standard says."""

    def of(self, request: web.Request) -> str:
        """The header's text, empty where there is none."""
        text = request.headers.get(self.name, "").strip()
        return text if re.fullmatch(TRACE, text) else ""


class SessionId(Parameter, frozen=True, kw_only=True):
    """A session's id."""

    def of(self, request: web.Request) -> str:
        """The id, empty where it is not given. Raises NotFound for a path and Malformed for a query that holds none."""
        text = self.given(request)
        if text is None or re.fullmatch(SESSION_ID, text):
            return text or ""
        if self.where == "path":
            raise NotFound(f"there is no session {shown(text)}; an id is 16 hexadecimal digits")
        raise Malformed(f"{self.name}: {shown(text)} is not a session's id")

    def schema(self) -> Schema:
        return {"type": "string", "pattern": SESSION_ID}


class Name(Parameter, frozen=True, kw_only=True):
    """The name of a thing of the daemon's, in the path. `thing`: what is named."""

    thing: str

    def of(self, request: web.Request) -> str:
        """The name. Raises NotFound for what cannot be one."""
        text = self.given(request) or ""
        if not re.fullmatch(api.NAME, text):
            raise NotFound(
                f"there is no {self.thing} {shown(text)}; a name has up to 63 letters, digits, dots, - and _"
            )
        return text

    def schema(self) -> Schema:
        return {"type": "string", "pattern": api.NAME}


class Id(Parameter, frozen=True, kw_only=True):
    """The number of a join token, in the path."""

    def of(self, request: web.Request) -> int:
        """The number. Raises NotFound for what cannot be one."""
        text = self.given(request) or ""
        if not _NUMBER.fullmatch(text):
            raise NotFound(f"there is no token {shown(text)}; a token's id is a number")
        return int(text)

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": 0, "maximum": MOST}


class ModelName(Parameter, frozen=True, kw_only=True):
    """A model, as provider/model."""

    def of(self, request: web.Request) -> str:
        """The name, empty where it is not given. Raises Malformed."""
        text = self.given(request)
        if text is None:
            return ""
        if not 0 < len(text) <= api.MAX_MODEL or not text.isprintable():
            raise Malformed(f"{self.name}: name one as provider/model, at most {api.MAX_MODEL} characters")
        return text

    def schema(self) -> Schema:
        return {
            "type": "string",
            "minLength": 1,
            "maxLength": api.MAX_MODEL,
            "example": "anthropic/claude-sonnet-4-5",
        }


class Via(Parameter, frozen=True, kw_only=True):
    """Who acts."""

    def of(self, request: web.Request) -> str:
        """The name. Raises Malformed where nobody is named."""
        text = self.given(request)
        if not text or not text.strip():
            raise Malformed(f"{self.name}: say who acts, as in ?{self.name}=alice")
        if len(text) > api.MAX_NAME or not text.isprintable():
            raise Malformed(f"{self.name}: at most {api.MAX_NAME} printable characters")
        return text

    def schema(self) -> Schema:
        return {"type": "string", "maxLength": api.MAX_NAME, "pattern": r"\S", "example": "alice"}


class Key(Parameter, frozen=True, kw_only=True):
    """A key of printable ASCII characters, in a header."""

    def of(self, request: web.Request) -> str:
        """The key, empty where it is not given. Raises Malformed."""
        if (text := self.given(request)) is None:
            return ""
        if not 0 < len(text) <= api.MAX_NAME or not text.isascii() or not text.isprintable():
            raise Malformed(f"{self.name}: give one key of 1 to {api.MAX_NAME} printable ASCII characters")
        return text

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^[!-~]([ -~]{{0,{api.MAX_NAME - 2}}}[!-~])?$"}


def check(request: web.Request, known: Sequence[Parameter]) -> None:
    """Raises Malformed where the query has a name that the route does not: left out, it would not do what was meant."""
    if not request.query:
        return
    names = [parameter.name for parameter in known if parameter.where == "query"]
    for name in request.query:
        if name not in names:
            there = f"; known are {', '.join(names)}" if names else ", which takes no query"
            raise Malformed(f"{shown(name)}: there is no such name in a query of {request.path}{there}")


SESSION = SessionId(name="id", what="The session.", where="path", required=True)
PROVIDER_NAME = Name(name="name", what="The provider.", where="path", required=True, thing="provider")
WORKER_NAME = Name(name="name", what="The worker.", where="path", required=True, thing="worker")
TOKEN_ID = Id(name="id", what="The token's id.", where="path", required=True)
KEY_NAME = Name(name="name", what="The key's name.", where="path", required=True, thing="key")

VIA = Via(name="via", what="Who acts; the record keeps it.", required=True)
MODEL = ModelName(name="model", what="As if the session had this model, provider/model; else its own.")
STATUS = OneStatus(name="status", what="Only sessions of this status.")
LIST_LIMIT = Number(name="limit", what="At most so many; 100 unless given.", low=1, high=api.MAX_LIST)
LIST_AFTER = SessionId(name="after", what="Go on after this session, the last of the list before.")
FIRST_LIMIT = Number(
    name="limit",
    what=f"How many sessions the first event holds; {api.FIRST} unless given.",
    high=api.MAX_LIST,
)
AFTER = Number(name="after", what="Begin with the record after this number.")
LIMIT = Number(name="limit", what="At most so many records.", low=1)
WAIT = Duration(name="wait", what="How long to wait for a record where there is none yet.", most=api.MAX_WAIT)
LISTS_WAIT = Duration(
    name="wait",
    what="How long to wait for servers that are asked which models they have.",
    most=api.MAX_LISTS_WAIT,
)
BODIES = Flag(name="bodies", what="0: header lines alone, one a line.", default=True)
DELTAS = Flag(name="deltas", what="1: also what streams in, as it does.")
LAST_EVENT = Number(
    name=events.LAST_ID_HEADER, what="The last record that was seen; goes before `after`.", where="header"
)
IDEMPOTENCY = Key(
    name=api.IDEMPOTENCY_HEADER, what="A post sent again under the same key lands once.", where="header"
)

ACTIVE: Final = Choice(
    name="status", what="Only sessions of this status.", words=get_args(agentserver.Status)
)
ON_DISCONNECT: Final = Choice(
    name="on_disconnect",
    what="What becomes of the turn when its client goes away: continue unless given.",
    words=("continue", "stop"),
)
TRACEPARENT: Final = TraceParent(
    name="traceparent", what="The caller's span (W3C Trace Context); each frame repeats it.", where="header"
)
