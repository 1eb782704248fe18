"""The list: what it shows in every state, and each of its keys."""

from datetime import timedelta
from pathlib import Path
from typing import get_args

import pytest
from textual.color import Color

from daemon.client import ApiFailure
from daemon.protocol import api
from daemon.protocol.records import JSON, CallBody, Config, ErrorBody, Status, WorkerRef
from tests.tui.daemonfake import FakeClient, info, stored, worker
from tests.tui.driving import CLOCK, Driver, running
from tests.tui.snapshots import rendered
from tui.screens.sessions import SessionsScreen
from tui.widgets.table import SessionTable


def at(second: int) -> str:
    return f"2026-11-30T12:00:{second:02}.000Z"


def three() -> FakeClient:
    """Sessions a1, b2 and c3, the last one newest."""
    client = FakeClient()
    client.add(info("a1", "closed", "Mend the fence", updated=at(1)))
    client.add(info("b2", "stepping", "Paint the gate", updated=at(2)))
    client.add(info("c3", "failed", "Oil the hinge", updated=at(3)))
    return client


def table(on: Driver) -> SessionTable:
    found: SessionTable = on.one(SessionTable)
    return found


async def test_sessions_stand_newest_first_with_what_is_known_of_each(tmp_path: Path) -> None:
    async with running(three(), tmp_path, (140, 20)) as on:
        await on.sees("Oil the hinge")
        rows = on.text().split("\n")
        assert ["hinge" in rows[2], "gate" in rows[3], "fence" in rows[4]] == [True] * 3
        assert "✗ failed" in rows[2]
        assert "27 s" in rows[2]
        assert "▌" not in rows[2]  # it had failed before anybody looked
        assert "● stepping" in rows[3]
        assert "rehearsal/echo" in rows[3]
        assert "local" in rows[3]
        await on.sees("1000/10k")
        assert "3 sessions · 1 at work" in on.text()


async def test_what_changes_is_shown_and_moves_up(tmp_path: Path) -> None:
    client = three()
    async with running(client, tmp_path) as on:
        await on.until(lambda: table(on).ids == ("c3", "b2", "a1"))
        client.change("a1", status="stepping", updated=at(9), n=8)
        await on.until(lambda: table(on).ids == ("a1", "c3", "b2"))
        client.add(info("d4", title="A new one", updated=at(10)))
        await on.sees("A new one")


async def test_the_cursor_stays_on_its_session(tmp_path: Path) -> None:
    client = three()
    async with running(client, tmp_path) as on:
        await on.until(lambda: table(on).cursor == "c3")
        await on.press("j")
        assert table(on).cursor == "b2"
        client.change("a1", updated=at(9), n=8)
        await on.until(lambda: table(on).ids == ("a1", "c3", "b2"))
        assert table(on).cursor == "b2"
        assert table(on).place == 2


@pytest.mark.parametrize(
    ("keys", "cursor"),
    [
        (("j",), "b2"),
        (("down", "down"), "a1"),
        (("j", "j", "k"), "b2"),
        (("G", "up"), "b2"),
        (("G",), "a1"),
        (("end", "g"), "c3"),
        (("end", "home"), "c3"),
        (("pagedown",), "a1"),
        (("ctrl+d", "ctrl+u"), "c3"),
        (("k",), "c3"),
    ],
)
async def test_arrows_and_vim_keys_move_the_cursor(
    tmp_path: Path, keys: tuple[str, ...], cursor: str
) -> None:
    async with running(three(), tmp_path) as on:
        await on.until(lambda: table(on).cursor == "c3")
        await on.press(*keys)
        assert table(on).cursor == cursor


async def test_enter_or_a_second_click_opens(tmp_path: Path) -> None:
    async with running(three(), tmp_path) as on:
        await on.until(lambda: len(table(on).ids) == 3)
        await on.press("j", "enter")
        await on.until(lambda: on.app.shown == "b2")
        await on.press("ctrl+s")
        await on.until(lambda: isinstance(on.app.screen, SessionsScreen))
        await on.pilot.click(SessionTable, offset=(20, 3))
        assert table(on).cursor == "a1"
        await on.pilot.click(SessionTable, offset=(20, 3))
        await on.until(lambda: on.app.shown == "a1")


