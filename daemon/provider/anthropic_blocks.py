"""The Messages API's blocks: each part of a turn made into the JSON that the API takes for it."""

from binascii import b2a_base64
from collections.abc import Iterable
from typing import Any, Final, Literal, assert_never

import msgspec

from daemon.chain import Call, Media, Part, Raw, Result, Text
from daemon.provider import fitting, repair
from daemon.provider.base import Tool
from daemon.provider.images import BadImage

NOTHING: Final = "(nothing)"  # stands where a message would be empty, which the API refuses

_encode = msgspec.json.Encoder().encode


def user(parts: Iterable[Part]) -> bytes:
    """A user message: results, then everything else in its order."""
    results: list[bytes] = []  # come first, as the API wants them
    blocks: list[bytes] = []
    for part in parts:
        match part:
            case Result():
                results.append(_result(part))
            case Text() | Media():
                blocks += _said(part)
            case Call() | Raw():
                continue  # the assistant's
            case _:
                assert_never(part)
    return message("user", [*results, *blocks] or [text(NOTHING)])


def _result(part: Result) -> bytes:
    content = [block for item in part.content for block in _said(item)] or [text(NOTHING)]
    result: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": repair.identifier(part.call),
        "content": [msgspec.Raw(block) for block in content],
    }
    if part.failed:
        result["is_error"] = True
    return _encode(result)


def _said(part: Text | Media) -> list[bytes]:
    block = text(part.text) if isinstance(part, Text) else _media(part)
    return [block] if block else []


def text(words: str) -> bytes:
    """A text block, nothing for a blank text: the API refuses one."""
    return _encode({"type": "text", "text": repair.text(words)}) if words.strip() else b""


def _media(part: Media) -> bytes:
    """An image block of the type that its bytes show, made smaller where it is too large, or a note that says why
    there is none.
    """
    try:
        fitted = fitting.fitted(part.data)
    except BadImage as error:
        return text(fitting.note(part.type, part.data, error))
    data = b2a_base64(fitted.data, newline=False).decode()
    source = {"type": "base64", "media_type": fitted.image.type, "data": data}
    return _encode({"type": "image", "source": source})


def message(role: Literal["user", "assistant"], blocks: Iterable[bytes]) -> bytes:
    """A message of these blocks; it ends in `}]}`."""
    return b'{"role":"%b","content":[%b]}' % (role.encode(), b",".join(blocks))


def call(part: Call, *, own: bool) -> bytes:
    """A tool_use block. `own`: made by the provider it goes to, so that what it carried goes back with it."""
    extra: dict[str, Any] = {}
    if own and part.extra:
        try:
            extra = msgspec.json.decode(part.extra, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            extra = {}
    fields = {
        "type": "tool_use",
        "id": repair.identifier(part.id),
        "name": repair.name(part.name),
        "input": msgspec.Raw(repair.arguments(part.arguments)),
    }
    return _encode({**extra, **fields})


def tool(tool: Tool) -> dict[str, Any]:
    """A tool as the API is told of it."""
    return {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
