"""The door at which workers dial, with a pool that the test plays."""

import asyncio
import hashlib
import os
import shutil
import socket
import stat
import tempfile
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon import admission
from daemon.admission import Door, NotAdmitted, Offer, OwnWord, Registered, on_unix
from daemon.anteroom import Anteroom
from daemon.api.listening import ListenError
from daemon.protocol import dialing, frames
from daemon.release import Wheel, WheelError
from daemon.worker import keeper

HI = dialing.greeting(dialing.Greeting("gpu-1"))


class Served:
    """Stands for the pool: keeps who was served and what was said of whom, and echoes one line to each."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.notes: dict[str, str] = {}
        self.away: dict[str, str] = {}
        self.failing = False
        self.came = asyncio.Event()

    def note(self, name: str, text: str) -> None:
        self.notes[name] = text

    def turn_away(self, name: str, reason: str) -> None:
        self.away[name] = reason

    async def serve(self, name: str, reader: StreamReader, writer: StreamWriter) -> None:
        self.names.append(name)
        self.came.set()
        if self.failing:
            raise ValueError("a fault")
        writer.write(await reader.readuntil(b"\n"))


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="or-"))
    yield made
    shutil.rmtree(made)


WHEEL = os.urandom(1_000_000)


def made(folder: Path) -> Wheel:
    """A release's wheel, of no use."""
    folder.mkdir(exist_ok=True)
    path = folder / "w.whl"
    path.write_bytes(WHEEL)
    digest = hashlib.sha256(WHEEL).hexdigest()
    return Wheel(release="2", name="w.whl", sha256=digest, size=len(WHEEL), path=path)


def none(_: Path) -> Wheel:
    raise WheelError("the disk is full")


@asynccontextmanager
async def opened(
    path: Path,
    served: Served,
    who: admission.Admission | None = None,
    make: Callable[[Path], Wheel] = made,
) -> AsyncIterator[Path]:
    offer = Offer("2", path.parent / "release", make)
    async with asyncio.TaskGroup() as group, on_unix(path, Door(who or OwnWord(), served, offer, group)):
        yield path


def greets(name: str = "gpu-1", **more: Any) -> bytes:
    return dialing.greeting(dialing.Greeting(name, **more))


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
        assert await said(path, HI[:5], HI[5:] + b"first", b" frame\n") == b"first frame\n"
    assert served.names == ["gpu-1"]
    assert not (folder / "w.sock").exists()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"name":"local"}\n', "reserved"),
        (b'{"name":"harness"}\n', "reserved"),
        (b'{"name":"GPU"}\n', "cannot be a worker's name"),
        (b'{"name":""}\n', "cannot be a worker's name"),
        (b"\n", "no greeting of a worker"),
        (b"gpu\n", "no greeting of a worker"),
        (b"\xff\xfe\n", "no greeting of a worker"),
        (b"GET / HTTP/1.1\r\n\r\n", "no greeting of a worker"),
        (frames.encode(frames.Ping()), "no greeting of a worker"),
        (b"[" * 4000 + b"\n", "no greeting of a worker"),
        (b'{"name":"gpu","purpose":"odd"}\n', "knows no connection for 'odd'"),
        (b"x" * 200_000, "too long to be a greeting"),
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
        answer = await said(path, b'{"name":"local"}\n' + b"x" * 100_000, end=True)
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
        assert b"may not be a worker" in await said(path, HI, end=True)
    assert served.names == []


async def test_the_name_is_what_the_admission_says(folder: Path) -> None:
    class Registry:
        async def admit(self, sock: socket.socket) -> str:
            if self.full:
                raise NotAdmitted("it was removed")
            return "known"

        def check(self, sock: socket.socket, name: str) -> None:
            assert name == "known"

        full = False

    served, registry = Served(), Registry()
    async with opened(folder / "w.sock", served, registry) as path:
        assert await said(path, HI + b"{}\n") == b"{}\n"
        registry.full = True
        assert dialing.reason_of(await said(path, end=True)) == "it was removed"
    assert served.names == ["known"]


async def test_a_name_that_the_mesh_has_given_is_nobody_elses(folder: Path) -> None:
    served = Served()
    async with opened(folder / "w.sock", served, OwnWord(lambda name: name == "gpu-1")) as path:
        assert "joined the mesh: give the worker another" in dialing.reason_of(await said(path, HI, end=True))
        assert await said(path, greets("gpu-2") + b"x\n") == b"x\n"
    assert served.names == ["gpu-2"]


@asynccontextmanager
async def in_the_mesh(served: Served, names: dict[str, str], folder: Path) -> AsyncIterator[int]:
    """A door whose workers are known by their addresses; its port."""
    async with asyncio.TaskGroup() as group:
        door = Door(Registered(names.get), served, Offer("2", folder / "release", made), group)
        sock = socket.create_server(("127.0.0.1", 0))
        async with door.open(sock):
            yield sock.getsockname()[1]


