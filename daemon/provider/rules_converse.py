"""What Bedrock's Converse API refuses, found on the bytes of a request."""

import base64
import binascii
from collections.abc import Iterator
from typing import Any, Final

from daemon.provider import rules

MARKS: Final = 4  # cache marks in a request
IMAGE_SIZE: Final = 5 << 20  # bytes of base64: 3.75 MiB
IMAGES: Final = 20  # in a request
SIZE: Final = 20_000_000  # bytes of a request
USER: Final = frozenset({"text", "image", "toolResult", "cachePoint"})
ASSISTANT: Final = frozenset({"text", "toolUse", "reasoningContent"})
RESULT: Final = frozenset({"text", "image", "json"})


def problems(body: bytes, *, apart: bool = False, cache: bool = True) -> list[str]:
    """The problems found in the body of a ConverseStream request; empty where it would be accepted.

    `apart`: also what the models refuse that want words and calls, or words and results, in messages of their own.
    `cache`: the model takes cache marks.
    """
    request = rules.parsed(body)
    if isinstance(request, str):
        return [request]
    large = [f"{len(body)} bytes, where {SIZE} are allowed"] if len(body) > SIZE else []
    turns = [*_turns(request.get("messages"), apart)]
    return [*large, *rules.strings("body", request), *_head(request, cache), *turns]


def _head(request: dict[str, Any], cache: bool) -> Iterator[str]:
    if "modelId" in request:
        yield "modelId stands in the address, not in the body"
    limit = rules.field(request, "inferenceConfig").get("maxTokens", 1)
    if type(limit) is not int or limit < 1:
        yield f"inferenceConfig.maxTokens is {limit!r}"
    thinking = rules.field(rules.field(request, "additionalModelRequestFields"), "thinking")
    budget = thinking.get("budget_tokens")
    if type(budget) is int and "maxTokens" in rules.field(request, "inferenceConfig") and budget >= limit:
        yield f"thinking.budget_tokens is {budget}, where inferenceConfig.maxTokens is {limit}: it has to be less"
    for where, block in rules.objects("system", request.get("system")):
        if "cachePoint" not in block:
            yield from rules.text(where, block.get("text"))
    tools = rules.field(request, "toolConfig").get("tools")
    if "toolConfig" in request and not tools:
        yield "toolConfig has no tools"
    names: list[str] = []
    for where, tool in rules.objects("toolConfig.tools", tools):
        spec = rules.field(tool, "toolSpec")
        name, description = str(spec.get("name")), spec.get("description", "-")
        schema = rules.field(rules.field(spec, "inputSchema"), "json")
        if not rules.NAME.fullmatch(name) or schema.get("type") != "object":
            yield f"{where}: no name or no schema of an object"
        if not isinstance(description, str) or not description:
            yield f"{where}: an empty description"
        if name in names:
            yield f"{where}: {name} is there twice"
        names.append(name)
    kinds = {kind for _, block in _blocks(request) for kind in block}
    if "toolConfig" not in request and kinds & {"toolUse", "toolResult"}:
        yield "toolConfig is missing, where there are toolUse or toolResult blocks"
    marks = [where for where, block in _blocks(request) if "cachePoint" in block]
    if len(marks) > MARKS:
        yield f"{len(marks)} cache marks, where {MARKS} are allowed"
    if marks and not cache:
        yield f"{marks[0]}: a cache mark, which the model does not take"