@pytest.mark.parametrize("width", [80, 100])
async def test_each_word_of_the_status_column_finds_the_rows_that_show_it(tmp_path: Path, width: int) -> None:
    client = FakeClient()
    far = Config("m/m", workers=(WorkerRef("gpu"),))
    statuses = get_args(Status)
    for n, status in enumerate(statuses):
        client.add(info(f"a{n}", status, f"Number {n}"))
    client.add(info("b0", "stepping", "Number far", config=far))
    async with running(client, tmp_path, (width, 30)) as on:
        await on.until(lambda: len(table(on).ids) == len(statuses) + 1)
        await on.sees("UPDATED")
        rows = [row.split() for row in on.text().split("\n") if "Number" in row]
        words = {row[row.index("Number") + 1]: row[row.index("Number") - 1].rstrip("…") for row in rows}
        assert len(words) == len(rows) == len(statuses) + 1
        assert words["far"] == "waiting"
        for title, word in words.items():
            found = on.app.roster.rows(filter=word)
            assert f"Number {title}" in [each.title for each in found]
            assert all(words[each.title.split()[1]] == word or each.id == "b0" for each in found)
        await on.press("slash")
        await on.write("waiting")
        await on.until(lambda: table(on).ids == ("b0",))


async def test_a_filter_takes_words_and_statuses_and_goes_with_escape(tmp_path: Path) -> None:
    async with running(three(), tmp_path) as on:
        await on.until(lambda: len(table(on).ids) == 3)
        await on.press("slash")
        await on.write("failed")
        await on.until(lambda: table(on).ids == ("c3",))
        assert "1 of 3 sessions" in on.text()
        await on.press("enter", "enter")
        await on.until(lambda: on.app.shown == "c3")
        await on.press("ctrl+s", "slash")
        await on.write(" zzz")
        await on.sees("No session passes the filter")
        await on.press("escape")
        await on.until(lambda: len(table(on).ids) == 3)


async def test_stop_asks_first(tmp_path: Path) -> None:
    client = three()
    async with running(client, tmp_path) as on:
        await on.until(lambda: len(table(on).ids) == 3)
        await on.press("x")
        await on.until(lambda: "“Oil the hinge” is failed: there is nothing to stop" in on.said())
        await on.press("j", "x")
        await on.sees("Stop “Paint the gate”?")
        await on.press("n")
        await on.until(lambda: isinstance(on.app.screen, SessionsScreen))
        assert client.done == []
        await on.press("x")
        await on.sees("Stop “Paint the gate”?")
        await on.press("y")
        await on.until(lambda: client.done == [("stop", "b2", "tui")])


async def test_retry_and_fork_act_at_once_and_end_wants_the_word(tmp_path: Path) -> None:
    client = three()
    async with running(client, tmp_path) as on:
        await on.until(lambda: len(table(on).ids) == 3)
        await on.press("r")
        await on.until(lambda: client.done == [("retry", "c3")])
        await on.press("e")
        await on.sees("End “Oil the hinge” for good?")
        await on.press("enter")
        await on.write("no")
        await on.press("enter")
        assert client.done == [("retry", "c3")]
        for _ in range(2):
            await on.press("backspace")
        await on.write("end")
        await on.press("enter")
        await on.until(lambda: client.done[-1] == ("end", "c3", "tui"))
        client.change("c3", status="ended")
        await on.until(lambda: "ended" in on.text())
        assert [text for text in on.said() if "ended" in text] == ["“Oil the hinge” has ended"]
        await on.press("f")
        await on.until(lambda: client.done[-1] == ("create", "c3", "8", ""))
        await on.until(lambda: on.app.shown not in ("", "c3"))


async def test_a_refusal_of_the_daemon_is_told_in_its_own_words(tmp_path: Path) -> None:
    client = three()

    async def refuse(id: str) -> None:
        raise ApiFailure(409, "session c3 is not one that a retry helps")

    client.retry = refuse  # type: ignore[method-assign, assignment]
    async with running(client, tmp_path) as on:
        await on.until(lambda: len(table(on).ids) == 3)
        await on.press("r")
        await on.until(lambda: on.said() == ["session c3 is not one that a retry helps"])


async def test_a_fault_of_ours_is_told_in_a_line_and_the_app_goes_on(tmp_path: Path) -> None:
    client = three()

    async def broken(id: str) -> None:
        raise KeyError("nothing")

    client.retry = broken  # type: ignore[method-assign, assignment]
    async with running(client, tmp_path) as on:
        await on.until(lambda: len(table(on).ids) == 3)
        await on.press("r")
        await on.until(lambda: on.said() == ["a fault of outrider itself: KeyError: 'nothing'"])
        await on.press("j")
        assert table(on).cursor == "b2"


async def test_an_id_is_copied(tmp_path: Path) -> None:
    async with running(three(), tmp_path) as on:
        await on.until(lambda: len(table(on).ids) == 3)
        await on.press("y")
        assert on.app.clipboard == "c3"


