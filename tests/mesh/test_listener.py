import asyncio
import contextlib
import hashlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from mesh import wheelhouse
from mesh.join import Reply
from mesh.listener import Limits, ListenError, Offered, listening
from mesh.messages import MAX_ASK
from mesh.wheelhouse import WheelhouseError
from tests.mesh.guards import KEY, FakeJoins, descriptors
from tests.mesh.wheels import make_wheel

SCRIPT = b"#!/bin/sh\necho hello\n"


class Place:
    """A listener with everything on offer, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.joins = FakeJoins()
        self.joined: list[Reply] = []
        own = folder / "own"
        own.mkdir()
        self.wheel = wheelhouse.wheel(make_wheel(own, "outrider", "1.0"))
        house = folder / "house"
        house.mkdir()
        make_wheel(house, "One_Thing", "1.0")
        make_wheel(house, "one_thing", "2.0")
        make_wheel(house, "other", "1.0+local")
        (house / "notes.txt").write_text("not a wheel")
        self.house = house
        self.offered = Offered(script=SCRIPT, wheel=self.wheel, wheelhouse=wheelhouse.read(house))
        self.url = ""
        self.port = 0

    async def say(self, reply: Reply) -> None:
        self.joined.append(reply)

    @asynccontextmanager
    async def open(
        self, limits: Limits | None = None, address: str = "127.0.0.1:0"
    ) -> AsyncIterator["Place"]:
        async with listening(
            [address], self.joins, lambda: self.offered, joined=self.say, limits=limits
        ) as found:
            self.url = f"http://{found[0]}"
            self.port = int(found[0].rpartition(":")[2])
            yield self

    async def get(self, path: str, method: str = "GET", data: bytes | None = None) -> tuple[int, bytes]:
        async with (
            aiohttp.ClientSession() as client,
            client.request(method, self.url + path, data=data) as got,
        ):
            self.headers = got.headers
            return got.status, await got.read()

    async def raw(self, sent: bytes) -> bytes:
        """What comes back for these bytes until the connection is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(sent)
            return await reader.read()
        finally:
            writer.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_what_a_machine_needs_to_join_is_there(place: Place) -> None:
    async with place.open():
        assert await place.get("/join.sh") == (200, SCRIPT)
        assert await place.get("/join/key") == (200, KEY)
        assert await place.get(f"/release/{place.wheel.name}") == (200, place.wheel.path.read_bytes())
        assert await place.get("/join", "POST", b"please") == (200, b"welcome")
        assert place.joins.asked == [(b"please", "127.0.0.1")]
        assert [reply.status for reply in place.joined] == [200]


@pytest.mark.parametrize("path", ["/join.sh", "/join/key", "/release/WHEEL", "/wheelhouse/"])
async def test_head_tells_the_size_alone(place: Place, path: str) -> None:
    path = path.replace("WHEEL", place.wheel.name)
    async with place.open():
        _, body = await place.get(path)
        assert await place.get(path, "HEAD") == (200, b"")
        assert place.headers["Content-Length"] == str(len(body))


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/join.sh/",
        "/joins",
        "/JOIN",
        "//join.sh",
        "/release/",
        "/release/other-1.0-py3-none-any.whl",
        "/release/../join.sh",
        "/release/%2e%2e/%2e%2e/etc/passwd",
        "/wheelhouse",
        "/wheelhouse/notes.txt",
        "/wheelhouse/absent",
        "/wheelhouse/../own/outrider-1.0-py3-none-any.whl",
        "/wheelhouse/%2e%2e%2fown%2foutrider-1.0-py3-none-any.whl",
        "/wheelhouse//etc/passwd",
        "/mesh/relay",  # there is none here
        "/healthz",
        "/sessions",
    ],
)
async def test_there_is_nothing_else(place: Place, path: str) -> None:
    async with place.open():
        answer = await place.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert len(answer) < 250
        assert answer.endswith(b"\r\n\r\nnot found\n")


