"""What holds everywhere: palette, help, changed keys, themes, the editor, pastes and files in the composer."""

import asyncio
import gc
from functools import partial
from pathlib import Path

import pytest

from daemon.client import Lost
from daemon.protocol.records import TEXT
from tests.tui.daemonfake import FakeClient, info
from tests.tui.driving import Driver, running
from tui import keymap, main, places
from tui.log.logview import LogView
from tui.screens.help import HelpScreen
from tui.screens.sessions import SessionsScreen
from tui.widgets.composer import Composer

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


def two() -> FakeClient:
    client = FakeClient()
    client.add(info("a1", title="Mend the fence", updated="2026-11-30T12:00:02.000Z"))
    client.add(info("b2", title="Paint the gate", updated="2026-11-30T12:00:01.000Z"))
    return client


async def composer(on: Driver) -> Composer:
    """The composer of session a1."""
    await on.until(lambda: "a1" in on.app.roster.infos)
    on.app.open_session("a1")
    await on.until(lambda: on.app.shown == "a1" and on.client.following("a1"))
    found: Composer = on.one(Composer)
    await on.until(lambda: found.has_focus)
    return found


async def paste(on: Driver, text: str) -> None:
    from textual.events import Paste

    on.app.post_message(Paste(text))
    await on.pilot.pause()


# ---- palette and help


async def test_the_palette_goes_to_a_session(tmp_path: Path) -> None:
    async with running(two(), tmp_path) as on:
        await on.sees("Paint the gate")
        await on.press("ctrl+p")
        await on.write("gate")
        await on.sees("go to session Paint the gate")
        await on.press("down", "enter")
        await on.until(lambda: on.app.shown == "b2")


async def test_the_palette_does_what_keys_do_also_in_parts_without_the_focus(tmp_path: Path) -> None:
    client = two()
    async with running(client, tmp_path) as on:
        await composer(on)
        await on.press("ctrl+p")
        await on.write("fold all")
        await on.sees("Fold all of this kind")
        await on.press("escape", "ctrl+p")
        await on.write("end for good")
        await on.sees("f8 · session.end")
        await on.press("down", "enter")
        await on.sees("End “Mend the fence” for good?")


async def test_the_palette_changes_the_theme_and_it_is_remembered(tmp_path: Path) -> None:
    async with running(two(), tmp_path) as on:
        await on.sees("Paint the gate")
        await on.press("ctrl+p")
        await on.write("theme ansi-light")
        await on.sees("theme ansi-light")
        await on.press("down", "enter")
        await on.until(lambda: on.app.theme == "ansi-light")
    async with running(two(), tmp_path) as on:
        assert on.app.theme == "ansi-light"


async def test_help_shows_every_key_as_it_is_now(tmp_path: Path) -> None:
    keys = keymap.checked({"app.sessions": "f11", "sessions.end": ()}, places.places())
    async with running(two(), tmp_path, (100, 200), keys=keys) as on:
        await on.sees("Paint the gate")
        await on.press("question_mark")
        await on.until(lambda: isinstance(on.app.screen, HelpScreen))
        for place in places.places():
            await on.sees(place.name)
            for binding in place.bindings:
                assert binding.description in on.text()
        rows = [row for row in on.text().split("\n") if " f11 " in row]
        assert len(rows) == 1
        assert "Sessions" in rows[0]
        assert "(no key)" in on.text()
        await on.press("f1")
        await on.until(lambda: isinstance(on.app.screen, SessionsScreen))


async def test_keys_that_the_config_changes_do_what_it_says_and_the_old_ones_nothing(tmp_path: Path) -> None:
    client = two()
    client.change("a1", status="failed")
    keys = keymap.checked({"sessions.retry": ("R", "f6"), "sessions.fork": ()}, places.places())
    async with running(client, tmp_path, keys=keys) as on:
        await on.sees("Paint the gate")
        await on.press("r", "f")
        assert client.done == []
        await on.press("R")
        await on.until(lambda: client.done == [("retry", "a1")])
        await on.press("f6")
        await on.until(lambda: client.done == [("retry", "a1")] * 2)


async def test_enter_makes_a_new_line_where_sending_has_another_key(tmp_path: Path) -> None:
    client = two()
    keys = keymap.checked({"composer.send": "ctrl+t"}, places.places())
    async with running(client, tmp_path, keys=keys) as on:
        found = await composer(on)
        await on.press("a", "enter", "b")
        assert found.text == "a\nb"
        await on.press("ctrl+t")
        await on.until(lambda: client.texts == [("a1", "a\nb")])


