"""The table of sessions: drawn line by line, so that thousands cost what a screenful costs."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Final, Literal

from msgspec import Struct
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from daemon.plain import line
from daemon.protocol import api
from tui import words
from tui.keymap import key
from tui.roster import Attention
from tui.widgets.tint import tint

Column = Literal["status", "title", "doing", "model", "workers", "context", "updated"]
HEADS: Final[Mapping[Column, str]] = {
    "status": "STATUS",
    "title": "TITLE",
    "doing": "NOW",
    "model": "MODEL",
    "workers": "WORKERS",
    "context": "CONTEXT",
    "updated": "UPDATED",
}
WIDTHS: Final[Mapping[Column, int]] = {"status": 13, "context": 17, "updated": 8}
WHOLE: Final = 15  # cells for every status whole, where there is room
BAR: Final = 6  # cells of the context's bar
NARROW: Final = 56  # columns below which a row is a sign, a title and an age
MEDIUM: Final = 100
WIDE: Final = 130


class Row(Struct, frozen=True):
    """A session as a row shows it. `limit`: of its context in tokens, 0 for none known."""

    info: api.Info
    doing: str = ""
    absent: tuple[str, ...] = ()
    attention: Attention = ""
    limit: int = 0


class SessionTable(ScrollView, can_focus=True):
    """Rows of sessions; the cursor stays on its session while rows move. `describe` makes a row when it is drawn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("sessions.down", "j,down", "move(1)", "Down"),
        key("sessions.up", "k,up", "move(-1)", "Up"),
        key("sessions.page-down", "ctrl+d,pagedown", "page(1)", "Page down"),
        key("sessions.page-up", "ctrl+u,pageup", "page(-1)", "Page up"),
        key("sessions.top", "g,home", "top", "First"),
        key("sessions.bottom", "G,end", "bottom", "Last"),
        key("sessions.open", "enter,l,right", "open", "Open", show=True),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "table--head",
        "table--cursor",
        "table--dim",
        "table--primary",
        "table--success",
        "table--warning",
        "table--error",
    }

    ids: reactive[tuple[str, ...]] = reactive((), repaint=False, layout=False)
    cursor: reactive[str] = reactive("", repaint=False)

    class Opened(Message):
        """A session is to be shown."""

        def __init__(self, session: str) -> None:
            super().__init__()
            self.session = session

    def __init__(
        self,
        describe: Callable[[str], Row],
        now: Callable[[], datetime],
        *,
        head: bool = True,
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self._describe = describe
        self._now = now
        self._head = 1 if head else 0
        self._places: dict[str, int] = {}
        self._ages: dict[str, str] = {}  # as they are on the screen, of sessions that were

    # ---- what is in it

    def show(self, ids: Sequence[str]) -> None:
        """These rows, in this order; the cursor stays on its session, or on the place where it was."""
        at = self._places.get(self.cursor, 0)
        offset = at - self.scroll_offset.y
        self._places = {id: place for place, id in enumerate(ids)}
        self.ids = tuple(ids)
        self._ages.clear()
        self._resize()
        if self.cursor not in self._places:
            self.cursor = ids[min(at, len(ids) - 1)] if ids else ""
        elif (now := self._places[self.cursor]) != at and at:  # at the top newer ones come in from above
            self.scroll_to(y=max(0, now - offset), animate=False)
        elif now != at:
            self._settle()
        self.refresh()

    def touch(self, ids: frozenset[str]) -> None:
        """Draw the rows of these sessions again, where they are on the screen."""
        top, bottom = self._window()
        for at in range(top, bottom):
            if self.ids[at] in ids:
                self._refresh_row(at)

    def tick(self) -> None:
        """Draw the rows again whose age is another by now: most are the same for minutes."""
        now, (top, bottom) = self._now(), self._window()
        for at in range(top, bottom):
            id = self.ids[at]
            if id in self._ages and words.age(self._describe(id).info.updated, now) != self._ages[id]:
                self._refresh_row(at)

    @property
    def on_screen(self) -> tuple[str, ...]:
        """The sessions that are on the screen now."""
        top, bottom = self._window()
        return self.ids[top:bottom]

    @property
    def place(self) -> int:
        """The cursor's row, from 0."""
        return self._places.get(self.cursor, 0)

    def _window(self) -> tuple[int, int]:
        top = self.scroll_offset.y
        return top, min(len(self.ids), top + max(0, self.size.height - self._head))

    def _resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self.ids) + self._head)

    def on_resize(self) -> None:
        self._ages.clear()
        self._resize()
        self._settle()
        self.refresh()

    # ---- the cursor

    def watch_cursor(self, old: str, new: str) -> None:
        for id in (old, new):
            if (at := self._places.get(id)) is not None:
                self._refresh_row(at)
        self._settle()
        if self.is_attached:
            self.screen.refresh_bindings()

    def _settle(self) -> None:
        """Scroll as little as shows the cursor's row."""
        at, rows = self.place, max(1, self.size.height - self._head)
        top = self.scroll_offset.y
        if at < top:
            self.scroll_to(y=at, animate=False)
        elif at >= top + rows:
            self.scroll_to(y=at - rows + 1, animate=False)

    def _go(self, place: int) -> None:
        if self.ids:
            self.cursor = self.ids[min(max(place, 0), len(self.ids) - 1)]

    def action_move(self, by: int) -> None:
        self._go(self.place + by)

    def action_page(self, by: int) -> None:
        self._go(self.place + by * max(1, self.size.height - self._head - 1))

    def action_top(self) -> None:
        self._go(0)

    def action_bottom(self) -> None:
        self._go(len(self.ids) - 1)

    def action_open(self) -> None:
        if self.cursor:
            self.post_message(self.Opened(self.cursor))

    def on_click(self, event: events.Click) -> None:
        """One click moves the cursor, a second opens."""
        at = event.y - self._head + self.scroll_offset.y
        if event.y >= self._head and 0 <= at < len(self.ids):
            id = self.ids[at]
            if id == self.cursor:
                self.action_open()
            else:
                self.cursor = id

    # ---- drawing

    def _refresh_row(self, at: int) -> None:
        self.refresh_line(at + self._head)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        base = self.rich_style
        columns = _columns(width)
        if self._head and y == 0:
            style = self.get_component_rich_style("table--head")
            cells = [(_head(name, size), style) for name, size in columns]
            return _strip(cells, width, style)
        at = y - self._head + self.scroll_offset.y
        if not 0 <= at < len(self.ids):
            return Strip.blank(width, base)
        row = self._describe(self.ids[at])
        here = row.info.id == self.cursor
        style = base
        if here and self.has_focus:
            style = base + self.get_component_rich_style("table--cursor")
        elif here:
            style = base + Style(bold=True, reverse=not self._head)
        plain = here and (self.has_focus or not self._head)  # its background is no ground for colours
        cells = [self._cell(name, size, row, style, plain) for name, size in columns]
        return _strip(cells, width, style)

    def _cell(self, name: Column, size: int, row: Row, style: Style, plain: bool) -> tuple[str, Style]:
        info = row.info

        def tinted(colour: str) -> Style:
            return style if plain or not colour else style + tint(self, f"table--{colour}")

        dim = tinted("dim")
        match name:
            case "status":
                mark = "▌" if row.attention else " "
                word = words.status(info, row.attention == "waiting")
                text = f"{mark}{words.sign(info)} {word}" if size > 3 else f"{mark}{words.sign(info)}"
                colour = "warning" if row.attention == "waiting" else words.COLOURS[info.status]
                return _fit(text, size), tinted(colour)
            case "title":
                text = line(words.called(info))
                return _fit(text, size), style + Style(bold=bool(row.attention)) if info.title else dim
            case "doing":
                colour = {"failed": "error", "waiting": "warning"}.get(row.attention, "")
                return _fit(row.doing, size), tinted(colour) if colour else dim
            case "model":
                model = line(info.config.model)
                return _fit(model if cell_len(model) < size else model.partition("/")[2] or model, size), dim
            case "workers":
                text = words.workers(info, row.absent)
                return _fit(line(text), size), tinted("warning") if row.absent else dim
            case "context":
                text = words.context(info, row.limit)
                share = words.share(info, row.limit)
                drawn = f"{words.bar(share, BAR)} {text}" if row.limit and info.prompt else text
                colour = "error" if share > 0.9 else "warning" if share > 0.75 else ""
                return _fit(drawn, size), tinted(colour) if colour else dim
            case "updated":
                age = self._ages[info.id] = words.age(info.updated, self._now())
                return age.rjust(size - 1) + " ", dim