async def test_while_nothing_happens_only_a_row_whose_age_is_another_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = three()
    client.change("a1", updated="2026-11-30T09:00:00.000Z")
    async with running(client, tmp_path, (140, 20)) as on:
        await on.sees("3 h")
        drawn: list[int] = []
        monkeypatch.setattr(table(on), "_refresh_row", drawn.append)
        table(on).tick()
        assert drawn == []
        monkeypatch.setattr(table(on), "_now", lambda: CLOCK + timedelta(seconds=1))
        table(on).tick()
        assert drawn == [0, 1]


async def test_the_order_goes_round(tmp_path: Path) -> None:
    async with running(three(), tmp_path) as on:
        await on.until(lambda: len(table(on).ids) == 3)
        await on.press("o")
        await on.sees("by attention")
        assert table(on).ids == ("b2", "c3", "a1")
        for _ in range(4):
            await on.press("o")
        await on.until(lambda: table(on).ids == ("c3", "b2", "a1"))


async def test_a_new_session_is_made_and_opened(tmp_path: Path) -> None:
    client = three()
    async with running(client, tmp_path) as on:
        await on.until(lambda: len(table(on).ids) == 3)
        on.app.create(api.Create(model="m"), "half a thought")
        await on.until(lambda: client.done == [("create", "", "0", "m")])
        await on.until(lambda: on.app.shown)
        await on.sees("half a thought")


async def test_what_a_session_at_work_is_doing_is_read_from_its_records(tmp_path: Path) -> None:
    client = FakeClient()
    call = CallBody("run", '{"worker": "gpu", "code": "make -j8"}')
    error = ErrorBody("auth", "The key is wrong.")
    asked = stored(1, "message", "go")
    client.add(info("a1", "stepping", n=2), asked, stored(2, "call", api.encode(call).decode(), type=JSON))
    client.add(info("b2", "failed", n=1), stored(1, "error", api.encode(error).decode(), type=JSON))
    client.add(info("c3", "stepping", n=1), asked)
    async with running(client, tmp_path, (160, 20)) as on:
        await on.sees("run · on gpu · bash · make -j8")
        await on.sees("The key is wrong.")
        await on.sees("asks the model")


async def test_a_session_whose_workers_are_all_away_waits_and_says_for_whom(tmp_path: Path) -> None:
    client = FakeClient()
    client.add(info("a1", "stepping", config=Config("m/m", workers=(WorkerRef("gpu"),))))
    async with running(client, tmp_path, (140, 20)) as on:
        await on.sees("waits for gpu")
        assert "▌● waiting" in on.text()
        assert "gpu?" in on.text()
        client.tell(api.Workers((worker(), worker("gpu"))))
        await on.sees("● stepping")


async def test_with_no_session_it_says_how_to_make_one(tmp_path: Path) -> None:
    async with running(FakeClient(), tmp_path) as on:
        await on.sees("No session yet")
        assert "n: a new one" in on.text()


async def test_with_no_daemon_it_says_so_starts_one_and_goes_on(tmp_path: Path) -> None:
    client = three()
    client.gone = "no daemon listens on /nowhere/api.sock; start one, or name another socket"
    started = []

    async def start() -> None:
        started.append(1)
        client.back()

    async with running(client, tmp_path, start=start) as on:
        await on.sees("no daemon listens on /nowhere/api.sock")
        assert "s: start one on this machine" in on.text()
        await on.press("s")
        await on.sees("Oil the hinge")
        assert started == [1]


async def test_a_daemon_that_does_not_start_says_why(tmp_path: Path) -> None:
    client = FakeClient()
    client.gone = "no daemon listens on /nowhere/api.sock; start one"

    async def start() -> None:
        raise OSError(28, "No space left on device", "/data")

    async with running(client, tmp_path, start=start) as on:
        await on.sees("start one on this machine")
        await on.press("s")
        await on.until(lambda: on.said() == ["/data: No space left on device"])
        await on.sees("start one on this machine")


async def test_a_daemon_elsewhere_is_not_started_from_here(tmp_path: Path) -> None:
    client = FakeClient()
    client.gone = "cannot connect to https://far:4600: Connection refused"
    async with running(client, tmp_path, here=False) as on:
        await on.sees("cannot connect to https://far:4600")
        assert "start one" not in on.text()


