"""A keeper as its harnesses see it: runs that outlive connections, at most once, whatever comes on the socket."""

import asyncio
import contextlib
import os
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.protocol import frames, framing
from daemon.worker import connection, files, reaper, runs, surroundings
from daemon.worker.keeper import LOCK, SOCKET, Busy, Keeper
from tests.daemon.worker.dialing import Dial, Refused


async def test_hello_says_what_the_worker_is(
    dial: Dial, scratch: Path, home: Path, found: tuple[str, ...]
) -> None:
    hello = dial.hello
    assert (hello.protocol, hello.release, hello.interpreters) == (frames.PROTOCOL, "1", found)
    assert (hello.scratch, hello.home, hello.os) == (str(scratch), str(home), "linux")
    assert hello.cpus > 0
    assert hello.memory > 0
    assert hello.journal_age < 60
    assert hello.started.endswith("Z")


async def test_the_socket_and_the_journal_are_the_operators_alone(keeper: Keeper, dial: Dial) -> None:
    await dial.run("echo", call="c")
    assert stat.S_IMODE((keeper.scratch / SOCKET).stat().st_mode) == 0o600
    run = keeper.scratch / "runs/s/c"
    for path in [keeper.scratch / "runs", run.parent, run]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    files = [file for file in (keeper.scratch / "runs").rglob("*") if file.is_file()]
    assert len(files) > 3
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_connection_of_another_user_is_refused(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr("daemon.worker.keeper.peer", lambda sock: (1, 54321, 1))
    reader, writer = await asyncio.open_unix_connection(str(keeper.scratch / SOCKET))
    assert await reader.read() == b""
    writer.close()


async def test_attach_is_answered_in_three_forms(dial: Dial, tmp_path: Path) -> None:
    assert isinstance((await dial.attach("c"))[1], frames.Unknown)
    os.mkfifo(tmp_path / "go")
    run = dial.begin(f"echo one; read x <{tmp_path}/go; echo two", call="c")
    await dial.prints(run, b"one\n")
    id, frame, _ = await dial.attach("c")
    assert isinstance(frame, frames.Going)
    await asyncio.to_thread((tmp_path / "go").write_text, "\n")
    ended = await dial.ended(run)
    assert ended.text == "one\ntwo\n"
    assert (await dial.ended(id)).text == "one\ntwo\n"
    _, frame, body = await dial.attach("c")
    assert (frame.exit, body) == (0, b"one\ntwo\n")


async def test_a_run_of_the_same_name_never_runs_twice(dial: Dial, keeper: Keeper, tmp_path: Path) -> None:
    code = f"echo ran >>{tmp_path}/log; sleep 0.1; echo out; (exit 4)"
    ids = [dial.begin(code, call="c") for _ in range(3)]
    async with await Dial.to(keeper.scratch / SOCKET) as other:
        answers = [await other.run(code, call="c"), *[await dial.ended(id) for id in ids]]
        answers.append(await other.run(code, call="c"))
    assert {(one.text, one.end.exit) for one in answers} == {("out\n", 4)}
    assert (tmp_path / "log").read_text() == "ran\n"


async def test_a_lost_connection_ends_nothing(keeper: Keeper, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    async with await Dial.to(keeper.scratch / SOCKET) as first:
        id = first.begin(f"x=1; echo one; read y <{tmp_path}/go; echo two", call="c")
        await first.prints(id, b"one\n")
    async with await Dial.to(keeper.scratch / SOCKET) as second:
        assert ("s", "c") in second.hello.runs
        id, frame, _ = await second.attach("c")
        assert isinstance(frame, frames.Going)
        await asyncio.to_thread((tmp_path / "go").write_text, "\n")
        assert (await second.ended(id)).text == "one\ntwo\n"
        assert (await second.run("echo $x")).text == "1\n"


async def test_a_run_that_ends_while_nobody_is_connected_keeps_its_result(keeper: Keeper) -> None:
    async with await Dial.to(keeper.scratch / SOCKET) as first:
        first.begin("echo done; exit 6", call="c")
        await first.run("true", session="other")
    async with await Dial.to(keeper.scratch / SOCKET) as second:
        id, frame, _ = await second.attach("c")
        if isinstance(frame, frames.Going):
            frame = (await second.ended(id)).end
        assert frame.exit == 6
        second.send(frames.Ack(session="s", call="c"))
        second.send(frames.Ack(session="s", call="never was"))
        await second.run("true", session="other")
    async with await Dial.to(keeper.scratch / SOCKET) as third:
        assert ("s", "c") not in third.hello.runs


async def test_the_reason_of_a_reset_survives_the_keeper(scratch: Path) -> None:
    for why in ("", "status 3", "the worker's keeper was ended"):
        one = Keeper(scratch, "1", os.environ)
        async with one.listening(), await Dial.to(scratch / SOCKET) as dial:
            ran = await dial.run("echo ok", call=f"first {why}")
            assert why in ran.end.reset
            assert bool(why) == bool(ran.end.reset)
            if not why:
                await dial.run("exit 3", call="exit")


async def test_a_keeper_that_ends_tells_what_was_going_as_unknown(scratch: Path) -> None:
    one = Keeper(scratch, "1", os.environ)
    async with one.listening(), await Dial.to(scratch / SOCKET) as dial:
        id = dial.begin("echo one; sleep 300", call="going")
        dial.begin("echo never", call="waits")
        await dial.prints(id, b"one\n")
    one = Keeper(scratch, "1", os.environ)
    async with one.listening(), await Dial.to(scratch / SOCKET) as dial:
        _, frame, body = await dial.attach("going")
        assert frame.unknown == "the worker's keeper was ended"
        assert body.startswith(b"one\n")
        assert isinstance((await dial.attach("waits"))[1], frames.Unknown), "it never began"


async def test_an_attached_run_shows_its_newest_output_at_once(dial: Dial) -> None:
    run = dial.begin("echo one; sleep 300", call="c")
    await dial.prints(run, b"one\n")
    id, _, _ = await dial.attach("c")
    assert await dial.prints(id) == b"one\n"
    await dial.interrupt("c")
    await dial.ended(id)


async def test_a_write_that_is_being_put_in_place_is_waited_for_by_attach(
    dial: Dial, keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "go")
    commit = files.Writing.commit

    def slowly(self: files.Writing) -> None:
        (tmp_path / "go").read_text()
        commit(self)

    monkeypatch.setattr(files.Writing, "commit", slowly)
    for n in range(2):  # the same write, twice at once
        dial.send(
            frames.Write(id=9000 + n, path=str(tmp_path / "f"), session="s", call="w", last=True), b"text"
        )
    while not keeper.writes.going(("s", "w")):
        await dial.interrupt("none")
    id = dial.id()
    dial.send(frames.Attach(id=id, session="s", call="w"))
    await asyncio.to_thread((tmp_path / "go").write_text, "")
    frame, _ = await dial.next(id)
    assert (frame.exit, frame.unknown) == (0, "")
    assert [(await dial.next(9000 + n))[0].size for n in range(2)] == [4, 4]


async def test_a_write_and_a_run_do_not_share_a_name(dial: Dial, tmp_path: Path) -> None:
    await dial.write(tmp_path / "f", b"x", session="s", call="w")
    with pytest.raises(Refused, match="call w is a write: give the run a call of its own"):
        await dial.run("true", call="w")
    with pytest.raises(Refused, match="`session` is empty"):
        await dial.kill("")


async def test_a_run_can_be_stopped_while_its_environment_starts(dial: Dial, home: Path) -> None:
    (home / ".bash_profile").write_text(f"touch {home}/started; sleep 1000\n")
    id = dial.begin("echo never", call="c")
    while not (home / "started").exists():
        await dial.interrupt("none")
    await dial.interrupt("c")
    ran = await dial.ended(id)
    assert (ran.end.stopped, ran.text) == ("interrupt", "")
    (home / ".bash_profile").write_text("")
    assert (await dial.run("echo ok")).text == "ok\n"


async def test_a_session_can_be_killed_while_its_environment_starts(dial: Dial, home: Path) -> None:
    (home / ".bash_profile").write_text(f"touch {home}/started; sleep 1000\n")
    id = dial.begin("echo never", call="c")
    while not (home / "started").exists():
        await dial.interrupt("none")
    assert "none is left" in await dial.kill()
    assert (await dial.ended(id)).end.stopped == "interrupt"
    (home / ".bash_profile").write_text("")
    assert (await dial.run("echo ok")).text == "ok\n"


async def test_a_keeper_whose_scratch_folder_is_removed_ends_and_leaves_the_next_ones_alone(
    scratch: Path, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.worker.keeper.WATCH", 0.02)
    old, new = (Keeper(scratch, "1", os.environ, lambda _: found) for _ in range(2))
    async with contextlib.AsyncExitStack() as later:
        async with old.listening():
            async with await Dial.to(scratch / SOCKET) as dial:
                await dial.run("x=1", call="c")
                await asyncio.to_thread(shutil.rmtree, scratch)
                await old.serve()
            scratch.mkdir()
            await later.enter_async_context(new.listening())
        async with await Dial.to(scratch / SOCKET) as dial:
            assert (await dial.run("echo new", call="c")).text == "new\n"
    assert not (scratch / SOCKET).exists()


async def test_a_keeper_whose_journal_is_removed_ends_so_that_another_one_can_journal_again(
    scratch: Path, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.worker.keeper.WATCH", 0.02)
    old, new = (Keeper(scratch, "1", os.environ, lambda _: found) for _ in range(2))
    async with old.listening(), await Dial.to(scratch / SOCKET) as dial:
        await dial.run("x=1")
        await asyncio.to_thread(shutil.rmtree, scratch / "runs")
        await old.serve()
    async with new.listening(), await Dial.to(scratch / SOCKET) as dial:
        assert (await dial.run("echo new")).text == "new\n"


async def test_one_scratch_folder_has_one_keeper(keeper: Keeper) -> None:
    lock = keeper.scratch / LOCK
    asked = await asyncio.create_subprocess_exec(
        os.sys.executable,  # type: ignore[attr-defined]
        "-c",
        f"from daemon.worker import keeper; from pathlib import Path; p = Path({str(lock)!r})\n"
        "print(keeper.holder(p))\n"
        "try:\n    with keeper.locked(p): pass\nexcept keeper.Busy as busy: print(busy)",
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await asked.communicate()
    assert said.decode().splitlines() == [str(os.getpid()), f"another keeper holds {lock}"]
    assert Busy.__doc__


async def test_an_update_ends_an_idle_keeper_and_lets_a_busy_one_finish(
    scratch: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    one = Keeper(scratch, "1", os.environ)
    async with one.listening(), await Dial.to(scratch / SOCKET) as dial:
        dial.send(frames.Update(release="1"))
        id = dial.begin(f"echo one; read x <{tmp_path}/go", call="c")
        await dial.prints(id, b"one\n")
        dial.send(frames.Update(release="2"))
        await dial.interrupt("nothing")
        await asyncio.to_thread((tmp_path / "go").write_text, "\n")
        await dial.ended(id)
        await one.serve()
    two = Keeper(scratch, "2", os.environ)
    async with two.listening(), await Dial.to(scratch / SOCKET) as dial:
        assert (await dial.run("true")).end.reset == "the worker was updated from release 1 to 2"


GARBAGE = {
    "not json": b"hello\n",
    "json that is no frame": b'{"kind":"nothing","id":1}\n\n',
    "a field of the wrong type": b'{"kind":"run","id":"one","session":"s","call":"c"}\n\n',
    "a body over the limit": b'{"kind":"ping","len":1048577}\n',
    "a negative body": b'{"kind":"ping","len":-1}\n',
    "a header without an end": b"x" * (frames.MAX_HEADER + 1),
    "no newline after the body": b'{"kind":"ping","len":1}\nxy',
    "what a worker says": b'{"kind":"going","id":1}\n\n',
    "a request of http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_ends_its_connection_with_a_reason_and_nothing_else(
    dial: Dial, keeper: Keeper, what: str
) -> None:
    async with await Dial.to(keeper.scratch / SOCKET) as bad:
        bad.send(frames.Ping())
        bad.writer.write(GARBAGE[what])
        await bad.gone()
        assert bad.pongs == 1
        with pytest.raises(Refused, match="bad_request: this connection ends: "):
            await bad.next(0)
    assert (await dial.run("echo ok")).text == "ok\n"


@given(st.binary(max_size=200))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_bytes_raise_only_a_framing_error(data: bytes) -> None:
    decoder = frames.worker_decoder()
    decoder.feed(data)
    try:
        while decoder.next():
            pass
    except framing.FramingError:
        pass


async def test_a_connection_that_closes_within_a_frame_is_let_go(keeper: Keeper, dial: Dial) -> None:
    async with await Dial.to(keeper.scratch / SOCKET) as bad:
        bad.writer.write(frames.encode(frames.Run(id=1, session="s", call="cut"), b"echo x")[:-3])
        bad.writer.write_eof()
        await bad.gone()
    assert isinstance((await dial.attach("cut"))[1], frames.Unknown)


async def test_a_silent_peer_is_pinged_and_given_up(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "PING_AFTER", 0.05)
    monkeypatch.setattr(frames, "DEAD_AFTER", 0.3)
    async with (
        await Dial.to(keeper.scratch / SOCKET) as alive,
        await Dial.to(keeper.scratch / SOCKET) as dead,
    ):
        dead.answering = False
        await dead.gone()
        assert (await alive.run("echo ok")).text == "ok\n"
        assert not alive.closed


async def test_a_peer_that_asks_and_does_not_read_is_given_up(
    keeper: Keeper, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    await dial.run("seq 1 9000", call="big")
    monkeypatch.setattr(connection, "BACKLOG", 1 << 20)
    _, writer = await asyncio.open_unix_connection(str(keeper.scratch / SOCKET))
    for id in range(1, 200):
        writer.write(frames.encode(frames.Attach(id=id, session="s", call="big")))
    await writer.drain()
    while keeper_connections(keeper) > 1:
        await dial.run("true")
    assert (await dial.run("echo ok")).text == "ok\n"
    writer.close()


def keeper_connections(one: Keeper) -> int:
    return len(one._serving)


async def test_limits_are_told(dial: Dial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runs, "MAX_GOING", 1)
    first = dial.begin("echo began; sleep 300", call="first")
    await dial.prints(first)
    with pytest.raises(Refused, match="limit: 1 runs are going or waiting here"):
        await dial.run("true")
    await dial.interrupt("first")
    await dial.ended(first)
    monkeypatch.setattr(connection, "MAX_REQUESTS", 1)
    dial.send(frames.Write(id=50, path=str(tmp_path / "f")), b"x")
    await dial.next(50)
    with pytest.raises(Refused, match="limit: 1 requests"):
        await dial.read("/etc/passwd")
    monkeypatch.undo()
    dial.send(frames.Read(id=50, path="/etc/passwd"))
    with pytest.raises(Refused, match="bad_request: request 50 is still being carried out"):
        await dial.next(50)


async def test_a_disk_that_takes_no_journal_refuses_the_run(
    dial: Dial, keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await dial.run("true")

    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(keeper.runs.journal, "begin", full)
        with pytest.raises(Refused, match="could not journal the run, so it was not begun: No space left"):
            await dial.run(f"touch {tmp_path}/ran")
        with pytest.raises(Refused, match="could not journal the write: No space left"):
            await dial.write(tmp_path / "f", b"x", session="s", call="w")
    assert os.listdir(tmp_path) == []
    assert (await dial.run("echo ok")).text == "ok\n"


async def test_a_fault_in_one_request_is_told_and_ends_nothing_else(
    dial: Dial, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fault(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("daemon.worker.transfer.send_file", fault)
        with pytest.raises(Refused, match=r"failed: the worker has a fault: its log keeper\.log says more"):
            await dial.read("/etc/passwd")
    assert (await dial.run("echo ok")).text == "ok\n"


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("interpreter.drained", "sleep 1000 & echo on"),
        ("interpreter.Interpreter.begin", "echo on"),
        ("interpreter.Interpreter.at_once", "echo on"),
        ("pump.Pump.switch_now", "echo on"),
    ],
)
async def test_a_fault_while_a_run_goes_is_told_as_unknown_and_costs_its_environment_only(
    dial: Dial, monkeypatch: pytest.MonkeyPatch, where: str, code: str
) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    await dial.run("x=1")
    with monkeypatch.context() as patch:
        patch.setattr(f"daemon.worker.{where}", fault)
        ran = await dial.run(code, call="c")
    assert ran.end.unknown.startswith("the worker had a fault while this was running")
    _, again, _ = await dial.attach("c")
    assert again.unknown == ran.end.unknown
    after = await dial.run("echo ${x:-new}")
    assert (after.text, after.end.reset) == ("new\n", "the worker had a fault")


async def test_a_fault_before_a_run_is_told_as_one_that_was_not_begun(
    dial: Dial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fault(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("daemon.worker.reaping.Reaper.start", fault)
        with pytest.raises(Refused, match=r"so the run was not begun.*can't start new thread"):
            await dial.run(f"touch {tmp_path}/ran", call="c")
    assert os.listdir(tmp_path) == []
    assert (await dial.run("echo ok", call="c")).text == "ok\n", "no environment is left that did not come up"


async def test_a_fault_while_a_run_is_written_down_is_told_and_ends_nothing_else(
    dial: Dial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("no room")

    await dial.run("x=1")
    with monkeypatch.context() as patch:
        patch.setattr("daemon.worker.journal.Journal.begin", fault)
        with pytest.raises(Refused, match=r"so the run was not begun.*no room"):
            await dial.run(f"touch {tmp_path}/ran", call="c")
    assert os.listdir(tmp_path) == []
    assert (await dial.run("echo $x", call="c")).text == "1\n"


def test_secrets_and_the_daemons_own_variables_are_private() -> None:
    private = [
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "OUTRIDER_DATA",
        "PYTHONPATH",
    ]
    assert all(map(surroundings.is_private, private))
    assert not any(map(surroundings.is_private, ["PATH", "HOME", "SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM"]))
    kept = surroundings.without_private({"VIRTUAL_ENV": "/v", "PATH": "/v/bin:/usr/bin:/v/bin/", "A": "b"})
    assert kept == {"PATH": "/usr/bin", "A": "b"}


def test_descendants_are_the_same_with_and_without_the_kernels_lists() -> None:
    me = os.getpid()
    assert reaper.descendants(me).keys() == reaper.descendants_by_parent(me).keys()
    assert reaper.process(me) is not None
    assert reaper.process(2**30) is None
    assert reaper.children(2**30) == []
    assert reaper.name(2**30) == "?"


def test_another_process_that_got_the_pid_is_not_signalled() -> None:
    one = reaper.process(os.getpid())
    assert one is not None
    assert not reaper.send_signal(one._replace(started=one.started - 1), 9)
    assert not reaper.send_signal(one._replace(pid=2**22 + 1), 9)
