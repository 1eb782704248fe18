"""Read one request's query, headers and body: each value checked, each body bounded before it is in memory."""

import asyncio
import re
from collections.abc import Sequence
from typing import Final, TypeVar, get_args

import msgspec
from aiohttp import web

from daemon.api import multipart
from daemon.api.errors import Refusal, explain
from daemon.harness.errors import Invalid, Malformed, NotFound, TooLarge, Unsupported
from daemon.protocol import api
from daemon.protocol.records import TEXT, Status

BODY_WAIT: Final = (
    60.0  # seconds a body has to arrive; 8 MiB at 1 Mbit/s are 67, and it is as a rule a local socket
)
MULTIPART_EXTRA: Final = 64 << 10  # bytes of boundaries and part headers beside the parts themselves
SESSION_ID: Final = re.compile(r"[0-9a-f]{16}")
SHOWN: Final = 60  # characters of a refused value that are said back
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m)?")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9!#$&^_.+-]{1,100}/[a-z0-9!#$&^_.+-]{1,100}")
_PARAMETER: Final = re.compile(
    r';[ \t]*(?:([\w!#$&^.+*-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s";,]*)))?[ \t]*', re.ASCII
)
_STATUSES: Final[tuple[Status, ...]] = get_args(Status)
_UTF8: Final = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii"})

T = TypeVar("T", bound=msgspec.Struct)


def session_id(request: web.Request) -> str:
    """The session in the path. Raises NotFound for what cannot be one."""
    id = request.match_info["id"]
    if not SESSION_ID.fullmatch(id):
        raise NotFound(f"there is no session {shown(id)}; an id is 16 hexadecimal digits")
    return id


def value(request: web.Request, name: str) -> str | None:
    """One query parameter, None where it is not given. Raises Malformed when it is given twice."""
    found = request.query.getall(name, [])
    if len(found) > 1:
        raise Malformed(f"{name}: given {len(found)} times; give it once")
    return found[0] if found else None


def number(request: web.Request, name: str, low: int = 0, high: int | None = None) -> int | None:
    """A whole number in the query, None where it is not given. Raises Malformed."""
    text = value(request, name)
    return None if text is None else whole(name, text, low, high)


def whole(name: str, text: str, low: int = 0, high: int | None = None) -> int:
    """`text` as a whole number. Raises Malformed, which names `name`."""
    if not _NUMBER.fullmatch(text) or int(text) < low or (high is not None and int(text) > high):
        to = "up" if high is None else f"to {high}"
        raise Malformed(f"{name}: {shown(text)} is not a whole number from {low} {to}")
    return int(text)


def flag(request: web.Request, name: str, default: bool) -> bool:
    """0 or 1 in the query. Raises Malformed."""
    text = value(request, name)
    if text is None:
        return default
    if text not in ("0", "1"):
        raise Malformed(f"{name}: {shown(text)} is neither 0 nor 1")
    return text == "1"


def duration(request: web.Request, name: str, most: float) -> float:
    """Seconds in the query: `30s`, `500ms`, `2m` or `30`; 0 where it is not given. Raises Malformed."""
    text = value(request, name)
    if text is None:
        return 0.0
    found = _DURATION.fullmatch(text)
    if found is None:
        raise Malformed(f"{name}: {shown(text)} is not a time; write it as 30s, 500ms, 2m or 30 (seconds)")
    seconds = float(found[1]) * _UNITS[found[2]]
    if seconds > most:
        raise Malformed(f"{name}: {shown(text)} is too long; at most {most:g}s")
    return seconds


def status(request: web.Request) -> Status | None:
    """The status that a list is to be filtered by. Raises Malformed."""
    text = value(request, "status")
    if text is None:
        return None
    for known in _STATUSES:
        if text == known:
            return known
    raise Malformed(f"status: {shown(text)} is none; there are {', '.join(_STATUSES)}")


def after_id(request: web.Request) -> str:
    """The session that a list goes on after, empty where it is not given. Raises Malformed."""
    text = value(request, "after")
    if text is not None and not SESSION_ID.fullmatch(text):
        raise Malformed(f"after: {shown(text)} is not a session's id")
    return text or ""


def via(request: web.Request) -> str:
    """Who acts. Raises Malformed where nobody is named."""
    text = value(request, "via")
    if not text or not text.strip():
        raise Malformed("via: say who acts, as in ?via=alice")
    if len(text) > api.MAX_NAME or not text.isprintable():
        raise Malformed(f"via: at most {api.MAX_NAME} printable characters")
    return text


