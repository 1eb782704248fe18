from collections.abc import Sequence
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mesh import expiry
from mesh.expiry import Heard
from mesh.nodes import Facts, Node
from tests.mesh.joining import harness

NODE = Node(
    number=2,
    name="a",
    key=bytes(32),
    preshared=bytes(32),
    token=1,
    ephemeral=True,
    facts=Facts("a", "", "", ""),
    joined=0.0,
    quiet=1000.0,
    removed=None,
)


def test_a_node_is_quiet_without_a_handshake_and_without_bytes() -> None:
    assert not expiry.quiet(Heard(1000.0, 1000.0), 0.0, 1179.9)
    assert expiry.quiet(Heard(1000.0, 1000.0), 0.0, 1180.0)
    assert not expiry.quiet(Heard(1000.0, 1121.0), 0.0, 1180.0)
    assert expiry.quiet(Heard(1000.0, 1120.0), 0.0, 1180.0)


def test_what_nobody_could_hear_counts_against_nobody() -> None:
    assert not expiry.quiet(Heard(), 1000.0, 1179.9)
    assert expiry.quiet(Heard(), 1000.0, 1180.0)


def test_both_thresholds_are_the_callers() -> None:
    assert expiry.quiet(Heard(1000.0, 1000.0), 0.0, 1010.0, handshake=10.0, still=5.0)
    assert not expiry.quiet(Heard(1000.0, 1000.0), 0.0, 1010.0, handshake=10.0, still=11.0)
    lively = [msgspec.structs.replace(NODE, quiet=None)]
    assert expiry.noted(lively, {2: Heard(1000.0, 1000.0)}, 0.0, 1010.0, 10.0, 5.0) == {2: 1010.0}
    assert expiry.expired([NODE], (), 0.0, 1005.0, gone=5.0, settle=1.0) == [NODE]
    assert expiry.expired([NODE], (), 0.0, 1005.0, gone=6.0, settle=1.0) == []


def test_becoming_quiet_and_being_heard_again_are_noted_once() -> None:
    lively = [msgspec.structs.replace(NODE, quiet=None)]
    assert expiry.noted(lively, {2: Heard(900.0, 1100.0)}, 0.0, 1101.0) == {}
    assert expiry.noted(lively, {2: Heard(900.0, 900.0)}, 0.0, 1101.0) == {2: 1101.0}
    assert expiry.noted([NODE], {2: Heard(900.0, 900.0)}, 0.0, 1101.0) == {}
    assert expiry.noted([NODE], {2: Heard(900.0, 1001.0)}, 0.0, 1101.0) == {2: None}
    assert expiry.noted([NODE], {2: Heard(1001.0, 900.0)}, 0.0, 1101.0) == {2: None}


def test_a_node_that_became_quiet_while_the_clock_was_ahead_is_heard_once_it_is_right() -> None:
    ahead = msgspec.structs.replace(NODE, quiet=4600.0)
    assert expiry.noted([ahead], {2: Heard(1000.0, 1000.0)}, 0.0, 1010.0) == {2: None}
    right = msgspec.structs.replace(NODE, quiet=None)
    assert expiry.noted([right], {2: Heard(1000.0, 1000.0)}, 0.0, 1179.0) == {}
    assert expiry.noted([right], {2: Heard(1000.0, 1000.0)}, 0.0, 1180.0) == {2: 1180.0}


def test_a_machine_that_just_joined_has_time_to_connect() -> None:
    fresh = [msgspec.structs.replace(NODE, quiet=None, joined=5000.0)]
    assert expiry.noted(fresh, {}, 0.0, 5179.0) == {}
    assert expiry.noted(fresh, {}, 0.0, 5180.0) == {2: 5180.0}


def test_an_ephemeral_node_goes_three_minutes_after_it_went_quiet() -> None:
    assert expiry.expired([NODE], (), 0.0, 1179.9) == []
    assert expiry.expired([NODE], (), 0.0, 1180.0) == [NODE]


def test_who_stays() -> None:
    replace = msgspec.structs.replace
    stays = [replace(NODE, ephemeral=False), replace(NODE, quiet=None), replace(NODE, removed=1.0)]
    assert expiry.expired(stays, (), 0.0, 1e9) == []
    assert expiry.expired([NODE], {"a"}, 0.0, 1e9) == []
    assert expiry.expired([NODE], {"b"}, 0.0, 1e9) == [NODE]


def test_nobody_goes_before_a_harness_that_was_away_could_hear_them() -> None:
    assert expiry.expired([NODE], (), 50_000.0, 50_059.0) == []
    assert expiry.expired([NODE], (), 50_000.0, 50_060.0) == [NODE]
    heard = expiry.noted([NODE], {2: Heard(50_030.0, 50_030.0)}, 50_000.0, 50_040.0)
    assert heard == {2: None}


def test_a_node_that_was_quiet_before_a_restart_goes_when_it_would_have(tmp_path: Path) -> None:
    with harness(tmp_path) as one:
        one.join(one.token(ephemeral=True))
        start = one.clock()
        one.clock.at = start + 180
        one.registry.note(expiry.noted(one.registry.nodes(), {}, start, one.clock()))
    with harness(tmp_path) as one:
        since = start + 260  # when this one begins to listen
        nodes = one.registry.nodes()
        assert expiry.noted(nodes, {}, since, start + 300) == {}
        assert expiry.expired(nodes, (), since, start + 359) == []
        assert [node.name for node in expiry.expired(nodes, (), since, start + 360)] == ["gpu1"]


@given(
    st.lists(st.tuples(st.floats(0, 2000), st.floats(0, 2000)), max_size=20),
    st.sampled_from([(), ("a",)]),
)
def test_no_history_makes_a_node_go_that_was_heard_lately(
    history: list[tuple[float, float]], awaited: Sequence[str]
) -> None:
    node, now = msgspec.structs.replace(NODE, quiet=None), 0.0
    handshake = moved = 0.0
    for step, back in history:
        now += step
        moved = max(moved, now - back)
        handshake = max(handshake, now - back)
        changes = expiry.noted([node], {2: Heard(handshake, moved)}, 0.0, now)
        node = msgspec.structs.replace(node, quiet=changes.get(2, node.quiet))
        gone = expiry.expired([node], awaited, 0.0, now)
        assert not gone or now - max(handshake, moved) >= expiry.GONE
