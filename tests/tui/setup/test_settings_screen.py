import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from daemon.harness.errors import Conflict
from daemon.protocol import api
from daemon.protocol.records import Config
from tests.tui.served import LARGE, SMALL, Daemon, Screen, daemon, screen
from tests.tui.snapshots import check
from tui import keymap, places

SECRET = "sk-123456789"


@pytest.fixture
async def served() -> AsyncIterator[Daemon]:
    async with daemon() as made:
        made.workers(api.WorkerInfo("local", "connected"))
        yield made


async def opened(at: Screen) -> None:
    await at.shows("No session yet")
    await at.press("f9")
    await at.shows("Providers", "rehearsal", "Colours")


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_settings_are_on_one_screen(served: Daemon, size: tuple[int, int]) -> None:
    async with screen(served, size) as at:
        await opened(at)
        check(__file__, f"settings-{size[0]}x{size[1]}", at.text)
        await at.press("escape")
        await at.shows("No session yet")


async def test_a_provider_gets_its_key_and_the_screen_never_shows_it(served: Daemon) -> None:
    served.providers.kind = "messages"
    async with screen(served) as at:
        await opened(at)
        await at.press("enter")
        await at.shows("The key of rehearsal", "none.")
        await at.press("enter")
        await at.shows("key: paste one")
        await at.write(SECRET)
        assert SECRET not in at.text
        await at.press("enter")
        await at.tells("rehearsal has its key")
        await at.loses("The key of rehearsal")
        assert SECRET not in at.text
        assert served.providers.settings == [("rehearsal", api.ProviderSetting(key=SECRET))]


async def test_a_key_that_outrider_toml_has_is_refused_and_the_dialog_says_why(served: Daemon) -> None:
    served.providers.kind = "messages"
    served.providers.failure = Conflict("key: outrider.toml has it")
    async with screen(served) as at:
        await opened(at)
        await at.press("p")
        await at.shows("The key of rehearsal")
        await at.write(SECRET)
        await at.press("enter")
        await at.shows("key: outrider.toml has it")
        await at.press("escape")
        await at.loses("The key of rehearsal")


async def test_who_is_not_admin_is_told_so(served: Daemon) -> None:
    async with daemon("operator") as guarded, screen(guarded) as at:
        guarded.providers.kind = "messages"
        await opened(at)
        await at.press("p")
        await at.shows("The key of rehearsal")
        await at.write(SECRET)
        await at.press("enter")
        await at.shows("the key laptop is operator's; this takes admin's")


async def test_a_rehearsal_takes_no_key(served: Daemon) -> None:
    async with screen(served) as at:
        await opened(at)
        await at.press("enter")
        await at.tells("rehearsal plays from a script and needs no key")


async def test_colours_hold_at_once_and_are_kept(served: Daemon) -> None:
    async with screen(served) as at:
        await opened(at)
        await at.press("tab", "tab", "tab", "home", "down", "enter")
        picked = at.app.theme
        assert picked != "textual-dark"
        assert at.app.prefs.theme == picked
        await asyncio.to_thread(at.app.desk.save)
    async with screen(served) as at:
        assert at.app.theme == picked


async def test_what_is_told_is_kept(served: Daemon) -> None:
    async with screen(served) as at:
        await opened(at)
        assert not at.app.prefs.quiet
        await at.press("tab", "space", "tab", "space")
        await at.until(lambda: at.app.prefs.quiet and at.app.prefs.bell)
        before = {"1": api.Info("1", "stepping", Config("rehearsal/tour"), "2026", "2026", 3)}
        at.app.roster.take(msgspec.structs.replace(before["1"], status="failed", n=4))
        at.app._toast({"1"}, before)
        at.app.tell("after it")
        await at.tells("after it")
        assert at.toasts == ["after it"]
        at.app.prefer(quiet=False)
        at.app._toast({"1"}, before)
        await at.tells("failed")


async def test_every_key_stands_in_the_list_with_its_id(served: Daemon) -> None:
    ids = {one.id for place in places.places() for one in keymap.shown(place, {})}
    async with screen(served, LARGE) as at:
        await opened(at)
        await at.press("e")
        await at.shows("app.quit", "ctrl+q", "Everywhere")
        assert {row.value for row in at.app.screen.query_one("#keys").rows} == ids  # type: ignore[attr-defined]
        await at.press("y")
        assert at.app.clipboard == "[tui.keys]\n\"app.quit\" = ''\n"
        await at.press("q")
        await at.shows("Providers")


async def test_the_palette_leads_to_each_screen(served: Daemon) -> None:
    async with screen(served, LARGE) as at:
        await at.shows("No session yet")
        for words, more, shown in (
            ("go to workers", "which are here", "1 worker, 1 connected"),
            ("go to join tokens", "new ones", "No token yet"),
            ("go to settings", "providers' keys", "Colours"),
            ("go to keys", "every key", "app.quit"),
            ("go to new", "model, workers", "the daemon's default"),
        ):
            await at.press("ctrl+p")
            await at.write(words)
            await at.shows(words, more)
            await at.press("enter")
            await at.shows(shown)
        await at.press("ctrl+p")
        await at.write("go to sessions")
        await at.shows("the list")
        await at.press("enter")
        await at.shows("No session yet")


def test_every_id_is_given_once_and_every_place_is_without_a_clash() -> None:
    found = places.places()
    ids = [binding.id for place in found for binding in place.bindings]
    assert len(ids) == len(set(ids))
    keymap.checked({}, found)
