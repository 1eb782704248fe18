"""What Gemini's API refuses, found on the bytes of a request: its newest models' rules."""

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any, Final

from daemon.provider import rules

NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")  # a function's; newer models take longer ones
MAX_BODY: Final = 100 << 20  # bytes of a request, images and all
SEES: Final = frozenset({"image/png", "image/jpeg", "image/webp"})  # of those that we send
DATA: Final = (  # the fields that a part has one of
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
)
SIGNATURE: Final = "thoughtSignature"


def problems(body: bytes, *, signed: bool = False) -> list[str]:
    """The problems found in the body of a request; empty where it would be accepted.

    `signed`: the model demands a signature on the first call of each answer, and takes images inside results.
    """
    if len(body) > MAX_BODY:
        return [f"the body has {len(body)} bytes, where {MAX_BODY} are allowed"]
    request = rules.parsed(body)
    if isinstance(request, str):
        return [request]
    return [*rules.strings("body", request), *_head(request), *_turns(request.get("contents"), signed)]


def _head(request: dict[str, Any]) -> Iterator[str]:
    if "systemInstruction" in request:
        parts = list(
            rules.objects("systemInstruction.parts", rules.field(request, "systemInstruction").get("parts"))
        )
        if not parts:
            yield "systemInstruction: no parts"
        for where, part in parts:
            yield from rules.text(where, part.get("text"))
    seen: set[str] = set()
    for place, tool in rules.objects("tools", request.get("tools")):
        for where, declared in rules.objects(
            f"{place}.functionDeclarations", tool.get("functionDeclarations")
        ):
            name = str(declared.get("name"))
            if not NAME.fullmatch(name) or name in seen:
                yield f"{where}: no name, or one that is there twice: {name!r}"
            seen.add(name)
            if rules.field(declared, "parametersJsonSchema").get("type") != "object":
                yield f"{where}: no schema of an object"


def _turns(contents: Any, signed: bool) -> Iterator[str]:
    if not isinstance(contents, list) or not contents:
        yield "contents is empty"
        return
    calls: list[tuple[str, str]] = []  # of the content before, name and id
    before = ""
    answers = False  # the content before holds results
    for where, content in rules.objects("contents", contents):
        role = content.get("role")
        parts = list(rules.objects(f"{where}.parts", content.get("parts")))
        if not parts:
            yield f"{where}: no parts"
        results = _named(parts, "functionResponse")
        match role:
            case "user":
                if before == "user" and not (answers and not results):
                    yield f"{where}: a user's content after another one"
                if sorted(results) != sorted(calls):
                    yield f"{where}: results of {results}, where the calls are {calls}"
                elif results != calls:
                    yield f"{where}: the results are not in the order of their calls"
                if results and len(results) < len(parts):
                    yield f"{where}: something stands beside the results"
                calls = []
            case "model":
                if before != "user":
                    yield f"{where}: an answer to nothing"
                if calls:
                    yield f"{where}: an answer where results of {calls} are missing"
                calls = _named(parts, "functionCall")
                yield from _signed(parts, signed)
            case _:
                yield f"{where}: role {role!r}"
        before, answers = str(role), bool(results)
        for place, part in parts:
            yield from _part(place, part, before, signed)
    if calls:
        yield f"the request ends in calls without results: {calls}"
    if before != "user":
        yield "the request does not end with the user's content"


def _named(parts: list[tuple[str, dict[str, Any]]], kind: str) -> list[tuple[str, str]]:
    found = [rules.field(part, kind) for _, part in parts if kind in part]
    return [(str(one.get("name")), str(one.get("id", ""))) for one in found]


def _signed(parts: list[tuple[str, dict[str, Any]]], signed: bool) -> Iterator[str]:
    """That the first call has a signature where that is demanded."""
    first = next(((where, part) for where, part in parts if "functionCall" in part), None)
    if signed and first is not None and not first[1].get(SIGNATURE):
        yield f"{first[0]}: function call is missing a thought_signature"


def _part(where: str, part: dict[str, Any], role: str, signed: bool) -> Iterator[str]:
    kinds = [name for name in DATA if name in part]
    if len(kinds) != 1:
        yield f"{where}: {', '.join(kinds) or 'nothing'} in it, where one thing has to be"
        return
    if SIGNATURE in part:
        if role != "model":
            yield f"{where}: a signature in what the user says"
        yield from _signature(where, part[SIGNATURE])
    value = rules.field(part, kinds[0])
    match kinds[0]:
        case "text":
            signature = isinstance(part["text"], str) and part.get(SIGNATURE)
            if not signature:
                yield from rules.text(where, part["text"])
        case "inlineData":
            yield from _image(where, value, role)
        case "functionCall":
            yield from _function(where, value)
            if role != "model" or not isinstance(value.get("args", {}), dict):
                yield f"{where}: a call of the {role}'s, or its args are no object"
        case "functionResponse":
            yield from _function(where, value)
            if role != "user" or not isinstance(value.get("response"), dict):
                yield f"{where}: a result of the {role}'s, or its response is no object"
            if "parts" in value and not signed:
                yield f"{where}: images inside a result, which this model does not take"
            for place, inner in rules.objects(f"{where}.parts", value.get("parts")):
                if set(inner) != {"inlineData"}:
                    yield f"{place}: no inlineData"
                yield from _image(place, rules.field(inner, "inlineData"), role)
        case _:
            if role != "model":
                yield f"{where}: {kinds[0]} in what the user says"


def _function(where: str, value: dict[str, Any]) -> Iterator[str]:
    if not NAME.fullmatch(str(value.get("name"))):
        yield f"{where}: the name {value.get('name')!r}"


def _signature(where: str, given: Any) -> Iterator[str]:
    """A signature has to be base64, of either alphabet."""
    try:
        plain = given.replace("-", "+").replace("_", "/")
        sound = bool(base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True))
    except (AttributeError, binascii.Error, ValueError):
        sound = False
    if not sound:
        yield f"{where}: the signature {given!r} is no base64"


def _image(where: str, value: dict[str, Any], role: str) -> Iterator[str]:
    if role == "model":
        return  # the model's own, of any kind
    if value.get("mimeType") not in SEES:
        yield f"{where}: {value.get('mimeType')!r} is no image that models take"
    yield from rules.image(where, value.get("mimeType"), value.get("data"), MAX_BODY)
