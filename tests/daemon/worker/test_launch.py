"""Real keepers: found, started, killed, replaced, ended."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.protocol import frames
from daemon.worker import keeper, launch, smallfiles
from tests.daemon.worker.dialing import Dial


@pytest.fixture
async def ended(scratch: Path) -> AsyncIterator[Path]:
    """A scratch folder whose keeper is ended after the test."""
    yield scratch
    await launch.end(scratch)


def pid(scratch: Path) -> int:
    return keeper.holder(scratch / keeper.LOCK)


async def killed(scratch: Path) -> None:
    """Kill the keeper of a scratch folder and wait until it is gone."""
    number = pid(scratch)
    fd = os.pidfd_open(number)
    loop = asyncio.get_running_loop()
    gone = loop.create_future()
    loop.add_reader(fd, lambda: None if gone.done() else gone.set_result(None))
    os.kill(number, signal.SIGKILL)
    await gone
    loop.remove_reader(fd)
    os.close(fd)


def test_outriders_own_folders_are_for_their_owner_alone_and_those_above_as_the_umask_has_it(
    tmp_path: Path,
) -> None:
    before = os.umask(0o022)
    try:
        smallfiles.make_folder(tmp_path / "state/outrider/workers/one")
        smallfiles.make_folder(tmp_path / "named/by/hand")
        smallfiles.make_folder(tmp_path / "named/by")
    finally:
        os.umask(before)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {
        "state": 0o755,
        "state/outrider": 0o700,
        "state/outrider/workers": 0o700,
        "state/outrider/workers/one": 0o700,
        "named": 0o755,
        "named/by": 0o755,
        "named/by/hand": 0o700,
    }
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        smallfiles.make_folder(tmp_path / "file/in")
    with pytest.raises(FileExistsError):
        smallfiles.make_folder(tmp_path / "file")


async def test_a_keeper_is_started_once_and_found_again(ended: Path) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(launch.ensure(ended, "1")) for _ in range(3)]
    assert {task.result() for task in tasks} == {ended / "keeper.sock"}
    first = pid(ended)
    assert await launch.ensure(ended, "1") == ended / "keeper.sock"
    assert pid(ended) == first
    parent = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent != os.getpid(), "it is nobody's zombie"
    assert os.getsid(first) != os.getsid(0)


async def test_a_keeper_outlives_the_process_that_started_it(ended: Path) -> None:
    starter = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import asyncio, os, signal; from pathlib import Path; from daemon.worker import launch\n"
        f"asyncio.run(launch.ensure(Path({str(ended)!r}), '1'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
    )
    assert await starter.wait() == -signal.SIGKILL
    async with await Dial.to(ended / "keeper.sock") as dial:
        assert (await dial.run("echo ok")).text == "ok\n"


async def test_end_ends_the_keeper_and_every_process_of_its_environments(scratch: Path) -> None:
    path = await launch.ensure(scratch, "1")
    async with await Dial.to(path) as dial:
        child = int((await dial.run("setsid sleep 300 & echo $!")).text)
        await launch.end(scratch)
        await dial.gone()
    assert pid(scratch) == 0
    assert not path.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    await launch.end(scratch)


async def test_a_killed_keeper_is_replaced_and_its_journal_taken_up(ended: Path) -> None:
    path = await launch.ensure(ended, "1")
    async with await Dial.to(path) as dial:
        await dial.run("x=1; echo before; setsid sleep 300 &", call="done")
        going = dial.begin("echo so far; sleep 300", call="going")
        await dial.prints(going, b"so far\n")
        dial.begin("echo never", call="waits")
        assert await dial.interrupt("none")
        await killed(ended)
        await dial.gone()
    assert path.exists(), "the socket of a killed keeper stays"
    assert await launch.ensure(ended, "1") == path
    async with await Dial.to(path) as dial:
        assert dial.hello.journal_age >= 0
        _, frame, body = await dial.attach("done")
        assert (frame.exit, body) == (0, b"before\n")
        _, frame, body = await dial.attach("going")
        assert "keeper ended" in frame.unknown
        assert (frame.exit, body) == (None, b"so far\n")
        assert isinstance((await dial.attach("waits"))[1], frames.Unknown)
        again = await dial.run("echo so far; sleep 300", call="going")
        assert again.end.unknown, "it is not run a second time"
        ran = await dial.run("echo ${x-lost}")
        assert (ran.text, ran.end.reset) == ("lost\n", "the worker's keeper ended and was started again")
        assert (await dial.run("true")).end.reset == ""


async def test_processes_of_a_killed_keeper_are_ended_by_their_reaper(ended: Path, tmp_path: Path) -> None:
    path = await launch.ensure(ended, "1")
    os.mkfifo(tmp_path / "held")
    async with await Dial.to(path) as dial:
        await dial.run(f"(exec 3<>{tmp_path}/held 4>{tmp_path}/held; setsid sleep 300 <&3 3<&- >&4) &")
        held = await asyncio.to_thread(open, tmp_path / "held", "rb", 0)
        await killed(ended)
        assert await asyncio.to_thread(held.read, 1) == b"", "the last writer is gone"
        held.close()


async def test_one_of_another_release_is_replaced_when_idle_and_left_while_busy(ended: Path) -> None:
    path = await launch.ensure(ended, "1")
    async with await Dial.to(path) as dial:
        id = dial.begin("echo began; sleep 300", call="c")
        await dial.prints(id, b"began\n")
        assert await launch.ensure(ended, "2") == path
        assert dial.hello.release == "1"
        await dial.interrupt("c")
        await dial.ended(id)
        await dial.gone()
    await launch.ensure(ended, "2")
    async with await Dial.to(path) as dial:
        assert dial.hello.release == "2"
    await launch.ensure(ended, "3")
    async with await Dial.to(path) as dial:
        assert dial.hello.release == "3"


async def test_a_keeper_that_hangs_is_ended_by_force(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "END_WAIT", 0.2)
    monkeypatch.setattr(launch, "HELLO_WAIT", 0.2)
    await launch.ensure(scratch, "1")
    os.kill(pid(scratch), signal.SIGSTOP)
    with pytest.raises(launch.LaunchError, match="is there but says nothing"):
        await launch.ensure(scratch, "1")
    await launch.end(scratch)
    assert pid(scratch) == 0


async def test_what_cannot_be_is_told_in_a_sentence(scratch: Path) -> None:
    with pytest.raises(launch.LaunchError, match="longer than a socket's path may be"):
        await launch.ensure(Path("/tmp/" + "x" * 120), "1")
    with pytest.raises(launch.LaunchError, match=r"cannot be made: "):
        await launch.ensure(Path("/proc/none/scratch"), "1")
    (scratch / "runs").write_text("a file where the folder goes")
    with pytest.raises(launch.LaunchError, match=r"did not start: .*File exists"):
        await launch.ensure(scratch, "1")


async def test_what_listens_and_is_no_keeper_is_told(scratch: Path) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail\r\n")
        writer.close()

    async with await asyncio.start_unix_server(answer, str(scratch / "keeper.sock")):
        with pytest.raises(launch.LaunchError, match="is not a keeper"):
            await launch.ensure(scratch, "1")


async def test_the_keepers_memory_stays_flat_under_huge_output(ended: Path) -> None:
    path = await launch.ensure(ended, "1")

    def peak() -> int:
        status = Path(f"/proc/{pid(ended)}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) << 10

    async with await Dial.to(path) as dial:
        await dial.run("seq 1000000")
        before = peak()
        codes = ["head -c 200000000 /dev/zero | tr '\\0' x", "yes | head -c 100000000", "seq 3000000"]
        ids = [dial.begin(code, session=f"s{n}") for n, code in enumerate(codes)]
        ran = [await dial.ended(id) for id in ids]
    assert peak() - before < 32 << 20
    assert ran[0].text == "x" * frames.MAX_TAIL
    assert (ran[0].end.truncated, ran[0].end.exit) == (1, 0)
    assert os.path.getsize(ran[0].end.full_output) == 200_000_000
    assert ran[1].end.truncated == 50_000_000 - 2000


def test_importing_the_worker_is_light() -> None:
    code = (
        "import sys, daemon.worker.keeper, daemon.worker.launch; heavy = "
        "{'textual', 'PIL', 'prometheus_client', 'aiohttp', 'click', 'structlog'}; print(heavy & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert said.stdout == b"set()\n"
