from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import assert_never

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh import path as paths
from mesh.path import (
    TABLE,
    Action,
    Event,
    Measure,
    Path,
    Probe,
    Resolve,
    Seen,
    SetEndpoint,
    SetMtu,
    StartRelay,
    State,
    StopRelay,
    decide,
)
from mesh.plan import Endpoint

A, B, C = (Endpoint(f"192.0.2.{number}", 51820) for number in (1, 2, 3))
RELAY = Endpoint("127.0.0.1", 40000)
INITIATION, RESPONSE, KEEPALIVE, DATA = 148, 92, 32, 128  # bytes


class World:
    """A tunnel, second by second: WireGuard as far as its handshakes, keepalives and endpoints go, and networks.

    `direct`: the endpoints that answer; `relay`: whether the relay does. `busy`: a packet and its answer each second.
    """

    def __init__(
        self,
        addresses: Sequence[Endpoint] = (A, B),
        direct: Sequence[Endpoint] = (),
        relay: bool = True,
        busy: bool = False,
        relays: bool = True,
    ) -> None:
        self.addresses = tuple(addresses)
        self.direct = set(direct)
        self.relay = relay
        self.busy = busy
        self.now = 1000.0
        self.path = Path(relays=relays)
        self.endpoint: Endpoint | None = None
        self.handshake: float | None = None
        self.rx = self.tx = 0
        self.started: Endpoint | None = None
        self.down: float | None = None
        self.probing: tuple[Endpoint, ...] = ()
        self.answered: Endpoint | None = None
        self.fits: bool | None = None
        self.suspect = False
        self.doubt = False
        self.counted = True  # whether WireGuard's count of what it sent grows where nothing can be sent
        self.lost = 0  # packets of data that reached nobody
        self.log: list[tuple[float, Action]] = []
        self._begun = -1e9  # the last initiation
        self._vain: float | None = None  # since when data has no answer
        self._kept = 0.0

    def see(self) -> Seen:
        answered, self.answered = self.answered, None
        return Seen(
            now=self.now,
            addresses=self.addresses,
            endpoint=self.endpoint,
            handshake=self.handshake,
            rx=self.rx,
            tx=self.tx,
            relay=self.started,
            down=self.down,
            probing=bool(self.probing),
            answered=answered,
            fits=self.fits,
            suspect=self.suspect,
            doubt=self.doubt,
        )

    def step(self) -> list[Action]:
        """One second; returns what was decided in it."""
        self.path, did = decide(self.path, self.see())
        for action in did:
            self.log.append((self.now, action))
            self._do(action)
        self.now += 1.0
        self._traffic()
        return did

    def run(self, seconds: int) -> list[Action]:
        return [action for _ in range(seconds) for action in self.step()]

    def until(self, wanted: Callable[["World"], bool], most: int) -> int:
        """Seconds until that is so."""
        for second in range(most + 1):
            if wanted(self):
                return second
            self.step()
        raise AssertionError(f"not within {most} s: {self.path}")

    def _do(self, action: Action) -> None:
        match action:
            case SetEndpoint(endpoint):
                self.endpoint = endpoint
                self._send(KEEPALIVE)
            case StartRelay():
                self.started = RELAY
            case StopRelay():
                self.started, self.down, self.probing = None, None, ()
            case Probe(endpoints):
                self.probing = endpoints
            case Measure() | SetMtu() | Resolve():
                pass
            case _:
                assert_never(action)

    def _traffic(self) -> None:
        if self.started is not None and not self.relay:
            self.down = self.down or self.now
        else:
            self.down = None
        dead = self.handshake is None or self.now - self.handshake > 180
        vain = self._vain is not None and self.now - self._vain >= 15
        old = self.handshake is None or self.now - self.handshake >= 120
        keep = self.now - self._kept >= 25
        if (dead or vain or (old and (self.busy or keep))) and self.now - self._begun >= 5:
            self._initiate()
        if not dead and self.busy:
            answered = self._send(DATA)
            self.rx += DATA * answered
            self.lost += not answered
            self._vain = None if answered else self._vain or self.now
        elif not dead and keep:
            self._send(KEEPALIVE)

    def _send(self, size: int) -> bool:
        if self.counted or self._reaches(self.endpoint):
            self.tx += size
        self._kept = self.now
        return self._reaches(self.endpoint)

    def _reaches(self, endpoint: Endpoint | None) -> bool:
        return endpoint in self.direct or (endpoint == RELAY and self.relay and self.started is not None)

    def _initiate(self) -> None:
        self._begun = self.now
        reached = self._reaches(self.endpoint)
        if self.counted or reached:
            self.tx += INITIATION
        if self.endpoint == RELAY and self.probing:
            self.answered = next((each for each in self.probing if each in self.direct), None)
            reached = reached or self.answered is not None
            self.probing = ()
        if reached:
            self.handshake, self._vain = self.now, None
            self.rx += RESPONSE


