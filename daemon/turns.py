"""What is said in a session, as turns of parts, and the parts that a record's content makes."""

from collections.abc import Iterable
from typing import Final, Literal, assert_never

from msgspec import Struct

from daemon.protocol import records
from daemon.protocol.records import CallBody, Header, Record

MEDIA_TOKENS: Final = 1600  # what a large image costs with the vendors that say


class Text(Struct, frozen=True):
    """Words of either side."""

    text: str


class Media(Struct, frozen=True):
    """An image or another attachment: media type and raw bytes."""

    type: str
    data: bytes


class Call(Struct, frozen=True):
    """A tool call as the provider sent it; `arguments` may not be valid JSON. `extra`: raw JSON it wants back.

    `model`: the one that made it, for what only that may be sent.
    """

    id: str
    name: str
    arguments: str
    extra: bytes
    provider: str
    model: str = ""


class Result(Struct, frozen=True):
    """The one result of a call; `failed` when it was refused, not carried out, or its outcome is unknown."""

    call: str
    name: str
    content: tuple[Text | Media, ...]
    failed: bool


class Raw(Struct, frozen=True):
    """A block only its own provider (and, for signatures, model) can read, byte for byte.

    `text` is what another provider may be sent in its place; empty means that it is left out there.
    """

    provider: str
    model: str
    type: str
    body: bytes
    text: str


Part = Text | Media | Call | Result | Raw


class Turn(Struct, frozen=True):
    """What one side said before the other answered. Turns alternate and the first is the user's.

    In a user turn results come first, one for each call of the turn before, in the calls' order. An assistant
    turn has at least one part; all of them may be Raw, so that another provider finds nothing to send.
    """

    role: Literal["user", "assistant"]
    parts: tuple[Part, ...]


def tokens(record: Record) -> int:
    """An estimate, on the high side, of what a record adds to a prompt."""
    return MEDIA_TOKENS if _is_image(record) else len(record.body) // 3 + 8


def part_tokens(part: Part) -> int:
    """The same for a part."""
    match part:
        case Text(text):
            return len(text.encode()) // 3 + 8
        case Media():
            return MEDIA_TOKENS
        case Call():
            return len(part.arguments.encode()) // 3 + len(part.extra) // 3 + 8
        case Result():
            return sum(map(part_tokens, part.content))
        case Raw():
            return len(part.body) // 3 + 8
        case _:
            assert_never(part)


def _is_image(record: Record) -> bool:
    return records.essence(record.header.type).startswith("image/")


def content(record: Record) -> Text | Media:
    """A body as a part: text and JSON as text, an image as media, a note in place of anything else."""
    type = records.essence(record.header.type)
    if type.startswith("text/") or type.endswith("json"):
        return Text(record.body.decode("utf-8", "replace"))
    if _is_image(record) and record.body:
        return Media(type, record.body)
    return Text(f"[an attachment of type {type}, {len(record.body)} bytes, that cannot be shown here]")


def said(record: Record) -> Text | Media | None:
    """What a message, a later system text or an error says; None for nothing."""
    if record.kind == "error":
        try:
            body = records.error_of(record)
        except records.BadRecord:
            return Text("[error]")
        return Text(f"[{body.message or body.code}]")
    part = content(record)
    return part if isinstance(part, Media) or part.text.strip() else None


def answer(blocks: Iterable[tuple[Record, CallBody | None]], step: Header) -> tuple[Part, ...]:
    """The parts of an assistant turn, from a step's blocks (a call with its body); blank text is left out."""
    parts: list[Part] = []
    for block, call in blocks:
        header, provider = block.header, block.header.provider or step.provider
        if call is not None:
            extra = bytes(call.extra)
            parts.append(Call(header.id, call.name, call.arguments, extra, provider, step.model))
        elif header.kind == "thinking":
            parts.append(Raw(provider, step.model, header.type, block.body, ""))
        elif not records.essence(header.type).startswith("text/"):
            parts.append(Raw(provider, step.model, header.type, block.body, block.text()))
        elif (text := block.text()).strip():
            parts.append(Text(text))
    return tuple(parts)
