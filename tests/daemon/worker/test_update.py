"""When a worker's release is changed, when not, and what is said of it; the harness and the installation are played."""

import asyncio
import hashlib
import os
import shutil
import sys
import tempfile
from asyncio import StreamReader, StreamWriter
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from daemon.protocol import dialing, frames
from daemon.worker import fetch, install, keeper, link, update
from daemon.worker.install import Job, Outcome
from daemon.worker.update import Failed, State, Updater
from tests.e2e.driving import becomes
from tests.fakes import Tasks

WHEEL = Random(1).randbytes(300_000)  # the same in every process: it stands in names of tests
SUM = hashlib.sha256(WHEEL).hexdigest()
WANTED = frames.Update(release="2.0", sha256=SUM, size=len(WHEEL))
NOW = 1_800_000_000.0


class Bench:
    """An updater of release 1.0, the harness that it dials, and time that the test lets pass."""

    def __init__(self, scratch: Path, socket: Path, tasks: Tasks) -> None:
        self.scratch = scratch
        self.socket = socket
        self.tasks = tasks
        self.now = NOW
        self.answer = frames.encode(WANTED) + WHEEL
        self.before: deque[bytes] = deque()  # what is answered first
        self.heard: list[dialing.Greeting] = []
        self.jobs: list[tuple[Job, bytes]] = []
        self.outcome = Outcome(python="/new/python")
        self.sleeps: list[float] = []
        self.woken = asyncio.Event()
        self._news = asyncio.Condition()
        self.updater = self.another()

    def another(self, allowed: bool = True) -> Updater:
        """An updater of the same scratch folder, as after a restart."""
        return Updater(
            self.scratch,
            "1.0",
            dial=self._dial,
            greeting=lambda purpose, news: dialing.greeting(dialing.Greeting("gpu", 1, "1.0", purpose, news)),
            allowed=allowed,
            install=self._install,
            now=lambda: self.now,
            sleep=self._sleep,
        )

    def start(self, *asked: frames.Update) -> asyncio.Task[Path]:
        for one in asked:
            self.updater.asked(one)
        return self.tasks.start(self.updater.run(), "update")

    async def _dial(self) -> link.Stream:
        try:
            return await asyncio.open_unix_connection(str(self.socket), limit=link.FIRST_LINE)
        except OSError as error:
            raise link.Gone(f"no harness: {error.strerror}") from error

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        said = dialing.greeted(await reader.readuntil(b"\n"))
        if said.purpose == dialing.WHEEL:
            writer.write(self.before.popleft() if self.before else self.answer)
        writer.close()
        await self._add(lambda: self.heard.append(said))

    async def _install(self, job: Job) -> Outcome:
        data = await asyncio.to_thread(Path(job.wheel).read_bytes)
        await self._add(lambda: self.jobs.append((job, data)))
        return self.outcome

    async def _sleep(self, seconds: float) -> None:
        self.woken.clear()
        await self._add(lambda: self.sleeps.append(seconds))
        await self.woken.wait()
        self.now += seconds

    async def _add(self, change: Callable[[], None]) -> None:
        async with self._news:
            change()
            self._news.notify_all()

    async def until(self, what: Callable[[], bool]) -> None:
        async with self._news:
            await self._news.wait_for(what)

    async def sleeping(self, count: int = 1) -> float:
        """Wait until it waits, for so many times; how long it means to."""
        await self.until(lambda: len(self.sleeps) == count)
        return self.sleeps[-1]

    async def noted(self) -> str:
        """What the harness was told in the last note, once there is one."""
        await self.until(lambda: any(said.purpose == dialing.NOTE for said in self.heard))
        return [said.update for said in self.heard if said.purpose == dialing.NOTE][-1]

    async def kept(self) -> State:
        return await asyncio.to_thread(update.load, self.scratch)

    async def keep(self, state: State) -> None:
        await asyncio.to_thread(update.save, self.scratch, state)
        await self.updater.load()


@pytest.fixture
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="or-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def bench(scratch: Path) -> AsyncIterator[Bench]:
    tasks = Tasks()
    made = Bench(scratch, scratch / "h.sock", tasks)
    async with await asyncio.start_unix_server(made.serve, str(made.socket)):
        yield made
        await tasks.close()