async def test_no_answer_says_what_runs_here(place: Place) -> None:
    async with place.open():
        for request in (
            b"GET /join.sh HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"nonsense\r\n\r\n",
            f"GET /release/{place.wheel.name} HTTP/1.0\r\n\r\n".encode(),
            b"GET /mesh/relay HTTP/1.1\r\n\r\n",
        ):
            answer = await place.raw(request)
            assert b"\r\nServer: outrider\r\n" in answer, request
            assert b"aiohttp" not in answer
            assert b"Python" not in answer


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [
        ("/join.sh", "POST", "GET, HEAD"),
        ("/join/key", "DELETE", "GET, HEAD"),
        ("/join", "GET", "POST"),
        ("/wheelhouse/", "PUT", "GET, HEAD"),
    ],
)
async def test_another_method_is_refused_and_told_which_there_are(
    place: Place, path: str, method: str, allowed: str
) -> None:
    async with place.open():
        assert (await place.get(path, method))[0] == 405
        assert place.headers["Allow"] == allowed


async def test_a_refused_join_is_answered_as_it_was_decided(place: Place) -> None:
    async with place.open():
        assert await place.get("/join", "POST", b"x") == (403, b"this token joins no more machines")
        assert await place.get("/join", "POST", b"often") == (429, b"too often")
        assert place.headers["Retry-After"] == "7"
        assert place.joined == []


async def test_whoever_says_to_be_forwarded_is_not_believed(place: Place) -> None:
    async with place.open():
        await place.raw(
            b"POST /join HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1\r\nForwarded: for=192.0.2.1\r\n"
            b"X-Real-IP: 192.0.2.1\r\nContent-Length: 1\r\n\r\nx"
        )
        assert place.joins.asked == [(b"x", "127.0.0.1")]


async def test_a_failure_is_told_to_the_log_and_to_nobody_else(place: Place) -> None:
    async with place.open():
        status, body = await place.get("/join", "POST", b"break")
        assert (status, body) == (500, b"the harness failed at this; its log says why\n")


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (f"Content-Length: {MAX_ASK + 1}", b""),
        ("Content-Length: 99999999999999", b"x"),
        ("Transfer-Encoding: chunked", b"10000\r\n" + bytes(0x10000) + b"\r\n0\r\n\r\n"),
    ],
)
async def test_a_body_that_is_too_large_is_not_read(place: Place, head: str, body: bytes) -> None:
    async with place.open():
        answer = await place.raw(f"POST /join HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode() + body)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert place.joins.asked == []


async def test_the_largest_body_is_taken(place: Place) -> None:
    async with place.open():
        await place.get("/join", "POST", bytes(MAX_ASK))
        assert place.joins.asked[0][0] == bytes(MAX_ASK)


async def test_a_compressed_body_is_refused(place: Place) -> None:
    async with place.open():
        answer = await place.raw(
            b"POST /join HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"
        )
        assert answer.startswith(b"HTTP/1.1 415 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /join.sh HTTP/9.9\r\n\r\n",
        b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"GET /join.sh HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 9000 + b"\r\n\r\n",
        b"GET /join.sh HTTP/1.1\r\n" + b"A: x\r\n" * 500 + b"\r\n",
        b"POST /join HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /join HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /join HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),  # TLS
        b"\0" * 20000,
    ],
    ids=range(10),
)
async def test_what_is_not_http_is_refused_in_few_bytes(place: Place, sent: bytes) -> None:
    async with place.open():
        answer = await place.raw(sent)
        assert answer.startswith(b"HTTP/1.0 400 ")
        assert len(answer) < 250
        assert await place.get("/join.sh") == (200, SCRIPT)


@pytest.mark.parametrize(
    "sent", [b"", b"GET /join.sh HT", b"GET /join.sh HTTP/1.1\r\nHost: x\r\nA"], ids=range(3)
)
async def test_a_head_that_does_not_come_closes_the_connection(place: Place, sent: bytes) -> None:
    async with place.open(Limits(head=0.05)):
        assert await place.raw(sent) == b""


