"""All keys, by where they hold, as they are now: made from the bindings."""

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from tui import keymap, places
from tui.screens.base import Dialog

NOTES = (
    "\\ and enter is a new line too.",
    "@ and a file's name takes the file along; tab completes it.",
    "A picture's path that is pasted, or a picture dropped on the terminal, is attached; so is a long paste.",
    "In the filter of the list words like failed or stepping mean the status, ! what wants you.",
)


class HelpScreen(Dialog[None]):
    """Scrolls; any of the keys that opened it closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        keymap.key("help.close", "escape,q,question_mark,f1", "dismiss", "Close", show=True),
        keymap.key("help.down", "j", "scroll(1)", "Down"),
        keymap.key("help.up", "k", "scroll(-1)", "Up"),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            for place in self._places():
                table = Table.grid(padding=(0, 2))
                table.add_column(min_width=22, max_width=34)
                table.add_column()
                for shown in keymap.shown(place, self.outrider.given.keys):
                    table.add_row(
                        Text(shown.keys or "(no key)", "bold" if shown.keys else "dim"),
                        Text(shown.description),
                    )
                yield Static(place.name, classes="head", markup=False)
                yield Static(table)
            yield Static("Also", classes="head", markup=False)
            for note in NOTES:
                yield Static(note, markup=False)

    def _places(self) -> list[keymap.Place]:
        """Where the person is first, then everywhere, then the others."""
        # From Python 3.12 on Textual makes a screen before it is on the stack.
        below = next(screen for screen in reversed(self.app.screen_stack) if screen is not self)
        here = {binding.id for _, binding, _, _ in below.active_bindings.values()}

        def order(place: keymap.Place) -> tuple[bool, bool]:
            ids = {binding.id for binding in place.bindings}
            return ids.isdisjoint(here), "app.help" in ids

        return sorted(places.places(), key=order)

    def action_scroll(self, by: int) -> None:
        self.query_one("#help").scroll_relative(y=by, animate=False)
