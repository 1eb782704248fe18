"""Decode an answer of Gemini's streamGenerateContent, an event stream, into blocks, deltas and an outcome.

No event marks the end: the stream closes. A finish reason stands in the last event, but some servers in front of the
vendor's put one into the first or into each, so an answer is over where its stream is, once there was a reason.
Pieces of text are joined, but for one that a signature came with: that stays a part of its own, as the vendor wants it
back, and so does every part that is not text or a call.
"""

from typing import Any, Final, Literal

import msgspec

from daemon.protocol.records import JSON, MAX_BODY, NO_EXTRA, CallBody, Usage
from daemon.provider import errors, repair, sse
from daemon.provider.base import Block, Delta, End, Event, Outcome, ProviderError
from daemon.provider.decoding import MAX_ANSWER, StreamDecoder

PART: Final = "application/vnd.google.gemini.part+json"  # a part as the provider wants it back
FIELDS: Final = "application/vnd.google.gemini.fields+json"  # an answer's other fields, each a list
SIGNATURE: Final = "thoughtSignature"
DONE: Final = b"[DONE]"  # of other wires; some servers in front of the vendor's send it

ENDS: Final[dict[str, End]] = {
    "STOP": "normal",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    "SAFETY": "filter",
    "RECITATION": "filter",
    "LANGUAGE": "filter",
    "BLOCKLIST": "filter",
    "PROHIBITED_CONTENT": "filter",
    "SPII": "filter",
    "ESCALATION": "filter",
    "PUP_LIMITED_DISABLED": "filter",
    "MODEL_ARMOR": "filter",
    "IMAGE_SAFETY": "filter",
    "IMAGE_PROHIBITED_CONTENT": "filter",
    "IMAGE_RECITATION": "filter",
}
SLIPS: Final = frozenset(  # the model's own: the same request may well be answered
    {"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"}
)
UNSIGNED: Final = "MISSING_THOUGHT_SIGNATURE"  # the request's fault
TAKEN: Final = frozenset(  # fields of a candidate that are read, or say nothing that lasts
    {"content", "finishReason", "finishMessage", "index", "safetyRatings", "tokenCount", "avgLogprobs"}
)
COUNTS: Final = (
    "promptTokenCount",
    "cachedContentTokenCount",
    "toolUsePromptTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
)
MAX_BARE: Final = 64 << 10  # bytes read of a body that is no event stream
SAID: Final = frozenset({"text", "thought"})
LIKELY: Final = frozenset({"HIGH", "MEDIUM"})
EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})

Said = Literal["text", "thinking"]


