"""The line of keys at the bottom: those that do something now and fit, with help always among them."""

from dataclasses import replace
from typing import Any, Final

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from tui import keymap

FIRST: Final = (
    "app.help",
    "app.palette",
    "session.back",
    "session.compose",
    "session.take-back",
)  # their room goes before the others


class Hints(Footer):
    """Textual's footer runs off a narrow screen, where help, which a newcomer needs, stands last in it.

    A screen may have `idle()`: the ids of bindings that would do nothing now.
    """

    DEFAULT_CSS = """
    Hints { padding: 0 1; }
    """

    def __init__(self) -> None:
        super().__init__(compact=True, show_command_palette=False)
        self._shown: list[tuple[Binding, bool]] = []

    def compose(self) -> ComposeResult:
        for binding, enabled in self._shown:
            name = self.app.get_key_display(binding)
            yield FooterKey(
                binding.key, name, binding.description, binding.action, disabled=not enabled
            ).data_bind(compact=Footer.compact)

    def bindings_changed(self, screen: Screen[Any]) -> None:
        """Textual's makes it anew each time, which costs as much as a table that changes ten times a second."""
        if not self.is_attached or not self.app.screen_stack or screen is not self.screen:
            return  # there is no screen any more while the app ends
        idle: frozenset[str] = getattr(screen, "idle", frozenset)()
        found: dict[str, tuple[Binding, bool]] = {}
        for _, binding, enabled, _ in screen.active_bindings.values():
            if binding.show and binding.id not in idle:
                own = keymap.display(binding.key)
                # Where the first of its keys does something else here, it is shown by another.
                if binding.action not in found or binding.key_display == own:
                    shown_by = replace(binding, key_display=binding.key_display and own)
                    found[binding.action] = (shown_by, enabled)
        shown = self._fitting(list(found.values()))
        if shown != self._shown:
            self._shown = shown
            self.call_after_refresh(self.recompose)

    def on_resize(self) -> None:
        self.bindings_changed(self.screen)

    def _fitting(self, all: list[tuple[Binding, bool]]) -> list[tuple[Binding, bool]]:
        room = self.app.size.width - 1  # the last has no space behind it
        kept: set[int] = set()
        for at in sorted(range(len(all)), key=lambda at: (_rank(all[at][0]), at)):
            binding = all[at][0]
            width = cell_len(self.app.get_key_display(binding)) + cell_len(binding.description) + 2
            if width <= room:
                room -= width
                kept.add(at)
        return [one for at, one in enumerate(all) if at in kept]


def _rank(binding: Binding) -> int:
    return FIRST.index(binding.id) if binding.id in FIRST else len(FIRST)
