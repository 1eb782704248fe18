from collections.abc import Sequence

import pytest
from textual.events import MouseScrollUp
from textual.geometry import Region
from textual.scrollbar import ScrollBar
from textual.strip import Strip

from daemon.client import Back, Lost
from daemon.protocol.api import Delta, Restart, RetryEvent
from tests.tui import snapshots
from tests.tui.log.fakes import Book, FakeSource, long, tour
from tests.tui.log.hosting import Hosted, hosted, moved
from tui.log.logview import LogView
from tui.log.messages import Copied, Failed, Fork, Opened, Picture, Said, Zoom
from tui.log.pager import Pager
from tui.log.rows import Rows


def title(host: Hosted) -> str:
    """The title of the record at the cursor."""
    item = host.pane.item(host.pane.cursor)
    return item.title if item else ""


async def test_a_session_opens_at_its_end_with_the_cursor_on_the_last_record() -> None:
    async with hosted(long(1000)) as host:
        assert host.pane.follow
        assert any(line.startswith("▌") and "#1000" in line for line in host.lines)
        assert host.source.asked[0] == ("records", 800, 200)
        assert [opened.n for opened in host.heard(Opened)] == [1000]


async def test_records_further_up_are_fetched_when_they_are_looked_at() -> None:
    async with hosted(long(2000)) as host:
        host.source.asked.clear()
        await host.press("g")
        await host.sees("Question 1: what about it?")
        (asked,) = host.source.asked
        assert asked[:2] == ("records", 0)
        assert asked[2] is not None
        assert asked[2] < 100


async def test_j_and_k_move_the_cursor_and_the_arrows_do_too() -> None:
    async with hosted(long(50)) as host:
        await host.press("k", "up", "k")
        assert host.pane.cursor == 47
        assert not host.pane.follow
        await host.press("j", "down")
        assert host.pane.cursor == 49
        await host.press("j")
        assert host.pane.cursor == 50
        assert host.pane.follow


async def test_pages_and_half_pages_move_the_view() -> None:
    async with hosted(long(200)) as host:
        end = host.pane.view
        await host.press("ctrl+u")
        half = host.pane.view
        assert half[12:] == end[:12]
        await host.press("b")
        assert host.pane.view[-1] == half[0]
        await host.press("space")
        assert host.pane.view == half
        await host.press("ctrl+d")
        assert host.pane.view == end
        assert host.pane.follow


async def test_g_and_G_go_to_the_ends() -> None:
    async with hosted(long(50)) as host:
        await host.press("g")
        assert (host.pane.cursor, host.pane.top) == (1, (1, 0))
        await host.press("G")
        assert (host.pane.cursor, host.pane.follow) == (50, True)


async def test_enter_folds_and_opens_the_record() -> None:
    async with hosted(tour()) as host:
        await host.press("g", "j", "j", "enter")
        await host.sees("You are an agent.")
        await host.press("enter")
        await host.misses("You are an agent.")


async def test_a_click_on_a_title_folds_and_one_on_the_body_moves_the_cursor() -> None:
    async with hosted(tour()) as host:
        row = next(y for y, line in enumerate(host.lines) if "run · on local · python" in line)
        await host.pilot.click(Rows, offset=(10, row + 1))
        await host.until(lambda: host.pane.cursor == 13)
        assert "for i in range(40):" in host.text
        await host.pilot.click(Rows, offset=(10, row))
        await host.misses("for i in range(40):")


async def test_E_folds_all_of_the_kind_and_t_opens_all_thinking() -> None:
    async with hosted(tour(), size=(80, 60)) as host:
        host.pane.reveal(13)
        await host.press("E")
        await host.misses("for i in range(40):")
        await host.misses("pytest -q")
        await host.press("t")
        await host.sees("The user wants the flaky test fixed.")
        await host.press("t")
        await host.misses("The user wants the flaky test fixed.")


async def test_e_and_u_go_to_the_next_error_and_message() -> None:
    async with hosted(tour()) as host:
        await host.press("g", "u")
        assert host.pane.cursor == 4
        await host.press("u")
        assert host.pane.cursor == 16
        await host.press("e")
        assert host.pane.cursor == 18
        await host.press("e")
        assert [said.text for said in host.heard(Said)] == ["no error below this record"]


async def test_a_search_goes_up_from_the_end_first_and_n_and_N_repeat_it() -> None:
    async with hosted(long(1500)) as host:
        await host.press("slash", *"Question 12", "enter")
        await host.until(lambda: host.pane.cursor != 1500)
        assert title(host) == "message via tui"
        first = host.pane.cursor
        await host.press("n")
        await host.until(lambda: host.pane.cursor < first)
        second = host.pane.cursor
        await host.press("N")
        await host.until(lambda: host.pane.cursor == first)
        assert second < first
        assert "Question 12" in host.text


