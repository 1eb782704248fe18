"""The Messages API: a context made into a request body, turn by turn, and its answers decoded.

A turn's wire form is made once and kept; a body is the join of these. The form of a turn does not change when a cache
mark is put after it or taken away again, so what a provider has cached of a session stays good.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, assert_never

import msgspec

from daemon.chain import GO_ON, Call, Media, Part, Raw, Result, Text, Turn
from daemon.provider import anthropic_blocks as blocks
from daemon.provider import budget, errors, models, patch, repair, rules_messages
from daemon.provider.base import (
    DEFAULT_OUTPUT,
    Decoder,
    Model,
    ProviderError,
    Query,
    Request,
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
THINKING: Final = frozenset({"thinking", "redacted_thinking"})
USE: Final = "_tool_use"  # how the types of blocks end that use one of the provider's own tools

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
        while budget.shrink(messages, query.context, wire):
            messages = self._messages(query, wire)
        backwards = range(len(messages) - 1, -1, -1)
        users = (index for index in backwards if not messages[index].startswith(_ASSISTANT))
        marks = tuple(reversed([*islice(users, MARKED)]))
        for index in marks:
            messages[index] = messages[index].removesuffix(_END) + _MARK + _END
        fields = patch.merge({"max_tokens": query.model.output or DEFAULT_OUTPUT}, query.params)
        fields.setdefault("max_tokens", DEFAULT_OUTPUT)  # a null takes it out, and the API requires it
        head = _encode({"model": query.model.name, **repair.scrub(fields), "stream": True})
        body = [head[:-1]]
        if system := repair.text(query.context.system).strip():
            body.append(b',"system":[%b%b}]' % (blocks.text(system)[:-1], _MARK))
        if query.tools:
            body.append(b',"tools":' + _encode([blocks.tool(tool) for tool in query.tools]))
        body += b',"messages":[', b",".join(messages), b"]}"
        return Request(self._url, self._headers, b"".join(body), marks)

    def decoder(self) -> Decoder:
        return MessagesDecoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return errors.classify(status, headers, body)

    def check_params(self, params: Mapping[str, Any]) -> str:
        return patch.refused(params, OWNED)

    def problems(self, request: Request) -> list[str]:
        return rules_messages.problems(request.body)

    def models(self) -> Sequence[Model]:
        return self._known

    def _messages(self, query: Query, wire: Wire) -> list[bytes]:
        context, model = query.context, query.model.name
        settled = context.settled
        kept = wire.ready(self.name, model, context.epoch)
        budget.enter(context, wire)
        last = context.last
        if last is not None and _goes_on(last):
            last = None  # nothing new was said: it may still be
        # What follows a turn is part of how it is sent, so the last one is kept only once that is known.
        known = len(settled) if last is not None else max(0, len(settled) - 1)
        for index in range(len(kept), known):
            kept.append(self._turn(settled, index, model, wire, closed=True))
        messages = kept[:known]
        if last is not None:
            messages.append(blocks.user(budget.within(last.parts, len(settled), wire)))
            return _joined(messages) if b"" in messages else messages
        if settled:
            messages.append(self._turn(settled, known, model, wire, closed=False))
        if not settled or not self._paused(settled[-1]):
            messages.append(blocks.user((Text(GO_ON),)))
        return _joined(messages) if b"" in messages else messages

    def _turn(self, settled: Sequence[Turn], index: int, model: str, wire: Wire, *, closed: bool) -> bytes:
        """One settled turn's message; empty for a turn that only stands between the halves of a paused answer.

        `closed`: something follows the turns, so the last of them does not go on.
        """
        turn = settled[index]
        if turn.role == "user":
            between = _goes_on(turn) and index > 0 and self._continued(settled, index - 1)
            return b"" if between else blocks.user(budget.within(turn.parts, index, wire))
        open_end = not closed and index == len(settled) - 1 and self._paused(turn)
        used, answered = self._ids(turn)
        if index >= 2 and self._continued(settled, index - 2):
            used |= self._ids(settled[index - 2])[0]
        if open_end or self._continued(settled, index):
            answered |= used  # by what comes
        return self._assistant(turn.parts, model, used & answered)

    def _paused(self, turn: Turn) -> bool:
        """Whether this answer stopped in the middle of the provider's own tools: it goes on where it was."""
        last = turn.parts[-1]
        if not isinstance(last, Raw) or any(isinstance(part, Call) for part in turn.parts):
            return False
        return self._kind(last) not in ("", "text", *THINKING)

    def _continued(self, settled: Sequence[Turn], index: int) -> bool:
        """Whether the answer at `index` paused, and the one after it, with nothing said between, took it up."""
        if index + 2 >= len(settled) or not _goes_on(settled[index + 1]) or not self._paused(settled[index]):
            return False
        used, answered = self._ids(settled[index])
        return used - answered <= self._ids(settled[index + 2])[1]

    def _ids(self, turn: Turn) -> tuple[set[str], set[str]]:
        """Ids of the provider's own tools that a turn uses, and of those that it has results of."""
        own = [
            block for part in turn.parts if isinstance(part, Raw) and (block := self._own(part)) is not None
        ]
        used = {str(block.get("id")) for block in own if str(block.get("type")).endswith(USE)}
        return used, {str(block["tool_use_id"]) for block in own if "tool_use_id" in block}

    def _own(self, part: Raw) -> dict[str, Any] | None:
        """The block of a part that this provider made, None for another's and for one that does not read."""
        if part.provider != self.name or part.type != BLOCK:
            return None
        try:
            block = msgspec.json.decode(part.body)
        except (msgspec.DecodeError, RecursionError):
            return None
        return block if isinstance(block, dict) else None

    def _kind(self, part: Raw) -> str:
        """The type of a block that this provider made, empty for any other."""
        block = self._own(part)
        return str(block.get("type")) if block is not None else ""

    def _assistant(self, parts: Iterable[Part], model: str, paired: Collection[str]) -> bytes:
        """`paired`: ids of the provider's own tools that have both their use and their result."""
        said: list[bytes] = []
        calls: list[bytes] = []  # go last: the API misses the results of a call that text comes after
        ends_well = False  # with a block that may be a message's last
        for part in parts:
            match part:
                case Text():
                    found = blocks.text(part.text)
                case Raw():
                    found = self._raw(part, model, paired)
                case Call():
                    calls.append(blocks.call(part, own=part.provider == self.name))
                    continue
                case Media() | Result():
                    continue  # the user's
                case _:
                    assert_never(part)
            if found:
                said.append(found)
                ends_well = isinstance(part, Text) or self._kind(part) not in THINKING
        if not calls and not ends_well:
            said.append(blocks.text(blocks.NOTHING))
        return blocks.message("assistant", [*said, *calls])

    def _raw(self, part: Raw, model: str, paired: Collection[str]) -> bytes:
        """A raw block as it goes back, byte for byte; empty when it does not."""
        block = self._own(part)
        if block is None:
            return blocks.text(part.text)
        kind = str(block.get("type"))
        if kind in THINKING and part.model != model:
            return b""
        if kind == "thinking" and not block.get("signature"):
            return b""
        if kind == "text" and not str(block.get("text") or "").strip():
            return b""
        if kind.endswith(USE) and str(block.get("id")) not in paired:
            return b""
        if "tool_use_id" in block and str(block["tool_use_id"]) not in paired:
            return b""
        return part.body


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
