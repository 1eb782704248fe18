"""The link between a pool and a keeper, over a network that is cut: one execution, and the real result."""

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daemon.admission import Door, Offer, OwnWord, on_unix
from daemon.pool import Output, Pool, WorkerGone
from daemon.protocol import dialing, frames
from daemon.worker import keeper, link
from tests.cutting import Cutter
from tests.e2e.driving import becomes
from tests.fakes import FakeClock, Tasks

# How long it waits.


def test_the_waits_double_up_to_the_longest_each_half_to_whole() -> None:
    for share, whole in ((0.0, 0.5), (1.0, 1.0)):
        redial = link.Redial(lambda share=share: share)  # type: ignore[misc]
        expected = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
        assert [redial.wait() for _ in expected] == pytest.approx([whole * wait for wait in expected])
        redial.held()
        assert redial.wait() == pytest.approx(whole * 0.2)


# One link whose two ends the test plays.


class Ends:
    """A link, the harness and the keeper that it dials, and time that the test lets pass."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.now = 0.0
        self.waits: list[float] = []
        self.told: list[str | None] = []
        self.updates: list[frames.Update | None] = []
        self.missing = ""  # the side that cannot be reached
        self.opened: dict[str, list[socket.socket]] = {"harness": [], "keeper": []}
        self._news = asyncio.Condition()
        self.link = link.Link(
            harness=lambda: self._open("harness"),
            keeper=lambda: self._open("keeper"),
            release="1",
            greeting=lambda: b"gpu\n",
            update=self.updates.append,
            tell=self._tell,
            random=lambda: 1.0,
            now=lambda: self.now,
            sleep=self._sleep,
        )
        tasks.start(self.link.run(), "link")

    async def _open(self, side: str) -> link.Stream:
        if side == self.missing:
            raise link.Gone(f"no {side}")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.opened[side].append(ours)
        return await asyncio.open_unix_connection(sock=theirs, limit=link.FIRST_LINE)

    async def _tell(self, what: str | None) -> None:
        async with self._news:
            self.told.append(what)
            self._news.notify_all()

    async def _sleep(self, wait: float) -> None:
        async with self._news:
            self.waits.append(wait)
            self._news.notify_all()
        await asyncio.sleep(0 if len(self.waits) < 1000 else wait)

    async def until(self, what: Callable[[], bool]) -> None:
        async with self._news:
            await self._news.wait_for(what)

    async def connected(self) -> None:
        await self.until(lambda: bool(self.told) and self.told[-1] is None)

    async def why(self) -> str:
        """Why it is not connected, once it is not."""
        await self.until(lambda: bool(self.told) and self.told[-1] is not None)
        return str(self.told[-1])

    def end(self, side: str) -> socket.socket:
        """This side's end of the newest connection."""
        return self.opened[side][-1]

    async def say(self, side: str, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.end(side), data)

    async def hear(self, side: str, size: int) -> bytes:
        """That many bytes, fewer where the link closed before."""
        heard = b""
        while len(heard) < size:
            data = await asyncio.get_running_loop().sock_recv(self.end(side), size - len(heard))
            if not data:
                break
            heard += data
        return heard

    def close(self) -> None:
        for sockets in self.opened.values():
            for one in sockets:
                one.close()


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    tasks = Tasks()
    made = Ends(tasks)
    yield made
    await tasks.close()
    made.close()


PING = frames.encode(frames.Ping())


async def test_bytes_go_both_ways_and_the_name_goes_first(ends: Ends) -> None:
    await ends.connected()
    await ends.say("keeper", b"hello")
    assert await ends.hear("harness", 9) == b"gpu\nhello"
    await ends.say("harness", PING + b"more")
    assert await ends.hear("keeper", len(PING) + 4) == PING + b"more"
    await ends.say("harness", b"and more")
    assert await ends.hear("keeper", 8) == b"and more"


@pytest.mark.parametrize(("side", "other"), [("harness", "keeper"), ("keeper", "harness")])
async def test_the_end_of_one_side_is_the_others_with_all_that_was_said_before(
    ends: Ends, side: str, other: str
) -> None:
    await ends.connected()
    data = PING + os.urandom(100_000)
    await ends.say(side, data)
    ends.missing = "keeper"  # of the next connection
    end = ends.end(other)
    ends.end(side).shutdown(socket.SHUT_WR)
    greeting = b"gpu\n" if other == "harness" else b""
    heard = b""
    while piece := await asyncio.get_running_loop().sock_recv(end, 1 << 16):
        heard += piece
    assert heard == greeting + data
    await ends.until(lambda: f"the {side} closed" in str(ends.told))