async def test_a_daemon_that_goes_leaves_all_readable_under_a_banner_and_comes_back_by_itself(
    tmp_path: Path,
) -> None:
    client = three()
    async with running(client, tmp_path) as on:
        await on.sees("Oil the hinge")
        client.lose()
        await on.sees("▲ no daemon listens on /nowhere/api.sock · read only until it is back")
        assert "Oil the hinge" in on.text()
        await on.press("r")
        await on.until(lambda: on.said() == ["not done: no daemon listens on /nowhere/api.sock"])
        client.infos["a1"] = info("a1", "closed", "Mend the fence", updated=at(20), n=9)
        client.back()
        await on.until(lambda: table(on).ids[0] == "a1")
        assert "▲" not in on.text()


async def test_a_refused_key_is_told_and_asked_for_again(tmp_path: Path) -> None:
    client = three()
    async with running(client, tmp_path) as on:
        await on.sees("Oil the hinge")
        client.tell(ApiFailure(401, "this key is not one of the daemon's"))
        await on.sees("▲ this key is not one of the daemon's")


async def test_thousands_of_sessions_are_all_there(tmp_path: Path) -> None:
    client = FakeClient()
    for n in range(2500):
        client.infos[f"{n:016x}"] = info(
            f"{n:016x}", updated=f"2026-11-30T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}.000Z"
        )
    async with running(client, tmp_path) as on:
        await on.until(lambda: len(table(on).ids) == 2500)
        await on.press("G")
        await on.sees(f"session {0:016x}")
        assert len(table(on).on_screen) < 30


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (240, 70)])
async def test_each_row_fits_the_screen(tmp_path: Path, size: tuple[int, int]) -> None:
    client = three()
    client.add(info("d4", title="日本語の長い題名" * 30, updated=at(30)))
    async with running(client, tmp_path, size) as on:
        await on.sees("日本語の長い題名")
        await on.until(lambda: all("…" in row for row in on.text().split("\n") if "日本語" in row))
        for strip in rendered(on.app):
            assert strip.cell_length == size[0]


async def test_a_title_with_escape_sequences_cannot_reach_the_terminal(tmp_path: Path) -> None:
    client = FakeClient()
    client.add(info("a1", title="\x1b]0;pwned\x07\x1b[2J red"))
    async with running(client, tmp_path) as on:
        await on.sees("␛]0;pwned")
        assert "\x1b" not in on.text()


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "nord", "solarized-light", "gruvbox"])
async def test_every_word_stands_out_from_its_background(tmp_path: Path, theme: str) -> None:
    client = three()
    client.add(
        info("d4", "stepping", config=Config("m/m", workers=(WorkerRef("gpu"),)), prompt=9500, updated=at(4))
    )
    async with running(client, tmp_path, (140, 12), theme=theme) as on:
        await on.sees("waits for gpu")
        for strip in rendered(on.app):
            for text, style, _ in strip:
                if text.strip() and style and style.color and style.bgcolor:
                    ink, paper = (Color.from_rich_color(one) for one in (style.color, style.bgcolor))
                    assert abs(ink.brightness - paper.brightness) > 0.2, (text, ink, paper)


async def test_a_session_of_an_agent_has_its_name_before_the_title_and_is_found_by_it(tmp_path: Path) -> None:
    client = three()
    config = Config("rehearsal/echo", workers=(WorkerRef("local"),), agent="greeter")
    client.add(info("d4", "closed", "Say hello", updated=at(4), config=config))
    async with running(client, tmp_path) as on:
        await on.sees("greeter · Say hello")
        await on.press("slash", *"greeter", "enter")
        await on.sees("1 of 4 sessions")
        await on.press("enter")
        await on.sees("✓ closed  greeter · Say hello")


async def test_a_session_whose_file_was_deleted_while_the_daemon_was_down_leaves_the_list(
    tmp_path: Path,
) -> None:
    client = three()
    async with running(client, tmp_path) as on:
        await on.until(lambda: table(on).ids == ("c3", "b2", "a1"))
        await on.press("j")
        client.lose()
        client.remove("b2")
        client.back()
        await on.until(lambda: table(on).ids == ("c3", "a1"))
        assert table(on).cursor == "a1"
        await on.until(lambda: "2 sessions" in on.text() and "gate" not in on.text())


async def test_of_thousands_the_deleted_ones_alone_leave_the_list(tmp_path: Path) -> None:
    client = FakeClient()
    for n in range(2500):
        client.add(info(f"{n:016x}", updated=f"2026-11-30T12:{n // 60:02}:{n % 60:02}.000Z"))
    async with running(client, tmp_path) as on:
        await on.until(lambda: len(table(on).ids) == 2500)
        client.lose()
        for n in (3, 2400):
            client.remove(f"{n:016x}")
        client.back()
        await on.until(lambda: len(table(on).ids) == 2498)
        assert on.said() == []
