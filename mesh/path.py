"""Which way a worker's packets go to the harness: by one of its endpoints, or by the relay. Pure.

TRYING ── heard by it ──► DIRECT ── unanswered ──► TRYING (the first endpoint)
  │ ▲ │ no answer: the next endpoint; after the last,  ▲
  │ └─┘ where there is no relay, the first again       │ unanswered, or the relay is down
  └── none is left ──► RELAYED ────────────────────────┘
                         └── a probe was answered ──► DIRECT

WireGuard has one endpoint for a peer, and both sides send to where the last authentic packet came from. So to try a
direct way by setting the endpoint would lose whatever is sent until it is set back, and what the hub sends by the
relay meanwhile would set it back at once: nothing would be learned. What can go another way without harm is the
handshake that WireGuard makes every two minutes. While it is relayed, its initiation passes through our hands: the
relay's end at the worker sends it to the endpoints alone, and by the relay a second later if nothing responded
(`mesh.detour`). The old session's key goes on for a minute, so no packet waits for this; a response is the hub's own,
and shows both directions. A hub that has heard the initiation and whose response is lost sends into the void until
the worker's next packet, which the relay carries. So a direct way is tried with the first handshake that falls due
after a minute on the relay, which is every two minutes at the latest while the worker keeps alive.

Then the endpoint is set, and WireGuard made to say something there, so that the hub follows at once. What the hub has
under way to the old place is dropped with the relay's end (it would lead WireGuard back there): the packets of one
round trip, at a change of path and never at a probe in vain.

An idle tunnel has no answers but to handshakes, so a way counts as lost by what was sent in vain, not by silence; or
when no handshake came for three minutes, as WireGuard does not count what the system would not send for it (without a
route, say); or when who uses the tunnel says so and nothing comes.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final

import msgspec
from msgspec import Struct

from mesh.plan import Endpoint

TRY: Final = 5.0  # seconds an endpoint has: WireGuard sends an initiation every 5 s
LONGEST_TRY: Final = 8.0  # … where it has sent none so far
ANSWER: Final = 2.0  # seconds an initiation has at least to be answered
UNANSWERED: Final = 20.0  # seconds: WireGuard itself takes 15 s without an answer for a lost session
VAIN: Final = (
    400  # bytes sent without an answer: an idle tunnel sends 308 at the most before it hears of the hub
)
SUSPECT: Final = 10.0  # seconds without a packet after which a suspicion is believed
INITIATION: Final = 148  # bytes of an initiation; no other packets come to this, as data is padded to 16
FIRST_ANSWER: Final = 15.0  # seconds the relay has until something comes: three initiations
RELAY_DOWN: Final = 10.0  # seconds the relay may be down before endpoints are tried
PROBE: Final = 60.0  # seconds between tries of a direct way
MOST_PROBE: Final = 960.0  # … where direct ways never lasted
STEADY: Final = 300.0  # seconds after which a direct way has lasted
STALE: Final = 180.0  # seconds without a handshake after which names are resolved again
UNRESOLVED: Final = (
    15.0  # … where no name had an address, so that there is nothing to try: a machine that boots
)
RELAYED_MTU: Final = 1280  # bytes: IPv6's least, and every network below the relay takes it


class State(Enum):
    TRYING = auto()
    DIRECT = auto()
    RELAYED = auto()


class Event(Enum):
    HEARD = auto()  # the hub answers by the way that is set
    DETOURED = auto()  # the hub answers, and by the relay, whatever was set
    SILENT = auto()  # no answer, and there is another endpoint, or no relay either
    LAST = auto()  # no answer, and there is none but the relay
    LOST = auto()  # a way that answered does no more, or the relay does not
    PROBED = auto()  # an endpoint answered to a probe


TABLE: Final[Mapping[tuple[State, Event], State]] = {
    (State.TRYING, Event.HEARD): State.DIRECT,
    (State.TRYING, Event.DETOURED): State.RELAYED,
    (State.TRYING, Event.SILENT): State.TRYING,
    (State.TRYING, Event.LAST): State.RELAYED,
    (State.DIRECT, Event.LOST): State.TRYING,
    (State.RELAYED, Event.LOST): State.TRYING,
    (State.RELAYED, Event.PROBED): State.DIRECT,
}


class Seen(Struct, frozen=True, kw_only=True):
    """What there is to see of the tunnel. Times in seconds of a clock that only goes forward; `rx`, `tx` in bytes.

    `addresses`: the harness's endpoints, resolved, in the order to try. `endpoint`: WireGuard's own for the hub now.
    `handshake`: when the last one was, None for never. `relay`: the endpoint that stands for the relay, None while it
    is not started; `down`: since when its connection is down, None while it is up or dials for the first time.
    `probing`: a probe is under way; `answered`: the endpoint by which one was answered, told once. `fits`: whether a
    full packet passes on the direct way, None while that is not known. `suspect`: what goes through the tunnel has got
    no answer for a while. `doubt`: the same, though small packets pass, so that the way may take no full ones any more.
    """

    now: float
    addresses: tuple[Endpoint, ...]
    endpoint: Endpoint | None = None
    handshake: float | None = None
    rx: int = 0
    tx: int = 0
    relay: Endpoint | None = None
    down: float | None = None
    probing: bool = False
    answered: Endpoint | None = None
    fits: bool | None = None
    suspect: bool = False
    doubt: bool = False


class SetEndpoint(Struct, frozen=True):
    """Set it, and have WireGuard say something there now: set the peer's keepalive to 0, then back."""

    endpoint: Endpoint


