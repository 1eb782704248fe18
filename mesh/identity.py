"""Who this machine is in one mesh: its key, and what the harness told it, in a folder of its own. Blocks."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from mesh import keys, messages, private
from mesh.address import Place
from mesh.keys import FINGERPRINT, Pair
from mesh.messages import Answer, MessageError
from mesh.private import PrivateFileError as PrivateFileError

FILE: Final = "membership.json"
VERSION: Final = 1


class Membership(Struct, frozen=True, kw_only=True):
    """A mesh that this machine joined. `fingerprint`: SHA-256 of the harness's join key, by which it is known.

    `places`: of its join listener, the one first that answered last. `removed`: it is no node any more, for ever.
    """

    fingerprint: bytes
    places: tuple[Place, ...]
    answer: Answer
    removed: bool = False


class _Stored(Struct, frozen=True, kw_only=True):
    fingerprint: Annotated[bytes, Meta(min_length=FINGERPRINT, max_length=FINGERPRINT)]
    places: Annotated[tuple[Place, ...], Meta(min_length=1)]
    answer: msgspec.Raw
    removed: bool = False
    v: int = VERSION


def pair(folder: Path) -> Pair:
    """This machine's key, made where there is none. Raises PrivateFileError."""
    private.folder(folder)
    return keys.wireguard(folder / keys.WIREGUARD)


def load(folder: Path) -> Membership | None:
    """What is kept; None where this folder has joined nothing. Raises PrivateFileError."""
    path = folder / FILE
    try:
        found = msgspec.json.decode(private.read(path), type=_Stored)
        if found.v != VERSION:
            raise PrivateFileError(
                f"{path} was written by another Outrider (version {found.v}, not {VERSION}): start that one"
            )
        answer = messages.load(bytes(found.answer))
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, MessageError, UnicodeDecodeError) as error:
        raise PrivateFileError(
            f"{path} is damaged ({error}): put a copy of it back; or move it away, and join again with the same key"
        ) from None
    return Membership(
        fingerprint=found.fingerprint, places=found.places, answer=answer, removed=found.removed
    )


def save(folder: Path, membership: Membership) -> None:
    """Keep it, over what was kept; on disk when this returns. Raises PrivateFileError."""
    stored = _Stored(
        fingerprint=membership.fingerprint,
        places=membership.places,
        answer=msgspec.Raw(messages.dump(membership.answer)),
        removed=membership.removed,
    )
    private.folder(folder)
    private.replace(folder / FILE, msgspec.json.encode(stored))


def forget(folder: Path) -> None:
    """Be nobody there: the next join makes a new key. Raises PrivateFileError."""
    for name in (FILE, keys.WIREGUARD):  # a key without the rest is harmless, the rest without its key is not
        path = folder / name
        with suppress(FileNotFoundError):
            try:
                path.unlink()
            except PermissionError as error:
                raise PrivateFileError(f"{path} cannot be removed: {error.strerror}") from error
