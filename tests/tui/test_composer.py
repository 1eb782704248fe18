from pathlib import Path

from tests.tui.daemonfake import FakeClient, info
from tests.tui.driving import Driver, running
from tui.widgets.composer import Composer


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
