"""Decode an answer of Bedrock's ConverseStream, AWS event-stream frames, into blocks, deltas and an outcome.

The answer is complete at its messageStop; a metadata event with the counts follows, so the outcome waits for it.
"""

from typing import Any, Final

import msgspec

from daemon.protocol.records import JSON, NO_EXTRA, CallBody, Usage
from daemon.provider import converse_errors, errors, eventstream, repair, sse
from daemon.provider.base import Block, Delta, End, Event, Outcome, ProviderError
from daemon.provider.converse_pieces import Open
from daemon.provider.decoding import MAX_ANSWER, StreamDecoder
from daemon.provider.eventstream import CORRUPT, MAX_FRAME, Frame

REASONING: Final = "application/vnd.aws.converse.reasoning+json"  # reasoningText's fields, or redactedContent
BLOCK: Final = "application/vnd.aws.converse.block+json"  # a text with citations, or what we do not know

ENDS: Final[dict[str, End]] = {
    "end_turn": "normal",
    "stop_sequence": "normal",
    "tool_use": "calls",
    "max_tokens": "length",
    "refusal": "refusal",
    "guardrail_intervened": "filter",
    "content_filtered": "filter",
    "model_context_window_exceeded": "context",
}
MALFORMED: Final = frozenset({"malformed_tool_use", "malformed_model_output"})  # the model's own slip


