"""How a machine joins, as the worker and as the harness see it. No I/O: requests and responses are values.

FETCHING ── the key of the token ──► ASKING ── an answer that opens ──► JOINED
   ▲  │ no, or another key              │  │
   │  └── next endpoint; none ► FAILED  │  └── refused, or no endpoint left ──► FAILED
   └────────── next endpoint ◄──────────┘
"""

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum, auto
from http import HTTPStatus
from typing import Final

from msgspec import Struct

from mesh import address, messages, sealed, standing, token
from mesh.address import Place
from mesh.keys import JOIN_PUBLIC, BadKeyError, HubKeys, Pair, check_public, fingerprint
from mesh.limiter import Limiter
from mesh.messages import KEEPALIVE, MAX_ANSWER, MTU, Answer, Ask, MessageError
from mesh.nodes import Facts, Grant, Node, Refusal
from mesh.registry import LIFETIME, Registry, RegistryError
from mesh.sealed import SealError
from mesh.token import Token

KEY_PATH: Final = "/join/key"
JOIN_PATH: Final = "/join"
SKEW: Final = (
    600.0  # seconds that the clocks may be apart: a machine that was just made may not have set its own
)
# One same answer for a token that was used, has expired, was revoked or is no token: none is told from another.
SPENT: Final = (
    "this token joins no more machines: it was used, has expired or was revoked; "
    "`outrider token new` on the harness makes another"
)
SHOWN: Final = 300  # characters of a foreign text that are shown

_UNITS: Final = ((86400, "days"), (3600, "hours"))

# The worker


class Get(Struct, frozen=True):
    """Ask this place for this path, follow no redirect, and read `limit` bytes at the most."""

    place: Place
    path: str
    limit: int


class Post(Struct, frozen=True):
    """Send the body to this path of this place, follow no redirect, and read `limit` bytes at the most."""

    place: Place
    path: str
    body: bytes
    limit: int


class Joined(Struct, frozen=True):
    """The machine is a node; `answer` is worth keeping."""

    answer: Answer


class Failed(Struct, frozen=True):
    """It is none. `again`: whether the same may go well later, after `retry_after` seconds where that is not 0."""

    reason: str
    again: bool
    retry_after: float = 0.0


class State(Enum):
    FETCHING = auto()
    ASKING = auto()
    JOINED = auto()
    FAILED = auto()


class Event(Enum):
    GOOD = auto()
    LOST = auto()  # this endpoint is of no use, there is another
    LAST = auto()  # this endpoint is of no use, and it was the last
    REFUSED = auto()


TABLE: Final[Mapping[tuple[State, Event], State]] = {
    (State.FETCHING, Event.GOOD): State.ASKING,
    (State.FETCHING, Event.LOST): State.FETCHING,
    (State.FETCHING, Event.LAST): State.FAILED,
    (State.ASKING, Event.GOOD): State.JOINED,
    (State.ASKING, Event.LOST): State.FETCHING,
    (State.ASKING, Event.LAST): State.FAILED,
    (State.ASKING, Event.REFUSED): State.FAILED,
}


