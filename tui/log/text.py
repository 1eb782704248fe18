"""Rows of a character grid: spans of text with a role each, cleaned, measured in columns, and wrapped."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len, get_character_cell_size

from daemon.plain import safe

Span = tuple[str, str]
"""Text and the roles that it is drawn in, by name, separated by spaces; a theme gives each its style."""

TAB: Final = 8  # columns, as a terminal has them
MARKS: Final = (
    3  # combining marks on one letter; no script needs more, and towers of them spill over other rows
)

# What takes no column and shows nothing: soft hyphen, joiners, marks of direction, fillers, variation selectors.
_HIDDEN = re.compile(
    "[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Of these, the ones that belong to writing: they shape the letters beside them, and choose an emoji's look.
_SHAPING: Final = re.compile("[\u200c\u200d\ufe00-\ufe0f\u180b-\u180d\U000e0100-\U000e01ef]")
_MARK = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_TOWER = re.compile(f"([{_MARK}]{{{MARKS}}})[{_MARK}]+")
_BARE = re.compile(f"^(?=[{_MARK}])")


class Row(NamedTuple):
    """One row. Its first `gutter` characters are drawn but not copied; `glue` joins it to the row before in a copy:
    a newline, or what the wrapping took out between the two. Its last `aside` characters stand beside the text, as a
    number and a time do, and are not copied with it.
    """

    spans: tuple[Span, ...]
    gutter: int = 0
    glue: str = "\n"
    aside: int = 0

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.spans)


EMPTY: Final = Row(())


def clean(text: str, start: bool = True) -> str:
    """A line, or a part that is not its `start`, as it may stand on a grid: nothing in it acts on a terminal or hides,
    and how wide each character is is certain.
    """
    text = safe(text.expandtabs(TAB) if "\t" in text else text)
    if "\n" in text:
        text = text.replace("\n", "\u240a")
    if text.isascii():
        return text
    text = _TOWER.sub(r"\1", _HIDDEN.sub(_shown, text))
    return _BARE.sub("\u25cc", text) if start else text


def _shown(match: re.Match[str]) -> str:
    """Beside a letter that it shapes it is left out, since terminals differ in how wide the two then are."""
    code, before = ord(match[0]), match.string[: match.start()][-1:]
    if before > "\xff" and _SHAPING.match(match[0]):
        return ""
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def width(text: str) -> int:
    """Columns that clean text takes."""
    return len(text) if text.isascii() else cell_len(text)


def cut(text: str, columns: int) -> str:
    """Clean text in at most so many columns, with an ellipsis where some of it is left out."""
    if width(text) <= columns:
        return text
    if columns < 1:
        return ""
    return text[: fit(text, columns - 1)] + "…"


def fit(text: str, columns: int) -> int:
    """How many characters of clean text fit into so many columns."""
    if text.isascii():
        return min(len(text), max(0, columns))
    used = 0
    for at, char in enumerate(text):
        used += get_character_cell_size(char)
        if used > columns:
            return at
    return len(text)


def wrap(
    spans: Iterable[Span],
    columns: int,
    *,
    first: Sequence[Span] = (),
    rest: Sequence[Span] = (),
    words: bool = False,
    gutter: int = 0,
) -> list[Row]:
    """One line as rows of at most `columns` columns, and at least one character.

    `first` stands before the first row and `rest` before the others, both clean and equally wide. With `words` it is
    broken at spaces where there are some. `gutter`: characters of `first` that are no part of the text.
    """
    line = [(clean(text, not at), role) for at, (text, role) in enumerate(spans)]
    line = [span for span in line if span[0]]
    text = "".join(part for part, _ in line)
    room = max(1, columns - width("".join(part for part, _ in first)))
    if width(text) <= room:
        return [Row((*first, *line), gutter)]
    rows: list[Row] = []
    indent = sum(len(part) for part, _ in rest)
    for start, end, glue in _breaks(text, room, words):
        cut_out = tuple(_slice(line, start, end))
        rows.append(Row((*rest, *cut_out), indent, glue) if rows else Row((*first, *cut_out), gutter))
    return rows


def _breaks(text: str, columns: int, words: bool) -> list[tuple[int, int, str]]:
    """(start, end, glue before it) of each row."""
    found: list[tuple[int, int, str]] = []
    start, glue, plain = 0, "\n", text.isascii()
    while True:
        end = (
            min(len(text), start + columns)
            if plain
            else start + max(1, fit(text[start : start + 2 * columns + 64], columns))
        )
        if end >= len(text):
            found.append((start, len(text), glue))
            return found
        at = text.rfind(" ", start, end + 1) if words else -1
        if at > start and text[start:at].strip():
            found.append((start, at, glue))
            glue = " "
            start = at
            while start < len(text) and text[start] == " ":
                start += 1
            if start == len(text):
                return found
        else:
            while not plain and end < len(text) and not get_character_cell_size(text[end]):
                end += 1  # a mark stays with its letter
            found.append((start, end, glue))
            glue, start = "", end
            if start >= len(text):
                return found


def _slice(spans: Sequence[Span], start: int, end: int) -> Iterable[Span]:
    at = 0
    for text, role in spans:
        if at >= end:
            return
        if at + len(text) > start:
            yield text[max(0, start - at) : end - at], role
        at += len(text)


def joined(rows: Iterable[Row]) -> str:
    """The text of rows as it was before it was wrapped."""
    found = "".join(row.glue + row.text[row.gutter : len(row.text) - row.aside].rstrip() for row in rows)
    return found.removeprefix("\n")