async def test_two_harnesses_that_answer_by_turns_are_not_asked_without_a_pause(bench: Bench) -> None:
    other = frames.encode(frames.Update(release="3.0", sha256=SUM, size=len(WHEEL))) + WHEEL
    bench.before.extend((other, bench.answer, other))
    running = bench.start(WANTED)
    for count in (1, 2, 3):
        assert await bench.sleeping(count) == update.FETCH_AGAIN
        bench.woken.set()
    assert await running == Path("/new/python")


async def test_what_is_asked_is_fetched_installed_and_chosen(bench: Bench) -> None:
    assert await bench.start(WANTED) == Path("/new/python")
    ((job, data),) = bench.jobs
    assert (job.release, job.scratch, job.keep, data) == ("2.0", str(bench.scratch), ("2.0",), WHEEL)
    assert not Path(job.wheel).exists(), "it is installed"
    assert await bench.kept() == State(chosen="2.0", base="1.0", changes=(NOW,))
    (said,) = bench.heard
    assert (said.purpose, said.update) == (dialing.WHEEL, "it is updating itself to release 2.0")


async def test_a_failure_is_told_kept_and_tried_again_after_ten_minutes(bench: Bench) -> None:
    bench.outcome = Outcome(reason="the disk\nis full")
    running = bench.start(WANTED)
    assert await bench.sleeping() == update.AGAIN
    told = await bench.noted()
    assert told == "the update to release 2.0 failed: the disk is full; tried again at 08:10 UTC"
    assert bench.updater.standing() == told
    assert (await bench.kept()).failed == Failed("2.0", SUM, "the disk is full", NOW)
    bench.outcome = Outcome(python="/new/python")
    bench.woken.set()
    assert await running == Path("/new/python")
    assert (await bench.kept()).failed is None
    assert [job.release for job, _ in bench.jobs] == ["2.0", "2.0"]


async def test_a_failure_is_not_tried_again_by_a_link_that_is_started_anew(bench: Bench) -> None:
    await bench.keep(State(failed=Failed("2.0", SUM, "the disk is full", NOW - 100)))
    assert "the disk is full" in bench.updater.standing(), "its first greeting says so"
    running = bench.start(WANTED)
    assert await bench.sleeping() == update.AGAIN - 100
    assert (bench.jobs, bench.heard) == ([], [])
    bench.updater.asked(WANTED)  # as on each new connection
    bench.woken.set()
    assert await running == Path("/new/python")


async def test_another_wheel_is_another_update(bench: Bench) -> None:
    await bench.keep(State(failed=Failed("2.0", "ab" * 32, "it was damaged", NOW - 1)))
    assert await bench.start(WANTED) == Path("/new/python")
    assert bench.sleeps == []


async def test_another_update_is_begun_while_a_failed_one_waits(bench: Bench) -> None:
    await bench.keep(State(failed=Failed("2.0", SUM, "the disk is full", NOW)))
    running = bench.start(WANTED)
    await bench.sleeping()
    again = frames.Update(release="3.0", sha256=SUM, size=len(WHEEL))
    bench.answer = frames.encode(again) + WHEEL
    bench.updater.asked(again)
    assert await running == Path("/new/python")
    assert (await bench.kept()).chosen == "3.0"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (frames.encode(WANTED) + bytes(len(WHEEL)), "what came has another SHA-256 than the daemon said"),
        (
            frames.encode(frames.Update(release="2.0", sha256=SUM, size=1 << 40)),
            f"its wheel has {1 << 40} bytes, where 1 to {fetch.MAX_WHEEL} are taken",
        ),
        (
            frames.encode(frames.Update(release="2.0", sha256=SUM)),
            f"its wheel has 0 bytes, where 1 to {fetch.MAX_WHEEL} are taken",
        ),
    ],
)
async def test_what_is_not_what_the_daemon_said_is_not_installed(
    bench: Bench, answer: bytes, why: str
) -> None:
    bench.answer = answer
    bench.start(WANTED)
    assert why in await bench.noted()
    assert bench.jobs == []
    assert list((bench.scratch / install.FOLDER).glob(".*")) == []


