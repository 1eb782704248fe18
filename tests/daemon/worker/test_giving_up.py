"""Transfers that are given up or refused on the way: nothing of them is held, and nothing of them happens later."""

import asyncio
import contextlib
import hashlib
import os
import threading
from pathlib import Path

import msgspec
import pytest

from daemon.protocol import frames
from daemon.worker import connection
from daemon.worker.files import Writing
from daemon.worker.keeper import SOCKET, Keeper
from daemon.worker.reading import Reading
from tests.daemon.worker.dialing import Dial, Refused


def held(folder: Path) -> list[str]:
    """What is open in a folder here, where the keeper is as well: a file without a name shows as its folder's."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [path for path in found if path.startswith(str(folder))]


async def test_a_read_that_the_harness_gives_up_ends(dial: Dial, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"x" * (frames.WINDOW + 10 * frames.PIECE))
    ids = [dial.id() for _ in range(20)]
    for id in ids:
        dial.send(frames.Read(id=id, path=str(big)))
        for _ in range(frames.WINDOW // frames.PIECE):
            await dial.next(id)
    assert len(held(tmp_path)) == len(ids)
    for id in ids:
        dial.send(frames.Window(id=id, bytes=0))
    while held(tmp_path):
        await dial.run("true")
    assert (await dial.read(big, limit=3))[0] == b"xxx"


@pytest.mark.parametrize("waits", [False, True], ids=["all was taken up", "a piece waits"])
async def test_a_write_that_the_harness_gives_up_ends(dial: Dial, tmp_path: Path, waits: bool) -> None:
    ids = [dial.id() for _ in range(20)]
    for id in ids:
        dial.send(frames.Write(id=id, path=str(tmp_path / f"{id}/new")), b"x" * frames.PIECE)
        await dial.next(id)
    assert len(held(tmp_path)) == 2 * len(ids), "a file and its folder each"
    for id in ids:
        if waits:
            dial.send(frames.Write(id=id, path=str(tmp_path / f"{id}/new")), b"x" * frames.PIECE)
        dial.send(frames.Window(id=id, bytes=0))
    while held(tmp_path) or os.listdir(tmp_path):
        await dial.run("true")


async def test_an_append_that_the_harness_gives_up_leaves_the_file_to_the_next(
    dial: Dial, tmp_path: Path
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    expect = hashlib.sha256(b"old").hexdigest()
    first = dial.id()
    dial.send(frames.Write(id=first, path=str(file), append=True, expect=expect), b"cut off")
    await dial.next(first)
    dial.send(frames.Window(id=first, bytes=0))
    while held(tmp_path):
        await dial.run("true")
    assert file.read_bytes() == b"old"
    assert await dial.write(file, b" and new", append=True, expect=expect) == 8
    assert file.read_bytes() == b"old and new"


async def test_a_write_that_is_given_up_with_its_last_piece_sent_happens_whole_or_never(
    dial: Dial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks right after it is told that it never began: then it must not be put in place later on."""
    begun, go, seal = threading.Event(), threading.Event(), Writing.seal

    def slow(self: Writing) -> None:
        begun.set()
        go.wait()
        seal(self)

    monkeypatch.setattr(Writing, "seal", slow)
    id = dial.id()
    dial.send(frames.Write(id=id, path=str(tmp_path / "f"), session="s", call="w", last=True), b"late")
    await asyncio.to_thread(begun.wait)
    dial.send(frames.Window(id=id, bytes=0))
    assert isinstance((await dial.attach("w"))[1], frames.Unknown)
    go.set()
    while held(tmp_path):
        await dial.run("true")
    assert os.listdir(tmp_path) == []


async def test_no_later_piece_begins_a_write_whose_first_was_refused(
    dial: Dial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"ORIGINAL")
    monkeypatch.setattr(connection, "MAX_REQUESTS", 1)
    other, id = dial.id(), dial.id()
    dial.send(frames.Write(id=other, path=str(tmp_path / "other")), b"x")
    await dial.next(other)
    write = frames.Write(id=id, path=str(file))
    dial.send(write, b"x" * frames.PIECE)
    with pytest.raises(Refused, match="limit"):
        await dial.next(id)
    dial.send(frames.Write(id=other, path=str(tmp_path / "other"), last=True), b"y")
    await dial.next(other)
    dial.send(write, b"x" * frames.PIECE)
    dial.send(msgspec.structs.replace(write, last=True), b"TAIL")
    assert (await dial.read(file))[0] == b"ORIGINAL"
    monkeypatch.undo()  # that read may not be over yet
    dial.send(msgspec.structs.replace(write, last=True), b"new")  # the id is free again
    assert (await dial.next(id))[0] == frames.Done(id=id, size=3)
    assert file.read_bytes() == b"new"


