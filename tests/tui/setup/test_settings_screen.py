import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from textual.widgets import Input

from daemon.harness.errors import Conflict
from daemon.protocol import api
from daemon.protocol.records import Config
from tests.tui.served import Daemon, Screen, daemon, screen
from tests.tui.snapshots import LARGE, SMALL, check
from tui import keymap, places

SECRET = "sk-123456789"
OFFERED: tuple[api.Offer, ...] = (
    api.Offer("anthropic", ("key",)),
    api.Offer("openai-chat", ("url", "key")),
    api.Offer("bedrock", ("region", "key")),
)


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


async def test_the_first_provider_is_set_up_and_new_sessions_have_its_models(served: Daemon) -> None:
    served.providers.offered = OFFERED
    async with screen(served, LARGE) as at:
        await opened(at)
        check(__file__, "settings-fresh-160x45", at.text)
        await at.press("enter")
        await at.shows("Set up anthropic")
        await at.press("enter")
        await at.shows("key: paste one, or leave it with esc")
        await at.write(SECRET)
        assert SECRET not in at.text
        await at.press("enter")
        await at.tells("anthropic has its key, and 2 models")
        await at.shows("new sessions have anthropic/best", "not set up")
        assert served.providers.settings == [("anthropic", api.ProviderSetting(key=SECRET))]
        await at.press("escape", "n")
        await at.shows("the daemon's default, anthropic/best")


async def test_a_chat_server_is_set_up_by_its_address_alone(served: Daemon) -> None:
    served.providers.offered = OFFERED
    async with screen(served) as at:
        await opened(at)
        await at.press("down", "enter")
        await at.shows("Set up openai-chat", "a local server needs none")
        check(__file__, "settings-chat-80x24", at.text)
        await at.press("enter")
        await at.shows("key: paste one, write its url, or leave it with esc")
        await at.write("http://127.0.0.1:1/v1")
        await at.press("enter")
        await at.tells("openai-chat is set up, and 2 models")
        assert served.providers.settings == [
            ("openai-chat", api.ProviderSetting(url="http://127.0.0.1:1/v1"))
        ]


async def test_what_is_left_as_it_is_is_not_sent(served: Daemon) -> None:
    served.providers.offered = OFFERED
    async with screen(served) as at:
        await opened(at)
        await at.press("down", "down", "enter")
        await at.shows("Set up bedrock")
        await at.press("tab")
        await at.write(SECRET)
        await at.press("enter")
        await at.tells("bedrock has no region yet: enter on it sets one")
        await at.shows("no region")
        await at.press("enter")
        await at.shows("The key of bedrock", "takes out the one that was set here")
        await at.write("eu-west-1")
        await at.press("enter")
        await at.tells("bedrock is set up")
        await at.shows("eu-west-1")
        await at.press("enter")
        await at.shows("The key of bedrock")
        await at.press("enter")
        await at.shows("key: paste one, write its region, or leave it")
        await at.press("tab", "enter")
        await at.tells("the key of bedrock that was set here is out")
        assert [setting for _, setting in served.providers.settings] == [
            api.ProviderSetting(key=SECRET),
            api.ProviderSetting(region="eu-west-1"),
            api.ProviderSetting(key=""),
        ]


async def test_a_key_that_is_not_where_it_should_be_is_told_with_its_reason(served: Daemon) -> None:
    served.providers.kind, served.providers.problem = (
        "messages",
        "there is no $MINE in the daemon's environment",
    )
    async with screen(served) as at:
        await opened(at)
        await at.shows("missing", "rehearsal: there is no $MINE")
        await at.press("enter")
        await at.shows("missing: there is no $MINE")


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
            at.app.screen.query_one(Input).value = words  # as one that pastes it
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