def idempotency_key(request: web.Request) -> str:
    """The key a post carries, empty where there is none. Raises Malformed."""
    found = request.headers.getall(api.IDEMPOTENCY_HEADER, [])
    if not found:
        return ""
    key = found[0]
    if len(found) > 1 or not 0 < len(key) <= api.MAX_NAME or not key.isascii() or not key.isprintable():
        raise Malformed(
            f"{api.IDEMPOTENCY_HEADER}: give one key of 1 to {api.MAX_NAME} printable ASCII characters"
        )
    return key


async def body(request: web.Request, most: int) -> bytes:
    """The request's body. Raises TooLarge past `most` bytes, Refusal, Unsupported."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Unsupported("Content-Encoding: send the body as it is, not compressed")
    too_large = TooLarge(f"the body is over {most} bytes")
    if (request.content_length or 0) > most:
        raise too_large
    got = bytearray()
    try:
        async with asyncio.timeout(BODY_WAIT):
            while piece := await request.content.readany():
                got += piece
                if len(got) > most:
                    raise too_large
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {BODY_WAIT:g} s") from None
    return bytes(got)


async def decoded(request: web.Request, type: type[T]) -> T:
    """The JSON body as a `type`. Raises Unsupported, TooLarge, Malformed, Invalid."""
    sent = request.headers.get("Content-Type")
    if sent is not None and media_type(sent)[0] != "application/json":
        raise Unsupported(f"Content-Type: {shown(sent)} is not taken here; send application/json")
    data = await body(request, api.MAX_JSON)
    if not data.strip():
        raise Malformed("the body is empty; send a JSON object")
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.ValidationError as error:
        raise Invalid(explain(error, type.__struct_encode_fields__)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"the body is not JSON: {error}") from error


async def parts(request: web.Request) -> Sequence[api.Part]:
    """The records of a post. Raises Unsupported, TooLarge, Malformed, Invalid."""
    sent = request.headers.get("Content-Type", "")
    if not sent:
        raise Unsupported("Content-Type: say what the body is, text/plain for a text")
    type, parameters = media_type(sent)
    if not type.startswith("multipart/"):
        return [_part("body", type, parameters, await body(request, api.MAX_POST))]
    boundary = parameters.get("boundary", "")
    if not boundary:
        raise Malformed("Content-Type: a multipart body needs its boundary")
    data = await body(request, api.MAX_POST + MULTIPART_EXTRA)
    found = multipart.split(data, boundary, api.MAX_PARTS)
    if sum(len(content) for _, content in found) > api.MAX_POST:
        raise TooLarge(f"the parts are over {api.MAX_POST} bytes together")
    made = []
    for index, (headers, content) in enumerate(found, 1):
        where = f"part {index}"
        if headers.get("content-transfer-encoding", "binary").lower() not in ("7bit", "8bit", "binary"):
            raise Unsupported(f"{where}: Content-Transfer-Encoding: send the bytes as they are")
        made.append(_part(where, *media_type(headers.get("content-type", TEXT)), content))
    return made


def media_type(text: str) -> tuple[str, dict[str, str]]:
    """(type/subtype in lower case, its parameters) of a Content-Type. Raises Malformed."""
    type, at = text.partition(";")[0].strip(), text.find(";")
    wrong = Malformed(f"Content-Type: {shown(text)} is not a media type such as text/plain")
    if not _MEDIA_TYPE.fullmatch(type := type.lower()):
        raise wrong
    parameters: dict[str, str] = {}
    while 0 <= at < len(text):
        if (found := _PARAMETER.match(text, at)) is None:
            raise wrong
        if found[1] is not None:
            quoted = found[2]
            parameters[found[1].lower()] = found[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = found.end()
    return type, parameters


def shown(text: str) -> str:
    """A refused value, quoted and cut, for a message."""
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")


def _part(where: str, type: str, parameters: dict[str, str], content: bytes) -> api.Part:
    if not type.startswith("text/"):
        return api.Part(type, content)
    if (charset := parameters.get("charset", "").lower()) not in _UTF8:
        raise Unsupported(f"{where}: charset {shown(charset)} is not taken; send it as UTF-8")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"{where}: not UTF-8 at byte {error.start}") from error
    return api.Part(f"{type}; charset=utf-8", content)
