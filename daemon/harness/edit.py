"""Replace text in the bytes of a file, keeping its line endings and every byte not asked for."""

import re
from typing import Final

NAMED: Final = 20  # line numbers listed where a text occurs several times

_ENDING: Final = re.compile(r"\r?\n")
_NOT_UTF8: Final = re.compile("[\udc80-\udcff]")  # bytes that decoding has let through
Span = tuple[int, int]  # of characters


class EditError(Exception):
    """The edit cannot be made as asked; the message says what would be right."""


def apply(data: bytes, old: str, new: str, every: bool = False) -> tuple[bytes, list[int]]:
    """(the new content, the line numbers where `old` stood). Raises EditError, with nothing changed.

    A line end given as `\\n` matches the file's `\\r\\n` too, and the other way round where nothing matches exactly.
    Lines that `old` and `new` begin or end with alike keep their bytes; what is put in takes the ending used there.
    CPU-bound: for large files call it off the loop.
    """
    if not old:
        raise EditError("`old` is empty: give the text to replace, or use `write` for a whole file")
    if old == new:
        raise EditError("`old` and `new` are the same: nothing would change")
    text = data.decode("utf-8", "surrogateescape")
    exact = "\n" not in old or "\r\n" in old
    spans = (_find(text, old) if exact else []) or (_find_lines(text, old) if "\n" in old else [])
    lines = _line_numbers(text, spans)
    if not spans:
        raise EditError(f"`old` occurs 0 times{_hint(text, old)}")
    if len(spans) > 1 and not every:
        shown = ", ".join(map(str, lines[:NAMED])) + (", …" if len(lines) > NAMED else "")
        raise EditError(
            f"`old` occurs {len(spans)} times, at lines {shown}: give more of the text around the one "
            "you mean, or set `all` to replace each"
        )
    out, at = [], 0
    for start, stop in spans:
        out += [text[at:start], _put(text, start, stop, new, keep="\r\n" not in old)]
        at = stop
    out.append(text[at:])
    made = "".join(out)
    if made == text:
        raise EditError(
            "`old` and `new` differ in nothing but line ends, and those stay as the file has them: change them with "
            "`run`"
        )
    return made.encode("utf-8", "surrogateescape"), lines


def _find(text: str, wanted: str) -> list[Span]:
    spans, at = [], text.find(wanted)
    while at >= 0:
        spans.append((at, at + len(wanted)))
        at = text.find(wanted, at + len(wanted))
    return spans


def _find_lines(text: str, wanted: str) -> list[Span]:
    """The same, with either line end at each place."""
    pattern = r"\r?\n".join(map(re.escape, _ENDING.split(wanted)))
    return [match.span() for match in re.finditer(pattern, text)]


def _line_numbers(text: str, spans: list[Span]) -> list[int]:
    numbers, number, at = [], 1, 0
    for start, _ in spans:
        number += text.count("\n", at, start)
        numbers.append(number)
        at = start
    return numbers


def _put(text: str, start: int, stop: int, new: str, keep: bool) -> str:
    """What takes the place of `text[start:stop]`; `keep`: a `\\r\\n` of `new` is meant where no line ends so."""
    had, want = _split(text[start:stop]), _split(new)
    usual = next((end for _, end in reversed(had) if end), "") or _ending_beside(text, start, stop)
    most = min(len(had), len(want))
    head = 0
    while head < most - 1 and had[head][0] == want[head][0]:
        head += 1
    tail = 0
    while tail < most - head and had[-1 - tail][0] == want[-1 - tail][0]:
        tail += 1
    changed = had[head : len(had) - tail]
    put = []
    for at, (line, given) in enumerate(want[head : len(want) - tail]):
        if keep and given == "\r\n" and usual == "\n":
            end = given
        else:
            end = (changed[at][1] if at < len(changed) else "") or usual
        put.append((line, end if given else ""))
    return "".join(line + end for line, end in [*had[:head], *put, *had[len(had) - tail :]])


def _split(text: str) -> list[tuple[str, str]]:
    """Lines and their ends; the last has none."""
    *whole, last = text.split("\n")
    ended = [(line[:-1], "\r\n") if line.endswith("\r") else (line, "\n") for line in whole]
    return [*ended, (last, "")]


def _ending_beside(text: str, start: int, stop: int) -> str:
    """The line ending in use where no line ends: that of the line, or of the one before."""
    end = text.find("\n", stop)
    if end < 0:
        end = text.rfind("\n", 0, start)
    return "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"


def _hint(text: str, old: str) -> str:
    if "\ufffd" in old and _NOT_UTF8.search(text):
        return "; the file has bytes that are not UTF-8, shown as \ufffd, which no text matches: change them with `run`"
    first = next((line.strip() for line in old.split("\n") if line.strip()), "")
    if not first:
        return ""
    for number, line in enumerate(text.split("\n"), 1):
        if first in line:
            return f"; its first line stands at line {number}, so what follows or its indentation differs"
    if first.casefold() in text.casefold():
        return "; it occurs with other capitals"
    return "; read the file again, it may have changed"