def test_settings_that_cannot_be_are_told_before_anything_is_drawn(tmp_path: Path) -> None:
    def run(**more: object) -> None:
        usual = {
            "where": "x",
            "here": True,
            "state": tmp_path,
            "cwd": "/",
            "start": None,
            "themes": tmp_path / "themes",
            "theme": "",
            "keys": {},
        }
        main.run(FakeClient(), **(usual | more))  # type: ignore[arg-type]

    with pytest.raises(main.BadSettings, match=r"tui\.theme: there is no 'mauve'; there are .*nord"):
        run(theme="mauve")
    with pytest.raises(
        main.BadSettings, match=r"tui\.keys: there is no 'app\.quite' \(did you mean 'app\.quit'\?\)"
    ):
        run(keys={"app.quite": "x"})
    (tmp_path / "themes").mkdir()
    (tmp_path / "themes/sea.toml").write_text("[colours]\nprimry = 'blue'\n")
    with pytest.raises(main.BadSettings, match=r"/themes/sea\.toml: colours\.primry: .*'primary'"):
        run()
    (tmp_path / "themes/sea.toml").write_text("[colours]\nprimary = 'blue'\n")
    with pytest.raises(main.BadSettings, match=r"there is no 'mauve'; there are .*nord.*, sea"):
        run(theme="mauve")


@pytest.mark.parametrize(
    "after",
    [(0, 2, 8), pytest.param((1, 3, 5, 13), marks=pytest.mark.campaign)],
    ids=lambda after: "-".join(map(str, after)),
)
async def test_a_screen_that_is_closed_before_it_is_there_ends_nothing(
    tmp_path: Path, after: tuple[int, ...]
) -> None:
    async with running(two(), tmp_path) as on:
        await on.sees("Paint the gate")
        shows = [partial(on.app.action_show, name) for name in places.SCREENS]
        for show in [*shows, partial(on.app.open_session, "a1")]:
            for turns in after:
                show()
                for _ in range(turns):
                    await on.pilot.pause(0)
                on.app.action_sessions()
            await on.sees("Paint the gate")
        assert on.app.return_code is None


async def test_help_begins_where_the_person_is(tmp_path: Path) -> None:
    async with running(two(), tmp_path) as on:
        (await composer(on)).blur()
        on.one(LogView).focus()
        await on.press("f1")
        await on.until(lambda: isinstance(on.app.screen, HelpScreen))
        heads = [str(head.render()) for head in on.app.screen.query(".head")]
        assert heads[:4] == ["A session", "The log", "Everywhere", "Sessions"]


# ---- the composer's other ways


async def test_up_at_the_start_goes_back_through_the_posts_and_down_on_again(tmp_path: Path) -> None:
    client = two()
    async with running(client, tmp_path) as on:
        found = await composer(on)

        def posted(text: str) -> bool:
            return ("a1", text) in client.texts and found.text == ""

        for text in ("one", "two"):
            await on.write(text)
            await on.press("enter")
            await on.until(partial(posted, text))
        await on.write("draft")
        await on.press("up")
        assert (found.text, found.cursor_location) == ("draft", (0, 0))
        await on.press("up")
        assert found.text == "two"
        await on.press("up")
        assert found.text == "one"
        await on.press("up")
        assert found.text == "one"
        await on.press("down", "down")
        assert found.text == "draft"


async def test_up_within_several_lines_moves_the_cursor(tmp_path: Path) -> None:
    async with running(two(), tmp_path) as on:
        found = await composer(on)
        await on.press("a", "ctrl+j", "b", "up")
        assert found.cursor_location == (0, 1)
        await on.press("down")
        assert found.cursor_location == (1, 1)


