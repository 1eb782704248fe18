"""Gemini's contents: each turn made into the JSON that the vendor takes for it.

Results go alone: newer models take what stands beside them in one content for a turn of the model's and refuse the
request, so all else that a user says then is a content of its own.
"""

import re
from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from typing import Any, Final, assert_never

import msgspec

from daemon.chain import Call, Media, Part, Raw, Result, Text
from daemon.provider import fitting, repair
from daemon.provider.base import Tool
from daemon.provider.gemini import PART, SIGNATURE
from daemon.provider.images import BadImage

NOTHING: Final = "(nothing)"  # stands where a content would be empty, which the vendor refuses
SKIP: Final = "skip_thought_signature_validator"  # the vendor's own word for a call that another model made
OLD: Final = re.compile(
    r"gemini-(?:[a-z]+-)?[12](?:[.-]|$)", re.IGNORECASE
)  # before signatures were demanded

_encode = msgspec.json.Encoder().encode


def signs(model: str) -> bool:
    """Whether a model wants a signature on the first call of each answer, and images inside results: those from Gemini
    3 on, by whatever name.
    """
    return "gemini" in model.lower() and OLD.search(model) is None


class Writer:
    """Writes contents for one provider and model. `shows`: it takes images."""

    def __init__(self, provider: str, model: str, *, shows: bool) -> None:
        self._provider = provider
        self.model = model
        self._signs = signs(model)
        self._shows = shows

    def user(self, parts: Iterable[Part]) -> bytes:
        """A user's turn: a content of the results, then one of all else, older models' images of results first."""
        results: list[dict[str, Any]] = []
        shown: list[dict[str, Any]] = []
        said: list[dict[str, Any]] = []
        for part in parts:
            match part:
                case Result():
                    results.append(self._result(part, shown))
                case Text() | Media():
                    said += self._said(part)
                case Call() | Raw():
                    continue  # the model's
                case _:
                    assert_never(part)
        contents = [{"role": "user", "parts": results}] if results else []
        if shown or said or not results:
            contents.append({"role": "user", "parts": [*shown, *said] or [_text(NOTHING)]})
        return b",".join(map(_encode, contents))

    def answer(self, parts: Iterable[Part]) -> bytes:
        """An answer's content, its parts in the order in which they came. Never one that says nothing."""
        found: list[bytes] = []
        says = called = False
        for part in parts:
            match part:
                case Text(text):
                    if text.strip():
                        found.append(_encode(_text(text)))
                        says = True
                case Raw():
                    raw, words = self._raw(part)
                    found += [raw] if raw else []
                    says = says or words
                case Call():
                    found.append(self._call(part, first=not called))
                    says = called = True
                case Result() | Media():
                    continue  # the user's
                case _:
                    assert_never(part)
        if not says:
            found.append(_encode(_text(NOTHING)))
        return b'{"role":"model","parts":[%b]}' % b",".join(found)

    def _raw(self, part: Raw) -> tuple[bytes, bool]:
        """A part as it goes back, byte for byte, and whether it says anything; none for another's but its words."""
        own = part.provider == self._provider and part.type == PART
        if not own or part.model != self.model:
            words = part.text.strip()
            return (_encode(_text(part.text)) if words else b""), bool(words)
        try:
            fields = msgspec.json.decode(part.body, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return b"", False
        if fields.get("thought") is True and not fields.get(SIGNATURE):
            return b"", False  # a summary for readers
        text = fields.get("text")
        return part.body, not isinstance(text, str) or (bool(text.strip()) and not fields.get("thought"))

    def _call(self, part: Call, *, first: bool) -> bytes:
        """`first`: of its answer, which is where a signature has to stand."""
        extra: dict[str, Any] = {}
        if part.extra and part.provider == self._provider and part.model == self.model:
            try:
                extra = msgspec.json.decode(part.extra, type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError):
                extra = {}
        inner = extra.pop("functionCall", None)
        args = msgspec.Raw(repair.arguments(part.arguments))
        call = {"name": name(part.name), "args": args, "id": _id(part.id)}
        if self._signs and first and not extra.get(SIGNATURE):
            extra[SIGNATURE] = SKIP
        return _encode({"functionCall": call | (inner if isinstance(inner, dict) else {}), **extra})

    def _result(self, part: Result, shown: list[dict[str, Any]]) -> dict[str, Any]:
        """A result's part. Its images stand inside, with models that take them there; else they go to `shown`."""
        texts: list[str] = []
        images: list[dict[str, Any]] = []
        for item in part.content:
            for block in self._said(item):
                if "text" in block:
                    texts.append(block["text"])
                elif self._signs:
                    images.append(block)
                else:
                    shown += _text(f"The image of the result of {_id(part.call)}:"), block
                    texts.append("[an image, shown below]")
        text = "\n".join(texts) or ("" if images else NOTHING)
        response = {"error" if part.failed else "output": text}
        fields: dict[str, Any] = {"id": _id(part.call), "name": name(part.name), "response": response}
        return {"functionResponse": fields | ({"parts": images} if images else {})}

    def _said(self, part: Text | Media) -> list[dict[str, Any]]:
        if isinstance(part, Media):
            return [self._media(part)]
        return [_text(part.text)] if part.text.strip() else []

    def _media(self, part: Media) -> dict[str, Any]:
        """An image of the type that its bytes show, or a note that says why there is none."""
        try:
            if not self._shows:
                raise BadImage("the model takes no images")
            fitted = fitting.fitted(part.data, moving=False)
        except BadImage as error:
            return _text(fitting.note(part.type, part.data, error))
        data = b2a_base64(fitted.data, newline=False).decode()
        return {"inlineData": {"mimeType": fitted.image.type, "data": data}}


def system(text: str) -> dict[str, Any]:
    return {"parts": [_text(text)]}


def tools(offered: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as the vendor is told of them."""
    declared = [
        {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.schema}
        for tool in offered
    ]
    return [{"functionDeclarations": declared}]


def name(given: str) -> str:
    """A tool's name as the vendor takes it, which begins with a letter or `_`. A legal one stays."""
    legal = repair.name(given)
    return legal if legal[0].isalpha() or legal[0] == "_" else f"_{legal}"[: repair.MAX_NAME]


def _id(given: str) -> str:
    return repair.plain_id(given, repair.MAX_NAME)


def _text(words: str) -> dict[str, Any]:
    return {"text": repair.text(words)}
