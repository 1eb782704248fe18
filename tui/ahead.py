"""Keys that come before what they are meant for, a field or a screen, is there: a slow line brings many at once."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from textual import events
from textual.app import App
from textual.await_complete import AwaitComplete
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, TextArea

from tui.screens.base import Staged

AHEAD: Final = 256  # keys in one read that are followed


def focus_now(field: Widget) -> None:
    """Give a field the focus at once; `Widget.focus` does it when the keys of the same read have found another."""
    field.screen.set_focus(field)


class Ahead(App[Any]):
    """An app whose keys go to the field for text that has the focus by the time they are carried out.

    Textual hands each key of a read to the widget that has the focus then. It carries the first out, say the one
    that opens a search, and looks for bindings of the others only afterwards: they would be commands, or lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self._aimed: deque[tuple[events.Key, Widget | None]] = deque(maxlen=AHEAD)

    def pop_screen(self) -> AwaitComplete:
        with self._leaving():
            return super().pop_screen()

    def switch_screen(self, screen: Screen[Any] | str) -> AwaitComplete:
        with self._leaving():
            return super().switch_screen(screen)

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """The screen on top is told when it has left the stack."""
        top = self.screen
        yield
        if isinstance(top, Staged) and top not in self.screen_stack:
            top.gone = True

    async def on_event(self, event: events.Event) -> None:
        """Note who a key is for; while the app ends there is no screen, and no key is for anybody."""
        if isinstance(event, events.Key) and not event.is_forwarded:
            if not self.screen_stack:
                return
            self._aimed.append((event, self.focused))
        await super().on_event(event)

    async def _on_key(self, event: events.Key) -> None:
        """A key that nobody took."""
        if not self.screen_stack:
            event.prevent_default()
            return
        aimed = next((widget for key, widget in self._aimed if key is event), None)
        field = self.focused
        if aimed is not None and field is not aimed and isinstance(field, Input | TextArea):
            event.prevent_default()
            field._forward_event(event.copy())
