"""A connection's start at the harness's end: the stream is given up for the transport, and nothing falls between."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from daemon.connection import Connection, Lost
from daemon.protocol import frames
from tests.fakes import FakeClock

HELLO = frames.encode(
    frames.Hello(
        protocol=frames.PROTOCOL,
        release="1.0",
        os="linux",
        arch="x86_64",
        hostname="h",
        interpreters=("bash",),
        scratch="/s",
    )
)
PING = frames.encode(frames.Ping())


@asynccontextmanager
async def dialed(first: bytes, *, ends: bool = False) -> AsyncIterator[tuple[Connection, socket.socket]]:
    """A connection whose worker has said `first`, and closed its end for more where it `ends`."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(first)
        if ends:
            theirs.shutdown(socket.SHUT_WR)
        theirs.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours)
        connection = Connection(reader, writer, FakeClock())
        try:
            yield connection, theirs
        finally:
            connection.end("the test is over")
            await connection.closed()


async def received(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        data += await loop.sock_recv(sock, size - len(data))
    return data


async def test_what_comes_in_one_piece_with_the_hello_is_taken_up() -> None:
    async with dialed(HELLO + PING + PING[:5]) as (connection, worker):
        await connection.hello()
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(connection.serve())
            pong = frames.encode(frames.Pong())
            assert await received(worker, len(pong)) == pong
            worker.sendall(PING[5:])
            assert await received(worker, len(pong)) == pong
            serving.cancel()


@pytest.mark.parametrize(
    ("more", "why"),
    [(b"", "it closed the connection"), (PING[:5], "it closed the connection within a frame")],
)
async def test_a_stream_that_ends_right_behind_its_hello_is_noticed(more: bytes, why: str) -> None:
    async with dialed(HELLO + more, ends=True) as (connection, _):
        await connection.hello()
        with pytest.raises(Lost) as lost:
            await connection.serve()
        assert str(lost.value) == why


async def test_frames_go_out_in_the_order_of_their_callers_while_the_worker_reads_nothing() -> None:
    async with dialed(HELLO) as (connection, worker):
        await connection.hello()
        pieces = [bytes([n]) * (1 << 20) for n in range(4)]
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(connection.serve())
            sent = [group.create_task(connection.send(piece)) for piece in pieces]
            sent.append(group.create_task(connection.send(b"last")))
            whole = b"".join([*pieces, b"last"])
            assert await received(worker, len(whole)) == whole
            await asyncio.wait(sent)
            serving.cancel()


async def test_whoever_waits_to_send_hears_that_the_connection_has_ended() -> None:
    async with dialed(HELLO) as (connection, _):
        await connection.hello()
        waiting = [asyncio.create_task(connection.send(bytes(8 << 20))) for _ in range(3)]  # noqa: TID251 - awaited
        await asyncio.sleep(0)
        connection.end("gone")
        await asyncio.wait(waiting)
        assert [str(one.exception()) for one in waiting] == ["gone"] * 3