class Decoder(StreamDecoder):
    """One answer's decoder; see `base.Decoder`. `limit`: bytes of one frame; `most`: of the whole answer."""

    def __init__(self, limit: int = MAX_FRAME, most: int = MAX_ANSWER) -> None:
        super().__init__(limit, most, eventstream.Parser(limit))
        self._open: dict[int, Open] = {}
        self._given = 0
        self._called = False
        self._started = False
        self._usage: dict[str, Any] | None = None
        self._stop = ""
        self._model = ""
        self._detail = ""

    @property
    def whole(self) -> bool:
        """There is a stop reason: nothing but counts can still come."""
        return bool(self._stop)

    def _event(self, found: sse.Event, given: list[Event]) -> None:
        assert isinstance(found, Frame)  # the parser is ours
        if found.kind == CORRUPT:
            raise errors.malformed(found.name, found.data)
        if self._stop and found.kind in ("error", "exception"):
            self._finish(given)  # there was no more to come but counts
            return
        if found.kind == "error":
            raise errors.in_stream({"message": found.name, "status": 500})
        if found.kind == "exception":
            raise converse_errors.exception(found)
        if found.kind != "event":
            return  # a later version's
        try:
            event = repair.loads(found.data)
        except ValueError as error:
            raise errors.malformed("an event is not JSON", found.data) from error
        if not isinstance(event, dict):
            raise errors.malformed("an event is not an object", found.data)
        self._events += 1
        match found.name:
            case "messageStart":
                if self._started:
                    raise errors.cut("another answer began inside it")
                self._started = True
            case "metadata":
                self._count(event)
                if self._stop:
                    self._finish(given)
            case "contentBlockStart" | "contentBlockDelta" | "contentBlockStop" | "messageStop" as name:
                if not self._started or self._stop:
                    raise errors.malformed("an event comes before its answer, or after it", found.data)
                self._content(name, event, found.data, given)
            case _:
                pass  # a later version's

    def _content(self, name: str, event: dict[str, Any], data: bytes, given: list[Event]) -> None:
        match name:
            case "contentBlockStart":
                self._begin(event, data)
            case "contentBlockDelta":
                self._delta(event, data, given)
            case "contentBlockStop":
                self._close_block(_index(event), given)
            case _:
                for index in list(self._open):  # a server may leave a block's stop out
                    self._close_block(index, given)
                self._stop = repair.text(str(event.get("stopReason") or "unknown"))
                if self._stop in MALFORMED:
                    what = f"the model ended in {self._stop}"
                    raise ProviderError(what, code="model_bad_call", retryable=True)
                if self._usage is not None:
                    self._finish(given)

    def _begin(self, event: dict[str, Any], data: bytes) -> None:
        index, start = _index(event), event.get("start")
        if index in self._open or not isinstance(start, dict):
            raise errors.malformed("a block's start is wrong", data)
        for kind, fields in start.items():
            self._open[index] = Open(kind, self._number(), fields)
            return

    def _number(self) -> int:
        """Of the next block to begin: those before it that say nothing will not be given."""
        return self._given + sum(block.says for block in self._open.values())

    def _delta(self, event: dict[str, Any], data: bytes, given: list[Event]) -> None:
        index, delta = _index(event), event.get("delta")
        if not isinstance(delta, dict):
            raise errors.malformed("a piece without anything in it", data)
        for member, piece in delta.items():
            kind = "text" if member == "citation" else member
            block = self._open.get(index)
            if block is None or block.kind != kind:
                if kind == "toolUse":
                    raise errors.malformed("a piece of a call that has not begun", data)
                self._close_block(index, given)
                block = self._open[index] = Open(kind, self._number(), {})
            try:
                said = block.add(member, piece)
            except ValueError as error:
                raise errors.malformed(str(error), data) from error
            if said is not None:
                given.append(Delta(block.shown, repair.text(said), block.number, block.name))

    def _close_block(self, index: int, given: list[Event]) -> None:
        block = self._open.pop(index, None)
        found = None if block is None else _block(block)
        if found is not None:
            self._given += 1
            self._called = self._called or found.kind == "call"
            given.append(found)

    def _count(self, event: dict[str, Any]) -> None:
        usage, trace = event.get("usage"), event.get("trace")
        self._usage = usage if isinstance(usage, dict) else {}
        if isinstance(trace, dict):
            router, guardrail = trace.get("promptRouter"), trace.get("guardrail")
            if isinstance(router, dict) and isinstance(model := router.get("invokedModelId"), str):
                self._model = repair.text(model)
            if isinstance(guardrail, dict) and isinstance(why := guardrail.get("actionReason"), str):
                self._detail = repair.text(why)

    def _close(self, given: list[Event]) -> None:
        if not self.whole:
            super()._close(given)
        self._finish(given)

    def _finish(self, given: list[Event]) -> None:
        counts = self._usage or {}
        names = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
        usage = Usage(*(repair.count(counts.get(name)) or 0 for name in names))
        end = ENDS.get(self._stop, "unknown")
        if self._called and end in ("normal", "unknown"):
            end = "calls"  # some models end a turn with calls as any other
        given.append(Outcome(usage, self._stop, end, self._model, self._detail))
        self._done = True


def _index(event: dict[str, Any]) -> int:
    index = event.get("contentBlockIndex", 0)
    return index if type(index) is int else -1


def _block(block: Open) -> Block | None:
    """A block that is over; None for one that says nothing."""
    if not block.says:
        return None
    match block.kind:
        case "text" if not block.more:
            return Block("text", block.text.encode())
        case "text":
            cited = {"text": block.text, "citations": repair.scrub(block.more)}
            return Block("text", msgspec.json.encode(cited), BLOCK)
        case "reasoningContent":
            return Block("thinking", msgspec.json.encode(block.reasoning()), REASONING)
        case "toolUse" if "type" not in block.start:
            return _call(block)
        case _:
            return Block("thinking", msgspec.json.encode(block.raw()), BLOCK)


def _call(block: Open) -> Block:
    """A call; its fields that we do not know stay in the record."""
    extra = {name: value for name, value in block.start.items() if name not in ("toolUseId", "name")}
    raw = msgspec.Raw(msgspec.json.encode(repair.scrub(extra))) if extra else NO_EXTRA
    body = CallBody(block.name, block.text, raw)
    return Block(
        "call", msgspec.json.encode(body), JSON, repair.text(str(block.start.get("toolUseId") or ""))
    )
