"""Decode an answer of Chat Completions, an event stream, into blocks, deltas and an outcome.

The wire has many servers and none marks where a block ends, some go on with a text after a call has begun: so blocks
are given when the answer is over, in the order in which they began. Over is it at `[DONE]`, or where the stream ends
after a finish reason.
"""

from typing import Any, Final

import msgspec

from daemon.protocol.records import JSON, CallBody, Usage
from daemon.provider import errors, repair, sse
from daemon.provider.base import Block, Delta, End, Event, Outcome
from daemon.provider.chat_pieces import Calls, Reasoning, words
from daemon.provider.decoding import MAX_ANSWER, StreamDecoder

REASONING: Final = "application/vnd.openai.chat.reasoning+json"  # see chat_pieces.Kept
FIELDS: Final = (
    "application/vnd.openai.chat.fields+json"  # an answer's fields that we do not know, each a list
)
DONE: Final = b"[DONE]"
UNKNOWN: Final = "unknown"  # the stop of a server that gives none

ENDS: Final[dict[str, End]] = {
    "stop": "normal",
    "eos": "normal",
    "eos_token": "normal",
    "stop_sequence": "normal",
    "end_turn": "normal",
    "tool_calls": "calls",
    "function_call": "calls",
    "tool_use": "calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "filter",
    "safety": "filter",
    "refusal": "refusal",
}
BROKEN: Final = frozenset({"error", "insufficient_system_resource", "abort"})  # a finish that is none
TAKEN: Final = frozenset(
    {
        "role",
        "content",
        "refusal",
        "tool_calls",
        "reasoning_content",
        "reasoning",
        "reasoning_details",
        "index",
    }
)


