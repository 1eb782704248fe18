"""Names, titles and a daemon's words that would act on a terminal, or on the app, in every place that shows them."""

import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from daemon.client import ApiFailure
from daemon.protocol import api
from daemon.protocol.records import Config, WorkerRef
from tests.tui.daemonfake import FakeClient, info, stored
from tests.tui.driving import Driver, running
from tui import patches

EVIL = "EVIL\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\u202eRTL\u2066\u200b\u2028\x00\x85\r\n[@click=app.quit]x[/]"
ACTS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028\u2029\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


class Hostile(FakeClient):
    """A daemon whose every name is hostile."""

    def __init__(self) -> None:
        super().__init__()
        self.worker_infos = (
            api.WorkerInfo(EVIL, "connected", reason=EVIL, os=EVIL, hostname=EVIL, interpreters=(EVIL,)),
            api.WorkerInfo("local", "refused", reason=EVIL),
        )
        config = Config(EVIL, workers=(WorkerRef(EVIL, EVIL), WorkerRef("gone", EVIL)))
        origin = api.Origin(EVIL, 3)
        for at, status in enumerate(("closed", "failed", "damaged"), 1):
            made = info(f"a{at}", status, EVIL, n=2, config=config, from_=origin, damage=EVIL)  # type: ignore[arg-type]
            self.add(made, stored(1, "start"), stored(2, "message", EVIL, via=EVIL))

    async def providers(self, wait: float = 0.0) -> api.Providers:
        models = (api.ModelInfo(EVIL), api.ModelInfo(EVIL))
        there = api.ProviderInfo(EVIL, EVIL, EVIL, True, True, models, EVIL, EVIL, region=EVIL)
        return api.Providers(EVIL, (there,), (api.Offer(f"x{EVIL}", ("region", "key")),))

    async def workers(self) -> Sequence[api.WorkerInfo]:
        return self.worker_infos

    async def mesh(self) -> api.MeshInfo:
        return api.MeshInfo("failing", EVIL, EVIL)

    async def tokens(self) -> Sequence[api.TokenInfo]:
        return [api.TokenInfo(1, EVIL, "good", 1, EVIL, EVIL, False, (EVIL,))]


def harmless(on: Driver) -> None:
    """Nothing on the screen acts, also where no patch would take it out."""
    shown = on.text()
    assert not ACTS.search(shown.replace("\n", "")), ascii(shown)


async def test_no_screen_draws_what_acts_on_a_terminal(tmp_path: Path) -> None:
    async with running(Hostile(), tmp_path, (160, 50)) as on:
        await on.until(lambda: len(on.app.roster.infos) == 3)
        await on.sees("EVIL")
        harmless(on)
        on.app.open_session("a2")
        await on.until(lambda: on.client.following("a2"))
        await on.sees("✓ EVIL")
        on.client.stream("a2", api.RetryEvent(EVIL, 1.0, 1))
        await on.sees("trying again")
        harmless(on)
        await on.press("f3")
        await on.sees("from its next step on")
        harmless(on)
        await on.press("escape")
        on.app.action_sessions()
        for name, seen in (
            ("workers", "reason"),
            ("tokens", "EVIL"),
            ("settings", "new sessions have EVIL"),
            ("new", "[@click=app.quit]x[/]"),
        ):
            on.app.action_show(name)
            await on.sees(seen)
            harmless(on)
            if name == "settings":
                await on.press("enter")
                await on.sees("key of")
                harmless(on)
                await on.press("escape", "down", "enter")
                await on.sees("Set up x")
                harmless(on)
                await on.press("escape")
            await on.press("escape")
        await on.press("ctrl+p")
        await on.write("go to session")
        await on.sees("go to session EVIL")
        harmless(on)


async def test_a_list_of_models_with_one_twice_is_filtered_as_any_other(tmp_path: Path) -> None:
    async with running(Hostile(), tmp_path, (160, 50)) as on:
        on.app.action_show("new")
        await on.sees("the daemon's default, EVIL")
        await on.press("tab")
        await on.write("evil")
        await on.sees("default")
        harmless(on)
        assert on.said() == []


async def test_a_refusal_to_be_watched_is_told_without_what_it_would_do(tmp_path: Path) -> None:
    client = FakeClient()
    async with running(client, tmp_path) as on:
        await on.until(lambda: on.app.linked.is_set())
        client.tell(ApiFailure(403, EVIL))
        await on.sees("EVIL")
        harmless(on)


def test_what_a_widget_forgot_is_taken_out_of_the_line_that_is_drawn() -> None:
    assert patches.apply()
    strip = Strip(
        [Segment(EVIL, Style()), Segment("\ud800é\t👩\u200d💻", Style()), Segment("\x1b[H", None, [])]
    )
    width = strip.cell_length
    drawn = strip.render(Console())
    assert drawn == "EVIL]52;c;aGk=[2J31mRTL[@click=app.quit]x[/]\ufffdé👩\u200d💻\x1b[H"
    assert strip.cell_length == width
