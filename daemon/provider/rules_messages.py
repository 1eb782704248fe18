"""What the Messages API refuses, found on the bytes of a request."""

import json
from collections.abc import Iterator
from typing import Any, Final

from daemon.provider import rules

MARKS: Final = 4  # cache marks in a request
IMAGE_SIZE: Final = 5 << 20  # bytes of base64
IMAGES: Final = 100  # in a request
SIZE: Final = 32_000_000  # bytes of a request
THINKING: Final = ("thinking", "redacted_thinking")
USER: Final = frozenset({"text", "image", "document", "tool_result"})


def problems(body: bytes) -> list[str]:
    """The problems found in the body of a Messages request; empty where it would be accepted."""
    request = rules.parsed(body)
    if isinstance(request, str):
        return [request]
    large = [f"{len(body)} bytes, where {SIZE} are allowed"] if len(body) > SIZE else []
    return [*large, *rules.strings("body", request), *_head(request), *_turns(request.get("messages"))]


def _head(request: dict[str, Any]) -> Iterator[str]:
    if not isinstance(request.get("model"), str) or not request["model"]:
        yield "model is missing"
    limit = request.get("max_tokens")
    if not isinstance(limit, int) or limit < 1:
        yield f"max_tokens is {limit!r}"
    budget = rules.field(request, "thinking").get("budget_tokens")
    if isinstance(budget, int) and isinstance(limit, int) and budget >= limit:
        yield f"thinking.budget_tokens is {budget}, where max_tokens is {limit}: it has to be less"
    if request.get("stream") is not True:
        yield "stream is not true"
    for where, block in rules.objects("system", request.get("system")):
        yield from rules.text(where, block.get("text"))
    for where, tool in rules.objects("tools", request.get("tools")):
        schema = rules.field(tool, "input_schema")
        if not rules.NAME.fullmatch(str(tool.get("name"))) or schema.get("type") != "object":
            yield f"{where}: no name or no schema of an object"
    if (marks := json.dumps(request).count('"cache_control"')) > MARKS:
        yield f"{marks} cache marks, where {MARKS} are allowed"


def _turns(messages: Any) -> Iterator[str]:
    if not isinstance(messages, list) or not messages:
        yield "messages is empty"
        return
    calls: list[str] = []
    seen: set[str] = set()
    images = 0
    for index, (where, message) in enumerate(rules.objects("messages", messages)):
        role = "assistant" if index % 2 else "user"
        if message.get("role") != role:
            yield f"{where}: role {message.get('role')!r}, where it is the {role}'s turn"
        content = _content(message.get("content"))
        if not content:
            yield f"{where}: no content"
        if message.get("role") == "user":
            images += _images(content)
            yield from _user(where, content, calls)
            calls = []
        else:
            calls = [str(block.get("id")) for block in content if block.get("type") == "tool_use"]
            yield from _assistant(where, content, last=index == len(messages) - 1)
            for call in calls:
                if call in seen:
                    yield f"{where}: call {call} is there twice"
                seen.add(call)
    if calls:
        yield f"the request ends in calls without results: {', '.join(calls)}"
    if images > IMAGES:
        yield f"{images} images, where {IMAGES} are allowed"


def _content(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for _, block in rules.objects("", content)]


def _images(content: list[dict[str, Any]]) -> int:
    return sum(
        _images(_content(block.get("content")))
        if block.get("type") == "tool_result"
        else block.get("type") == "image"
        for block in content
    )


def _user(where: str, content: list[dict[str, Any]], calls: list[str]) -> Iterator[str]:
    kinds = [block.get("type") for block in content]
    results = [str(block.get("tool_use_id")) for block in content if block.get("type") == "tool_result"]
    if sorted(results) != sorted(calls):
        yield f"{where}: results of {results}, where the calls are {calls}"
    if "tool_result" in kinds[len(results) :]:
        yield f"{where}: something stands before a result"
    for index, block in enumerate(content):
        yield from _block(f"{where}.content.{index}", block, USER)


def _assistant(where: str, content: list[dict[str, Any]], *, last: bool) -> Iterator[str]:
    kinds = [str(block.get("type")) for block in content]
    if "tool_use" in kinds and set(kinds[kinds.index("tool_use") :]) != {"tool_use"}:
        yield f"{where}: something stands after a call, so the API misses its result"
    if kinds and kinds[-1] in THINKING:
        yield f"{where}: thinking is last"
    answered = {block.get("tool_use_id") for block in content}
    used = {block.get("id") for block in content}
    for index, block in enumerate(content):
        place = f"{where}.content.{index}"
        kind = str(block.get("type"))
        if kind == "tool_use":
            yield from _call(place, block)
        elif kind == "thinking" and not (isinstance(block.get("thinking"), str) and block.get("signature")):
            yield f"{place}: thinking without its signature"
        elif kind == "redacted_thinking" and not block.get("data"):
            yield f"{place}: redacted thinking without its data"
        elif kind == "text":
            yield from rules.text(place, block.get("text"))
        elif kind.endswith("_tool_use") and not last and block.get("id") not in answered:
            yield f"{place}: {kind} without its result"
        elif "tool_use_id" in block and block["tool_use_id"] not in used:
            yield f"{place}: {kind} without its use"
        elif kind in ("tool_result", "image", "None"):
            yield f"{place}: {kind} in an answer"


def _call(where: str, block: dict[str, Any]) -> Iterator[str]:
    for field in ("id", "name"):
        if not rules.NAME.fullmatch(str(block.get(field, ""))):
            yield f"{where}.{field} is {block.get(field)!r}"
    if not isinstance(block.get("input"), dict):
        yield f"{where}.input is no object"


def _block(where: str, block: dict[str, Any], allowed: frozenset[str]) -> Iterator[str]:
    kind = block.get("type")
    if kind not in allowed:
        yield f"{where}: {kind!r} is not allowed here"
    match kind:
        case "text":
            yield from rules.text(where, block.get("text"))
        case "image":
            source = rules.field(block, "source")
            yield from rules.image(where, source.get("media_type"), source.get("data"), IMAGE_SIZE)
        case "tool_result":
            content = _content(block.get("content", "-"))
            if not content:
                yield f"{where}: an empty result"
            for index, item in enumerate(content):
                yield from _block(f"{where}.content.{index}", item, frozenset({"text", "image"}))
        case _:
            pass