async def test_a_write_under_the_id_of_another_request_ends_nothing_of_that(
    dial: Dial, tmp_path: Path
) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"x" * (frames.WINDOW + frames.PIECE))
    id = dial.id()
    dial.send(frames.Read(id=id, path=str(big)))
    for _ in range(frames.WINDOW // frames.PIECE):
        await dial.next(id)
    dial.send(frames.Write(id=id, path=str(tmp_path / "f")), b"x")
    with pytest.raises(Refused, match=f"request {id} is still being carried out"):
        await dial.next(id)
    dial.send(frames.Window(id=id, bytes=0))  # gives up the write, which never began
    dial.send(frames.Window(id=id, bytes=frames.PIECE))
    frame, _ = await dial.next(id)
    while not frame.last:
        frame, _ = await dial.next(id)
    assert os.listdir(tmp_path) == ["big"]


async def test_writes_that_are_over_and_never_given_up_end_the_connection(
    dial: Dial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_DROPPED", 10)
    for _ in range(20):  # those that are given up count for nothing
        id = dial.id()
        dial.send(frames.Write(id=id, path=str(tmp_path)), b"x")
        with pytest.raises(Refused, match="is_directory"):
            await dial.next(id)
        dial.send(frames.Window(id=id, bytes=0))
    for _ in range(11):
        dial.send(frames.Write(id=dial.id(), path=str(tmp_path)), b"x")
    await dial.gone()
    with pytest.raises(Refused, match="10 writes are over"):
        await dial.next(0)


async def test_reads_whose_pieces_nobody_takes_hold_few_of_them(
    dial: Dial, keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(bytes(4 * frames.PIECE))
    monkeypatch.setattr(connection, "MAX_PIECES", 5)
    read, piece = list[int](), Reading.piece

    def counted(self: Reading, size: int = frames.PIECE) -> tuple[bytes, bool]:
        read.append(size)
        return piece(self, size)

    monkeypatch.setattr(Reading, "piece", counted)
    reader, writer = await asyncio.open_unix_connection(str(keeper.scratch / SOCKET), limit=1)
    for id in range(1, 51):
        writer.write(frames.encode(frames.Read(id=id, path=str(tmp_path / "f"))))
    while len(read) < 5:
        await dial.run("true")
    for _ in range(5):
        await dial.run("true")
    assert len(read) <= 5 + 2, "those that wait, and what the socket and its buffer take"
    assert not reader.at_eof()
    writer.transport.abort()
    while held(tmp_path):
        await dial.run("true")


async def test_a_file_whose_last_piece_is_over_the_window_by_a_little_comes_whole(
    dial: Dial, tmp_path: Path
) -> None:
    data = os.urandom(frames.WINDOW + 10)
    (tmp_path / "f").write_bytes(data)
    assert (await dial.read(tmp_path / "f"))[0] == data


async def test_a_peer_that_breaks_off_is_told_and_logged_once(
    dial: Dial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "MAX_DROPPED", 3)
    for _ in range(20):
        dial.send(frames.Write(id=dial.id(), path=str(tmp_path)), b"x")
    await dial.gone()
    assert [record.message for record in caplog.records if "writes are over" in record.message] == [
        "a connection ends: 3 writes are over, and neither given up nor sent to their last piece"
    ]


async def test_what_comes_before_it_is_served_is_carried_out_then(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it comes on Python 3.11.2, whose asyncio reads although reading is paused from the beginning."""
    (tmp_path / "f").write_bytes(b"read")
    serve, early = connection.Connection.serve, frames.encode(frames.Read(id=1, path=str(tmp_path / "f")))

    async def late(self: connection.Connection, hello: frames.Hello) -> None:
        self.get_buffer(0)[: len(early)] = early
        self.buffer_updated(len(early))
        await serve(self, hello)

    monkeypatch.setattr(connection.Connection, "serve", late)
    async with await Dial.to(keeper.scratch / SOCKET) as dial:
        frame, body = await dial.next(1)
        assert (body, frame.last) == (b"read", True)
