"""The Messages API: a context made into a request body, turn by turn, and its answers decoded.

A turn's wire form is made once and kept; a body is the join of these. The form of a turn does not change when a cache
mark is put after it or taken away again, so what a provider has cached of a session stays good.
"""

from binascii import b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, assert_never

import msgspec

from daemon.chain import GO_ON, Call, Media, Part, Raw, Result, Text, Turn
from daemon.provider import errors, images, models, patch, repair
from daemon.provider.base import (
    DEFAULT_OUTPUT,
    Decoder,
    Model,
    ProviderError,
    Query,
    Request,
    Tool,
    Transport,
    Wire,
)
from daemon.provider.messages import BLOCK
from daemon.provider.messages import Decoder as MessagesDecoder

URL: Final = "https://api.anthropic.com"
PATH: Final = "/v1/messages"
VERSION: Final = "2023-06-01"  # of the wire; the vendor has had no other since
OWNED: Final = frozenset({"model", "messages", "system", "tools", "stream"})
MARKED: Final = 2  # user turns with a cache mark: the newest, and the one before, which the last step wrote
MAX_IMAGE: Final = 5 << 20  # bytes of base64
MAX_SIDE: Final = 8000  # pixels
NOTHING: Final = "(nothing)"  # stands where a message would be empty, which the API refuses
THINKING: Final = frozenset({"thinking", "redacted_thinking"})

_MARK: Final = b',"cache_control":{"type":"ephemeral"}'
_END: Final = b"}]}"  # how every message ends: its last block, its content, itself
_ASSISTANT: Final = b'{"role":"assistant","content":['
_encode = msgspec.json.Encoder().encode


class Anthropic:
    """A provider of the Messages API. `url` is its root, without `/v1`; `headers` win over its own."""

    def __init__(
        self,
        name: str = "anthropic",
        *,
        url: str = URL,
        key: str = "",
        headers: Mapping[str, str] | None = None,
        known: Sequence[Model] = models.ANTHROPIC,
        transport: Transport | None = None,
    ) -> None:
        self.name = name
        self.transport = transport
        self._url = url.rstrip("/").removesuffix("/v1") + PATH
        own = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "anthropic-version": VERSION,
        }
        own |= {"x-api-key": key} if key else {}
        self._headers = own | {field.lower(): value for field, value in (headers or {}).items()}
        self._known = tuple(known)

    def compile(self, query: Query, wire: Wire) -> Request:
        """See `base.Provider`; the marks are indexes into `messages`."""
        messages = self._messages(query, wire)
        users = [index for index in range(len(messages)) if not messages[index].startswith(_ASSISTANT)]
        marks = tuple(users[-MARKED:])
        for index in marks:
            messages[index] = messages[index].removesuffix(_END) + _MARK + _END
        fields = patch.merge({"max_tokens": query.model.output or DEFAULT_OUTPUT}, query.params)
        fields.setdefault("max_tokens", DEFAULT_OUTPUT)  # a null takes it out, and the API requires it
        head = _encode({"model": query.model.name, **repair.scrub(fields), "stream": True})
        body = [head[:-1]]
        if system := repair.text(query.context.system).strip():
            body.append(b',"system":[%b%b}]' % (_text(system)[:-1], _MARK))
        if query.tools:
            body.append(b',"tools":' + _encode([_tool(tool) for tool in query.tools]))
        body += b',"messages":[', b",".join(messages), b"]}"
        return Request(self._url, self._headers, b"".join(body), marks)

    def decoder(self) -> Decoder:
        return MessagesDecoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return errors.classify(status, headers, body)

    def check_params(self, params: Mapping[str, Any]) -> str:
        return patch.refused(params, OWNED)

    def models(self) -> Sequence[Model]:
        return self._known

    def _messages(self, query: Query, wire: Wire) -> list[bytes]:
        context, model = query.context, query.model.name
        settled = context.settled
        kept = wire.ready(self.name, model, context.epoch)
        # What follows a turn is part of how it is sent, so the last one is kept only once that is known.
        known = len(settled) if context.last is not None else max(0, len(settled) - 1)
        for index in range(len(kept), known):
            following = settled[index + 1] if index + 1 < len(settled) else context.last
            kept.append(self._turn(settled, index, following, model))
        messages = kept[:known]
        if context.last is not None:
            messages.append(_user(context.last.parts))
        elif not settled:
            messages.append(_user((Text(GO_ON),)))
        else:
            messages.append(self._turn(settled, known, None, model))
            if not self._paused(settled[-1]):
                messages.append(_user((Text(GO_ON),)))
        return _joined(messages) if b"" in messages else messages

    def _turn(self, settled: Sequence[Turn], index: int, following: Turn | None, model: str) -> bytes:
        """One settled turn's message; empty for a turn that only stands between the halves of a paused answer."""
        turn = settled[index]
        if turn.role == "assistant":
            going_on = self._paused(turn) and (following is None or _goes_on(following))
            return self._assistant(turn.parts, model, going_on)
        if index and _goes_on(turn) and self._paused(settled[index - 1]):
            return b""
        return _user(turn.parts)

    def _paused(self, turn: Turn) -> bool:
        """Whether this answer stopped in the middle of the provider's own tools: it goes on where it was."""
        last = turn.parts[-1]
        if not isinstance(last, Raw) or any(isinstance(part, Call) for part in turn.parts):
            return False
        block = self._own(last)
        return block is not None and block.get("type") not in (*THINKING, "text")

    def _own(self, part: Raw) -> dict[str, Any] | None:
        """The block of a part that this provider made, None for another's and for one that does not read."""
        if part.provider != self.name or part.type != BLOCK:
            return None
        try:
            block = msgspec.json.decode(part.body)
        except (msgspec.DecodeError, RecursionError):
            return None
        return block if isinstance(block, dict) else None

    def _assistant(self, parts: Iterable[Part], model: str, going_on: bool) -> bytes:
        blocks: list[bytes] = []
        calls: list[bytes] = []  # go last: the API misses the results of a call that text comes after
        answered = self._answered(parts)
        ends_well = False  # with a block that may be a message's last
        for part in parts:
            match part:
                case Text():
                    found = _text(part.text)
                case Raw():
                    found = self._raw(part, model, answered if not going_on else None)
                case Call():
                    calls.append(self._call(part))
                    continue
                case Media() | Result():
                    continue  # the user's
                case _:
                    assert_never(part)
            if found:
                blocks.append(found)
                ends_well = isinstance(part, Text) or not self._thinks(part)
        if not calls and not ends_well:
            blocks.append(_text(NOTHING))
        return _message("assistant", [*blocks, *calls])

    def _thinks(self, part: Raw) -> bool:
        block = self._own(part)
        return block is not None and block.get("type") in THINKING

    def _answered(self, parts: Iterable[Part]) -> set[str]:
        """Ids of the provider's own tool uses that have their result."""
        raws = (self._own(part) for part in parts if isinstance(part, Raw))
        return {str(block["tool_use_id"]) for block in raws if block is not None and "tool_use_id" in block}

    def _raw(self, part: Raw, model: str, answered: set[str] | None) -> bytes:
        """A raw block as it goes back, empty when it does not. `answered`: ids that have results, None: all may."""
        block = self._own(part)
        if block is None:
            return _text(part.text)
        match block.get("type"):
            case "thinking" if part.model != model or not block.get("signature"):
                return b""
            case "redacted_thinking" if part.model != model:
                return b""
            case "text" if not str(block.get("text") or "").strip():
                return b""
            case str() as kind if kind.endswith("tool_use") and answered is not None:
                return part.body if str(block.get("id")) in answered else b""
        return part.body

    def _call(self, part: Call) -> bytes:
        extra: dict[str, Any] = {}
        if part.provider == self.name and part.extra:
            try:
                extra = msgspec.json.decode(part.extra, type=dict[str, Any])
            except msgspec.DecodeError:
                extra = {}
        return _encode(
            {
                "type": "tool_use",
                "id": repair.identifier(part.id),
                "name": repair.name(part.name),
                "input": msgspec.Raw(repair.arguments(part.arguments)),
                **extra,
            }
        )


