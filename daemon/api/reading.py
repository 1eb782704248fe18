"""Read one request's body: bounded before it is in memory, checked, and made into values."""

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from daemon.api import multipart
from daemon.api.errors import Refusal, explain, shown
from daemon.harness.errors import HarnessError, Invalid, Malformed, TooLarge, Unsupported
from daemon.protocol import api
from daemon.protocol.events import carries_text
from daemon.protocol.records import JSON, TEXT

BODY_WAIT: Final = (
    60.0  # seconds a body has to arrive; 8 MiB at 1 Mbit/s are 67, and it is as a rule a local socket
)
FORM: Final = "application/x-www-form-urlencoded"  # nobody means it: a message of this type no model can read
MAX_NONE: Final = 64  # bytes of a body that is none: some clients send {} or a newline with every POST
MULTIPART_EXTRA: Final = 64 << 10  # bytes of boundaries and part headers beside the parts themselves
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9!#$&^_.+-]{1,100}/[a-z0-9!#$&^_.+-]{1,100}")
_PARAMETER: Final = re.compile(
    r';[ \t]*(?:([\w!#$&^.+*-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s";,]*)))?[ \t]*', re.ASCII
)
_TOKEN: Final = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_UTF8: Final = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii"})

T = TypeVar("T")


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


async def decoded(
    request: web.Request, type: type[T], media: tuple[str, ...] = (JSON,), empty: T | None = None
) -> T:
    """The JSON body as a `type`, sent as one of `media`; `empty` is what no body at all stands for, None for nothing.

    Raises Unsupported, TooLarge, Malformed, Invalid.
    """
    if empty is not None and not request.can_read_body:
        return empty  # whatever type a client says of nothing
    data = await _json(request, media)
    if not data.strip():
        if empty is not None:
            return empty
        raise Malformed("the body is empty; send JSON")
    return _value(data, type)


async def decoded_named(request: web.Request, type: type[T]) -> tuple[T, Collection[str]]:
    """The same of an object, and the names of the fields that it has: also those that say what they would say if they
    were left out.
    """
    data = await _json(request, (JSON,))
    if not data.strip():
        raise Malformed("the body is empty; send JSON")
    return _value(data, type), _value(data, dict[str, msgspec.Raw]).keys()


async def none(request: web.Request) -> None:
    """Raises Malformed for a body where nothing is done with any; an empty object is none."""
    if not request.can_read_body:
        return
    try:
        data = await body(request, MAX_NONE)
    except (HarnessError, Refusal):
        data = b"too much"
    if data.strip() not in (b"", b"{}"):
        raise Malformed("the body: none is taken here; leave it out")


async def _json(request: web.Request, media: tuple[str, ...]) -> bytes:
    sent = request.headers.get("Content-Type")
    if sent is not None and media_type(sent)[0] not in media:
        raise Unsupported(f"Content-Type: {shown(sent)} is not taken here; send {media[0]}")
    return await body(request, api.MAX_JSON)


def _value(data: bytes, type: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.ValidationError as error:
        raise Invalid(explain(error, type)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"the body is not JSON: {error}") from error


async def parts(request: web.Request) -> Sequence[api.Part]:
    """The records of a post. Raises Unsupported, TooLarge, Malformed, Invalid."""
    sent = request.headers.get("Content-Type", "")
    if not sent:
        raise Unsupported("Content-Type: say what the body is, text/plain for a text")
    type, parameters = media_type(sent)
    if type == FORM:
        raise Unsupported(f"Content-Type: {FORM} is what curl says by itself; say text/plain for a text")
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


def _part(where: str, type: str, parameters: dict[str, str], content: bytes) -> api.Part:
    """One record of a post, its type with all of its parameters; of a text, charset=utf-8 is the first of them."""
    if not carries_text(type):
        return api.Part(_written(type, parameters), content)
    if (charset := parameters.get("charset", "").lower()) not in _UTF8:
        raise Unsupported(f"{where}: charset {shown(charset)} is not taken; send it as UTF-8")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"{where}: not UTF-8 at byte {error.start}") from error
    own = {"charset": "utf-8"} if type.startswith("text/") else {}
    return api.Part(_written(type, own | parameters | own), content)


def _written(type: str, parameters: Mapping[str, str]) -> str:
    """A media type as a record has it: printable, and the same for the same, however it was sent."""
    written = [type]
    for name, given in parameters.items():
        value = "".join(c if c.isprintable() else "\ufffd" for c in given)
        quoted = re.sub(r'(["\\])', r"\\\1", value)
        written.append(f"{name}={value}" if _TOKEN.fullmatch(value) else f'{name}="{quoted}"')
    return "; ".join(written)
