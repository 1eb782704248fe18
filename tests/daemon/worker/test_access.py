"""What a worker's own configuration allows, enforced by its keeper whatever is asked."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from daemon.allowance import INTERPRETERS, Allowance
from daemon.protocol import frames
from daemon.worker import access, files, interpreters, keeper
from daemon.worker.access import Access
from daemon.worker.keeper import SOCKET, Keeper
from daemon.worker.reading import Reading
from daemon.worker.refusal import Refusal
from tests.daemon.worker.dialing import Dial, Refused


async def allowing(kept: Keeper, **allowed: Any) -> Dial:
    """A connection to a keeper that allows this from now on."""
    await asyncio.to_thread(access.store, kept.scratch, Allowance(**allowed))
    return await Dial.to(kept.scratch / SOCKET)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder `in` with a file and links that lead out, and a folder `out`."""
    for name in ("in", "in/deep", "out", "inside"):
        (tmp_path / name).mkdir()
    (tmp_path / "in/file").write_text("in")
    (tmp_path / "out/file").write_text("out")
    (tmp_path / "inside/file").write_text("a name that only begins the same")
    (tmp_path / "in/link").symlink_to(tmp_path / "out/file")
    (tmp_path / "in/folder").symlink_to(tmp_path / "out")
    (tmp_path / "out/back").symlink_to(tmp_path / "in/file")
    return tmp_path


# Files.


async def test_only_what_lies_in_the_roots_is_read_links_resolved(keeper: Keeper, tree: Path) -> None:
    async with await allowing(keeper, read=(f"{tree}/in",)) as dial:
        for path in ("in/file", "out/back", "in/../in/file", "in/deep/../file"):
            assert (await dial.read(tree / path))[0] == b"in"
        for path in (
            "out/file",
            "in/link",
            "in/folder/file",
            "in/../out/file",
            "inside/file",
            "in/deep/../../out/file",
        ):
            with pytest.raises(
                Refused, match=r"may not be read: .* allows .*/in \(`read` in its \[worker\]\)"
            ):
                await dial.read(f"{tree}/{path}")
        with pytest.raises(Refused, match=r"in/link, which leads to .*out/file, may not be read"):
            await dial.read(tree / "in/link")
        with pytest.raises(Refused, match=r"denied: .*none may not be read"):
            await dial.read(tree / "out/none")  # whether it is there is nobody's business
        with pytest.raises(Refused, match="not_found"):
            await dial.read(tree / "in/none")


async def test_only_what_lies_in_the_roots_is_written_links_resolved(keeper: Keeper, tree: Path) -> None:
    async with await allowing(keeper, write=(f"{tree}/in", f"{tree}/out/one")) as dial:
        for path in ("in/file", "in/new", "in/made/of/folders", "out/back", "out/one"):
            await dial.write(f"{tree}/{path}", b"written")
        for path in (
            "out/file",
            "out/new",
            "out/ones",
            "in/link",
            "in/folder/new",
            "in/folder/made/new",
            "inside/x",
        ):
            with pytest.raises(Refused, match=r"may not be written: .* \(`write` in its \[worker\]\)"):
                await dial.write(f"{tree}/{path}", b"never")
        assert (tree / "out/file").read_text() == "out"
        assert sorted(path.name for path in (tree / "out").iterdir()) == ["back", "file", "one"]
        assert (await dial.read("/etc/passwd"))[0], "reading has its own rule"


async def test_a_link_outside_of_the_roots_is_not_removed_for_where_it_leads(
    keeper: Keeper, tree: Path
) -> None:
    async with await allowing(keeper, write=(f"{tree}/in",)) as dial:
        with pytest.raises(Refused, match="may not be written"):
            await dial.write(tree / "out/back", b"", remove=True)
        with pytest.raises(Refused, match="may not be written"):
            await dial.write(tree / "in/link", b"", remove=True)
        assert (tree / "out/back").is_symlink()
        await dial.write(tree / "in/file", b"", remove=True)
        assert not (tree / "in/file").exists()


