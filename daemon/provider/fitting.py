"""Make an image fit what providers take: as it is where it does, else smaller."""

import io
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from daemon.provider.images import BadImage, Image, inspect

MAX_BASE64: Final = 5 << 20  # bytes; Anthropic's limit for one image
MAX_SIDE: Final = (
    2000  # pixels; Anthropic's limit where there are many images, so that none has to change later
)
MAX_PIXELS: Final = 80_000_000  # of an image that is decoded: about 300 MB of memory
HEAVY: Final = 1 << 20  # bytes that take milliseconds to write
SMALLER: Final = (2000, 1400, 1000, 700)  # sides to try
QUALITY: Final = 80  # of a JPEG
REMEMBERED: Final = 8  # images made smaller: the newest turn is written anew until it is settled


class Fitted(Struct, frozen=True):
    """An image that fits, and its bytes."""

    image: Image
    data: bytes


def fits(data: bytes, image: Image) -> bool:
    """Whether it can go as it is."""
    return 4 * -(-len(data) // 3) <= MAX_BASE64 and max(image.width, image.height) <= MAX_SIDE


def fitted(data: bytes, *, moving: bool = True) -> Fitted:
    """The image in `data`, made smaller where it has to be: then this takes up to a second. Raises BadImage.

    `moving`: a GIF may stay one; else its first picture is taken.
    """
    image = inspect(data)
    if fits(data, image) and (moving or image.type != "image/gif"):
        return Fitted(image, data)
    if image.width * image.height > MAX_PIXELS:
        raise BadImage(f"it is {image.width} by {image.height} pixels, too large to be made smaller")
    return _smaller(data)


def heavy(data: bytes) -> bool:
    """Whether `fitted`, and what follows it, take so long that they should not hold up a loop."""
    try:
        image = inspect(data)
        return len(data) > HEAVY or not fits(data, image) or image.type == "image/gif"
    except BadImage:
        return False


def note(type: str, data: bytes, why: BadImage) -> str:
    """What stands in an image's place."""
    return f"[an image ({type}, {len(data)} bytes) that cannot be shown: {why}]"


@lru_cache(REMEMBERED)
def _smaller(data: bytes) -> Fitted:
    from PIL import Image as pillow  # loaded where an image is too large, and only there
    from PIL import ImageOps

    try:
        with pillow.open(io.BytesIO(data), formats=("PNG", "JPEG", "GIF", "WEBP")) as opened:
            opened.draft(None, (MAX_SIDE, MAX_SIDE))  # a JPEG is decoded at about the size it will have
            whole = ImageOps.exif_transpose(opened)
            clear = "A" in whole.getbands() or "transparency" in whole.info
            picture = whole.convert("RGBA" if clear else "RGB")
            formats = ("JPEG",) if opened.format == "JPEG" else ("PNG", "JPEG")  # a screen stays sharp as PNG
            for side in SMALLER:
                picture.thumbnail((side, side), reducing_gap=2.0)
                for format in formats:
                    found = _saved(picture, format)
                    if fits(found.data, found.image):
                        return found
    except (OSError, ValueError, SyntaxError, MemoryError, pillow.DecompressionBombError) as error:
        raise BadImage(f"it is too large and does not decode: {error}") from None
    raise BadImage("it stays too large")


def _saved(picture: Any, format: str) -> Fitted:
    file = io.BytesIO()
    if format == "JPEG" and picture.mode == "RGBA":
        white = picture.copy()
        white.paste((255, 255, 255), (0, 0, *picture.size))
        white.alpha_composite(picture)
        picture = white.convert("RGB")
    picture.save(file, format, quality=QUALITY)
    return Fitted(Image(f"image/{format.lower()}", *picture.size), file.getvalue())
