"""Reading and replacing files through a keeper."""

import asyncio
import hashlib
import os
import socket
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.protocol import frames
from daemon.worker import patience
from daemon.worker.keeper import SOCKET, Keeper
from daemon.worker.reading import Reading
from tests.daemon.worker.dialing import Dial, Refused

ODD = b"\xef\xbb\xbfa\r\nb\rc\n\nlast without newline \xff\x00"


async def test_bytes_come_back_as_they_are(dial: Dial, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(ODD)
    found, last = await dial.read(tmp_path / "f")
    assert found == ODD
    assert (last.size, last.end) == (len(ODD), True)
    (tmp_path / "empty").touch()
    assert (await dial.read(tmp_path / "empty"))[0] == b""


async def test_a_part_is_read_by_bytes(dial: Dial, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    found, last = await dial.read(tmp_path / "f", offset=3, limit=4)
    assert (found, last.end, last.size) == (b"3456", False, 10)
    assert (await dial.read(tmp_path / "f", offset=8, limit=2))[1].end
    assert (await dial.read(tmp_path / "f", offset=20))[0] == b""


async def test_lines_are_read_from_the_first_asked_for(dial: Dial, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\r\ntwo\n\nfour")
    found, last = await dial.read(tmp_path / "f", unit="lines", offset=2, limit=2)
    assert (found, last.lines, last.end) == (b"two\n\n", 2, False)
    found, last = await dial.read(tmp_path / "f", unit="lines", offset=4, limit=9)
    assert (found, last.lines, last.end) == (b"four", 1, True)
    found, last = await dial.read(tmp_path / "f", unit="lines", offset=9)
    assert (found, last.lines, last.end) == (b"", 0, True)


@given(
    st.lists(
        st.sampled_from([b"a", b"\n", b"\n\n", b"b\x0b", b"\r\n", b"\xff", "\u2028\x85".encode()]),
        max_size=30,
    ).map(b"".join),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(1, 9),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_lines_in_any_pieces_are_those_of_the_file(
    tmp_path: Path, data: bytes, offset: int, limit: int, piece: int
) -> None:
    file = tmp_path / "f"
    file.write_bytes(data)
    reading = Reading(frames.Read(id=1, path=str(file), unit="lines", offset=offset, limit=limit))
    found, last = b"", False
    while not last:
        more, last = reading.piece(piece)
        found += more
    reading.close()
    lines = [line + b"\n" for line in data.split(b"\n")[:-1]] + [
        rest for rest in [data.split(b"\n")[-1]] if rest
    ]
    first = max(0, offset - 1)
    asked = lines[first : first + limit] if limit else lines[first:]
    assert (found, reading.lines) == (b"".join(asked), len(asked))
    assert reading.end == (first + len(asked) >= len(lines))


async def test_a_file_of_proc_is_read_to_its_end(dial: Dial) -> None:
    found, last = await dial.read("/proc/self/status")
    assert b"VmRSS" in found
    assert (last.size, last.end) == (len(found), True)
    found, last = await dial.read("/proc/self/status", unit="lines", limit=1)
    assert found.startswith(b"Name:")
    assert not last.end


async def test_relative_paths_begin_at_cwd_or_home(dial: Dial, home: Path, tmp_path: Path) -> None:
    (home / "f").write_text("home")
    (tmp_path / "f").write_text("cwd")
    assert (await dial.read("f"))[0] == b"home"
    assert (await dial.read("~/f"))[0] == b"home"
    assert (await dial.read("f", cwd=str(tmp_path)))[0] == b"cwd"


async def test_what_is_not_a_regular_file_is_refused_and_cannot_hang(dial: Dial, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "sock")[-100:] if len(str(tmp_path)) < 90 else "\0or-test")
    wrong = {
        "/dev/zero": "not_regular: /dev/zero is a character device",
        str(tmp_path / "fifo"): "not_regular: .* is a FIFO",
        str(tmp_path / "link"): "not_regular: .* is a FIFO",
        str(tmp_path): "is_directory: .* is a folder",
        str(tmp_path / "loop"): "bad_request: .* leads back to itself",
        str(tmp_path / "none/at/all"): f"not_found: there is no .* \\(the folder {tmp_path} is there\\)",
        "/etc/passwd/x": "not_found: .* a part of the path is a file",
        "x" * 300: "bad_request: `path` has a name that is too long",
        "": "bad_request: `path` is empty",
        "a\0b": "bad_request: `path` holds a NUL",
    }
    for path, why in wrong.items():
        with pytest.raises(Refused, match=why):
            await dial.read(path)
    for path in ("/dev/null", str(tmp_path / "fifo"), str(tmp_path)):
        with pytest.raises(Refused):
            await dial.write(path, b"x")


async def test_a_folder_that_may_not_be_entered_is_denied(dial: Dial, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        with pytest.raises(Refused, match=r"denied|not_found"):
            await dial.write("/proc/version", b"x")
        return
    (tmp_path / "shut").mkdir(mode=0)
    with pytest.raises(Refused, match=r"denied: .* the worker runs as"):
        await dial.read(tmp_path / "shut/f")


async def test_a_write_replaces_the_whole_file_and_makes_parents(dial: Dial, tmp_path: Path) -> None:
    assert await dial.write(tmp_path / "a/b/f", ODD) == len(ODD)
    assert (tmp_path / "a/b/f").read_bytes() == ODD
    assert await dial.write(tmp_path / "a/b/f", b"") == 0
    assert (tmp_path / "a/b/f").read_bytes() == b""
    assert os.listdir(tmp_path / "a/b") == ["f"], "no temporary file is left"


async def test_a_file_keeps_its_mode_owner_and_link(dial: Dial, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("old")
    file.chmod(0o751)
    if os.geteuid() == 0:
        os.chown(file, 1234, 2345)
    (tmp_path / "link").symlink_to("f")
    await dial.write(tmp_path / "link", b"new")
    found = file.stat()
    assert (tmp_path / "link").is_symlink()
    assert file.read_text() == "new"
    assert stat.S_IMODE(found.st_mode) == 0o751
    if os.geteuid() == 0:
        assert (found.st_uid, found.st_gid) == (1234, 2345)
    await dial.write(tmp_path / "script", b"#!/bin/sh\n", mode=0o755)
    assert stat.S_IMODE((tmp_path / "script").stat().st_mode) & 0o700 == 0o700


async def test_a_dangling_link_is_followed_to_where_it_leads(dial: Dial, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    await dial.write(tmp_path / "link", b"x")
    assert (tmp_path / "target").read_bytes() == b"x"


async def test_a_write_over_other_content_than_expected_is_refused(dial: Dial, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    with pytest.raises(Refused, match=r"changed: .* was changed since it was read"):
        await dial.write(file, b"new", expect=hashlib.sha256(b"other").hexdigest(), session="s", call="c")
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]
    assert isinstance((await dial.attach("c"))[1], frames.Unknown)
    await dial.write(file, b"new", expect=hashlib.sha256(b"old").hexdigest().upper())
    assert file.read_bytes() == b"new"
    with pytest.raises(Refused, match=r"changed: .* is not there any more"):
        await dial.write(tmp_path / "g", b"new", expect="0" * 64)


async def test_of_many_writes_that_expect_the_same_content_one_happens(dial: Dial, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    expect = hashlib.sha256(b"old").hexdigest()

    async def attempt(n: int) -> bool:
        try:
            await dial.write(file, b"%d" % n, expect=expect)
        except Refused as refused:
            return refused.code != "changed"
        return True

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt(n)) for n in range(8)]
    assert [task.result() for task in tasks].count(True) == 1


async def test_a_named_write_happens_once(dial: Dial, keeper: Keeper, tmp_path: Path) -> None:
    file = tmp_path / "f"
    assert await dial.write(file, b"first", session="s", call="w") == 5
    file.write_bytes(b"changed by somebody")
    assert await dial.write(file, b"first", session="s", call="w") == 5
    assert file.read_bytes() == b"changed by somebody"
    _, frame, _ = await dial.attach("w")
    assert frame.exit == 0
    async with await Dial.to(keeper.scratch / SOCKET) as again:
        assert ("s", "w") in again.hello.runs
    with pytest.raises(Refused, match="go together"):
        await dial.write(file, b"x", call="w")
    await dial.run("true", call="r")
    with pytest.raises(Refused, match="call r is a run, not a write"):
        await dial.write(file, b"x", session="s", call="r")


async def test_a_write_that_loses_its_connection_leaves_the_file_as_it_was(
    dial: Dial, keeper: Keeper, tmp_path: Path
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    async with await Dial.to(keeper.scratch / SOCKET) as other:
        other.send(frames.Write(id=1, path=str(file), session="s", call="w"), b"x" * frames.PIECE)
        frame, _ = await other.next(1)
        assert frame == frames.Window(id=1, bytes=frames.PIECE)
    await dial.run("true")
    while os.listdir(tmp_path) != ["f"]:
        await dial.run("true")
    assert file.read_bytes() == b"old"
    assert await dial.write(file, b"new", session="s", call="w") == 3
    assert file.read_bytes() == b"new"


@pytest.mark.parametrize("size", [20 << 20])
async def test_a_big_read_and_write_keep_to_the_window_and_let_runs_through(
    dial: Dial, tmp_path: Path, size: int
) -> None:
    data = os.urandom(1 << 20) * (size >> 20)
    (tmp_path / "big").write_bytes(data)
    read = dial.id()
    dial.send(frames.Read(id=read, path=str(tmp_path / "big")))
    write = dial.id()
    window, sent = frames.WINDOW, 0
    while window >= frames.PIECE:
        dial.send(frames.Write(id=write, path=str(tmp_path / "copy")), data[sent : sent + frames.PIECE])
        sent += frames.PIECE
        window -= frames.PIECE
    assert (await dial.run("echo between")).text == "between\n"
    got, last, done, held = bytearray(), False, False, 0
    while not last:
        frame, body = await dial.next(read)
        got += body
        held += len(body)
        last = frame.last
        if not last and held == frames.WINDOW:
            assert (await dial.run("echo stalled")).text == "stalled\n"
            assert not dial._answers[read], "no more than the window is on the way"
            dial.send(frames.Window(id=read, bytes=held))
            held = 0
    assert bytes(got) == data
    while not done:
        frame, _ = await dial.next(write)
        if isinstance(frame, frames.Window):
            window += frame.bytes
        else:
            done = True
            assert frame.size == size
        while sent < size and window >= frames.PIECE:
            end = sent + frames.PIECE
            dial.send(frames.Write(id=write, path=str(tmp_path / "copy"), last=end >= size), data[sent:end])
            sent, window = end, window - frames.PIECE
    assert (tmp_path / "copy").read_bytes() == data


async def test_more_of_a_write_than_the_window_ends_the_connection(dial: Dial, tmp_path: Path) -> None:
    for _ in range(200):
        dial.send(frames.Write(id=1, path=str(tmp_path / "f")), b"x" * frames.PIECE)
    await dial.gone()
    with pytest.raises(Refused, match="this connection ends: more of a write than its window"):
        await dial.next(0)


async def test_a_file_system_that_hangs_does_not_hang_the_call(
    dial: Dial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "FILE_WAIT", 0)
    with pytest.raises(Refused, match="the file system did not answer"):
        await dial.read("/etc/passwd")


async def test_a_file_system_that_hangs_holds_up_no_answer_no_run_and_no_other_file(
    dial: Dial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, answers = tmp_path / "hung", threading.Event()
    hung.write_bytes(b"x")
    read = Reading._read

    def hangs(self: Reading, size: int) -> bytes:
        if self.path == str(hung):
            answers.wait()
        return read(self, size)

    await dial.run("true")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Reading, "_read", hangs)
            patch.setattr(patience, "FILE_WAIT", 0.5)
            patch.setattr(patience, "LET_GO_WAIT", 0)
            for id in range(1000, 1040):
                dial.send(frames.Read(id=id, path=str(hung)))
            for id in range(1000, 1040):
                with pytest.raises(Refused, match="the file system did not answer"):
                    await dial.next(id)
        assert (await dial.run("seq 30000 | tail -n 1; seq 30000")).end.exit == 0
        assert (await dial.read("/etc/passwd"))[0]
    finally:
        answers.set()


async def test_a_removal_takes_the_file_away_once(dial: Dial, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    with pytest.raises(Refused, match="was changed"):
        await dial.write(file, b"", remove=True, expect="0" * 64)
    assert file.exists()
    assert await dial.write(file, b"", remove=True, session="s", call="r") == 0
    assert os.listdir(tmp_path) == []
    file.write_bytes(b"somebody's")
    assert await dial.write(file, b"", remove=True, session="s", call="r") == 0
    assert file.read_bytes() == b"somebody's"
    with pytest.raises(Refused, match="cannot be removed"):
        await dial.write(tmp_path / "none", b"", remove=True)
    assert os.listdir(tmp_path) == ["f"]


async def test_a_write_that_is_undone_takes_along_the_empty_folders_made_for_it_and_no_other(
    dial: Dial, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    for call, path in (("1", "mine/a/b/f"), ("2", "mine/a/c/g"), ("3", "mine/a/c/h")):
        await dial.write(tmp_path / path, b"x", session="s", call=call)
    await dial.write(tmp_path / "mine/a/c/h", b"", remove=True, undoes=("s", "3"))
    assert os.listdir(tmp_path / "mine/a/c") == ["g"], "none was made for it"
    await dial.write(tmp_path / "mine/a/b/f", b"", remove=True, undoes=("s", "1"))
    assert os.listdir(tmp_path / "mine/a") == ["c"], "only what is empty goes"
    await dial.write(tmp_path / "mine/a/c/g", b"", remove=True, undoes=("s", "2"))
    assert os.listdir(tmp_path / "mine/a") == [], "this one was made for another"
    await dial.write(tmp_path / "mine/d/e/i", b"x", session="s", call="4")
    await dial.write(tmp_path / "mine/d/e/i", b"", remove=True)
    assert os.listdir(tmp_path / "mine/d/e") == [], "a removal that undoes nothing takes no folder along"
    await dial.write(tmp_path / "mine/d/e/i", b"x", session="s", call="5")
    await dial.write(tmp_path / "mine/d/e/i", b"", remove=True, undoes=("s", "4"))
    assert sorted(os.listdir(tmp_path / "mine")) == ["a"]
    with pytest.raises(Refused, match="`undoes` goes with `remove`"):
        await dial.write(tmp_path / "f", b"x", undoes=("s", "4"))


async def test_a_removed_link_leaves_what_it_points_to(dial: Dial, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    await dial.write(tmp_path / "link", b"", remove=True)
    assert os.listdir(tmp_path) == ["f"]


async def test_a_new_file_takes_the_mode_of_another(dial: Dial, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(b"#!/bin/sh\n")
    old.chmod(0o750)
    await dial.write("new", b"y", cwd=str(tmp_path), like="old")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o750
    with pytest.raises(Refused, match=f"there is no {tmp_path}/none"):
        await dial.write("other", b"y", cwd=str(tmp_path), like="none")


async def test_a_write_of_a_name_longer_than_a_runs_is_refused(dial: Dial, tmp_path: Path) -> None:
    for session, call in (("s" * 1025, "c"), ("s", "c" * 1025)):
        with pytest.raises(Refused, match="at most 1024 characters"):
            await dial.write(tmp_path / "f", b"x", session=session, call=call)
    assert os.listdir(tmp_path) == []
