"""Decode an answer of the Responses API, an event stream, into blocks, deltas and an outcome.

An answer is a list of items, each with a place that all its events name; their ids may differ in every event. Items
may be done in another order than they began in: blocks are given in the latter.
"""

from typing import Any, Final, Literal

from daemon.protocol.records import Usage
from daemon.provider import errors, repair, sse
from daemon.provider.base import Delta, End, Event, Outcome, ProviderError
from daemon.provider.decoding import MAX_ANSWER, StreamDecoder
from daemon.provider.responses_pieces import INPUT, Item

IDLE: Final = frozenset({"ping", "keepalive"})
LAST: Final = {  # the events that end an answer, and the status that each means
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
    "response.done": "completed",
}
REASONS: Final[dict[str, End]] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "length": "length",
    "content_filter": "filter",
}

# What an item's pieces come in: the event's name without its end, the item's type, the type of part or the field.
PIECES: Final = {
    "response.output_text": ("message", "output_text"),
    "response.refusal": ("message", "refusal"),
    "response.reasoning_summary_text": ("reasoning", "summary_text"),
    "response.reasoning_summary": ("reasoning", "summary_text"),  # older servers
    "response.reasoning_text": ("reasoning", "reasoning_text"),
    "response.reasoning": ("reasoning", "reasoning_text"),  # older servers
    "response.function_call_arguments": ("function_call", "arguments"),
    "response.custom_tool_call_input": ("custom_tool_call", "input"),
}
DELTAS: Final = {f"{name}.delta": what for name, what in PIECES.items()}
WHOLES: Final = {f"{name}.done": what for name, what in PIECES.items()}
TEXTS: Final = ("text", "refusal", "arguments", "input")  # where the event of a whole part has it
SHOWN: Final[dict[str, Literal["text", "thinking", "call"]]] = {
    "message": "text",
    "reasoning": "thinking",
    **dict.fromkeys(INPUT, "call"),
}

# Codes of a response that failed because of what was asked: another try fails as well.
REFUSED: Final = frozenset(
    {
        "invalid_prompt",
        "invalid_request",
        "bio_policy",
        "cyber_policy",
        "image_too_large",
        "image_too_small",
        "image_parse_error",
        "image_content_policy_violation",
        "image_file_too_large",
        "image_file_not_found",
        "unsupported_image_media_type",
        "empty_image_file",
        "invalid_image",
        "invalid_image_format",
        "invalid_image_mode",
        "invalid_image_url",
        "invalid_base64_image",
    }
)


