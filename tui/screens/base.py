"""What every screen on a daemon has: the app by its own type."""

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from textual import events
from textual.message_pump import MessagePump
from textual.screen import ModalScreen, Screen

if TYPE_CHECKING:
    from tui.app import OutriderApp

T = TypeVar("T")
_MAKING = (events.Compose, events.Mount, events.ScreenResume)


class Staged(MessagePump):
    """A screen that may be closed before it is there, by keys of the same read. `gone`: it has left the app's stack."""

    gone = False

    async def on_event(self, event: events.Event) -> None:
        """Nothing is made of it then: its handlers would find none of its parts."""
        if isinstance(event, _MAKING) and self.gone:
            return
        await super().on_event(event)


class DaemonScreen(Staged, Screen[None]):
    """A whole screen."""

    _there = False

    def arrived(self) -> bool:
        """Whether the daemon is there, and was not when this was asked before: what it knows is to be asked for."""
        before, self._there = self._there, not self.outrider.lost
        return self._there and not before

    @property
    def outrider(self) -> "OutriderApp":
        return cast("OutriderApp", self.app)


class Dialog(Staged, ModalScreen[T], Generic[T]):
    """A screen over another one."""

    @property
    def outrider(self) -> "OutriderApp":
        return cast("OutriderApp", self.app)
