"""Decode an answer of the Messages API, an event stream, into blocks, deltas and an outcome."""

from typing import Any, Final

import msgspec

from daemon.protocol.records import JSON, NO_EXTRA, CallBody, Usage
from daemon.provider import errors, repair, sse
from daemon.provider.base import Block, Delta, End, Event, Outcome
from daemon.provider.decoding import MAX_ANSWER, StreamDecoder

BLOCK: Final = "application/vnd.anthropic.block+json"  # a block as the provider wants it back

ENDS: Final[dict[str, End]] = {
    "end_turn": "normal",
    "stop_sequence": "normal",
    "tool_use": "calls",
    "max_tokens": "length",
    "refusal": "refusal",
    "pause_turn": "paused",
    "compaction": "paused",
    "model_context_window_exceeded": "context",
}
DIRECT: Final = {
    "type": "direct"
}  # who made a call, where it was the model itself: says nothing, so is not kept


class _Open:
    """A block that has begun: what it was at its start, and the pieces since."""

    def __init__(self, block: dict[str, Any], number: int) -> None:
        self.block = block
        self.number = number
        self.pieces: dict[str, list[str]] = {}

    @property
    def type(self) -> str:
        return str(self.block.get("type", ""))

    def add(self, field: str, piece: str) -> None:
        self.pieces.setdefault(field, []).append(piece)

    def text(self, field: str) -> str:
        start = self.block.get(field)
        return repair.text((start if isinstance(start, str) else "") + "".join(self.pieces.get(field, ())))

    def raw(self) -> dict[str, Any]:
        """The block as it would have come in one piece."""
        raw = dict(self.block)
        for field in self.pieces:
            if field == "partial_json":
                raw["input"] = msgspec.Raw(repair.arguments(self.text(field)))
            else:
                raw[field] = self.text(field)
        return {
            name: value if isinstance(value, msgspec.Raw) else repair.scrub(value)
            for name, value in raw.items()
        }


