"""What sessions cost, by their own records, and the limit of it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.harness import errors
from daemon.protocol import api
from daemon.protocol.api import Price
from daemon.protocol.records import Limits, Usage
from daemon.provider.base import Outcome, ProviderError
from daemon.statefile.store import Store
from tests.daemon.harness.doubles import (
    Clock,
    FakeDecoder,
    FakePool,
    FakeProvider,
    Scripted,
    bench,
    run,
    says,
    text,
)

DEAR = Price(100_000, 200_000, 10_000, 125_000)  # a tenth of a dollar for a token


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path, clock=Clock())
    yield store
    await store.close()


def priced(*answers: list[Scripted], price: Price | None = DEAR) -> FakeProvider:
    provider = FakeProvider(*answers)
    provider.price = price
    return provider


def cached(*blocks: Any, end: Any = "normal") -> list[Scripted]:
    return [*blocks, Outcome(Usage(1, 1, 100, 8), end, end)]


async def test_a_session_says_what_it_cost_in_memory_in_the_list_and_after_a_restart(store: Store) -> None:
    async with bench(store, priced(says(text("a")), cached(text("b"))), FakePool("w")) as b:
        id = await b.session()
        await b.rest(id)
        assert (await b.harness.info(id)).cost == pytest.approx(10 * 0.1 + 5 * 0.2)
        await b.post(id, "more")
        await b.rest(id)
        whole = pytest.approx(2 + 0.1 + 0.2 + 100 * 0.01 + 8 * 0.125)
        assert (await b.harness.info(id)).cost == whole
        assert [info.cost for info in await b.harness.list()] == [whole]
    async with bench(store, priced(price=Price(1e6, 0, 0, 0)), FakePool("w")) as b:
        assert [info.cost for info in await b.harness.list()] == [11], "prices are as they are now"
        assert (await b.harness.info(id)).cost == 11
    async with bench(store, priced(price=None), FakePool("w")) as b:
        assert [info.cost for info in await b.harness.list()] == [None]
        assert b"cost" not in msgspec.json.encode(await b.harness.info(id))


async def test_a_session_without_a_step_has_no_cost(store: Store) -> None:
    async with bench(store, priced(), FakePool("w")) as b:
        id = await b.session("")
        assert (await b.harness.info(id)).cost is None
        assert [info.cost for info in await b.harness.list()] == [None]


async def test_the_limit_of_cost_is_kept_before_each_request_and_counts_caches(store: Store) -> None:
    provider = priced(cached(run("c", "x"), end="calls"), cached(run("d", "x"), end="calls"))
    async with bench(store, provider, FakePool("w")) as b:
        id = await b.session(limits=Limits(cost=4))
        assert await b.rest(id) == "failed"
        assert len(provider.queries) == 2
        (error,) = await b.bodies(id, "error")
        assert error == "limits.cost is reached: about $4.6000 of $4"
        await b.harness.patch_config(id, "me", msgspec.convert({"limits": {"cost": 5}}, api.ConfigPatch))
        provider.answers.append(says(text("done")))
        await b.harness.retry(id)
        assert await b.rest(id) == "closed"


class Flaky(FakeProvider):
    """Plays `tries` one after another for the same request."""

    price = DEAR

    def __init__(self, *tries: list[Scripted]) -> None:
        super().__init__([])
        self.tries = list(tries)

    def decoder(self) -> FakeDecoder:
        self._now = self.tries.pop(0)
        return super().decoder()


async def test_an_answer_that_broke_off_half_way_is_paid_too(store: Store) -> None:
    broken: list[Scripted] = [text("half"), ProviderError("cut", retryable=True)]
    async with bench(store, Flaky(broken, says(text("whole"))), FakePool("w")) as b:
        id = await b.session(limits=Limits(cost=3))
        assert await b.rest(id) == "closed"
        assert (await b.harness.info(id)).cost == pytest.approx(2 * 10 * 0.1 + 5 * 0.2)
        await b.post(id, "more")
        assert await b.rest(id) == "failed"
        assert "limits.cost is reached: about $3.0000 of $3" in await b.bodies(id, "error")


async def test_a_limit_of_cost_that_could_not_be_kept_is_refused_with_the_fix(store: Store) -> None:
    async with bench(store, priced(price=None), FakePool("w")) as b:
        fix = r'^limits.cost: .*no price of fake/m is known; write price = .* into \[providers.fake.models."m"\]'
        with pytest.raises(errors.Invalid, match=fix):
            await b.session("", limits=Limits(cost=1))
        id = await b.session("")
        with pytest.raises(errors.Invalid, match=fix):
            await b.harness.patch_config(id, "me", msgspec.convert({"limits": {"cost": 1}}, api.ConfigPatch))


async def test_a_price_that_is_lost_fails_the_session_that_has_a_limit_of_cost(store: Store) -> None:
    provider = priced(says(text("a")))
    async with bench(store, provider, FakePool("w")) as b:
        id = await b.session(limits=Limits(cost=9))
        assert await b.rest(id) == "closed"
        provider.price = None
        await b.post(id, "more")
        assert await b.rest(id) == "failed"
        assert (await b.bodies(id, "error"))[0].startswith("limits.cost cannot be kept: no price of fake/m")


async def test_steps_that_a_server_did_not_count_fail_a_session_that_has_a_limit_of_cost(
    store: Store,
) -> None:
    uncounted: list[Scripted] = [text("a"), Outcome(Usage(), "stop", "normal")]
    async with bench(store, priced(uncounted), FakePool("w")) as b:
        id = await b.session(limits=Limits(cost=9))
        assert await b.rest(id) == "closed"
        assert (await b.harness.info(id)).cost is None
        await b.post(id, "more")
        assert await b.rest(id) == "failed"
        assert "what the steps with fake/m cost is not known" in (await b.bodies(id, "error"))[0]
