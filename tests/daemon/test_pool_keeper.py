"""The pool with a real keeper: both ends of the protocol, over the keeper's socket."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest

from daemon.harness import agents
from daemon.harness.calls import Calls
from daemon.harness.environments import Environments
from daemon.harness.tools import BadCall, Patch
from daemon.pool import Pool, Refused, WorkerGone
from daemon.protocol import frames
from daemon.protocol.records import WorkerRef
from daemon.worker import keeper, launch
from tests.fakes import Tasks

RELEASE = "1.0"


class Local:
    """A pool and the keeper of a scratch folder of its own."""

    def __init__(self, scratch: Path, tasks: Tasks) -> None:
        self.scratch = scratch
        self.tasks = tasks
        self.changed = asyncio.Event()
        self.pool = Pool(release=RELEASE, on_change=self.changed.set)
        self._writer: asyncio.StreamWriter | None = None
        self._served: asyncio.Task[None] | None = None

    async def dial(self) -> None:
        """Have a keeper, and connect it to the pool."""
        path = await launch.ensure(self.scratch, RELEASE)
        reader, self._writer = await asyncio.open_unix_connection(str(path))
        self._served = self.tasks.start(self.pool.serve("local", reader, self._writer), "serve")
        while self.pool.hello("local") is None:
            self.changed.clear()
            await self.changed.wait()

    async def cut(self) -> None:
        """Lose the connection, as a broken network would have it."""
        assert self._writer is not None
        self._writer.transport.abort()
        await self.lost()

    async def lost(self) -> None:
        """Wait until the connection has ended."""
        assert self._served is not None
        await self._served

    def file(self, name: str) -> Path:
        """A file that the test and the runs share."""
        return self.scratch / name

    async def appears(self, name: str) -> None:
        """Wait until a run has made that file. It asks the keeper by runs in another environment."""
        code = f"until [ -e '{self.file(name)}' ]; do sleep 0.01; done"
        await self.pool.run("local", "watch", os.urandom(4).hex(), code)


@pytest.fixture
async def local(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Local]:
    scratch = Path(tempfile.mkdtemp(prefix="or-"))
    monkeypatch.setenv("HOME", str(scratch))  # whose profile, which every shell reads, is an empty one
    tasks = Tasks()
    local = Local(scratch, tasks)
    try:
        await local.dial()
        yield local
    finally:
        await tasks.close()
        await launch.end(scratch)
        shutil.rmtree(scratch)


async def test_a_run_prints_and_ends(local: Local) -> None:
    seen: list[bytes] = []
    output = await local.pool.run("local", "s", "c", "printf 'hé\\n'; exit 3", on_output=seen.append)
    assert (output.text.decode(), output.exit) == ("hé\n", 3)
    assert b"".join(seen) in (b"", output.text)


async def test_a_call_that_was_carried_out_is_not_carried_out_again(local: Local) -> None:
    counter = local.file("counter")
    code = f"echo x >> {counter}; echo done"
    first = await local.pool.run("local", "s", "c", code)
    again = await local.pool.run("local", "s", "c", code)
    later = await local.pool.run("local", "s", "c", code, age=5)
    assert first.text == again.text == later.text == b"done\n"
    assert counter.read_text() == "x\n"


async def test_a_run_goes_on_over_a_cut_and_its_result_is_whole(local: Local) -> None:
    go, counter = local.file("go"), local.file("counter")
    code = f"echo before; echo x >> {counter}; until [ -e {go} ]; do sleep 0.01; done; echo after"
    task = local.tasks.start(local.pool.run("local", "s", "c", code))
    await local.appears("counter")
    await local.cut()
    await local.dial()
    go.touch()
    assert (await task).text == b"before\nafter\n"
    assert counter.read_text() == "x\n"


async def test_a_run_that_ended_while_the_connection_was_cut_is_found(local: Local) -> None:
    code = f"touch {local.file('begun')}; until [ -e {local.file('go')} ]; do sleep 0.01; done; echo done"
    task = local.tasks.start(local.pool.run("local", "s", "c", code))
    await local.appears("begun")
    await local.cut()
    local.file("go").touch()
    await local.dial()
    assert (await task).text == b"done\n"


async def test_eight_runs_in_eight_environments_survive_a_cut(local: Local) -> None:
    go = local.file("go")
    tasks = [
        local.tasks.start(
            local.pool.run(
                "local",
                f"s{i}",
                "c",
                f"touch {local.file(f'b{i}')}; until [ -e {go} ]; do sleep 0.02; done; echo {i}",
            )
        )
        for i in range(8)
    ]
    for i in range(8):
        await local.appears(f"b{i}")
    await local.cut()
    await local.dial()
    go.touch()
    assert [(await task).text for task in tasks] == [f"{i}\n".encode() for i in range(8)]


async def test_a_keeper_that_was_killed_leaves_its_run_unknown_and_the_next_one_serves(local: Local) -> None:
    task = local.tasks.start(local.pool.run("local", "s", "c", f"touch {local.file('begun')}; sleep 600"))
    await local.appears("begun")
    pid = keeper.holder(local.scratch / keeper.LOCK)
    assert pid  # 0 would be the tests themselves
    os.kill(pid, signal.SIGKILL)
    await local.lost()
    await local.dial()
    assert "keeper ended" in (await task).unknown
    output = await local.pool.run("local", "s", "c2", "echo again")
    assert output.text == b"again\n"
    assert "keeper" in output.reset


async def test_a_scratch_that_was_wiped_makes_the_effect_unknown(local: Local) -> None:
    task = local.tasks.start(local.pool.run("local", "s", "c", f"touch {local.file('begun')}; sleep 600"))
    await local.appears("begun")
    await local.cut()
    await launch.end(local.scratch)
    shutil.rmtree(local.scratch / "runs")
    await local.dial()
    assert "journal is younger" in (await task).unknown


async def test_an_interrupt_ends_the_run_and_keeps_its_output(local: Local) -> None:
    code = f"echo so far; touch {local.file('begun')}; sleep 600"
    task = local.tasks.start(local.pool.run("local", "s", "c", code))
    await local.appears("begun")
    await local.pool.interrupt("local", "s", "c")
    output = await task
    assert output.stopped == "interrupt"
    assert output.text.startswith(b"so far\n")


async def test_an_interrupt_during_a_cut_reaches_the_run_when_the_worker_dials(local: Local) -> None:
    task = local.tasks.start(local.pool.run("local", "s", "c", f"touch {local.file('begun')}; sleep 600"))
    await local.appears("begun")
    await local.cut()
    await local.pool.interrupt("local", "s", "c")
    await local.dial()
    assert (await task).stopped == "interrupt"


async def test_a_patch_that_fails_midway_leaves_no_file_and_no_folder(local: Local) -> None:
    (folder := local.file("project")).mkdir()
    (folder / "plain").write_text("a file\n")
    (folder / "a.py").write_text("one\n")
    asked = """*** Begin Patch