@pytest.mark.parametrize("release", ["../2", "", ".2", "2/../../x", "2\n", "x" * 200])
async def test_a_release_whose_name_is_no_folder_is_not_installed(bench: Bench, release: str) -> None:
    asked = frames.Update(release=release, sha256=SUM, size=len(WHEEL))
    bench.answer = frames.encode(asked) + WHEEL
    bench.start(asked)
    assert "cannot be a release's name" in await bench.noted()
    assert bench.jobs == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (frames.encode(WANTED) + WHEEL[:-1], "the connection ended within the release"),
        (frames.encode(WANTED)[:-1], "the connection ended within an update"),
        (b"", "the harness closed the connection"),
        (frames.encode(frames.Ping()), "the harness sent no update"),
        (dialing.refusal("it was removed"), "the harness refused it: it was removed"),
    ],
)
async def test_a_connection_that_is_lost_is_no_failure_and_soon_tried_again(
    bench: Bench, answer: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.answer = answer
    running = bench.start(WANTED)
    for count in (1, 2):
        assert await bench.sleeping(count) == update.FETCH_AGAIN
        if count == 2:
            bench.answer = frames.encode(WANTED) + WHEEL
        bench.woken.set()
    assert await running == Path("/new/python")
    assert (await bench.kept()).failed is None
    assert [record.getMessage() for record in caplog.records if "trying again" in record.getMessage()] == [
        f"the release could not be fetched, trying again: {why}"
    ], "it is said once"


async def test_a_harness_that_is_gone_is_dialled_again(bench: Bench) -> None:
    socket, bench.socket = bench.socket, bench.scratch / "none.sock"
    running = bench.start(WANTED)
    assert await bench.sleeping() == update.FETCH_AGAIN
    bench.socket = socket
    bench.woken.set()
    assert await running == Path("/new/python")


async def test_what_the_harness_wants_by_now_is_what_is_installed(bench: Bench) -> None:
    now = frames.Update(release="3.0", sha256=SUM, size=len(WHEEL))
    bench.answer = frames.encode(now) + WHEEL
    await bench.start(WANTED)
    assert [job.release for job, _ in bench.jobs] == ["3.0"]


async def test_a_harness_that_went_back_to_this_release_wants_nothing(bench: Bench) -> None:
    bench.answer = frames.encode(frames.Update(release="1.0", sha256=SUM, size=len(WHEEL))) + WHEEL
    bench.start(WANTED)
    await bench.until(lambda: bool(bench.heard))
    bench.answer = frames.encode(WANTED) + WHEEL
    assert bench.jobs == []
    assert (await bench.kept()).failed is None


async def test_an_operator_who_allows_no_update_gets_none_and_the_harness_is_told(bench: Bench) -> None:
    bench.updater = bench.another(allowed=False)
    bench.start(WANTED)
    assert await bench.noted() == update.STANDING
    assert bench.updater.standing() == update.STANDING
    assert [said.purpose for said in bench.heard] == [dialing.NOTE]
    bench.updater.asked(None)
    bench.updater.asked(WANTED)


async def test_a_daemon_without_a_wheel_is_told_of_once(bench: Bench) -> None:
    bench.start(frames.Update(release="2.0", missing="its disk is full"))
    assert await bench.noted() == "the daemon cannot give its release: its disk is full"
    assert bench.jobs == []


async def test_a_worker_that_changed_its_release_often_waits(bench: Bench) -> None:
    changes = tuple(NOW - seconds for seconds in (500, 400, 300, 200))
    await bench.keep(State(chosen="1.0", base="0.9", changes=changes))
    running = bench.start(WANTED)
    assert await bench.sleeping() == update.AGAIN - 500
    assert "it waits, since it was updated 4 times in 10 minutes" in await bench.noted()
    bench.woken.set()
    await running
    assert (await bench.kept()).changes == (*changes[1:], NOW + 100)


async def test_a_state_that_cannot_be_kept_fails_the_update(bench: Bench) -> None:
    (bench.scratch / f"{update.STATE}.new").mkdir()
    bench.start(WANTED)
    assert "Is a directory" in await bench.noted()
    assert bench.updater.standing().startswith("the update to release 2.0 failed")


def test_a_failure_is_over_after_ten_minutes_and_when_the_clock_was_set_back() -> None:
    state = State(failed=Failed("2.0", SUM, "why", NOW))
    assert update.sentence(state, NOW + 599)
    assert update.sentence(state, NOW + 600) == ""
    assert update.sentence(state, NOW - 600) == ""
    assert update.sentence(State(), NOW) == ""


# What a start goes on as.


def program(scratch: Path, release: str, says: str) -> Path:
    """A program in the place of an installed release's interpreter."""
    python = install.python_of(scratch, release)
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{says}\n")
    python.chmod(0o700)
    return python


def test_a_start_goes_on_as_the_release_it_was_updated_to(scratch: Path) -> None:
    assert update.successor(scratch, "1.0") is None
    update.save(scratch, State(chosen="2.0", base="1.0"))
    python = program(scratch, "2.0", '[ "$*" = "-I -m daemon.cli --version" ] && echo outrider 2.0')
    assert update.successor(scratch, "1.0") == python
    assert update.successor(scratch, "2.0") is None, "it is that release"
    assert update.load(scratch).chosen == "2.0"


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("echo outrider 3.0", "it is outrider 3.0 by now"),
        ("echo no module >&2; exit 1", "release 2.0 does not work here: no module"),
        ("", "it is unknown by now"),
    ],
)
def test_a_release_that_does_not_start_is_left(
    scratch: Path, says: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    update.save(scratch, State(chosen="2.0", base="1.0", changes=(NOW,)))
    program(scratch, "2.0", says)
    assert update.successor(scratch, "1.0") is None
    assert f"not going on as release 2.0, to which this worker was updated: {why}" in caplog.text
    assert update.load(scratch) == State(changes=(NOW,))


def test_what_the_operator_installed_since_wins(scratch: Path, caplog: pytest.LogCaptureFixture) -> None:
    update.save(scratch, State(chosen="2.0", base="1.0"))
    program(scratch, "2.0", "echo outrider 2.0")
    assert update.successor(scratch, "1.1") is None
    assert "release 1.1 was installed over 1.0" in caplog.text
    assert update.successor(scratch, "1.0") is None, "it is forgotten"


def test_a_state_that_does_not_read_is_none(scratch: Path) -> None:
    (scratch / update.STATE).write_text("{")
    assert update.load(scratch) == State()
    assert update.successor(scratch, "1.0") is None


async def test_the_keepers_release_is_in_use(scratch: Path) -> None:
    assert await asyncio.to_thread(update.in_use, scratch) == ()
    place = scratch / install.FOLDER / "0.9/bin"
    place.mkdir(parents=True)
    (place / "python").symlink_to(os.path.realpath(sys.executable))
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print(flush=True); sys.stdin.read()"
    )
    holder = await asyncio.create_subprocess_exec(
        *(str(place / "python"), "-I", "-c", code, str(scratch / keeper.LOCK)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline()
    assert await asyncio.to_thread(update.in_use, scratch) == ("0.9",)
    await holder.communicate(b"")


# The installing process.


async def test_the_installing_process_says_what_is_wrong(scratch: Path) -> None:
    (scratch / "w.whl").write_bytes(b"no wheel")
    job = Job(wheel=str(scratch / "w.whl"), release="2.0", scratch=str(scratch))
    assert await update.installed(job) == Outcome(reason="File is not a zip file")
    assert sorted(path.name for path in (scratch / install.FOLDER).iterdir()) == ["lock"]


async def test_an_installing_process_that_breaks_is_told(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "__file__", "/none/daemon/worker/install.py")
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    outcome = await update.installed(Job(wheel="", release="2.0", scratch=str(scratch)))
    assert outcome.reason == "the installing process ended with code 1: it said nothing"


async def test_an_installing_process_ends_with_who_waits_for_it(scratch: Path) -> None:
    os.mkfifo(scratch / "w.whl")  # it would be read for ever
    job = Job(wheel=str(scratch / "w.whl"), release="2.0", scratch=str(scratch))
    waiting = asyncio.ensure_future(update.installed(job))  # noqa: TID251 - owned by this test
    lock = scratch / install.FOLDER / "lock"
    await becomes(lock.exists, "it has begun")
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert not list((scratch / install.FOLDER).glob("[0-9]*"))
