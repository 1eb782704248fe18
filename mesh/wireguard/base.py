"""What both WireGuards are to the rest: one interface that takes single changes and says what it is."""

from collections.abc import Sequence
from typing import Protocol

from mesh.plan import Actual, Change


class WireGuardError(Exception):
    """The interface could not be made or changed; the message says why and what a person can do."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number = number


class Absent(WireGuardError):
    """This WireGuard cannot be had on this machine."""


class Engine(Protocol):
    """WireGuard on one interface. Calls are made one after another and run to their end."""

    async def listen(self, private: bytes, port: int) -> None:
        """Use this key and UDP port (0: any); the interface is up. Raises WireGuardError."""
        ...

    async def apply(self, changes: Sequence[Change]) -> None:
        """Make these changes, in order; a change of a peer that is not there does nothing. Raises WireGuardError."""
        ...

    async def read(self) -> Actual:
        """What the interface is now. Raises WireGuardError."""
        ...

    async def ended(self) -> str:
        """Wait until it ends by itself; why it did."""
        ...

    async def close(self) -> None: ...
