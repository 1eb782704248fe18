"""Split a multipart body into its parts, RFC 2046: all of it is in memory and bounded by then."""

import re
from typing import Final

from daemon.harness.errors import Malformed, TooLarge

MAX_HEADERS: Final = 8 << 10  # bytes of one part's header lines
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")

Part = tuple[dict[str, str], bytes]


def split(body: bytes, boundary: str, most: int) -> list[Part]:
    """Each part's headers (names in lower case) and bytes. Raises Malformed, and TooLarge past `most` parts."""
    if not _BOUNDARY.fullmatch(boundary):
        raise Malformed("Content-Type: this boundary is not one that RFC 2046 allows")
    mark = re.compile(rb"(?:\A|\r\n)--" + re.escape(boundary.encode()) + rb"(--)?[ \t]*(?:\r\n|\Z)")
    found: list[Part] = []
    at = mark.search(body)
    if at is None:
        raise Malformed("the multipart body does not hold its boundary; lines end in CR LF")
    while at[1] is None:
        if len(found) == most:
            raise TooLarge(f"over {most} parts in one post")
        after = mark.search(body, at.end())
        if after is None:
            raise Malformed(f"part {len(found) + 1} has no end: the multipart body is cut short")
        found.append(_part(body[at.end() : after.start()], len(found) + 1))
        at = after
    if not found:
        raise Malformed("the multipart body has no part")
    return found


def _part(data: bytes, index: int) -> Part:
    if data.startswith(b"\r\n"):
        return {}, data[2:]
    head, gap, content = data.partition(b"\r\n\r\n")
    if not gap or len(head) > MAX_HEADERS:
        raise Malformed(f"part {index}: its header lines do not end within {MAX_HEADERS} bytes")
    headers: dict[str, str] = {}
    for line in head.split(b"\r\n"):
        field = _HEADER.fullmatch(line)
        if field is None:
            raise Malformed(f"part {index}: a header line is not `Name: value`")
        headers[field[1].decode("ascii").lower()] = field[2].decode("latin-1")
    return headers, content