class StartRelay(Struct, frozen=True):
    """Have the relay up, and say its endpoint in `Seen.relay`."""


class StopRelay(Struct, frozen=True):
    """End the relay."""


class Probe(Struct, frozen=True):
    """Have the relay try these with the next handshake; `Seen.probing` until that is done, then `Seen.answered`."""

    endpoints: tuple[Endpoint, ...]


class Resolve(Struct, frozen=True):
    """Resolve the names of the endpoints anew, and give what is found in `Seen.addresses`."""


class SetMtu(Struct, frozen=True):
    """Set the interface's MTU, in bytes."""

    bytes: int


class Measure(Struct, frozen=True):
    """Send a packet of the full MTU to the hub, and tell in `Seen.fits` whether it came through."""


Action = SetEndpoint | StartRelay | StopRelay | Probe | Resolve | SetMtu | Measure


class Path(Struct, frozen=True, kw_only=True):
    """Where it stands. Begin with `Path()`; the rest is what `decide` remembers.

    `full`: the MTU of a direct way; `relays`: whether there is a relay to take.
    """

    full: int = 1420
    relays: bool = True
    state: State | None = None  # None: nothing was done so far
    entered: float = 0.0  # when this state was
    since: float = 0.0  # when the way was set
    index: int = 0  # of the endpoint that is tried
    endpoint: Endpoint | None = None  # what is set, None while the relay is not there yet
    proven: bool = False  # something came by this way
    rx: int = 0
    heard: float = 0.0  # when rx last grew, or the way was set
    tx: int = 0  # what it was then
    asked: float | None = None  # when it first grew after that
    relayed: bool = False  # the relay is started
    detour: Endpoint | None = None  # the relay's endpoint, also after its end
    probe: float = 0.0  # when the next may be
    interval: float = PROBE
    probed: bool = False  # this direct way came of a probe
    resolved: float | None = None
    mtu: int = 0