async def test_a_head_that_trickles_closes_the_connection(place: Place) -> None:
    async with place.open(Limits(head=0.2)):
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        ended = asyncio.ensure_future(reader.read())  # noqa: TID251 - owned here, awaited below
        writer.write(b"GET /join.sh HTTP/1.1\r\n")
        while not ended.done():
            writer.write(b"A: x\r\n")
            await asyncio.wait([ended], timeout=0.02)
        with contextlib.suppress(ConnectionResetError):  # it was closed over what trickled in
            assert await ended == b""
        writer.close()


async def test_a_body_that_does_not_come_is_given_up(place: Place) -> None:
    async with place.open(Limits(body=0.05)):
        answer = await place.raw(b"POST /join HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert place.joins.asked == []


async def test_a_connection_carries_one_request(place: Place) -> None:
    async with place.open():
        answer = await place.raw(b"GET /join/key HTTP/1.1\r\nHost: x\r\n\r\n" * 5)
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b"Connection: close" in answer


async def test_who_does_not_take_up_a_wheel_is_ended_and_holds_nothing(place: Place) -> None:
    big = place.folder / "big-1.0-py3-none-any.whl"
    with big.open("wb") as file:
        file.truncate(64 << 20)
    place.offered = Offered(script=SCRIPT, wheel=wheelhouse.wheel(big))
    async with place.open(Limits(chunk=0.1)):
        before = descriptors()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", place.port))
        await loop.sock_sendall(sock, f"GET /release/{big.name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        while descriptors() != before + 1:  # noqa: ASYNC110 - the listener tells nobody
            await asyncio.sleep(0)
        sock.close()
        assert await place.get("/join.sh") == (200, SCRIPT)


async def test_a_wheel_that_has_become_shorter_is_cut_and_not_passed_off_as_whole(place: Place) -> None:
    async with place.open():
        place.wheel.path.write_bytes(b"short")
        with pytest.raises(aiohttp.ClientPayloadError):
            await place.get(f"/release/{place.wheel.name}")
        place.wheel.path.unlink()
        assert (await place.get(f"/release/{place.wheel.name}"))[0] == 404


async def test_an_address_has_its_share_of_connections(place: Place) -> None:
    async with place.open(Limits(each=3)):
        held = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(3)]
        assert (await place.raw(b"")).startswith(b"HTTP/1.1 503 ")
        held[0][1].close()
        await held[0][1].wait_closed()
        while (answer := await place.raw(b"GET /join/key HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(
            b"HTTP/1.1 503 "
        ):
            pass
        assert answer.endswith(KEY)
        for _, writer in held[1:]:
            writer.close()


async def test_all_together_have_theirs(place: Place) -> None:
    async with place.open(Limits(most=2)):
        held = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(2)]
        assert (await place.raw(b"")).startswith(b"HTTP/1.1 503 ")
        for _, writer in held:
            writer.close()


async def test_it_listens_to_both_families(place: Place) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    async with place.open(address="[::]:0"):
        assert place.url.startswith("http://[::]:")
        for host in ("127.0.0.1", "[::1]"):
            place.url = f"http://{host}:{place.port}"
            assert await place.get("/join/key") == (200, KEY)
        await place.get("/join", "POST", b"x")
        place.url = f"http://127.0.0.1:{place.port}"
        await place.get("/join", "POST", b"x")
        assert [peer for _, peer in place.joins.asked] == ["::1", "::ffff:127.0.0.1"]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("localhost:1", "mesh.join_listen: 'localhost:1' is not ADDRESS:PORT"),
        ("[::]:70000", "is not ADDRESS:PORT, such as [::]:4601"),
        ("192.0.2.1:0", "mesh.join_listen: cannot listen on 192.0.2.1:0: Cannot assign requested address"),
    ],
)
async def test_an_address_that_cannot_be_is_named(place: Place, address: str, why: str) -> None:
    with pytest.raises(ListenError) as raised:
        async with place.open(address=address):
            pass
    assert why in str(raised.value)


