"""Keep a request's images within what providers take in all: the oldest give way to a note.

Many give way at once, so that what a provider has cached of a session stays good for long.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from daemon.chain import Context, Media, Part, Result, Text
from daemon.provider.base import Wire

MAX_IMAGES: Final = 100  # Anthropic takes no more in a request
MAX_BYTES: Final = 30 << 20  # Anthropic takes 32 MB; the rest of the request has to fit too
KEPT: Final = 50  # images that stay when there are too many
LEFT_OUT: Final = "[an image was here; it is left out, because the session holds too many]"


def count(parts: Sequence[Part]) -> int:
    """The images in a turn's parts."""
    return sum(
        1
        for part in parts
        for item in (part.content if isinstance(part, Result) else (part,))
        if isinstance(item, Media)
    )


def enter(context: Context, wire: Wire, most: int = MAX_IMAGES, kept: int = KEPT) -> None:
    """Count what is new of a context; where its images are more than `most`, decide which are left out from here on,
    so that `kept` stay.
    """
    settled = context.settled
    wire.images += (count(settled[index].parts) for index in range(len(wire.images), len(settled)))
    images = total(context, wire)
    if images - wire.left_out > most:
        _leave_out(wire, images - kept)


def total(context: Context, wire: Wire) -> int:
    """All images of a context that was entered."""
    return sum(wire.images) + (count(context.last.parts) if context.last is not None else 0)


def shrink(messages: Sequence[bytes], context: Context, wire: Wire, most: int = MAX_BYTES) -> bool:
    """Whether the messages are to be built anew, with half of their images, since they are over `most` bytes."""
    if sum(map(len, messages)) <= most or wire.left_out >= (images := total(context, wire)):
        return False
    _leave_out(wire, wire.left_out + (images - wire.left_out + 1) // 2)
    return True


def within(parts: Sequence[Part], index: int, wire: Wire) -> Sequence[Part]:
    """The parts of turn `index` (the last one's is the number of settled turns) without images that are left out."""
    if not wire.left_out:
        return parts
    skip = wire.left_out - sum(wire.images[:index])
    if skip <= 0 or not count(parts):
        return parts
    found: list[Part] = []
    for part in parts:
        if isinstance(part, Result):
            content = tuple(_or_note(item, skip - place) for place, item in enumerate(part.content))
            found.append(structs.replace(part, content=content))
        elif isinstance(part, Media):
            found.append(_or_note(part, skip))
        else:
            found.append(part)
        skip -= count((part,))
    return found


def _or_note(item: Text | Media, skip: int) -> Text | Media:
    return Text(LEFT_OUT) if skip > 0 and isinstance(item, Media) else item


def _leave_out(wire: Wire, images: int) -> None:
    wire.left_out = images
    wire.turns.clear()