def _user(parts: Iterable[Part]) -> bytes:
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
    return _message("user", [*results, *blocks] or [_text(NOTHING)])


def _result(part: Result) -> bytes:
    content = [block for item in part.content for block in _said(item)] or [_text(NOTHING)]
    result: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": repair.identifier(part.call),
        "content": [msgspec.Raw(block) for block in content],
    }
    if part.failed:
        result["is_error"] = True
    return _encode(result)


def _said(part: Text | Media) -> list[bytes]:
    block = _text(part.text) if isinstance(part, Text) else _media(part)
    return [block] if block else []


def _text(text: str) -> bytes:
    """A text block, nothing for a blank text: the API refuses one."""
    return _encode({"type": "text", "text": repair.text(text)}) if text.strip() else b""


def _media(part: Media) -> bytes:
    """An image block of the type that its bytes show, or a note that says why there is none."""
    size = 4 * -(-len(part.data) // 3)
    try:
        image = images.inspect(part.data)
        if size > MAX_IMAGE:
            raise images.BadImage(f"it is {size} bytes in base64, where {MAX_IMAGE} are allowed")
        if max(image.width, image.height) > MAX_SIDE:
            raise images.BadImage(
                f"it is {image.width} by {image.height} pixels, where {MAX_SIDE} a side are allowed"
            )
    except images.BadImage as error:
        return _text(f"[an image ({part.type}, {len(part.data)} bytes) that cannot be shown: {error}]")
    data = b2a_base64(part.data, newline=False).decode()
    source = {"type": "base64", "media_type": image.type, "data": data}
    return _encode({"type": "image", "source": source})


def _message(role: Literal["user", "assistant"], blocks: Iterable[bytes]) -> bytes:
    return b'{"role":"%b","content":[%b]}' % (role.encode(), b",".join(blocks))


def _goes_on(turn: Turn) -> bool:
    """Whether a user turn says no more than that the answer is to go on."""
    return turn.role == "user" and turn.parts == (Text(GO_ON),)


def _joined(messages: Iterable[bytes]) -> list[bytes]:
    """The messages without the empty ones, what stood on both sides of one made one message."""
    joined: list[bytes] = []
    for message in messages:
        if message.startswith(_ASSISTANT) and joined and joined[-1].startswith(_ASSISTANT):
            joined[-1] = joined[-1].removesuffix(b"]}") + b"," + message.removeprefix(_ASSISTANT)
        elif message:
            joined.append(message)
    return joined


def _tool(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