async def test_a_search_opens_what_is_folded_and_stands_on_its_line() -> None:
    async with hosted(tour()) as host:
        await host.press("g", "slash", *"\n37\n".strip(), "enter")
        await host.until(lambda: host.pane.cursor == 15)
        await host.sees("│ 37")


async def test_a_search_for_what_is_not_there_says_so_and_esc_leaves_it() -> None:
    async with hosted(tour()) as host:
        await host.press("slash", *"zebra", "enter")
        await host.until(lambda: host.heard(Said))
        assert host.heard(Said)[0].text == "not found: zebra"
        await host.press("slash")
        await host.press("escape")
        assert isinstance(host.app.focused, Rows)
        await host.press("k")
        assert host.pane.cursor == 18
        await host.press("G", "n")
        await host.until(lambda: len(host.heard(Said)) == 2)


async def test_a_match_in_the_part_that_is_not_shown_sends_to_the_pager() -> None:
    book = Book()
    book.say("start")
    book.say("message", "\n".join(f"line {n}" for n in range(1000)), via="tui")
    async with hosted(book) as host:
        await host.press("slash", *"line 155", "enter")
        await host.until(lambda: host.heard(Said))
        assert host.heard(Said)[0].text == "it is in the part that is not shown: v"
        await host.press("v")
        await host.until(lambda: isinstance(host.app.screen, Pager))
        await host.press("n")
        await host.sees("line 155")


async def test_y_copies_the_record_and_Y_the_code() -> None:
    async with hosted(tour()) as host:
        host.pane.reveal(13)
        await host.press("y", "Y")
        (record, code) = host.heard(Copied)
        assert record.text == code.text == "for i in range(40):\n    print(i)"
        assert host.app.clipboard == code.text
        assert "copied 2 lines" in code.said
        await host.press("g", "Y")
        assert [said.text for said in host.heard(Said)] == ["this record has no code or result"]


async def test_v_shows_all_of_a_record_and_y_copies_it_from_there() -> None:
    async with hosted(tour()) as host:
        host.pane.reveal(15)
        await host.press("v")
        await host.until(lambda: isinstance(host.app.screen, Pager))
        await host.sees("result of #13")
        await host.press("G")
        await host.sees("39")
        await host.press("g", "j", "ctrl+d", "space", "b", "ctrl+u", "k", "y")
        await host.until(lambda: host.heard(Copied))
        assert host.heard(Copied)[0].text.split("\n")[-1] == "39"
        await host.until(lambda: not isinstance(host.app.screen, Pager))


async def test_an_image_is_opened_outside_by_the_screen() -> None:
    async with hosted(tour()) as host:
        host.pane.reveal(16)
        await host.press("v")
        await host.until(lambda: host.heard(Picture))
        assert (host.heard(Picture)[0].n, host.heard(Picture)[0].media) == (16, "image/png")


def seen(strips: Sequence[Strip]) -> list[list[tuple[object, ...]]]:
    return [
        [
            (part.text, part.style.color, part.style.bgcolor, bool(part.style.reverse), part.style.meta)
            for part in strip
            if part.style
        ]
        for strip in strips
    ]


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark"])
async def test_the_scroll_bar_is_painted_as_textual_does(theme: str) -> None:
    async with hosted(long(300)) as host:
        host.app.theme = theme
        bar = host.log._rows.vertical_scrollbar
        whole = Region(0, 0, 1, bar.size.height)
        for y in (0, 1, 7, 100, 501, 10_000):
            host.pane.jump(y)
            host.log._rows.moved()
            await host.pilot.pause()
            assert seen(bar.render_lines(whole)) == seen(ScrollBar.render_lines(bar, whole))
        assert seen(bar.render_lines(Region(0, 3, 1, 2))) == seen(bar.render_lines(whole))[3:5]


async def test_f_forks_before_a_message_and_after_the_step_of_any_other_record() -> None:
    async with hosted(tour()) as host:
        host.pane.reveal(4)
        await host.press("f")
        host.pane.reveal(6)
        await host.press("f", "z")
        await host.until(lambda: host.heard(Zoom))
        assert [(fork.n, fork.text[:8]) for fork in host.heard(Fork)] == [(4, "The test"), (10, "")]


async def test_records_that_come_are_shown_to_who_follows_and_counted_for_who_does_not() -> None:
    book = long(60)
    async with hosted(book, last=50) as host:
        for record in book.records[50:55]:
            host.log.feed(record)
        await host.sees("#55")
        assert host.log.last == 55
        await host.press("ctrl+u")
        before = host.lines[:23]
        for record in book.records[55:]:
            host.log.feed(record)
        await host.sees("5 new ↓")
        assert host.lines[:23] == before
        await host.until(lambda: moved(host) == [(False, 0), (False, 5)])
        await host.pilot.click(Rows, offset=(76, 23))
        await host.sees("#60")
        await host.until(lambda: moved(host)[-1] == (True, 0))