def _blocks(request: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from rules.objects("system", request.get("system"))
    for where, message in rules.objects("messages", request.get("messages")):
        yield from rules.objects(f"{where}.content", message.get("content"))


def _turns(messages: Any, apart: bool) -> Iterator[str]:
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
        content = [block for _, block in rules.objects("", message.get("content"))]
        if not content:
            yield f"{where}: no content"
        kinds = [_kind(block) for block in content]
        words = {"text", "image"} & {*kinds}
        if apart and words and {"toolUse", "toolResult"} & {*kinds}:
            yield f"{where}: words stand in one message with calls or results"
        if message.get("role") == "user":
            images += sum(map(_images, content))
            yield from _user(where, content, kinds, calls)
            calls = []
        else:
            calls = [
                str(rules.field(block, "toolUse").get("toolUseId")) for block in content if "toolUse" in block
            ]
            yield from _assistant(where, content, kinds)
            for call in calls:
                if call in seen:
                    yield f"{where}: call {call} is there twice"
                seen.add(call)
    if len(messages) % 2 == 0:
        yield "the request ends with a message of the assistant's"
    if images > IMAGES:
        yield f"{images} images, where {IMAGES} are allowed"


def _kind(block: dict[str, Any]) -> str:
    """The member of a block's union, empty where it has none or several."""
    return next(iter(block)) if len(block) == 1 else ""


def _images(block: dict[str, Any]) -> int:
    inside = rules.objects("", rules.field(block, "toolResult").get("content"))
    return ("image" in block) + sum("image" in item for _, item in inside)


def _user(where: str, content: list[dict[str, Any]], kinds: list[str], calls: list[str]) -> Iterator[str]:
    results = [
        str(rules.field(block, "toolResult").get("toolUseId")) for block in content if "toolResult" in block
    ]
    if sorted(results) != sorted(calls):
        yield f"{where}: results of {results}, where the calls are {calls}"
    if "toolResult" in kinds[len(results) :]:
        yield f"{where}: something stands before a result"
    if kinds and kinds[0] == "cachePoint":
        yield f"{where}: a cache mark after nothing"
    for index, block in enumerate(content):
        yield from _block(f"{where}.content.{index}", block, USER)


def _assistant(where: str, content: list[dict[str, Any]], kinds: list[str]) -> Iterator[str]:
    if "toolUse" in kinds and {*kinds[kinds.index("toolUse") :]} != {"toolUse"}:
        yield f"{where}: something stands after a call, so the API misses its result"
    if kinds and kinds[-1] == "reasoningContent":
        yield f"{where}: reasoning is last"
    for index, block in enumerate(content):
        yield from _block(f"{where}.content.{index}", block, ASSISTANT)


def _block(where: str, block: dict[str, Any], allowed: frozenset[str]) -> Iterator[str]:
    kind = _kind(block)
    if kind not in allowed:
        yield f"{where}: {kind or [*block]!r} is not allowed here"
        return
    value = rules.field(block, kind)
    match kind:
        case "text":
            yield from rules.text(where, block["text"])
        case "image":
            data = rules.field(value, "source").get("bytes")
            yield from rules.image(where, f"image/{value.get('format')}", data, IMAGE_SIZE)
        case "toolUse":
            yield from _called(where, value)
            if not rules.NAME.fullmatch(str(value.get("name", ""))):
                yield f"{where}.name is {value.get('name')!r}"
            if not isinstance(value.get("input"), dict):
                yield f"{where}.input is no object"
        case "toolResult":
            yield from _called(where, value)
            if value.get("status", "success") not in ("success", "error"):
                yield f"{where}.status is {value['status']!r}"
            if not value.get("content"):
                yield f"{where}: an empty result"
            for place, item in rules.objects(f"{where}.content", value.get("content")):
                yield from _block(place, item, RESULT)
        case "reasoningContent":
            yield from _reasoning(where, value)
        case _:
            pass


def _called(where: str, value: dict[str, Any]) -> Iterator[str]:
    if not rules.NAME.fullmatch(str(value.get("toolUseId", ""))):
        yield f"{where}.toolUseId is {value.get('toolUseId')!r}"


def _reasoning(where: str, value: dict[str, Any]) -> Iterator[str]:
    said = rules.field(value, "reasoningText")
    if said:
        if not isinstance(said.get("text"), str) or not said.get("signature"):
            yield f"{where}: reasoning without its signature"
        return
    try:
        if not base64.b64decode(str(value.get("redactedContent", "")), validate=True):
            yield f"{where}: reasoning without anything in it"
    except (binascii.Error, ValueError):
        yield f"{where}: redacted reasoning that is no base64"
