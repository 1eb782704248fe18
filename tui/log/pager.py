"""The pager: one record, all of it, on a screen of its own."""

from typing import ClassVar, Final

from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Offset, Size
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widgets import Static

from daemon.view import Item
from tui.log.text import Row, Span, cut, joined, wrap
from tui.widgets.hints import Hints

WRAPPED: Final = 2 << 20  # characters above which lines are not wrapped: it would take a second


class _Pages(ScrollView, can_focus=True, inherit_bindings=False):
    """Text by lines, wrapped to the width."""

    ALLOW_SELECT = True
    DEFAULT_CSS = """
    _Pages {
        overflow-x: hidden;
        overflow-y: scroll;
        scrollbar-size-vertical: 1;
        background: $background;
        padding: 0 1;
    }
    """

    def __init__(self, text: str, words: bool) -> None:
        super().__init__()
        self._text = text
        self._words = words
        self._rows: list[Row] = []

    def on_resize(self) -> None:
        columns = self.size.width
        if len(self._text) > WRAPPED:
            self._rows = [Row(((line, ""),)) for line in self._text.split("\n")]
        else:
            lines = self._text.split("\n")
            self._rows = [row for line in lines for row in wrap([(line, "")], columns, words=self._words)]
        self.virtual_size = Size(columns, len(self._rows))
        self.refresh()

    def scroll_by(self, lines: int) -> None:
        """Without an animation."""
        self.scroll_to(y=self.scroll_y + lines, animate=False)

    def find(self, pattern: str, step: int) -> bool:
        """Go to the next row with a text in it, or the one before."""
        at = self.scroll_offset.y + step
        while 0 <= at < len(self._rows):
            if pattern in self._rows[at].text.lower():
                self.scroll_to(y=at, animate=False)
                return True
            at += step
        return False

    def render_line(self, y: int) -> Strip:
        at = y + self.scroll_offset.y
        style, columns = self.rich_style, self.size.width
        if at >= len(self._rows):
            return Strip.blank(columns, style)
        text = self._rows[at].text
        if len(self._text) > WRAPPED:
            text = wrap([(text[: 2 * columns], "")], columns)[0].text
        segments = [Segment(text, style)]
        if (selection := self.text_selection) is not None and (span := selection.get_span(at)) is not None:
            start, end = span[0], len(text) if span[1] == -1 else span[1]
            marked = self.screen.get_component_rich_style("screen--selection")
            parts = ((text[:start], style), (text[start:end], style + marked), (text[end:], style))
            segments = [Segment(part, look) for part, look in parts]
        return Strip(segments).adjust_cell_length(columns, style).apply_offsets(0, at)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        start = selection.start if selection.start is not None else Offset(0, 0)  # one at 0, 0 is false
        end = selection.end if selection.end is not None else Offset(1 << 30, len(self._rows) - 1)
        rows = self._rows[start.y : end.y + 1]
        if not rows:
            return None
        if len(rows) == 1:
            rows[0] = _part(rows[0], start.x, end.x)
        else:
            rows[0], rows[-1] = _part(rows[0], start.x, None), _part(rows[-1], 0, end.x)
        return joined(rows), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()


def _part(row: Row, start: int, end: int | None) -> Row:
    span: Span = (row.text[start:end], "")
    return Row((span,), 0, row.glue)


class Pager(Screen[str]):
    """All of a record. It is dismissed with the text to copy, or nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,v", "close", "Back", id="pager.close"),
        Binding("j,down", "by(1)", "Down", show=False, id="pager.down"),
        Binding("k,up", "by(-1)", "Up", show=False, id="pager.up"),
        Binding("ctrl+d", "half(1)", "Half a page down", show=False, id="pager.half-down"),
        Binding("ctrl+u", "half(-1)", "Half a page up", show=False, id="pager.half-up"),
        Binding("space,pagedown", "page(1)", "Page down", show=False, id="pager.page-down"),
        Binding("b,pageup", "page(-1)", "Page up", show=False, id="pager.page-up"),
        Binding("g,home", "top", "Top", show=False, id="pager.top"),
        Binding("G,end", "bottom", "Bottom", show=False, id="pager.bottom"),
        Binding("n", "again(1)", "Next match", show=False, id="pager.next"),
        Binding("N", "again(-1)", "Previous match", show=False, id="pager.previous"),
        Binding("y", "copy", "Copy", id="pager.copy"),
    ]
    DEFAULT_CSS = """
    Pager { layout: vertical; background: $background; }
    Pager > #title { height: 1; background: $panel; color: $foreground; padding: 0 1; text-style: bold; }
    Pager > _Pages { height: 1fr; }
    """

    def __init__(self, item: Item, pattern: str = "") -> None:
        super().__init__()
        self._item = item
        self._pattern = pattern.lower()

    def compose(self) -> ComposeResult:
        item = self._item
        yield Static(cut(f"#{item.n} {item.title}", 400), id="title", markup=False)
        yield _Pages(item.body or item.title, words=item.kind not in ("call", "result", "config"))
        yield Hints()

    def on_mount(self) -> None:
        self.query_one(_Pages).focus()

    def action_close(self) -> None:
        self.dismiss("")

    def action_copy(self) -> None:
        self.dismiss(self._item.body or self._item.title)

    def action_by(self, lines: int) -> None:
        self.query_one(_Pages).scroll_by(lines)

    def action_half(self, step: int) -> None:
        pages = self.query_one(_Pages)
        pages.scroll_by(step * max(1, pages.size.height // 2))

    def action_page(self, step: int) -> None:
        pages = self.query_one(_Pages)
        pages.scroll_by(step * max(1, pages.size.height - 1))

    def action_top(self) -> None:
        self.query_one(_Pages).scroll_to(y=0, animate=False)

    def action_bottom(self) -> None:
        pages = self.query_one(_Pages)
        pages.scroll_to(y=pages.virtual_size.height, animate=False)

    def action_again(self, step: int) -> None:
        if not (self._pattern and self.query_one(_Pages).find(self._pattern, step)):
            self.app.bell()
