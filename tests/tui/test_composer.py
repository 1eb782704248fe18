from pathlib import Path

from textual import events
from textual.widgets import Input

from tests.tui.daemonfake import FakeClient, info
from tests.tui.driving import Driver, running
from tui.desk import Chip
from tui.widgets.composer import Composer

CHIP = Chip("a.png · 3 B", "image/png", path="/a.png")


async def composer(on: Driver) -> Composer:
    """The composer of session a1, opened."""
    await on.sees("session a1")
    await on.press("enter")
    await on.until(lambda: on.app.shown == "a1" and on.client.following("a1"))
    found: Composer = on.one(Composer)
    return found


async def test_enter_sends_and_three_ways_make_a_new_line(tmp_path: Path) -> None:
    client = FakeClient()
    client.add(info("a1"))
    async with running(client, tmp_path) as on:
        found = await composer(on)
        await on.press(
            "o",
            "n",
            "e",
            "ctrl+j",
            "t",
            "w",
            "o",
            "shift+enter",
            "3",
            "alt+enter",
            "4",
            "backslash",
            "enter",
            "5",
        )
        assert found.text == "one\ntwo\n3\n4\n5"
        await on.press("enter")
        await on.until(lambda: client.posts)
        assert client.texts == [("a1", "one\ntwo\n3\n4\n5")]
        assert found.text == ""


async def test_keys_act_in_the_order_in_which_they_come_however_fast(tmp_path: Path) -> None:
    client = FakeClient()
    client.add(info("a1"))
    async with running(client, tmp_path) as on:
        found = await composer(on)
        for key, character in [
            ("a", "a"), ("ctrl+j", "\n"), ("b", "b"), ("c", "c"), ("backspace", "\x7f"), ("enter", "\r"), ("d", "d"),
            ("enter", "\r"), ("e", "e"),
        ]:  # fmt: skip
            found.post_message(events.Key(key, character))
        await on.until(lambda: len(client.posts) == 2)
        assert client.texts == [("a1", "a\nb"), ("a1", "d")]
        assert found.text == "e"


async def test_what_was_read_together_with_tab_goes_where_the_focus_went(tmp_path: Path) -> None:
    client = FakeClient()
    async with running(client, tmp_path) as on:
        await on.press("ctrl+n")
        await on.sees("New session")
        found: Composer = on.one(Composer)
        await on.until(lambda: found.has_focus)
        for key, character in [("h", "h"), ("i", "i"), ("tab", "\t"), ("m", "m"), ("x", "x")]:
            on.app.post_message(events.Key(key, character))
        await on.until(lambda: on.app.screen.query_one("#model-name", Input).value == "mx")
        assert found.text == "hi"


async def test_what_comes_back_while_the_editor_is_open_stands_before_what_it_gives(tmp_path: Path) -> None:
    client = FakeClient()
    client.add(info("a1"))
    async with running(client, tmp_path) as on:
        found = await composer(on)
        await on.write("begun")

        async def edited(text: str) -> str:
            found.give_back("refused", (CHIP,))
            return text.upper()

        await found.rewrite(edited)
        assert (found.text, found.chips) == ("refused\nBEGUN", (CHIP,))


async def test_what_comes_back_leaves_the_history(tmp_path: Path) -> None:
    client = FakeClient()
    client.add(info("a1"))
    async with running(client, tmp_path) as on:
        found = await composer(on)
        found.put("new", (), ("one", "two"))
        await on.press("up", "up", "up")
        assert (found.text, found.written) == ("one", "new")
        found.give_back("refused", ())
        assert found.text == found.written == "refused\nnew"
        assert found.cursor_location == (1, 3)