async def test_an_answer_streams_in_and_its_record_takes_its_place() -> None:
    book = tour()
    async with hosted(book) as host:
        host.log.feed(Delta("text", "Now **it", step="s9"))
        await host.sees("Now **it")
        host.log.feed(Delta("text", " works**", step="s9", at=8))
        await host.sees("Now it works")
        host.log.feed(book.say("text", "Now **it works**.", step="s9"))
        await host.sees("Now it works.")
        assert host.text.count("● answer") == 2
        host.log.feed(Delta("text", "void", 1, step="s9"))
        await host.sees("void\n")
        host.log.feed(Restart())
        await host.misses("void\n")


async def test_who_opens_in_the_middle_of_an_answer_sees_its_beginning_and_nothing_twice() -> None:
    book = tour()
    async with hosted(book) as host:
        host.log.feed(Delta("thinking", "a thought", step="s9"))
        host.log.feed(Delta("text", "The words\nfrom the first on", 1, step="s9"))
        await host.sees("from the first on")
        assert "a thought" in host.text
        host.log.feed(book.say("thinking", "a thought", step="s9"))
        host.log.feed(book.say("text", "The words\nfrom the first on", step="s9", block=1))
        await host.until(lambda: "from the first on" in host.text and not host.pane.live.streams())
        assert host.text.count("from the first on") == 1
        host.log.feed(Delta("call", 'ho hi"}', 2, name="run", step="s9", at=90_000))
        await host.sees("writing a call of run, 90,007 characters")


async def test_a_lost_connection_leaves_the_half_answer_there_until_the_rest_comes() -> None:
    book = tour()
    async with hosted(book) as host:
        host.log.feed(Delta("text", "Half of **wh", step="s9"))
        await host.sees("Half of **wh")
        host.log.feed(Lost("gone", 1.0))
        await host.sees("● answer · broken off here")
        assert "Half of **wh" in host.text
        host.log.feed(Back())
        host.log.feed(Delta("text", "Half of **what** is said", step="s9"))
        await host.sees("Half of what is said")
        assert "broken off" not in host.text
        assert host.text.count("Half of") == 1
        host.log.feed(Lost("gone", 1.0))
        host.log.feed(Back())
        host.log.feed(book.say("text", "Half of **what** is said.", step="s9"))
        await host.sees("Half of what is said.")
        assert "broken off" not in host.text
        assert host.text.count("Half of") == 1


async def test_a_run_that_goes_on_shows_its_output_and_that_a_request_is_tried_again() -> None:
    async with hosted(tour()) as host:
        host.log.feed(Delta("output", "\x1b[31mhalf\x1b[0m done\n", call="c9"))
        await host.sees("half done")
        assert "output so far of #19" in host.text
        host.log.feed(RetryEvent("the provider is overloaded", 2.0, 3))
        await host.sees("the provider is overloaded: trying again in 2.0 s, try 3")
        host.log.feed(Lost("gone", 1.0))
        host.log.feed(Back())
        await host.press("k")
        assert host.pane.cursor == 18


async def test_a_daemon_that_is_away_is_told_and_asked_again() -> None:
    source = FakeSource(long(300))
    source.away = True
    async with hosted(Book()) as host:
        host.log.open("s1", source, 300)
        await host.until(lambda: host.heard(Failed))
        assert "no daemon" in host.heard(Failed)[0].why
        source.away = False
        host.log.reload()
        await host.sees("#300")


async def test_another_session_takes_the_place_of_the_first() -> None:
    async with hosted(long(300)) as host:
        await host.press("k", "k")
        host.log.open("s2", FakeSource(tour()), 19)
        await host.sees("sleep 60")
        assert host.pane.follow
        assert host.log.last == 19
        await host.press("k")
        assert host.pane.cursor == 18


async def test_text_is_selected_with_the_mouse_and_copied_as_it_was_before_it_was_wrapped() -> None:
    book = Book()
    book.say("start")
    book.say("message", "one two three four five six seven eight nine ten eleven twelve\nlast", via="tui")
    async with hosted(book, size=(40, 12)) as host:
        rows = [y for y, line in enumerate(host.lines) if "one two" in line or "last" in line]
        await host.pilot.mouse_down(Rows, offset=(8, rows[0]))
        await host.pilot.hover(Rows, offset=(20, rows[0]))
        await host.pilot.hover(Rows, offset=(5, rows[1]))
        await host.pilot.mouse_up(Rows, offset=(5, rows[1]))
        await host.until(lambda: host.app.screen.get_selected_text())
        expected = "two three four five six seven eight nine ten eleven twelve\nla"
        assert host.app.screen.get_selected_text() == expected
        await host.press("y")
        assert host.heard(Copied)[0].text == expected
        assert host.pane.folded(2) is False


