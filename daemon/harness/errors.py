"""What the harness refuses, each with the HTTP status that says so."""

from typing import ClassVar


class HarnessError(Exception):
    """A request that cannot be carried out; the message says why and what would be right."""

    status: ClassVar[int] = 500


class Malformed(HarnessError):
    """The request is not well-formed (400)."""

    status = 400


class NotFound(HarnessError):
    """There is no such session (404)."""

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
    """The daemon is starting or draining; try again shortly (503)."""

    status = 503


class NoSpace(HarnessError):
    """The data folder's file system is full or failed; nothing was written (507)."""

    status = 507