@pytest.mark.parametrize(
    ("silent", "why"),
    [
        (frames.DEAD_AFTER, "the harness was silent for 30 s"),
        (frames.DEAD_AFTER - 1, "the keeper closed its connection"),
    ],
)
async def test_a_harness_that_the_keeper_gave_up_is_named_as_silent(
    ends: Ends, silent: float, why: str
) -> None:
    await ends.connected()
    for _ in range(3):
        await ends.say("harness", PING)
        await ends.hear("keeper", len(PING))
        ends.now += frames.PING_AFTER
    ends.now += silent - frames.PING_AFTER
    ends.end("keeper").close()
    assert await ends.why() == why


async def test_a_harness_that_takes_nothing_up_is_given_up_though_the_keeper_goes_unnoticed(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "STUCK", 0.1)
    await ends.connected()
    tasks = Tasks()
    tasks.start(ends.say("keeper", bytes(20 << 20)), "say")
    assert await ends.why() == "the harness took nothing up for 0 s"
    await tasks.close()


async def test_each_connection_to_the_harness_has_one_of_its_own_to_the_keeper(ends: Ends) -> None:
    for count in range(1, 4):
        await ends.until(lambda count=count: ends.told.count(None) == count)  # type: ignore[misc]
        assert [len(sockets) for sockets in ends.opened.values()] == [count, count]
        before = ends.opened["keeper"][-1]
        ends.end("harness").close()
        assert await asyncio.get_running_loop().sock_recv(before, 10) == b""


async def test_it_waits_longer_each_time_and_from_the_start_again_once_a_connection_has_held(
    ends: Ends,
) -> None:
    ends.missing = "harness"
    await ends.until(lambda: len(ends.waits) >= 7)
    assert ends.waits[:7] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    assert set(ends.told) == {"no harness"}
    assert ends.opened["harness"] == []
    ends.missing = ""
    await ends.connected()
    ends.now += link.HELD / 2  # not long enough: another link of the same name may be taking turns
    ends.missing = "keeper"
    count = len(ends.waits)
    ends.end("harness").close()
    await ends.until(lambda: len(ends.waits) > count)
    assert ends.waits[count] == pytest.approx(5.0)
    ends.missing = ""
    await ends.connected()
    ends.now += link.HELD
    ends.missing = "keeper"
    count = len(ends.waits)
    ends.end("harness").close()
    await ends.until(lambda: len(ends.waits) > count + 1)
    assert ends.waits[count : count + 2] == pytest.approx([0.2, 0.4])


@pytest.mark.parametrize(("talks", "side"), [("keeper", "harness"), ("harness", "keeper")])
async def test_what_one_side_does_not_take_up_the_other_does_not_get_rid_of(
    ends: Ends, talks: str, side: str
) -> None:
    await ends.connected()
    end, sent = ends.end(talks), 0
    if talks == "harness":
        sent += end.send(PING)
    idle = 0
    while idle < 50:
        try:
            sent += end.send(bytes(1 << 16))
            assert sent < 4 << 20, "it holds a few pieces and the kernel's buffers, no more"
            idle = 0
        except BlockingIOError:
            idle += 1
            await asyncio.sleep(0)
    greeting = 4 if side == "harness" else 0
    assert len(await ends.hear(side, sent + greeting)) == sent + greeting


async def test_a_refusal_is_told_and_nothing_of_it_reaches_the_keeper(ends: Ends) -> None:
    await ends.connected()
    kept = ends.end("keeper")
    ends.missing = "keeper"
    await ends.say("harness", dialing.refusal("the name 'gpu' is taken"))
    await ends.until(lambda: "the harness refused it: the name 'gpu' is taken" in ends.told)
    assert await asyncio.get_running_loop().sock_recv(kept, 10) == b""


async def test_an_update_is_the_links_and_the_connection_goes_on(ends: Ends) -> None:
    await ends.connected()
    update = frames.Update(release="9.9", sha256="ab")
    await ends.say("harness", frames.encode(update) + PING + b"more")
    assert await ends.hear("keeper", len(PING) + 4) == PING + b"more"
    assert ends.updates == [update]


