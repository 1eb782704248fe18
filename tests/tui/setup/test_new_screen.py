from collections.abc import AsyncIterator

import pytest

from daemon.harness.errors import Invalid
from daemon.protocol import api
from daemon.protocol.records import Limits, WorkerRef
from tests.tui.served import Daemon, Screen, daemon, screen
from tests.tui.snapshots import LARGE, SIZES, check
from tui.choice import Choice
from tui.screens.new import NewScreen

LOCAL = api.WorkerInfo("local", "connected")
GPU = api.WorkerInfo("gpu", "gone")


@pytest.fixture
async def served() -> AsyncIterator[Daemon]:
    async with daemon() as made:
        made.workers(LOCAL, GPU)
        yield made


async def opened(at: Screen) -> None:
    await at.shows("No session yet")
    await at.press("n")
    await at.shows("message", "gpu · gone", "the daemon's default, rehearsal/tour")


async def made(at: Screen, served: Daemon) -> api.Create:
    """What the daemon was asked for, once it was."""
    await at.until(lambda: bool(served.harness.created))
    return served.harness.created[-1]


@pytest.mark.parametrize("size", SIZES)
async def test_a_message_and_enter_make_a_session_here_and_post_it(
    served: Daemon, size: tuple[int, int]
) -> None:
    async with screen(served, size) as at:
        await opened(at)
        check(__file__, f"new-{size[0]}x{size[1]}", at.text)
        await at.write("Hello")
        await at.press("ctrl+j")
        await at.write("you")
        await at.press("enter")
        assert await made(at, served) == api.Create(workers=(WorkerRef("local", "/home/ada/src"),))
        await at.until(lambda: bool(served.harness.posts))
        ((parts, _),) = served.harness.posts.values()
        assert [part.body for part in parts] == [b"Hello\nyou"]
        await at.until(lambda: at.app.shown != "")
        assert at.app.desk.draft("new").text == ""


async def test_without_a_message_it_is_made_all_the_same(served: Daemon) -> None:
    async with screen(served) as at:
        await opened(at)
        await at.press("f2")
        await made(at, served)
        await at.until(lambda: at.app.shown != "")
        assert served.harness.posts == {}


async def test_the_model_is_picked_from_what_is_served_or_written(served: Daemon) -> None:
    async with screen(served) as at:
        await opened(at)
        await at.press("tab")
        await at.shows("rehearsal/tour · context 1000 · default")
        await at.write("xyz")
        await at.shows("no model that is served has 'xyz'")
        await at.press("backspace", "backspace", "backspace")
        await at.write("tou")
        await at.press("down", "enter")
        await at.until(lambda: at.app.screen.query_one("#model-name").value == "rehearsal/tour")  # type: ignore[attr-defined]
        await at.press("f2")
        assert (await made(at, served)).model == "rehearsal/tour"


async def test_enter_takes_the_only_model_that_passes(served: Daemon) -> None:
    async with screen(served) as at:
        await opened(at)
        await at.press("tab")
        await at.write("our")
        await at.press("enter", "f2")
        assert (await made(at, served)).model == "rehearsal/tour"


async def test_every_field_goes_to_the_daemon_and_is_chosen_again_the_next_time(served: Daemon) -> None:
    async with screen(served, LARGE) as at:
        await opened(at)
        await at.press("tab")
        await at.write("a/b")
        await at.press("enter", "space", "tab", "tab", "space", "tab")
        await at.write("/data")
        await at.press("tab")
        await at.write("200k")
        for limit in ("50", "2M", "30m", "$0.50"):
            await at.press("tab")
            await at.write(limit)
        await at.press("tab")
        await at.write("run read")
        await at.press("tab")
        await at.write("Be brief.")
        await at.press("tab")
        await at.write("top_k = 3")
        await at.press("f2")
        wanted = api.Create(
            model="a/b",
            workers=(WorkerRef("gpu", "/data"),),
            context=200_000,
            tools=("run", "read"),
            params={"top_k": 3},
            limits=Limits(steps=50, tokens=2_000_000, seconds=1800, cost=0.5),
            instructions="Be brief.",
        )
        assert await made(at, served) == wanted
        await at.until(lambda: at.app.shown != "")
        assert at.app.prefs.choice == Choice(
            "a/b", wanted.workers, "200k", "run read", "top_k = 3", "50", "2M", "30m", "$0.50", "Be brief."
        )
    async with screen(served, LARGE) as at:
        await at.until(lambda: at.app.roster.loaded)
        await at.press("ctrl+n")
        await at.shows("a/b", "/data", "200k", "30m", "$0.50", "run read", "Be brief.", "top_k = 3")
        await at.press("f2")
        await at.until(lambda: len(served.harness.created) == 2)
        assert served.harness.created[1] == wanted