def decide(path: Path, seen: Seen) -> tuple[Path, list[Action]]:
    """What is to be done now, and the path after that. Call it once a second, and when something of `seen` changes."""
    did: list[Action] = []
    if path.state is None:
        path = msgspec.structs.replace(path, resolved=seen.now)
        path, did = _try(path, seen, 0)
    path = _listen(path, seen)
    if (event := _event(path, seen)) is not None:
        path, more = _go(path, seen, event)
        did += more
    for step in (_follow, _probe, _resolve, _fit):
        path, more = step(path, seen)
        did += more
    return path, did


def _listen(path: Path, seen: Seen) -> Path:
    """Take note of what came and what went."""
    if seen.rx == path.rx + INITIATION:  # the hub tries a handshake: it gets no answer of ours
        path = msgspec.structs.replace(path, rx=seen.rx)
    elif seen.rx > path.rx:
        path = msgspec.structs.replace(path, rx=seen.rx, heard=seen.now, tx=seen.tx, asked=None)
    elif seen.rx < path.rx:  # the interface was made anew
        path = msgspec.structs.replace(path, rx=seen.rx, tx=seen.tx, asked=None)
    elif path.asked is None and seen.tx > path.tx:
        path = msgspec.structs.replace(path, asked=seen.now)
    if seen.relay is not None:
        path = msgspec.structs.replace(path, detour=seen.relay)
    if path.state is State.RELAYED:
        here = seen.endpoint in (None, path.endpoint)
    else:
        here = seen.endpoint is None or seen.endpoint != path.detour
    if not path.proven and here and path.endpoint is not None and _answered(path, seen):
        path = msgspec.structs.replace(path, proven=True)
    return path


def _answered(path: Path, seen: Seen) -> bool:
    """Whether the hub has answered since the way was set."""
    return path.heard > path.since or (seen.handshake is not None and seen.handshake > path.since)


def _event(path: Path, seen: Seen) -> Event | None:
    """What has happened to the way that is set."""
    now = seen.now
    spent = now - path.since
    asked = path.asked
    lost = (
        (asked is not None and now - asked >= UNANSWERED and seen.tx - path.tx >= VAIN)
        or now - max(path.since, seen.handshake or path.since) >= STALE
        or (seen.suspect and now - max(path.since, path.heard) >= SUSPECT)
    )
    match path.state:
        case State.TRYING:
            if path.proven:
                return Event.HEARD
            if seen.relay is not None and seen.endpoint == seen.relay and _answered(path, seen):
                return Event.DETOURED
            waited = asked is not None and now - asked >= ANSWER
            if path.endpoint is None or (spent >= TRY and (waited or spent >= LONGEST_TRY)):
                more = path.index + 1 < len(seen.addresses) or not path.relays
                return Event.SILENT if more else Event.LAST
        case State.DIRECT:
            if lost:
                return Event.LOST
        case State.RELAYED:
            if seen.answered is not None:
                return Event.PROBED
            down = seen.down is not None and now - max(seen.down, path.since) >= RELAY_DOWN
            if lost or down or (not path.proven and spent >= FIRST_ANSWER):
                return Event.LOST
        case None:
            pass
    return None


def _go(path: Path, seen: Seen, event: Event) -> tuple[Path, list[Action]]:
    """Take a step in the table."""
    assert path.state is not None
    new = TABLE[path.state, event]
    match new:
        case State.TRYING:
            lasted = seen.now - path.entered >= STEADY
            if path.state is State.DIRECT:
                interval = PROBE if lasted else min(2 * path.interval, MOST_PROBE)
                path = msgspec.structs.replace(path, interval=interval if path.probed else path.interval)
            return _try(path, seen, path.index + 1 if event is Event.SILENT else 0)
        case State.DIRECT if event is Event.PROBED:
            assert seen.answered is not None
            return _direct(_set(path, seen, seen.answered), seen, [SetEndpoint(seen.answered)], probed=True)
        case State.DIRECT:
            return _direct(path, seen, [])
        case State.RELAYED:
            path = _set(path, seen, seen.relay if event is Event.DETOURED else None)
            did: list[Action] = [] if path.relayed else [StartRelay()]
            proven = event is Event.DETOURED
            probe = seen.now + path.interval
            return _enter(path, seen, new, relayed=True, proven=proven, probe=probe), did


