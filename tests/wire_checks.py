"""What the wires' servers refuse, checked on a request's bytes: for tests, and for mock servers of the campaigns."""

import base64
import binascii
import json
import re
from collections.abc import Generator, Iterator
from typing import Any

ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MARKS = 4  # cache marks in a request
IMAGE_SIZE = 5 << 20  # bytes of base64
MAGIC = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}
SPEAKS = {"text", "thinking", "redacted_thinking"}
USER = {"text", "image", "document", "tool_result"}


def check_messages(body: bytes) -> list[str]:
    """The problems found in the body of a Messages request; empty where it is fine."""
    request = _parsed(body)
    if isinstance(request, str):
        return [request]
    return [*_strings("body", request), *_head(request), *_turns(request.get("messages"))]


def check_chat(body: bytes, *, mistral: bool = False) -> list[str]:
    """The problems found in the body of a Chat Completions request, by the strictest servers' rules.

    `mistral`: also what Mistral's templates refuse, ids of another form and a user's message right after a result.
    """
    request = _parsed(body)
    if isinstance(request, str):
        return [request]
    return [*_strings("body", request), *_chat_head(request), *_chat(request.get("messages"), mistral)]


def _parsed(body: bytes) -> dict[str, Any] | str:
    """The request, or what is wrong with all of it."""
    try:
        request = json.loads(body.decode(), parse_constant=_refuse)
    except ValueError as error:
        return f"the body is not JSON: {error}"
    return request if isinstance(request, dict) else "the body is not an object"


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _strings(where: str, value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            yield f"{where}: half a character"
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _strings(f"{where}.{name}", item)
            yield from _strings(f"{where} (a name)", name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(f"{where}.{index}", item)


def _head(request: dict[str, Any]) -> Iterator[str]:
    if not isinstance(request.get("model"), str) or not request["model"]:
        yield "model is missing"
    limit = request.get("max_tokens")
    if not isinstance(limit, int) or limit < 1:
        yield f"max_tokens is {limit!r}"
    if request.get("stream") is not True:
        yield "stream is not true"
    for index, block in enumerate(request.get("system", [])):
        yield from _text(f"system.{index}", block)
    for index, tool in enumerate(request.get("tools", [])):
        if not ID.fullmatch(str(tool.get("name"))) or tool.get("input_schema", {}).get("type") != "object":
            yield f"tools.{index}: no name or no schema of an object"
    if (marks := json.dumps(request).count('"cache_control"')) > MARKS:
        yield f"{marks} cache marks, where {MARKS} are allowed"


def _turns(messages: Any) -> Iterator[str]:
    if not isinstance(messages, list) or not messages:
        yield "messages is empty"
        return
    calls: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        role = "assistant" if index % 2 else "user"
        if message.get("role") != role:
            yield f"{where}: role {message.get('role')!r}, where it is the {role}'s turn"
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list) or not content:
            yield f"{where}: no content"
            content = []
        if message.get("role") == "user":
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
    if kinds and kinds[-1] in ("thinking", "redacted_thinking"):
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
            yield from _text(place, block)
        elif kind.endswith("_tool_use") and not last and block.get("id") not in answered:
            yield f"{place}: {kind} without its result"
        elif "tool_use_id" in block and block["tool_use_id"] not in used:
            yield f"{place}: {kind} without its use"
        elif kind in ("tool_result", "image", "None"):
            yield f"{place}: {kind} in an answer"


def _call(where: str, block: dict[str, Any]) -> Iterator[str]:
    for field in ("id", "name"):
        if not ID.fullmatch(str(block.get(field, ""))):
            yield f"{where}.{field} is {block.get(field)!r}"
    if not isinstance(block.get("input"), dict):
        yield f"{where}.input is no object"


def _block(where: str, block: dict[str, Any], allowed: set[str]) -> Iterator[str]:
    kind = block.get("type")
    if kind not in allowed:
        yield f"{where}: {kind!r} is not allowed here"
    match kind:
        case "text":
            yield from _text(where, block)
        case "image":
            yield from _image(where, block.get("source", {}))
        case "tool_result":
            content = block.get("content", "-")
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            if not content:
                yield f"{where}: an empty result"
            for index, item in enumerate(content):
                yield from _block(f"{where}.content.{index}", item, {"text", "image"})
        case _:
            pass


def _text(where: str, block: dict[str, Any]) -> Iterator[str]:
    text = block.get("text")
    if not isinstance(text, str) or not text.strip():
        yield f"{where}: blank text {text!r}"


def _image(where: str, source: dict[str, Any]) -> Iterator[str]:
    data = source.get("data", "")
    kind = str(source.get("media_type"))
    if len(data) > IMAGE_SIZE:
        yield f"{where}: {len(data)} bytes of base64"
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, TypeError):
        yield f"{where}: not base64"
        return
    if kind not in MAGIC or not raw.startswith(MAGIC[kind]):
        yield f"{where}: it is no {kind}"


