"""Join tokens as text: `orj_`, then where to join, whom to trust there, and a secret. Pure."""

import base64
import hashlib
import re
from typing import Final

from msgspec import Struct

from mesh.address import BadPlaceError, Place, place
from mesh.keys import FINGERPRINT

PREFIX: Final = "orj_"
VERSION: Final = 1
SECRET: Final = 16  # bytes: 128 bits are not guessed, whatever the rate
MOST_PLACES: Final = 8  # endpoints: more would make a token that no terminal shows in one line
_CHECK: Final = 4  # bytes of SHA-256 at the end, against slips of copy and paste
_HEAD: Final = 1 + 2  # bytes: the version, then how many bytes follow
_ALPHABET: Final = re.compile(r"[A-Za-z0-9_-]*")
_COPY: Final = "copy it again, in one piece"


class TokenError(Exception):
    """This is no token that can be used, or none can be made of this; the message says why and what to do."""


class Token(Struct, frozen=True, kw_only=True):
    """Endpoints of the join listener in the order to try, SHA-256 of the join key, and SECRET bytes."""

    places: tuple[Place, ...]
    fingerprint: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"Token(places={self.places!r})"


def hash_of(secret: bytes) -> bytes:
    """What the registry keeps of a secret: SHA-256, which is enough for 128 random bits."""
    return hashlib.sha256(secret).digest()


def encode(token: Token) -> str:
    """The token's text. Raises TokenError where it has no endpoint, or too many."""
    if not 1 <= len(token.places) <= MOST_PLACES:
        raise TokenError(f"a token has 1 to {MOST_PLACES} endpoints, not {len(token.places)}")
    body = bytearray(token.secret + token.fingerprint)
    for where in token.places:
        text = str(where).encode()
        body += len(text).to_bytes(2, "big") + text
    data = bytes([VERSION]) + (len(body) + _CHECK).to_bytes(2, "big") + body
    return PREFIX + _text(data + _check(data))


def decode(text: str) -> Token:
    """The token of this text; white space in it, as a terminal or a mail leaves it, is ignored. Raises TokenError."""
    joined = "".join(text.split())
    if not joined:
        raise TokenError("the token is empty: `outrider token new` on the harness prints one")
    if not joined.startswith(PREFIX):
        raise TokenError(f"this is not a join token: one begins with {PREFIX}")
    coded = joined.removeprefix(PREFIX)
    if not _ALPHABET.fullmatch(coded):
        raise TokenError(f"this token has characters that none has: {_COPY}")
    whole = coded[: len(coded) // 4 * 4]
    data = base64.urlsafe_b64decode(whole)
    if len(data) < _HEAD:
        raise TokenError(f"this token is cut off after its first characters: {_COPY}")
    if data[0] != VERSION:
        raise TokenError(
            f"this token has version {data[0]}, this Outrider reads {VERSION}: install the version of the harness, "
            "or make a token there again"
        )
    wanted = len(_text(bytes(_HEAD + int.from_bytes(data[1:_HEAD], "big"))))
    if len(coded) != wanted:
        kind = "cut off" if len(coded) < wanted else "too long"
        raise TokenError(
            f"this token is {kind}, it has {len(joined)} of {len(PREFIX) + wanted} characters: {_COPY}"
        )
    data = base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4))
    if _check(data[:-_CHECK]) != data[-_CHECK:] or _text(data) != coded:
        raise TokenError(f"some characters of this token are not as they were: {_COPY}")
    return _parse(data[_HEAD:-_CHECK])


def _parse(body: bytes) -> Token:
    """The token of what `encode` wrote; its checksum was right, so an error here is a writer's."""
    places: list[Place] = []
    start = SECRET + FINGERPRINT
    rest = body[start:]
    try:
        while rest:
            size = int.from_bytes(rest[:2], "big")
            written, after = rest[2 : 2 + size], rest[2 + size :]
            if len(written) < size:
                raise BadPlaceError("it ends before the place does")
            places.append(place(written.decode("ascii")))
            rest = after
    except (BadPlaceError, UnicodeDecodeError):
        places = []
    if not 1 <= len(places) <= MOST_PLACES:
        raise TokenError("this token names no place to join at: make another with `outrider token new`")
    return Token(places=tuple(places), fingerprint=body[SECRET:start], secret=body[:SECRET])


def _check(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_CHECK]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