class Decoder(StreamDecoder):
    """One answer's decoder; see `base.Decoder`."""

    def __init__(self, limit: int = sse.MAX_EVENT, most: int = MAX_ANSWER) -> None:
        super().__init__(limit, most)
        self._begun = 0  # blocks; each has its number from when it begins
        self._kind: Said = "text"  # of the pieces that are being joined
        self._pieces: list[str] = []
        self._called = False
        self._more: dict[str, list[msgspec.Raw]] = {}
        self._usage: dict[str, int] = {}
        self._model = ""
        self._stop = ""
        self._detail = ""
        self._blocked = False
        self._last = False
        self._first = True  # no byte has come
        self._bare: bytearray | None = None  # the beginning of a body that is plain JSON

    @property
    def whole(self) -> bool:
        """A finish reason is the newest there is; the common one counts where there was something, and with counts."""
        return self._last

    def feed(self, data: bytes) -> list[Event]:
        if self._first and data:
            self._first = False
            self._bare = bytearray() if data[:1] in (b"{", b"[") else None
        if self._bare is not None and len(self._bare) < MAX_BARE:
            self._bare += data
        return super().feed(data)

    def _event(self, found: sse.Event, given: list[Event]) -> None:
        data = found.data
        try:
            chunk = repair.loads(data)
        except ValueError as error:
            if data.strip() == DONE:
                return
            raise errors.malformed("an event is not JSON", data) from error
        if isinstance(chunk, list) and len(chunk) == 1:
            chunk = chunk[0]
        if not isinstance(chunk, dict):
            raise errors.malformed("an event is not an object", data)
        self._events += 1
        if said := chunk.get("error"):
            raise errors.in_stream(said)
        if found.name == "error":
            raise errors.in_stream(chunk)
        if isinstance(model := chunk.get("modelVersion"), str) and model:
            self._model = model
        usage = chunk.get("usageMetadata")
        if isinstance(usage, dict):  # counts are totals so far; an event may leave some out
            for name in COUNTS:
                if name in usage and (count := repair.count(usage[name])) is not None:
                    self._usage[name] = count
        if isinstance(feedback := chunk.get("promptFeedback"), dict):
            self._feedback(feedback)
        candidates = chunk.get("candidates")
        for candidate in candidates if isinstance(candidates, list) else ():
            if isinstance(candidate, dict) and not candidate.get("index"):
                self._candidate(candidate, given, counted=isinstance(usage, dict))

    def _feedback(self, feedback: dict[str, Any]) -> None:
        reason = feedback.get("blockReason")
        if isinstance(reason, str) and reason:
            said = feedback.get("blockReasonMessage") or _ratings(feedback.get("safetyRatings"))
            why = f": {said}" if isinstance(said, str) and said else ""
            self._stop, self._detail = reason, f"the prompt was blocked{why}"
            self._blocked = self._last = True

    def _candidate(self, candidate: dict[str, Any], given: list[Event], *, counted: bool) -> None:
        content = candidate.get("content")
        parts = content.get("parts") if isinstance(content, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict):
                self._part(part, given)
                self._last = False
        for name in candidate:
            if name not in TAKEN and candidate[name] not in EMPTY:
                raw = msgspec.Raw(msgspec.json.encode(repair.scrub(candidate[name])))
                self._more.setdefault(name, []).append(raw)
        stop = candidate.get("finishReason")
        if not isinstance(stop, str) or not stop or self._blocked:
            return
        self._stop = stop
        self._last = stop != "STOP" or (counted and bool(self._begun or self._pieces))
        said = candidate.get("finishMessage") or _ratings(candidate.get("safetyRatings"))
        self._detail = said if isinstance(said, str) else ""

    def _part(self, part: dict[str, Any], given: list[Event]) -> None:
        text = part.get("text")
        if isinstance(call := part.get("functionCall"), dict):
            self._close_text(given)
            self._call(part, call, given)
        elif isinstance(text, str):
            kind: Said = "thinking" if part.get("thought") is True else "text"
            plain = len(part) == 1 or all(name in SAID or part[name] in EMPTY for name in part)
            if plain and text:
                self._join(kind, text, given)
            elif not plain:
                self._close_text(given)
                if text:
                    given.append(Delta(kind, repair.text(text), self._begun))
                self._raw(kind if text else "thinking", part, given)
        elif part:
            self._close_text(given)
            self._raw("thinking", part, given)

    def _join(self, kind: Said, piece: str, given: list[Event]) -> None:
        if kind != self._kind:
            self._close_text(given)
            self._kind = kind
        self._pieces.append(piece)
        given.append(Delta(kind, repair.text(piece), self._begun))

    def _close_text(self, given: list[Event]) -> None:
        if not self._pieces:
            return
        text = repair.text("".join(self._pieces))
        self._pieces.clear()
        if self._kind == "text":
            self._give(Block("text", text.encode()), given)
        else:
            self._raw("thinking", {"text": text, "thought": True}, given)

    def _raw(self, kind: Said, part: dict[str, Any], given: list[Event]) -> None:
        self._give(Block(kind, msgspec.json.encode(repair.scrub(part)), PART), given)

    def _call(self, part: dict[str, Any], call: dict[str, Any], given: list[Event]) -> None:
        """A call, which comes whole. What stands beside its name and arguments goes back with it."""
        args = call.get("args")
        if args is None or isinstance(args, str):  # a text comes from some servers in front of the vendor's
            arguments = repair.text(args or "")
        else:
            arguments = msgspec.json.encode(repair.scrub(args)).decode()
        extra = {name: value for name, value in part.items() if name != "functionCall" and value not in EMPTY}
        inner = {
            name: value
            for name, value in call.items()
            if name not in ("id", "name", "args") and value not in EMPTY
        }
        extra |= {"functionCall": inner} if inner else {}
        raw = msgspec.Raw(msgspec.json.encode(repair.scrub(extra))) if extra else NO_EXTRA
        name = repair.text(str(call.get("name") or ""))
        given.append(Delta("call", arguments, self._begun, name))
        body = msgspec.json.encode(CallBody(name, arguments, raw))
        self._give(Block("call", body, JSON, repair.text(str(call.get("id") or ""))), given)
        self._called = True

    def _give(self, block: Block, given: list[Event]) -> None:
        if len(block.body) > MAX_BODY:
            raise errors.endless(f"a block of more than {MAX_BODY} bytes")
        given.append(block)
        self._begun += 1

    def _close(self, given: list[Event]) -> None:
        if self._bare is not None:
            raise errors.not_a_stream("JSON", bytes(self._bare))
        if not self._stop:
            super()._close(given)
        detail = repair.text(self._detail)
        if self._stop in SLIPS:
            said = f": {detail}" if detail else ""
            what = f"the model made a call that cannot be read ({self._stop}){said}"
            raise ProviderError(what, code="model_bad_call", retryable=True)
        if self._stop == UNSIGNED:
            raise ProviderError(detail or "a call lacks its thought signature", code="bad_history")
        self._close_text(given)
        if self._more:
            self._give(Block("thinking", msgspec.json.encode(self._more), FIELDS), given)
        end: End = "filter" if self._blocked else ENDS.get(self._stop, "unknown")
        if self._called and end in ("normal", "unknown"):
            end = "calls"
        told = "" if end in ("normal", "calls") else detail
        given.append(
            Outcome(counted(self._usage), repair.text(self._stop), end, repair.text(self._model), told)
        )
        self._done = True


def counted(usage: dict[str, int]) -> Usage:
    """Tokens in our four counters: the prompt includes what was cached, but neither thoughts nor what the vendor's own
    tools have put into it.
    """
    prompt = usage.get("promptTokenCount", 0) + usage.get("toolUsePromptTokenCount", 0)
    read = min(usage.get("cachedContentTokenCount", 0), prompt)
    output = usage.get("candidatesTokenCount", 0) + usage.get("thoughtsTokenCount", 0)
    return Usage(prompt - read, output, read)


def _ratings(ratings: Any) -> str:
    """The categories that an answer or a prompt was kept back for, empty where none is said."""
    found = [
        str(rating.get("category"))
        for rating in (ratings if isinstance(ratings, list) else ())
        if isinstance(rating, dict) and (rating.get("blocked") is True or rating.get("probability") in LIKELY)
    ]
    return ", ".join(found)
