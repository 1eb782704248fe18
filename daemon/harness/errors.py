"""What the harness refuses, each with the HTTP status that says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from daemon.statefile.errors import (
    CopyPointError,
    DamagedError,
    MissingError,
    NoSpaceError,
    StateFileError,
)


class HarnessError(Exception):
    """A request that cannot be carried out; the message says why and what would be right."""

    status: ClassVar[int] = 500


class Malformed(HarnessError):
    """The request is not well-formed (400)."""

    status = 400


class NotFound(HarnessError):
    """There is no such session, worker or key (404)."""

    status = 404


class Conflict(HarnessError):
    """The session's state does not allow this (409)."""

    status = 409


class Ended(HarnessError):
    """The session has ended or expired; it can be read and copied, not written (410)."""

    status = 410


class TooLarge(HarnessError):
    """The post is over the limit (413)."""

    status = 413


class Unsupported(HarnessError):
    """This media type cannot be posted (415)."""

    status = 415


class Invalid(HarnessError):
    """Well-formed, but a field's value is not valid; the message names the field (422)."""

    status = 422


class Unready(HarnessError):
    """The daemon cannot do this now: it is starting, draining, or out of descriptors; try again shortly (503)."""

    status = 503


class NoSpace(HarnessError):
    """The data folder's file system is full or failed; nothing was written (507)."""

    status = 507


def told(error: StateFileError) -> HarnessError:
    """What a client is told of what the state file says, with its status; each kind once, here."""
    match error:
        case NoSpaceError():
            return NoSpace(f"the data folder cannot be written: {error}")
        case DamagedError():
            return Conflict(str(error))
        case CopyPointError():
            return Invalid(f"n: {error}")
        case MissingError():
            return NotFound(str(error))
        case _:
            return Unready(f"{error}; try again in a moment")


@contextmanager
def translated() -> Iterator[None]:
    """Turn what the state file says into what a client is told."""
    try:
        yield
    except StateFileError as error:
        raise told(error) from error
