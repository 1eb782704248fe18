"""Put the pieces of one ConverseStream block together: a text, reasoning with its signature, a call, or one unknown."""

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import Any, Final, Literal

from daemon.provider import repair

SHOWN: Final[dict[str, Literal["text", "thinking", "call"]]] = {
    "text": "text",
    "reasoningContent": "thinking",
    "toolUse": "call",
}


class Open:
    """A block that has begun: its kind is the union's member, its number counts what is given.

    `start`: the fields that it began with. `more`: citations of a text, else the pieces of a kind we do not know.
    """

    def __init__(self, kind: str, number: int, start: Any) -> None:
        self.kind = kind
        self.number = number
        self.start: dict[str, Any] = start if isinstance(start, dict) else {}
        self.more: list[Any] = []
        self._text: list[str] = []
        self._signature: list[str] = []
        self._redacted: list[str] = []

    @property
    def shown(self) -> Literal["text", "thinking", "call"]:
        return SHOWN.get(self.kind, "thinking")

    @property
    def name(self) -> str:
        """The tool's, empty for a block that is no call."""
        return repair.text(str(self.start.get("name") or "")) if self.kind == "toolUse" else ""

    @property
    def text(self) -> str:
        return repair.text("".join(self._text))

    @property
    def says(self) -> bool:
        """There is something in it: an empty text and empty reasoning are no blocks."""
        if self.kind in ("text", "reasoningContent"):
            return any(self._text) or any(self._signature) or any(self._redacted)
        return True

    def add(self, member: str, piece: Any) -> str | None:
        """Take a piece; what it gives a reader, None for nothing. Raises ValueError for one that is none."""
        match member:
            case "text":
                return self._say(piece) or None
            case "toolUse":
                return self._say(piece.get("input") if isinstance(piece, dict) else None)
            case "reasoningContent":
                if not isinstance(piece, dict):
                    raise ValueError("a piece of reasoning without anything in it")
                return self._think(piece)
            case _:
                self.more.append(piece)
                return None

    def reasoning(self) -> dict[str, str]:
        """The fields of reasoning as they go back: a text with its signature, or what only the provider can read."""
        fields = {"text": self.text} if self._text or self._signature else {}
        if self._signature:
            fields["signature"] = repair.text("".join(self._signature))
        if self._redacted:
            fields["redactedContent"] = _joined(self._redacted)
        return fields

    def raw(self) -> dict[str, Any]:
        """A block of a kind that we do not know: what it began with, and its pieces."""
        pieces = [*self._text, *self.more]
        scrubbed: dict[str, Any] = repair.scrub({self.kind: self.start, "pieces": pieces})
        return scrubbed

    def _say(self, piece: Any) -> str:
        if not isinstance(piece, str):
            raise ValueError("a piece without its text")
        self._text.append(piece)
        return piece

    def _think(self, piece: dict[str, Any]) -> str | None:
        said = None
        for field, value in piece.items():
            if not isinstance(value, str):
                self.more.append({field: value})
            elif field == "text":
                said = self._say(value) or None
            elif field == "signature":
                self._signature.append(value)
            elif field == "redactedContent":
                self._redacted.append(value)
            else:
                self.more.append({field: value})
        return said


def _joined(pieces: list[str]) -> str:
    """Bytes that came in pieces, each in base64, as one; a single piece stays letter for letter."""
    if len(pieces) == 1:
        return pieces[0]
    try:
        return b64encode(b"".join(b64decode(piece, validate=True) for piece in pieces)).decode()
    except (NotBase64, ValueError):
        return "".join(pieces)
