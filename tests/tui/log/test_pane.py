from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.protocol.api import Delta
from tests.tui.log.fakes import Book, long, tour
from tui.log.bodies import BODIES, BODY_BYTES, SPARE
from tui.log.drawn import DRAWN
from tui.log.pane import Pane, Range


def opened(book: Book, columns: int = 60, lines: int = 10, bodies: bool = True) -> Pane:
    """A pane with all of a book, or only its headers."""
    pane = Pane(len(book.records))
    pane.resize(columns, lines)
    pane.note(record.header for record in book.records)
    if bodies:
        pane.keep(book.records)
    pane.noted()
    pane.layout()
    return pane


def seen(pane: Pane) -> list[str]:
    """What stands on the screen, without the numbers at the right."""
    return [pane.rows(n)[line].text.split("  #")[0].rstrip() for n, line in pane.view]


def more(pane: Pane, words: int) -> None:
    book = long(pane.last)
    pane.append(book.say("text", "words " * words, step="s"))


STEPS: dict[str, Callable[[Pane, int], None]] = {
    "scroll": lambda pane, by: pane.scroll(by),
    "jump": lambda pane, by: pane.jump(abs(by) * 7),
    "select": lambda pane, by: pane.select(1 if by > 0 else -1),
    "reveal": lambda pane, by: pane.reveal(abs(by) % (pane.last + 1)),
    "fold": lambda pane, by: pane.fold(max(1, abs(by) % pane.last), by > 0),
    "kind": lambda pane, by: pane.fold_kind("text", by > 0),
    "end": lambda pane, by: pane.to_end(),
    "top": lambda pane, by: pane.to_top(),
    "narrow": lambda pane, by: pane.resize(20 + abs(by), 10),
    "low": lambda pane, by: pane.resize(60, 1 + abs(by)),
    "append": lambda pane, by: more(pane, abs(by)),
    "delta": lambda pane, by: pane.delta(Delta("text", f"{by} words\n\n", 0)),
    "restart": lambda pane, by: pane.live.restart(),
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(-30, 30)), max_size=25), st.booleans())
def test_whatever_is_done_the_screen_shows_lines_that_follow_one_another_and_is_full(
    steps: list[tuple[str, int]], bodies: bool
) -> None:
    pane = opened(tour(), bodies=bodies)
    for name, by in steps:
        STEPS[name](pane, by)
        pane.layout()
        every = [(n, line) for n in range(1, pane.last + 2) for line in range(len(pane.rows(n)))]
        assert len(pane.view) == min(pane.lines, len(every))
        at = every.index(pane.view[0])
        assert pane.view == every[at : at + len(pane.view)]
        assert pane.top == pane.view[0]
        assert 1 <= pane.cursor <= pane.last
        assert pane.at_end == (pane.view[-1] == every[-1])
        if pane.follow:
            assert pane.at_end


@given(st.integers(1, 40), st.integers(1, 40))
def test_scrolling_up_and_down_again_comes_back_to_the_same_line(up: int, more: int) -> None:
    pane = opened(long(60))
    pane.scroll(-up - 20)
    before = pane.view
    pane.scroll(-more)
    pane.scroll(more)
    assert pane.view == before


def test_each_line_scrolled_is_one_line_though_heights_were_only_guessed() -> None:
    pane = opened(tour(), lines=5)
    screens = [seen(pane)]
    while pane.top != (1, 0):
        pane.scroll(-1)
        screens.append(seen(pane))
    for lower, upper in pairwise(screens):
        assert upper[1:] == lower[:-1]


def test_who_reads_further_up_stays_there_when_records_come() -> None:
    book = long(50)
    pane = opened(book)
    pane.scroll(-30)
    before = seen(pane)
    for _ in range(3):
        pane.append(book.say("text", "new\n\nlines", step="x"))
        pane.delta(Delta("output", "out\n", call="c"))
        pane.layout()
    assert seen(pane) == before
    assert (pane.follow, pane.new) == (False, 3)
    pane.to_end()
    assert (pane.follow, pane.new, pane.at_end) == (True, 0, True)


def test_who_follows_sees_the_end_of_what_streams_and_then_its_record_in_its_place() -> None:
    book = tour()
    pane = opened(book, lines=4)
    pane.delta(Delta("text", "Hello **wor", step="s9"))
    pane.layout()
    assert seen(pane)[-2:] == ["● answer", "  Hello **wor"]
    pane.append(book.say("text", "Hello **world**", step="s9"))
    pane.layout()
    assert seen(pane)[-2:] == ["● answer", "  Hello world"]


def test_bodies_that_arrive_do_not_move_the_line_at_the_top() -> None:
    book = long(500)
    pane = opened(book, bodies=False)
    pane.jump(400)
    before = pane.top[0]
    wanted = pane.wanted()
    assert wanted is not None
    assert wanted.after < before <= wanted.after + wanted.limit
    pane.keep(book.records[wanted.after : wanted.after + wanted.limit])
    pane.layout()
    assert pane.top[0] == before
    assert pane.wanted() is None


