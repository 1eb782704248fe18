"""What a worker that dials says before its first frame, and what it is told in place of frames when it is refused."""

import re
from typing import Final

LOCAL: Final = "local"  # the worker that a daemon starts by itself
RESERVED: Final = ("harness", LOCAL)  # the daemon itself, and that worker
MAX_LINE: Final = 4 << 10  # bytes of a line of either kind
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_REFUSED: Final = b"refused: "  # no frame begins so: each begins with a brace


class BadNameError(Exception):
    """This cannot be a worker's name; the message says why and what can."""


def check_name(text: str) -> str:
    """`text`, when a worker can have it as its name. Raises BadNameError."""
    if text in RESERVED:
        raise BadNameError(f"the name {text!r} is reserved: give the worker another")
    if not _NAME.fullmatch(text):
        shown = ascii(text if len(text) <= 64 else text[:64] + "…")
        raise BadNameError(
            f"{shown} cannot be a worker's name: it has 1 to 63 of a-z, 0-9 and -, a letter or digit first"
        )
    return text


def greeting(name: str) -> bytes:
    """The line that a worker says first, where its name is its own word. Raises BadNameError."""
    return b"%b\n" % check_name(name).encode()


def name_of(line: bytes) -> str:
    """The name that a line of `greeting` says. Raises BadNameError."""
    return check_name(line.removesuffix(b"\n").decode("ascii", "replace"))


def refusal(reason: str) -> bytes:
    """The line with which a connection is refused; nothing follows it."""
    said = " ".join(reason.split()).encode("utf-8", "replace")
    return b"%b%b\n" % (_REFUSED, said[: MAX_LINE - len(_REFUSED) - 1])


def is_frame(line: bytes) -> bool:
    """Whether what begins so is frames, and no line of `refusal`."""
    return line.startswith(b"{")


def reason_of(line: bytes) -> str:
    """Why, as a line of `refusal` says; of any other line, the line itself."""
    return line.removesuffix(b"\n").removeprefix(_REFUSED).decode("utf-8", "replace")
