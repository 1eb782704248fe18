"""The door at which workers dial, with a pool that the test plays."""

import asyncio
import os
import shutil
import socket
import stat
import tempfile
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from daemon import admission
from daemon.admission import Door, NotAdmitted, OwnWord, on_unix
from daemon.api.listening import ListenError
from daemon.protocol import dialing, frames
from daemon.worker import keeper


class Served:
    """Stands for the pool: keeps who was served, and echoes one line to each."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.failing = False

    async def serve(self, name: str, reader: StreamReader, writer: StreamWriter) -> None:
        self.names.append(name)
        if self.failing:
            raise ValueError("a fault")
        writer.write(await reader.readuntil(b"\n"))


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="or-"))
    yield made
    shutil.rmtree(made)


@asynccontextmanager
async def opened(path: Path, served: Served, who: admission.Admission | None = None) -> AsyncIterator[Path]:
    async with asyncio.TaskGroup() as group, on_unix(path, Door(who or OwnWord(), served.serve, group)):
        yield path


async def said(path: Path, *pieces: bytes, end: bool = False) -> bytes:
    """All that the door says to these bytes."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if end:
            writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


async def test_a_worker_says_its_name_and_its_frames_are_the_pools(folder: Path) -> None:
    served = Served()
    async with opened(folder / "w.sock", served) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert await said(path, b"gp", b"u-1\nfirst", b" frame\n") == b"first frame\n"
    assert served.names == ["gpu-1"]
    assert not (folder / "w.sock").exists()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"local\n", "reserved"),
        (b"harness\n", "reserved"),
        (b"GPU\n", "cannot be a worker's name"),
        (b"\n", "cannot be a worker's name"),
        (b"\xff\xfe\n", "cannot be a worker's name"),
        (b"GET / HTTP/1.1\r\n\r\n", "cannot be a worker's name"),
        (frames.encode(frames.Ping()), "cannot be a worker's name"),
        (b"x" * 200_000, "too long to be a name"),
        (b"half", "closed the connection before"),
    ],
)
async def test_what_is_no_name_is_refused_with_the_reason(folder: Path, line: bytes, why: str) -> None:
    served = Served()
    async with opened(folder / "w.sock", served) as path:
        answer = await said(path, line, end=True)
    assert not dialing.is_frame(answer)
    assert why in dialing.reason_of(answer)
    assert served.names == []


async def test_a_refusal_is_heard_also_by_one_that_goes_on_talking(folder: Path) -> None:
    async with opened(folder / "w.sock", Served()) as path:
        answer = await said(path, b"local\n" + b"x" * 100_000, end=True)
    assert "reserved" in answer.decode()


async def test_one_that_says_nothing_is_let_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "HELLO_WAIT", 0.01)
    async with opened(folder / "w.sock", Served()) as path:
        reader, writer = await asyncio.open_unix_connection(str(path))
        assert b"did not say its name" in await reader.read()
        writer.close()


async def test_another_user_is_not_admitted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "peer", lambda _: (1, os.getuid() + 1, 1))
    served = Served()
    async with opened(folder / "w.sock", served) as path:
        assert b"may not be a worker" in await said(path, b"gpu\n", end=True)
    assert served.names == []


async def test_the_name_is_what_the_admission_says(folder: Path) -> None:
    class Registry:
        async def admit(self, reader: StreamReader, writer: StreamWriter) -> str:
            if self.full:
                raise NotAdmitted("it was removed")
            return "known"

        full = False

    served, registry = Served(), Registry()
    async with opened(folder / "w.sock", served, registry) as path:
        assert await said(path, b"{}\n") == b"{}\n"
        registry.full = True
        assert dialing.reason_of(await said(path, end=True)) == "it was removed"
    assert served.names == ["known"]


async def test_a_fault_in_one_connection_ends_that_one_alone(folder: Path) -> None:
    served = Served()
    async with opened(folder / "w.sock", served) as path:
        served.failing = True
        assert await said(path, b"a\n") == b""
        served.failing = False
        assert await said(path, b"b\nx\n") == b"x\n"
    assert served.names == ["a", "b"]


async def test_too_many_without_a_name_are_closed_and_others_get_in_afterwards(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "WAITING", 2)
    served = Served()
    async with opened(folder / "w.sock", served) as path:
        waiting = [await asyncio.open_unix_connection(str(path)) for _ in range(2)]
        reader, writer = await asyncio.open_unix_connection(str(path))
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        for reader, writer in waiting:
            writer.write(b"a\nx\n")
            assert await reader.read() == b"x\n"
            writer.close()
        assert await said(path, b"b\nx\n") == b"x\n"
    assert served.names == ["a", "a", "b"]


async def test_a_socket_that_was_left_is_replaced_and_one_that_is_in_use_is_not(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / "w.sock"))
    async with opened(folder / "w.sock", Served()) as path:
        with pytest.raises(ListenError):
            async with on_unix(path, Door(OwnWord(), Served().serve, asyncio.TaskGroup())):
                pass
        assert await said(path, b"a\nx\n") == b"x\n"


def test_the_socket_says_who_dialed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert keeper.peer(ours) == (os.getpid(), os.getuid(), os.getgid())
