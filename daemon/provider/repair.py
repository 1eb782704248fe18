"""Make what a model or a stream gave valid to send again: whole characters, JSON objects, legal names and ids."""

import json
import re
from base64 import b32encode
from hashlib import sha256
from typing import Any, Final

import msgspec

INVALID: Final = "invalid_arguments"  # the field that carries arguments which were not a JSON object
MAX_COUNT: Final = 1 << 53  # tokens: what every reader of JSON takes for a whole number
MAX_NAME: Final = 64  # characters of a tool's name or a call's id: what every vendor takes

_JSON_SPACE: Final = " \t\r\n"
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")
_STRANGE: Final = re.compile(r"[^a-zA-Z0-9_.:/|=+-]")  # in ids as servers make them: functions.run:0
_SHORT: Final = re.compile("[a-zA-Z0-9]{9}")


def text(value: str) -> str:
    """`value` as valid Unicode: surrogate pairs joined, lone surrogates replaced by U+FFFD."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def scrub(value: Any) -> Any:
    """A JSON value whose every string is valid Unicode."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {text(name): scrub(item) for name, item in value.items()}
    if isinstance(value, list):
        return [scrub(item) for item in value]
    return value


def count(value: Any) -> int | None:
    """A count of tokens; None for what is none."""
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT
    return value if whole else None


def loads(data: bytes | str) -> Any:
    """A JSON value, also where it escapes half a character or its bytes are not UTF-8; strings may hold lone
    surrogates, so `scrub` it before it is encoded. Raises ValueError when it is not JSON.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        loose = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    try:
        return json.loads(loose, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def arguments(given: str) -> bytes:
    """A call's arguments as a JSON object to send back.

    Empty ones and null are `{}`; what is not an object is kept, word for word, in the field INVALID.
    """
    stripped = given.strip(_JSON_SPACE)
    if not stripped:
        return b"{}"
    try:
        if isinstance(value := msgspec.json.decode(stripped), dict):
            return stripped.encode()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        try:
            if isinstance(value := loads(stripped), dict):
                return json.dumps(scrub(value), ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            value = given
    return b"{}" if value is None else msgspec.json.encode({INVALID: text(given)})


def name(given: str) -> str:
    """A tool's name of the characters that vendors take; a legal one stays as it is."""
    return _ILLEGAL.sub("_", given)[:MAX_NAME] or "unknown"


def identifier(given: str) -> str:
    """A call's id of the characters that vendors take. A legal one stays; two that differ stay different."""
    legal = _ILLEGAL.sub("_", given)
    if legal == given and 0 < len(given) <= MAX_NAME:
        return given
    return f"{legal[: MAX_NAME - 13]}_{_digest(given)[:12]}"


def plain_id(given: str, most: int) -> str:
    """A call's id of at most `most` characters, for vendors that take more of them. A fitting one stays."""
    if 0 < len(given) <= most and not _STRANGE.search(given):
        return given
    return f"{_ILLEGAL.sub('_', given)[: most - 13]}_{_digest(given)[:12]}"


def short_id(given: str) -> str:
    """A call's id of nine letters and digits. One that is such stays; two that differ stay different."""
    if _SHORT.fullmatch(given):
        return given
    return b32encode(bytes.fromhex(_digest(given))).decode().lower()[:9]


def _digest(given: str) -> str:
    return sha256(given.encode("utf-8", "surrogatepass")).hexdigest()


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")