async def test_what_cannot_be_is_told_at_each_field_before_the_daemon_is_asked(served: Daemon) -> None:
    async with screen(served, LARGE) as at:
        await opened(at)
        at.app.screen.query_one("#context").value = "much"  # type: ignore[attr-defined]
        at.app.screen.query_one("#params").text = "{"  # type: ignore[attr-defined]
        await at.press("f2")
        await at.shows("'much' is not a number of tokens", "not valid JSON")
        assert at.app.focused is at.app.screen.query_one("#context")
        at.app.screen.query_one("#context").value = ""  # type: ignore[attr-defined]
        at.app.screen.query_one("#seconds").value = "soon"  # type: ignore[attr-defined]
        at.app.screen.query_one("#cost").value = "a lot"  # type: ignore[attr-defined]
        await at.press("f2")
        await at.shows("seconds: 'soon' is not a time: write 90, 30m or 2h", "cost: 'a lot' is not an amount")
        assert "not a number of tokens" not in at.text
        assert at.app.focused is at.app.screen.query_one("#seconds")
        assert served.harness.created == []


@pytest.mark.parametrize("size", SIZES)
async def test_what_the_daemon_refuses_is_told_at_its_field(served: Daemon, size: tuple[int, int]) -> None:
    async with screen(served, size) as at:
        await opened(at)
        await at.press("tab")
        await at.write("nobody/none")
        await at.press("shift+tab")
        await at.write("Hello")
        await at.press("enter")
        await at.shows("no provider serves nobody/none")
        assert at.app.focused is at.app.screen.query_one("#model-name")
        served.harness.failure = Invalid("limits.steps: out of bounds")
        at.app.screen.query_one("#model-name").value = ""  # type: ignore[attr-defined]
        await at.press("f2")
        await at.shows("steps: out of bounds")
        assert at.app.focused is at.app.screen.query_one("#steps")
        served.harness.failure = None
        await at.press("f2")
        await at.until(lambda: bool(served.harness.posts))
        ((parts, _),) = served.harness.posts.values()
        assert [part.body for part in parts] == [b"Hello"]


async def test_what_is_written_stays_when_the_screen_is_left(served: Daemon) -> None:
    async with screen(served) as at:
        await opened(at)
        await at.write("half a thought")
        await at.press("escape")
        await at.shows("No session yet")
        await at.press("n")
        await at.shows("half a thought")
    async with screen(served) as at:
        await at.press("ctrl+n")
        await at.shows("half a thought")
        await at.press("ctrl+n")
        assert sum(isinstance(one, NewScreen) for one in at.app.screen_stack) == 1


async def test_what_is_written_stays_also_where_the_screen_goes_by_another_key(served: Daemon) -> None:
    async with screen(served) as at:
        await opened(at)
        await at.write("half a thought")
        await at.press("ctrl+s")
        await at.shows("No session yet")
        await at.press("n")
        await at.shows("half a thought")
        await at.write(", and more")
        await at.until(
            lambda: at.app.desk.draft("new").text == "half a thought, and more"
        )  # also while it is open
        await at.write(" still")
        await at.press("ctrl+q")
    async with screen(served) as at:
        await at.press("ctrl+n")
        await at.shows("half a thought, and more still")


async def test_a_worker_that_comes_is_offered_at_once(served: Daemon) -> None:
    async with screen(served) as at:
        await opened(at)
        served.workers(LOCAL, api.WorkerInfo("gpu", "connected"), api.WorkerInfo("rack", "connected"))
        await at.shows("gpu · connected", "rack · connected")


async def test_a_viewer_is_told_that_it_may_not() -> None:
    async with daemon("viewer") as served:
        served.workers(LOCAL)
        async with screen(served) as at:
            await at.until(lambda: at.app.roster.loaded)
            await at.press("n")
            await at.shows("message")
            await at.press("f2")
            await at.shows("the key laptop is viewer's; this takes operator's")