CHAT_ID = re.compile(r"[!-~]{1,40}")
SHORT_ID = re.compile("[a-zA-Z0-9]{9}")
DATA_URL = re.compile(r"data:(image/[a-z]+);base64,(.+)", re.DOTALL)


def _chat_head(request: dict[str, Any]) -> Iterator[str]:
    if not isinstance(request.get("model"), str) or not request["model"]:
        yield "model is missing"
    if request.get("stream") is not True:
        yield "stream is not true"
    for index, tool in enumerate(request.get("tools", [])):
        function = tool.get("function", {})
        schema = function.get("parameters", {})
        if tool.get("type") != "function" or not ID.fullmatch(str(function.get("name"))):
            yield f"tools.{index}: no function with a name"
        if schema.get("type") != "object":
            yield f"tools.{index}: no schema of an object"


def _chat(messages: Any, mistral: bool) -> Iterator[str]:
    if not isinstance(messages, list) or not messages:
        yield "messages is empty"
        return
    before = ""
    open_calls: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(messages):
        where, role = f"messages.{index}", message.get("role")
        if role != "tool" and open_calls:
            yield f"{where}: a message of the {role}'s, where results of {open_calls} are missing"
            open_calls = []
        match role:
            case "system":
                if index:
                    yield f"{where}: a system message that is not the first"
                yield from _words(where, message.get("content"))
            case "user":
                if before == "user" or (mistral and before == "tool"):
                    yield f"{where}: a user's message after one of the {before}'s"
                yield from _chat_content(where, message.get("content"))
            case "assistant":
                if before in ("", "system", "assistant"):
                    yield f"{where}: an answer to nothing"
                open_calls = yield from _chat_answer(where, message, seen, mistral)
            case "tool":
                call = message.get("tool_call_id")
                if call in open_calls:
                    open_calls.remove(call)
                else:
                    yield f"{where}: a result of {call!r}, where the calls without one are {open_calls}"
                yield from _words(where, message.get("content"))
            case _:
                yield f"{where}: role {role!r}"
        before = str(role)
    if open_calls:
        yield f"the request ends in calls without results: {', '.join(open_calls)}"
    if before not in ("user", "tool"):
        yield f"the request ends with a message of the {before}'s"


def _chat_answer(
    where: str, message: dict[str, Any], seen: set[str], mistral: bool
) -> Generator[str, None, list[str]]:
    """The ids of its calls, after its problems."""
    calls = message.get("tool_calls", [])
    content = message.get("content")
    if not isinstance(content, str) or not (content.strip() or calls):
        yield f"{where}: an answer of {content!r}"
    if "tool_calls" in message and not calls:
        yield f"{where}: an empty list of calls"
    ids = []
    for number, call in enumerate(calls):
        place, id, function = f"{where}.tool_calls.{number}", str(call.get("id")), call.get("function", {})
        if id in seen or not (SHORT_ID if mistral else CHAT_ID).fullmatch(id):
            yield f"{place}.id is {id!r}"
        if call.get("type") != "function" or not ID.fullmatch(str(function.get("name"))):
            yield f"{place}: no function with a name"
        try:
            arguments = json.loads(function.get("arguments"), parse_constant=_refuse)
        except (ValueError, TypeError):
            arguments = None
        if not isinstance(arguments, dict):
            yield f"{place}.arguments are no object: {function.get('arguments')!r}"
        seen.add(id)
        ids.append(id)
    for field in ("reasoning_content", "reasoning"):
        if not isinstance(message.get(field, ""), str):
            yield f"{where}.{field} is no text"
    if not isinstance(message.get("reasoning_details", []), list):
        yield f"{where}.reasoning_details is no list"
    return ids


def _chat_content(where: str, content: Any) -> Iterator[str]:
    if not isinstance(content, list):
        yield from _words(where, content)
        return
    if not content:
        yield f"{where}: no content"
    for index, part in enumerate(content):
        place = f"{where}.content.{index}"
        if part.get("type") == "text":
            yield from _text(place, part)
        elif part.get("type") == "image_url":
            match = DATA_URL.fullmatch(str(part.get("image_url", {}).get("url")))
            if match is None:
                yield f"{place}: no image in it"
            else:
                yield from _image(place, {"media_type": match[1], "data": match[2]})
        else:
            yield f"{place}: {part.get('type')!r} is not allowed here"


def _words(where: str, content: Any) -> Iterator[str]:
    if not isinstance(content, str) or not content.strip():
        yield f"{where}: blank content {content!r}"