*** Add File: brand/new/b.txt
+hello
*** Update File: a.py
@@
-one
+ONE
*** Add File: plain/c.txt
+a file stands there
*** End Patch"""
    async with asyncio.TaskGroup() as group:
        calls = Calls(local.pool, Environments(local.pool, group, lambda: datetime.now(UTC), None))
        with pytest.raises(BadCall, match=r"plain/c\.txt could not be written: .*\. Nothing was changed\."):
            await calls._patch(
                "s", "c", Patch(worker="local", input=asked), WorkerRef("local", str(folder)), None
            )
    assert sorted(path.name for path in folder.rglob("*")) == ["a.py", "plain"]
    assert (folder / "a.py").read_text() == "one\n"


async def test_kill_says_what_it_ended(local: Local) -> None:
    await local.pool.run("local", "s", "c", "sleep 600 &")
    assert "sleep 600" in (await local.pool.kill("local", "s") or "")


async def test_code_that_does_not_parse_is_refused(local: Local) -> None:
    with pytest.raises(Refused) as caught:
        await local.pool.run("local", "s", "c", "echo 'unclosed")
    assert caught.value.code == "syntax"


async def test_a_file_over_the_window_is_written_and_read_back(local: Local) -> None:
    data = os.urandom(frames.WINDOW + frames.PIECE + 1)
    path = str(local.file("big"))
    assert await local.pool.write("local", path, data, session="s", call="w") == len(data)
    assert await local.pool.write("local", path, b"other", session="s", call="w") == len(data)
    content = await local.pool.read("local", path)
    assert sha256(content.data).digest() == sha256(data).digest()
    assert (content.size, content.end) == (len(data), True)
    part = await local.pool.read("local", path, offset=5, limit=10)
    assert (part.data, part.end) == (data[5:15], False)
    found = await local.pool.attach("local", "s", "w", age=5)
    assert found is not None
    assert found.exit == 0


async def test_lines_are_read_by_number(local: Local) -> None:
    local.file("lines").write_text("a\nb\nc\n")
    content = await local.pool.read("local", str(local.file("lines")), offset=2, limit=1, unit="lines")
    assert (content.data, content.lines, content.end) == (b"b\n", 1, False)


async def test_the_rules_of_a_folder_are_those_of_where_it_really_is(local: Local) -> None:
    root = Path(os.path.realpath(local.scratch)) / "rules"
    for folder in ("repo/.git", "repo/deep/er", "other", "elsewhere"):
        (root / folder).mkdir(parents=True)
    for folder in ("repo", "repo/deep", "other"):
        (root / folder / "AGENTS.md").write_text(f"{folder}'s")
    (root / "link").symlink_to(root / "repo/deep/er")

    async def found(cwd: str) -> list[str]:
        ref = WorkerRef("local", cwd)
        records, looked = await agents.scan(local.pool, [ref])
        assert looked == [agents.place(ref)]
        return [record.text() for record in records]

    def told(*folders: str) -> list[str]:
        return [f"From {root}/{one}/AGENTS.md on worker local:\n\n{one}'s" for one in folders]

    assert await found(f"{root}/repo/deep/er") == told("repo", "repo/deep")
    assert await found(f"{root}/repo/../other") == told("other")
    assert await found(f"{root}/link") == told("repo", "repo/deep")
    assert await found(f"{root}/link/..") == told("repo", "repo/deep")
    assert await found(f"{root}/elsewhere/../link/../../../other") == told("other")
    assert await found(f"{root}/not/there") == []


async def test_a_big_write_that_is_refused_leaves_the_connection_whole(local: Local) -> None:
    with pytest.raises(Refused) as caught:
        await local.pool.write("local", str(local.scratch), bytes(3 * frames.WINDOW))
    assert caught.value.code == "is_directory"
    assert (await local.pool.run("local", "s", "c", "echo on")).text == b"on\n"


async def test_transfers_that_were_given_up_leave_nothing_at_the_keeper(local: Local) -> None:
    big = local.file("big")
    big.write_bytes(bytes(4 * frames.WINDOW))
    pid = keeper.holder(local.scratch / keeper.LOCK)
    with pytest.raises(Refused, match="over 10 bytes"):
        await local.pool.read("local", str(big), max_bytes=10)
    reading = local.tasks.start(local.pool.read("local", str(big), max_bytes=1 << 30))
    writing = local.tasks.start(local.pool.write("local", str(big), bytes(64 << 20)))
    await asyncio.sleep(0)
    for task in (reading, writing):
        task.cancel()
    while any("big" in place or ".tmp" in place for place in open_files(pid)):
        await local.pool.run("local", "s", os.urandom(4).hex(), "true")
    assert [item.name for item in local.scratch.iterdir() if item.name.endswith(".tmp")] == []
    assert big.stat().st_size == 4 * frames.WINDOW


async def test_a_worker_that_does_not_come_back_is_gone(local: Local) -> None:
    impatient = Pool(release=RELEASE, grace=0.0)
    with pytest.raises(WorkerGone, match="nothing was done"):
        await impatient.run("local", "s", "c", "true")


def open_files(pid: int) -> list[str]:
    """Paths of a process's descriptors."""
    found = []
    for item in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(item))
        except OSError:  # closed meanwhile
            continue
    return found
