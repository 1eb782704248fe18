"""Copying, from every place that can: it is said what became of it, and where nothing arrives, that."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import tui
from daemon.protocol import api
from tests.tui.daemonfake import FakeClient, info
from tests.tui.driving import Driver, running
from tui.screens.tokens import MadeTokenDialog
from tui.widgets.composer import Composer

REFUSES = {"TERM_PROGRAM": "Apple_Terminal"}
NOTHING = "Apple's Terminal lets no program copy"
NAMES = ("TERM", "TERM_PROGRAM", "VTE_VERSION", "STY", "TMUX")
ROOT = Path(tui.__file__).parent
MADE = api.TokenMade(1, "", 1, "", "2026-12-01T12:00:00.000Z", False, "orj_x", "echo orj_x | sh")


async def ids(on: Driver) -> str:
    await on.sees("session a1")
    await on.press("y")
    return "a1"


async def workers(on: Driver) -> str:
    await on.press("f4")
    await on.sees("local")
    await on.press("y")
    return "local"


async def keys(on: Driver) -> str:
    on.app.action_show("keys")
    await on.sees("app.quit")
    await on.press("y")
    return "a line for outrider.toml"


async def token(on: Driver) -> str:
    on.app.push_screen(MadeTokenDialog(MADE))
    await on.sees("orj_x")
    await on.press("Y")
    return "the token"


async def record(on: Driver) -> str:
    await on.sees("session a1")
    await on.press("enter")
    await on.sees("text 7")
    await on.press("escape", "y")
    return "6 characters"


PLACES = [ids, workers, keys, token, record]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that takes what is copied, as far as is known."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def client() -> FakeClient:
    made = FakeClient()
    made.add(info("a1"))
    return made


@pytest.mark.parametrize("place", PLACES)
async def test_what_was_copied_is_said(tmp_path: Path, place: Callable[[Driver], Awaitable[str]]) -> None:
    async with running(client(), tmp_path) as on:
        what = await place(on)
        await on.until(lambda: len(on.said()) == 1)
        assert on.said()[0].startswith(f"copied {what}")
        assert on.app.clipboard


@pytest.mark.parametrize("place", PLACES)
async def test_where_the_terminal_is_known_to_refuse_that_alone_is_said(
    tmp_path: Path, place: Callable[[Driver], Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in REFUSES.items():
        monkeypatch.setenv(name, value)
    async with running(client(), tmp_path) as on:
        await place(on)
        await on.until(lambda: len(on.said()) == 1)
        assert on.said()[0].startswith(NOTHING)


async def test_ctrl_c_too_says_where_nothing_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in REFUSES.items():
        monkeypatch.setenv(name, value)
    async with running(client(), tmp_path) as on:
        await on.sees("session a1")
        await on.press("enter")
        await on.until(lambda: on.app.shown == "a1")
        found: Composer = on.one(Composer)
        await on.until(lambda: found.has_focus)
        await on.write("words")
        found.select_all()
        await on.press("ctrl+c")
        await on.until(lambda: len(on.said()) == 1)
        assert on.said()[0].startswith(NOTHING)


def test_no_screen_copies_past_the_one_way() -> None:
    past = [
        str(path.relative_to(ROOT))
        for path in sorted(ROOT.rglob("*.py"))
        if "copy_to_clipboard" in path.read_text()
    ]
    assert past == ["deeds.py", "log/record.py"]
