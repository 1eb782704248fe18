"""A connection's start at the harness's end: the stream is given up for the transport, and nothing falls between."""

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from daemon.connection import Connection
from daemon.protocol import frames
from daemon.requests import Lost
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


async def lost_by(work: Coroutine[Any, Any, Any]) -> str:
    """Why what waits on a connection was given up."""
    with pytest.raises(Lost) as lost:
        await work
    return str(lost.value)


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


async def test_an_answer_that_was_whole_is_taken_and_one_that_was_cut_is_not() -> None:
    async with dialed(HELLO) as (connection, worker):
        await connection.hello()
        with connection.request() as request:
            whole = frames.encode(frames.Output(id=request.id), b"whole")
            worker.sendall(whole + whole[:-1])
            worker.shutdown(socket.SHUT_WR)
            with pytest.raises(Lost, match="it closed the connection within a frame"):
                await connection.serve()
            assert (await request.next())[1] == b"whole"
            with pytest.raises(Lost, match="within a frame"):
                await request.next()


async def test_a_connection_that_breaks_says_how_to_all_who_wait() -> None:
    async with dialed(HELLO) as (connection, worker):
        await connection.hello()
        with connection.request() as request:
            async with asyncio.TaskGroup() as group:
                serving, asking, sending = (
                    group.create_task(lost_by(work))
                    for work in (connection.serve(), request.next(), connection.send(bytes(8 << 20)))
                )
                await asyncio.sleep(0)
                worker.close()  # with what it has not read: that is a reset
        reasons = {one.result() for one in (serving, asking, sending)}
        assert len(reasons) == 1
        assert reasons.pop().startswith("the connection broke: ")


async def test_what_nobody_waits_for_any_more_takes_no_memory() -> None:
    async with dialed(HELLO) as (connection, worker):
        await connection.hello()
        with connection.request() as request:
            pass
        late = frames.encode(frames.Output(id=request.id), bytes(frames.MAX_BODY))
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(connection.serve())
            tracemalloc.start()
            try:
                for _ in range(16):
                    await asyncio.get_running_loop().sock_sendall(worker, late)
                worker.sendall(PING)
                pong = frames.encode(frames.Pong())
                assert await received(worker, len(pong)) == pong
                assert tracemalloc.get_traced_memory()[1] < 8 * frames.MAX_BODY
            finally:
                tracemalloc.stop()
            serving.cancel()


async def test_a_caller_that_gives_up_its_turn_to_send_keeps_nobody_from_theirs() -> None:
    async with dialed(HELLO) as (connection, worker):
        await connection.hello()
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(connection.serve())
            first, second, third = (
                group.create_task(connection.send(piece))
                for piece in (b"a" * (1 << 20), b"b" * (1 << 20), b"c" * (1 << 20))
            )
            await asyncio.sleep(0)
            first.cancel()
            second.cancel()
            whole = b"a" * (1 << 20) + b"c" * (1 << 20)
            assert await received(worker, len(whole)) == whole
            await third
            serving.cancel()


async def test_a_closed_connection_holds_no_descriptor() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(HELLO)
        reader, writer = await asyncio.open_connection(sock=ours)
        connection = Connection(reader, writer, FakeClock())
        await connection.hello()
        connection.end("enough")
        await connection.closed()
        assert ours.fileno() == -1
        assert theirs.recv(1) == b""