def endpoints(actions: Sequence[Action]) -> list[Endpoint]:
    return [action.endpoint for action in actions if isinstance(action, SetEndpoint)]


def _when_pointed(world: World) -> list[float]:
    return [now for now, action in world.log if isinstance(action, SetEndpoint)]


def state(wanted: State) -> Callable[[World], bool]:
    return lambda world: world.path.state is wanted


def proven(world: World) -> bool:
    return world.path.proven


def test_the_first_endpoint_is_taken_when_it_answers() -> None:
    world = World(direct=[A, B])
    did = world.run(600)
    assert did == [SetEndpoint(A), SetMtu(1420), Measure()]
    assert world.path.state is State.DIRECT


def test_endpoints_are_tried_in_order_five_seconds_each_and_then_the_relay() -> None:
    world = World([A, B, C])
    world.until(state(State.RELAYED), 30)
    world.step()
    when = [(now - 1000, action) for now, action in world.log if not isinstance(action, SetMtu)]
    assert [action for _, action in when] == [
        SetEndpoint(A),
        SetEndpoint(B),
        SetEndpoint(C),
        StartRelay(),
        SetEndpoint(RELAY),
    ]
    assert all(5 <= later - sooner <= 8 for (sooner, _), (later, _) in pairwise(when[:4]))
    world.until(proven, 10)


def test_an_endpoint_to_which_nothing_was_sent_yet_has_a_little_longer() -> None:
    path, _ = decide(Path(), Seen(now=0, addresses=(A, B)))
    path, did = decide(path, Seen(now=5, addresses=(A, B), endpoint=A))
    assert did == []
    path, did = decide(path, Seen(now=7, addresses=(A, B), endpoint=A, tx=INITIATION))
    assert did == []
    path, did = decide(path, Seen(now=8.5, addresses=(A, B), endpoint=A, tx=INITIATION))
    assert did == [SetEndpoint(B)]


def test_without_any_endpoint_it_is_the_relay_at_once() -> None:
    world = World([])
    assert world.step() == [StartRelay(), SetMtu(1280)]
    world.until(proven, 10)
    assert set(map(type, world.run(600))) == {Resolve}


def test_where_there_is_no_relay_the_first_endpoint_follows_the_last() -> None:
    world = World([A, B], relays=False)
    did = world.run(120)
    assert endpoints(did)[:5] == [A, B, A, B, A]
    assert {type(action) for action in did} == {SetEndpoint, SetMtu}
    assert all(5 <= later - sooner <= 8 for sooner, later in pairwise(_when_pointed(world)))
    world.direct = {B}
    world.until(state(State.DIRECT), 20)
    assert (world.endpoint, world.path.mtu) == (B, 1420)
    assert world.run(600) == []


@pytest.mark.parametrize("busy", [True, False])
def test_where_there_is_no_relay_a_direct_way_that_dies_is_taken_again_when_it_lives(busy: bool) -> None:
    world = World([A], direct=[A], busy=busy, relays=False)
    world.run(100)
    world.direct = set()
    world.until(state(State.TRYING), 220)
    world.run(1000)
    assert world.path.state is State.TRYING
    world.direct = {A}
    world.until(state(State.DIRECT), 20)
    assert not [action for action in world.run(600) if not isinstance(action, Measure)]