class Decoder(StreamDecoder):
    """One answer's decoder; see `base.Decoder`."""

    def __init__(self, limit: int = sse.MAX_EVENT, most: int = MAX_ANSWER) -> None:
        super().__init__(limit, most)
        self._begun = 0  # blocks; each has its number from when it begins
        self._text: list[str] = []
        self._text_number = -1
        self._reasoning = Reasoning()
        self._reasoning_number = -1
        self._calls = Calls()
        self._more: dict[str, list[Any]] = {}
        self._more_number = -1
        self._refused = False
        self._usage: dict[str, Any] = {}
        self._model = ""
        self._stop = ""

    @property
    def whole(self) -> bool:
        """There is a finish reason: nothing but counts and an end mark can still come."""
        return bool(self._stop)

    def _event(self, found: sse.Event, given: list[Event]) -> None:
        data = found.data
        try:
            chunk = repair.loads(data)
        except ValueError as error:
            if data.strip() == DONE:
                self._finish(given)
                return
            raise errors.malformed("an event is not JSON", data) from error
        if not isinstance(chunk, dict):
            raise errors.malformed("an event is not an object", data)
        self._events += 1
        if said := chunk.get("error"):
            raise errors.in_stream(said)
        if found.name == "error" or chunk.get("object") == "error":
            raise errors.in_stream(chunk)
        if (model := chunk.get("model")) and isinstance(model, str):
            self._model = model
        if usage := chunk.get("usage"):
            self._count(usage)
        elif isinstance(groq := chunk.get("x_groq"), dict):
            self._count(groq.get("usage"))
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and not choice.get("index"):
                self._choice(choice, given)

    def _choice(self, choice: dict[str, Any], given: list[Event]) -> None:
        if isinstance(error := choice.get("error"), dict):
            raise errors.in_stream(error)
        if isinstance(delta := choice.get("delta"), dict):
            self._delta(delta, given)
        if (stop := choice.get("finish_reason")) and isinstance(stop, str):
            self._stop = stop

    def _delta(self, delta: dict[str, Any], given: list[Event]) -> None:
        if thought := self._reasoning.take(delta):
            self._think(thought, given)
        elif self._reasoning.begun and self._reasoning_number < 0:
            self._reasoning_number = self._begin()
        if content := delta.get("content"):
            if isinstance(content, str):
                self._say(content, given)
            elif isinstance(content, list):
                self._parts(content, given)
        if (refusal := delta.get("refusal")) and isinstance(refusal, str):
            self._refused = True
            self._say(refusal, given)
        if isinstance(fragments := delta.get("tool_calls"), list):
            for fragment in fragments:
                if isinstance(fragment, dict):
                    self._call(fragment, given)
        for name in delta:
            if name not in TAKEN and delta[name] not in (None, "", [], {}):
                self._keep(name, delta[name])

    def _parts(self, parts: list[Any], given: list[Event]) -> None:
        """Content in parts, as Mistral has it: text, and thinking with parts of its own."""
        for part in parts:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind == "text" and isinstance(part.get("text"), str):
                self._say(part["text"], given)
            elif kind == "thinking" and (thought := words(part.get("thinking"))):
                self._reasoning.add(thought)
                self._think(thought, given)
            else:
                self._keep("content", part)

    def _say(self, piece: str, given: list[Event]) -> None:
        if self._text_number < 0:
            self._text_number = self._begin()
        self._text.append(piece)
        given.append(Delta("text", repair.text(piece), self._text_number))

    def _think(self, piece: str, given: list[Event]) -> None:
        if self._reasoning_number < 0:
            self._reasoning_number = self._begin()
        given.append(Delta("thinking", repair.text(piece), self._reasoning_number))

    def _call(self, fragment: dict[str, Any], given: list[Event]) -> None:
        call, piece = self._calls.take(fragment)
        if call.number < 0:
            call.number = self._begin()
        given.append(Delta("call", repair.text(piece), call.number, repair.text(call.name)))

    def _keep(self, name: str, value: Any) -> None:
        if self._more_number < 0:
            self._more_number = self._begin()
        self._more.setdefault(name, []).append(value)

    def _begin(self) -> int:
        self._begun += 1
        return self._begun - 1

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._usage = usage

    def _close(self, given: list[Event]) -> None:
        if not self.whole:
            super()._close(given)
        self._finish(given)

    def _finish(self, given: list[Event]) -> None:
        if self._stop in BROKEN:
            raise errors.cut(f"the provider ended it with {self._stop!r}")
        given += (block for _, block in sorted(self._blocks()))
        given.append(self._outcome())
        self._done = True

    def _blocks(self) -> list[tuple[int, Block]]:
        blocks = []
        if self._reasoning_number >= 0:
            blocks.append((self._reasoning_number, Block("thinking", self._reasoning.body(), REASONING)))
        if self._text_number >= 0:
            text = repair.text("".join(self._text))
            blocks.append((self._text_number, Block("text", text.encode())))
        for call in self._calls:
            body = CallBody(repair.text(call.name), repair.text("".join(call.arguments)), call.extra())
            block = Block("call", msgspec.json.encode(body), JSON, repair.text(call.id))
            blocks.append((call.number, block))
        if self._more_number >= 0:
            fields = msgspec.json.encode(repair.scrub(self._more))
            blocks.append((self._more_number, Block("thinking", fields, FIELDS)))
        return blocks

    def _outcome(self) -> Outcome:
        end = ENDS.get(self._stop.lower(), "unknown")
        if self._refused and end in ("normal", "unknown"):
            end = "refusal"
        elif self._calls and end in ("normal", "unknown"):
            end = "calls"
        return Outcome(
            counted(self._usage), repair.text(self._stop) or UNKNOWN, end, repair.text(self._model)
        )


def counted(usage: dict[str, Any]) -> Usage:
    """Tokens as any server of the wire counts them.

    The prompt includes what was cached; DeepSeek and Moonshot have names of their own for that. xAI leaves reasoning
    out of the completion: then it makes up the rest of the total.
    """
    prompt, output = _number(usage, "prompt_tokens"), _number(usage, "completion_tokens")
    details, spent = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    read = (
        _number(details, "cached_tokens")
        or _number(usage, "prompt_cache_hit_tokens")
        or _number(usage, "cached_tokens")
    )
    written = _number(details, "cache_write_tokens")
    reasoning = _number(spent, "reasoning_tokens")
    if reasoning and _number(usage, "total_tokens") == prompt + output + reasoning:
        output += reasoning
    read = min(read, prompt)
    written = min(written, prompt - read)
    return Usage(prompt - read - written, output, read, written)


def _number(counts: Any, name: str) -> int:
    return repair.count(counts.get(name)) or 0 if isinstance(counts, dict) else 0
