"""The pool against a worker that the test plays: at most once, whatever becomes of the connection."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from daemon.connection import LATE
from daemon.exchange import GRANT
from daemon.pool import FAULTS, Content, Output, Pool, Refused, WorkerGone
from daemon.protocol import frames
from daemon.roster import KEPT, REDIAL
from tests.fakes import FakeClock, FakeWorker, Key, Tasks

GRACE = 60.0


class Bench:
    """A pool, a clock, a worker that has not dialed, and the tasks that run beside the test."""

    def __init__(self, tasks: Tasks) -> None:
        self.clock = FakeClock()
        self.changes = 0
        self.pool = self._new_pool()
        self.tasks = tasks
        self.worker = FakeWorker(self.pool, tasks, self.clock)

    def _new_pool(self) -> Pool:
        return Pool(
            release="1.0",
            grace=GRACE,
            on_change=self._changed,
            clock=self.clock,
            wall=lambda: datetime(2030, 1, 1, tzinfo=UTC),
        )

    def restart(self) -> None:
        """The next daemon's pool, which knows of no worker."""
        self.pool = self.worker.pool = self._new_pool()

    def _changed(self) -> None:
        self.changes += 1

    def run(self, call: str = "c1", age: float | None = None, code: str = "true") -> asyncio.Task[Output]:
        return self.tasks.start(self.pool.run("gpu", "s", call, code, age=age), call)

    def another(self) -> FakeWorker:
        """A second machine that dials under the same name."""
        return FakeWorker(self.pool, self.tasks, self.clock)

    def state(self) -> str:
        (info,) = self.pool.list()
        return info.state

    def reason(self) -> str:
        (info,) = self.pool.list()
        return info.reason


@asynccontextmanager
async def scene() -> AsyncIterator[Bench]:
    tasks = Tasks()
    try:
        yield Bench(tasks)
    finally:
        await tasks.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with scene() as bench:
        yield bench
        if bench.worker.served is not None:
            bench.worker.end.writer.close()


async def going(bench: Bench, call: str = "c1") -> tuple[asyncio.Task[Output], frames.Run]:
    """A run that the worker has got and not answered."""
    await bench.worker.dial()
    task = bench.run(call)
    return task, await bench.worker.take(frames.Run)


async def test_a_run_is_sent_with_its_code_and_its_result_is_taken(bench: Bench) -> None:
    seen: list[bytes] = []
    await bench.worker.dial()
    task = bench.tasks.start(
        bench.pool.run(
            "gpu", "s", "c", "echo hé", interpreter="bash", cwd="/w", timeout=5, on_output=seen.append
        )
    )
    run = await bench.worker.take(frames.Run)
    assert (run.session, run.call, run.interpreter, run.cwd, run.timeout) == ("s", "c", "bash", "/w", 5)
    assert bench.worker.body == "echo hé".encode()
    bench.worker.send(frames.Output(id=run.id), b"h")
    result = frames.Result(
        id=run.id,
        exit=3,
        seconds=1.5,
        truncated=7,
        full_output="/f",
        reset="new",
        unknown="",
        stopped="timeout",
        notes=("n",),
    )
    bench.worker.send(result, b"h\xff")
    assert await task == Output(
        text=b"h\xff",
        exit=3,
        seconds=1.5,
        truncated=7,
        full_output="/f",
        reset="new",
        stopped="timeout",
        notes=("n",),
    )
    assert seen == [b"h"]


async def test_answers_find_their_requests_in_any_order(bench: Bench) -> None:
    await bench.worker.dial()
    tasks = [bench.run(f"c{i}") for i in range(5)]
    runs = [await bench.worker.take(frames.Run) for _ in tasks]
    for run in reversed(runs):
        bench.worker.send(frames.Result(id=run.id, exit=0), run.call.encode())
    assert [(await task).text for task in tasks] == [b"c0", b"c1", b"c2", b"c3", b"c4"]


async def test_a_run_that_the_worker_refuses_raises_its_code_and_sentence(bench: Bench) -> None:
    task, run = await going(bench)
    bench.worker.send(frames.Error(id=run.id, code="syntax"), b"unclosed quote")
    with pytest.raises(Refused, match="unclosed quote") as caught:
        await task
    assert caught.value.code == "syntax"


@pytest.mark.parametrize(
    ("code", "session", "limit", "why"),
    [
        pytest.param("x" * (frames.MAX_BODY + 1), "s", 1.0, "limit", id="code"),
        pytest.param("x", "s" * frames.MAX_HEADER, 1.0, "limit", id="header"),
        pytest.param("x", "s", -1.0, "bad_request", id="negative"),
        pytest.param("x", "s", float("nan"), "bad_request", id="not a number"),
        pytest.param("x", "\ud800", 1.0, "bad_request", id="not text"),
    ],
)
async def test_what_would_end_the_connection_at_the_worker_is_refused_before(
    bench: Bench, code: str, session: str, limit: float, why: str
) -> None:
    await bench.worker.dial()
    with pytest.raises(Refused) as caught:
        await bench.pool.run("gpu", session, "c", code, timeout=limit)
    assert caught.value.code == why


# Cuts


async def test_a_run_that_is_found_again_says_that_its_newest_output_comes_once_more(bench: Bench) -> None:
    seen: list[bytes] = []
    await bench.worker.dial()
    task = bench.tasks.start(bench.pool.run("gpu", "s", "c", "x", on_output=seen.append))
    run = await bench.worker.take(frames.Run)
    bench.worker.send(frames.Output(id=run.id), b"a")
    await bench.worker.cut()
    await bench.worker.dial()
    attach = await bench.worker.take(frames.Attach)
    bench.worker.send(frames.Going(id=attach.id))
    bench.worker.send(frames.Output(id=attach.id), b"ab")
    bench.worker.send(frames.Result(id=attach.id, exit=0), b"ab")
    assert (await task).text == b"ab"
    assert seen[-2:] == [b"", b"ab"]


