"""What is told where a session may send no further request."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.protocol import api
from daemon.protocol.records import error_of
from daemon.statefile.store import Store
from tests.daemon.harness.doubles import Bench, Clock, FakePool, FakeProvider, bench, says, text


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path, clock=Clock())
    yield store
    await store.close()


async def code(b: Bench, id: str) -> str:
    """Of the error that the session failed with."""
    assert await b.rest(id) == "failed"
    errors = [record for record in await (await b.harness.log(id)).read() if record.kind == "error"]
    return error_of(errors[-1]).code


async def test_the_models_own_window_is_no_limit_that_could_be_raised(store: Store) -> None:
    async with bench(store, FakeProvider(), FakePool()) as b:
        id = await b.session("x" * 40_000)
        assert await code(b, id) == "context"
        await b.harness.patch_config(id, "me", api.ConfigPatch(context=10_000))
        await b.harness.retry(id)
        assert await code(b, id) == "context", "the session's is as wide as the model's"


async def test_a_window_of_the_sessions_own_is_a_limit(store: Store) -> None:
    async with bench(store, FakeProvider(says(text("one"), prompt=600)), FakePool()) as b:
        id = await b.session("hi")
        assert await b.rest(id) == "closed"
        await b.harness.patch_config(id, "me", api.ConfigPatch(context=500))
        await b.post(id, "more")
        assert await code(b, id) == "limit"


async def test_the_other_limits_are_limits_too(store: Store) -> None:
    async with bench(store, FakeProvider(says(text("one"))), FakePool()) as b:
        id = await b.session("hi")
        assert await b.rest(id) == "closed"
        await b.harness.patch_config(id, "me", api.ConfigPatch(limits=api.LimitsPatch(steps=1)))
        await b.post(id, "more")
        assert await code(b, id) == "limit"
