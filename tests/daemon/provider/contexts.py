"""Contexts made by hand or from records, and the requests compiled from them, read back."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from PIL import Image

from daemon.chain import Call, Context, Part, Raw, Result, Text, Turn
from daemon.provider import rules_messages
from daemon.provider.anthropic import Anthropic
from daemon.provider.base import Model, Query, Request, Tool, Wire
from daemon.provider.messages import BLOCK

MODEL = "claude-x"
TOOL = Tool("run", "Run code.", {"type": "object", "properties": {}})


def picture(format: str = "PNG", size: tuple[int, int] = (3, 2)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, format)
    return file.getvalue()


def user(*parts: Part | str) -> Turn:
    return Turn("user", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def assistant(*parts: Part | str) -> Turn:
    return Turn("assistant", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def call(
    id: str, arguments: str = "{}", name: str = "run", extra: bytes = b"", provider: str = "anthropic"
) -> Call:
    return Call(id, name, arguments, extra, provider)


def result(id: str, *content: Part | str, failed: bool = False) -> Result:
    parts = tuple(Text(part) if isinstance(part, str) else part for part in content or ("done",))
    return Result(id, "run", parts, failed)  # type: ignore[arg-type]


def raw(
    block: Mapping[str, Any],
    text: str = "",
    provider: str = "anthropic",
    model: str = MODEL,
    type: str = BLOCK,
) -> Raw:
    return Raw(provider, model, type, msgspec.json.encode(block), text)


def context(*turns: Turn, system: str = "You are.", epoch: int = 0) -> Context:
    """The turns, the last one a user's that waits for its answer, or an assistant's that goes on."""
    last = turns[-1] if turns and turns[-1].role == "user" else None
    return Context(system, turns if last is None else turns[:-1], last, 1, epoch)


def compile_(
    found: Context,
    *,
    provider: Anthropic | None = None,
    model: Model | None = None,
    tools: Sequence[Tool] = (TOOL,),
    params: Mapping[str, Any] | None = None,
    wire: Wire | None = None,
) -> Request:
    query = Query(model or Model(MODEL), found, tools, params or {}, "session")
    return (provider or Anthropic(key="secret")).compile(query, wire or Wire())


def body(found: Context, **options: Any) -> dict[str, Any]:
    """The request's body, read back; it has passed the wire's rules."""
    request = compile_(found, **options)
    assert rules_messages.problems(request.body) == []
    read: dict[str, Any] = msgspec.json.decode(request.body)
    return read


def messages(*turns: Turn, **options: Any) -> list[list[dict[str, Any]]]:
    """The content of each message of a request of these turns, without cache marks."""
    return [plain(message["content"]) for message in body(context(*turns), **options)["messages"]]


def plain(value: Any) -> Any:
    """The same without cache marks."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items() if name != "cache_control"}
    return [plain(item) for item in value] if isinstance(value, list) else value


def unmarked(data: bytes) -> bytes:
    """A body's bytes without cache marks."""
    return re.sub(rb',"cache_control":\{"type":"ephemeral"\}', b"", data)