@pytest.mark.parametrize("answer", ["going", "result", "unknown"])
async def test_after_a_cut_the_run_is_attached_to_and_each_answer_is_taken(bench: Bench, answer: str) -> None:
    task, _ = await going(bench)
    await bench.worker.cut()
    await bench.worker.dial()
    attach = await bench.worker.take(frames.Attach)
    assert (attach.session, attach.call) == ("s", "c1")
    match answer:
        case "going":
            bench.worker.send(frames.Going(id=attach.id))
            bench.worker.send(frames.Output(id=attach.id), b"o")
            bench.worker.send(frames.Result(id=attach.id, exit=0), b"done")
        case "result":
            bench.worker.send(frames.Result(id=attach.id, exit=0), b"done")
        case _:
            bench.worker.send(frames.Unknown(id=attach.id))
            run = await bench.worker.take(frames.Run)
            assert run.call == "c1"
            bench.worker.send(frames.Result(id=run.id, exit=0), b"done")
    assert (await task).text == b"done"


async def test_a_run_happens_once_and_its_result_is_whole_wherever_the_stream_to_the_harness_is_cut() -> None:
    answers = b"".join(
        [
            frames.encode(frames.Going(id=1)),
            frames.encode(frames.Output(id=1), b"out"),
            frames.encode(frames.Result(id=1, exit=0), b"result"),
        ]
    )
    for place in range(len(answers) + 1):
        async with scene() as bench:
            worker = bench.worker
            await worker.dial()
            task = bench.run()
            await worker.take(frames.Run)
            worker.known.add(("s", "c1"))
            worker.ran["s", "c1"] += 1
            worker.finish(("s", "c1"), b"result")
            worker.end.writer.write(answers[:place])
            await worker.cut()
            if place < len(answers):
                await worker.dial()
                worker.obey()
            assert (await task).text == b"result"
            assert worker.ran["s", "c1"] == 1
            if place < len(answers):
                await worker.cut()


async def test_a_result_that_came_before_the_end_of_its_connection_is_taken(bench: Bench) -> None:
    task, run = await going(bench)
    result = frames.encode(frames.Result(id=run.id, exit=0), b"in time")
    bench.worker.end.writer.write(frames.encode(frames.Output(id=run.id), b"o") + result + b"garbage\n")
    await bench.worker.ended()
    assert (await task).text == b"in time"


async def test_a_run_happens_once_wherever_the_stream_to_the_worker_is_cut() -> None:
    async with scene() as bench:
        _, run = await going(bench)
        sent = frames.encode(run, bench.worker.body)
        await bench.worker.cut()
    for place in range(len(sent) + 1):
        async with scene() as bench:
            worker = bench.worker
            await worker.dial()
            task = bench.run()
            assert await worker.end.reader.readexactly(place) == sent[:place]
            if place == len(sent):
                worker.known.add(("s", "c1"))
                worker.ran["s", "c1"] += 1
            await worker.cut()
            await worker.dial()
            worker.obey()
            await until(lambda: ("s", "c1") in bench.worker.known)
            worker.finish(("s", "c1"), b"result")
            assert (await task).text == b"result"
            assert worker.ran["s", "c1"] == 1
            await worker.cut()