async def test_an_update_that_refuses_is_told_and_nothing_of_it_reaches_the_keeper(ends: Ends) -> None:
    await ends.connected()
    kept = ends.end("keeper")
    ends.missing = "keeper"
    await ends.say("harness", frames.encode(frames.Update(release="9.9", refused="it speaks protocol 1")))
    await ends.until(lambda: "the harness refused it: it speaks protocol 1" in ends.told)
    assert await asyncio.get_running_loop().sock_recv(kept, 10) == b""
    assert [update and update.release for update in ends.updates] == ["9.9"]


async def test_an_update_to_its_own_release_is_the_keepers(ends: Ends) -> None:
    await ends.connected()
    update = frames.encode(frames.Update(release="1"))
    await ends.say("harness", update)
    assert await ends.hear("keeper", len(update)) == update
    assert ends.updates == [None], "none is asked of the link"


async def test_an_update_that_is_cut_off_is_told(ends: Ends) -> None:
    await ends.connected()
    ends.missing = "keeper"
    await ends.say("harness", frames.encode(frames.Update(release="9.9"))[:-1])
    ends.end("harness").shutdown(socket.SHUT_WR)
    await ends.until(lambda: "broke within an update" in str(ends.told))


async def test_what_is_no_harness_is_told(ends: Ends) -> None:
    await ends.connected()
    ends.missing = "keeper"
    with contextlib.suppress(OSError):
        await ends.say("harness", b"x" * (4 * link.FIRST_LINE))
    await ends.until(lambda: "its first line does not end" in str(ends.told))


# A pool, a door, a network that can be cut, a link and a keeper.

GRACE = 60.0
Make = Callable[..., Awaitable["Worker"]]


class Worker:
    """A keeper in this process and its link. `scratch` is also where its runs leave their files."""

    def __init__(self, scratch: Path, kept: keeper.Keeper) -> None:
        self.scratch = scratch
        self.keeper = kept
        self.linked: asyncio.Task[None]

    def file(self, name: str) -> Path:
        return self.scratch / name

    async def appears(self, name: str, lines: int = 1) -> None:
        """Wait until a run has written so many lines to a file."""
        file = self.file(name)
        await becomes(lambda: file.exists() and file.read_text().count("\n") >= lines, f"{name} is there")


class Net:
    """The harness's side, and the network before it; its clock stands still."""

    def __init__(self, tasks: Tasks, folder: Path) -> None:
        self.tasks = tasks
        self.folder = folder
        self.clock = FakeClock()
        self.changed = asyncio.Condition()
        self.pool = Pool(release="1", grace=GRACE, clock=self.clock, on_change=self._change)
        self.cutter = Cutter(folder / "net.sock", folder / "workers.sock")

    def _change(self) -> None:
        self.tasks.start(self._notify(), "notify")

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def state(self, state: str) -> str:
        """Wait until the worker's state is this one; its reason."""
        async with self.changed:
            await self.changed.wait_for(lambda: self._is(state))
        (info,) = self.pool.list()
        return info.reason

    def _is(self, state: str) -> bool:
        return any(info.state == state and (info.reason or state == "connected") for info in self.pool.list())

    def run(self, code: str, session: str = "s", call: str = "c") -> asyncio.Task[Output]:
        return self.tasks.start(self.pool.run("gpu", session, call, code), f"run {session}")

    def link(self, scratch: Path, over: Path | None = None) -> asyncio.Task[None]:
        """A link of the keeper in `scratch`, over the network or another socket; it dials again soon."""

        async def dial(path: Path) -> link.Stream:
            try:
                return await asyncio.open_unix_connection(str(path), limit=link.FIRST_LINE)
            except OSError as error:
                raise link.Gone(str(error)) from error

        async def tell(_: str | None) -> None:
            pass

        one = link.Link(
            harness=lambda: dial(over or self.cutter.path),
            keeper=lambda: dial(scratch / keeper.SOCKET),
            release="1",
            greeting=lambda: dialing.greeting(dialing.Greeting("gpu", frames.PROTOCOL, "1")),
            tell=tell,
            sleep=lambda wait: asyncio.sleep(wait / 20),
        )
        return self.tasks.start(one.run(), "link")


@pytest.fixture
async def net() -> AsyncIterator[Net]:
    folder, tasks = Path(tempfile.mkdtemp(prefix="or-")), Tasks()
    made = Net(tasks, folder)
    try:
        async with asyncio.TaskGroup() as group:
            door = Door(OwnWord(), made.pool, Offer("1", folder / "release"), group)
            async with on_unix(folder / "workers.sock", door), made.cutter:
                yield made
                await tasks.close()
    finally:
        shutil.rmtree(folder)


