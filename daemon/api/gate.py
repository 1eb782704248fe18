"""Who asks, what that caller may, and until when: the Unix socket's peers are admin, over TCP a key says it."""

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, get_args

from aiohttp import web

from daemon.api.errors import Refusal
from daemon.api.keys import Keys, digest
from daemon.protocol import api

MOST: Final = 30  # refused keys in WINDOW from one address; a person who mistypes stays far below
WINDOW: Final = 60.0  # seconds
ADDRESSES: Final = 10_000  # that refused keys are counted for; the longest quiet are forgotten first
NETWORK: Final = 64  # bits of an IPv6 address that count: one customer has that many for himself
SCHEME: Final = "Bearer "
CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}
ROLES: Final[tuple[api.Role, ...]] = get_args(api.Role)


class Caller:
    """Somebody who asks. `gone` is set when the key is revoked or the daemon ends: what waits or streams ends then."""

    def __init__(self, name: str, role: api.Role) -> None:
        self.name = name
        self.role = role
        self.gone = asyncio.Event()

    def check(self, role: api.Role) -> None:
        """Raises Refusal unless the caller may what a `role` may."""
        if ROLES.index(self.role) < ROLES.index(role):
            raise Refusal(403, f"the key {self.name} is {self.role}'s; this takes {role}'s")


class Gate:
    """Admits callers for as long as it is open. `clock`: seconds that only go up."""

    def __init__(self, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._refused = Refused(clock)
        self._local = Caller("", "admin")
        self._callers: dict[str, Caller] = {}  # by the key's digest: two keys may be of one name
        self._closed = False

    def admit(self, request: web.Request) -> Caller:
        """Who asks. Raises Refusal.

        A right key is admitted from any address: with 160 random bits nobody is kept from guessing by being slowed
        down, and a stranger's wrong keys must not keep the owner out.
        """
        name = request.transport.get_extra_info("sockname") if request.transport is not None else ()
        if not isinstance(name, tuple):
            return self._local
        given = request.headers.getall("Authorization", [])
        if not given:
            raise Refusal(401, "a key is needed: send it as `Authorization: Bearer ork_…`", CHALLENGE)
        secret = given[0][len(SCHEME) :].strip()
        if len(given) > 1 or given[0][: len(SCHEME)].lower() != SCHEME.lower() or not secret:
            raise Refusal(401, "Authorization: send one key, as `Bearer ork_…`", CHALLENGE)
        if (key := self._keys.find(secret)) is not None:
            return self._caller(digest(secret), key)
        if wait := self._refused.add(request.remote or ""):
            after = str(math.ceil(wait))
            raise Refusal(
                429, f"{MOST} keys of this address were refused; wait {after} s", {"Retry-After": after}
            )
        raise Refusal(401, "this key is not one of this daemon's, or it was revoked", CHALLENGE)

    def revoke(self, digest: str) -> None:
        """End what the caller with the key of this digest has open; the key itself is gone from the keys by now."""
        if (caller := self._callers.pop(digest, None)) is not None:
            caller.gone.set()

    def close(self) -> None:
        """End what anybody has open, or opens from now on."""
        self._closed = True
        for caller in (self._local, *self._callers.values()):
            caller.gone.set()

    def _caller(self, digest: str, key: api.KeyInfo) -> Caller:
        caller = self._callers.get(digest)
        if caller is None:
            caller = self._callers[digest] = Caller(key.name, key.role)
            if self._closed:
                caller.gone.set()
        return caller


class Refused:
    """Counts refused keys by address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def add(self, address: str) -> float:
        """Count one more, unless there are too many: then the seconds until one is told again that it is wrong."""
        now, place = self._clock(), _place(address)
        times = self._times.setdefault(place, deque())
        self._times.move_to_end(place)
        if len(self._times) > ADDRESSES:
            self._times.popitem(last=False)
        while times and times[0] <= now - WINDOW:
            times.popleft()
        if len(times) >= MOST:
            return times[0] + WINDOW - now
        times.append(now)
        return 0.0


def _place(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, NETWORK), strict=False))
    return str(found)
