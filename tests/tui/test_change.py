"""What a session has, changed from its screen."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from textual.widgets import Input

from daemon.client import ApiFailure
from daemon.protocol import api
from daemon.protocol.records import Config, Limits, WorkerRef
from tests.tui.daemonfake import FakeClient, info, stored
from tests.tui.driving import Driver, running
from tests.tui.snapshots import SIZES, check, screen_text
from tui import change
from tui.choice import Choice, Wrong

CONFIG = Config(
    "m/one",
    tools="patch",
    workers=(WorkerRef("local", "/src"),),
    context=4000,
    params={"temperature": 2, "thinking": {"type": "on", "budget": 9}},
    limits=Limits(steps=50, seconds=90.5, cost=2, ttl=60),
    derived=("tools",),
)
FORM = change.written(CONFIG)


def differs(**fields: object) -> change.Change:
    return change.change(CONFIG, msgspec.structs.replace(FORM, **fields))


def test_a_configuration_reads_as_it_would_be_written_and_back_without_a_difference() -> None:
    assert (FORM.model, FORM.context, FORM.tools) == ("m/one", "4000", "")
    assert (FORM.steps, FORM.tokens, FORM.seconds, FORM.cost) == ("50", "", "90.5", "2")
    for config in (
        CONFIG,
        Config("m"),
        Config("m", tools=("run", "read")),
        Config("m", tools="default", context=123_456_789, limits=Limits(tokens=1_234_567, cost=0.001)),
    ):
        assert not change.change(config, change.written(config))


@pytest.mark.parametrize(
    ("fields", "patch"),
    [
        ({"model": "m/two"}, api.ConfigPatch(model="m/two")),
        ({"model": ""}, api.ConfigPatch(model=None)),
        ({"context": "8k"}, api.ConfigPatch(context=8000)),
        ({"context": ""}, api.ConfigPatch(context=0)),
        (
            {"steps": "", "tokens": "2M"},
            api.ConfigPatch(limits=api.LimitsPatch(steps=None, tokens=2_000_000)),
        ),
        ({"tools": "run read"}, api.ConfigPatch(tools=("run", "read"))),
        ({"params": ""}, api.ConfigPatch(params={"temperature": None, "thinking": None})),
        (
            {"params": 'temperature = 1\ntop_p = 0.9\nthinking = {type = "on"}'},
            api.ConfigPatch(params={"temperature": 1, "top_p": 0.9, "thinking": {"budget": None}}),
        ),
    ],
)
def test_only_what_differs_is_asked_for(fields: dict[str, object], patch: api.ConfigPatch) -> None:
    assert differs(**fields) == change.Change(patch, None)


def test_workers_are_named_whole_in_any_order() -> None:
    both = (WorkerRef("gpu"), WorkerRef("local", "/src"))
    assert differs(workers=both).workers == both
    assert differs(workers=()).workers == ()
    assert differs(workers=(WorkerRef("local", "/other"),)).workers == (WorkerRef("local", "/other"),)
    two = msgspec.structs.replace(CONFIG, workers=both)
    assert not change.change(two, msgspec.structs.replace(change.written(two), workers=both[::-1]))


def test_a_session_without_workers_has_none_ticked_and_one_that_is_gone_is_offered() -> None:
    there = (api.WorkerInfo("local", "connected"), api.WorkerInfo("gpu", "connected"))
    assert [ticked for *_, ticked in change.offered(there, Config("m"))] == [False, False]
    gone = Config("m", workers=(WorkerRef("far", "/x"),))
    assert change.offered(there, gone)[-1] == ("far", "/x", True)


def test_what_cannot_be_names_each_field() -> None:
    with pytest.raises(Wrong) as caught:
        change.change(CONFIG, Choice(context="much", steps="few"))
    assert set(caught.value.fields) == {"context", "limits"}


def test_names_that_would_act_on_a_terminal_are_shown_harmless_and_stay_as_they_are() -> None:
    evil = "/x\x1b[2J\u202e\x9b"
    config = Config(f"m{evil}", workers=(WorkerRef("w", evil),), params={evil: evil}, tools=(evil,))
    form = change.written(config)
    for text in (form.model, form.workers[0].cwd, form.params.replace("\n", ""), form.tools):
        assert text.isprintable(), ascii(text)
    assert not change.change(config, form)
    again = change.change(config, msgspec.structs.replace(form, params=form.params.replace("}", ', "a": 1}')))
    assert again == change.Change(api.ConfigPatch(params={"a": 1}), None)


# The screen.


class Changing(FakeClient):
    """One that takes changes of a session."""

    def __init__(self, **fields: object) -> None:
        super().__init__()
        self.patches: list[api.ConfigPatch] = []
        self.sets: list[Sequence[WorkerRef]] = []
        self.wrong: ApiFailure | None = None
        made = info("a1", "failed", "Mend the fence", n=2, config=CONFIG)
        self.add(
            msgspec.structs.replace(made, **fields), stored(1, "start"), stored(2, "message", "x", via="x")
        )

    async def patch_config(self, id: str, patch: api.ConfigPatch, via: str) -> int:
        if self.wrong is not None:
            raise self.wrong
        self.patches.append(patch)
        return 3

    async def set_workers(self, id: str, workers: Sequence[WorkerRef], via: str) -> int:
        self.sets.append(workers)
        self.change(id, config=msgspec.structs.replace(self.infos[id].config, workers=tuple(workers)))
        return 4


async def opened(on: Driver) -> None:
    await on.until(lambda: "a1" in on.app.roster.infos)
    on.app.open_session("a1")
    await on.until(lambda: on.client.following("a1"))
    await on.press("f3")
    await on.sees("Mend the fence, from its next step on")
    await on.sees("local · connected")


def put(on: Driver, field: str, text: str) -> None:
    on.app.screen.query_one(f"#{field}", Input).value = text


@pytest.mark.parametrize("size", SIZES)
async def test_it_begins_with_what_the_session_has(tmp_path: Path, size: tuple[int, int]) -> None:
    async with running(Changing(), tmp_path, size) as on:
        await opened(on)
        await on.sees('"temperature": 2')
        check(__file__, f"change-{size[0]}x{size[1]}", screen_text(on.app))
        await on.press("enter")
        await on.until(lambda: on.app.shown == "a1")
        assert on.said() == [], "nothing was changed"


@pytest.mark.parametrize("status", ["ended", "expired"])
async def test_a_session_that_is_over_shows_no_form(tmp_path: Path, status: str) -> None:
    async with running(Changing(status=status), tmp_path) as on:
        await on.until(lambda: "a1" in on.app.roster.infos)
        on.app.open_session("a1")
        await on.until(lambda: on.client.following("a1"))
        await on.press("f3")
        await on.until(lambda: bool(on.said()))
        assert on.said() == ["this session is over; f in the log goes on in a copy of it"]
        assert on.app.shown == "a1"


async def test_what_is_changed_holds_from_the_next_step_on(tmp_path: Path) -> None:
    client = Changing()
    async with running(client, tmp_path) as on:
        await opened(on)
        put(on, "context", "200k")
        put(on, "steps", "")
        on.app.screen.query_one("WorkerPick Input", Input).value = "/other"
        await on.press("f2")
        await on.until(lambda: bool(client.sets))
        await on.until(lambda: on.app.shown == "a1")
        limits = api.LimitsPatch(steps=None)
        assert client.patches == [api.ConfigPatch(context=200_000, limits=limits)]
        assert client.sets == [(WorkerRef("local", "/other"),)]
        assert on.said() == ["Mend the fence: it holds from the next step on; ctrl+r retries"]


async def test_what_is_wrong_is_told_at_its_field_and_nothing_is_changed(tmp_path: Path) -> None:
    client = Changing()
    async with running(client, tmp_path) as on:
        await opened(on)
        put(on, "cost", "a lot")
        await on.press("enter")
        await on.sees("cost: 'a lot' is not an amount")
        put(on, "cost", "3")
        client.wrong = ApiFailure(422, "model: no provider serves m/two")
        put(on, "model-name", "m/two")
        await on.press("f2")
        await on.sees("no provider serves m/two")
        client.wrong = ApiFailure(409, "it is an agent's session")
        await on.press("f2")
        await on.sees("it is an agent's session")
        await on.press("escape")
        await on.until(lambda: on.app.shown == "a1")
        assert client.patches == []


async def test_a_session_that_is_over_offers_no_change_in_its_last_line(tmp_path: Path) -> None:
    async with running(Changing(status="ended"), tmp_path) as on:
        await on.until(lambda: "a1" in on.app.roster.infos)
        on.app.open_session("a1")
        await on.until(lambda: on.client.following("a1"))
        assert "session.change" in on.app.screen.idle()  # type: ignore[attr-defined]
