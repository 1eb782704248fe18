"""The agent-server surface's values and routes: sessions of a declared agent, and turns as frames of events."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from daemon.protocol.records import Usage

VERSION: Final = 1  # of a frame
RUNTIME: Final = "outrider"  # the one there is
SURFACE: Final = "v1"  # in the config of a session that was made here

SESSIONS: Final = "/v1/sessions"
SESSION: Final = "/v1/sessions/{id}"
TURNS: Final = "/v1/sessions/{id}/turns"
EVENTS: Final = "/v1/sessions/{id}/events"

Status = Literal["active", "ended", "expired"]
Reason = Literal["completed", "error", "cancelled"]
Type = Literal[
    "session.started",
    "message",
    "message.delta",
    "model.request",
    "model.response",
    "tool.call",
    "tool.result",
    "warning",
    "error",
    "session.ended",
]


class NewSession(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /v1/sessions. `agent`: a definition's name, left out where the daemon has one."""

    inputs: dict[str, Any] = {}
    agent: str = ""


class NewTurn(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /v1/sessions/{id}/turns."""

    input: Annotated[str, Meta(min_length=1)]


class Session(Struct, frozen=True, rename="camel"):
    """A session as this surface tells of it. `agent_name`: empty for one that no definition made. `created_at`: None
    where its file's first record does not read.
    """

    id: str
    agent_name: str
    runtime_type: str
    status: Status
    created_at: str | None


class Frame(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What stands in an event's `data`: `data` is one of the values below, by `type`. `ts`: RFC 3339, UTC."""

    v: int
    type: Type
    ts: str
    session_id: str
    data: Any
    traceparent: str = ""


class Started(Struct, frozen=True, rename="camel"):
    """Data of session.started."""

    agent_name: str
    model: str


class Message(Struct, frozen=True):
    """Data of message."""

    role: Literal["user", "assistant"]
    text: str


class MessageDelta(Struct, frozen=True):
    """Data of message.delta."""

    text: str


class ModelRequest(Struct, frozen=True, rename="camel"):
    """Data of model.request: how many messages the model was sent."""

    message_count: int


class ModelResponse(Struct, frozen=True, rename="camel"):
    """Data of model.response. `finish_reason` is the provider's own word."""

    tokens_in: int
    tokens_out: int
    finish_reason: str


class ToolCall(Struct, frozen=True, rename="camel"):
    """Data of tool.call. `args`: the arguments' JSON value, or their text where they are not JSON."""

    tool_name: str
    call_id: str
    args: Any


class ToolResult(Struct, frozen=True, rename="camel"):
    """Data of tool.result."""

    call_id: str
    is_error: bool
    content: str


class Warned(Struct, frozen=True):
    """Data of warning."""

    kind: str
    message: str


class Failed(Struct, frozen=True, omit_defaults=True):
    """Data of error."""

    message: str
    kind: str = ""


class SessionEnded(Struct, frozen=True):
    """Data of session.ended: how the turn ended, and what the session has used."""

    reason: Reason
    usage: Usage


Data = (
    Started
    | Message
    | MessageDelta
    | ModelRequest
    | ModelResponse
    | ToolCall
    | ToolResult
    | Warned
    | Failed
    | SessionEnded
)
TYPES: Final[dict[type[Any], Type]] = {
    Started: "session.started",
    Message: "message",
    MessageDelta: "message.delta",
    ModelRequest: "model.request",
    ModelResponse: "model.response",
    ToolCall: "tool.call",
    ToolResult: "tool.result",
    Warned: "warning",
    Failed: "error",
    SessionEnded: "session.ended",
}

_encode = msgspec.json.Encoder().encode


def event(session: str, ts: str, data: Data, n: int = 0, traceparent: str = "") -> bytes:
    """One frame as a server-sent event; `n` is its `id`, 0 for none."""
    type = TYPES[data.__class__]
    frame = Frame(VERSION, type, ts, session, data, traceparent)
    head = b"id: %d\n" % n if n else b""
    return b"%bevent: %b\ndata: %b\n\n" % (head, type.encode(), _encode(frame))
