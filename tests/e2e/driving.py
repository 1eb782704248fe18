"""Drive a real daemon through its socket: sessions made, watched, stopped and judged by their files."""

import asyncio
import contextlib
import json
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from daemon import chain as chains
from daemon.client import Client
from daemon.protocol import api
from daemon.protocol.records import TEXT, Record, WorkerRef
from daemon.worker import keeper
from tests.daemon.contexts import check
from tests.e2e.processes import Daemon, Mock

LOOK: Final = 0.02  # seconds between two looks at what sends no event: another process, a file
PATIENCE: Final = 40.0  # seconds until a test that waits has failed
VIA: Final = "tester"


class Stage:
    """A daemon, its worker and the mock of a provider, in a folder of their own."""

    def __init__(self, folder: Path, mock: Mock) -> None:
        self.folder = folder
        self.mock = mock
        self.daemon = Daemon(folder, mock)
        (folder / "rehearsal").mkdir()

    @property
    def data(self) -> Path:
        return self.daemon.data

    @property
    def scratch(self) -> Path:
        return self.data / "worker"

    def script(self, name: str, text: str) -> str:
        """Write a rehearsal; returns the model's name. A new file is found when the daemon starts."""
        (self.folder / "rehearsal" / f"{name}.toml").write_text(text)
        return f"rehearsal/{name}"

    def keeper(self) -> int:
        """Process id of the local worker's keeper, 0 where none runs: nothing to send a signal to, see `held`."""
        return keeper.holder(self.scratch / keeper.LOCK)

    async def held(self) -> int:
        """Process id of the local worker's keeper, once it runs."""
        await becomes(lambda: self.keeper() != 0, "the keeper runs")
        return self.keeper()

    def path(self, session: str) -> Path:
        return self.data / "sessions" / f"{session}.state"

    def ran(self) -> list[str]:
        """The words that commands have appended to the file `ran`."""
        file = self.folder / "ran"
        return file.read_text().split() if file.exists() else []


@contextmanager
def stage(*arguments: str, folder: Path | None = None) -> Iterator[Stage]:
    """A stage, its daemon not yet started; all of it is ended and removed afterwards. `arguments`: the mock's."""
    folder = folder or Path(tempfile.mkdtemp(prefix="or-"))
    mock = Mock(folder, *arguments)
    try:
        made = Stage(folder, mock)
        try:
            yield made
        finally:
            made.daemon.end()
    finally:
        mock.close()
        shutil.rmtree(folder, ignore_errors=True)