async def test_no_roots_allow_nothing_and_the_scratch_stays_of_use(keeper: Keeper, tree: Path) -> None:
    async with await allowing(keeper, read=(), write=("/",)) as dial:
        with pytest.raises(Refused, match="allows nothing"):
            await dial.read(tree / "in/file")
        whole = (await dial.run("seq 5000")).end.full_output
        assert (await dial.read(whole))[1].size > 20_000
        with pytest.raises(Refused, match="denied"):
            await dial.read(keeper.scratch / access.FILE)
        sessions = keeper.scratch / "sessions/1.state"
        await dial.write(sessions, b"a session")
        assert (await dial.read(sessions))[0] == b"a session"
        for name in (access.FILE, "runs/x", "sessions/../keeper.log"):
            with pytest.raises(Refused, match="is in the worker's own folder"):
                await dial.write(f"{keeper.scratch}/{name}", b"{}")


def test_a_link_that_is_changed_between_look_and_opening_is_noticed(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is resolved to one within the roots; then a folder on its way becomes a link that leads out."""
    only = Access(Allowance(read=(f"{tree}/in",), write=(f"{tree}/in",)), tree / "scratch")
    real = os.path.realpath

    def resolved(path: Any, **more: Any) -> Any:
        return path if str(path).startswith(f"{tree}/in/folder") else real(path, **more)

    monkeypatch.setattr(os.path, "realpath", resolved)
    with pytest.raises(Refusal, match=r"which leads to .*out/file, may not be read"):
        Reading(frames.Read(id=1, path=f"{tree}/in/folder/file"), only)
    with pytest.raises(Refusal, match=r"which leads to .*out/new, may not be written"):
        files.Writing(frames.Write(id=1, path=f"{tree}/in/folder/new"), only)
    assert sorted(path.name for path in (tree / "out").iterdir()) == ["back", "file"]


def test_many_roots_are_named_in_part() -> None:
    roots = tuple(f"/r{n}" for n in range(30))
    with pytest.raises(Refusal, match="/r9 and 20 more"):
        Access(Allowance(read=roots), Path("/scratch")).read("/x", "/x")


# Runs.


async def test_only_allowed_interpreters_run_code_and_the_first_is_the_default(scratch: Path) -> None:
    kept = keeper.Keeper(scratch, "1", os.environ, lambda _: ("bash", "python"))
    async with kept.listening():
        async with await allowing(kept, interpreters=("python", "cobol")) as dial:
            assert dial.hello.interpreters == ("python",)
            with pytest.raises(Refused, match=r"denied: code may not be run with `bash`: .* allows python"):
                await dial.run("echo never", interpreter="bash")
            with pytest.raises(Refused, match="there is no interpreter `cobol` here, there is: python"):
                await dial.run("echo never", interpreter="cobol")
        async with await allowing(kept, interpreters=()) as dial:
            assert dial.hello.interpreters == ()
            for interpreter in ("", "bash", "cobol"):
                with pytest.raises(
                    Refused, match=r"no code may be run: .* allows none \(`interpreters` in its"
                ):
                    await dial.run("echo never", interpreter=interpreter)


async def test_a_run_is_ended_at_the_workers_own_time(keeper: Keeper) -> None:
    async with await allowing(keeper, seconds=0.2) as dial:
        ran = await dial.run("echo begun; sleep 60", timeout=3600)
        assert (ran.text, ran.end.stopped) == ("begun\n", "timeout")
        assert "allows 0.2 seconds a run (`seconds` in its [worker])" in ran.notes
        ran = await dial.run("sleep 60", timeout=0.1)
        assert (ran.end.stopped, ran.notes) == ("timeout", "")


async def test_an_interpreter_that_is_allowed_and_not_there_is_told_in_the_log(
    keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    async with await allowing(keeper, interpreters=("bash", "jupyter:none")) as dial:
        assert dial.hello.interpreters == ("bash",)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith("worker.interpreters allows jupyter:none, which is not there")


def test_the_interpreters_that_can_be_allowed_are_those_that_there_are() -> None:
    assert {interpreters.BASH, interpreters.PYTHON, interpreters.NODE} == set(INTERPRETERS)


async def test_more_runs_than_the_worker_allows_are_refused(keeper: Keeper) -> None:
    async with await allowing(keeper, runs=2) as dial:
        first = dial.begin("echo on; sleep 60", call="first")
        await dial.prints(first)
        second = dial.begin("sleep 60", call="second", session="s2")
        with pytest.raises(Refused, match=r"limit: 2 runs are going or waiting here, .* allows 2 at once"):
            await dial.run("echo never", session="s3")
        await dial.interrupt("first")
        await dial.ended(first)
        assert (await dial.run("echo now", session="s3")).text == "now\n"
        await dial.interrupt("second", "s2")
        await dial.ended(second)


async def test_only_so_much_of_a_runs_output_is_kept(keeper: Keeper) -> None:
    async with await allowing(keeper, output=1000) as dial:
        ran = await dial.run("seq 100000")
        assert ran.text.endswith("100000\n")
        assert "only the first 1000 bytes of the output are kept" in ran.notes
        assert os.path.getsize(ran.end.full_output) == 1000


async def test_code_gets_only_the_variables_that_are_passed(
    home: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = os.environ | {"SEEN": "1", "LC_SEEN": "2", "HIDDEN": "3", "A_TOKEN": "4"}
    kept = keeper.Keeper(scratch, "1", environ, lambda _: ("bash",))
    code = "echo ${SEEN-none} ${LC_SEEN-none} ${HIDDEN-none} ${A_TOKEN-none} $FROM_PROFILE; cat /dev/null"
    async with kept.listening():
        async with await allowing(kept) as dial:
            assert (await dial.run(code)).text == "1 2 3 none yes\n"
        async with await allowing(kept, environment=("PATH", "SEEN", "LC_*", "A_TOKEN")) as dial:
            assert (await dial.run(code)).text == "1 2 3 none yes\n", "an environment keeps what it has"
            assert (await dial.run(code, session="s2")).text == "1 2 none none yes\n"


# Where it is written down.


async def test_what_is_allowed_changes_with_the_next_connection_also_for_those_that_are_there(
    keeper: Keeper, tree: Path
) -> None:
    async with await allowing(keeper) as before:
        assert (await before.read(tree / "out/file"))[0] == b"out"
        async with await allowing(keeper, read=(f"{tree}/in",), interpreters=()):
            with pytest.raises(Refused, match="denied"):
                await before.read(tree / "out/file")
            with pytest.raises(Refused, match="denied"):
                await before.run("echo never")
        async with await allowing(keeper):
            assert (await before.read(tree / "out/file"))[0] == b"out"


async def test_a_file_that_does_not_read_leaves_what_was_allowed(keeper: Keeper, tree: Path) -> None:
    async with await allowing(keeper, read=(f"{tree}/in",)):
        pass
    for text in ("{", '{"read":"x"}', '{"newer_rule":1}'):
        (keeper.scratch / access.FILE).write_text(text)
        async with await Dial.to(keeper.scratch / SOCKET) as dial:
            with pytest.raises(Refused, match="denied"):
                await dial.read(tree / "out/file")


async def test_a_keeper_does_not_start_with_a_file_that_does_not_read(scratch: Path) -> None:
    (scratch / access.FILE).write_text("{")
    with pytest.raises(access.Unreadable, match=r"does not read .* start the worker anew"):
        async with keeper.Keeper(scratch, "1", os.environ, lambda _: ("bash",)).listening():
            pass
    await asyncio.to_thread(access.store, scratch, Allowance(runs=3))
    assert await asyncio.to_thread(access.load, scratch) == Allowance(runs=3)


def test_what_is_written_down_is_for_its_owner_and_written_only_when_it_changes(scratch: Path) -> None:
    assert access.load(scratch) == Allowance()
    access.store(scratch, Allowance())
    assert not (scratch / access.FILE).exists()
    access.store(scratch, Allowance(read=("/a",), seconds=1.5))
    found = (scratch / access.FILE).stat()
    assert found.st_mode & 0o777 == 0o600
    access.store(scratch, Allowance(read=("/a",), seconds=1.5))
    assert (scratch / access.FILE).stat().st_ino == found.st_ino