@asynccontextmanager
async def worker_of(
    net: Net, scratch: Path, over: Path | None = None, age: float = 0.0
) -> AsyncIterator[Worker]:
    """A keeper, its journal older by `age` seconds than it is, and its link."""
    kept = keeper.Keeper(scratch, "1", os.environ, lambda _: ("bash",))
    async with kept.listening():
        kept.runs.journal.origin.born -= age
        made = Worker(scratch, kept)
        made.linked = net.link(scratch, over)
        yield made
        made.linked.cancel()
        await asyncio.wait({made.linked})


@pytest.fixture
async def gpu(net: Net, scratch: Path) -> AsyncIterator[Worker]:
    async with worker_of(net, scratch) as made:
        await net.state("connected")
        yield made


@pytest.fixture
def another(home: Path) -> Iterator[Path]:
    """The scratch folder of a second worker."""
    folder = Path(tempfile.mkdtemp(prefix="or-"))
    yield folder
    shutil.rmtree(folder)


def counting(worker: Worker, session: str = "s") -> str:
    """Code that leaves a line each time it begins, and ends once there is a file `go`."""
    begun, go = worker.file("begun"), worker.file("go")
    return f"echo {session} >> {begun}; until [ -e {go} ]; do sleep 0.01; done; echo {session} ended"


async def test_a_run_on_a_linked_worker_prints_and_ends(net: Net, gpu: Worker) -> None:
    assert (await net.run("echo hello; exit 3")).text == b"hello\n"
    hello = net.pool.hello("gpu")
    assert hello is not None
    assert (hello.release, hello.scratch) == ("1", str(gpu.scratch))


async def test_runs_outlive_a_short_cut(net: Net, gpu: Worker) -> None:
    runs = [net.run(counting(gpu, f"s{n}"), f"s{n}") for n in range(8)]
    await gpu.appears("begun", 8)
    await net.cutter.cut()
    await net.cutter.dials(2)
    gpu.file("go").touch()
    assert [(await run).text for run in runs] == [f"s{n} ended\n".encode() for n in range(8)]
    assert sorted(gpu.file("begun").read_text().split()) == [f"s{n}" for n in range(8)]


async def test_runs_that_end_during_a_long_cut_give_their_results(net: Net, gpu: Worker) -> None:
    runs = [net.run(f"{counting(gpu, f's{n}')}; echo >> {gpu.file('ended')}", f"s{n}") for n in range(8)]
    await gpu.appears("begun", 8)
    net.cutter.open = False
    await net.cutter.cut()
    await net.state("gone")
    gpu.file("go").touch()
    await gpu.appears("ended", 8)
    net.clock.advance(GRACE - 1)
    await net.cutter.dials(net.cutter.dialed + 3)
    assert not any(run.done() for run in runs)
    net.cutter.open = True
    assert [(await run).text for run in runs] == [f"s{n} ended\n".encode() for n in range(8)]
    assert sorted(gpu.file("begun").read_text().split()) == [f"s{n}" for n in range(8)]


async def test_a_cut_for_good_leaves_it_unknown_and_the_run_goes_on(net: Net, gpu: Worker) -> None:
    run = net.run(counting(gpu))
    await gpu.appears("begun")
    net.cutter.open = False
    await net.cutter.cut()
    await net.state("gone")
    net.clock.advance(GRACE)
    with pytest.raises(WorkerGone, match="effect unknown") as raised:
        await run
    assert raised.value.started
    gpu.file("go").touch()
    net.cutter.open = True
    await net.state("connected")
    found = await net.pool.attach("gpu", "s", "c", age=1)
    assert found is not None
    assert found.text == b"s ended\n"
    assert gpu.file("begun").read_text() == "s\n"


async def test_a_call_for_a_worker_that_never_came_was_not_begun(net: Net) -> None:
    run = net.run("echo never")
    await becomes(lambda: net.clock.planned > 0, "it waits")
    net.clock.advance(GRACE)
    with pytest.raises(WorkerGone, match="nothing was done") as raised:
        await run
    assert not raised.value.started


async def test_a_network_that_loses_everything_is_given_up_and_dialled_anew(net: Net, gpu: Worker) -> None:
    run = net.run(counting(gpu))
    await gpu.appears("begun")
    net.cutter.freeze()
    for _ in range(3):
        net.clock.advance(frames.PING_AFTER)
        await asyncio.sleep(0)
    assert "silent for 30 s" in await net.state("gone")
    gpu.file("go").touch()
    await net.cutter.cut()
    net.cutter.thaw()
    assert (await run).text == b"s ended\n"
    assert gpu.file("begun").read_text() == "s\n"


