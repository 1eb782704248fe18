import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from daemon.harness.live import LiveEvent
from daemon.protocol import api
from daemon.provider.base import ProviderError
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


async def test_a_step_that_fails_is_in_the_log_and_counted_by_its_class(store: Store) -> None:
    provider = FakeProvider([ProviderError("the key is wrong", code="auth", status=401)])
    with capture_logs() as said:
        async with bench(store, provider, FakePool("w")) as b:
            id = await b.session()
            assert await b.rest(id) == "failed"
    told = {
        "event": "step failed",
        "log_level": "warning",
        "session": id,
        "model": "fake/m",
        "code": "auth",
        "status": 401,
        "why": "the key is wrong",
    }
    assert told in said
    assert b.counts.failures == {("fake", "auth"): 1}
    assert b.counts.tries == {"fake": 1}
    assert b.counts.steps == {}


async def test_a_try_is_counted_when_it_goes_out_and_not_while_it_is_waited_for(store: Store) -> None:
    waits = asyncio.Event()
    provider = FakeProvider([ProviderError("busy", retryable=True, retry_after=100, code="overloaded")])
    with capture_logs() as said:
        async with bench(store, provider, FakePool("w")) as b:
            id = await b.session("")
            session = await b.harness._sessions.get(id)
            put = session.live.put

            def seen(event: LiveEvent) -> None:
                put(event)
                if isinstance(event, api.RetryEvent):
                    waits.set()

            session.live.put = seen  # type: ignore[method-assign]
            await b.post(id, "hi")
            await waits.wait()
            await b.harness.stop(id, "me")
    assert (b.counts.tries, b.counts.retries) == ({"fake": 1}, {"fake": 0})
    (line,) = [one for one in said if one["event"] == "provider retry"]
    assert (line["model"], line["attempt"], line["wait"], line["why"]) == ("fake/m", 2, 100, "busy")