def test_only_what_is_missed_and_a_little_around_it_is_asked_for() -> None:
    pane = opened(long(500), bodies=False)
    wanted = pane.wanted()
    assert wanted is not None
    assert wanted.after + wanted.limit == 500
    assert wanted.limit < 70
    pane.to_top()
    assert pane.wanted() == Range(0, pane.view[-1][0] + 48)


def test_a_screen_taller_than_everything_is_not_full() -> None:
    book = Book()
    book.say("start")
    pane = opened(book)
    assert seen(pane) == ["○ session started"]
    assert pane.at_end


def test_a_pane_of_nothing_takes_every_key() -> None:
    pane = opened(Book())
    for name in ("scroll", "jump", "select", "reveal", "end", "top"):
        STEPS[name](pane, 3)
        STEPS[name](pane, -3)
    assert pane.view == []
    pane.append(Book().say("start"))
    pane.layout()
    assert seen(pane) == ["○ session started"]


def test_the_cursor_steps_within_a_record_that_is_taller_than_the_screen() -> None:
    book = Book()
    book.say("start")
    book.say("message", "\n".join(map(str, range(30))), via="tui")
    book.say("message", "next", via="tui")
    pane = opened(book, lines=10)
    pane.to_top()
    pane.select(1)
    assert pane.cursor == 2
    tops = []
    while pane.cursor == 2:
        tops.append(pane.top)
        pane.select(1)
    assert len(tops) > 5
    assert pane.cursor == 3
    pane.select(-1)
    assert pane.view[-1] >= (2, 30)


def test_the_cursor_stays_on_the_screen_when_the_view_moves() -> None:
    pane = opened(long(100))
    pane.scroll(-50)
    numbers = [n for n, _ in pane.view]
    assert pane.cursor == numbers[-1]
    pane.to_top()
    pane.scroll(20)
    assert pane.cursor == pane.view[0][0]


def test_folding_keeps_the_title_on_the_screen() -> None:
    book = tour()
    pane = opened(book, lines=8)
    pane.reveal(6)
    pane.scroll(6)
    assert pane.top[0] == 6
    pane.cursor = 6
    pane.fold(6, True)
    pane.layout()
    assert pane.view[0] == (6, 0)
    assert seen(pane)[1].startswith("▸ answer · 20 lines")


def test_a_kind_is_folded_but_for_what_is_opened_after() -> None:
    pane = opened(long(50))
    pane.fold_kind("text", True)
    assert (pane.folded(3), pane.folded(8)) == (True, True)
    pane.fold(3, False)
    assert (pane.folded(3), pane.folded(8)) == (False, True)
    pane.fold_kind("text", False)
    assert pane.folded(8) is False
    assert pane.folded(1) is None


def test_a_call_shows_that_it_runs_until_its_result_is_there() -> None:
    book = tour()
    pane = opened(book)
    assert any(row.endswith("running") for row in seen(pane))
    pane.append(book.result("c9", "done", exit=0, seconds=60.0))
    pane.layout()
    assert not any(row.endswith("running") for row in seen(pane))
    assert "result of #19 · exit 0" in seen(pane)[-2]


@pytest.mark.parametrize("lines", [1, 3, 40])
def test_few_rows_and_bodies_are_kept_whatever_is_looked_at(lines: int) -> None:
    book = long(3000)
    pane = opened(book, lines=lines)
    for y in range(0, pane.total, 37):
        pane.jump(y)
        if (wanted := pane.wanted()) is not None:
            pane.keep(book.records[wanted.after : wanted.after + wanted.limit])
            pane.layout()
    assert len(pane._drawn) <= DRAWN
    assert len(pane.bodies) <= BODIES + SPARE
    assert pane._drawn.rows == sum(len(rows) for _, rows in pane._drawn)


def test_records_that_are_there_already_are_passed_over() -> None:
    book = long(20)
    pane = opened(book)
    pane.append(book.records[5])
    pane.append(book.records[19])
    assert (pane.last, pane.new) == (20, 0)


def test_what_comes_while_headers_are_still_read_is_in_its_place_in_the_end() -> None:
    book = long(40)
    pane = Pane(38)
    pane.resize(60, 10)
    pane.preview(book.records[30:38])
    pane.append(book.records[38])
    pane.layout()
    assert pane.ledger.kind(40 - 1) == book.records[38].kind
    pane.note(record.header for record in book.records[:38])
    pane.append(book.records[39])
    pane.noted()
    assert pane.ledger.noted == 40
    pane.layout()
    call = next(record.n for record in reversed(book.records) if record.kind == "call" and record.n < 38)
    assert pane.ledger.state(call) == "done"


def test_of_large_bodies_only_those_on_the_screen_are_kept() -> None:
    book = Book()
    for _ in range(40):
        book.say("message", "x" * 500_000, via="tui")
    pane = opened(book, lines=5)
    pane.layout()
    assert pane.bodies.bytes <= BODY_BYTES
    assert 40 in pane.bodies
    assert pane.bodies.bytes == sum(len(record.body) for n in range(1, 41) if (record := pane.record(n)))