class Driver:
    """A client of the stage's daemon that knows how to wait."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.client = Client(stage.daemon.socket, first_wait=0.05, longest_wait=0.2)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.close()

    async def session(self, text: str = "", model: str = "mock/script", worker: str = "local") -> str:
        """A new session, with a first message where one is given; the mock knows it by a name of its own."""
        workers = (WorkerRef(worker, str(self.stage.folder)),)
        id = await self.client.create(api.Create(model=model, workers=workers))
        if text:
            await self.post(id, f"[[conv:{id}]] {text}")
        return id

    async def post(self, session: str, text: str) -> int:
        return await self.client.post(session, [api.Part(TEXT, text.encode())], VIA)

    async def raw(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """Status and JSON of an answer, None for an empty one."""
        connector = aiohttp.UnixConnector(str(self.stage.daemon.socket))
        async with (
            aiohttp.ClientSession(connector=connector) as http,
            http.request(method, f"http://outrider{path}", **more) as answer,
        ):
            body = await answer.read()
            return answer.status, json.loads(body) if body else None

    async def switch(self, session: str, model: str) -> None:
        """Give a session another model."""
        status, said = await self.raw(
            "PATCH", f"/sessions/{session}/config", params={"via": VIA}, json={"model": model}
        )
        assert status == 200, said

    async def record(self, session: str, wanted: Callable[[Record], bool], after: int = 0) -> Record:
        """The first record after `after` that is wanted, waited for."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for record in await self.client.records(session, after, wait=5.0):
                    if wanted(record):
                        return record
                    after = record.n

    async def kind(self, session: str, kind: str, after: int = 0) -> Record:
        return await self.record(session, lambda record: record.kind == kind, after)

    async def rests(self, session: str) -> api.Info:
        """The session's info as soon as nobody steps it."""
        async with asyncio.timeout(PATIENCE):
            while (info := await self.client.info(session)).status == "stepping":
                await pause()
        return info

    async def closes(self, session: str) -> list[Record]:
        """Wait until the session is closed; its file's records."""
        info = await self.rests(session)
        found = self.stage.daemon.file(session)
        assert info.status == "closed", [(record.kind, record.text()[:200]) for record in found[-4:]]
        assert info.n == len(found)
        return found

    @asynccontextmanager
    async def streams(self, session: str, kind: str, count: int = 1) -> AsyncIterator[asyncio.Task[None]]:
        """A task that is done when this kind of live piece was seen, of `count` calls where it is their output."""

        async def seen() -> None:
            calls: set[str] = set()
            async with contextlib.aclosing(self.client.follow(session, deltas=True)) as events:
                async for event in events:
                    if isinstance(event, api.Delta) and event.kind == kind:
                        calls.add(event.call)
                        if len(calls) == count:
                            return

        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            yield group.create_task(seen(), name="streams")

    def outputs(self, session: str, count: int = 1) -> AbstractAsyncContextManager[asyncio.Task[None]]:
        """A task that is done when `count` runs of the session have printed something."""
        return self.streams(session, "output", count)

    async def requested(self, session: str, count: int = 1) -> None:
        """Wait until the mock has been asked `count` times for this session."""
        async with asyncio.timeout(PATIENCE):
            while len(await self.asked(session)) < count:
                await pause()

    async def asked(self, session: str) -> list[dict[str, Any]]:
        """The mock's log of this session's requests."""
        return [entry for entry in await self.stage.mock.get("log") if entry["conv"] == session]


@asynccontextmanager
async def driver(stage: Stage) -> AsyncIterator[Driver]:
    """A driver of a daemon that is started now, where it was not before."""
    if not stage.daemon.starts:
        await stage.daemon.start()
    async with Driver(stage) as made:
        try:
            yield made
        except BaseException as error:
            for file in sorted(stage.folder.glob("*.log")):  # the daemon's, and each worker's
                error.add_note(f"{file.name} ends:\n{file.read_text(errors='replace')[-4000:]}")
            raise


async def pause(seconds: float = LOOK) -> None:
    """Let others work; what is waited for is another process, which has no event to wait on."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


async def becomes(what: Callable[[], bool], why: str) -> None:
    """Wait until something outside of the daemon is so."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not what():
                await pause()
    except TimeoutError:
        raise AssertionError(f"it did not become so: {why}") from None


def token() -> str:
    """A number that is in no other process's command line; `sleep` takes it as a long time."""
    return f"7{secrets.randbelow(10**8):08d}"


def processes(word: str) -> list[int]:
    """Processes with `word` in their command line, zombies aside."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in file.read_bytes():
                found.append(int(file.parent.name))
    return found


def judge(found: list[Record], *, whole: bool = True) -> chains.Chain:
    """What holds for every session's file: each closed call has at most one result (with `whole`, exactly one; images
    that it has shown follow it), each result its call, and the next request is one that a provider takes.
    """
    chain = chains.fold(found, "judged")
    check(chain.context())
    steps = {record.id for record in found if record.kind == "step"}
    closed = [record.id for record in found if record.kind == "call" and record.header.step in steps]
    results: Counter[str] = Counter()
    for record in found:
        if record.kind == "result" and not (
            results[record.header.for_] and record.header.type.startswith("image/")
        ):
            results[record.header.for_] += 1
    assert set(results) <= set(closed)
    assert all(count == 1 for count in results.values()), results
    assert len(set(closed)) == len(closed)
    if whole:
        assert set(results) == set(closed), "a call without a result"
    return chain
