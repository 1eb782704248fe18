"""The head of a session: its status, title and model, its context and tokens, its workers and whether they are here."""

from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from daemon.plain import dollars, line, tokens
from daemon.protocol import api
from tui import words
from tui.widgets.table import Row
from tui.widgets.tint import tint

BAR: Final = 10  # cells of the context's bar
WIDE: Final = 70  # columns from which there is room for what is less important


class SessionHeader(Widget):
    """Two lines. `show` gives it what it shows."""

    COMPONENT_CLASSES = {
        "header--title",
        "header--dim",
        "header--primary",
        "header--success",
        "header--warning",
        "header--error",
    }

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._row: Row | None = None
        self._note = ""

    def show(self, row: Row, note: str = "") -> None:
        """`note`: what happens right now, at the right."""
        if (row, note) != (self._row, self._note):
            self._row, self._note = row, note
            self.refresh()

    def render(self) -> Text:
        if self._row is None:
            return Text("")
        info, width = self._row.info, self.size.width
        first, second = Text(), Text()
        waiting = self._row.attention == "waiting"
        colour = "warning" if waiting else words.COLOURS[info.status]
        first.append(f"{words.sign(info)} {words.status(info, waiting)}", self._style(colour, bold=True))
        model = _short(line(info.config.model), width // 3)
        copy = f"  copy of {line(info.from_.session[:8])}" if info.from_ is not None and width >= WIDE else ""
        room = width - first.cell_len - cell_len(model) - len(copy) - 5
        title = line(words.called(info))
        if cell_len(title) > max(room, 4):
            title = set_cell_size(title, max(room - 1, 3)).rstrip() + "…"
        first.append("  ").append(title, self._style("title"))
        if copy:
            first.append(copy, self._style("dim"))
        if room >= 4:
            first.append(" " * max(2, width - first.cell_len - cell_len(model)))
            first.append(model, self._style("dim"))
        self._facts(second, info, width)
        return Text("\n").join([first, second])

    def _facts(self, text: Text, info: api.Info, width: int) -> None:
        assert self._row is not None
        dim = self._style("dim")
        share = words.share(info, self._row.limit)
        text.append("context ", dim)
        if self._row.limit:
            strong = "error" if share > 0.9 else "warning" if share > 0.75 else "primary"
            text.append(words.bar(share, BAR), self._style(strong)).append(" ")
        text.append(words.context(info, self._row.limit))
        used = info.usage
        if width >= WIDE:
            cost = (
                "$?" if info.cost is None and used.prompt else dollars(info.cost)
            )  # not known, or what it is
            text.append(f"  {tokens(used.prompt)} in {tokens(used.output)} out {cost}".rstrip(), dim)
        text.append("  ")
        for ref in info.config.workers:
            here = ref.name not in self._row.absent
            text.append(f" {'✓' if here else '✗'} ", self._style("success" if here else "error"))
            name = line(ref.name)
            text.append(name if here else f"{name} is not here")
            if ref.cwd and width >= 100:
                text.append(f":{line(ref.cwd)}", dim)
        if not info.config.workers:
            text.append(" no worker", dim)
        if self._note:
            text.append(" " * max(2, width - text.cell_len - cell_len(self._note))).append(self._note, dim)
        text.truncate(width, overflow="ellipsis")

    def _style(self, name: str, bold: bool = False) -> Style:
        style = tint(self, f"header--{name}") if name else Style()
        return style + Style(bold=True) if bold else style


def _short(model: str, room: int) -> str:
    """A model's name in so many cells: without its provider where that is enough, else cut."""
    for name in (model, model.partition("/")[2]):
        if name and cell_len(name) <= room:
            return name
    return set_cell_size(model.partition("/")[2] or model, max(room - 1, 1)).rstrip() + "…"
