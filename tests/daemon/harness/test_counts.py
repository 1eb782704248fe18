from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.statefile.store import Store
from tests.daemon.harness.doubles import Clock, FakePool, FakeProvider, bench, run, says, text


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path, clock=Clock())
    yield store
    await store.close()


async def test_what_a_session_does_is_counted_where_it_happens(store: Store) -> None:
    provider = FakeProvider(says(run("c", "x"), end="calls"), says(text("ok")))
    async with bench(store, provider, FakePool("w")) as b:
        id = await b.session()
        await b.post(id, "more", "key")
        await b.post(id, "more", "key")
        await b.rest(id)
        log, counts = await b.harness.log(id), b.counts
        assert counts.posts == 2
        assert counts.steps == counts.tries == {provider.name: 2}
        assert counts.calls == {False: 1}
        assert counts.output_tokens.keys() == {provider.name}
        assert (counts.records, counts.bytes) == (log.durable_n, log.span(0)[1])
        assert sum([len(piece) async for piece in log.chunks(0)]) == counts.bytes
