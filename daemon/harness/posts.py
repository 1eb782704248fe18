"""Check what is posted and who posts it, before anything is appended."""

import re
from collections.abc import Sequence
from typing import Final

from daemon.harness.errors import Conflict, Malformed, TooLarge, Unsupported
from daemon.harness.session import Session
from daemon.protocol import api
from daemon.protocol.events import carries_text

MEDIA: Final = re.compile(r"(text|image|application)/[\w.+-]+(\s*;.*)?", re.ASCII)


async def check_same(session: Session, last: int, key: str, parts: Sequence[api.Part]) -> None:
    """Raises Conflict unless the post under `key` that ends with record `last` had these very parts."""
    stored = await session.log.read(max(1, last - len(parts)), last)
    before, own = stored[: -len(parts)], stored[-len(parts) :]
    same = [(record.header.type, record.body) for record in own] == [(part.type, part.body) for part in parts]
    if not same or any(record.header.idempotency_key == key for record in before):
        raise Conflict(f"{api.IDEMPOTENCY_HEADER} {key!r} was used for another post here; take a new key")


def check_name(field: str, value: str) -> None:
    if not value.strip():
        raise Malformed(f"{field} is required: the name of who acts")
    if len(value) > api.MAX_NAME or not value.isprintable():
        raise Malformed(f"{field}: at most {api.MAX_NAME} printable characters")


def check_parts(parts: Sequence[api.Part]) -> None:
    if not parts:
        raise Malformed("the post has no parts: send a body, or one part per message")
    if (size := sum(len(part.body) for part in parts)) > api.MAX_POST:
        raise TooLarge(
            f"the post has {size} bytes, at most {api.MAX_POST} are taken; write a file to a worker"
        )
    for part in parts:
        if not MEDIA.fullmatch(part.type) or not (carries_text(part.type) or part.type.startswith("image/")):
            kind = part.type.partition(";")[0]
            raise Unsupported(
                f"Content-Type: {kind!r} cannot be posted, since no model is sent it; a text (text/plain), JSON and a "
                "picture (image/…) can. Of another file name the path, for the session's tools to read it"
            )
        if not part.body.strip():
            raise Malformed("the message is empty")
