"""What a round trip costs with less in between: a pipe, a socket, and both in two programs of asyncio alone."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from daemon.protocol import frames

WARM: Final = 20  # round trips that are not counted
FRAME: Final = frames.encode(frames.Run(id=1, session="s", call="c"), b"true")
ECHO: Final = (
    "import socket, sys\nsock = socket.socket(fileno=int(sys.argv[1]))\n"
    "while data := sock.recv(1 << 16): sock.sendall(data)"
)


def by_pipe(argv: Sequence[str], line: bytes, times: int) -> list[float]:
    """Seconds of each line that a bare program on pipes carries out and answers."""
    taken = []
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(times + WARM):
            start = time.perf_counter()
            process.stdin.write(line)
            process.stdin.flush()
            process.stdout.readline()
            taken.append(time.perf_counter() - start)
        process.stdin.close()
    return taken[WARM:]


def by_socket(times: int) -> list[float]:
    """Seconds of each small frame that a process sends back over a Unix socket."""
    ours, theirs = socket.socketpair()
    taken = []
    argv = [sys.executable, "-c", ECHO, str(theirs.fileno())]
    with subprocess.Popen(argv, pass_fds=(theirs.fileno(),)), ours:
        theirs.close()
        for _ in range(times + WARM):
            start = time.perf_counter()
            ours.sendall(FRAME)
            ours.recv(1 << 16)
            taken.append(time.perf_counter() - start)
    return taken[WARM:]


class Asking(asyncio.Protocol):
    """The end that asks: one frame out, one answer back."""

    transport: asyncio.WriteTransport
    answer: asyncio.Future[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.answer.set_result(None)

    async def ask(self) -> None:
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(FRAME)
        await self.answer


class Passing(asyncio.Protocol):
    """The other end: what comes has a bare program carry out its line, whose answer goes back."""

    def __init__(self, program: "subprocess.Popen[bytes]", line: bytes) -> None:
        assert program.stdin is not None
        assert program.stdout is not None
        self._to, self._back, self._line = program.stdin.fileno(), program.stdout.fileno(), line
        self.over = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        asyncio.get_running_loop().add_reader(self._back, self._answered)

    def data_received(self, data: bytes) -> None:
        os.write(self._to, self._line)

    def connection_lost(self, error: Exception | None) -> None:
        asyncio.get_running_loop().remove_reader(self._back)
        self.over.set()

    def _answered(self) -> None:
        self._transport.write(os.read(self._back, 1 << 16))


def by_asyncio(argv: Sequence[str], line: bytes, times: int) -> list[float]:
    """Seconds of each line that this program has another one have a bare program carry out, both by asyncio.

    Frames are neither made nor read, nothing is checked, written down, limited or stopped.
    """
    ours, theirs = socket.socketpair()
    other = [sys.executable, __file__, str(theirs.fileno()), line.hex(), *argv]
    with subprocess.Popen(other, pass_fds=(theirs.fileno(),)), ours:
        theirs.close()
        return asyncio.run(_ask(ours, times))[WARM:]


async def _ask(ours: socket.socket, times: int) -> list[float]:
    taken = []
    transport, asking = await asyncio.get_running_loop().create_connection(Asking, sock=ours)
    for _ in range(times + WARM):
        start = time.perf_counter()
        await asking.ask()
        taken.append(time.perf_counter() - start)
    transport.close()
    return taken


async def pass_on(ours: socket.socket, program: "subprocess.Popen[bytes]", line: bytes) -> None:
    """Be the other program, until the connection ends."""
    passing = Passing(program, line)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: passing, ours)
    await passing.over.wait()


def main(fd: int, line: bytes, argv: Sequence[str]) -> None:
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        asyncio.run(pass_on(socket.socket(fileno=fd), program, line))
        program.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), bytes.fromhex(sys.argv[2]), sys.argv[3:])