async def test_the_editor_gets_the_draft_and_gives_it_back(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def write(path: Path) -> None:
        seen.append((path.read_text(), path.stat().st_mode & 0o777))
        path.write_text("from the editor\nsecond\n")

    async def edit(path: Path) -> None:
        await asyncio.to_thread(write, path)

    async with running(two(), tmp_path, edit=edit) as on:
        found = await composer(on)
        await on.write("begun")
        await on.press("ctrl+g")
        await on.until(lambda: found.text == "from the editor\nsecond")
        assert seen == [("begun", 0o600)]


async def test_a_picture_that_is_pasted_by_its_path_is_attached_and_posted(tmp_path: Path) -> None:
    (tmp_path / "shot.png").write_bytes(PNG)
    client = two()
    async with running(client, tmp_path) as on:
        found = await composer(on)
        await paste(on, f"{tmp_path}/shot.png")
        await on.sees("[1] shot.png · 28 B")
        assert found.text == ""
        await on.write("look")
        await on.press("enter")
        await on.until(lambda: client.posts)
        [(_, parts)] = client.posts.values()
        assert [(part.type, part.body) for part in parts] == [(TEXT, b"look"), ("image/png", PNG)]
        await on.until(lambda: "[1]" not in on.text())


async def test_a_path_that_is_no_picture_is_pasted_as_text(tmp_path: Path) -> None:
    async with running(two(), tmp_path) as on:
        found = await composer(on)
        await paste(on, f"{tmp_path}/none.png")
        await on.until(lambda: found.text == f"{tmp_path}/none.png")


async def test_a_long_paste_becomes_an_attachment_that_backspace_takes_out(tmp_path: Path) -> None:
    client = two()
    text = "a line of it\n" * 2000
    async with running(client, tmp_path) as on:
        found = await composer(on)
        await paste(on, text)
        await on.sees("[1] pasted text · 2,001 lines · 26.0 kB")
        assert found.text == ""
        await on.press("backspace")
        await on.until(lambda: found.chips == ())
        await paste(on, text)
        await on.until(lambda: found.chips)
        await on.press("enter")
        await on.until(lambda: client.posts)
        assert client.texts == [("a1", text)]


async def test_a_short_paste_is_text_without_what_a_terminal_would_act_on(tmp_path: Path) -> None:
    async with running(two(), tmp_path) as on:
        found = await composer(on)
        await paste(on, "two\r\nlines \x1b[31m")
        assert found.text == "two\nlines ␛[31m"


async def test_tab_completes_a_file_behind_an_at_sign_and_else_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "app.py").write_text("print()")
    (tmp_path / "source" / "ask.py").write_text("input()")
    monkeypatch.chdir(tmp_path)
    client = two()
    async with running(client, tmp_path) as on:
        found = await composer(on)
        await on.write("see @so")
        await on.press("tab")
        await on.until(lambda: found.text == "see @source/")
        await on.press("tab")
        await on.until(lambda: found.text == "see @source/a")
        await on.press("tab")
        await on.until(lambda: on.said() == ["app.py  ask.py"])
        await on.press("p", "tab")
        await on.until(lambda: found.text == "see @source/app.py ")
        await on.press("tab")
        await on.until(lambda: not found.has_focus)
        await on.press("i", "enter")
        await on.until(lambda: client.posts)
        [(_, parts)] = client.posts.values()
        assert [part.body for part in parts] == [b"see @source/app.py ", b"print()"]


async def test_a_name_that_no_file_has_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with running(two(), tmp_path) as on:
        await composer(on)
        await on.write("@nothing")
        await on.press("tab")
        await on.until(lambda: on.said() == ["there is no file that begins so: nothing"])


async def test_ctrl_c_copies_and_does_not_quit(tmp_path: Path) -> None:
    async with running(two(), tmp_path) as on:
        found = await composer(on)
        await on.write("words")
        found.select_all()
        await on.press("ctrl+c")
        assert on.app.clipboard == "words"
        assert on.app.is_running


async def test_a_daemon_that_takes_connections_and_says_nothing_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.app.WORTH", 0.01)
    client = two()
    async with running(client, tmp_path) as on:
        await on.until(lambda: on.app.linked.is_set())
        client.tell(Lost("it was silent for 45 s; wait", 1.0))  # and there is no second one: connecting works
        await on.sees("▲ it was silent for 45 s")
        client.back()
        await on.until(lambda: "▲" not in on.text())


async def test_a_connection_that_is_back_at_once_is_not_worth_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.app.WORTH", 1000.0)  # it is over when the test says so
    client = two()
    async with running(client, tmp_path) as on:
        await on.until(lambda: on.app.linked.is_set())
        told: list[str] = []
        monkeypatch.setattr(on.app, "_link", told.append)
        client.tell(Lost("it was cut", 1.0))
        await on.until(lambda: not on.app.linked.is_set())
        on.app.linked.set()
        on.app._still_lost("it was cut")
        assert told == []


async def test_work_that_is_never_begun_says_nothing(tmp_path: Path) -> None:
    done: list[str] = []

    async def deed() -> None:
        done.append("x")

    async with running(FakeClient(), tmp_path) as on:
        on.app.work(deed, "a")
        await on.until(lambda: done == ["x"])
        on.app.work(deed, "a")
        on.app.workers.cancel_group(on.app, "a")
        gc.collect()  # a coroutine that nobody awaited warns here, and a warning is an error
    assert done == ["x"]
