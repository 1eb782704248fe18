"""What servers of Chat Completions refuse, found on the bytes of a request: the strictest ones' rules."""

import json
import re
from collections.abc import Generator, Iterator
from typing import Any, Final

from daemon.provider import rules
from daemon.provider.quirks import Quirks

ID: Final = re.compile(r"[!-~]{1,40}")
SHORT_ID: Final = re.compile("[a-zA-Z0-9]{9}")
DATA_URL: Final = re.compile(r"data:(image/[a-z]+);base64,(.+)", re.DOTALL)
IMAGE_SIZE: Final = 5 << 20  # bytes of base64
PLAIN: Final = Quirks()


def problems(body: bytes, quirks: Quirks = PLAIN) -> list[str]:
    """The problems found in the body of a Chat Completions request; empty where it would be accepted.

    `quirks`: what this server and model want besides (ids of another form, no user's message right after a result,
    reasoning with each answer).
    """
    request = rules.parsed(body)
    if isinstance(request, str):
        return [request]
    return [*rules.strings("body", request), *_head(request), *_turns(request.get("messages"), quirks)]


def _head(request: dict[str, Any]) -> Iterator[str]:
    if not isinstance(request.get("model"), str) or not request["model"]:
        yield "model is missing"
    if request.get("stream") is not True:
        yield "stream is not true"
    for where, tool in rules.objects("tools", request.get("tools")):
        function = rules.field(tool, "function")
        if tool.get("type") != "function" or not rules.NAME.fullmatch(str(function.get("name"))):
            yield f"{where}: no function with a name"
        if rules.field(function, "parameters").get("type") != "object":
            yield f"{where}: no schema of an object"


def _turns(messages: Any, quirks: Quirks) -> Iterator[str]:
    if not isinstance(messages, list) or not messages:
        yield "messages is empty"
        return
    before = ""
    open_calls: list[str] = []
    seen: set[str] = set()
    for index, (where, message) in enumerate(rules.objects("messages", messages)):
        role = message.get("role")
        if role != "tool" and open_calls:
            yield f"{where}: a message of the {role}'s, where results of {open_calls} are missing"
            open_calls = []
        match role:
            case "system" | "developer":
                if role != quirks.system:
                    yield f"{where}: role {role!r}, where the server takes {quirks.system!r}"
                if index:
                    yield f"{where}: a system message that is not the first"
                yield from rules.text(where, message.get("content"))
            case "user":
                if before == "user" or (quirks.bridge and before == "tool"):
                    yield f"{where}: a user's message after one of the {before}'s"
                yield from _content(where, message.get("content"))
            case "assistant":
                if before in ("", "system", "assistant"):
                    yield f"{where}: an answer to nothing"
                open_calls = yield from _answer(where, message, seen, quirks)
            case "tool":
                call = message.get("tool_call_id")
                if call in open_calls:
                    open_calls.remove(call)
                else:
                    yield f"{where}: a result of {call!r}, where the calls without one are {open_calls}"
                yield from rules.text(where, message.get("content"))
            case _:
                yield f"{where}: role {role!r}"
        before = str(role)
    if open_calls:
        yield f"the request ends in calls without results: {', '.join(open_calls)}"
    if before not in ("user", "tool"):
        yield f"the request ends with a message of the {before}'s"


def _answer(
    where: str, message: dict[str, Any], seen: set[str], quirks: Quirks
) -> Generator[str, None, list[str]]:
    """The ids of its calls, after its problems."""
    calls = [call for _, call in rules.objects("", message.get("tool_calls"))]
    content = message.get("content")
    if not isinstance(content, str) or not (content.strip() or calls):
        yield f"{where}: an answer of {content!r}"
    if "tool_calls" in message and not calls:
        yield f"{where}: an empty list of calls"
    ids = []
    for number, call in enumerate(calls):
        place, id, function = (
            f"{where}.tool_calls.{number}",
            str(call.get("id")),
            rules.field(call, "function"),
        )
        if id in seen or not (SHORT_ID if quirks.ids == "short" else ID).fullmatch(id):
            yield f"{place}.id is {id!r}"
        if call.get("type") != "function" or not rules.NAME.fullmatch(str(function.get("name"))):
            yield f"{place}: no function with a name"
        if not isinstance(_read(function.get("arguments")), dict):
            yield f"{place}.arguments are no object: {function.get('arguments')!r}"
        seen.add(id)
        ids.append(id)
    for field in ("reasoning_content", "reasoning"):
        if not isinstance(message.get(field, ""), str):
            yield f"{where}.{field} is no text"
    if quirks.thinking == "reasoning_content" and "reasoning_content" not in message:
        yield f"{where}: an answer without reasoning_content, which this server asks for"
    if not isinstance(message.get("reasoning_details", []), list):
        yield f"{where}.reasoning_details is no list"
    return ids


def _read(arguments: Any) -> Any:
    try:
        return json.loads(arguments, parse_constant=rules.refuse)
    except (ValueError, TypeError, RecursionError):
        return None


def _content(where: str, content: Any) -> Iterator[str]:
    if not isinstance(content, list):
        yield from rules.text(where, content)
        return
    if not content:
        yield f"{where}: no content"
    for place, part in rules.objects(f"{where}.content", content):
        if part.get("type") == "text":
            yield from rules.text(place, part.get("text"))
        elif part.get("type") == "image_url":
            match = DATA_URL.fullmatch(str(rules.field(part, "image_url").get("url")))
            if match is None:
                yield f"{place}: no image in it"
            else:
                yield from rules.image(place, match[1], match[2], IMAGE_SIZE)
        else:
            yield f"{place}: {part.get('type')!r} is not allowed here"
