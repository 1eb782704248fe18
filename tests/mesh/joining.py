"""A harness and machines that join it, without a network: what the tests of joins share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mesh import keys, token
from mesh.address import Place
from mesh.join import Failed, Get, Hub, Joined, Joining, Offer, Post, Reply
from mesh.keys import HubKeys, Pair
from mesh.nodes import Facts
from mesh.registry import FILE, Registry

PLACE = Place("192.0.2.1", 4601)
FACTS = Facts("gpu1.example", "linux", "x86_64", "0.1.0")


class Clock:
    """A clock that a test sets."""

    def __init__(self, at: float = 1_800_000_000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def hub_keys(number: int = 1) -> HubKeys:
    """Keys of a harness, the same each time."""
    return HubKeys(worker_keys(1000 + number), keys.join_pair(bytes([number]) * keys.JOIN_PRIVATE))


def worker_keys(number: int) -> Pair:
    """A machine's WireGuard pair, the same each time."""
    return keys.pair(number.to_bytes(2, "big") * 16)


class Harness:
    """A hub with its registry, and clocks to set. `offer` is what it tells workers."""

    def __init__(self, registry: Registry, made: HubKeys, clock: Clock) -> None:
        self.registry = registry
        self.keys = made
        self.clock = clock
        self.tick = Clock(0.0)
        self.offer = Offer(harness="hub", endpoints=(Place("192.0.2.1", 51820),), control=4602)
        self.hub = Hub(made, registry, lambda: self.offer, clock, self.tick)
        self.seen: list[Get | Post] = []

    def token(self, uses: int = 1, *, lifetime: float = 3600.0, ephemeral: bool = False) -> str:
        return self.hub.issue((PLACE,), uses=uses, lifetime=lifetime, ephemeral=ephemeral)[0]

    def joining(self, text: str, number: int = 1, facts: Facts = FACTS, ahead: float = 0.0) -> Joining:
        """The attempt of machine `number`, whose clock is so many seconds ahead."""
        return Joining(token.decode(text), facts, worker_keys(number), lambda: self.clock() + ahead)

    def respond(self, request: Get | Post, peer: str = "198.51.100.7") -> Reply:
        self.seen.append(request)
        if isinstance(request, Get):
            return Reply(status=200, body=self.hub.key())
        return self.hub.join(request.body, peer)

    def carry(self, joining: Joining, peer: str = "198.51.100.7") -> Joined | Failed:
        """The attempt from here to its end, over a network on which all is well."""
        while True:
            step = joining.next()
            if isinstance(step, Joined | Failed):
                return step
            reply = self.respond(step, peer)
            joining.feed(reply.status, reply.body, reply.retry_after)

    def join(self, text: str, number: int = 1, facts: Facts = FACTS) -> Joined | Failed:
        return self.carry(self.joining(text, number, facts))

    def post(self, text: str, number: int = 1, ahead: float = 0.0) -> tuple[Joining, Post]:
        """An attempt that is about to send its question, and that question."""
        joining = self.joining(text, number, ahead=ahead)
        joining.feed(200, self.hub.key())
        step = joining.next()
        assert isinstance(step, Post)
        return joining, step


@contextmanager
def harness(folder: Path) -> Iterator[Harness]:
    clock, made = Clock(), hub_keys()
    with Registry(folder / FILE, made.wireguard.public, clock) as registry:
        yield Harness(registry, made, clock)