class Decoder(StreamDecoder):
    """One answer's decoder; see `base.Decoder`. Blocks it does not know are kept raw, as kind thinking.

    `limit`: bytes of one event; `most`: of the whole answer.
    """

    def __init__(self, limit: int = sse.MAX_EVENT, most: int = MAX_ANSWER) -> None:
        super().__init__(limit, most)
        self._open: dict[int, _Open] = {}
        self._given = 0
        self._started = False
        self._usage: dict[str, int] = {}
        self._model = ""
        self._stop = ""
        self._detail = ""

    def _event(self, found: sse.Event, given: list[Event]) -> None:
        data = found.data
        try:
            event = repair.loads(data)
        except ValueError as error:
            if data.strip() == b"[DONE]":
                return  # some proxies add another wire's end mark
            raise errors.malformed("an event is not JSON", data) from error
        if not isinstance(event, dict):
            raise errors.malformed("an event is not an object", data)
        kind = event.get("type")
        if kind == "ping":
            return
        self._events += 1
        if kind == "error" or isinstance(event.get("error"), dict):
            raise errors.in_stream(event.get("error"), request=str(event.get("request_id") or ""))
        if kind == "message_start":
            if self._started:
                raise errors.cut("another answer began inside it")
            self._started = True
            self._begin(event.get("message"))
            return
        if not isinstance(kind, str) or not kind.startswith(("message_", "content_block_")):
            return  # a later version's event
        if not self._started:
            raise errors.malformed("the answer does not begin with its start", data)
        match kind:
            case "content_block_start":
                self._open_block(event, data)
            case "content_block_delta":
                self._delta(event, data, given)
            case "content_block_stop":
                if (block := self._open.pop(_index(event), None)) is not None:
                    self._finish(block, given)
            case "message_delta":
                self._closing(event)
            case "message_stop":
                for index in list(self._open):  # some proxies leave a block's stop out
                    self._finish(self._open.pop(index), given)
                given.append(self._outcome())
                self._done = True
            case _:
                pass

    def _begin(self, message: Any) -> None:
        if isinstance(message, dict):
            self._model = str(message.get("model") or "")
            self._count(message.get("usage"))

    def _open_block(self, event: dict[str, Any], data: bytes) -> None:
        index, block = _index(event), event.get("content_block")
        if not isinstance(block, dict) or index < 0 or index in self._open:
            raise errors.malformed("a block's start is wrong", data)
        self._open[index] = _Open(block, self._given + len(self._open))

    def _delta(self, event: dict[str, Any], data: bytes, given: list[Event]) -> None:
        delta = event.get("delta")
        block = self._open.get(_index(event))
        if block is None or not isinstance(delta, dict):
            raise errors.malformed("a piece of a block that has not begun", data)
        match delta.get("type"):
            case "text_delta" | "thinking_delta" | "input_json_delta" as kind:
                field = {"text_delta": "text", "thinking_delta": "thinking"}.get(kind, "partial_json")
                piece = delta.get(field)
                if not isinstance(piece, str):
                    raise errors.malformed("a piece without its text", data)
                block.add(field, piece)
                self._show(block, field, piece, given)
            case "signature_delta":
                block.block["signature"] = delta.get("signature")
            case "citations_delta":
                _grow(block, "citations", [delta.get("citation")])
            case _:
                for name, piece in delta.items():
                    if name != "type":
                        _grow(block, name, piece)

    def _show(self, block: _Open, field: str, piece: str, given: list[Event]) -> None:
        shown = repair.text(piece)
        if field == "thinking":
            given.append(Delta("thinking", shown, block.number))
        elif block.type == "text":
            given.append(Delta("text", shown, block.number))
        elif block.type == "tool_use":
            given.append(Delta("call", shown, block.number, repair.text(str(block.block.get("name") or ""))))

    def _finish(self, block: _Open, given: list[Event]) -> None:
        match block.type:
            case "tool_use":
                found = _call(block)
            case "text" if not _more(block):
                text = block.text("text")
                if not text:
                    return
                found = Block("text", text.encode())
            case "text":
                found = Block("text", msgspec.json.encode(block.raw()), BLOCK)
            case _:
                found = Block("thinking", msgspec.json.encode(block.raw()), BLOCK)
        self._given += 1
        given.append(found)

    def _closing(self, event: dict[str, Any]) -> None:
        self._count(event.get("usage"))
        delta = event.get("delta")
        if not isinstance(delta, dict):
            return
        self._stop = str(delta.get("stop_reason") or self._stop)
        details = delta.get("stop_details")
        if isinstance(details, dict) and isinstance(detail := details.get("explanation"), str):
            self._detail = repair.text(detail)

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):  # counts are totals so far; the last event may leave some out
            counts = {name: repair.count(value) for name, value in usage.items()}
            self._usage |= {name: count for name, count in counts.items() if count is not None}

    def _outcome(self) -> Outcome:
        usage = Usage(
            self._usage.get("input_tokens", 0),
            self._usage.get("output_tokens", 0),
            self._usage.get("cache_read_input_tokens", 0),
            self._usage.get("cache_creation_input_tokens", 0),
        )
        return Outcome(usage, self._stop, ENDS.get(self._stop, "unknown"), self._model, self._detail)


def _index(event: dict[str, Any]) -> int:
    index = event.get("index", 0)
    return index if type(index) is int else -1


def _more(block: _Open) -> bool:
    """Whether a text block holds anything beside its text."""
    return any(value for name, value in block.block.items() if name not in ("type", "text"))


def _grow(block: _Open, name: str, piece: Any) -> None:
    """Take a piece of a kind we do not know: text and lists grow, anything else is replaced."""
    old = block.block.get(name)
    if isinstance(piece, str) and isinstance(old, str | None):
        block.add(name, piece)
    elif isinstance(piece, list) and isinstance(old, list):
        old += piece
    elif piece is not None:
        block.block[name] = piece


def _call(block: _Open) -> Block:
    start = block.block
    arguments = repair.text("".join(block.pieces.get("partial_json", ())))
    if not arguments and start.get("input"):
        arguments = msgspec.json.encode(repair.scrub(start["input"])).decode()
    extra = {
        name: value
        for name, value in start.items()
        if name not in ("type", "id", "name", "input") and value is not None and value != DIRECT
    }
    raw = msgspec.Raw(msgspec.json.encode(repair.scrub(extra))) if extra else NO_EXTRA
    body = CallBody(repair.text(str(start.get("name") or "")), arguments, raw)
    return Block("call", msgspec.json.encode(body), JSON, repair.text(str(start.get("id") or "")))