async def dialed(port: int, host: str, data: bytes) -> bytes:
    """All that is answered to this from an address."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


async def test_in_the_mesh_the_address_says_who_it_is_whatever_the_worker_says(folder: Path) -> None:
    served = Served()
    async with in_the_mesh(served, {"127.0.0.2": "gpu-2"}, folder) as port:
        assert await dialed(port, "127.0.0.2", greets("gpu-9") + b"x\n") == b"x\n"
        refused = await dialed(port, "127.0.0.3", greets("gpu-2"))
        assert "no worker has the address 127.0.0.3" in dialing.reason_of(refused)
    assert served.names == ["gpu-2"]


async def test_one_that_is_removed_before_it_has_greeted_is_not_served(folder: Path) -> None:
    served, names = Served(), {"127.0.0.2": "gpu-2"}
    async with in_the_mesh(served, names, folder) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        assert (
            await dialed(port, "127.0.0.2", greets("a") + b"x\n") == b"x\n"
        )  # so the first one is admitted too
        names.clear()
        writer.write(greets("a"))
        assert "gpu-2 was removed" in dialing.reason_of(await reader.read())
        writer.close()
    assert served.names == ["gpu-2"]


async def test_one_that_is_removed_while_a_wheel_is_made_for_it_is_not_served(folder: Path) -> None:
    served, names = Served(), {"127.0.0.2": "gpu-2"}

    def making(where: Path) -> Wheel:
        names.clear()
        return made(where)

    async with asyncio.TaskGroup() as group:
        door = Door(Registered(names.get), served, Offer("2", folder / "release", making), group)
        sock = socket.create_server(("127.0.0.1", 0))
        async with door.open(sock):
            hi = greets("a", protocol=frames.PROTOCOL, release="1")
            update, rest = update_in(await dialed(sock.getsockname()[1], "127.0.0.2", hi))
    assert (update.release, rest) == ("2", b"")
    assert served.names == []


async def test_a_fault_in_one_connection_ends_that_one_alone(folder: Path) -> None:
    served = Served()
    async with opened(folder / "w.sock", served) as path:
        served.failing = True
        assert await said(path, greets("a")) == b""
        served.failing = False
        assert await said(path, greets("b") + b"x\n") == b"x\n"
    assert served.names == ["a", "b"]


async def test_too_many_without_a_name_are_closed_and_others_get_in_afterwards(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "Anteroom", lambda: Anteroom(all=2))
    served = Served()
    async with opened(folder / "w.sock", served) as path:
        waiting = [await asyncio.open_unix_connection(str(path)) for _ in range(2)]
        reader, writer = await asyncio.open_unix_connection(str(path))
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        for reader, writer in waiting:
            writer.write(greets("a") + b"x\n")
            assert await reader.read() == b"x\n"
            writer.close()
        assert await said(path, greets("b") + b"x\n") == b"x\n"
    assert served.names == ["a", "a", "b"]


async def test_a_machine_that_dials_without_end_takes_no_other_ones_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "Anteroom", lambda: Anteroom(all=8, each=4))
    served = Served()
    hosts = {f"127.0.0.{number}": f"gpu-{number}" for number in range(2, 6)}
    async with in_the_mesh(served, hosts, folder) as port:
        silent = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
            for _ in range(10)
            for host in ("127.0.0.2", "127.0.0.3")  # they have all the places between them
        ]
        patient = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.4", 0))
        assert await dialed(port, "127.0.0.5", greets("a") + b"x\n") == b"x\n"
        patient[1].write(greets("a") + b"y\n")
        assert await patient[0].read() == b"y\n"
        last, _ = silent[-1]
        assert not last.at_eof(), "its newest connection is the one that is kept"
        for _, writer in [*silent, patient]:
            writer.close()
    assert served.names == ["gpu-5", "gpu-4"]


async def test_a_worker_has_so_many_connections_and_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MOST", 2)
    served = Served()
    hosts = {"127.0.0.2": "gpu-2", "127.0.0.3": "gpu-3"}
    async with in_the_mesh(served, hosts, folder) as port:
        held = []
        for _ in range(2):
            held.append(await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)))
            served.came.clear()
            held[-1][1].write(greets("a"))
            await served.came.wait()
        refused = await dialed(port, "127.0.0.2", greets("a"))
        assert dialing.reason_of(refused) == "worker gpu-2 has 2 connections already"
        assert await dialed(port, "127.0.0.3", greets("a") + b"x\n") == b"x\n"
        held[0][1].write(b"x\n")
        assert await held[0][0].read() == b"x\n"
        assert await dialed(port, "127.0.0.2", greets("a") + b"y\n") == b"y\n", "one has ended"
        for _, writer in held:
            writer.close()


async def test_a_socket_that_was_left_is_replaced_and_one_that_is_in_use_is_not(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / "w.sock"))
    async with opened(folder / "w.sock", Served()) as path:
        with pytest.raises(ListenError):
            async with on_unix(path, Door(OwnWord(), Served(), Offer("2", folder), asyncio.TaskGroup())):
                pass
        assert await said(path, greets("a") + b"x\n") == b"x\n"


def test_the_socket_says_who_dialed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert keeper.peer(ours) == (os.getpid(), os.getuid(), os.getgid())


# Releases.


def update_in(answer: bytes) -> tuple[frames.Update, bytes]:
    """An update, and what follows it."""
    line, end, rest = answer.partition(b"\n")
    assert (end, rest[:1]) == (b"\n", b"\n")
    return msgspec.json.decode(line, type=frames.Update), rest[1:]


async def test_a_worker_of_this_release_is_told_nothing_of_it(folder: Path) -> None:
    served = Served()
    async with opened(folder / "w.sock", served) as path:
        answer = await said(path, greets(protocol=frames.PROTOCOL, release="2", update="old news") + b"x\n")
    assert answer == b"x\n"
    assert served.notes == {"gpu-1": ""}
    assert not (folder / "release").exists(), "no wheel is made for it"


async def test_a_worker_of_another_release_is_taken_and_told_of_the_wheel(folder: Path) -> None:
    served = Served()
    async with opened(folder / "w.sock", served) as path:
        update, rest = update_in(await said(path, greets(protocol=frames.PROTOCOL, release="1") + b"x\n"))
        assert (update.release, update.size, update.refused, rest) == ("2", len(WHEEL), "", b"x\n")
        assert served.names == ["gpu-1"]
        assert served.notes == {"gpu-1": "this daemon is of release 2: it was told to update itself"}
        await said(path, greets(release="1", purpose=dialing.NOTE, update="the disk is full"), end=True)
        assert served.notes == {"gpu-1": "this daemon is of release 2: the disk is full"}
    assert served.names == ["gpu-1"], "a note is no worker's connection"


async def test_a_worker_of_another_protocol_is_turned_away_with_the_wheels_sum(folder: Path) -> None:
    served = Served()
    async with opened(folder / "w.sock", served) as path:
        hi = greets(protocol=frames.PROTOCOL + 1, release="1", update="the disk is full")
        update, rest = update_in(await said(path, hi, end=True))
    why = f"it speaks protocol {frames.PROTOCOL + 1} (release 1), this daemon speaks {frames.PROTOCOL} (release 2)"
    assert (update.refused, update.sha256, rest) == (why, hashlib.sha256(WHEEL).hexdigest(), b"")
    assert (served.names, served.away) == ([], {"gpu-1": f"{why}; the disk is full"})


async def test_the_wheel_comes_whole_to_who_asks_for_it(folder: Path) -> None:
    served = Served()
    async with opened(folder / "w.sock", served) as path:
        update, data = update_in(await said(path, greets(release="1", purpose=dialing.WHEEL)))
        assert (data, update.size, update.sha256) == (WHEEL, len(WHEEL), hashlib.sha256(data).hexdigest())
        shutil.rmtree(folder / "release")
        assert (await said(path, greets(release="1", purpose=dialing.WHEEL))).endswith(WHEEL), "made again"
    assert served.names == []


async def test_where_no_wheel_can_be_made_the_worker_is_told_why(folder: Path) -> None:
    async with opened(folder / "w.sock", Served(), make=none) as path:
        for purpose in (dialing.WHEEL, dialing.WORK):
            hi = greets(protocol=frames.PROTOCOL, release="1", purpose=purpose)
            update, rest = update_in(await said(path, hi + b"x\n"))
            assert (update.sha256, update.missing) == ("", "the disk is full")
            assert rest == (b"x\n" if purpose == dialing.WORK else b"")


async def serving() -> asyncio.Task[Any]:
    """The task of a connection, once there is one."""
    while True:
        for task in asyncio.all_tasks():
            if task.get_name() == "worker's connection":
                return task
        await asyncio.sleep(0)


async def test_one_that_does_not_take_the_wheel_is_let_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(folder / "w.sock", Served()) as path:
        monkeypatch.setattr(frames, "DEAD_AFTER", 0.05)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, str(path))
            await loop.sock_sendall(sock, greets(release="1", purpose=dialing.WHEEL))
            await asyncio.wait({await serving()})
            heard = b""
            with suppress(ConnectionResetError):
                while data := await loop.sock_recv(sock, 1 << 16):
                    heard += data
        assert len(heard) < len(WHEEL)