def test_an_answer_that_comes_late_without_a_relay_is_taken_whichever_endpoint_is_tried_by_then() -> None:
    path, did = decide(Path(relays=False), Seen(now=0, addresses=(A,)))
    for now in range(1, 100):
        path, did = decide(path, Seen(now=now, addresses=(A,), endpoint=A, tx=INITIATION * (1 + now // 5)))
        assert path.state is State.TRYING
    answered = Seen(now=100, addresses=(A,), endpoint=A, tx=21 * INITIATION, rx=RESPONSE, handshake=99.9)
    path, did = decide(path, answered)
    assert path.state is State.DIRECT
    assert did == [Measure()]


def test_without_any_endpoint_nor_a_relay_names_are_resolved_every_quarter_of_a_minute() -> None:
    world = World([], relays=False)
    assert world.run(100) == [SetMtu(1420), *[Resolve()] * 6]
    world.addresses, world.direct = (C,), {C}
    world.until(state(State.DIRECT), 8)


@pytest.mark.parametrize("busy", [True, False])
def test_on_the_relay_a_direct_way_is_tried_with_each_handshake_and_nothing_is_lost(busy: bool) -> None:
    world = World([A, B])
    world.until(proven, 60)
    world.busy = busy
    did = world.run(1800)
    assert {type(action) for action in did} == {Probe}
    assert did.count(Probe((A, B))) >= 12
    assert world.lost == 0
    assert world.path.state is State.RELAYED


@pytest.mark.parametrize("busy", [True, False])
def test_a_direct_way_that_comes_back_is_taken_within_three_minutes_and_nothing_is_lost(busy: bool) -> None:
    world = World([A, B])
    world.until(proven, 60)
    world.busy = busy
    world.run(300)
    world.direct = {B}
    world.log.clear()
    world.until(state(State.DIRECT), 200)
    assert [action for _, action in world.log if not isinstance(action, Probe)] == [
        SetEndpoint(B),
        StopRelay(),
        Measure(),
        SetMtu(1420),
    ]
    assert world.run(600) == []
    assert world.lost == 0


def test_a_direct_way_in_use_that_dies_gives_way_to_the_relay_within_a_minute() -> None:
    world = World([A, B], direct=[A], busy=True)
    world.run(100)
    world.direct = set()
    assert world.until(lambda here: state(State.RELAYED)(here) and proven(here), 60) >= 20
    assert world.path.mtu == 1280


def test_an_idle_direct_way_that_dies_gives_way_with_the_next_handshake() -> None:
    world = World([A], direct=[A])
    world.run(100)
    world.direct = set()
    world.until(lambda here: state(State.RELAYED)(here) and proven(here), 220)


@pytest.mark.parametrize("busy", [True, False])
def test_a_direct_way_on_which_nothing_can_be_sent_gives_way_after_three_minutes(busy: bool) -> None:
    world = World([A], direct=[A], busy=busy)
    world.run(100)
    world.direct, world.counted = set(), False
    world.until(lambda here: state(State.RELAYED)(here) and proven(here), 220)


@pytest.mark.parametrize("way", [State.DIRECT, State.RELAYED])
def test_a_way_of_which_its_user_says_that_it_is_silent_is_left_at_once(way: State) -> None:
    world = World([A], direct=[A] if way is State.DIRECT else [])
    world.until(proven, 60)
    world.run(30)
    world.suspect = True
    world.step()
    assert world.path.state is State.TRYING


def test_a_suspicion_is_not_believed_while_packets_come() -> None:
    world = World([A], direct=[A], busy=True)
    world.run(30)
    world.suspect = True
    assert world.run(300) == []


def test_a_way_on_which_only_the_hubs_own_tries_arrive_is_lost() -> None:
    world = World([A], direct=[A], busy=True)
    world.run(100)
    world.direct = set()
    for second in range(60):
        world.step()
        world.rx += INITIATION * (second % 5 == 0 and world.endpoint == A)
    assert world.path.state is State.RELAYED


def test_an_idle_direct_way_that_lives_is_left_alone_for_a_day() -> None:
    world = World([A, B], direct=[A])
    world.run(60)
    assert world.run(24 * 3600) == []


@pytest.mark.parametrize(("busy", "most"), [(True, 60), (False, 240)])  # idle, only handshakes are answered
def test_a_relay_that_is_down_gives_way_to_the_endpoints_and_is_tried_again(busy: bool, most: int) -> None:
    world = World([A, B], busy=busy)
    world.until(proven, 60)
    world.relay = False
    world.until(state(State.TRYING), 30)
    world.run(300)
    world.relay = True
    world.until(lambda here: state(State.RELAYED)(here) and proven(here), 60)
    world.relay = False
    world.direct = {B}
    world.until(state(State.DIRECT), most)


def test_where_nothing_works_all_is_tried_over_and_over_and_names_are_resolved_every_three_minutes() -> None:
    world = World([A, B], relay=False)
    did = world.run(1800)
    tried = endpoints(did)
    assert tried[:6] == [A, B, RELAY, A, B, RELAY]
    assert 100 <= len(tried) <= 360
    assert did.count(Resolve()) == 9
    assert did.count(StartRelay()) == 1


def test_names_are_resolved_again_only_when_no_handshake_came_for_three_minutes() -> None:
    world = World([A], direct=[A])
    assert Resolve() not in world.run(1000)
    world.direct, world.relay = set(), False
    world.log.clear()
    world.until(lambda here: Resolve() in [action for _, action in here.log], 400)
    assert world.handshake is not None
    assert world.now - world.handshake >= 180
    world.addresses, world.direct = (C,), {C}
    world.until(state(State.DIRECT), 60)
    assert world.endpoint == C


def test_a_late_packet_by_the_relay_does_not_lead_back_there() -> None:
    world = World([A])
    world.until(proven, 60)
    world.direct = {A}
    world.until(state(State.DIRECT), 200)
    world.endpoint = RELAY  # WireGuard followed it
    assert world.step() == [SetEndpoint(A)]
    assert world.run(300) == []


def test_a_hub_that_answers_from_another_address_is_followed() -> None:
    world = World([A], direct=[A, C])
    world.run(60)
    world.endpoint = C
    assert world.run(600) == []
    assert world.path.endpoint == C


def test_a_late_direct_packet_does_not_lead_away_from_the_relay() -> None:
    world = World([A])
    world.until(proven, 60)
    world.endpoint = A
    assert world.step() == [SetEndpoint(RELAY)]


def test_an_answer_by_the_relay_while_endpoints_are_tried_is_taken() -> None:
    world = World([A, B, C], busy=True)
    world.until(proven, 60)
    world.relay = False
    world.until(state(State.TRYING), 60)
    world.relay = True
    world.endpoint = RELAY
    world.until(lambda here: state(State.RELAYED)(here) and proven(here), 8)


def test_a_way_that_takes_no_full_packet_has_the_small_mtu() -> None:
    world = World([A], direct=[A])
    world.run(10)
    world.fits = False
    assert world.run(10) == [SetMtu(1280)]
    world.fits = True
    assert world.run(10) == [SetMtu(1420)]


def test_a_doubt_has_a_direct_way_of_the_full_mtu_measured_again_and_no_other() -> None:
    world = World([A], direct=[A])
    world.doubt = True
    assert world.run(5).count(Measure()) == 4, "not beside the one that the way begins with"
    world.fits = False
    assert world.run(5) == [SetMtu(1280)], "a larger one is not tried while it is in use"
    world.direct.clear()
    world.until(state(State.RELAYED), 200)
    assert Measure() not in world.run(20)


def test_a_full_mtu_that_is_small_stays_so_on_the_relay() -> None:
    world = World([A])
    world.path = Path(full=1200)
    assert [action for action in world.run(100) if isinstance(action, SetMtu)] == [SetMtu(1200)]


def test_direct_ways_that_never_last_are_tried_less_and_less() -> None:
    world = World([A], busy=True)
    waits = []
    for _ in range(7):
        world.direct = set()
        world.until(lambda here: state(State.RELAYED)(here) and proven(here), 120)
        world.direct = {A}
        waits.append(world.until(state(State.DIRECT), 1200))
    assert waits == sorted(waits)
    assert waits[-1] >= 900
    world.run(400)
    world.direct = set()
    world.until(lambda here: state(State.RELAYED)(here) and proven(here), 120)
    world.direct = {A}
    assert world.until(state(State.DIRECT), 200) < 200


def test_an_interface_that_is_made_anew_counts_from_zero() -> None:
    world = World([A], direct=[A], busy=True)
    world.run(100)
    world.rx = world.tx = 0
    assert world.run(100) == []


def test_every_state_has_a_way_in_and_a_way_out() -> None:
    assert {start for start, _ in TABLE} == set(State) == set(TABLE.values())
    assert {event for _, event in TABLE} == set(Event)


CHANGES = st.lists(
    st.tuples(
        st.integers(1, 400), st.sets(st.sampled_from([A, B, C])), st.booleans(), st.booleans(), st.booleans()
    ),
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@given(CHANGES, st.lists(st.sampled_from([A, B, C]), max_size=3, unique=True))
def test_whatever_networks_do_it_keeps_its_rules_and_finds_what_works(
    changes: list[tuple[int, set[Endpoint], bool, bool, bool]], addresses: list[Endpoint]
) -> None:
    world = World(addresses)
    for seconds, direct, relay, busy, roam in changes:
        world.direct, world.relay, world.busy = direct, relay, busy
        if roam and world.endpoint is not None:
            world.endpoint = world.started or world.endpoint
        for _ in range(seconds):
            keeps_its_rules(world)
    world.direct, world.relay = set(), True
    for _ in range(300):
        keeps_its_rules(world)
    assert state(State.RELAYED)(world)
    assert proven(world)
    world.direct = set(addresses)
    for _ in range(1300):
        keeps_its_rules(world)
    assert world.path.state is (State.DIRECT if addresses else State.RELAYED)
    quiet = (Measure,) if addresses else (Measure, Resolve)
    assert not [action for action in world.run(600) if not isinstance(action, quiet)]


@settings(deadline=None, max_examples=60)
@given(CHANGES, st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=3, unique=True))
def test_whatever_networks_do_without_a_relay_it_finds_what_works(
    changes: list[tuple[int, set[Endpoint], bool, bool, bool]], addresses: list[Endpoint]
) -> None:
    world = World(addresses, relays=False)
    for seconds, direct, counted, busy, roam in changes:
        world.direct, world.counted, world.busy = direct, counted, busy
        if roam and world.endpoint is not None:
            world.endpoint = addresses[-1]
        for _ in range(seconds):
            keeps_its_rules(world)
            assert world.path.state is not State.RELAYED
    for works in addresses:  # each is found, also when it is the only one
        world.direct, world.busy, world.counted = {works}, True, True
        world.until(lambda here: state(State.DIRECT)(here) and here.endpoint in here.direct, 100)
    world.run(200)  # the last silence may still make it doubt
    assert not [action for action in world.run(600) if not isinstance(action, Measure)]


def keeps_its_rules(world: World) -> None:
    """One step, after which what always holds does."""
    before, lost = world.path, world.lost
    did = world.step()
    path = world.path
    assert len(endpoints(did)) <= 2
    assert all(each in world.addresses or each == RELAY for each in endpoints(did))
    assert (world.started is not None) == path.relayed
    if path.state is State.RELAYED:
        assert path.mtu == 1280
        assert path.relayed
    if path.state is State.DIRECT:
        assert not path.relayed
    if any(isinstance(action, Probe) for action in did):
        assert path.state is State.RELAYED
        assert path.proven
    if before.state is path.state is State.RELAYED and before.proven and world.relay:
        assert world.endpoint == RELAY
        assert world.lost == lost
    assert paths.PROBE <= path.interval <= paths.MOST_PROBE
