"""Count what each address did wrong, and make it wait after too much of it. In memory, of bounded size."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

MOST_WRONG: Final = (
    30  # in WINDOW from one address; a person errs a few times, a fleet with a dead token learns
)
WINDOW: Final = 60.0  # seconds
MOST_ADDRESSES: Final = 4096  # remembered at once; the longest silent one goes first
_SITE: Final = 64  # bits of an IPv6 address that one party has all addresses below of


class Limiter:
    """`now`: seconds of a clock that only goes forward. May be used from any thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds until this address is heard again, 0 when it is now."""
        with self._lock:
            times = self._wrong.get(_party(address))
            if times is None or len(times) < MOST_WRONG:
                return 0.0
            return max(0.0, times[0] + WINDOW - self._now())

    def wrong(self, address: str) -> None:
        """Count one against this address."""
        party = _party(address)
        with self._lock:
            self._wrong.setdefault(party, deque(maxlen=MOST_WRONG)).append(self._now())
            self._wrong.move_to_end(party)
            if len(self._wrong) > MOST_ADDRESSES:
                self._wrong.popitem(last=False)


def _party(address: str) -> str:
    """What is counted as one: an IPv4 address, or the network of an IPv6 one."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or IPv6Network((int(found), _SITE), strict=False))
    return str(found)
