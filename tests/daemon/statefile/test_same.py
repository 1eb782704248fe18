"""A store in memory and one of files do the same, whatever is asked of them in whatever order."""

import asyncio
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from daemon.protocol.records import MAX_HEADER, BadRecord, Record, draft
from daemon.statefile.errors import CopyPointError, MissingError
from daemon.statefile.interface import SessionLog, SessionStore
from daemon.statefile.memory import MemoryStore
from daemon.statefile.store import Store
from tests.daemon.statefile.fakes import NOW, some
from tests.daemon.statefile.test_copy import END, SESSION

Op = tuple[Any, ...]
NUMBER = st.integers(-2, 16)
LIMIT = st.none() | st.integers(-1, 16)
DRAFTS = st.sampled_from(
    [
        [],
        [draft("message", "more\n\0ü")],
        [draft("message", "a" * 3000), draft("text", "b", step="s")],
        [draft("message", "x", via="x" * MAX_HEADER)],  # no file takes it
        [END],
        [draft("config", "nonsense")],
        SESSION[3:7],
    ]
)
OPS = st.one_of(
    st.tuples(st.just("create"), st.sampled_from([some(2), some(3), list(SESSION)])),
    st.tuples(st.just("append"), st.integers(0, 3), DRAFTS, st.booleans()),
    st.tuples(st.just("copy"), st.integers(0, 3), NUMBER),
    st.tuples(st.just("read"), st.integers(0, 3), NUMBER, LIMIT),
    st.tuples(st.just("span"), st.integers(0, 3), NUMBER, LIMIT),
    st.tuples(st.just("chunks"), st.integers(0, 3), NUMBER, LIMIT),
    st.tuples(st.just("headers"), st.integers(0, 3), NUMBER, LIMIT),
    st.tuples(st.just("survey"), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.integers(0, 3)),
    st.tuples(st.just("list")),
)


class Player:
    """One store that is played on, and what it answered; ids are the order in which sessions came."""

    def __init__(self, make: Callable[[Callable[[], str]], SessionStore]) -> None:
        numbers = itertools.count()
        self.store = make(lambda: f"{next(numbers):016x}")
        self.ids: list[str] = []
        self.waits: list[asyncio.Task[None]] = []

    async def play(self, op: Op) -> Any:
        try:
            return await self._play(*op)
        except (BadRecord, CopyPointError, MissingError, ValueError) as error:
            return type(error), str(error)

    async def _play(self, what: str, which: Any = None, *more: Any) -> Any:
        if what == "create":
            id, log = await self.store.create(*named(which, len(self.ids)))
            self.ids.append(id)
            return id, log.n, log.durable_n
        if what == "list":
            return await asyncio.to_thread(self.store.ids)
        id = self.ids[which % len(self.ids)] if self.ids else "f" * 16
        if what == "survey":
            return await asyncio.to_thread(self._survey, id)
        if what == "copy":
            made = await self.store.copy(id, *more)
            self.ids.append(made)
            return made, await asyncio.to_thread(self.store.origin, made)
        return await self._on(await self.store.open(id), what, *more)

    async def _on(self, log: SessionLog, what: str, *more: Any) -> Any:
        match what:
            case "append":
                drafts, durable = more
                done = await log.append(*named(drafts, log.n), durable=durable)
                await log.sync()
                return [(one.header, one.body) for one in done], log.n, log.durable_n
            case "read":
                return [(one.header, one.body, one.raw) for one in await log.read(*more)]
            case "span":
                return log.span(*more)
            case "chunks":
                return b"".join([piece async for piece in log.chunks(*more)])
            case "headers":
                return await log.headers(*more)
            case "wait":
                wait = asyncio.get_running_loop().create_task(log.wait(log.n))
                self.waits.append(wait)
                await asyncio.wait_for(log.wait(log.n - 1), 30)
                return log.n
            case _:
                raise AssertionError(what)

    def _survey(self, id: str) -> Any:
        seen: list[Any] = []

        def add(record: Record) -> None:
            if record.text() == "nonsense":
                raise BadRecord("it is nonsense")
            seen.append((record.header, record.body))

        try:
            found = self.store.survey(id, add)
        except FileNotFoundError:
            return None
        return seen, found.size, found.damage

    async def close(self) -> int:
        """How many waits had been answered."""
        await asyncio.sleep(0)
        answered = sum(wait.done() for wait in self.waits)
        for wait in self.waits:
            wait.cancel()
        if self.waits:
            await asyncio.wait(self.waits)
        await self.store.close()
        return answered


def named(drafts: list[Record], at: int) -> list[Record]:
    """The same ids in both stores."""
    return [
        Record(structs.replace(one.header, id=one.header.id or f"{at:08x}{k:08x}"), one.body)
        for k, one in enumerate(drafts)
    ]


async def play_both(data: Path, ops: list[Op]) -> None:
    files = Player(lambda new: Store(data, clock=lambda: NOW, new_id=new))
    memory = Player(lambda new: MemoryStore(data, clock=lambda: NOW, new_id=new))
    for op in ops:
        found, also = await files.play(op), await memory.play(op)
        assert also == found, op
    assert await memory.close() == await files.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(OPS, max_size=25))
@example([("create", some(2)), ("read", 0, 0, -1)])  # nothing, not all but the last
def test_both_stores_answer_the_same(ops: list[Op]) -> None:
    with tempfile.TemporaryDirectory(prefix="or-") as folder:
        asyncio.run(play_both(Path(folder), ops))


async def test_in_memory_the_first_to_end_are_forgotten_where_ended_ones_take_too_much(data: Path) -> None:
    store = MemoryStore(data, most=7_000)
    live, _ = await store.create(*SESSION, draft("message", "x" * 5_000))
    ended = []
    for n in range(5):
        id, log = await store.create(*SESSION, draft("message", "x" * 1_000))
        before = store.changed()
        await log.append(draft("end", reason="ended"))
        ended.append(id)
        kept = [one for one in ended if one in store.ids()]
        assert kept == ended[-len(kept) :]
        assert sum([(await store.open(one)).size for one in kept]) <= 7_000
        assert (store.changed() > before) == (n >= 2), "who keeps a list is told"
        assert len(kept) == min(n + 1, 2)
    assert live in store.ids()
    with pytest.raises(MissingError):
        await store.open(ended[0])
    assert store.at(ended[0]) is None
    id, log = await store.create(*SESSION, draft("message", "x" * 9_000))
    await log.append(draft("end", reason="ended"))
    assert id in store.ids(), "the last to end stays, however large"
    await store.close()


async def test_who_reads_and_waits_leaves_nothing_in_memory(data: Path) -> None:
    store = MemoryStore(data)
    id, log = await store.create(*SESSION)
    for _ in range(3):
        waits = [asyncio.get_running_loop().create_task(log.wait(log.n)) for _ in range(100)]
        await asyncio.sleep(0)
        assert len(log._waiting) == 100
        for wait in waits[::2]:
            wait.cancel()
        await log.append(draft("message", "x"))
        await asyncio.wait(waits)
        assert not log._waiting
    assert [len(await log.read()) for _ in range(3)] == [log.n] * 3
    assert sum(map(len, log._pieces)) == log.size
    copy = await store.open(await store.copy(id, 7))
    assert all(
        a is b for a, b in zip(copy.pieces(0), log.pieces(0), strict=False)
    )  # the bytes are there once
    await store.close()