class Joining:
    """One attempt to join: do what `next` says, tell what came with `feed` or `lost`, until it is Joined or Failed.

    An attempt whose answer was lost may be repeated with the same token and key: it takes no second use.
    """

    def __init__(self, token: Token, facts: Facts, keys: Pair, now: Callable[[], float] = time.time) -> None:
        self._token = token
        self._facts = facts
        self._keys = keys
        self._now = now
        self._state = State.FETCHING
        self._left = list(token.places)
        self._why: list[str] = []
        self._reply = self._box = b""
        self._ended: Joined | Failed | None = None

    def next(self) -> Get | Post | Joined | Failed:
        """What is to be done now; the same until `feed` or `lost` is called."""
        if self._ended:
            return self._ended
        if self._state is State.FETCHING:
            return Get(self._left[0], KEY_PATH, JOIN_PUBLIC)
        return Post(self._left[0], JOIN_PATH, self._box, MAX_ANSWER)

    def feed(self, status: int, body: bytes, retry_after: float = 0.0) -> None:
        """The place responded; `retry_after` in seconds, 0 where it did not say. Of a longer body, any part will do."""
        if self._state is State.FETCHING:
            self._fetched(status, body)
        else:
            self._answered(status, body, retry_after)

    def lost(self, why: str) -> None:
        """No response came from the place."""
        self._why.append(f"{self._left.pop(0)}: {why}")
        if self._left:
            self._go(Event.LOST)
        else:
            self._ended = Failed(f"this machine could not join: {'; '.join(self._why)}", again=True)
            self._go(Event.LAST)

    def _fetched(self, status: int, body: bytes) -> None:
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            return self.lost("it has too many connections just now, or too many of this address")
        if status != HTTPStatus.OK:
            return self.lost(f"no harness lets machines join there (HTTP status {status})")
        if fingerprint(body) != self._token.fingerprint:
            return self.lost("another harness than the token's answers there; nothing was sent to it")
        reply = secrets.token_bytes(sealed.REPLY)
        secret, pair = self._token.secret, self._keys
        try:
            asked = messages.ask(secret, pair.private, pair.public, reply, self._now(), self._facts, body)
            self._box = messages.seal_ask(asked, body)
        except SealError as error:
            return self.lost(str(error))
        self._reply = reply
        return self._go(Event.GOOD)

    def _answered(self, status: int, body: bytes, retry_after: float) -> None:
        if 400 <= status < 500:
            again = status == HTTPStatus.TOO_MANY_REQUESTS
            self._ended = Failed(f"the harness refused: {_shown(body)}", again, retry_after if again else 0.0)
            return self._go(Event.REFUSED)
        if status != HTTPStatus.OK:
            return self.lost(f"{_shown(body)} (HTTP status {status})")
        try:
            self._ended = Joined(messages.open_answer(body, self._reply, self._box))
        except MessageError as error:
            return self.lost(str(error))
        return self._go(Event.GOOD)

    def _go(self, event: Event) -> None:
        self._state = TABLE[self._state, event]


# The harness


class Offer(Struct, frozen=True, kw_only=True):
    """What every worker is told: WireGuard's endpoints, the control port, the harness's name, whether it relays."""

    harness: str
    endpoints: tuple[Place, ...]
    control: int
    mtu: int = MTU
    keepalive: int = KEEPALIVE
    relay: bool = True


class Reply(Struct, frozen=True, kw_only=True):
    """What to respond with: 200 and a sealed answer, or another status and a text in UTF-8.

    `retry_after` in seconds, 0 for none. `node`: who joined, to be a peer before the response is sent; or where `left`,
    who leaves, to be removed before. `stuck`: a node that asks how it stands, as it gets nothing through. `fault`: what
    the operator should know and who asks should not.
    """

    status: int
    body: bytes
    retry_after: int = 0
    node: Node | None = None
    left: bool = False
    stuck: Node | None = None
    fault: str = ""


