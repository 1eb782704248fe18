"""What servers of the Responses API refuse, found on the bytes of a request: the strictest ones' rules."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from daemon.provider import rules

ID: Final = re.compile(r"[!-~]{1,64}")  # a call's
DATA_URL: Final = re.compile(r"data:(image/[a-z]+);base64,(.+)", re.DOTALL)
IMAGE_SIZE: Final = 5 << 20  # bytes of base64
IMAGES: Final = 500  # in a request
OUTPUTS: Final = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
FIELDS: Final = {"user": {"input_text", "input_image", "input_file"}, "assistant": {"output_text", "refusal"}}
UNANSWERED: Final = frozenset(  # calls that the client carries out, and of which we never send an output
    {"computer_call", "local_shell_call", "shell_call", "apply_patch_call", "mcp_approval_request"}
)


def problems(body: bytes) -> list[str]:
    """The problems found in the body of a Responses request; empty where it would be accepted."""
    request = rules.parsed(body)
    if isinstance(request, str):
        return [request]
    return [*rules.strings("body", request), *_head(request), *_Input().check(request.get("input"))]


def _head(request: dict[str, Any]) -> Iterator[str]:
    if not isinstance(request.get("model"), str) or not request["model"]:
        yield "model is missing"
    if request.get("stream") is not True:
        yield "stream is not true"
    if "instructions" in request:
        yield from rules.text("instructions", request["instructions"])
    for name in ("previous_response_id", "conversation"):
        if request.get(name) is not None:
            yield f"{name}: the input holds all of the history already"
    for where, tool in rules.objects("tools", request.get("tools")):
        if tool.get("type") != "function" or not _fits(rules.NAME, tool.get("name")):
            yield f"{where}: no function with a name"
        if rules.field(tool, "parameters").get("type") != "object":
            yield f"{where}: no schema of an object"
        if tool.get("strict") is not False:
            yield f"{where}: strict, which its schema is not made for"


class _Input:
    """The items of a request, taken one by one."""

    def __init__(self) -> None:
        self._calls: set[str] = set()  # ids of all calls so far
        self._open: dict[str, str] = {}  # of those without an output, with the type that it has to have
        self._loose: set[str] = set()  # of these, those that have no id of their own
        self._ids: set[str] = set()  # of all items so far
        self._images = 0

    def check(self, items: Any) -> Iterator[str]:
        if not isinstance(items, list) or not items:
            yield "input is empty"
            return
        found = list(rules.objects("input", items))
        for index, (where, item) in enumerate(found):
            follows = found[index + 1][1] if index + 1 < len(found) else {}
            id = item.get("id")
            if id is not None and (not isinstance(id, str) or not id or id in self._ids):
                yield f"{where}.id is {id!r}, there twice or none"
            self._ids.add(str(id))
            yield from self._item(where, item, follows)
        if self._open:
            yield f"the request ends in calls without outputs: {', '.join(self._open)}"
        if not _asks(found[-1][1]):
            yield f"the request ends with {found[-1][1].get('type')!r} of the assistant's"
        if self._images > IMAGES:
            yield f"{self._images} images, where {IMAGES} are allowed"

    def _item(self, where: str, item: dict[str, Any], follows: dict[str, Any]) -> Iterator[str]:
        kind = item.get("type", "message")
        if self._loose and kind not in (*OUTPUTS, *OUTPUTS.values()):
            yield f"{where}: {kind!r} stands between a call and its output, and no id binds them"
        match kind:
            case "message":
                yield from self._message(where, item)
            case "function_call" | "custom_tool_call":
                yield from self._call(where, str(kind), item)
            case "function_call_output" | "custom_tool_call_output":
                call = item.get("call_id")
                if self._open.pop(str(call), None) != kind:
                    yield f"{where}: a {kind} of {call!r}, where the calls without one are {[*self._open]}"
                self._loose.discard(str(call))
                yield from self._content(f"{where}.output", item.get("output"), FIELDS["user"])
            case "reasoning":
                yield from self._reasoning(where, item, follows)
            case str() if kind in UNANSWERED or kind == "item_reference":
                yield f"{where}: {kind} without what belongs to it"
            case str():
                pass  # one of the provider's own
            case _:
                yield f"{where}: type {kind!r}"

    def _message(self, where: str, item: dict[str, Any]) -> Iterator[str]:
        role = item.get("role")
        if role not in ("user", "assistant"):
            yield f"{where}: role {role!r}"
        if role == "user" and self._open:
            yield f"{where}: a message of the user's, where outputs of {[*self._open]} are missing"
            self._open.clear()
            self._loose.clear()
        yield from self._content(where, item.get("content"), FIELDS.get(str(role), set()))

    def _call(self, where: str, kind: str, item: dict[str, Any]) -> Iterator[str]:
        id = str(item.get("call_id"))
        if id in self._calls or not _fits(ID, item.get("call_id")):
            yield f"{where}.call_id is {id!r}"
        if not _fits(rules.NAME, item.get("name")):
            yield f"{where}.name is {item.get('name')!r}"
        if kind == "custom_tool_call" and not isinstance(item.get("input"), str):
            yield f"{where}.input is no text"
        if kind == "function_call" and not isinstance(_read(item.get("arguments")), dict):
            yield f"{where}.arguments are no object: {item.get('arguments')!r}"
        self._calls.add(id)
        self._open[id] = OUTPUTS[kind]
        if item.get("id") is None:
            self._loose.add(id)

    def _reasoning(self, where: str, item: dict[str, Any], follows: dict[str, Any]) -> Iterator[str]:
        if not isinstance(item.get("summary"), list):
            yield f"{where}: no summary"
        words = [part for _, part in rules.objects("", item.get("content"))]
        if not item.get("encrypted_content") and not any(
            str(part.get("text") or "").strip() for part in words
        ):
            yield f"{where}: a reasoning that nobody can read"
        if not follows or _asks(follows):
            yield f"{where}: a reasoning without the item that it led to"
        elif item.get("encrypted_content") and item.get("id") and not follows.get("id"):
            yield f"{where}: a reasoning with its id, where what it led to has none"

    def _content(self, where: str, content: Any, allowed: set[str]) -> Iterator[str]:
        if not isinstance(content, list):
            yield from rules.text(where, content)
            return
        if not content:
            yield f"{where}: no content"
        for place, part in rules.objects(where, content):
            kind = part.get("type")
            if kind not in allowed:
                yield f"{place}: {kind!r} is not allowed here"
            elif kind == "input_image":
                self._images += 1
                match = DATA_URL.fullmatch(str(part.get("image_url")))
                if match is None:
                    yield f"{place}: no image in it"
                else:
                    yield from rules.image(place, match[1], match[2], IMAGE_SIZE)
            else:
                yield from rules.text(place, part.get("refusal" if kind == "refusal" else "text"))


def _asks(item: dict[str, Any]) -> bool:
    """Whether an item is the user's, or what a call gave."""
    return item.get("role") == "user" or item.get("type") in OUTPUTS.values()


def _fits(form: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None


def _read(arguments: Any) -> Any:
    try:
        return json.loads(arguments, parse_constant=rules.refuse)
    except (ValueError, TypeError, RecursionError):
        return None
