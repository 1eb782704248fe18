"""Put one output item of a Responses answer together: from its start, its pieces, and what is told of it when done."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from daemon.protocol.records import JSON, NO_EXTRA, CallBody
from daemon.provider import repair
from daemon.provider.base import Block

ITEM: Final = "application/vnd.openai.responses.item+json"  # see Kept
CUSTOM: Final = "custom_tool_call"  # a call whose input is a text of any form
INPUT: Final = {"function_call": "arguments", CUSTOM: "input"}  # where a call has what it is called with
APART: Final = "\n\n"  # between the parts of a reasoning, as it is read

# Of an item that is made of parts: the field of a part of each type that holds its text.
WORDS: Final = {"output_text": "text", "refusal": "refusal", "summary_text": "text", "reasoning_text": "text"}
PARTS: Final = {"message": ("content",), "reasoning": ("summary", "content")}
PLACE: Final = {"summary_text": "summary"}  # the list that a type of part stands in, "content" for all others
PLAIN: Final = frozenset(
    {"id", "type", "role", "status", "content"}
)  # of a message that is no more than its text
DIRECT: Final = {
    "type": "direct"
}  # who made a call, where it was the model itself: says nothing, so is not kept

_NOTHING: Final[tuple[Any, ...]] = (None, "", [], {})
_encode = msgspec.json.Encoder().encode


class Kept(Struct, frozen=True):
    """The body of a block that is kept as it came. `text`: what a person reads of it; `item`: what the provider wants
    back.
    """

    text: str
    item: msgspec.Raw


class Item:
    """An item whose events come in. `number`: of its block, -1 until it is known; `done`: nothing more of it comes."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.number = -1
        self.done = False
        self.rotates = False  # it had several ids, so that none of them means anything
        self._pieces: dict[tuple[str, int], list[str]] = {}
        self._last: tuple[str, int] | None = None
        self._told = False  # all that a call is called with

    @property
    def type(self) -> str:
        return str(self.fields.get("type", ""))

    @property
    def encrypted(self) -> bool:
        """It is a reasoning that only the provider can read."""
        return self.type == "reasoning" and bool(self.fields.get("encrypted_content"))

    @property
    def whole(self) -> bool:
        """It came to its end; a call that did not is none."""
        return self.done and self.fields.get("status") != "incomplete"

    def told(self, id: Any) -> None:
        """An event of it names it so."""
        if isinstance(id, str) and id != self.fields.get("id", id):
            self.rotates = True

    def take(self, kind: str, place: int, piece: str) -> str:
        """Take a piece of a part, or of what a call is called with; what it adds for a reader."""
        at = kind, place
        gap = APART if self.type == "reasoning" and self._last not in (None, at) else ""
        self._last = at
        self._pieces.setdefault(at, []).append(piece)
        return gap + piece

    def settle(self, kind: str, place: int, text: str) -> str:
        """Take all of a part's text; what it adds for a reader: all of it, where no piece of it came."""
        self._told = self._told or kind in INPUT.values()
        if (kind, place) not in self._pieces:
            return self.take(kind, place, text) if text else ""
        self._pieces[kind, place] = [text]
        return ""

    def finish(self, fields: Any) -> None:
        """It is done and is this; None where that was never told."""
        self.done = True
        if isinstance(fields, dict) and fields.get("type"):
            self.told(fields.get("id"))
            known: dict[str, Any] = {
                name: self.fields[name] for name in ("call_id", "name") if name in self.fields
            }
            self.fields = {**known, **fields}
        else:  # what was encrypted of it by then is no whole
            begun = {name: value for name, value in self.fields.items() if name != "encrypted_content"}
            self.fields = {**begun, "status": "completed" if self._told else "incomplete"}

    def block(self, *, linked: bool) -> Block | None:
        """Its block, None where there is nothing in it. `linked`: what is encrypted in the answer refers to its id."""
        kind = self.type
        if kind in INPUT:
            return self._call(INPUT[kind]) if self.whole else None
        fields = repair.scrub(self._filled())
        text = _read(fields)
        if kind == "message":
            if not text:
                return None
            if not linked and _plain(fields):
                return Block("text", text.encode())
        body = _encode(Kept(text, msgspec.Raw(_encode(fields))))
        return Block("text" if kind == "message" else "thinking", body, ITEM)

    @property
    def refused(self) -> bool:
        """It is a message that says no."""
        parts = self.fields.get("content")
        told = any(isinstance(part, dict) and part.get("type") == "refusal" for part in _list(parts))
        return self.type == "message" and (told or any(kind == "refusal" for kind, _ in self._pieces))

    @property
    def _named(self) -> bool:
        """It has an id that means something."""
        id = self.fields.get("id")
        return isinstance(id, str) and bool(id) and not self.rotates

    def _filled(self) -> dict[str, Any]:
        """Its fields, the texts that it was done without put in from their pieces."""
        fields = {name: value for name, value in self.fields.items() if name != "id" or self._named}
        if isinstance(words := fields.get("content"), str):  # some servers
            fields["content"] = [{"type": "output_text", "text": words, "annotations": []}]
        for name in PARTS.get(self.type, ()):
            if _text(fields.get(name), ""):
                continue
            parts = [
                _part(kind, "".join(pieces))
                for (kind, _), pieces in sorted(self._pieces.items())
                if PLACE.get(kind, "content") == name and kind in WORDS
            ]
            if parts:
                fields[name] = parts
        if self.type == "reasoning" and not isinstance(fields.get("summary"), list):
            fields["summary"] = []  # the API misses it
        return fields

    def _call(self, name: str) -> Block:
        fields = self.fields
        given = fields.get(name)
        if isinstance(given, dict):  # some servers
            given = _encode(repair.scrub(given)).decode()
        if not isinstance(given, str) or not given:
            given = "".join(self._pieces.get((name, 0), ()))
        own = {"type", "call_id", "name", "status", name} | (set() if self._named else {"id"})
        extra = {
            field: value
            for field, value in fields.items()
            if field not in own and value not in _NOTHING and value != DIRECT
        }
        if self.type == CUSTOM:
            extra["type"] = CUSTOM
        raw = msgspec.Raw(_encode(repair.scrub(extra))) if extra else NO_EXTRA
        body = CallBody(repair.text(str(fields.get("name") or "")), repair.text(given), raw)
        return Block("call", _encode(body), JSON, repair.text(str(fields.get("call_id") or "")))


def _part(kind: str, text: str) -> dict[str, Any]:
    more: dict[str, Any] = {"annotations": []} if kind == "output_text" else {}
    return {"type": kind, WORDS[kind]: text, **more}


def _read(fields: dict[str, Any]) -> str:
    """What a person reads of an item; nothing of a kind that is not known."""
    kind = str(fields.get("type", ""))
    between = "" if kind == "message" else APART
    return between.join(text for name in PARTS.get(kind, ()) if (text := _text(fields.get(name), between)))


def _text(parts: Any, between: str) -> str:
    texts = [
        part.get(WORDS.get(str(part.get("type")), "")) for part in _list(parts) if isinstance(part, dict)
    ]
    return between.join(text for text in texts if isinstance(text, str) and text)


def _plain(fields: dict[str, Any]) -> bool:
    """Whether a message is no more than its text."""
    if any(name not in PLAIN and value not in _NOTHING for name, value in fields.items()):
        return False
    return all(
        isinstance(part, dict)
        and part.get("type") == "output_text"
        and all(name in ("type", "text") or value in _NOTHING for name, value in part.items())
        for part in fields["content"]
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
