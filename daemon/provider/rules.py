"""What the rules of all wires have in common: each finds what its servers refuse, on a request's bytes.

Apart from how requests are made, so that a mistake there is not made here too.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import Any, Final

NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # a tool's, as every vendor takes it
MAGIC: Final = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}


def parsed(body: bytes) -> dict[str, Any] | str:
    """A request's body, or what is wrong with all of it."""
    try:
        request = json.loads(body.decode(), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        return f"the body is not JSON: {error}"
    return request if isinstance(request, dict) else "the body is not an object"


def refuse(word: str) -> Any:
    """What JSON does not have, though Python reads it: NaN, Infinity. Raises ValueError."""
    raise ValueError(f"{word} is not JSON")


def strings(where: str, value: Any) -> Iterator[str]:
    """Half characters, in any string of a JSON value."""
    if isinstance(value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            yield f"{where}: half a character"
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from strings(f"{where}.{name}", item)
            yield from strings(f"{where} (a name)", name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from strings(f"{where}.{index}", item)


def objects(where: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects in a list, each with its place; what is none counts as an empty one, which the rules then refuse."""
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield f"{where}.{index}", item if isinstance(item, dict) else {}


def field(value: dict[str, Any], name: str) -> dict[str, Any]:
    """An object in a field; an empty one where there is none."""
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def text(where: str, words: Any) -> Iterator[str]:
    """A text that has to be there and say something."""
    if not isinstance(words, str) or not words.strip():
        yield f"{where}: blank text {words!r}"


def image(where: str, type: Any, data: Any, most: int) -> Iterator[str]:
    """An image in base64, of `most` bytes of it at the most."""
    if not isinstance(data, str):
        yield f"{where}: no data of an image"
        return
    if len(data) > most:
        yield f"{where}: {len(data)} bytes of base64, where {most} are allowed"
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        yield f"{where}: not base64"
        return
    if type not in MAGIC or not raw.startswith(MAGIC[type]):
        yield f"{where}: it is no {type}"
