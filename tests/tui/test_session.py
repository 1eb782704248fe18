"""A session: live, posted to, stopped; lost and back; its composer and what becomes of drafts."""

from pathlib import Path
from typing import Any

import pytest

from daemon.client import ApiFailure, Back
from daemon.protocol import api
from daemon.protocol.records import Config, Usage, WorkerRef
from tests.tui.daemonfake import FakeClient, info, stored
from tests.tui.driving import Driver, running
from tests.tui.snapshots import rendered
from tui.log.logview import LogView
from tui.log.messages import Fork
from tui.screens.session import SessionScreen
from tui.screens.sessions import SessionsScreen
from tui.widgets.composer import Composer
from tui.widgets.table import SessionTable


def one(**more: Any) -> FakeClient:
    client = FakeClient()
    client.add(
        info("a1", "closed", "Mend the fence", n=2, **more),
        stored(1, "start"),
        stored(2, "message", "first words", via="x"),
    )
    return client


async def opened(on: Driver, id: str = "a1") -> Composer:
    """Session `id` on the screen and followed; its composer."""
    await on.until(lambda: id in on.app.roster.infos)
    on.app.open_session(id)
    await on.until(lambda: on.app.shown == id and on.client.following(id))
    found: Composer = on.one(Composer)
    return found


