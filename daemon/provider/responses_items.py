"""The Responses API's input: each turn made into the items that the API takes for it.

Items are bound to one another where their reasoning is encrypted: by their ids, and in their order. Such an answer goes
back as it came, or without any id; some of it alone is refused.
"""

from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from typing import Any, Final, assert_never

import msgspec
from msgspec import Struct

from daemon.chain import Call, Media, Part, Raw, Result, Text, Turn
from daemon.provider import fitting, repair
from daemon.provider.base import Tool
from daemon.provider.images import BadImage
from daemon.provider.responses_pieces import CUSTOM, ITEM, WORDS, Kept

MAX_ID: Final = 64  # characters of a call's id; OpenAI refuses more
NOTHING: Final = "(nothing)"  # stands where a message would be empty, which the API refuses
ANSWERED: Final = frozenset(  # items that an output of ours would have to follow, which we never make
    {
        "computer_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "tool_search_call",
        "mcp_approval_request",
    }
)

_encode = msgspec.json.Encoder().encode
_kept = msgspec.json.Decoder(Kept).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode


class _Own(Struct, frozen=True):
    """An item that this provider made: its fields, and its bytes as they go back."""

    fields: dict[str, Any]
    bytes: bytes

    @property
    def type(self) -> str:
        return str(self.fields["type"])

    @property
    def encrypted(self) -> bool:
        return bool(self.fields.get("encrypted_content"))

    @property
    def blank(self) -> bool:
        """It is a message with a part that says nothing, which the API refuses."""
        said = [part.get(WORDS.get(str(part.get("type")), "")) for part in self.parts]
        return self.type == "message" and not all(isinstance(text, str) and text.strip() for text in said)

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Of its content."""
        content = self.fields.get("content")
        return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


class Writer:
    """Writes items for one provider and model. `shows`: it takes images."""

    def __init__(self, provider: str, model: str, *, shows: bool) -> None:
        self._provider = provider
        self.model = model
        self._shows = shows

    def user(self, parts: Iterable[Part], before: Turn | None) -> bytes:
        """A user's turn: an output for each result, then a message of all else. `before`: the answer it follows."""
        free = self._free(before.parts) if before is not None else frozenset()
        items: list[bytes] = []
        said: list[dict[str, Any]] = []
        for part in parts:
            match part:
                case Result():
                    items.append(self._result(part, free=part.call in free))
                case Text() | Media():
                    said += self._said(part)
                case Call() | Raw():
                    continue  # the assistant's
                case _:
                    assert_never(part)
        if said or not items:
            items.append(_encode({"type": "message", "role": "user", "content": said or [_text(NOTHING)]}))
        return b",".join(items)

    def assistant(self, parts: Sequence[Part]) -> bytes:
        """An answer's items; never none at all."""
        found = self._bound(parts) if self._is_bound(parts) else self._loose(parts)
        return b",".join(_led(found)) or _message(NOTHING)

    def _is_bound(self, parts: Iterable[Part]) -> bool:
        """Whether an answer goes back item by item as it came: it holds encrypted reasoning, and every id."""
        reasoned = False
        for part in parts:
            match part:
                case Raw():
                    own = self._own(part)
                    if own is None or not own.fields.get("id") or own.type in ANSWERED:
                        return False
                    if own.blank or (own.type == "reasoning" and not own.encrypted):
                        return False
                    reasoned = reasoned or own.type == "reasoning"
                case Call():
                    if not self._extra(part).get("id"):
                        return False
                case Text(words):
                    if reasoned and words.strip():
                        return False
                case Media() | Result():
                    continue  # the user's
                case _:
                    assert_never(part)
        return reasoned

    def _bound(self, parts: Iterable[Part]) -> list[tuple[str, bytes]]:
        """The types and bytes of an answer's items, as they came."""
        items: list[tuple[str, bytes]] = []
        for part in parts:
            if isinstance(part, Raw):
                if (own := self._own(part)) is not None:
                    items.append((own.type, own.bytes))
            elif isinstance(part, Call):
                items.append(("call", self._call(part, bound=True)))
            elif isinstance(part, Text) and part.text.strip():
                items.append(("message", _message(part.text)))
        return items

    def _loose(self, parts: Sequence[Part]) -> list[tuple[str, bytes]]:
        """The same without what is bound to anything: reasoning first, calls last."""
        items: list[tuple[str, bytes]] = []
        calls: list[
            tuple[str, bytes]
        ] = []  # some servers miss the output of a call that anything else follows
        owns = [self._own(part) for part in parts if isinstance(part, Raw)]
        lost = any(own is not None and own.type == "reasoning" and not _readable(own) for own in owns)
        for part in parts:
            match part:
                case Text(words):
                    items.append(("message", _message(words)))
                case Raw():
                    items.append(self._raw(part, lost=lost))
                case Call():
                    calls.append(("call", self._call(part, bound=False)))
                case Result() | Media():
                    continue  # the user's
                case _:
                    assert_never(part)
        return [item for item in (*items, *calls) if item[1]]

    def _raw(self, part: Raw, *, lost: bool) -> tuple[str, bytes]:
        """An item bound to no other, empty where it cannot go back. `lost`: some reasoning of its answer cannot."""
        own = self._own(part)
        if own is None or own.type == "message":
            phase = own.fields.get("phase") if own is not None else None
            return "message", _message(part.text, phase)
        if own.type == "reasoning":
            if not _readable(own):
                return "reasoning", b""
            if own.encrypted:  # only together with all others' ids does its own mean anything
                return "reasoning", _encode({n: v for n, v in own.fields.items() if n != "id"})
            return "reasoning", own.bytes
        return own.type, b"" if lost or own.type in ANSWERED else own.bytes

    def _own(self, part: Raw) -> _Own | None:
        """The item of a part that this provider and model made; None for another's and for one that does not read."""
        if part.type != ITEM or part.provider != self._provider or part.model != self.model:
            return None
        try:
            item = bytes(_kept(part.body).item)
            own = _Own(_object(item), item)
        except (msgspec.DecodeError, RecursionError):
            return None
        return own if isinstance(own.fields.get("type"), str) else None

    def _extra(self, part: Call) -> dict[str, Any]:
        """What a call of this provider carried besides."""
        if not part.extra or part.provider != self._provider:
            return {}
        try:
            return _object(part.extra)
        except (msgspec.DecodeError, RecursionError):
            return {}

    def _free(self, parts: Iterable[Part]) -> frozenset[str]:
        """Ids of the calls whose input is a text of any form."""
        calls = (part for part in parts if isinstance(part, Call))
        return frozenset(call.id for call in calls if self._extra(call).get("type") == CUSTOM)

    def _call(self, part: Call, *, bound: bool) -> bytes:
        extra = self._extra(part)
        free = extra.get("type") == CUSTOM
        if not bound:
            extra = {name: value for name, value in extra.items() if name not in ("id", "caller")}
        id, name = repair.plain_id(part.id, MAX_ID), repair.name(part.name)
        fields = {"type": CUSTOM if free else "function_call", "call_id": id, "name": name}
        if free:
            return _encode({**extra, **fields, "input": repair.text(part.arguments)})
        return _encode({**extra, **fields, "arguments": repair.arguments(part.arguments).decode()})

    def _result(self, part: Result, *, free: bool) -> bytes:
        """A call's output: a plain text where it has no image, which every server takes."""
        said = [block for item in part.content for block in self._said(item)] or [_text(NOTHING)]
        if part.failed:
            said = [_text("Error:"), *said]  # the wire has no mark for it
        output: Any = said
        if all(block["type"] == "input_text" for block in said):
            output = "\n".join(block["text"] for block in said)
        kind = f"{CUSTOM if free else 'function_call'}_output"
        return _encode({"type": kind, "call_id": repair.plain_id(part.call, MAX_ID), "output": output})

    def _said(self, part: Text | Media) -> list[dict[str, Any]]:
        if isinstance(part, Media):
            return [self._media(part)]
        return [_text(part.text)] if part.text.strip() else []

    def _media(self, part: Media) -> dict[str, Any]:
        """An image of the type that its bytes show, or a note that says why there is none."""
        try:
            if not self._shows:
                raise BadImage("the model takes no images")
            fitted = fitting.fitted(part.data)
        except BadImage as error:
            return _text(fitting.note(part.type, part.data, error))
        data = b2a_base64(fitted.data, newline=False).decode()
        url = f"data:{fitted.image.type};base64,{data}"
        return {"type": "input_image", "detail": "auto", "image_url": url}


def tool(tool: Tool) -> dict[str, Any]:
    """A tool as the API is told of it. Not strict, which it would be by itself: that forbids optional arguments."""
    about = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", **about, "strict": False}


def _led(items: Sequence[tuple[str, bytes]]) -> list[bytes]:
    """The items without reasoning that leads to nothing: the API refuses it."""
    found: list[bytes] = []
    leads = False
    for kind, item in reversed(items):
        leads = leads or kind != "reasoning"
        if leads:
            found.append(item)
    return found[::-1]


def _readable(own: _Own) -> bool:
    """Whether anybody can read a reasoning: the provider what is encrypted, or anyone its text (a summary is none)."""
    return own.encrypted or any(str(part.get("text") or "").strip() for part in own.parts)


def _message(words: str, phase: Any = None) -> bytes:
    """A message of the assistant's, nothing for a blank one: the API refuses it."""
    if not words.strip():
        return b""
    more = {"phase": phase} if isinstance(phase, str) else {}
    return _encode({"type": "message", "role": "assistant", "content": repair.text(words), **more})


def _text(words: str) -> dict[str, Any]:
    return {"type": "input_text", "text": repair.text(words)}
