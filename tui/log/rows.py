"""The rows of a log on the screen: a scroll view that paints a pane, scrolls it, and lets text be selected."""

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Offset, Region, Size
from textual.message import Message
from textual.reactive import var
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from tui.log.bar import Bar
from tui.log.paint import Painter
from tui.log.pane import Pane
from tui.log.roles import CSS, ROLES
from tui.log.text import EMPTY, Row, joined, width

GUTTER: Final = 2  # columns left of the rows, where the cursor stands
LINE: Final = (
    1 << 20
)  # a selection counts record * LINE + line: it stays where it is when what is above it grows
SELECTED: Final = 5000  # records that a selection reaches over; more are no text to paste
BAR: Final = 2  # parts of a line at which the scroll bar is drawn anew while others move it
WHEEL: Final = 3  # lines a turn of the wheel


class _Line(NamedTuple):
    """What a line of the screen was painted from."""

    row: Row | None
    current: bool
    label: str


class Rows(ScrollView, can_focus=True, inherit_bindings=False):
    """Paints the pane that the log gives it; `sync` after the pane has changed."""

    ALLOW_SELECT = True
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"log--{role}" for role in ROLES}
    DEFAULT_CSS = CSS

    pattern: var[str] = var("")
    """What was searched for; shown where it stands."""

    class Touched(Message):
        """Line `line` of record `n` was clicked; `n` 0 is the label of new records."""

        def __init__(self, n: int, line: int) -> None:
            super().__init__()
            self.n = n
            self.line = line

    class Scrolled(Message):
        """The view was moved or has another size."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.pane = Pane()
        self._painted: list[_Line] = []
        self._painter = Painter(self._look)
        self._columns = 0  # without the scroll bar
        self._bar = (0, 0)
        self.rough = False  # whether the scroll bar is a little off
        self._syncing = False

    # What is painted.

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        """The bar, made where there is none yet."""
        if self._vertical_scrollbar is None:
            bar = Bar(vertical=True, name="vertical", thickness=self.scrollbar_size_vertical)
            self._vertical_scrollbar = bar
            bar.display = False
            self.app._start_widget(self, bar)
        return self._vertical_scrollbar

    def sync(self) -> None:
        """Bring the screen up to the pane: scroll bar, and the lines that are others than before."""
        pane = self.pane
        total, y = max(pane.total, 1), pane.y
        self._syncing = True
        # As set, but without a layout of the whole screen, which no line of this one needs.
        self.set_reactive(Widget.virtual_size, Size(self._columns, total))
        if round(self.scroll_y) != y:
            self.scroll_y = self.scroll_target_y = float(y)
        self._syncing = False
        self._move_bar(total, y)
        lines = [self._line(y) for y in range(pane.lines)]
        before = self._painted
        changed = [y for y, line in enumerate(lines) if y >= len(before) or not _same(line, before[y])]
        self._painted = lines
        if len(changed) * 2 > len(lines):
            self.refresh(Region(0, 0, self._columns, pane.lines))  # not the scroll bar
        elif changed:
            self.refresh(*(Region(0, y, self._columns, 1) for y in changed))

    def _move_bar(self, total: int, y: int) -> None:
        """Draw the scroll bar anew where that shows by much: it costs as much as all rows."""
        lines = self.pane.lines
        bar = (BAR * lines * lines // total, BAR * lines * y // total)
        if bar != self._bar:
            self._bar = bar
            self.settle()
        else:
            self.rough = True

    def settle(self) -> None:
        """Nothing comes any more: the scroll bar is where it belongs."""
        self.rough = False
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.window_virtual_size = max(self.pane.total, 1)
            self.vertical_scrollbar.window_size = self.pane.lines
            self.vertical_scrollbar.position = self.pane.y

    def _line(self, y: int) -> _Line:
        pane = self.pane
        label = ""
        if y == pane.lines - 1 and not pane.follow and pane.new:
            label = f" {pane.new:,} new ↓ "
        if y >= len(pane.view):
            return _Line(None, False, label)
        n, line = pane.view[y]
        rows = pane.rows(n)
        row = rows[line] if line < len(rows) else EMPTY
        return _Line(row, n == pane.cursor and n <= pane.last and (line > 0 or row is not EMPTY), label)

    def repaint(self) -> None:
        """Paint every line anew."""
        self._painted = []
        self._painter.forget()
        self._bar = (0, 0)
        self.vertical_scrollbar.refresh()
        self.refresh()

    def notify_style_update(self) -> None:
        """The theme is another one."""
        super().notify_style_update()
        self.repaint()

    def watch_pattern(self) -> None:
        """Another pattern is marked elsewhere."""
        self.repaint()

    def _look(self, roles: Sequence[str]) -> Style:
        return self.get_visual_style(*(f"log--{role}" for role in roles)).rich_style

    def _prepare(self) -> None:
        filters = self.get_line_filters(), self.background_colors[1]
        self._painter.set(self._columns, self.pattern, filters)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of a region. The widget has no border or padding, so that nothing has to be put around them."""
        self._prepare()
        selection, painted = self.text_selection, self._painted
        found = [
            self._strip(painted[y] if y < len(painted) else self._line(y), y, selection)
            for y in crop.line_range
        ]
        first, end = crop.column_span
        return found if (first, end) == (0, self._columns) else [strip.crop(first, end) for strip in found]

    def render_line(self, y: int) -> Strip:
        """Line `y` of the screen, with what the mouse needs to know where in the text it is."""
        self._prepare()
        strip = self._strip(self._line(y), y, self.text_selection)
        if y >= len(self.pane.view):
            return strip
        n, line = self.pane.view[y]
        return strip.apply_offsets(0, n * LINE + line)

    def _strip(self, line: _Line, y: int, selection: Selection | None) -> Strip:
        if line.row is None and not line.label:
            return self._painter.blank()
        row = line.row or EMPTY
        span = self._selected(selection, y, row) if selection and line.row else None
        if span is None and not line.label:
            return self._painter.plain(row, line.current)
        label = Strip([Segment(line.label, self._painter.style("new"))]) if line.label else None
        marked = self.screen.get_component_rich_style("screen--selection")
        return self._painter.marked(row, line.current, span, marked, label)

    # Moving.

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._columns, lines = self.scrollable_size
        self.pane.resize(max(1, self._columns - GUTTER - 1), lines)  # one is left before the scroll bar
        self.pane.layout()
        self._painted = []
        self._bar = (0, 0)
        self.sync()
        self.post_message(self.Scrolled())

    def _scroll_update(self, virtual_size: Size) -> None:
        """Another size clamps where the view is. That is nobody's scrolling: `on_resize` says where it is then."""
        syncing, self._syncing = self._syncing, True
        try:
            super()._scroll_update(virtual_size)
        finally:
            self._syncing = syncing

    def scroll_to(self, x: float | None = None, y: float | None = None, **_: object) -> None:
        """Without an animation: it would aim at a line that is another one when it arrives."""
        if y is not None:
            self.scroll_y = self.scroll_target_y = y

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Somebody else than the pane has moved the view: the scroll bar, or a selection at the screen's edge."""
        if self._syncing or round(new_value) == self.pane.y:
            return
        by = round(new_value) - self.pane.y
        if abs(by) <= 2 * self.pane.lines:
            self.pane.scroll(by)
        else:
            self.pane.jump(round(new_value))
        self.moved()

    def moved(self) -> None:
        """The pane was moved."""
        self.sync()
        self.settle()
        self.post_message(self.Scrolled())

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel."""
        self._wheel(event, WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel."""
        self._wheel(event, -WHEEL)

    def _wheel(self, event: events.MouseEvent, lines: int) -> None:
        event.stop()
        event.prevent_default()
        self.pane.scroll(lines)
        self.moved()

    def on_click(self, event: events.Click) -> None:
        """A click that was no selection."""
        offset = event.get_content_offset(self)
        if offset is None or self.text_selection is not None or event.chain > 1:
            return
        line = self._line(offset.y)
        if line.label and offset.x >= self._columns - width(line.label):
            self.post_message(self.Touched(0, 0))
        elif offset.y < len(self.pane.view):
            self.post_message(self.Touched(*self.pane.view[offset.y]))

    # Selecting.

    def text_select_all(self) -> None:
        """A double click takes the record."""
        n = self.pane.cursor
        if not n:
            return
        end = Offset(1 << 16, n * LINE + len(self.pane.rows(n)) - 1)
        self.screen.selections = {self: Selection(Offset(0, n * LINE), end)}

    def _selected(self, selection: Selection, y: int, row: Row) -> tuple[int, int] | None:
        if y >= len(self.pane.view):
            return None
        n, line = self.pane.view[y]
        span = selection.get_span(n * LINE + line)
        if span is None:
            return None
        start, end = span
        length = GUTTER + len(row.text)
        if start < length - row.aside:
            length -= row.aside
        return (start, length if end == -1 else min(end, length))

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text as it was before it was wrapped, without what only decorates it."""
        view = self.pane.view
        if not view:
            return None
        first = divmod(selection.start.y, LINE) if selection.start is not None else view[0]
        last = divmod(selection.end.y, LINE) if selection.end is not None else view[-1]
        rows: list[Row] = []
        for n in range(first[0], min(last[0], first[0] + SELECTED, self.pane.last + 1) + 1):
            drawn = self.pane.rows(n)
            rows += drawn[first[1] if n == first[0] else 0 : last[1] + 1 if n == last[0] else len(drawn)]
        if not rows:
            return None
        start = selection.start.x - GUTTER if selection.start is not None else 0
        end = selection.end.x - GUTTER if selection.end is not None else 1 << 30
        if len(rows) == 1:
            rows[0] = _cropped(rows[0], start, end)
        else:
            rows[0], rows[-1] = _cropped(rows[0], start, 1 << 30), _cropped(rows[-1], 0, end)
        return joined(rows), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Show it."""
        self.repaint()


def _same(a: _Line, b: _Line) -> bool:
    return (a.row is b.row or a.row == b.row) and a.current == b.current and a.label == b.label


def _cropped(row: Row, start: int, end: int) -> Row:
    """A row's text from character `start` to `end`; its gutter stays out, and what stands aside where it is not all."""
    main = len(row.text) - row.aside
    end = max(0, end if start >= main else min(end, main))
    return Row(((row.text[max(start, row.gutter) : end], ""),), 0, row.glue)