async def test_a_run_that_was_lost_on_its_way_is_sent_again_and_happens_once(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    task = bench.run()
    await bench.worker.take(frames.Run)  # taken from the socket, and then the machine stopped
    await bench.worker.cut()
    await bench.worker.dial()
    bench.worker.obey()
    await until(lambda: ("s", "c1") in bench.worker.known)
    bench.worker.finish(("s", "c1"), b"x")
    assert (await task).text == b"x"
    assert bench.worker.ran["s", "c1"] == 1


async def test_a_journal_younger_than_the_run_makes_its_effect_unknown(bench: Bench) -> None:
    task, _ = await going(bench)
    await bench.worker.cut()
    bench.clock.advance(1)
    bench.worker.lose_journal()
    bench.clock.advance(1)
    await bench.worker.dial()
    attach = await bench.worker.take(frames.Attach)
    bench.worker.send(frames.Unknown(id=attach.id))
    assert "journal is younger" in (await task).unknown


async def test_a_run_is_not_begun_again_by_another_machine_that_took_the_name(bench: Bench) -> None:
    task, _ = await going(bench)
    bench.clock.advance(1)
    other = bench.another()
    other.journal = "another, and older than the call"
    await other.dial()
    await bench.worker.ended()
    other.send(frames.Unknown(id=(await other.take(frames.Attach)).id))
    assert "what has the worker's name now is not what the call was sent to" in (await task).unknown
    later = bench.run("later")
    await other.take(frames.Run)  # what it is asked for itself is its own
    await other.cut()
    await other.dial()
    other.send(frames.Unknown(id=(await other.take(frames.Attach)).id))
    run = await other.take(frames.Run)
    other.send(frames.Result(id=run.id, exit=0), b"once")
    assert (await later).text == b"once"
    await other.cut()


async def test_a_write_is_not_done_again_by_another_machine_that_took_the_name(bench: Bench) -> None:
    await bench.worker.dial()
    task = bench.tasks.start(bench.pool.write("gpu", "f", b"data", session="s", call="c"))
    await bench.worker.take(frames.Write)
    bench.clock.advance(1)
    other = bench.another()
    other.journal = "another, and older than the call"
    await other.dial()
    await bench.worker.ended()
    with pytest.raises(WorkerGone, match="what has the worker's name now"):
        await task
    await other.cut()


async def test_a_call_counts_as_asked_once_the_worker_may_have_got_it(bench: Bench) -> None:
    task = bench.run("c1")
    await asyncio.sleep(0)
    name = bench.worker.name
    assert not bench.pool.asked(name, "s", "c1")
    assert bench.pool.asked(name, "s", "never heard of")
    await bench.worker.dial()
    run = await bench.worker.take(frames.Run)
    assert bench.pool.asked(name, "s", "c1")
    bench.worker.send(frames.Result(id=run.id, exit=0))
    await task


@pytest.mark.parametrize(("journal", "starts"), [(100.0, True), (10.0, False)])
async def test_a_call_of_an_earlier_daemon_is_asked_for_first(
    bench: Bench, journal: float, starts: bool
) -> None:
    bench.worker.born = bench.clock.time() - journal
    await bench.worker.dial()
    task = bench.run(age=50)
    attach = await bench.worker.take(frames.Attach)
    bench.worker.send(frames.Unknown(id=attach.id))
    if starts:
        run = await bench.worker.take(frames.Run)
        bench.worker.send(frames.Result(id=run.id, exit=0), b"ran now")
        assert (await task).text == b"ran now"
    else:
        assert (await task).unknown


async def test_a_run_found_never_started_is_as_old_as_its_sending(bench: Bench) -> None:
    """The journal may be younger than the call's record, once the worker said that it had not begun."""
    bench.worker.born = bench.clock.time() - 60
    await bench.worker.dial()
    task = bench.run(age=50)
    bench.worker.send(frames.Unknown(id=(await bench.worker.take(frames.Attach)).id))
    await bench.worker.take(frames.Run)
    await bench.worker.cut()
    bench.worker.born = bench.clock.time() - 20  # a new disk, but from before the run was sent
    await bench.worker.dial()
    bench.worker.send(frames.Unknown(id=(await bench.worker.take(frames.Attach)).id))
    run = await bench.worker.take(frames.Run)
    bench.worker.send(frames.Result(id=run.id, exit=0))
    assert (await task).exit == 0


async def test_attach_alone_never_starts_anything(bench: Bench) -> None:
    await bench.worker.dial()
    task = bench.tasks.start(bench.pool.attach("gpu", "s", "c", age=5))
    bench.worker.send(frames.Unknown(id=(await bench.worker.take(frames.Attach)).id))
    assert await task is None
    task = bench.tasks.start(bench.pool.attach("gpu", "s", "c", age=5))
    bench.worker.send(
        frames.Error(id=(await bench.worker.take(frames.Attach)).id), b"cannot read its journal"
    )
    output = await task
    assert output is not None
    assert output.unknown == "cannot read its journal"
    await bench.worker.settled()


async def test_eight_runs_survive_one_cut(bench: Bench) -> None:
    await bench.worker.dial()
    bench.worker.obey()
    tasks = [bench.run(f"c{i}") for i in range(8)]
    keys = [("s", f"c{i}") for i in range(8)]
    await until(lambda: len(bench.worker.known) == 8)
    await bench.worker.cut()
    for key in keys[:4]:
        bench.worker.finish(key, key[1].encode())
    await bench.worker.dial()
    bench.worker.obey()
    for key in keys[4:]:
        bench.worker.finish(key, key[1].encode())
    assert [(await task).text for task in tasks] == [call.encode() for _, call in keys]
    assert set(bench.worker.ran.values()) == {1}


async def test_a_worker_that_does_not_come_back_within_the_grace_is_gone(bench: Bench) -> None:
    task, _ = await going(bench)
    await bench.worker.cut()
    await waits(bench)
    bench.clock.advance(GRACE - 1)
    assert not task.done()
    bench.clock.advance(1)
    with pytest.raises(WorkerGone, match="effect unknown") as caught:
        await task
    assert caught.value.started


async def test_a_worker_that_never_came_leaves_nothing_done(bench: Bench) -> None:
    task = bench.run()
    await waits(bench)
    bench.clock.advance(GRACE)
    with pytest.raises(WorkerGone, match="nothing was done") as caught:
        await task
    assert not caught.value.started
    assert bench.pool.list() == []


async def test_a_worker_gone_for_long_is_waited_for_as_long_as_a_redial_takes(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    await bench.worker.cut()
    bench.clock.advance(3 * GRACE)
    task = bench.run()
    await waits(bench)
    bench.clock.advance(REDIAL)
    with pytest.raises(WorkerGone):
        await task


async def test_a_worker_that_comes_within_the_grace_gets_the_run(bench: Bench) -> None:
    task = bench.run()
    await waits(bench)
    bench.clock.advance(GRACE - 1)
    await bench.worker.dial()
    run = await bench.worker.take(frames.Run)
    bench.worker.send(frames.Result(id=run.id, exit=0))
    assert (await task).exit == 0


async def test_a_removed_worker_is_gone_at_once_and_not_listed(bench: Bench) -> None:
    task, _ = await going(bench)
    bench.pool.remove("gpu")
    with pytest.raises(WorkerGone, match="removed"):
        await task
    assert bench.pool.list() == []
    await bench.worker.ended()
    bench.pool.remove("gpu")


async def test_a_worker_removed_before_its_hello_is_let_go(bench: Bench) -> None:
    await bench.worker.connect()
    await until(lambda: bench.clock.planned > 0)
    bench.pool.remove("gpu")
    bench.worker.send(bench.worker.hello)
    await bench.worker.ended()
    assert bench.pool.list() == []


async def test_removing_a_worker_that_is_away_ends_the_wait_for_it(bench: Bench) -> None:
    task, _ = await going(bench)
    await bench.worker.cut()
    await waits(bench)
    bench.pool.remove("gpu")
    with pytest.raises(WorkerGone, match="removed"):
        await task


async def test_a_second_connection_replaces_the_first_and_takes_over_its_runs(bench: Bench) -> None:
    task, _ = await going(bench)
    second = bench.another()
    await second.dial()
    attach = await second.take(frames.Attach)
    await bench.worker.ended()
    second.send(frames.Result(id=attach.id, exit=0), b"from the second")
    assert (await task).text == b"from the second"
    assert bench.state() == "connected"
    assert bench.reason() == ""
    await second.cut()
    assert bench.state() == "gone"


async def test_a_connection_of_another_protocol_replaces_nothing(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    stray = bench.another()
    await stray.dial(replace(stray.hello, protocol=2))
    await stray.ended()
    assert bench.state() == "connected"
    await bench.worker.settled()


async def test_a_connection_that_never_says_hello_replaces_nothing(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    stray = bench.another()
    await stray.connect()
    await stray.cut()
    assert bench.state() == "connected"
    await bench.worker.settled()


# Refusals and broken peers


async def test_no_hello_in_time_ends_the_connection_with_a_reason(bench: Bench) -> None:
    await bench.worker.connect()
    await until(lambda: bench.clock.planned > 0)
    bench.clock.advance(frames.HELLO_WAIT)
    await bench.worker.ended()
    assert bench.state() == "refused"
    assert bench.reason() == "no hello within 10 s"


async def test_another_protocol_is_refused_told_to_update_and_listed(bench: Bench) -> None:
    await bench.worker.dial(replace(bench.worker.hello, protocol=2, release="9.9"))
    assert (await bench.worker.take(frames.Update)).release == "1.0"
    assert await bench.worker.end.next() is None
    await bench.worker.ended()
    (info,) = bench.pool.list()
    assert (info.state, info.release) == ("refused", "9.9")
    assert "protocol 2 (release 9.9)" in info.reason
    assert bench.pool.hello("gpu") is None


async def test_another_release_of_this_protocol_is_taken_and_listed(bench: Bench) -> None:
    await bench.worker.dial(replace(bench.worker.hello, release="9.9"))
    await bench.worker.settled()
    (info,) = bench.pool.list()
    assert (info.state, info.release, info.interpreters) == ("connected", "9.9", ("bash", "python"))
    assert info.seen == "2030-01-01T00:00:00.000Z"
    hello = bench.pool.hello("gpu")
    assert hello is not None
    assert hello.release == "9.9"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not a frame"),
        (b"x" * (frames.MAX_HEADER + 1), "not a frame: header line over"),
        (b'{"kind":"pong","len":9999999}\n', "not a frame: body of 9999999"),
        (b'{"kind":"pong","len":1}\nxx', "not a frame: no newline"),
        (b'{"kind":"pong"}\n\n', "its first frame was not a hello"),
        (b'{"kind":"po', "it closed the connection within a frame"),
    ],
    ids=["http", "long line", "long body", "no newline", "no hello", "torn"],
)
async def test_garbage_instead_of_a_hello_ends_the_connection_with_a_reason(
    bench: Bench, data: bytes, reason: str
) -> None:
    await bench.worker.connect()
    bench.worker.end.writer.write(data)
    if "closed" in reason:
        bench.worker.end.writer.write_eof()
    await bench.worker.ended()
    assert bench.state() == "refused"
    assert reason in bench.reason()


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (frames.Result(id=7), "request 7, which nobody made"),
        (frames.Result(id=0), "request 0, which nobody made"),
        (frames.Error(id=0), "it ended the connection"),
        (frames.Bytes(id=1), "answered a run with 'bytes'"),
        (frames.Unknown(id=1), "answered a run with 'unknown'"),
    ],
)
async def test_a_frame_that_fits_nothing_ends_the_connection_and_the_run_goes_on_with_the_next(
    bench: Bench, frame: frames.ToHarness, reason: str
) -> None:
    task, _ = await going(bench)
    bench.worker.send(frame)
    await bench.worker.ended()
    assert reason in bench.reason()
    await bench.worker.dial()
    bench.worker.send(frames.Result(id=(await bench.worker.take(frames.Attach)).id, exit=0))
    assert (await task).exit == 0


