"""What a cap on sessions counts, and what expires: never other than what the sessions themselves say."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.definition.agent import parse
from daemon.harness.census import Census
from daemon.harness.errors import Ended, HarnessError, Invalid
from daemon.protocol import api
from daemon.protocol.records import Config, Limits, draft
from daemon.statefile.memory import MemoryStore
from tests.daemon.harness.doubles import Bench, Clock, FakePool, FakeProvider, bench, says, text

AGENT = parse(
    b"apiVersion: agent-controller.dev/v1alpha1\nkind: Agent\nmetadata: {name: a}\n"
    b"spec: {task: 'Do ${inputs.what}.', tools: []}\n",
    "a.yaml",
)
TTL = 1000.0
Act = Callable[["World"], Coroutine[Any, Any, None]]


class World:
    """A harness over sessions in memory, and what a client can do to it."""

    def __init__(self, clock: Clock, b: Bench) -> None:
        self.clock = clock
        self.b = b
        self.census = b.harness.census

    async def create(self, inputs: dict[str, str], ttl: float = TTL) -> str:
        """As the agent-server surface does it."""
        assert self.census.take("v1", 0)
        try:
            asked = api.Create(agent="a", inputs=inputs, limits=Limits(ttl=ttl))
            return await self.b.harness.create(asked, "v1")
        finally:
            self.census.give("v1")

    async def session(self, which: int) -> str:
        found = [info.id for info in await self.b.harness.list(limit=1000)]
        return sorted(found)[which % len(found)] if found else await self.create({"what": "x"})

    async def check(self) -> None:
        found = await self.b.harness.list(limit=1000)
        over = ("ended", "expired", "damaged")
        counted = [
            info
            for info in found
            if info.config.surface == "v1" and info.from_ is None and info.status not in over
        ]
        assert self.census.count("v1") == len(counted)


async def made(world: World) -> None:
    await world.create({"what": "it"})


async def failed(world: World) -> None:
    with pytest.raises(Invalid):
        await world.create({"who": "it"})


async def native(world: World) -> None:
    await world.b.harness.create(api.Create(model="fake/m", limits=Limits(ttl=TTL)))


async def swept(world: World) -> None:
    world.clock.now += timedelta(seconds=TTL / 2)
    await world.b.harness.sweep()


async def set_back(world: World) -> None:
    world.clock.now -= timedelta(seconds=TTL / 4)
    await world.b.harness.sweep()


def to(which: int, what: str) -> Act:
    """Something done to one session, whatever it answers."""

    async def act(world: World) -> None:
        id = await world.session(which)
        harness = world.b.harness
        with contextlib.suppress(HarnessError):
            match what:
                case "end":
                    await harness.end(id, "me")
                case "copy":
                    await harness.create(api.Create(from_=id))
                case "turn":
                    world.b.provider.answers.append(says(text("x")))
                    try:
                        await world.b.post(id, "hi")
                    except Ended:
                        world.b.provider.answers.pop()
                    await world.b.rest(id)
                case "mortal" | "immortal":
                    ttl = TTL if what == "mortal" else None
                    await harness.patch_config(id, "me", api.ConfigPatch(limits=api.LimitsPatch(ttl=ttl)))
                case _:
                    raise AssertionError(what)

    return act


ACTS = st.one_of(
    st.sampled_from([made, failed, native, swept, set_back]),
    st.builds(to, st.integers(0, 5), st.sampled_from(["end", "copy", "turn", "mortal", "immortal"])),
)


async def play(path: Path, lives: Sequence[Sequence[Act]]) -> None:
    """Each life a daemon's, on the same sessions."""
    clock = Clock()
    store = MemoryStore(path, clock=clock)
    for life in lives:
        async with bench(store, FakeProvider(), FakePool("local"), clock=clock, agents={"a": AGENT}) as b:
            world = World(clock, b)
            await world.census.complete.wait()
            await world.check()
            for act in life:
                await act(world)
                await world.check()
    await store.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ACTS, max_size=8), min_size=1, max_size=3))
def test_the_count_is_what_the_sessions_say_after_anything(lives: list[list[Act]]) -> None:
    asyncio.run(play(Path("/nowhere"), lives))


async def test_a_copy_neither_takes_a_place_nor_expires_before_it_is_used(tmp_path: Path) -> None:
    clock = Clock()
    store = MemoryStore(tmp_path, clock=clock)
    provider = FakeProvider(says(text("x")), says(text("y")))
    async with bench(store, provider, FakePool("local"), clock=clock, agents={"a": AGENT}) as b:
        world = World(clock, b)
        id = await world.create({"what": "x"})
        await b.post(id, "hi")
        await b.rest(id)
        clock.now += timedelta(seconds=2 * TTL)
        await b.harness.sweep()
        assert (await b.harness.info(id)).status == "expired"
        copy = await b.harness.create(api.Create(from_=id))
    async with bench(store, provider, FakePool("local"), clock=clock, agents={"a": AGENT}) as b:
        await b.harness.census.complete.wait()
        assert b.harness.census.count("v1") == 0
        await b.harness.sweep()
        assert (await b.harness.info(copy)).status == "closed"
        await b.post(copy, "on")
        assert await b.rest(copy) == "closed"
        await b.harness.sweep()
        assert (await b.harness.info(copy)).status == "closed"
        clock.now += timedelta(seconds=2 * TTL)
        await b.harness.sweep()
        assert (await b.harness.info(copy)).status == "expired"
    await store.close()


async def test_a_damaged_session_gives_its_place_back_and_is_left_alone(tmp_path: Path) -> None:
    clock = Clock()
    store = MemoryStore(tmp_path, clock=clock)
    async with bench(store, FakeProvider(), FakePool("local"), clock=clock, agents={"a": AGENT}) as b:
        world = World(clock, b)
        id = await world.create({"what": "x"})
        await (await store.open(id)).append(draft("config", "nonsense"))
        clock.now += timedelta(seconds=2 * TTL)
        await b.harness.sweep()
        assert (await b.harness.info(id)).status == "damaged"
        assert b.harness.census.count("v1") == 0
        assert not list(b.harness.census.idle(clock()))
    await store.close()


async def test_a_ttl_longer_than_any_calendar_is_only_long(tmp_path: Path) -> None:
    clock = Clock()
    store = MemoryStore(tmp_path, clock=clock)
    async with bench(store, FakeProvider(), FakePool("local"), clock=clock, agents={"a": AGENT}) as b:
        id = await World(clock, b).create({"what": "x"}, ttl=1e300)
        await b.harness.sweep()
        assert (await b.harness.info(id)).status == "closed"
    await store.close()


def test_what_ended_while_the_start_was_counted_stays_uncounted() -> None:
    census, time = Census(), "2026-01-01T00:00:00Z"
    listed = api.Info("a", "closed", Config("fake/m", surface="v1"), time, time, 3)
    census.saw(api.Info("a", "ended", Config("fake/m", surface="v1"), time, time, 4))
    census.found(listed)
    census.counted()
    assert census.count("v1") == 0
    census.found(listed)
    assert census.count("v1") == 1
