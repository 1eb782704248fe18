"""A component's colour on whatever background it is drawn on."""

from rich.style import Style
from textual.widget import Widget


def tint(widget: Widget, component: str) -> Style:
    """The foreground of a component class and how it is written, no background.

    Textual's own partial style makes white of a colour that is relative to the background, as `$text-muted` is.
    """
    whole = widget.get_component_rich_style(component)
    return Style(color=whole.color, bold=whole.bold, dim=whole.dim, italic=whole.italic)
