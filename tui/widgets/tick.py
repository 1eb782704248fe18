"""A box to tick with space; enter is left to the form around it."""

from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content, ContentText
from textual.widgets import Checkbox

from tui.keymap import key


class Tick(Checkbox, inherit_bindings=False):
    """One line high."""

    BINDINGS: ClassVar[list[BindingType]] = [key("tick.toggle", "space", "toggle_button", "Tick or untick")]
    DEFAULT_CSS = """
    Tick, Tick:focus { border: none; padding: 0; background: transparent; height: 1; }
    """

    @property
    def _button(self) -> Content:
        """Told by a sign, not by a colour alone."""
        return Content("[x]" if self.value else "[ ]")

    def _make_label(self, label: ContentText) -> Content:
        """Nothing in it is markup."""
        return Content(label) if isinstance(label, str) else super()._make_label(label)

    def __init__(self, label: str, value: bool = False, *, id: str | None = None) -> None:
        super().__init__(label, value, id=id, compact=True)
