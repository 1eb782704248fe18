"""The line where a search is typed."""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input


class Pattern(Input):
    """Where a search is typed."""

    class Left(Message):
        """Nothing is searched for."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", show=False, id="log.search-leave")
    ]

    def action_leave(self) -> None:
        """Back to the records; what was searched for before stays."""
        self.post_message(self.Left())
