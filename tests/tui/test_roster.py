from daemon.protocol import api
from daemon.protocol.records import Config, WorkerRef
from tests.tui.daemonfake import info, worker
from tui.roster import Roster

FAR = Config("rehearsal/echo", workers=(WorkerRef("gpu"),))


def times(n: int) -> str:
    return f"2026-11-30T12:00:{n:02}.000Z"


def made(*infos: api.Info, seen: dict[str, str] | None = None, began: str = "") -> Roster:
    roster = Roster(seen, began)
    roster.state(api.State(infos, (worker(),)))
    return roster


def ids(found: list[api.Info]) -> list[str]:
    return [info.id for info in found]


def test_sessions_stand_newest_first_and_by_each_other_order() -> None:
    roster = made(
        info("a", title="Zebra", updated=times(1), prompt=5, created=times(3)),
        info("b", title="ant", updated=times(3), prompt=50, created=times(1)),
        info("c", "failed", title="Mole", updated=times(2), prompt=500, created=times(2)),
        began=times(2),
    )
    assert ids(roster.rows()) == ["b", "c", "a"]
    assert ids(roster.rows("title")) == ["b", "c", "a"]
    assert ids(roster.rows("context")) == ["c", "b", "a"]
    assert ids(roster.rows("created")) == ["a", "c", "b"]
    assert ids(roster.rows("attention")) == ["b", "c", "a"]  # c failed before anybody began to look


def test_a_filter_takes_words_statuses_and_what_wants_a_person() -> None:
    roster = made(
        info("aa", title="Mend the fence", updated=times(1)),
        info("bb", "stepping", title="Paint the fence", updated=times(2)),
        info("cc", "failed", title="Paint the gate", updated=times(3), config=FAR),
    )
    assert ids(roster.rows(filter="fence")) == ["bb", "aa"]
    assert ids(roster.rows(filter="PAINT stepping")) == ["bb"]
    assert ids(roster.rows(filter="failed stepping")) == ["cc", "bb"]
    assert ids(roster.rows(filter="gpu")) == ["cc"]
    assert ids(roster.rows(filter="a")) == ["cc", "bb", "aa"]
    assert ids(roster.rows(filter="aa")) == ["aa"]
    assert ids(roster.rows(filter="!")) == ["cc", "aa"]
    assert ids(roster.rows(filter="nothing of it")) == []


def test_an_id_is_found_by_its_beginning_alone() -> None:
    roster = made(info("12ab", title="x"), info("ab12", title="x"))
    assert ids(roster.rows(filter="12")) == ["12ab"]
    assert ids(roster.rows(filter="ab12")) == ["ab12"]


def test_a_status_is_found_by_its_beginning_too_and_one_that_waits_by_both_of_its_words() -> None:
    roster = made(
        info("aa", "stepping", title="Paint the fence", updated=times(1)),
        info("bb", "stepping", title="A step back", updated=times(2), config=FAR),
        info("cc", "failed", title="Step on", updated=times(3)),
    )
    assert ids(roster.rows(filter="step")) == ["cc", "bb", "aa"]
    assert ids(roster.rows(filter="stepping")) == ["bb", "aa"]
    assert ids(roster.rows(filter="waiting")) == ids(roster.rows(filter="wait")) == ["bb"]
    assert ids(roster.rows(filter="fa")) == []
    assert ids(roster.rows(filter="fai")) == ["cc"]


def test_an_older_word_of_a_session_does_not_take_the_place_of_a_newer_one() -> None:
    roster = made(info("a", n=9))
    assert not roster.take(info("a", n=8, title="old"))
    assert not roster.take(info("a", n=9))
    assert roster.take(info("a", n=9, title="new"))


def test_what_nothing_has_named_since_the_last_state_is_forgotten_and_known_as_it_was() -> None:
    roster = made(info("a"), info("b"), info("c"), info("d"))
    roster.state(api.State((info("a"),), (worker(),)))
    roster.take(info("b"))  # on a page behind it
    roster.take(info("e"))  # made meanwhile
    assert roster.forget() == {"c", "d"}
    assert ids(roster.rows()) == ["e", "b", "a"]
    assert roster.info("c") == info("c")
    assert roster.info("z") is None
    assert roster.forget() == set()
    assert roster.take(info("c"))
    assert roster.forget() == set()


def test_a_state_goes_before_what_was_known_where_a_file_was_put_back() -> None:
    roster = made(info("a", n=9))
    assert roster.state(api.State((info("a", n=8, title="old"),), ())) == {"a"}
    assert roster.infos["a"].n == 8


def test_a_session_waits_where_it_is_at_work_and_none_of_its_workers_is_here() -> None:
    roster = made(
        info("a", "stepping", config=FAR),
        info("b", "closed", config=FAR),
        info("c", "stepping", config=Config("m", workers=(WorkerRef("local"), WorkerRef("gpu")))),
    )
    assert roster.waits(roster.infos["a"]) == ("gpu",)
    assert roster.attention(roster.infos["a"]) == "waiting"
    assert roster.waits(roster.infos["b"]) == ()
    assert roster.waits(roster.infos["c"]) == ()
    assert roster.absent(roster.infos["c"]) == ("gpu",)
    roster.set_workers([worker("gpu", "gone")])
    assert roster.waits(roster.infos["a"]) == ("gpu",)
    roster.set_workers([worker("gpu")])
    assert roster.waits(roster.infos["a"]) == ()


def test_what_closed_or_failed_wants_a_person_until_it_was_seen() -> None:
    roster = made(
        info("a", updated=times(5)), info("b", "failed", prompt=0, updated=times(6)), began=times(4)
    )
    assert ids(roster.urgent()) == ["b", "a"]
    assert roster.look("a")
    assert not roster.look("a")
    assert ids(roster.urgent()) == ["b"]
    roster.take(info("a", n=8, updated=times(7)))
    assert ids(roster.urgent()) == ["b", "a"]


def test_what_was_there_before_the_first_look_and_what_was_only_made_wants_nobody() -> None:
    roster = made(info("a", updated=times(4)), info("b", prompt=0, updated=times(9)), began=times(4))
    assert roster.urgent() == []
    assert roster.next_urgent() == ""


def test_the_next_that_wants_a_person_goes_round() -> None:
    roster = made(
        info("a", updated=times(1)), info("b", "failed", updated=times(2)), info("c", updated=times(3))
    )
    assert roster.next_urgent() == "b"
    assert roster.next_urgent("b") == "c"
    assert roster.next_urgent("c") == "a"
    assert roster.next_urgent("a") == "b"
    assert roster.next_urgent("gone") == "b"


def test_the_sessions_beside_one_go_round() -> None:
    roster = made(info("a", updated=times(3)), info("b", updated=times(2)), info("c", updated=times(1)))
    assert [roster.beside("a", 1), roster.beside("a", -1), roster.beside("c", 1), roster.beside("", 1)] == [
        "b",
        "c",
        "a",
        "a",
    ]
    assert Roster().beside("a", 1) == ""