class _Refused(Exception):
    """Carries the status and the text."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Hub:
    """The harness's side. Blocks on the registry; may be used from any thread."""

    def __init__(
        self,
        keys: HubKeys,
        registry: Registry,
        offer: Callable[[], Offer],
        now: Callable[[], float] = time.time,
        tick: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._registry = registry
        self._offer = offer
        self._now = now
        self._limiter = Limiter(tick)

    def issue(
        self,
        places: Sequence[Place],
        *,
        label: str = "",
        uses: int = 1,
        lifetime: float = LIFETIME,
        ephemeral: bool = False,
    ) -> tuple[str, Grant]:
        """A new token that names these places of the join listener; its text is nowhere else.

        Raises TokenError, ValueError as `Registry.grant` does, RegistryError.
        """
        secret = secrets.token_bytes(token.SECRET)
        trusted = fingerprint(self._keys.join.public)
        text = token.encode(Token(places=tuple(places), fingerprint=trusted, secret=secret))
        hashed = token.hash_of(secret)
        return text, self._registry.grant(
            hashed, label=label, uses=uses, lifetime=lifetime, ephemeral=ephemeral
        )

    def key(self) -> bytes:
        """What KEY_PATH responds with."""
        return self._keys.join.public

    def join(self, body: bytes, peer: str) -> Reply:
        """What JOIN_PATH responds with, for an IP address that sent this."""
        return self._limited(peer, lambda: self._join(body))

    def standing(self, body: bytes, peer: str) -> Reply:
        """What standing.PATH responds with, for an IP address that sent this."""
        return self._limited(peer, lambda: self._standing(body))

    def _limited(self, peer: str, answer: Callable[[], Reply]) -> Reply:
        if wait := self._limiter.wait(peer):
            seconds = math.ceil(wait)
            text = f"too many requests from this address were refused; try again in {seconds} s"
            return Reply(status=HTTPStatus.TOO_MANY_REQUESTS, body=text.encode(), retry_after=seconds)
        try:
            return answer()
        except _Refused as refused:
            self._limiter.wrong(peer)
            return Reply(status=refused.status, body=str(refused).encode())
        except RegistryError as error:
            text = "the harness cannot let machines join now; its log says why"
            return Reply(status=HTTPStatus.SERVICE_UNAVAILABLE, body=text.encode(), fault=str(error))

    def _join(self, body: bytes) -> Reply:
        asked = self._opened(body)
        node = self._redeemed(asked)
        box = messages.seal_answer(self._answer(node), asked.reply, body)
        return Reply(status=HTTPStatus.OK, body=box, node=node)

    def _standing(self, body: bytes) -> Reply:
        try:
            asked = standing.opened(body, self._keys.join)
        except MessageError as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, str(error)) from None
        self._check_clock(asked.time)
        node = self._registry.keyed(asked.key)
        if node is None:
            told = standing.Told(state="unknown")
        elif node.removed is not None or asked.leave:
            told = standing.Told(state="removed")
        else:
            told = standing.Told(state="member", answer=messages.dump(self._answer(node)))
        leaves = asked.leave and node is not None and node.removed is None
        box = standing.seal(told, asked.reply, body)
        stuck = node if told.state == "member" else None
        return Reply(status=HTTPStatus.OK, body=box, node=node if leaves else None, left=leaves, stuck=stuck)

    def _opened(self, body: bytes) -> Ask:
        """The question, when it is one of now, from who has the key in it. Raises _Refused."""
        try:
            asked = messages.open_ask(body, self._keys.join)
            check_public(asked.key)
        except (MessageError, BadKeyError) as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, str(error)) from None
        self._check_clock(asked.time)
        if asked.key == self._keys.wireguard.public or not messages.proven(asked, self._keys.join):
            raise _Refused(
                HTTPStatus.BAD_REQUEST, "the machine has not shown that its WireGuard key is its own"
            )
        return asked

    def _check_clock(self, time: float) -> None:
        apart = time - self._now()
        if abs(apart) > SKEW:
            raise _Refused(
                HTTPStatus.BAD_REQUEST,
                f"the machine's clock is {_length(abs(apart))} {'ahead of' if apart > 0 else 'behind'} the harness's, "
                f"and may be {_length(SKEW)}: set the clock that is wrong. The harness has "
                f"{datetime.fromtimestamp(self._now(), UTC):%Y-%m-%d %H:%M} UTC",
            )

    def _redeemed(self, asked: Ask) -> Node:
        hashed, reply = token.hash_of(asked.secret), token.hash_of(asked.reply)
        keep = 2 * SKEW  # past that the time in it is refused, whichever way the clock was off
        joined = self._registry.join(hashed, asked.key, asked.facts(), reply, keep)
        match joined:
            case Node():
                return joined
            case Refusal.TOKEN:
                raise _Refused(HTTPStatus.FORBIDDEN, SPENT)
            case Refusal.REMOVED:
                raise _Refused(
                    HTTPStatus.FORBIDDEN,
                    "this machine was removed from the mesh and its key is refused: `outrider worker leave` there, "
                    "then join with a new key",
                )
            case Refusal.REPLAYED:
                raise _Refused(HTTPStatus.CONFLICT, "this request was answered before; join anew")

    def _answer(self, node: Node) -> Answer:
        hub, offer = self._keys.wireguard.public, self._offer()
        network = address.prefix(hub)
        return Answer(
            name=node.name,
            address=address.address(network, node.number),
            prefix=network,
            hub=hub,
            preshared=node.preshared,
            endpoints=offer.endpoints,
            control=offer.control,
            harness=offer.harness,
            mtu=offer.mtu,
            keepalive=offer.keepalive,
            relay=offer.relay,
        )


def _length(seconds: float) -> str:
    """A time for people."""
    unit, name = next(((size, name) for size, name in _UNITS if seconds >= 2 * size), (60, "minutes"))
    return f"{seconds / unit:.0f} {name}"


def _shown(body: bytes) -> str:
    """A foreign text in one printable line."""
    line = " ".join(body[: 4 * SHOWN].decode("utf-8", "replace").split())
    return "".join(filter(str.isprintable, line))[:SHOWN] or "it does not say why"