async def test_cuts_at_any_moment_lose_no_result_and_run_nothing_twice(net: Net, gpu: Worker) -> None:
    count = 24
    runs = [
        net.run(f"echo {n} >> {gpu.file('begun')}; sleep 0.0{n % 10}; echo {n}", f"s{n % 4}", f"c{n}")
        for n in range(count)
    ]
    everything = asyncio.Event()

    async def cut() -> None:
        while not everything.is_set():
            dialed = net.cutter.dialed
            await net.cutter.cut()
            await net.cutter.dials(dialed + 1)
            for _ in range(20):
                await asyncio.sleep(0)

    cutting = net.tasks.start(cut(), "cut")
    assert [(await run).text for run in runs] == [f"{n}\n".encode() for n in range(count)]
    everything.set()
    await cutting
    assert sorted(map(int, gpu.file("begun").read_text().split())) == list(range(count))


async def test_a_large_file_arrives_whole_over_the_link(net: Net, gpu: Worker) -> None:
    data = os.urandom(9 << 20)
    assert await net.pool.write("gpu", str(gpu.file("big")), data) == len(data)
    content = await net.pool.read("gpu", str(gpu.file("big")))
    assert content.data == data


async def test_another_link_of_the_same_name_takes_over_and_nothing_runs_twice(
    net: Net, gpu: Worker, another: Path
) -> None:
    run = net.run(counting(gpu))
    await gpu.appears("begun")
    net.clock.advance(1)
    net.cutter.freeze()
    async with worker_of(net, another, net.cutter.to, age=100) as second:
        output = await run
        assert "what has the worker's name now is not what the call was sent to" in output.unknown
        assert (await net.run("echo second", "s2", "c2")).text == b"second\n"
        assert second.keeper.runs.journal.entries.keys() == {("s2", "c2")}
    gpu.file("go").touch()
    assert gpu.file("begun").read_text() == "s\n"


async def test_a_worker_of_another_release_is_accepted_and_listed(net: Net, scratch: Path) -> None:
    kept = keeper.Keeper(scratch, "0.9", os.environ, lambda _: ("bash",))
    async with kept.listening():
        linked = net.link(scratch)
        await net.state("connected")
        (info,) = net.pool.list()
        assert (info.state, info.release) == ("connected", "0.9")
        linked.cancel()
        await asyncio.wait({linked})


async def test_a_note_shows_while_its_worker_is_here(net: Net, gpu: Worker) -> None:
    net.pool.note("gpu", "it is updating itself")
    assert await net.state("connected") == "it is updating itself"
    net.pool.turn_away("gpu", "another link of it speaks protocol 9")
    (info,) = net.pool.list()
    assert (info.state, info.reason) == ("connected", "it is updating itself"), "this one is here"
    net.pool.note("gpu", "")
    (info,) = net.pool.list()
    assert info.reason == ""


async def test_one_that_is_turned_away_is_listed_with_the_reason(net: Net) -> None:
    net.pool.note("gpu", "a note alone makes nobody a worker")
    assert net.pool.list() == []
    net.pool.turn_away("gpu", "it speaks protocol 9")
    assert await net.state("refused") == "it speaks protocol 9"


async def test_a_keeper_of_another_protocol_is_refused_with_the_reason_and_asked_to_make_room(
    net: Net, folder: Path
) -> None:
    async def keep(reader: StreamReader, writer: StreamWriter) -> None:
        hello = frames.Hello(
            protocol=frames.PROTOCOL + 1,
            release="9.9",
            os="linux",
            arch="x86_64",
            hostname="far",
            interpreters=("bash",),
            scratch="/s",
        )
        writer.write(frames.encode(hello))
        heard.append(await reader.read())
        writer.close()

    heard: list[bytes] = []
    async with await asyncio.start_unix_server(keep, str(folder / keeper.SOCKET)):
        linked = net.link(folder)
        reason = await net.state("refused")
        await becomes(lambda: bool(heard), "its keeper has heard all")
        linked.cancel()
        await asyncio.wait({linked})
    assert f"it speaks protocol {frames.PROTOCOL + 1} (release 9.9)" in reason
    assert b'"kind":"update"' in heard[0], "its link is of the daemon's release already"


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="or-"))
    yield made
    shutil.rmtree(made)
