"""Find what a request says otherwise than the parts it was made of: by comparing, so that a step itself pays nothing.

Wires are asked, not known: a part counts as left out where a small request with it and one without it are the same.
"""

from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct, structs

from daemon.chain import GO_ON, Call, Context, Media, Part, Raw, Result, Text, Turn
from daemon.provider import fitting, repair
from daemon.provider.base import Provider, Query, Request, Wire
from daemon.provider.images import BadImage, inspect

SHORT: Final = "abcdefghi"  # an id that every wire takes: one that does not send it sends none
SHOWN: Final = 40  # characters of a name or an id in a sentence
GIVES_WAY: Final = "an image: a note is sent, since the session holds too many"
BEFORE: Final = 3  # turns before one that may change how it is sent: an answer may pause and go on

_NOTHING: Final = Text("-")
_NOBODYS: Final = Raw("", "", "", b"", "")  # left out by every wire


class Sent(Struct, frozen=True):
    """How a request came out: (index into the parts, what is sent in its place) for each that differs, and how many
    images it holds.
    """

    differences: list[tuple[int, str]]
    images: int


def find(
    provider: Provider, query: Query, request: Request, parts: Sequence[tuple[int, Part]], left_out: int
) -> Sent:
    """Compare a request with `parts`, all of its context's, each with its turn's index.

    `left_out`: how many of the oldest images give way, see Wire.
    """
    look = _Look(provider, query, request)
    found: list[tuple[int, str]] = []
    seen = images = 0
    for at, (turn, part) in enumerate(parts):
        match part:
            case Call():
                found += ((at, what) for what in look.call(part, turn))
            case Raw():
                found += ((at, what) for what in look.raw(part, turn))
            case Text() | Media() | Result():
                for media in _media(part):
                    what, shown = look.image(media) if seen >= left_out else (GIVES_WAY, False)
                    found += [(at, what)] if what else []
                    seen, images = seen + 1, images + shown
    return Sent(found, images)


def _media(part: Text | Media | Result) -> Iterator[Media]:
    for item in part.content if isinstance(part, Result) else (part,):
        if isinstance(item, Media):
            yield item


class _Look:
    """One request, and small ones made in the same way."""

    def __init__(self, provider: Provider, query: Query, request: Request) -> None:
        self._provider = provider
        self._query = query
        self._body = request.body
        self._said = _said(request.body)
        turns = (Turn("user", (Text("-"),)), Turn("assistant", (Call(SHORT, "run", "{}", b"", ""),)))
        probe = self._compiled(turns, Turn("user", (Result(SHORT, "run", (Text("-"),), False),)))
        self._has_ids = SHORT in _said(probe)
        self._whole: tuple[int, bytes] = (-1, b"")

    def call(self, part: Call, turn: int) -> Iterator[str]:
        """What is sent otherwise of a call."""
        if self._has_ids and part.id not in self._said:
            yield f"a call's id {_short(part.id)}: one of the form that the provider takes is sent"
        if (legal := repair.name(part.name)) != part.name:
            yield f"a tool's name {_short(part.name)}: {legal} is sent"
        sent = repair.arguments(part.arguments)
        if sent != part.arguments.strip(" \t\r\n").encode("utf-8", "surrogatepass"):
            yield _arguments(part.arguments, sent)
        if part.extra and self._same(turn, part, structs.replace(part, extra=b"")):
            yield f"what {part.provider} wants back with a call: left out"

    def raw(self, part: Raw, turn: int) -> Iterator[str]:
        """What is sent otherwise of a provider's own block."""
        who = f"{part.provider}/{part.model}"
        if self._same(turn, part, _NOBODYS):
            yield f"{'text' if part.text.strip() else 'thinking'} of {who}: left out"
        elif part.text.strip() and part.provider != self._provider.name:
            yield f"text of {who} with more than words: its words alone are sent"

    def image(self, media: Media) -> tuple[str, bool]:
        """What is sent otherwise of an image, empty for nothing; whether there is one in its place."""
        start = f"[an image ({media.type}, {len(media.data)} bytes) that cannot be shown: ".encode()
        if (at := self._body.find(start)) >= 0:
            why = self._body[at + len(start) : self._body.find(b"]", at)].decode("utf-8", "replace")
            return f"an image that cannot be shown ({why}): a note is sent", False
        try:
            image = inspect(media.data)
        except BadImage as error:
            return f"an image that cannot be shown ({error}): it is not sent", False
        if b2a_base64(media.data, newline=False).decode() in self._said:
            other = f"an image that is said to be {media.type}: it is sent as the {image.type} that it is"
            return ("" if image.type == media.type else other), True
        if image.type == "image/gif" and self._holds_still(media):
            return "a moving image: its first picture is sent", True
        size = f"{image.width}x{image.height} pixels, {len(media.data)} bytes"
        if fitting.fits(media.data, image):
            return f"an image ({size}): it is not sent", False
        return f"an image ({size}): a smaller one is sent", True

    def _holds_still(self, media: Media) -> bool:
        """Whether the first picture of a moving image stands in the request."""
        try:
            still = fitting.fitted(media.data, moving=False).data
        except BadImage:
            return False
        return b2a_base64(still, newline=False).decode() in self._said

    def _same(self, turn: int, part: Part, other: Part) -> bool:
        """Whether the requests with `part` in its turn, and with `other` instead, are the same."""
        parts = self._query.context.settled[turn].parts
        if self._whole[0] != turn:
            self._whole = (turn, self._around(turn, parts))
        return self._around(turn, tuple(other if one is part else one for one in parts)) == self._whole[1]

    def _around(self, turn: int, parts: tuple[Part, ...]) -> bytes:
        """A request of one turn of these parts and those beside it, which stand for themselves only by their form."""
        settled, last = self._query.context.settled, self._query.context.last
        start, end = max(0, turn - BEFORE), turn + BEFORE
        beside = [_plain(one) for one in settled[start:end]]
        beside[turn - start] = Turn("assistant", parts)
        if end < len(settled):
            last = settled[end]
        return self._compiled(beside, _plain(last) if last is not None else None)

    def _compiled(self, settled: Sequence[Turn], last: Turn | None) -> bytes:
        query = structs.replace(self._query, context=Context("", settled, last, 1, 0))
        return self._provider.compile(query, Wire()).body


def _plain(turn: Turn) -> Turn:
    """A turn in which a user's images and long texts are short texts."""
    if turn.role == "assistant" or turn.parts == (Text(GO_ON),):
        return turn
    plain = (
        structs.replace(part, content=(_NOTHING,)) if isinstance(part, Result) else _NOTHING
        for part in turn.parts
    )
    return Turn("user", tuple(plain))


def _arguments(given: str, sent: bytes) -> str:
    if sent == b"{}":
        return "arguments that say nothing: an empty object is sent"
    if sent.startswith(b'{"%b":' % repair.INVALID.encode()):
        return f"arguments that are no JSON object: they are sent as a text in one, in {repair.INVALID}"
    return "arguments with half a character: U+FFFD is sent for it"


def _said(body: bytes) -> frozenset[str]:
    """Every string in a body; none where it is no JSON, which its wire's rules tell."""
    try:
        return frozenset(_strings(repair.loads(body)))
    except ValueError:
        return frozenset()


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value; of an address of data also the data."""
    if isinstance(value, str):
        yield value
        if value.startswith("data:"):
            yield value.partition(",")[2]
    elif isinstance(value, dict | list):
        inner: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for item in inner:
            yield from _strings(item)


def _short(name: str) -> str:
    return ascii(name if len(name) <= SHOWN else f"{name[:SHOWN]}…")
