"""A scroll bar that paints itself: Textual's way to a widget's lines costs more for it than all rows beside it."""

from typing import Self

from rich.color import Color
from rich.style import Style
from textual.geometry import Region, Size
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip


class Bar(ScrollBar):
    """Looks and acts as Textual's. What it painted stands until it is told to refresh: every change of anything on
    the screen asks each widget for its lines.
    """

    _painted: tuple[Region, Size, list[Strip]] | None = None

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """Something about it is another."""
        self._painted = None
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def notify_style_update(self) -> None:
        """The theme is another one."""
        self._painted = None
        super().notify_style_update()

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of a region."""
        if self._painted is None or self._painted[:2] != (crop, self.size):
            self._painted = crop, self.size, self._paint(crop)
        return self._painted[2]

    def _paint(self, crop: Region) -> list[Strip]:
        bar, height, width = self.render(), self.size.height, self.size.width
        assert isinstance(bar, ScrollBarRender)
        style = self.app.console.get_style(bar.style)
        segments = bar.render_bar(
            size=height,
            virtual_size=bar.virtual_size,
            window_size=bar.window_size,
            position=bar.position,
            thickness=width,
            vertical=True,
            back_color=style.bgcolor or Color.default(),
            bar_color=style.color or Color.default(),
        ).segments
        ground = Style(color=self.rich_style.color, bgcolor=self.rich_style.bgcolor)
        filters, background = self.get_line_filters(), self.background_colors[1]
        strips: dict[int, Strip] = {}
        found = []
        for y in crop.line_range:
            segment = segments[min(y, len(segments) - 1)]
            strip = strips.get(id(segment))
            if strip is None:
                strip = Strip([segment], width).apply_style(ground)
                for each in filters:
                    strip = strip.apply_filter(each, background)
                strips[id(segment)] = strip
            found.append(strip)
        return found
