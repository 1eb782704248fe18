"""Who gets a place before the door, and who gives way."""

from hypothesis import given
from hypothesis import strategies as st

from daemon.anteroom import Anteroom


def test_an_address_has_its_share_and_its_own_oldest_gives_way() -> None:
    room: Anteroom[int] = Anteroom(all=100, each=3)
    assert [room.enter("a", number) for number in range(5)] == [None, None, None, 0, 1]
    room.leave("a", 3)
    assert room.enter("a", 5) is None
    assert room.enter("b", 6) is None


def test_in_a_full_room_whoever_has_most_gives_way_to_who_has_less() -> None:
    room: Anteroom[str] = Anteroom(all=4, each=3)
    for one in ("a1", "a2", "a3", "b1"):
        assert room.enter(one[0], one) is None
    assert room.enter("c", "c1") == "a1"
    assert room.enter("d", "d1") == "a2"
    assert room.enter("e", "e1") == "e1", "each has one: who comes has no better right"
    room.leave("e", "e1")
    assert room.enter("b", "b2") == "b2"
    room.leave("c", "c1")
    assert room.enter("e", "e2") is None


def test_connections_of_this_machine_have_no_share_but_the_whole() -> None:
    room: Anteroom[int] = Anteroom(all=3, each=1)
    assert [room.enter("", number) for number in range(4)] == [None, None, None, 3]
    assert room.enter("a", 4) == 0


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=200))
def test_no_limit_is_ever_passed_and_nobody_is_counted_twice(steps: list[tuple[str, bool]]) -> None:
    room: Anteroom[tuple[str, int]] = Anteroom(all=6, each=3)
    there: list[tuple[str, int]] = []
    for number, (address, enters) in enumerate(steps):
        if enters:
            one = (address, number)
            goes = room.enter(address, one)
            there = [each for each in [*there, one] if each != goes]
        elif own := [each for each in there if each[0] == address]:
            room.leave(address, own[-1])
            there.remove(own[-1])
        assert len(there) <= 6
        assert all(sum(each[0] == address for each in there) <= 3 for address in "abcdefgh")
