"""From rows of text with roles to the strips of a terminal: styles, what was searched, what is selected, filters."""

from collections.abc import Callable, Sequence
from typing import Final

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.strip import Strip

from tui.log.roles import ROLES
from tui.log.text import Row

STRIPS: Final = 1000  # painted rows that are kept: some screens

Filters = tuple[Sequence[LineFilter], Color]
"""What the app wants done with every line (fewer colours, none at all), and the colour behind it."""


class Painter:
    """Paints rows; the same row is painted once. `look` gives the style of some of ROLES together."""

    def __init__(self, look: Callable[[Sequence[str]], Style]) -> None:
        self._look = look
        self._palette: dict[str, Style] = {}
        self._strips: dict[tuple[Row, bool], Strip] = {}
        self._filters: Filters = ((), Color(0, 0, 0))
        self._columns = 0
        self._pattern = ""

    def set(self, columns: int, pattern: str, filters: Filters) -> None:
        """Paint for so many columns, with this marked that was searched for, and filtered so."""
        if (columns, pattern, filters) != (self._columns, self._pattern, self._filters):
            self._columns, self._pattern, self._filters = columns, pattern, filters
            self._strips.clear()

    def forget(self) -> None:
        """The theme is another one."""
        self._palette.clear()
        self._strips.clear()

    def style(self, roles: str) -> Style:
        """The style of roles by name, separated by spaces."""
        style = self._palette.get(roles)
        if style is None:
            style = self._palette[roles] = self._look([role for role in roles.split() if role in ROLES])
        return style

    def blank(self) -> Strip:
        """A line where nothing stands."""
        return self._filtered(Strip.blank(self._columns, self.style("")))

    def plain(self, row: Row, current: bool) -> Strip:
        """A row, with the cursor before it where it is the current one's."""
        strip = self._strips.get((row, current))
        if strip is None:
            if len(self._strips) > STRIPS:
                self._strips.clear()
            strip = self._strips[row, current] = self._filtered(Strip(self._segments(row, current)))
        return strip

    def marked(
        self, row: Row, current: bool, span: tuple[int, int] | None, selection: Style, label: Strip | None
    ) -> Strip:
        """The same with characters from `span[0]` to `span[1]` selected, and a label over its right end."""
        segments = self._segments(row, current)
        strip = Strip(_marked(segments, *span, selection) if span else segments)
        if label is not None:
            room = max(0, self._columns - label.cell_length)
            strip = Strip([*strip.crop_extend(0, room, self.style("")), *label])
        return self._filtered(strip)

    def _filtered(self, strip: Strip) -> Strip:
        strip = strip.adjust_cell_length(self._columns, self.style(""))
        filters, background = self._filters
        for each in filters:
            strip = strip.apply_filter(each, background)
        return strip

    def _segments(self, row: Row, current: bool) -> list[Segment]:
        segments = [Segment("▌ ", self.style("cursor")) if current else Segment("  ", self.style(""))]
        segments += [Segment(text, self.style(role)) for text, role in row.spans if text]
        if self._pattern:
            for start, end in _found("  " + row.text, self._pattern):
                segments = _marked(segments, start, end, self.style("match"))
        return segments


def _marked(segments: list[Segment], start: int, end: int, style: Style) -> list[Segment]:
    """Segments with another style from character `start` to `end`."""
    found, at = [], 0
    for text, own, _ in segments:
        first, last = max(0, start - at), max(0, end - at)
        at += len(text)
        pieces = (text[:first], own), (text[first:last], (own or style) + style), (text[last:], own)
        found += [Segment(piece, look) for piece, look in pieces if piece]
    return found


def _found(text: str, pattern: str) -> list[tuple[int, int]]:
    """Where a pattern stands, whatever the case of its letters."""
    found, low, pattern = [], text.lower(), pattern.lower()
    at = low.find(pattern) if len(low) == len(text) else -1
    while at >= 0:
        found.append((at, at + len(pattern)))
        at = low.find(pattern, at + len(pattern))
    return found
