"""The patch tool as a call: all of it or nothing, and once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.harness import tools
from daemon.pool import Output
from daemon.protocol import api
from daemon.statefile.store import Store
from tests.daemon.harness.doubles import Clock, FakePool, FakeProvider, bench, call, says, text

PATCH = """*** Begin Patch
*** Update File: a.py
@@
-one
+ONE
*** Add File: new/b.txt
+hello
*** Delete File: old.txt
*** End Patch"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path, clock=Clock())
    yield store
    await store.close()


def files() -> FakePool:
    pool = FakePool("w")
    pool.files = {"a.py": b"one\r\ntwo\r\n", "old.txt": b"gone\n"}
    return pool


def asks(patch: str = PATCH) -> FakeProvider:
    return FakeProvider(says(call("c", "patch", worker="w", input=patch), end="calls"), says(text("ok")))


async def test_a_patch_changes_all_its_files_and_says_so(store: Store) -> None:
    pool = files()
    async with bench(store, asks(), pool) as b:
        id = await b.session(tools="patch")
        assert await b.rest(id) == "closed"
        assert pool.files == {"a.py": b"ONE\r\ntwo\r\n", "new/b.txt": b"hello\n"}
        (said,) = await b.bodies(id, "result")
        assert all(line in said for line in ("M a.py", "A new/b.txt", "D old.txt"))
        assert [name for name, _ in pool.writes] == ["c.0", "c.1", "c"]


async def test_a_hunk_that_does_not_fit_changes_nothing(store: Store) -> None:
    pool = files()
    async with bench(store, asks(PATCH.replace("-one", "-none")), pool) as b:
        id = await b.session(tools="patch")
        await b.rest(id)
        assert pool.writes == []
        assert "Nothing was changed" in (await b.bodies(id, "result"))[0]


async def test_a_write_that_fails_puts_back_what_was_written(store: Store) -> None:
    pool = files()
    pool.broken = {"new/b.txt"}
    async with bench(store, asks(), pool) as b:
        id = await b.session(tools="patch")
        await b.rest(id)
        assert pool.files == {"a.py": b"one\r\ntwo\r\n", "old.txt": b"gone\n"}
        assert "could not be written" in (await b.bodies(id, "result"))[0]


async def test_a_file_that_is_put_back_takes_the_folders_made_for_it_along(store: Store) -> None:
    undone = []

    class Pool(FakePool):
        async def write(self, worker, path, data, *, undoes=None, **more):  # type: ignore[no-untyped-def]
            undone.append((path, undoes))
            return await super().write(worker, path, data, **more)

    pool = Pool("w")
    pool.files = {"a.py": b"one\n", "b.py": b"one\n"}
    pool.broken = {"b.py"}
    patch = PATCH.replace("*** Delete File: old.txt", "*** Update File: b.py\n@@\n-one\n+ONE")
    async with bench(store, asks(patch), pool) as b:
        id = await b.session(tools="patch")
        await b.rest(id)
        assert "Nothing was changed" in (await b.bodies(id, "result"))[0]
        assert pool.files == {"a.py": b"one\n", "b.py": b"one\n"}
        assert undone[-2:] == [("new/b.txt", (id, "c.1")), ("a.py", None)]


@pytest.mark.parametrize(
    ("journal", "says_", "writes"),
    [(["c.0", "c"], "Patched.", 0), (["c.0"], "look at them", 0), ([], "M a.py", 3)],
)
async def test_a_patch_cut_by_a_restart_is_done_once_or_reported(
    store: Store, journal: list[str], says_: str, writes: int
) -> None:
    class Slow(FakePool):
        async def write(self, worker, path, data, **more):  # type: ignore[no-untyped-def]
            self.started.set()
            await asyncio.Event().wait()

    slow = Slow("w")
    slow.files = files().files
    async with bench(store, asks(), slow) as b:
        id = await b.session(tools="patch")
        await slow.started.wait()
    pool = files()
    pool.journal = {(id, name): Output(exit=0) for name in journal}
    async with bench(store, FakeProvider(says(text("ok"))), pool) as b:
        assert await b.rest(id) == "closed"
        assert says_ in (await b.bodies(id, "result"))[0]
        assert len(pool.writes) == writes


@pytest.mark.parametrize(
    ("model", "set"),
    [
        ("openai/gpt-5.2-codex", "patch"),
        ("openai-chat/gpt-4.1-mini", "patch"),
        ("x/o3", "patch"),
        ("anthropic/claude-sonnet-5", "default"),
        ("x/gpt-4o", "default"),
        ("x/llama-o300", "default"),
    ],
)
def test_the_model_decides_the_tool_set_where_a_session_names_none(model: str, set: str) -> None:
    assert tools.default_set(model) == set


async def test_the_chosen_set_stands_in_the_config(store: Store) -> None:
    async with bench(store, FakeProvider(), FakePool()) as b:
        id = await b.harness.create(api.Create(model="fake/m"))
        assert (await b.harness.info(id)).config.tools == "default"