async def test_its_records_stand_there_and_new_ones_come(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        await opened(on)
        await on.sees("first words")
        client.append("a1", stored(3, "message", "second words", via="y"))
        await on.sees("second words")
        client.stream("a1", api.Delta("text", "streams in now"))
        await on.sees("streams in now")


async def test_its_head_says_what_it_cost_and_where_that_is_not_known(tmp_path: Path) -> None:
    client = one(usage=Usage(7600, 402), cost=0.42)
    async with running(client, tmp_path, (120, 30)) as on:
        await opened(on)
        await on.sees("7600 in 402 out ~$0.42 ")
        client.change("a1", cost=None)
        await on.sees("7600 in 402 out $? ")


async def test_its_head_says_what_stands_about_it(tmp_path: Path) -> None:
    client = one(
        config=Config("m/model", workers=(WorkerRef("local", "/src"), WorkerRef("gpu")), context=4000)
    )
    async with running(client, tmp_path, (120, 30)) as on:
        await opened(on)
        await on.sees("✓ closed  Mend the fence")
        await on.sees("1000/4000")
        text = on.text()
        assert "m/model" in text
        assert "✓ local:/src" in text
        assert "✗ gpu is not here" in text
        client.stream("a1", api.RetryEvent("the model is overloaded", 3.0, 2))
        await on.sees("the model is overloaded: trying again in 3.0 s, try 2")
        client.stream("a1", api.Delta("text", "so"))
        await on.until(lambda: "overloaded" not in on.text())


async def test_one_connection_follows_the_open_session_and_none_another(tmp_path: Path) -> None:
    client = one()
    client.add(info("b2"))
    async with running(client, tmp_path) as on:
        await opened(on)
        assert (client.following("a1"), client.following("b2")) == (1, 0)
        await opened(on, "b2")
        await on.until(lambda: (client.following("a1"), client.following("b2")) == (0, 1))
        await on.press("ctrl+s")
        await on.until(lambda: (client.following("a1"), client.following("b2")) == (0, 0))


async def test_enter_posts_and_the_post_is_seen(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        found = await opened(on)
        await on.write("a third word")
        await on.press("enter")
        await on.until(lambda: client.texts == [("a1", "a third word")])
        await on.sees("a third word")
        assert found.text == ""
        assert on.app.desk.unsent() == []


async def test_the_log_follows_while_the_composer_grows_and_shrinks(tmp_path: Path) -> None:
    client = FakeClient()
    client.add(info("a1", title="Mend the fence", n=40))
    async with running(client, tmp_path, size=(80, 24)) as on:
        await opened(on)
        await on.sees("text 40")
        for keys in (("ctrl+j", "ctrl+j", "ctrl+j"), ("backspace", "backspace"), ("a", "enter")):
            await on.press(*keys)
            assert on.one(LogView).pane.follow
        await on.sees("❯ message via tui")


async def test_who_reads_further_up_and_writes_is_taken_to_the_end(tmp_path: Path) -> None:
    client = FakeClient()
    client.add(info("a1", title="Mend the fence", n=40))
    async with running(client, tmp_path, size=(80, 24)) as on:
        await opened(on)
        await on.sees("text 40")
        await on.press("escape", "g")
        await on.until(lambda: not on.one(LogView).pane.follow)
        await on.press("i", "a", "enter")
        await on.sees("❯ message via tui")


async def test_keys_that_would_do_nothing_are_not_offered_and_say_so(tmp_path: Path) -> None:
    client = one()

    async def refuse(id: str, via: str) -> None:
        raise ApiFailure(409, f"session {id} is not stepping: it is closed")

    client.stop = refuse  # type: ignore[method-assign]
    async with running(client, tmp_path, size=(80, 24)) as on:
        await opened(on)
        await on.sees("f1 Help")
        assert "Stop" not in on.text()
        await on.press("ctrl+x")
        await on.until(lambda: "“Mend the fence” is at no step: there is nothing to stop" in on.said())
        await on.press("ctrl+r")
        await on.until(lambda: "“Mend the fence” has its answer: a post lets it go on" in on.said())
        assert client.done == []
        client.change("a1", status="stepping")
        await on.sees("ctrl+x Stop")
        await on.press("escape")
        await on.sees("f1 Help")  # also beside the log's many keys


async def test_nothing_is_posted_where_nothing_is_written(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        await opened(on)
        await on.press("enter", "space", "enter")
        assert client.posts == {}


async def test_ctrl_x_stops_from_the_composer_and_from_the_log(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        await opened(on)
        await on.press("ctrl+x")
        await on.until(lambda: client.done == [("stop", "a1", "tui")])
        await on.press("escape", "ctrl+x")
        await on.until(lambda: client.done == [("stop", "a1", "tui")] * 2)


async def test_escape_goes_to_the_log_i_back_and_escape_again_to_the_list(tmp_path: Path) -> None:
    async with running(one(), tmp_path) as on:
        found = await opened(on)
        await on.until(lambda: found.has_focus)
        await on.press("escape")
        await on.until(lambda: not found.has_focus)
        await on.press("i")
        await on.until(lambda: found.has_focus)
        await on.press("escape", "escape")
        await on.until(lambda: isinstance(on.app.screen, SessionsScreen))


async def test_retry_copy_and_end_have_keys(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        client.change("a1", status="failed")
        await opened(on)
        await on.sees("ctrl+r Retry")
        await on.press("ctrl+r")
        await on.until(lambda: client.done == [("retry", "a1")])
        await on.press("f8")
        await on.sees("End “Mend the fence” for good?")
        await on.write("end")
        await on.press("enter")
        await on.until(lambda: client.done[-1] == ("end", "a1", "tui"))
        await on.press("ctrl+f")
        await on.until(lambda: client.done[-1] == ("create", "a1", "3", ""))


async def test_a_fork_in_the_log_makes_a_copy_with_the_message_to_edit(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        await opened(on)
        on.one(LogView).post_message(Fork(2, "first words"))
        await on.until(lambda: client.done == [("create", "a1", "2", "")])
        await on.until(lambda: on.app.shown not in ("", "a1"))
        await on.until(lambda: on.one(Composer).text == "first words")


async def test_a_session_that_has_ended_takes_no_words_and_says_what_does(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        found = await opened(on)
        client.change("a1", status="ended", n=3)
        await on.sees("it is ended; ctrl+f makes a copy that can go on")
        await on.write("x")
        await on.press("enter")
        assert found.text == ""
        assert client.posts == {}


async def test_a_post_while_the_daemon_is_away_waits_and_arrives_once(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        await opened(on)
        client.lose()
        await on.sees("read only until it is back")
        assert "first words" in on.text()
        await on.write("patience")
        await on.press("enter")
        await on.sees("↑ waits for the daemon: patience")
        client.hangs.clear()
        client.back()
        await on.sees("↑ on its way: patience")
        client.hangs.set()
        await on.until(lambda: client.texts == [("a1", "patience")])
        await on.until(lambda: "↑" not in on.text())


async def test_a_post_whose_answer_is_lost_is_sent_again_under_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.outbox.AGAIN", 0.01)
    client = one()
    client.cut_posts = 2
    async with running(client, tmp_path) as on:
        await opened(on)
        await on.write("once")
        await on.press("enter")
        await on.until(lambda: client.cut_posts == 0 and on.app.desk.unsent() == [])
        assert client.texts == [("a1", "once")]
        assert sum(record.body == b"once" for record in client.found["a1"]) == 1


async def test_a_post_that_never_arrived_is_sent_by_the_next_start(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        await opened(on)
        client.lose()
        await on.sees("read only")
        await on.write("late")
        await on.press("enter")
        await on.sees("↑ waits for the daemon: late")
    client.gone = ""
    async with running(client, tmp_path) as on:
        await on.until(lambda: client.texts == [("a1", "late")])


async def test_a_post_that_is_refused_comes_back_before_what_was_written_since(tmp_path: Path) -> None:
    client = one()
    client.refusal = ApiFailure(413, "the post is too large")
    client.hangs.clear()
    async with running(client, tmp_path) as on:
        client.hangs.set()
        found = await opened(on)
        client.hangs.clear()
        await on.write("too much")
        await on.press("enter")
        await on.sees("↑ on its way: too much")
        await on.write("more")
        await on.until(lambda: on.app.desk.draft("a1").text == "more")
        client.hangs.set()
        await on.until(lambda: found.text == "too much\nmore")
        assert on.said() == ["not posted: the post is too large"]
        assert on.app.desk.unsent() == []


async def test_what_is_typed_while_a_refused_post_comes_back_stays_and_the_cursor_in_it(
    tmp_path: Path,
) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        found = await opened(on)
        client.hangs.clear()
        await on.write("one\ntwo")
        await on.press("enter")
        await on.sees("↑ on its way")
        await on.write("three four")
        await on.press(*["left"] * 4)
        client.refusal = ApiFailure(413, "the post is too large")
        client.hangs.set()
        await on.until(lambda: on.said())
        await on.press("x")
        assert found.text == "one\ntwo\nthree xfour"
        await on.until(lambda: on.app.desk.draft("a1").text == found.text)


async def test_a_refused_post_comes_back_also_where_its_session_is_not_open(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        await opened(on)
        client.hangs.clear()
        await on.write("sent")
        await on.press("enter")
        await on.sees("↑ on its way")
        await on.write("written since")
        await on.press("ctrl+s")
        client.refusal = ApiFailure(413, "the post is too large")
        client.hangs.set()
        await on.until(lambda: on.said())
        assert (await opened(on)).text == "sent\nwritten since"


async def test_a_full_disk_is_told_at_the_post_and_in_the_list_and_the_post_can_be_taken_back(
    tmp_path: Path,
) -> None:
    client = one()
    client.refusal = ApiFailure(507, "the data folder cannot be written: No space left on device")
    async with running(client, tmp_path) as on:
        found = await opened(on)
        assert "Take back" not in on.text()
        await on.write("patience")
        await on.press("enter")
        await on.sees("↑ not taken yet: the data folder cannot be written: No space left on device")
        await on.sees("tried again at ")
        await on.sees(": patience")
        await on.write("more")
        await on.press("enter")
        await on.sees("↑ waits for the one before: more")
        await on.sees("ctrl+o Take back")
        await on.press("ctrl+s")
        await on.sees("↑ not taken: the")
        await on.press("enter")
        await on.until(lambda: on.app.shown == "a1")
        found = on.one(Composer)
        await on.until(lambda: found.has_focus)
        await on.press("ctrl+o")
        await on.until(lambda: found.text == "more")
        await on.press("ctrl+o")
        await on.until(lambda: found.text == "patience\nmore")
        await on.until(lambda: "↑" not in on.text() and "Take back" not in on.text())
        await on.press("ctrl+o")
        await on.until(lambda: "every post has arrived: there is nothing to take back" in on.said())
    assert client.posts == {}


async def test_a_post_on_the_wire_is_taken_back_only_where_it_does_not_arrive_and_that_is_told(
    tmp_path: Path,
) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        found = await opened(on)
        client.hangs.clear()
        await on.write("hasty")
        await on.press("enter")
        await on.sees("↑ on its way: hasty")
        await on.press("ctrl+o")
        await on.sees("↑ taken back unless it arrives now: hasty")
        client.refusal = ApiFailure(503, "it is starting")
        client.hangs.set()
        await on.until(lambda: found.text == "hasty")
        await on.until(lambda: "↑" not in on.text())
    assert client.posts == {}


async def test_a_post_of_the_history_that_is_looked_at_is_no_draft(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        found = await opened(on)
        await on.write("old")
        await on.press("enter")
        await on.until(lambda: client.texts and found.text == "" and found.posts)
        await on.write("new")
        await on.press("up", "up")
        assert found.text == "old"
        await on.press("ctrl+s")
        await on.until(lambda: isinstance(on.app.screen, SessionsScreen))
        assert (await opened(on)).text == "new"


async def test_a_draft_stays_with_its_session_and_over_a_restart(tmp_path: Path) -> None:
    client = one()
    client.add(info("b2"))
    async with running(client, tmp_path) as on:
        await opened(on)
        await on.write("for a1")
        await on.until(lambda: on.app.desk.draft("a1").text == "for a1")
        assert (await opened(on, "b2")).text == ""
        await on.write("for b2")
        await on.until(lambda: on.app.desk.draft("b2").text == "for b2")
        assert (await opened(on)).text == "for a1"
    async with running(client, tmp_path) as on:
        assert (await opened(on, "b2")).text == "for b2"


async def test_a_draft_that_is_just_written_is_kept_when_the_screen_goes(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        await opened(on)
        await on.write("quick")
        await on.press("ctrl+s")
        await on.until(lambda: isinstance(on.app.screen, SessionsScreen))
        assert (await opened(on)).text == "quick"
        await on.write("er")
        await on.press("ctrl+q")
    async with running(client, tmp_path) as on:
        assert (await opened(on)).text == "quicker"


async def test_brackets_go_to_the_sessions_beside_it(tmp_path: Path) -> None:
    client = FakeClient()
    for n, id in enumerate(("c3", "b2", "a1")):
        client.add(info(id, updated=f"2026-11-30T12:00:{n:02}.000Z"))
    async with running(client, tmp_path) as on:
        await opened(on)
        await on.press("escape", "right_square_bracket")
        await on.until(lambda: on.app.shown == "b2")
        await on.press("escape", "left_square_bracket")
        await on.until(lambda: on.app.shown == "a1")
        await on.press("escape", "left_square_bracket")
        await on.until(lambda: on.app.shown == "c3")
        assert len([screen for screen in on.app.screen_stack if isinstance(screen, SessionScreen)]) == 1


async def test_an_exclamation_mark_goes_to_the_next_that_wants_a_person(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        await on.until(lambda: on.app.roster.loaded)
        await on.press("exclamation_mark")
        await on.until(lambda: on.said() == ["no session wants you"])
        client.add(info("b2", "failed", updated="2026-11-30T12:01:00.000Z"))
        client.add(info("c3", "closed", updated="2026-11-30T12:02:00.000Z"))
        await on.until(lambda: len(on.app.roster.urgent()) == 2)
        await on.press("exclamation_mark")
        await on.until(lambda: on.app.shown == "b2" and len(on.app.roster.urgent()) == 1)
        await on.press("escape", "exclamation_mark")
        await on.until(lambda: on.app.shown == "c3" and not on.app.roster.urgent())


async def test_the_list_can_stand_beside_it(tmp_path: Path) -> None:
    client = one()
    client.add(info("b2", title="Another", updated="2026-11-30T13:00:00.000Z"))
    async with running(client, tmp_path, (120, 30)) as on:
        await opened(on)
        await on.press("ctrl+b")
        await on.sees("Another")
        assert on.one(SessionTable).has_focus
        await on.press("k", "enter")
        await on.until(lambda: on.app.shown == "b2")
        await on.sees("Mend the fence")
        await on.press("ctrl+b")
        await on.until(lambda: "Mend the fence" not in on.text())


async def test_the_list_does_not_stand_beside_it_on_a_narrow_screen(tmp_path: Path) -> None:
    async with running(one(), tmp_path, (80, 24)) as on:
        await opened(on)
        await on.press("ctrl+b")
        await on.until(lambda: on.said() == ["the list beside a session needs 90 columns"])


async def test_a_session_that_fails_elsewhere_is_told_and_the_one_on_the_screen_is_not(
    tmp_path: Path,
) -> None:
    client = one()
    client.add(info("b2", "stepping", "Paint the gate"))
    async with running(client, tmp_path) as on:
        await opened(on)
        client.change("a1", status="failed", n=3, updated="2026-11-30T12:01:00.000Z")
        client.change("b2", status="failed", n=8, updated="2026-11-30T12:01:00.000Z")
        await on.until(lambda: on.said() == ["Paint the gate: failed"])
        await on.until(lambda: [each.id for each in on.app.roster.urgent()] == ["b2"])


@pytest.mark.parametrize("size", [(80, 24), pytest.param((240, 70), marks=pytest.mark.campaign)])
@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark", "ansi-light", "nord"])
async def test_it_is_drawn_in_every_size_and_theme(tmp_path: Path, size: tuple[int, int], theme: str) -> None:
    async with running(one(), tmp_path, size, theme=theme) as on:
        await opened(on)
        await on.sees("first words")
        assert on.app.theme == theme
        assert "write a message" in on.text()
        for strip in rendered(on.app):
            assert strip.cell_length == size[0]


async def test_it_quits_at_once_while_every_call_hangs(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        await opened(on)
        client.hangs.clear()
        await on.press("ctrl+x")
        await on.write("words")
        await on.press("enter", "ctrl+r", "ctrl+q")
        await on.until(lambda: not on.app.is_running)
    assert client.posts == {}


async def test_of_a_session_that_is_over_the_last_line_offers_no_writing_and_says_which_key_leaves(
    tmp_path: Path,
) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        await opened(on)
        await on.sees("enter Send")
        client.change("a1", status="ended")
        await on.sees("q Sessions")
        assert "esc Log" in on.text()
        assert not any(word in on.text() for word in ("Send", "New line", "i Write"))


async def test_all_of_a_record_is_a_place_with_keys_that_help_and_the_last_line_know(tmp_path: Path) -> None:
    client = one()
    async with running(client, tmp_path, keys={"pager.copy": "f6"}) as on:
        await opened(on)
        await on.press("escape", "v")
        await on.sees("#2 message")
        await on.sees("esc Back")
        assert "f6 Copy" in on.text()
        await on.press("f1")
        await on.sees("A record, all of it")


LATER = "2026-11-30T12:01:00.000Z"


@pytest.mark.parametrize(("over", "seen"), [("v", "#2 message"), ("f8", "for good?"), ("f1", "The log")])
async def test_a_session_that_closes_while_a_record_or_a_dialog_lies_over_it_is_seen(
    tmp_path: Path, over: str, seen: str
) -> None:
    client = one()
    client.change("a1", status="stepping")
    async with running(client, tmp_path) as on:
        await opened(on)
        await on.press("escape", over)
        await on.sees(seen)
        assert on.app.shown == "a1"
        client.change("a1", status="closed", n=3, updated=LATER)
        await on.until(lambda: on.app.roster.seen.get("a1") == LATER)
        assert on.said() == []
        await on.press("escape")
        await on.until(lambda: isinstance(on.app.screen, SessionScreen))
        await on.press("ctrl+s")
        await on.until(lambda: isinstance(on.app.screen, SessionsScreen))
        assert on.app.roster.urgent() == []


async def test_a_session_that_closes_under_another_screen_is_told_and_seen_when_that_goes(
    tmp_path: Path,
) -> None:
    client = one()
    client.change("a1", status="stepping")
    async with running(client, tmp_path) as on:
        await opened(on)
        await on.press("f4")
        await on.until(lambda: on.app.shown == "")
        client.change("a1", status="closed", n=3, updated=LATER)
        await on.until(lambda: on.said() == ["Mend the fence: done"])
        await on.until(lambda: [each.id for each in on.app.roster.urgent()] == ["a1"])
        await on.press("escape")
        await on.until(lambda: on.app.roster.urgent() == [])
        await on.sees("✓ closed")


async def test_from_a_record_or_another_screen_one_goes_to_the_next_session_and_nothing_is_left_between(
    tmp_path: Path,
) -> None:
    client = one()
    client.add(info("b2", "failed", "Paint the gate", updated=LATER))
    async with running(client, tmp_path) as on:
        await opened(on)
        await on.press("escape", "v")
        await on.sees("#2 message")
        await on.press("right_square_bracket")
        await on.until(lambda: on.app.shown == "b2")
        assert len(on.app.screen_stack) == 2
        await on.press("f4")
        await on.until(lambda: on.app.shown == "")
        on.app.open_session("b2")
        await on.until(lambda: on.app.shown == "b2")
        assert len(on.app.screen_stack) == 2


async def test_a_session_that_is_not_there_says_why_it_does_not_open_and_opens_when_it_is_put_back(
    tmp_path: Path,
) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        await on.sees("Mend the fence")
        known, found = client.infos["a1"], client.found["a1"]
        client.remove("a1")
        await on.press("enter")
        await on.sees("not read: there is no session a1; its file is not in the daemon's folder")
        await on.sees("it cannot be read, and takes no message")
        assert "loading" not in on.text()
        assert "Send" not in on.text()
        await on.write("x")
        assert on.one(Composer).text == ""
        client.lose()
        client.back()
        await on.until(lambda: "a1" not in on.app.roster.infos)
        client.add(known, *found)
        await on.sees("first words")
        await on.sees("write a message")
        assert "not read" not in on.text()


async def test_a_session_whose_file_goes_while_it_is_open_stays_readable_and_what_is_written_too(
    tmp_path: Path,
) -> None:
    client = one()
    async with running(client, tmp_path) as on:
        found = await opened(on)
        await on.sees("first words")
        await on.write("half a thought")
        client.remove("a1")
        client.stream("a1", Back())
        await on.sees("not read: there is no session a1;")
        assert "first words" in on.text()
        assert found.text == "half a thought"
        client.back()
        await on.until(lambda: "a1" not in on.app.roster.infos)
        for key in ("ctrl+x", "ctrl+r", "f8"):
            await on.press(key)
            await on.press("escape")
        assert on.app.is_running


@pytest.mark.parametrize(
    "status", [401, 503, *(pytest.param(status, marks=pytest.mark.campaign) for status in (429, 500))]
)
async def test_a_session_that_is_refused_for_now_says_so_and_opens_later(
    tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.screens.session.REFUSED", 0.01)
    client = one()
    async with running(client, tmp_path) as on:
        await on.sees("Mend the fence")
        client.info_refusal = ApiFailure(status, "the daemon is starting")
        await on.press("enter")
        await on.sees("not read: the daemon is starting; it is tried again every")
        await on.write("meanwhile")
        client.info_refusal = None
        await on.sees("first words")
        await on.until(lambda: "not read" not in on.text())
        assert on.one(Composer).text == "meanwhile"
        assert on.said() == []
