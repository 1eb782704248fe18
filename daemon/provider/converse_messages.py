"""Bedrock Converse's messages: each turn made into the JSON that the API takes for it."""

from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, assert_never

import msgspec

from daemon.chain import GO_ON, Call, Media, Part, Raw, Result, Text, Turn
from daemon.provider import fitting, repair
from daemon.provider.base import Tool
from daemon.provider.converse import REASONING
from daemon.provider.converse_models import Manners
from daemon.provider.images import BadImage

NOTHING: Final = "(nothing)"  # stands where a message would be empty, which the API refuses
BRIDGE: Final = "I have the results."
GONE: Final = "Not offered any more."  # of a tool that only the past knows

_encode = msgspec.json.Encoder().encode


class Writer:
    """Writes messages for one provider and model. `shows`: it takes images."""

    def __init__(self, provider: str, model: str, manners: Manners, *, shows: bool) -> None:
        self._provider = provider
        self._model = model
        self._manners = manners
        self._shows = shows

    def user(self, parts: Iterable[Part]) -> bytes:
        """A user's turn: results, then everything else in its order, where they may stand together."""
        results: list[bytes] = []
        said: list[bytes] = []
        for part in parts:
            match part:
                case Result():
                    results.append(self._result(part))
                case Text() | Media():
                    said += self._said(part)
                case Call() | Raw():
                    continue  # the assistant's
                case _:
                    assert_never(part)
        if results and said and self._manners.apart:
            bridge = message("assistant", [text(BRIDGE)])
            return b",".join((message("user", results), bridge, message("user", said)))
        return message("user", [*results, *said] or [text(NOTHING)])

    def assistant(self, parts: Iterable[Part]) -> bytes:
        """An answer: what it says, its calls last. Never an empty message, and none that ends in thinking."""
        said: list[bytes] = []
        thought: list[bytes] = []  # apart from what is said, where that stands apart from the calls
        calls: list[bytes] = []
        apart, ends_well = self._manners.apart, False
        for part in parts:
            match part:
                case Call():
                    calls.append(_call(part))
                    continue
                case Text():
                    found, thinks = text(part.text), False
                case Raw():
                    found = self._reasoning(part)
                    thinks = bool(found)
                    found = found or text(part.text)
                case Media() | Result():
                    continue  # the user's
                case _:
                    assert_never(part)
            if found:
                (thought if thinks and apart else said).append(found)
                ends_well = not thinks
        if calls and apart and said:
            words = message("assistant", said), message("user", [text(GO_ON)])
            return b",".join((*words, message("assistant", [*thought, *calls])))
        if not calls and not (said if apart else ends_well):
            said.append(text(NOTHING))
        return message("assistant", [*thought, *said, *calls])

    def _reasoning(self, part: Raw) -> bytes:
        """Reasoning as it goes back, byte for byte: to the model that signed it alone; else empty."""
        if part.provider != self._provider or part.model != self._model or part.type != REASONING:
            return b""
        try:
            fields = msgspec.json.decode(part.body, type=dict[str, str])
        except (msgspec.DecodeError, RecursionError):
            return b""
        if fields.get("signature") and fields.keys() == {"text", "signature"}:
            return b'{"reasoningContent":{"reasoningText":%b}}' % part.body
        if redacted := fields.get("redactedContent"):
            return _encode({"reasoningContent": {"redactedContent": redacted}})
        return b""

    def _result(self, part: Result) -> bytes:
        content = [block for item in part.content for block in self._said(item)] or [text(NOTHING)]
        if part.failed and self._manners.apart:
            content.insert(0, text("Error:"))
        result: dict[str, Any] = {
            "toolUseId": repair.identifier(part.call),
            "content": [msgspec.Raw(block) for block in content],
        }
        if part.failed and not self._manners.apart:
            result["status"] = "error"
        return _encode({"toolResult": result})

    def _said(self, part: Text | Media) -> list[bytes]:
        block = text(part.text) if isinstance(part, Text) else self._media(part)
        return [block] if block else []

    def _media(self, part: Media) -> bytes:
        """An image of the type that its bytes show, or a note that says why there is none."""
        try:
            if not self._shows:
                raise BadImage("the model takes no images")
            fitted = fitting.fitted(part.data)
        except BadImage as error:
            return text(fitting.note(part.type, part.data, error))
        data = b2a_base64(fitted.data, newline=False).decode()
        format = fitted.image.type.removeprefix("image/")
        return _encode({"image": {"format": format, "source": {"bytes": data}}})


def text(words: str) -> bytes:
    """A text block, nothing for a blank text: the API refuses one."""
    return _encode({"text": repair.text(words)}) if words.strip() else b""


def message(role: Literal["user", "assistant"], blocks: Iterable[bytes]) -> bytes:
    """A message of these blocks; it ends in `]}`."""
    return b'{"role":"%b","content":[%b]}' % (role.encode(), b",".join(blocks))


def _call(part: Call) -> bytes:
    fields = {
        "toolUseId": repair.identifier(part.id),
        "name": repair.name(part.name),
        "input": msgspec.Raw(repair.arguments(part.arguments)),
    }
    return _encode({"toolUse": fields})


def tool(tool: Tool) -> dict[str, Any]:
    """A tool as the API is told of it."""
    spec: dict[str, Any] = {"name": tool.name, "inputSchema": {"json": tool.schema}}
    if tool.description.strip():
        spec["description"] = tool.description
    return {"toolSpec": spec}


def past_tools(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Specs of the tools that were called in these turns, since the API wants some wherever there are calls."""
    names = {repair.name(part.name): None for turn in turns for part in turn.parts if isinstance(part, Call)}
    return [tool(Tool(name, GONE, {"type": "object"})) for name in names]