async def test_an_address_that_is_taken_is_named(
    place: Place, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with place.open():
        other = await asyncio.to_thread(Place, tmp_path_factory.mktemp("other"))
        with pytest.raises(ListenError, match="Address already in use"):
            async with other.open(address=f"127.0.0.1:{place.port}"):
                pass


async def test_it_ends_with_requests_open(place: Place) -> None:
    async with place.open():
        _, writer = await asyncio.open_connection("127.0.0.1", place.port)
        writer.write(b"POST /join HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
        await place.get("/join/key")
    writer.close()


async def test_a_machine_is_a_peer_before_its_answer_goes_out(place: Place) -> None:
    told = asyncio.Event()

    async def joined(reply: Reply) -> None:
        await told.wait()

    slow: Callable[[Reply], Awaitable[None]] = joined
    async with (
        listening(["127.0.0.1:0"], place.joins, lambda: place.offered, joined=slow) as found,
        aiohttp.ClientSession() as client,
        asyncio.TaskGroup() as group,
    ):
        asking = group.create_task(client.post(f"http://{found[0]}/join", data=b"please"), name="asking")
        while not place.joins.asked:  # noqa: ASYNC110 - a thread asks
            await asyncio.sleep(0)
        assert not asking.done()
        told.set()
        async with await asking as answer:
            assert await answer.read() == b"welcome"


# The wheelhouse


def test_the_index_lists_every_wheel_with_its_hash_and_is_the_same_for_the_same_files(place: Place) -> None:
    read = wheelhouse.read(place.house)
    again = wheelhouse.read(place.house)
    assert (read.index, read.sha256) == (again.index, again.sha256)
    assert len(read.files) == 3
    for path in place.house.glob("*.whl"):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert f"#sha256={digest}".encode() in read.index
    assert sorted(read.projects) == ["one-thing", "other"]
    assert read.projects["one-thing"].count(b"<a ") == 2


@pytest.mark.parametrize("name", ["x.whl", "a b-1.0-py3-none-any.whl", "a-1.0-py3-none-any.whl;rm.whl"])
def test_a_file_that_has_no_wheels_name_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(WheelhouseError, match="does not have the name of a wheel"):
        wheelhouse.read(tmp_path)


def test_a_wheelhouse_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WheelhouseError, match="absent: No such file or directory"):
        wheelhouse.read(tmp_path / "absent")


async def pip(place: Place, *arguments: str, **environ: str) -> str:
    """What pip says when it fetches from the listener alone."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-cache-dir",
            "--disable-pip-version-check",
            "--no-deps",
        ),
        *("-d", str(place.folder / "got"), *arguments),
        env={
            "PATH": "/usr/bin:/bin",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_TRUSTED_HOST": f"127.0.0.1:{place.port}",
            **environ,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return said.decode()


async def test_pip_takes_wheels_from_the_flat_list_and_from_the_index(place: Place) -> None:
    async with place.open():
        url = f"{place.url}/wheelhouse/"
        assert "Saved" in await pip(place, "one-thing", PIP_NO_INDEX="1", PIP_FIND_LINKS=url)
        assert (place.folder / "got/one_thing-2.0-py3-none-any.whl").exists()
        assert "Saved" in await pip(place, "other", PIP_INDEX_URL=url)
        assert (place.folder / "got/other-1.0+local-py3-none-any.whl").exists()


async def test_pip_takes_no_wheel_that_was_changed_since(place: Place) -> None:
    (place.house / "other-1.0+local-py3-none-any.whl").write_bytes(b"x" * 900)
    async with place.open():
        said = await pip(place, "other", PIP_NO_INDEX="1", PIP_FIND_LINKS=f"{place.url}/wheelhouse/")
        assert "Saved" not in said
