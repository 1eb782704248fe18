"""A small table whose rows have names: what changes is drawn again, and the cursor stays on its row."""

from collections.abc import Sequence
from typing import ClassVar, Final

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text
from textual.binding import BindingType
from textual.widgets import DataTable

from tui.keymap import key
from tui.widgets.tint import tint
from tui.workertext import Tone

TONES: Final[dict[Tone, str]] = {
    "": "rows--plain",
    "good": "rows--good",
    "bad": "rows--bad",
    "warn": "rows--warn",
    "dim": "rows--dim",
}


class Line(Struct, frozen=True):
    """A row: its name, its cells, and how those of `tones` are meant, by their place."""

    name: str
    cells: tuple[str, ...]
    tones: tuple[tuple[int, Tone], ...] = ()


class NamedRows(DataTable[Text]):
    """`head`: its columns. `show` gives it rows; nothing in a cell is markup."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("rows.down", "j,down", "cursor_down", "Down"),
        key("rows.up", "k,up", "cursor_up", "Up"),
        key("rows.top", "g,home", "scroll_top", "First"),
        key("rows.bottom", "G,end", "scroll_bottom", "Last"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = set(TONES.values())
    DEFAULT_CSS = """
    NamedRows { height: auto; max-height: 60%; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; }
    NamedRows > .rows--good { color: $text-success; }
    NamedRows > .rows--bad { color: $text-error; }
    NamedRows > .rows--warn { color: $text-warning; }
    NamedRows > .rows--dim { color: $text-muted; }
    """

    def __init__(self, head: Sequence[str], id: str | None = None) -> None:
        super().__init__(
            id=id, cursor_type="row", zebra_stripes=False, cell_padding=1, cursor_foreground_priority="css"
        )
        self._titles = tuple(head)
        self._given: tuple[Sequence[Line], int | None] = ((), None)
        self._lines: tuple[Line, ...] = ()
        self._shape: tuple[object, ...] = ()

    def on_mount(self) -> None:
        self.show(())
        self.app.theme_changed_signal.subscribe(self, lambda _: self.show(*self._given))

    def show(self, lines: Sequence[Line], columns: int | None = None) -> None:
        """These rows, in this order; of their cells the first `columns`."""
        self._given = (lines, columns)
        titles = self._titles[:columns]
        named = {one.name: Line(one.name, one.cells[: len(titles)], one.tones) for one in lines}
        lines = tuple(named.values())
        # Widths are given: those that a DataTable finds out later leave what is drawn already as it was.
        widths = tuple(
            max(map(cell_len, column)) for column in zip(titles, *(one.cells for one in lines), strict=True)
        )
        shape = (self.app.theme, titles, widths, tuple(one.name for one in lines))
        if (shape, lines) == (self._shape, self._lines):
            return
        if shape == self._shape:
            for one in lines:
                for title, cell in zip(titles, self._texts(one), strict=True):
                    self.update_cell(one.name, title, cell)
        else:
            self._rebuild(titles, widths, lines)
        self._lines, self._shape = lines, shape

    def _rebuild(self, titles: Sequence[str], widths: Sequence[int], lines: Sequence[Line]) -> None:
        at, name, names = self.cursor_row, self.named, [one.name for one in lines]
        self.clear(columns=True)
        for title, width in zip(titles, widths, strict=True):
            self.add_column(title, key=title, width=width)
        for one in lines:
            self.add_row(*self._texts(one), key=one.name)
        if names:
            self.move_cursor(
                row=names.index(name) if name in names else min(at, len(names) - 1), animate=False
            )

    @property
    def named(self) -> str:
        """The name of the row that the cursor is on, empty where there is none."""
        names = list(self.rows)
        at = self.cursor_row
        return (names[at].value or "") if 0 <= at < len(names) else ""

    def _texts(self, one: Line) -> list[Text]:
        tones = dict(one.tones)
        return [Text(cell, tint(self, TONES[tones.get(at, "")])) for at, cell in enumerate(one.cells)]
