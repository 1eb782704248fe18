from hypothesis import given
from hypothesis import strategies as st

from daemon.protocol.records import error_draft
from daemon.view import Fold
from tests.tui.log.fakes import Book, long, tour
from tui.log.ledger import Ledger


def noted(book: Book) -> Ledger:
    ledger = Ledger(len(book.records))
    for record in book.records:
        ledger.note(record.header)
    return ledger


def test_what_is_known_of_a_record_is_what_the_fold_makes_of_it() -> None:
    book = tour()
    ledger, fold = noted(book), Fold()
    for record in book.records:
        found = fold.note(record.header)
        assert (ledger.kind(record.n), ledger.about(record.n)) == (record.kind, found.about)
    assert [ledger.state(n) for n in (7, 10, 13, 17, 19)] == ["nonzero", "done", "done", "void", "running"]
    assert (ledger.call("c9"), ledger.call("c1")) == (19, 0)


def test_a_step_is_whole_with_the_results_of_its_calls_and_a_block_without_a_step_is_alone() -> None:
    book = Book()
    for record in tour().records[:6]:
        book.add(record)
    book.call("run", "c1", "s1")
    book.call("run", "c2", "s1")
    book.step("s1")
    book.result("c2", "two")
    book.say("message", "meanwhile", via="tui")
    book.result("c1", "one")
    book.say("text", "after it", step="s2")
    ledger = noted(book)
    assert [ledger.whole(n) for n in range(1, 14)] == [1, 2, 3, 4, 12, 12, 12, 12, 12, 12, 11, 12, 13]
    assert noted(tour()).whole(17) == 17


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 10))
def test_a_preview_changes_nothing_of_what_is_known_in_the_end(
    first: int, during: int, appended: int
) -> None:
    book = long(60)
    last = len(book.records) - appended
    ledger = Ledger(last)
    for record in book.records[min(first, last) : last]:
        ledger.preview(record.header)
    for record in book.records[: min(during, last)]:
        ledger.note(record.header)
    for record in book.records[last:]:
        ledger.append(record.header)
    for record in book.records[min(during, last) : last]:
        ledger.note(record.header)
    ledger.catch_up()
    whole = noted(book)
    assert ledger.noted == whole.noted == len(book.records)
    for n in range(1, len(book.records) + 1):
        assert (ledger.kind(n), ledger.state(n), ledger.about(n)) == (
            whole.kind(n),
            whole.state(n),
            whole.about(n),
        )


def test_headers_out_of_turn_are_passed_over() -> None:
    book = long(10)
    ledger = Ledger(10)
    ledger.note(book.records[4].header)
    ledger.note(book.records[0].header)
    ledger.note(book.records[0].header)
    assert (ledger.noted, ledger.kind(5)) == (1, "")


def test_the_next_of_a_kind_is_found_in_both_directions() -> None:
    book = tour()
    book.add(error_draft("stopped", "stopped"))
    ledger = noted(book)
    assert [ledger.find("error", n) for n in (0, 17, 18, 20)] == [18, 18, 20, 0]
    assert [ledger.find("error", n, -1) for n in (20, 18, 1)] == [18, 0, 0]
    assert ledger.find("result", 0, state="nonzero") == 9
    assert ledger.find("result", 9, state="nonzero") == 0


def test_a_kind_of_a_later_release_is_another() -> None:
    book = Book()
    book.say("plan", "x")  # type: ignore[arg-type]
    assert noted(book).kind(1) == "other"
