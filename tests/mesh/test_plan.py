"""The plan from what an interface is to what it shall be."""

from ipaddress import IPv6Interface, IPv6Network

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.plan import (
    AddPeer,
    Change,
    Clash,
    Endpoint,
    Peer,
    PeerState,
    RemovePeer,
    SetAllowed,
    SetEndpoint,
    SetKeepalive,
    SetPreshared,
    Wanted,
    applied,
    check,
    plan,
)

keys = st.integers(0, 5).map(lambda number: bytes([number]) * 32)
networks = st.integers(0, 7).map(lambda number: IPv6Network(f"fd00::{number:x}/128"))
endpoints = st.none() | st.builds(Endpoint, st.sampled_from(["192.0.2.1", "2001:db8::1"]), st.integers(1, 3))


@st.composite
def wanted(draw: st.DrawFn) -> dict[bytes, Peer]:
    """Peers no two of which have an allowed IP in common."""
    owners = draw(st.dictionaries(networks, keys))
    return {
        key: Peer(
            key=key,
            allowed=tuple(network for network, owner in owners.items() if owner == key),
            preshared=draw(st.sampled_from([b"", b"p" * 32, b"q" * 32])),
            endpoint=draw(endpoints),
            keepalive=draw(st.sampled_from([0, 25])),
        )
        for key in draw(st.sets(keys))
    }


def as_is(peers: dict[bytes, Peer]) -> dict[bytes, PeerState]:
    return applied({}, map(AddPeer, peers.values()))


def is_as(have: PeerState, want: Peer) -> bool:
    same = (have.allowed, have.preshared, have.keepalive) == (
        frozenset(want.allowed),
        want.preshared,
        want.keepalive,
    )
    return same and want.endpoint in (None, have.endpoint)


@given(wanted(), wanted())
def test_the_plan_leads_from_any_peers_to_the_wanted(
    before: dict[bytes, Peer], after: dict[bytes, Peer]
) -> None:
    have = as_is(before)
    now = applied(have, plan(after, have))
    assert now.keys() == after.keys()
    assert all(is_as(now[key], peer) for key, peer in after.items())


@given(wanted(), wanted())
def test_after_the_plan_nothing_is_left_to_do(before: dict[bytes, Peer], after: dict[bytes, Peer]) -> None:
    have = as_is(before)
    assert plan(after, applied(have, plan(after, have))) == []


@given(wanted())
def test_the_plan_of_what_is_already_so_is_empty(peers: dict[bytes, Peer]) -> None:
    assert plan(peers, as_is(peers)) == []


@given(wanted(), wanted())
def test_no_peer_that_stays_is_removed_or_added(before: dict[bytes, Peer], after: dict[bytes, Peer]) -> None:
    changes = plan(after, as_is(before))
    removed = {change.key for change in changes if isinstance(change, RemovePeer)}
    added = {change.peer.key for change in changes if isinstance(change, AddPeer)}
    assert removed == before.keys() - after.keys()
    assert added == after.keys() - before.keys()


@given(wanted(), wanted())
def test_a_hub_sets_no_endpoint_and_no_keepalive(before: dict[bytes, Peer], after: dict[bytes, Peer]) -> None:
    def passive(peers: dict[bytes, Peer]) -> dict[bytes, Peer]:
        return {key: msgspec.structs.replace(peer, endpoint=None, keepalive=0) for key, peer in peers.items()}

    roamed = {
        key: msgspec.structs.replace(state, endpoint=Endpoint("192.0.2.9", 9))
        for key, state in as_is(passive(before)).items()
    }
    changes = plan(passive(after), roamed)
    assert not any(isinstance(change, SetEndpoint | SetKeepalive) for change in changes)
    assert all(
        change.peer.endpoint is None and change.peer.keepalive == 0
        for change in changes
        if isinstance(change, AddPeer)
    )


ONE, TWO = b"\x01" * 32, b"\x02" * 32
A, B = IPv6Network("fd00::a/128"), IPv6Network("fd00::b/128")


def test_two_peers_with_one_allowed_ip_are_refused_and_both_named() -> None:
    with pytest.raises(Clash, match=r"0101010101010101.*0202020202020202.*fd00::a/128"):
        check([Peer(key=ONE, allowed=(A,)), Peer(key=TWO, allowed=(B, A))])
    with pytest.raises(Clash):
        plan({ONE: Peer(key=ONE, allowed=(A,)), TWO: Peer(key=TWO, allowed=(A,))}, {})


def test_an_allowed_ip_that_is_named_twice_by_one_peer_is_no_clash() -> None:
    check([Peer(key=ONE, allowed=(A, A))])


def test_an_address_goes_from_one_peer_to_another() -> None:
    have = as_is({ONE: Peer(key=ONE, allowed=(A,)), TWO: Peer(key=TWO, allowed=(B,))})
    want = {ONE: Peer(key=ONE, allowed=(B,)), TWO: Peer(key=TWO, allowed=(A,))}
    now = applied(have, plan(want, have))
    assert now[ONE].allowed == {B}
    assert now[TWO].allowed == {A}


def test_an_address_more_is_added_without_touching_the_others() -> None:
    have = as_is({ONE: Peer(key=ONE, allowed=(A,))})
    assert plan({ONE: Peer(key=ONE, allowed=(A, B))}, have) == [SetAllowed(ONE, (B,), False)]
    assert plan({ONE: Peer(key=ONE, allowed=(B,))}, have) == [SetAllowed(ONE, (B,), True)]


def test_an_allowed_ip_that_is_given_to_another_is_taken_from_the_first() -> None:
    have = as_is({ONE: Peer(key=ONE, allowed=(A, B)), TWO: Peer(key=TWO, allowed=())})
    now = applied(have, [SetAllowed(TWO, (A,), False)])
    assert now[ONE].allowed == {B}
    assert now[TWO].allowed == {A}


@pytest.mark.parametrize(
    "change",
    [
        RemovePeer(ONE),
        SetAllowed(ONE, (A,), True),
        SetPreshared(ONE, b""),
        SetEndpoint(ONE, Endpoint("192.0.2.1", 1)),
        SetKeepalive(ONE, 25),
    ],
)
def test_a_change_of_a_peer_that_is_gone_does_nothing(change: Change) -> None:
    assert applied({}, [change]) == {}


def test_no_secret_is_shown() -> None:
    peer = Peer(key=ONE, allowed=(), preshared=b"very-secret")
    want = Wanted(private=b"very-secret", address=IPv6Interface("fd00::1/48"), peers={ONE: peer})
    shown = repr([want, AddPeer(peer), SetPreshared(ONE, b"very-secret"), as_is({ONE: peer})])
    assert "very-secret" not in shown
    assert shown.count("<hidden>") == 5
    assert "preshared=b''" in repr(Peer(key=ONE, allowed=()))
