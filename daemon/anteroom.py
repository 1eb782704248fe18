"""Places for connections that have not said who they are: a few for each address, so that no one fills them all. Pure.

Where there is no place the oldest of whoever has most gives way, and the one that comes only where nobody has more than
it would have: one that dials again and again over a bad network gets in, and a machine that dials without end takes
places from itself alone.
"""

from typing import Final, Generic, TypeVar

ALL: Final = 256  # connections at once: as many as a fleet dials with when its harness is back
EACH: Final = 8  # of one address: a worker has one, and more where its network is cut while it dials

T = TypeVar("T")


class Anteroom(Generic[T]):
    """`each` places of every address, `all` together. An address that is empty has no share but the whole."""

    def __init__(self, all: int = ALL, each: int = EACH) -> None:
        self._all = all
        self._each = each
        self._there: dict[str, dict[T, None]] = {}  # the oldest first
        self._taken = 0

    def enter(self, address: str, one: T) -> T | None:
        """Take a place; who has to go for it, which may be `one` itself: it has none then."""
        own = len(self._there.get(address, ()))
        goes: T | None = None
        if address and own >= self._each:
            goes = self._oldest(address)
        elif self._taken >= self._all:
            most = max(self._there, key=lambda each: len(self._there[each]))
            if len(self._there[most]) <= own + 1:
                return one
            goes = self._oldest(most)
        self._there.setdefault(address, {})[one] = None
        self._taken += 1
        return goes

    def leave(self, address: str, one: T) -> None:
        """Give a place back; well where it has none."""
        there = self._there.get(address, {})
        if one in there:
            del there[one]
            self._taken -= 1
        if not there:
            self._there.pop(address, None)

    def _oldest(self, address: str) -> T:
        one = next(iter(self._there[address]))
        self.leave(address, one)
        return one
