"""What every screen on a daemon has: the app by its own type."""

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from textual.screen import ModalScreen, Screen

if TYPE_CHECKING:
    from tui.app import OutriderApp

T = TypeVar("T")


class DaemonScreen(Screen[None]):
    """A whole screen."""

    _there = False

    def arrived(self) -> bool:
        """Whether the daemon is there, and was not when this was asked before: what it knows is to be asked for."""
        before, self._there = self._there, not self.outrider.lost
        return self._there and not before

    @property
    def outrider(self) -> "OutriderApp":
        return cast("OutriderApp", self.app)


class Dialog(ModalScreen[T], Generic[T]):
    """A screen over another one."""

    @property
    def outrider(self) -> "OutriderApp":
        return cast("OutriderApp", self.app)