async def test_a_selection_over_a_title_leaves_its_number_and_time_out_but_where_they_alone_are_selected() -> (
    None
):
    book = Book()
    book.say("start")
    book.say("message", "one", via="tui")
    book.say("message", "two", via="tui")
    async with hosted(book) as host:
        rows = [y for y, line in enumerate(host.lines) if "one" in line or "two" in line or "#3" in line]
        time = host.lines[rows[1]].index("#3")
        await host.pilot.mouse_down(Rows, offset=(4, rows[0]))
        await host.pilot.hover(Rows, offset=(7, rows[2]))
        await host.pilot.mouse_up(Rows, offset=(7, rows[2]))
        await host.until(lambda: host.app.screen.get_selected_text())
        assert host.app.screen.get_selected_text() == "one\n\n❯ message via tui\ntwo"
        await host.pilot.mouse_down(Rows, offset=(time, rows[1]))
        await host.pilot.hover(Rows, offset=(time + 2, rows[1]))
        await host.pilot.mouse_up(Rows, offset=(time + 2, rows[1]))
        await host.until(lambda: host.app.screen.get_selected_text() == "#3")


async def test_a_selection_stays_on_its_text_when_what_is_above_grows() -> None:
    book = tour()
    async with hosted(book) as host:
        row = next(y for y, line in enumerate(host.lines) if "sleep 60" in line)
        await host.pilot.mouse_down(Rows, offset=(6, row))
        await host.pilot.hover(Rows, offset=(13, row))
        await host.pilot.mouse_up(Rows, offset=(13, row))
        await host.until(lambda: host.app.screen.get_selected_text() == "sleep 60")
        host.pane.fold(15, False)
        for _ in range(3):
            host.log.feed(book.say("text", "more"))
        await host.sees("3 new ↓")
        assert host.app.screen.get_selected_text() == "sleep 60"


async def test_a_double_click_selects_the_record() -> None:
    async with hosted(tour()) as host:
        row = next(y for y, line in enumerate(host.lines) if "edited net.py" in line)
        await host.pilot.click(Rows, offset=(8, row), times=2)
        await host.until(lambda: host.app.screen.get_selected_text())
        assert (host.app.screen.get_selected_text() or "").endswith("edited net.py")
        assert (host.app.screen.get_selected_text() or "").startswith("└ result of #10")


async def test_the_wheel_and_the_scroll_bar_move_the_view() -> None:
    async with hosted(long(300)) as host:
        end, rows = host.pane.view, host.app.query_one(Rows)
        await host.pilot.hover(Rows, offset=(4, 4))
        rows.post_message(_wheel(rows))
        await host.until(lambda: host.pane.view[3:] == end[:-3])
        rows.scroll_to(y=0)
        await host.until(lambda: host.pane.top == (1, 0))
        await host.sees("session started")
        rows.scroll_to(y=rows.max_scroll_y)
        await host.until(lambda: host.pane.follow)


def _wheel(rows: Rows) -> MouseScrollUp:
    return MouseScrollUp(rows, 4, 4, 0, 0, 0, False, False, False)


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark", "ansi-light", "nord"])
async def test_every_theme_gives_each_role_a_style(theme: str) -> None:
    async with hosted(tour(), size=(100, 70)) as host:
        host.app.theme = theme
        await host.pilot.pause()
        rows = host.app.query_one(Rows)
        styles = {
            str(rows._painter.style(role))
            for role in ("title message", "code number", "added", "removed", "dim")
        }
        assert len(styles) == 5


@pytest.mark.parametrize(("name", "size"), [("narrow", (80, 24)), ("wide", (240, 70)), ("tiny", (30, 8))])
async def test_the_screen_is_as_it_was_reviewed(name: str, size: tuple[int, int]) -> None:
    async with hosted(tour(), size=size) as host:
        snapshots.check(__file__, f"tour-{name}", host.text)


async def test_a_smaller_terminal_wraps_anew_and_stays_at_the_end() -> None:
    async with hosted(tour(), size=(120, 40)) as host:
        await host.pilot.resize_terminal(44, 16)
        await host.until(lambda: host.pane.columns == 40)
        await host.sees("sleep 60")
        assert host.pane.at_end
        assert len(host.pane.view) == 16


async def test_keys_have_ids_so_that_they_can_be_changed() -> None:
    ids = [binding.id for binding in LogView.BINDINGS if not isinstance(binding, tuple)]
    assert all(ids)
    assert len(set(ids)) == len(ids)
