"""Facts below a table: a name and a text a line, each as it is meant."""

from collections.abc import Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from tui.widgets.rows import TONES
from tui.widgets.tint import tint
from tui.workertext import Fact


class Facts(VerticalScroll, can_focus=False):
    """Scrolls where there are more than fit."""

    COMPONENT_CLASSES: ClassVar[set[str]] = set(TONES.values()) | {"facts--name"}
    DEFAULT_CSS = """
    Facts { height: 1fr; padding: 1 1 0 1; scrollbar-size-vertical: 1; }
    Facts > .facts--name { color: $text-muted; }
    Facts > .rows--good { color: $text-success; }
    Facts > .rows--bad { color: $text-error; }
    Facts > .rows--warn { color: $text-warning; }
    Facts > .rows--dim { color: $text-muted; }
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._body = Static("", markup=False)
        self._facts: Sequence[Fact] = ()
        self._shown: tuple[object, ...] = ()

    def on_mount(self) -> None:
        self.mount(self._body)
        self.app.theme_changed_signal.subscribe(self, lambda _: self.show(self._facts))

    def show(self, facts: Sequence[Fact]) -> None:
        """These lines."""
        self._facts = facts
        if (now := (self.app.theme, *facts)) == self._shown:
            return
        self._shown = now
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        name = tint(self, "facts--name")
        for fact in facts:
            style = tint(self, TONES[fact.tone])
            table.add_row(Text(fact.name, name), Text(fact.text, style))
        self._body.update(table)
