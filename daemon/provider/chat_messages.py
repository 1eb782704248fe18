"""Chat Completions' messages: each turn made into the JSON that servers of the wire take for it."""

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, assert_never

import msgspec

from daemon.chain import Call, Media, Part, Raw, Result, Text
from daemon.provider import fitting, repair
from daemon.provider.base import Tool
from daemon.provider.chat import REASONING
from daemon.provider.chat_pieces import Kept
from daemon.provider.images import BadImage
from daemon.provider.quirks import Quirks

MAX_ID: Final = 40  # characters; OpenAI refuses more
NOTHING: Final = "(nothing)"  # stands where a message would be empty, which some servers refuse
BRIDGE: Final = "I have the results."
APART: Final = "\n\n"  # between texts that become one: many servers take a plain string alone

_encode = msgspec.json.Encoder().encode
_kept = msgspec.json.Decoder(Kept).decode


class Writer:
    """Writes messages for one provider and model. `shows`: it takes images."""

    def __init__(self, provider: str, model: str, quirks: Quirks, *, shows: bool) -> None:
        self._provider = provider
        self.model = model
        self._quirks = quirks
        self._shows = shows
        self._id: Callable[[str], str] = (
            repair.short_id if quirks.ids == "short" else lambda given: repair.plain_id(given, MAX_ID)
        )

    def system(self, text: str) -> bytes:
        return _encode({"role": self._quirks.system, "content": text})

    def user(self, parts: Iterable[Part]) -> bytes:
        """A user's turn: a message for each result, then one of all else, the results' images first."""
        messages: list[bytes] = []
        shown: list[dict[str, Any]] = []
        said: list[dict[str, Any]] = []
        for part in parts:
            match part:
                case Result():
                    messages.append(self._result(part, shown))
                case Text() | Media():
                    said += self._said(part)
                case Call() | Raw():
                    continue  # the assistant's
                case _:
                    assert_never(part)
        if shown or said or not messages:
            if messages and self._quirks.bridge:
                messages.append(_encode({"role": "assistant", "content": BRIDGE}))
            content = _content([*shown, *said] or [_text(NOTHING)])
            messages.append(_encode({"role": "user", "content": content}))
        return b",".join(messages)

    def assistant(self, parts: Iterable[Part]) -> bytes:
        """An answer's message. Never an empty one: without calls it has a text."""
        texts: list[str] = []
        calls: list[dict[str, Any]] = []
        more: dict[str, Any] = {}
        for part in parts:
            match part:
                case Text(text):
                    texts.append(text)
                case Raw():
                    texts.append(part.text)
                    more |= self._thought(part)
                case Call():
                    calls.append(self._call(part))
                case Result() | Media():
                    continue  # the user's
                case _:
                    assert_never(part)
        content = repair.text(APART.join(text for text in texts if text.strip()))
        message: dict[str, Any] = {"role": "assistant", "content": content if content or calls else NOTHING}
        if calls:
            message["tool_calls"] = calls
        if self._quirks.thinking == "reasoning_content":
            message |= {"reasoning_content": more.get("reasoning_content", "")}
        else:
            message |= more
        return _encode(message)

    def _call(self, part: Call) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        if part.extra and part.provider == self._provider:
            try:
                extra = msgspec.json.decode(part.extra, type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError):
                extra = {}
        function = {"name": repair.name(part.name), "arguments": repair.arguments(part.arguments).decode()}
        return {**extra, "id": self._id(part.id), "type": "function", "function": function}

    def _result(self, part: Result, shown: list[dict[str, Any]]) -> bytes:
        """A result's message: text alone; its images go to `shown`."""
        texts: list[str] = []
        for item in part.content:
            for block in self._said(item):
                if block["type"] == "text":
                    texts.append(block["text"])
                else:
                    shown += _text(f"The image of the result of {self._id(part.call)}:"), block
                    texts.append("[an image, shown below]")
        text = "\n".join(texts) or NOTHING
        if part.failed:
            text = f"Error: {text}"  # the wire has no mark for it
        return _encode({"role": "tool", "tool_call_id": self._id(part.call), "content": text})

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
        return {"type": "image_url", "image_url": {"url": f"data:{fitted.image.type};base64,{data}"}}

    def _thought(self, part: Raw) -> dict[str, Any]:
        """The fields in which reasoning goes back, byte for byte; none for another's, and none where it may not."""
        ours = part.provider == self._provider and part.model == self.model and part.type == REASONING
        if not ours or self._quirks.thinking == "none":
            return {}
        try:
            kept = _kept(part.body)
        except (msgspec.DecodeError, RecursionError):
            return {}
        if self._quirks.thinking == "reasoning_content":
            return {"reasoning_content": kept.text}
        if bytes(kept.details) != b"[]":
            return {"reasoning_details": kept.details}
        return {kept.field: kept.text} if kept.field else {}


def tool(tool: Tool) -> dict[str, Any]:
    """A tool as servers are told of it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}


def _text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": repair.text(words)}


def _content(blocks: Sequence[dict[str, Any]]) -> Any:
    """A plain string where there is text alone, which every server takes."""
    if all(block["type"] == "text" for block in blocks):
        return APART.join(block["text"] for block in blocks)
    return blocks