async def test_a_second_hello_ends_the_connection(bench: Bench) -> None:
    await bench.worker.dial()
    bench.worker.send(bench.worker.hello)
    await bench.worker.ended()
    assert "hello twice" in bench.reason()


async def test_a_call_whose_answer_breaks_the_protocol_each_time_is_given_up(bench: Bench) -> None:
    task, run = await going(bench)
    for _ in range(FAULTS - 1):
        bench.worker.end.writer.write(b"garbage\n")
        await bench.worker.ended()
        await bench.worker.dial()
        await bench.worker.take(frames.Attach)
    bench.worker.end.writer.write(b"garbage\n")
    with pytest.raises(WorkerGone, match="not a frame"):
        await task
    await bench.worker.ended()
    assert run.id == 1


async def test_late_answers_to_a_forgotten_request_are_dropped(bench: Bench) -> None:
    task, run = await going(bench)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    bench.worker.send(frames.Result(id=run.id, exit=0))
    await bench.worker.settled()
    (info,) = bench.pool.list()
    assert info.running == 0


async def test_a_worker_that_reads_nothing_is_dropped_before_memory_grows(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    for i in range(1000):
        bench.pool.ack("gpu", "s" * 8000, str(i))
    await bench.worker.ended()
    assert "does not read" in bench.reason()


# Silence


async def test_a_silent_worker_is_pinged_and_then_given_up(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    bench.clock.advance(frames.PING_AFTER)
    await bench.worker.take(frames.Ping)
    bench.clock.advance(frames.PING_AFTER)
    await bench.worker.take(frames.Ping)
    bench.clock.advance(frames.DEAD_AFTER - 2 * frames.PING_AFTER)
    await bench.worker.ended()
    assert bench.reason() == "silent for 30 s"
    assert bench.clock.planned == 0


async def test_a_worker_that_answers_pings_stays(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    for _ in range(10):
        bench.clock.advance(frames.PING_AFTER)
        await bench.worker.take(frames.Ping)
        bench.worker.send(frames.Pong())
        await bench.worker.settled()
    assert bench.state() == "connected"


async def test_a_worker_that_speaks_and_never_reads_is_given_up(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    task = bench.tasks.start(bench.pool.write("gpu", "f", bytes(frames.WINDOW)))
    await bench.worker.take(frames.Write)
    while bench.state() == "connected":
        bench.worker.send(frames.Ping())
        await until(lambda: bench.pool.list()[0].seen >= "2030" or bench.state() == "gone")  # it was heard
        bench.clock.advance(frames.PING_AFTER)
    await bench.worker.ended()
    assert bench.reason() == "it took nothing up for 30 s"
    assert not task.done()


async def test_a_worker_is_not_given_up_because_this_process_stood_still(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    bench.clock.stand_still(frames.DEAD_AFTER + frames.PING_AFTER + 2 * LATE)
    await bench.worker.take(frames.Ping)
    await bench.worker.settled()
    assert bench.state() == "connected"


# Order


@pytest.mark.parametrize("age", [None, 5.0])
async def test_runs_that_wait_for_a_worker_reach_it_in_their_order(bench: Bench, age: float | None) -> None:
    calls = [f"c{n}" for n in range(30)]
    tasks = [bench.run(call=call, age=age) for call in calls]
    await until(lambda: bench.clock.planned == len(calls))
    await bench.worker.dial()
    for call in calls if age is not None else ():
        attach = await bench.worker.take(frames.Attach)
        assert attach.call == call
        bench.worker.send(frames.Unknown(id=attach.id))
    for call in calls:
        run = await bench.worker.take(frames.Run)
        assert run.call == call
        bench.worker.send(frames.Result(id=run.id, exit=0))
    for task in tasks:
        assert (await task).exit == 0


# Interrupt, kill, ack


async def test_an_interrupt_is_sent_and_the_run_gets_its_result(bench: Bench) -> None:
    task, run = await going(bench)
    stop = bench.tasks.start(bench.pool.interrupt("gpu", "s", "c1"))
    interrupt = await bench.worker.take(frames.Interrupt)
    bench.worker.send(frames.Done(id=interrupt.id))
    await stop
    bench.worker.send(frames.Result(id=run.id, stopped="interrupt"), b"so far")
    assert (await task).stopped == "interrupt"


async def test_an_interrupt_that_the_worker_refuses_raises_nothing(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    stop = bench.tasks.start(bench.pool.interrupt("gpu", "s", "c1"))
    interrupt = await bench.worker.take(frames.Interrupt)
    bench.worker.send(frames.Error(id=interrupt.id, code="not_found"), b"no such run")
    await stop


async def test_interrupt_and_kill_of_a_worker_that_is_away_return_and_are_sent_when_it_dials(
    bench: Bench,
) -> None:
    task, _ = await going(bench)
    await bench.worker.cut()
    await bench.pool.interrupt("gpu", "s", "c1")
    assert await bench.pool.kill("gpu", "s") is None
    bench.pool.ack("gpu", "s", "c0")
    await bench.worker.dial()
    assert (await bench.worker.take(frames.Interrupt)).call == "c1"
    await bench.worker.take(frames.Kill)
    assert (await bench.worker.take(frames.Ack)).call == "c0"
    bench.worker.send(frames.Result(id=(await bench.worker.take(frames.Attach)).id, stopped="interrupt"))
    assert (await task).stopped == "interrupt"
    await bench.worker.cut()
    await bench.worker.dial()
    await bench.worker.settled()  # nothing is sent twice


async def test_interrupt_and_kill_return_when_the_connection_is_cut_under_them(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    stop = bench.tasks.start(bench.pool.interrupt("gpu", "s", "c1"))
    await bench.worker.take(frames.Interrupt)
    kill = bench.tasks.start(bench.pool.kill("gpu", "s"))
    await bench.worker.take(frames.Kill)
    await bench.worker.cut()
    await stop
    assert await kill is None


async def test_a_caller_that_gives_an_interrupt_up_leaves_it_to_the_next_connection(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    stop = bench.tasks.start(bench.pool.interrupt("gpu", "s", "c1"))
    await bench.worker.take(frames.Interrupt)
    stop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stop
    await bench.worker.cut()
    await bench.worker.dial()
    await bench.worker.take(frames.Interrupt)


async def test_a_kill_that_was_given_up_and_then_answered_is_not_told_again_to_what_was_begun_since(
    bench: Bench,
) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    kill = bench.tasks.start(bench.pool.kill("gpu", "s"))
    frame = await bench.worker.take(frames.Kill)
    kill.cancel()
    with pytest.raises(asyncio.CancelledError):
        await kill
    bench.worker.send(frames.Done(id=frame.id), b"3 ended, none left")
    task = bench.run()
    run = await bench.worker.take(frames.Run)
    await bench.worker.cut()
    await bench.worker.dial()
    attach = await bench.worker.take(frames.Attach)
    bench.worker.send(frames.Result(id=attach.id, exit=0))
    assert (await task).exit == 0
    assert run.call == attach.call


async def test_a_run_that_was_not_sent_before_its_interrupt_is_not_started(bench: Bench) -> None:
    task = bench.run()
    await waits(bench)
    await bench.pool.interrupt("gpu", "s", "c1")
    await bench.worker.dial()
    await bench.worker.take(frames.Interrupt)
    output = await task
    assert (output.stopped, output.notes) == ("interrupt", ("it was not started",))
    await bench.worker.settled()


async def test_an_interrupt_that_comes_before_its_run_keeps_it_from_starting(bench: Bench) -> None:
    await bench.worker.dial()
    bench.worker.obey()
    await until(lambda: bench.pool.hello("gpu") is not None)
    await bench.pool.interrupt("gpu", "s", "c1")
    assert (await bench.run()).stopped == "interrupt"
    assert not bench.worker.ran


async def test_kill_answers_with_the_workers_sentence(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    kill = bench.tasks.start(bench.pool.kill("gpu", "s"))
    frame = await bench.worker.take(frames.Kill)
    bench.worker.send(frames.Done(id=frame.id), b"3 ended, none left")
    assert await kill == "3 ended, none left"


async def test_an_acknowledgement_is_sent_without_waiting(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    bench.pool.ack("gpu", "s", "c")
    ack = await bench.worker.take(frames.Ack)
    assert (ack.session, ack.call) == ("s", "c")


async def test_what_is_owed_to_a_worker_that_is_away_is_bounded(bench: Bench) -> None:
    for i in range(KEPT + 1):
        bench.pool.ack("gpu", "s", str(i))
    await bench.worker.dial()
    assert (await bench.worker.take(frames.Ack)).call == "1"


# Transfers


def reading(bench: Bench, **how: int) -> asyncio.Task[Content]:
    return bench.tasks.start(bench.pool.read("gpu", "f", **how), "read")  # type: ignore[arg-type]


async def test_a_file_is_read_in_pieces(bench: Bench) -> None:
    await bench.worker.dial()
    task = reading(bench)
    read = await bench.worker.take(frames.Read)
    bench.worker.send(frames.Bytes(id=read.id, size=5), b"abc")
    bench.worker.send(frames.Bytes(id=read.id, size=5, last=True), b"de")
    assert await task == Content(data=b"abcde", size=5, lines=0, end=True)


async def test_a_part_of_a_file_says_whether_it_is_the_end(bench: Bench) -> None:
    await bench.worker.dial()
    task = reading(bench, offset=1, limit=2)
    read = await bench.worker.take(frames.Read)
    assert (read.offset, read.limit) == (1, 2)
    bench.worker.send(frames.Bytes(id=read.id, size=5, last=True), b"bc")
    assert await task == Content(data=b"bc", size=5, lines=0, end=False)


@pytest.mark.parametrize(("data", "lines"), [(b"c\nd\n", 2), (b"c\nd", 2), (b"", 0), (b"\n", 1)])
async def test_lines_are_read_by_number_and_counted(bench: Bench, data: bytes, lines: int) -> None:
    await bench.worker.dial()
    task = bench.tasks.start(bench.pool.read("gpu", "f", unit="lines", offset=3, limit=2))
    read = await bench.worker.take(frames.Read)
    assert (read.unit, read.offset, read.limit) == ("lines", 3, 2)
    bench.worker.send(frames.Bytes(id=read.id, size=50, lines=4, last=True), data)
    assert await task == Content(data=data, size=50, lines=lines, end=False)


async def test_a_read_over_the_bound_is_refused_by_its_first_piece_and_given_up(bench: Bench) -> None:
    await bench.worker.dial()
    task = reading(bench, max_bytes=100)
    read = await bench.worker.take(frames.Read)
    bench.worker.send(frames.Bytes(id=read.id, size=101), b"x")
    with pytest.raises(Refused, match="over 100 bytes") as caught:
        await task
    assert caught.value.code == "limit"
    assert await bench.worker.take(frames.Window) == frames.Window(id=read.id, bytes=0)
    bench.worker.send(frames.Bytes(id=read.id, size=101), b"late")
    await bench.worker.settled()


async def test_a_result_and_a_refusal_bring_no_more_text_than_a_model_is_shown(bench: Bench) -> None:
    task, run = await going(bench)
    bench.worker.send(frames.Result(id=run.id), b"x" * frames.MAX_BODY)
    assert len((await task).text) == frames.MAX_TAIL
    task = bench.run("c2")
    run = await bench.worker.take(frames.Run)
    bench.worker.send(frames.Error(id=run.id), b"x" * frames.MAX_BODY)
    with pytest.raises(Refused) as refused:
        await task
    assert len(refused.value.message) == frames.MAX_REASON
    bench.worker.send(frames.Error(id=0), b"x" * frames.MAX_BODY)
    await bench.worker.ended()
    assert len(bench.reason()) < 2 * frames.MAX_REASON


async def test_a_read_that_is_answered_with_nothing_again_and_again_ends_the_connection(bench: Bench) -> None:
    await bench.worker.dial()
    task = reading(bench)
    for _ in range(FAULTS):
        read = await bench.worker.take(frames.Read)
        bench.worker.send(frames.Bytes(id=read.id, size=4), b"")
        await bench.worker.ended()
        await bench.worker.dial()
    with pytest.raises(WorkerGone, match="an empty piece"):
        await task


async def test_a_part_within_the_bound_of_a_file_over_it_is_read(bench: Bench) -> None:
    await bench.worker.dial()
    task = reading(bench, limit=2, max_bytes=100)
    read = await bench.worker.take(frames.Read)
    bench.worker.send(frames.Bytes(id=read.id, size=10**9), b"x")
    bench.worker.send(frames.Bytes(id=read.id, size=10**9, last=True), b"y")
    assert (await task).data == b"xy"


async def test_lines_over_the_bound_are_refused_as_they_come(bench: Bench) -> None:
    await bench.worker.dial()
    task = bench.tasks.start(bench.pool.read("gpu", "f", unit="lines", max_bytes=3))
    read = await bench.worker.take(frames.Read)
    bench.worker.send(frames.Bytes(id=read.id, size=9, last=True), b"abcd")
    with pytest.raises(Refused, match="over 3 bytes"):
        await task
    await bench.worker.settled()


async def test_a_refused_read_raises_the_workers_sentence(bench: Bench) -> None:
    await bench.worker.dial()
    task = reading(bench)
    read = await bench.worker.take(frames.Read)
    bench.worker.send(frames.Error(id=read.id, code="not_found"))
    with pytest.raises(Refused, match="not_found"):
        await task


async def test_a_read_begins_again_after_a_cut(bench: Bench) -> None:
    await bench.worker.dial()
    task = reading(bench)
    read = await bench.worker.take(frames.Read)
    bench.worker.send(frames.Bytes(id=read.id, size=4), b"ol")
    await bench.worker.cut()
    await bench.worker.dial()
    read = await bench.worker.take(frames.Read)
    bench.worker.send(frames.Bytes(id=read.id, size=3, last=True), b"new")
    assert (await task).data == b"new"


async def test_a_big_read_grants_its_window_as_it_is_taken_up(bench: Bench) -> None:
    size = 3 * frames.WINDOW
    await bench.worker.dial()
    task = reading(bench, max_bytes=size)
    read = await bench.worker.take(frames.Read)
    sent, window = 0, frames.WINDOW
    while sent < size:
        while window >= frames.PIECE and sent < size:
            sent += frames.PIECE
            window -= frames.PIECE
            bench.worker.send(frames.Bytes(id=read.id, size=size, last=sent == size), bytes(frames.PIECE))
        if sent < size:
            window += (await bench.worker.take(frames.Window)).bytes
    assert (await task).data == bytes(size)


async def test_a_worker_that_overruns_its_window_is_cut_off(bench: Bench) -> None:
    await bench.worker.dial()
    stuck = asyncio.Event()

    def block(_: bytes) -> None:
        stuck.set()

    task = bench.tasks.start(bench.pool.run("gpu", "s", "c", "x", on_output=block))
    run = await bench.worker.take(frames.Run)
    connection = bench.pool._workers["gpu"].connection
    assert connection is not None
    with connection.request() as request:  # a reader that does not take anything up
        for _ in range(frames.WINDOW // frames.MAX_BODY + 2):
            bench.worker.send(frames.Bytes(id=request.id), bytes(frames.MAX_BODY))
        await bench.worker.ended()
    assert "window" in bench.reason()
    await bench.worker.dial()
    bench.worker.send(frames.Result(id=(await bench.worker.take(frames.Attach)).id, exit=0))
    assert (await task).exit == 0
    assert run.id == 1


@pytest.mark.parametrize("size", [0, 1, frames.PIECE, frames.PIECE + 1])
async def test_a_file_is_written_in_pieces_of_which_one_is_the_last(bench: Bench, size: int) -> None:
    data = bytes(size)
    await bench.worker.dial()
    task = bench.tasks.start(bench.pool.write("gpu", "f", data, mode=0o755, expect="abc"))
    got = b""
    while not (write := await bench.worker.take(frames.Write)).last:
        got += bench.worker.body
    assert (write.mode, write.expect, write.path) == (0o755, "abc", "f")
    assert got + bench.worker.body == data
    bench.worker.send(frames.Done(id=write.id, size=size))
    assert await task == size


async def test_a_big_write_stays_within_its_window_and_starves_nobody(bench: Bench) -> None:
    size = 2 * frames.WINDOW
    await bench.worker.dial()
    task = bench.tasks.start(bench.pool.write("gpu", "f", bytes(size)))
    got = 0
    while got < frames.WINDOW:
        await bench.worker.take(frames.Write)
        got += len(bench.worker.body)
    await bench.worker.settled()  # no further piece
    run_task = bench.run()
    run = await bench.worker.take(frames.Run)
    bench.worker.send(frames.Result(id=run.id, exit=0))
    assert (await run_task).exit == 0
    bench.worker.send(frames.Window(id=1, bytes=GRANT))
    while not (write := await bench.worker.take(frames.Write)).last:
        bench.worker.send(frames.Window(id=1, bytes=len(bench.worker.body)))
    bench.worker.send(frames.Done(id=write.id, size=size))
    assert await task == size


async def test_two_big_writes_and_a_run_take_turns(bench: Bench) -> None:
    await bench.worker.dial()
    tasks = [bench.tasks.start(bench.pool.write("gpu", name, bytes(frames.WINDOW))) for name in "ab"]
    first = await bench.worker.take(frames.Write)
    run_task = bench.run()
    order: list[str] = [first.path]
    last = 0
    while last < 2:
        got = await bench.worker.end.next()
        assert got is not None
        match got[0]:
            case frames.Write() as write:
                order.append(write.path)
                last += write.last
                if write.last:
                    bench.worker.send(frames.Done(id=write.id))
            case frames.Run() as run:
                order.append("run")
                bench.worker.send(frames.Result(id=run.id))
            case other:
                pytest.fail(f"unexpected {other}")
    await run_task
    for task in tasks:
        await task
    assert order.index("run") < len(order) / 2
    assert {*order[:6]} >= {"a", "b"}


async def test_a_write_that_is_refused_early_stops(bench: Bench) -> None:
    await bench.worker.dial()
    task = bench.tasks.start(bench.pool.write("gpu", "f", bytes(3 * frames.WINDOW)))
    write = await bench.worker.take(frames.Write)
    bench.worker.send(frames.Error(id=write.id, code="denied"), b"not allowed")
    with pytest.raises(Refused, match="not allowed"):
        await task
    while got := await bench.worker.end.next():
        if not isinstance(got[0], frames.Write):
            break
        assert not got[0].last
    assert got is not None
    assert got[0] == frames.Window(id=write.id, bytes=0), "the worker need not keep it in mind"


async def test_a_journalled_write_is_sent_whole_again_after_a_cut(bench: Bench) -> None:
    await bench.worker.dial()
    task = bench.tasks.start(bench.pool.write("gpu", "f", b"data", session="s", call="c"))
    await bench.worker.take(frames.Write)
    await bench.worker.cut()
    await bench.worker.dial()
    write = await bench.worker.take(frames.Write)
    assert (write.session, write.call, bench.worker.body) == ("s", "c", b"data")
    bench.worker.send(frames.Done(id=write.id, size=4))
    assert await task == 4


async def test_a_journalled_write_is_not_repeated_on_a_journal_younger_than_it(bench: Bench) -> None:
    await bench.worker.dial()
    task = bench.tasks.start(bench.pool.write("gpu", "f", b"data", session="s", call="c"))
    await bench.worker.take(frames.Write)
    await bench.worker.cut()
    bench.clock.advance(1)
    bench.worker.lose_journal()
    await bench.worker.dial()
    with pytest.raises(WorkerGone, match="journal"):
        await task
    await bench.worker.settled()
    task = bench.tasks.start(bench.pool.write("gpu", "f", b"data", session="s", call="c", age=5))
    with pytest.raises(WorkerGone, match="journal"):
        await task


async def test_a_younger_journal_that_knows_the_write_is_asked(bench: Bench) -> None:
    bench.worker.born = bench.clock.time()
    await bench.worker.dial(replace(bench.worker.hello, runs=(("s", "c"),)))
    task = bench.tasks.start(bench.pool.write("gpu", "f", b"data", session="s", call="c", age=5))
    write = await bench.worker.take(frames.Write)
    bench.worker.send(frames.Done(id=write.id, size=4))
    assert await task == 4


async def test_a_cancelled_transfer_is_given_up_at_the_worker(bench: Bench) -> None:
    await bench.worker.dial()
    read_task = reading(bench)
    read = await bench.worker.take(frames.Read)
    write_task = bench.tasks.start(bench.pool.write("gpu", "f", b"x"))
    write = await bench.worker.take(frames.Write)
    for task, id in ((read_task, read.id), (write_task, write.id)):
        task.cancel()
        assert await bench.worker.take(frames.Window) == frames.Window(id=id, bytes=0)


async def test_a_read_cancelled_while_its_request_goes_out_is_given_up(bench: Bench) -> None:
    await bench.worker.dial()
    write_task = bench.tasks.start(bench.pool.write("gpu", "f", bytes(frames.WINDOW)))
    await bench.worker.take(frames.Write)
    read_task = reading(bench)  # waits for its turn behind the pieces
    await asyncio.sleep(0)
    read_task.cancel()
    write_task.cancel()
    while not isinstance((got := await bench.worker.end.next() or pytest.fail("closed"))[0], frames.Window):
        pass
    given_up = {got[0].id, (await bench.worker.take(frames.Window)).id}
    assert given_up == {1, 2}


@pytest.mark.parametrize("kind", ["read", "write"])
async def test_a_transfer_answered_with_nonsense_goes_on_with_the_next_connection(
    bench: Bench, kind: str
) -> None:
    await bench.worker.dial()
    if kind == "read":
        reading_task = reading(bench)
        bench.worker.send(frames.Going(id=(await bench.worker.take(frames.Read)).id))
        await bench.worker.ended()
        await bench.worker.dial()
        bench.worker.send(frames.Bytes(id=(await bench.worker.take(frames.Read)).id, last=True))
        await reading_task
    else:
        writing = bench.tasks.start(bench.pool.write("gpu", "f", b"x"))
        bench.worker.send(frames.Going(id=(await bench.worker.take(frames.Write)).id))
        await bench.worker.ended()
        await bench.worker.dial()
        bench.worker.send(frames.Done(id=(await bench.worker.take(frames.Write)).id))
        await writing
    await bench.worker.settled()


async def test_serve_that_is_cancelled_ends_the_connection(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    changes = bench.changes
    assert bench.worker.served is not None
    bench.worker.served.cancel()
    assert await bench.worker.end.next() is None
    assert (bench.state(), bench.reason()) == ("gone", "this daemon let it go")
    assert bench.changes == changes + 1
    assert bench.clock.planned == 0


# Any order of events


class Campaign:
    """Runs, cuts, redials and lost journals in any order, then the end of all."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.tasks: dict[Key, asyncio.Task[Output]] = {}
        self.recorded: dict[Key, float] = {}
        self.lost = False
        self.up = False

    async def act(self, act: tuple[str, int]) -> None:
        worker = self.bench.worker
        self.bench.clock.advance(0.1)
        match act:
            case ("run", _):
                key = ("s", f"c{len(self.tasks)}")
                self.recorded[key] = self.bench.clock.time()
                self.tasks[key] = self.bench.run(key[1])
            case ("finish", which) if open_ := sorted(worker.known - worker.results.keys()):
                worker.finish(key := open_[which % len(open_)], key[1].encode())
            case ("cut", keep):
                await self.down(keep)
            case ("dial", _) if not self.up:
                await worker.dial()
                worker.obey()
                self.up = True
            case ("turn", turns):
                for _ in range(turns):
                    await asyncio.sleep(0)
            case ("restart", _):
                await self.restart()
            case ("lose", _) if not self.up:
                worker.lose_journal()
                self.lost = True
            case _:
                pass

    async def restart(self) -> None:
        """The daemon ends, and the next one settles the calls that have no result."""
        open_ = [key for key, task in self.tasks.items() if not task.done()]
        for key in open_:
            self.tasks[key].cancel()
        await self.down(0)
        self.bench.restart()
        for key in open_:
            self.tasks[key] = self.bench.tasks.start(self.again(key))

    async def again(self, key: Key) -> Output:
        """The call of an earlier daemon, as old as it is when this begins."""
        age = self.bench.clock.time() - self.recorded[key]
        return await self.bench.pool.run("gpu", *key, "true", age=age)

    async def down(self, keep: int) -> None:
        """Cut, after a piece of a frame has gone out."""
        if self.up:
            self.bench.worker.end.writer.write(frames.encode(frames.Pong())[: keep % 18])
            await self.bench.worker.cut()
            self.up = False

    async def settle(self) -> None:
        """Dial again and end whatever is going until nobody waits."""
        await self.act(("dial", 0))
        worker = self.bench.worker
        while not all(task.done() for task in self.tasks.values()):
            for key in worker.known - worker.results.keys():
                worker.finish(key, key[1].encode())
            await asyncio.sleep(0)
        await self.down(0)


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["run", "finish", "cut", "dial", "turn", "turn", "lose", "restart"]),
        st.integers(0, 17),
    ),
    max_size=40,
)


@given(ACTS)
@settings(max_examples=150, deadline=None)
def test_in_any_order_of_results_and_cuts_nothing_runs_twice_and_no_result_is_lost(
    acts: list[tuple[str, int]],
) -> None:
    async def play() -> None:
        async with scene() as bench:
            campaign = Campaign(bench)
            for act in acts:
                await campaign.act(act)
            await campaign.settle()
            for key, task in campaign.tasks.items():
                output = task.result()
                assert bench.worker.ran[key] <= 1
                if campaign.lost and output.unknown:
                    continue
                assert output.text == key[1].encode()
                assert bench.worker.ran[key] == 1

    asyncio.run(play())


# What tests wait with


async def until(true: Callable[[], bool]) -> None:
    """Give the loop turns until it is so; the test's time limit ends a wait that is in vain."""
    while not true():  # noqa: ASYNC110 - a fake's state has no event
        await asyncio.sleep(0)


async def waits(bench: Bench) -> None:
    """Until a call waits for the worker to dial."""
    await until(lambda: bench.clock.planned > 0)


# Files that are poured


async def pieces(count: int, size: int = frames.PIECE) -> AsyncGenerator[bytes, None]:
    for _ in range(count):
        yield bytes(size)


async def test_a_file_is_poured_no_faster_than_the_worker_takes_it_up(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    window = frames.WINDOW // frames.PIECE
    task = bench.tasks.start(bench.pool.pour("gpu", "f", pieces(window + 2), behind="ab"))
    got = [await bench.worker.take(frames.Write) for _ in range(window)]
    assert {(frame.append, frame.expect, frame.last) for frame in got} == {(True, "ab", False)}
    id = got[0].id
    await bench.worker.settled()  # the pong is the next frame: nothing more came
    bench.worker.send(frames.Window(id=id, bytes=2 * frames.PIECE))
    assert [(await bench.worker.take(frames.Write)).last for _ in range(2)] == [False, True]
    bench.worker.send(frames.Done(id=id, size=1))
    await task


async def test_nothing_is_poured_as_one_empty_piece_which_is_the_last(bench: Bench) -> None:
    await bench.worker.dial()
    await bench.worker.settled()
    task = bench.tasks.start(bench.pool.pour("gpu", "f", pieces(0)))
    frame = await bench.worker.take(frames.Write)
    assert (frame.last, frame.append, bench.worker.body) == (True, False, b"")
    bench.worker.send(frames.Done(id=frame.id))
    await task


async def test_a_pour_is_given_up_at_the_worker_when_its_source_fails(bench: Bench) -> None:
    async def failing() -> AsyncGenerator[bytes, None]:
        for _ in range(3):
            yield b"x"
        raise OSError("the disk")

    await bench.worker.dial()
    await bench.worker.settled()
    task = bench.tasks.start(bench.pool.pour("gpu", "f", failing()))
    with pytest.raises(OSError, match="the disk"):
        await task
    for _ in range(2):
        assert not (await bench.worker.take(frames.Write)).last
    assert (await bench.worker.take(frames.Window)).bytes == 0


async def test_a_pour_waits_for_no_worker_and_is_not_tried_again(bench: Bench) -> None:
    with pytest.raises(WorkerGone, match="has not dialed"):
        await bench.pool.pour("gpu", "f", pieces(1))
    with pytest.raises(WorkerGone):
        await bench.pool.size("gpu", "f")
    await bench.worker.dial()
    await bench.worker.settled()
    task = bench.tasks.start(bench.pool.pour("gpu", "f", pieces(1)))
    size = bench.tasks.start(bench.pool.size("gpu", "f"))
    await bench.worker.take(frames.Write)
    await bench.worker.take(frames.Read)
    await bench.worker.cut()
    for one in (task, size):
        with pytest.raises(WorkerGone, match="closed the connection"):
            await one