class Decoder(StreamDecoder):
    """One answer's decoder; see `base.Decoder`. Items it does not know are kept raw, as kind thinking."""

    def __init__(self, limit: int = sse.MAX_EVENT, most: int = MAX_ANSWER) -> None:
        super().__init__(limit, most)
        self._created = False
        self._at: dict[int, Item] = {}  # the newest item of each place
        self._waiting: list[Item] = []  # those not given yet, in the order in which they began
        self._given = 0  # blocks
        self._linked = False  # a reasoning was encrypted: what follows may be bound to it
        self._called = False
        self._refused = False
        self._model = ""

    def _event(self, found: sse.Event, given: list[Event]) -> None:
        data = found.data
        try:
            event = repair.loads(data)
        except ValueError as error:
            if data.strip() == b"[DONE]":
                return  # some servers add another wire's end mark
            raise errors.malformed("an event is not JSON", data) from error
        if not isinstance(event, dict):
            raise errors.malformed("an event is not an object", data)
        kind = event.get("type")
        kind = kind if isinstance(kind, str) and kind else found.name
        if kind in IDLE:
            return
        self._events += 1
        if (what := DELTAS.get(kind)) is not None:
            self._piece(event, *what, given, data)
        elif kind == "error" or isinstance(event.get("error"), dict):
            raise failed(event)
        elif (what := WHOLES.get(kind)) is not None:
            self._whole_part(event, *what, given)
        elif kind in LAST:
            self._last(event.get("response"), LAST[kind], given)
        else:
            self._step(kind, event, given, data)

    def _step(self, kind: str, event: dict[str, Any], given: list[Event], data: bytes) -> None:
        match kind:
            case "response.created":
                if self._created:
                    raise errors.cut("another answer began inside it")
                self._created = True
                self._named(event.get("response"))
            case "response.output_item.added":
                if not isinstance(item := event.get("item"), dict):
                    raise errors.malformed("an item's start is wrong", data)
                self._begin(event, item)
            case "response.output_item.done":
                if not isinstance(fields := event.get("item"), dict):
                    raise errors.malformed("an item's end is wrong", data)
                known = self._find(event, fields.get("id"))
                if known is None or (known.done and known.fields.get("id") != fields.get("id")):
                    known = self._begin(event, {"type": fields.get("type")})
                if not known.done:
                    known.finish(fields)
                    self._give(given)
            case _:
                pass  # parts, progress of the provider's own tools, and a later version's events

    def _begin(self, event: dict[str, Any], fields: dict[str, Any]) -> Item:
        item = Item(fields)
        self._waiting.append(item)
        if type(place := event.get("output_index")) is int:
            self._at[place] = item
        return item

    def _find(self, event: dict[str, Any], id: Any) -> Item | None:
        """The item that an event is about: by its place; where it names none by its id, else the newest."""
        if type(place := event.get("output_index")) is int:
            return self._at.get(place)
        named = (item for item in reversed(self._waiting) if item.fields.get("id") == id)
        return next(named, self._waiting[-1] if self._waiting else None)

    def _item(self, event: dict[str, Any], type: str) -> Item:
        item = self._find(event, event.get("item_id")) or self._begin(event, {"type": type})
        item.told(event.get("item_id"))
        return item

    def _piece(self, event: dict[str, Any], type: str, kind: str, given: list[Event], data: bytes) -> None:
        item, piece = self._item(event, type), event.get("delta")
        if not isinstance(piece, str):
            raise errors.malformed("a piece without its text", data)
        if piece and not item.done and item.type == type:
            self._show(item, item.take(kind, _place(event), piece), given)

    def _whole_part(self, event: dict[str, Any], type: str, kind: str, given: list[Event]) -> None:
        item = self._item(event, type)
        text = next((text for name in TEXTS if isinstance(text := event.get(name), str)), None)
        if text is None or item.done or item.type != type:
            return
        if more := item.settle(kind, _place(event), text):
            self._show(item, more, given)

    def _show(self, item: Item, text: str, given: list[Event]) -> None:
        if (kind := SHOWN.get(item.type)) is None:
            return
        if item.number < 0:
            item.number = self._given + self._waiting.index(item)
        name = repair.text(str(item.fields.get("name") or "")) if kind == "call" else ""
        given.append(Delta(kind, repair.text(text), item.number, name))

    def _give(self, given: list[Event]) -> None:
        """Give the blocks of items that are done and that nothing before them waits for."""
        while self._waiting and self._waiting[0].done:
            item = self._waiting.pop(0)
            self._refused = self._refused or item.refused
            if (block := item.block(linked=self._linked)) is not None:
                self._given += 1
                given.append(block)
                self._called = self._called or block.kind == "call"
            self._linked = self._linked or item.encrypted

    def _named(self, response: Any) -> None:
        if isinstance(response, dict) and isinstance(model := response.get("model"), str):
            self._model = repair.text(model) or self._model

    def _last(self, told: Any, status: str, given: list[Event]) -> None:
        response = told if isinstance(told, dict) else {}
        status = str(response.get("status") or status)
        if status == "failed":
            raise failed(
                response if response.get("error") else {"message": "the provider says no more than that"}
            )
        if status == "cancelled":
            raise errors.cut("the provider cancelled it")
        self._named(response)
        self._rest(response.get("output"))
        self._give(given)
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else ""
        stop = repair.text(str(reason or status)) if status == "incomplete" else status
        given.append(Outcome(counted(response.get("usage")), stop, self._end(status, stop), self._model))
        self._done = True

    def _rest(self, output: Any) -> None:
        """End the items that no event has ended, as the whole answer tells them; where none came, those are all."""
        items = output if isinstance(output, list) else []
        if not self._at and not self._waiting:
            for fields in items:
                if isinstance(fields, dict):
                    self._begin({}, {"type": fields.get("type")}).finish(fields)
        places = {id(item): place for place, item in self._at.items()}
        for item in self._waiting:
            if item.done:
                continue
            place = places.get(id(item), len(items))
            same = items[place] if 0 <= place < len(items) else None
            if isinstance(same, dict) and same.get("type") == item.type:
                item.finish(same)
            else:
                item.finish(None)

    def _end(self, status: str, stop: str) -> End:
        if status == "incomplete":
            return REASONS.get(stop, "context" if "context" in stop else "unknown")
        if status != "completed":
            return "unknown"
        return "refusal" if self._refused else "calls" if self._called else "normal"


def failed(said: dict[str, Any]) -> ProviderError:
    """The error that an event or a failed response tells, in itself or in its field `error`."""
    error = said.get("error")
    error = error if isinstance(error, dict) else said
    if error.get("code") in REFUSED:
        error = {**error, "type": "invalid_request_error"}
    return errors.in_stream(error)


def counted(usage: Any) -> Usage:
    """Tokens as the wire counts them: the input includes what was cached, the output its reasoning."""
    prompt, output = _number(usage, "input_tokens"), _number(usage, "output_tokens")
    details = usage.get("input_tokens_details") if isinstance(usage, dict) else None
    read = min(_number(details, "cached_tokens"), prompt)
    written = min(_number(details, "cache_write_tokens"), prompt - read)
    return Usage(prompt - read - written, output, read, written)


def _number(counts: Any, name: str) -> int:
    return repair.count(counts.get(name)) or 0 if isinstance(counts, dict) else 0


def _place(event: dict[str, Any]) -> int:
    """Which of an item's parts an event is about."""
    place = event.get("content_index", event.get("summary_index", 0))
    return place if type(place) is int else 0