def _enter(path: Path, seen: Seen, state: State, **more: Any) -> Path:
    return msgspec.structs.replace(path, state=state, entered=seen.now, **more)


def _direct(path: Path, seen: Seen, did: list[Action], probed: bool = False) -> tuple[Path, list[Action]]:
    """By the endpoint that is set."""
    if path.relayed:
        did.append(StopRelay())
    return _enter(path, seen, State.DIRECT, relayed=False, proven=True, probed=probed), [*did, Measure()]


def _try(path: Path, seen: Seen, index: int) -> tuple[Path, list[Action]]:
    """By the endpoint at `index`, or the first after the last; by none where there is none, which is over at once."""
    index = index if index < len(seen.addresses) else 0
    endpoint = seen.addresses[index] if seen.addresses else None
    path = _enter(_set(path, seen, endpoint), seen, State.TRYING, index=index)
    return path, [] if endpoint is None else [SetEndpoint(endpoint)]


def _set(path: Path, seen: Seen, endpoint: Endpoint | None) -> Path:
    """By another way from now on."""
    return msgspec.structs.replace(
        path,
        since=seen.now,
        endpoint=endpoint,
        proven=False,
        rx=seen.rx,
        tx=seen.tx,
        heard=seen.now,
        asked=None,
    )


def _follow(path: Path, seen: Seen) -> tuple[Path, list[Action]]:
    """Have WireGuard's endpoint where it belongs; it follows the hub's last packet, be it a late one."""
    now = seen.endpoint
    match path.state:
        case State.RELAYED if seen.relay is not None and path.endpoint != seen.relay:
            return _set(path, seen, seen.relay), [SetEndpoint(seen.relay)]
        case State.RELAYED if now is not None and path.endpoint is not None and now != path.endpoint:
            if path.since != seen.now:
                return path, [SetEndpoint(path.endpoint)]
        case State.DIRECT if now is not None and now != path.endpoint and path.entered != seen.now:
            if now != path.detour:
                return msgspec.structs.replace(path, endpoint=now), []  # the hub has another address now
            assert path.endpoint is not None
            return path, [SetEndpoint(path.endpoint)]
    return path, []


def _probe(path: Path, seen: Seen) -> tuple[Path, list[Action]]:
    """Try a direct way now and then."""
    if path.state is not State.RELAYED or not path.proven or seen.probing or seen.now < path.probe:
        return path, []
    path = msgspec.structs.replace(path, probe=seen.now + path.interval)
    return path, [Probe(seen.addresses)] if seen.addresses else []


def _resolve(path: Path, seen: Seen) -> tuple[Path, list[Action]]:
    """Resolve names when nothing was heard for long, or none has an address, and not more often."""
    last = path.resolved or 0.0
    if seen.addresses:
        last = max(last, seen.handshake or 0.0)
    if seen.now - last < (STALE if seen.addresses or path.proven else UNRESOLVED):
        return path, []
    return msgspec.structs.replace(path, resolved=seen.now), [Resolve()]


def _fit(path: Path, seen: Seen) -> tuple[Path, list[Action]]:
    """Have the MTU that the way takes."""
    small = min(RELAYED_MTU, path.full)
    match path.state:
        case State.RELAYED:
            mtu = small
        case State.DIRECT:
            mtu = small if seen.fits is False and path.entered != seen.now else path.full
        case _:
            mtu = path.mtu or path.full
    if mtu == path.mtu:
        # A smaller one stays until the way is entered anew: to try a larger one would cost what is under way.
        again = seen.doubt and path.state is State.DIRECT and path.entered != seen.now and mtu > small
        return path, [Measure()] if again else []
    return msgspec.structs.replace(path, mtu=mtu), [SetMtu(mtu)]
