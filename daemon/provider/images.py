"""Say from its bytes what an image is, how large, and whether it is whole."""

import struct
from typing import Final

from msgspec import Struct

PNG: Final = b"\x89PNG\r\n\x1a\n"
PNG_END: Final = b"IEND\xaeB`\x82"


class Image(Struct, frozen=True):
    """An image that reads: media type, size in pixels."""

    type: str
    width: int
    height: int


class BadImage(ValueError):
    """These bytes are not a whole image of a type that models take; the message says what is wrong."""


def inspect(data: bytes) -> Image:
    """The image in `data`: PNG, JPEG, GIF or WebP. Raises BadImage."""
    try:
        if data.startswith(PNG):
            return _png(data)
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if data.startswith((b"GIF87a", b"GIF89a")):
            return _gif(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
    except struct.error:
        raise BadImage("it is cut off") from None
    raise BadImage("its bytes are not a PNG, JPEG, GIF or WebP image")


def _sized(type: str, width: int, height: int) -> Image:
    if not width or not height:
        raise BadImage("it has no size")
    return Image(type, width, height)


def _png(data: bytes) -> Image:
    if data.rfind(PNG_END) < 0:
        raise BadImage("it is cut off")
    width, height = struct.unpack_from(">II", data, 16)
    return _sized("image/png", width, height)


def _jpeg(data: bytes) -> Image:
    if (
        data.rfind(b"\xff\xd9", len(data) // 2) < 0
    ):  # in the second half: a preview inside has an end of its own
        raise BadImage("it is cut off")
    at = 2
    while True:
        mark, kind, size = struct.unpack_from(">BBH", data, at)
        if mark != 0xFF:
            raise BadImage("its segments do not follow on one another")
        if kind == 0xFF:  # padding
            at += 1
        elif kind in (0x01, *range(0xD0, 0xD9)):  # a mark alone, without a length
            at += 2
        elif 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):  # the frame's header
            height, width = struct.unpack_from(">HH", data, at + 5)
            return _sized("image/jpeg", width, height)
        elif kind in (0xD9, 0xDA):
            raise BadImage("it has no frame header")
        else:
            at += 2 + size


def _gif(data: bytes) -> Image:
    if not data.rstrip(b"\0").endswith(b";"):
        raise BadImage("it is cut off")
    width, height = struct.unpack_from("<HH", data, 6)
    return _sized("image/gif", width, height)


def _webp(data: bytes) -> Image:
    (size,) = struct.unpack_from("<I", data, 4)
    if len(data) < size + 8:
        raise BadImage("it is cut off")
    match data[12:16]:
        case b"VP8X":
            wide, high = data[24:27], data[27:30]
            width, height = int.from_bytes(wide, "little") + 1, int.from_bytes(high, "little") + 1
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        case _:
            raise BadImage("it has no picture")
    return _sized("image/webp", width, height)
