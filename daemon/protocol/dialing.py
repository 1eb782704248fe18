"""What a worker that dials says before its first frame, and what it is told in place of frames or before them.

Each connection begins with the worker's `greeting`, a line of JSON. What follows goes by its `purpose`:

- `work`: frames both ways, the worker's hello first. A worker of another release gets an `update` frame before any
  other from the harness; where that says `refused`, the harness closes then.
- `wheel`: the harness sends an `update` frame, then its wheel's `size` bytes, and closes; the worker sends no more.
- `note`: nothing; the greeting was the news.

To any of them the harness may answer with a `refusal` line and close. All this holds for every protocol to come.
"""

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

LOCAL: Final = "local"  # the worker that a daemon starts by itself
RESERVED: Final = ("harness", LOCAL)  # the daemon itself, and that worker
MAX_LINE: Final = 4 << 10  # bytes of a line of either kind
MAX_UPDATE: Final = 500  # characters of a greeting's sentence: with any escapes it fits into the line
WORK: Final = "work"
WHEEL: Final = "wheel"
NOTE: Final = "note"
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


class Greeting(Struct, frozen=True, omit_defaults=True):
    """A worker's first line, from its link.

    `name` is its own word, which counts only where nothing better is known. `protocol`, `release`: the link's; 0 and
    empty: it does not say. `update`: how it goes with the update that it was asked for, in a sentence.
    """

    name: str
    protocol: int = 0
    release: Annotated[str, Meta(max_length=100)] = ""
    purpose: str = WORK
    update: str = ""


def greeting(said: Greeting) -> bytes:
    """The line that a worker says first. Raises BadNameError."""
    check_name(said.name)
    return msgspec.json.encode(msgspec.structs.replace(said, update=said.update[:MAX_UPDATE])) + b"\n"


def greeted(line: bytes) -> Greeting:
    """What a line of `greeting` says. Raises BadNameError."""
    try:
        said = msgspec.json.decode(line, type=Greeting)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        shown = ascii(line[:64].decode("utf-8", "replace").strip())
        raise BadNameError(f"its first line, {shown}, is no greeting of a worker") from None
    check_name(said.name)
    return said


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
