"""What `read` shows of a text file, and how `write` keeps the line ends of one."""

import codecs
from typing import Final

from daemon.protocol import frames

UTF16: Final = (b"\xff\xfe", b"\xfe\xff")  # how a file begins that is text in UTF-16


def lines(data: bytes, first: int, end: bool) -> str:
    """The lines of `data`, from number `first` of their file on, as far as they fit a result, and where to go on.

    `end`: nothing follows `data` in the file. Bytes that are not UTF-8 become U+FFFD. Of a first line that does not
    fit, its beginning is shown.
    """
    if len(data) > frames.MAX_TAIL:
        stop = data.rfind(b"\n", 0, frames.MAX_TAIL) + 1
        if not stop:
            return beginning(data, first)
        data, end = data[:stop], False
    text = data.decode("utf-8", "replace")
    if end:
        return text
    last = first + data.count(b"\n") - data.endswith(b"\n")
    return text.removesuffix("\n") + f"\n[lines {first} to {last}; more from offset {last + 1}]"


def beginning(data: bytes, number: int) -> str:
    """The beginning of a line that does not fit a result."""
    part = codecs.getincrementaldecoder("utf-8")("replace").decode(
        data[: frames.MAX_TAIL]
    )  # to a whole character
    return (
        f"{part}\n[line {number} is longer than a result can be: only its beginning is shown; use `run`, with "
        f"`cut -c` for example, to see more of it]"
    )


def is_crlf(head: bytes) -> bool:
    """Whether the lines of a file that begins so end in `\\r\\n`, all of them."""
    return 0 < head.count(b"\n") == head.count(b"\r\n")


def with_crlf(content: bytes) -> bytes:
    """Content whose lines end in `\\n` alone with `\\r\\n` instead; any other as it is."""
    return content if b"\r" in content else content.replace(b"\n", b"\r\n")
