"""Put the pieces of a Chat Completions answer together: reasoning under its three names, and calls in fragments."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from daemon.protocol.records import NO_EXTRA
from daemon.provider import repair

NAMES: Final = ("reasoning_content", "reasoning")  # a server that sends both means one
PLAIN: Final = frozenset(
    {"type", "text", "format", "index", "id"}
)  # of a detail that says no more than its text
WORDS: Final = ("text", "content", "thinking")  # names of the text in a part
GROWS: Final = ("text", "summary")
IDENTITY: Final = frozenset({"index", "id", "type", "function"})
NOTHING: Final = msgspec.Raw(b"[]")


class Kept(Struct, frozen=True, omit_defaults=True):
    """The body of a reasoning block. `field`: where the text came; `details`: OpenRouter's, where they say more."""

    text: str = ""
    field: str = ""
    details: msgspec.Raw = NOTHING


class _Detail:
    """An entry of `reasoning_details`: its fields, and the pieces of those that grow."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.pieces: dict[str, list[str]] = {}

    def whole(self) -> dict[str, Any]:
        return {**self.fields, **{name: "".join(pieces) for name, pieces in self.pieces.items()}}


class Reasoning:
    """The reasoning of one answer, counted once under whatever names it comes."""

    def __init__(self) -> None:
        self.begun = False
        self._field = ""
        self._pieces: list[str] = []
        self._details: list[_Detail] = []
        self._last: dict[bytes, _Detail] = {}  # the newest of a kind and place

    def take(self, delta: dict[str, Any]) -> str:
        """What a delta adds to be read, empty for none."""
        piece = ""
        for name in NAMES:
            if piece := words(delta.get(name)):
                self._field = self._field or name
                break
        if details := delta.get("reasoning_details"):
            said = self._detailed(details)
            piece = piece or said
        if piece:
            self.add(piece)
        return piece

    def add(self, piece: str) -> None:
        """Take a piece of text that came in another way."""
        self.begun = True
        self._pieces.append(piece)

    def body(self) -> bytes:
        """A Kept as JSON."""
        details = [detail.whole() for detail in self._details]
        plain = all(_plain(detail) for detail in details)
        kept = Kept(
            repair.text("".join(self._pieces)),
            self._field,
            NOTHING if plain else msgspec.Raw(msgspec.json.encode(repair.scrub(details))),
        )
        return msgspec.json.encode(kept)

    def _detailed(self, details: Any) -> str:
        said = ""
        for given in details if isinstance(details, list) else ():
            if not isinstance(given, dict):
                continue
            self.begun = True
            place = msgspec.json.encode(repair.scrub([given.get("type"), given.get("index")]))
            detail = self._goes_on(given, place)
            if detail is None:
                detail = self._last[place] = _Detail({})
                self._details.append(detail)
            for name, value in given.items():
                if name in GROWS and isinstance(value, str):
                    detail.pieces.setdefault(name, []).append(value)
                    said += value
                elif value is not None or name not in detail.fields:
                    detail.fields[name] = value
        return said

    def _goes_on(self, given: dict[str, Any], place: bytes) -> _Detail | None:
        """The entry that this one is a further piece of: of its kind and place, and not closed with data."""
        if (detail := self._last.get(place)) is None:
            return None
        old = detail.fields
        other = old.get("id") and given.get("id") and old["id"] != given["id"]
        return None if other or "data" in old else detail


class Call:
    """A call whose fragments come in. `number`: of its block, -1 until it has one."""

    def __init__(self) -> None:
        self.number = -1
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self._more: dict[str, Any] = {}

    def take(self, fragment: dict[str, Any]) -> str:
        """Take a fragment; the arguments that it adds."""
        self.id = self.id or _text(fragment, "id")
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        if name := _text(function, "name"):
            # a piece of it, or the name once more
            self.name = name if name.startswith(self.name) else self.name + name
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(repair.scrub(arguments)).decode()
        piece = arguments if isinstance(arguments, str) else ""
        if piece:
            self.arguments.append(piece)
        for field, value in fragment.items():
            if field not in IDENTITY and value not in (None, "", [], {}):
                self._more[field] = value
        return piece

    def extra(self) -> msgspec.Raw:
        """What came with the call besides, to be sent back with it."""
        return msgspec.Raw(msgspec.json.encode(repair.scrub(self._more))) if self._more else NO_EXTRA

    @property
    def complete(self) -> bool:
        """Its arguments are a whole object, so that more of them would be another call's."""
        if not self.arguments or not self.arguments[-1].rstrip().endswith("}"):
            return False  # some servers repeat the name with every fragment: joining them each time costs their square
        self.arguments = ["".join(self.arguments)]
        try:
            return isinstance(repair.loads(self.arguments[0]), dict)
        except ValueError:
            return False


class Calls:
    """The calls of one answer, in the order in which they began; true where there are any.

    Fragments belong together by their index. Some servers send none, or 0 for all: there a new id with a name, or a
    name after whole arguments, begins another call.
    """

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._at: dict[int, Call] = {}

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def __bool__(self) -> bool:
        return bool(self._calls)

    def take(self, fragment: dict[str, Any]) -> tuple[Call, str]:
        """The call that a fragment belongs to, and the arguments that it adds."""
        index = fragment.get("index")
        place = index if isinstance(index, int) else None
        last = self._calls[-1] if self._calls else None
        call = last if place is None else self._at.get(place)
        if call is None or _another(call, fragment, placed=place is not None):
            call = Call()
            self._calls.append(call)
        if place is not None:
            self._at[place] = call
        return call, call.take(fragment)


def _another(call: Call, fragment: dict[str, Any], *, placed: bool) -> bool:
    """Whether a fragment at a call's place begins another one."""
    id, function = _text(fragment, "id"), fragment.get("function")
    name = _text(function, "name") if isinstance(function, dict) else ""
    if id and call.id:
        return id != call.id and bool(name or not placed)
    if not name or not isinstance(function, dict) or not (function.get("arguments") or name != call.name):
        return False
    return bool(call.arguments) and call.complete


def words(thinking: Any) -> str:
    """The text of reasoning: a string, a part with one, or a list of them."""
    if isinstance(thinking, str):
        return thinking
    if isinstance(thinking, dict):
        return next((text for name in WORDS if (text := words(thinking.get(name)))), "")
    return "".join(map(words, thinking)) if isinstance(thinking, list) else ""


def _plain(detail: dict[str, Any]) -> bool:
    told = {name for name, value in detail.items() if value is not None}
    return detail.get("type") == "reasoning.text" and told <= PLAIN


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