def _columns(width: int) -> list[tuple[Column, int]]:
    """Columns and their widths for a table that is `width` wide; what is left goes to title, doing, model, workers."""
    if width < NARROW:
        return [("status", 3), ("title", max(4, width - 11)), ("updated", 8)]
    names: list[Column] = ["status", "title", "doing"]
    if width >= MEDIUM:
        names += ["model"]
    if width >= WIDE:
        names += ["workers"]
    names += ["context", "updated"]
    fixed = {name: WIDTHS[name] for name in names if name in WIDTHS}
    if width >= MEDIUM:
        fixed["status"] = WHOLE
    rest = width - sum(fixed.values())
    parts: dict[Column, int] = {"title": 10, "doing": 7, "model": 5, "workers": 4}
    shared: list[Column] = [name for name in names if name in parts]
    total = sum(parts[name] for name in shared)
    sizes = {name: rest * parts[name] // total for name in shared}
    sizes["title"] += rest - sum(sizes.values())
    return [(name, fixed.get(name) or sizes[name]) for name in names]


def _head(name: Column, size: int) -> str:
    text = HEADS[name]
    return (
        f"{text:>{size - 1}} " if name == "updated" else _fit(f" {text}" if name == "status" else text, size)
    )


def _fit(text: str, size: int) -> str:
    """`text` in `size` cells, the last of them a space; cut with a sign where it is too long."""
    if size <= 1:
        return " " * max(size, 0)
    if cell_len(text) > size - 1:
        text = set_cell_size(text, size - 2).rstrip() + "…"
    return set_cell_size(text, size)


def _strip(cells: Sequence[tuple[str, Style]], width: int, rest: Style) -> Strip:
    strip = Strip([Segment(text, style) for text, style in cells])
    return strip.adjust_cell_length(width, rest)
