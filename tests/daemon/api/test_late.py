"""Readers that join a step in flight, or come back to it: a real harness with a scripted model, over HTTP."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

from daemon.client import Client
from daemon.exchange import Output
from daemon.following import Back, Followed, Lost
from daemon.protocol import api
from daemon.protocol.records import TEXT, Record, WorkerRef
from daemon.provider.base import Block, Delta, ProviderError
from daemon.statefile.store import Store
from daemon.streaming import Live
from tests.daemon.api.agents import Server, server
from tests.daemon.harness.doubles import FakeDecoder, FakePool, FakeProvider, Scripted, run, says, text


class Viewer:
    """What one sees who follows a session with live pieces: the records, and below them what streams."""

    def __init__(self, events: AsyncGenerator[Followed, None]) -> None:
        self._events = events
        self._live = Live()
        self.records: list[Record] = []
        self.lost = False

    @property
    def live(self) -> list[tuple[str, str]]:
        return [(item.title, item.body) for item in self._live.items()]

    async def next(self) -> None:
        """Take an event in."""
        match await anext(self._events):
            case Record() as record:
                self.records.append(record)
                self._live.record(record)
            case api.Delta() as delta:
                self._live.feed(delta)
            case api.Restart():
                self._live.restart()
            case Lost():
                self.lost = True
                self._live.lost()
            case Back():
                self.lost = False
            case api.RetryEvent():
                pass

    async def sees(self, *live: tuple[str, str]) -> None:
        """Take events in until this and nothing else streams."""
        while self.live != list(live):
            await self.next()

    async def until(self, kind: str) -> None:
        """Take events in until a record of this kind."""
        while not self.records or self.records[-1].kind != kind:
            await self.next()

    async def reaches(self, n: int, *live: tuple[str, str]) -> None:
        """Take events in until record `n`; then this and nothing else streams."""
        while not self.records or self.records[-1].n < n:
            await self.next()
        assert self.live == list(live)


@asynccontextmanager
async def viewing(client: Client, id: str, after: int = 0) -> AsyncIterator[Viewer]:
    async with aclosing(client.follow(id, after, deltas=True)) as events:
        yield Viewer(events)


@asynccontextmanager
async def proxied(path: Path) -> AsyncIterator[tuple[Path, set[asyncio.StreamWriter]]]:
    """A socket that leads to the one at `path`, and its connections, to be cut."""
    there = path.with_name("proxy.sock")
    open: set[asyncio.StreamWriter] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_unix_connection(str(path))
        open.add(writer)
        async with asyncio.TaskGroup() as group:
            group.create_task(pass_on(reader, on), name="proxy: there")
            group.create_task(pass_on(back, writer), name="proxy: back")
        open.discard(writer)

    async with await asyncio.start_unix_server(serve, str(there)) as listening:
        yield there, open
        for writer in open:
            writer.close()
        listening.close()
        await listening.wait_closed()


class Answer:
    """One that thinks, speaks and calls; held in the middle of each of the three until it is let on."""

    def __init__(self) -> None:
        self.thinks, self.speaks, self.calls = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.script: list[Scripted] = [
            Delta("thinking", "hm, "),
            self.thinks,
            Delta("thinking", "yes"),
            Block("thinking", b"hm, yes"),
            Delta("text", "Hel", 1),
            self.speaks,
            Delta("text", "lo world", 1),
            text("Hello world"),
            Delta("call", '{"code": "ma', 2, name="run"),
            self.calls,
            Delta("call", 'ke"}', 2, name="run"),
            *says(run("c", "make", "local"), end="calls"),
        ]


class Retried(FakeProvider):
    """Each try gets the next answer."""

    def __init__(self, *answers: list[Scripted]) -> None:
        super().__init__([], *answers)

    def decoder(self) -> FakeDecoder:
        self._now = self.answers.pop(0)
        return super().decoder()


async def begun(s: Server, client: Client) -> str:
    """A session that is asked."""
    id = await client.create(api.Create(model="fake/m", workers=(WorkerRef("local"),)))
    await client.post(id, [api.Part(TEXT, b"hi")], "me")
    return id


THOUGHT: Final = ("thinking", "hm, yes")
HALF: Final = ("answer", "Hel")
WHOLE: Final = ("answer", "Hello world")
CALL: Final = ("writing a call of run, 12 characters", "ma")


async def test_who_joins_in_the_middle_of_a_step_sees_all_of_it_and_nothing_twice(path: Path) -> None:
    answer = Answer()
    provider = FakeProvider(answer.script, says(text("done")))
    pool, ran = FakePool("local"), asyncio.Event()

    async def make() -> Output:
        await ran.wait()
        return Output(b"made", 0, 0.1)

    pool.does["make"] = make
    async with (
        server(path, provider, store=Store(path.parent / "data"), pool=pool) as s,
        Client(path) as client,
        AsyncExitStack() as stack,
    ):
        id = await begun(s, client)

        async def join() -> Viewer:
            return await stack.enter_async_context(viewing(client, id, (await client.info(id)).n))

        first = await stack.enter_async_context(viewing(client, id))
        await first.sees(("thinking", "hm, "))
        await client.post(id, [api.Part(TEXT, b"and")], "me")
        answer.thinks.set()
        viewers = [first]
        for let_on, live in (
            (answer.speaks, (THOUGHT, HALF)),
            (answer.calls, (THOUGHT, WHOLE, CALL)),
        ):
            viewers.append(await join())
            for viewer in viewers:
                await viewer.sees(*live)
            let_on.set()
        await pool.started.wait()
        viewers.append(await join())
        for viewer in viewers:
            await viewer.sees(("output so far", "live"))
        ran.set()
        for viewer in viewers:
            while viewer.live or viewer.records[-1].text() != "done":
                assert viewer.live in ([], [("output so far", "live")], [("answer", "done")])
                await viewer.next()


async def test_a_message_in_between_makes_records_of_what_streamed_and_none_is_there_twice(
    path: Path,
) -> None:
    answer = Answer()
    provider = FakeProvider(answer.script, says(text("done")))
    async with (
        server(path, provider, store=Store(path.parent / "data")) as s,
        Client(path) as client,
        AsyncExitStack() as stack,
    ):
        id = await begun(s, client)
        answer.thinks.set()
        answer.speaks.set()
        first = await stack.enter_async_context(viewing(client, id))
        await first.sees(THOUGHT, WHOLE, CALL)
        late = await stack.enter_async_context(viewing(client, id, (await client.info(id)).n))
        await late.sees(THOUGHT, WHOLE, CALL)
        n = await client.post(id, [api.Part(TEXT, b"and")], "me")
        later = await stack.enter_async_context(viewing(client, id, n))
        await later.sees(CALL)
        for viewer in (first, late):
            await viewer.reaches(n, CALL)
            assert [record.kind for record in viewer.records][-3:] == ["thinking", "text", "message"]
        assert later.records == []
        answer.calls.set()
        for viewer in (first, late, later):
            await viewer.until("step")
            assert viewer.live == []


async def test_a_connection_that_is_lost_and_there_again_shows_what_came_meanwhile(path: Path) -> None:
    answer = Answer()
    provider = FakeProvider(answer.script, says(text("done")))
    async with (
        server(path, provider, store=Store(path.parent / "data")) as s,
        proxied(path) as (there, open),
        Client(there) as client,
        Client(path) as direct,
    ):
        id = await begun(s, direct)
        async with viewing(client, id) as viewer, viewing(direct, id) as other:
            await viewer.sees(("thinking", "hm, "))
            for let_on, before, after in (
                (answer.thinks, [("thinking", "hm, ")], (THOUGHT, HALF)),
                (answer.speaks, [THOUGHT, HALF], (THOUGHT, WHOLE, CALL)),
            ):
                for writer in open:
                    writer.close()
                while not viewer.lost:
                    await viewer.next()
                assert viewer.live == [(f"{title} · broken off here", body) for title, body in before]
                let_on.set()
                await other.sees(*after)
                await viewer.sees(*after)
                assert not viewer.lost
            answer.calls.set()
            await viewer.until("step")
            assert viewer.live == []
            assert [record.n for record in viewer.records] == [*range(1, viewer.records[-1].n + 1)]


async def test_a_try_that_broke_off_is_void_to_who_joins_and_who_was_there(path: Path) -> None:
    on = asyncio.Event()
    cut = ProviderError("cut", retryable=True)
    provider = Retried(
        [Delta("text", "Bad"), text("Bad"), Delta("text", "wo", 1), cut],
        [Delta("text", "Good"), on, Delta("text", " words"), *says(text("Good words"))],
    )
    async with (
        server(path, provider, store=Store(path.parent / "data")) as s,
        Client(path) as client,
        AsyncExitStack() as stack,
    ):
        id = await begun(s, client)
        first = await stack.enter_async_context(viewing(client, id))
        await first.sees(("answer", "Good"))
        late = await stack.enter_async_context(viewing(client, id, (await client.info(id)).n))
        await late.sees(("answer", "Good"))
        n = await client.post(id, [api.Part(TEXT, b"and")], "me")  # and the void block is a record
        for viewer in (first, late):
            await viewer.reaches(n, ("answer", "Good"))
            assert "Bad" in [record.text() for record in viewer.records]
        on.set()
        for viewer in (first, late):
            await viewer.until("step")
            assert viewer.live == []


async def test_a_turn_that_is_taken_up_in_the_middle_tells_its_answer_from_the_beginning(path: Path) -> None:
    hold = asyncio.Event()
    provider = FakeProvider(
        [
            Block("thinking", b"hm"),
            Delta("text", "Hel", 1),
            hold,
            Delta("text", "lo", 1),
            *says(text("Hello")),
        ]
    )
    async with server(path, provider, store=Store(path.parent / "data")) as s:
        id = await s.create()
        async with s.turn(id, query="?deltas=1") as frames:
            seen = await frames.until("message.delta")
        last = max(n for n, _, _ in seen)
        async with s.events(id, last, "?deltas=1") as frames:
            told = await frames.until("message.delta")
            hold.set()
            told += await frames.rest()
        deltas = [data["text"] for _, type, data in told if type == "message.delta"]
        assert "".join(deltas) == "Hello"
        assert deltas[0] == "Hel"
