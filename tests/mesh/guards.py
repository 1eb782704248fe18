"""WireGuard as the relay sees it: packets of its shape, and a UDP socket that answers as one would."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from mesh import datagrams
from mesh.datagrams import Address
from mesh.join import Reply
from mesh.listener import Limits, Offered, listening
from mesh.relay import Limits as RelayLimits
from mesh.relay import Relay, relaying

KEY = b"the join key"


def initiation(sender: bytes = b"abcd") -> bytes:
    return b"\1\0\0\0" + sender + bytes(140)


def response(receiver: bytes = b"abcd") -> bytes:
    return b"\2\0\0\0" + b"hubs" + receiver + bytes(80)


def data(text: bytes = b"", size: int = 0) -> bytes:
    """A packet of data that is told by its text."""
    return (b"\4\0\0\0" + bytes(12) + text + bytes(16)).ljust(max(size, 32), b"\0")


class Guard:
    """A UDP socket: answers initiations, echoes data, remembers what came and from where. `silent`: it only hears."""

    def __init__(self, sock: socket.socket, silent: bool = False) -> None:
        self.silent = silent
        self.got: asyncio.Queue[tuple[bytes, Address]] = asyncio.Queue()
        self.port = datagrams.Port(sock, self._heard)

    @property
    def address(self) -> Address:
        return self.port.address

    def send(self, packet: bytes, to: Address) -> None:
        assert self.port.send(packet, to)

    async def next(self) -> bytes:
        return (await self.got.get())[0]

    def _heard(self, packet: bytes, source: Address) -> None:
        self.got.put_nowait((packet, source))
        if self.silent:
            return
        if datagrams.kind(packet) == datagrams.INITIATION:
            self.send(response(datagrams.sender(packet)), source)
        else:
            self.send(packet, source)


@contextmanager
def guard(silent: bool = False) -> Iterator[Guard]:
    made = Guard(datagrams.udp("127.0.0.1"), silent)
    try:
        yield made
    finally:
        made.port.close()


class FakeJoins:
    """Lets join whoever sends `please`; remembers who asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, str]] = []

    def key(self) -> bytes:
        return KEY

    def join(self, body: bytes, peer: str, /) -> Reply:
        self.asked.append((body, peer))
        if body == b"break":
            raise RuntimeError("secret words of the harness")
        if body == b"often":
            return Reply(status=429, body=b"too often", retry_after=7)
        if body != b"please":
            return Reply(status=403, body=b"this token joins no more machines")
        return Reply(status=200, body=b"welcome")

    def standing(self, body: bytes, peer: str, /) -> Reply:
        self.asked.append((body, peer))
        return Reply(status=200, body=b"a member")


class Hub:
    """A join listener with a relay to a Guard."""

    def __init__(self, guard: Guard, relay: Relay, address: str) -> None:
        self.guard = guard
        self.relay = relay
        self.address = address
        self.url = f"http://{address}"
        self.port = int(address.rpartition(":")[2])

    async def connections(self, number: int) -> None:
        """Wait until the relay has so many; the test's time limit is the limit."""
        while self.relay.counts().connections != number:  # noqa: ASYNC110 - it tells nobody when they change
            await asyncio.sleep(0)


@asynccontextmanager
async def hub(
    silent: bool = False,
    limits: RelayLimits | None = None,
    listener: Limits | None = None,
    address: str = "127.0.0.1:0",
) -> AsyncIterator[Hub]:
    with guard(silent) as there:
        async with (
            relaying(there.address, limits) as relay,
            listening(
                [address], FakeJoins(), lambda: Offered(script=b"#!/bin/sh\n"), relay=relay, limits=listener
            ) as found,
        ):
            yield Hub(there, relay, found[0])


class ConnectProxy:
    """An HTTP proxy that knows CONNECT and nothing else. `refuse`: what it answers instead; `asked`: the heads."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refuse = ""
        self.address = ""
        self._open: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ConnectProxy"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for writer in self._open:
                writer.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head)
        method, target, _ = head.split(" ", 2)
        if self.refuse or method != "CONNECT":
            writer.write(f"HTTP/1.1 {self.refuse or '405 No'}\r\n\r\n".encode())
            writer.close()
            return
        host, _, port = target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port))
        self._open.append(far_writer)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(reader, far_writer), name="proxy out")
            group.create_task(_pump(far_reader, writer), name="proxy in")


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


def websocket_head(path: str = "/mesh/relay", more: str = "") -> bytes:
    """A WebSocket's opening as raw bytes."""
    return (
        f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{more}\r\n"
    ).encode()


def frame(payload: bytes, opcode: int = 2, first: int = 0x80) -> bytes:
    """A client's WebSocket frame, masked with zeros."""
    size = (
        bytes([0x80 | len(payload)])
        if len(payload) < 126
        else b"\xfe" + len(payload).to_bytes(2, "big")
        if len(payload) < 1 << 16
        else b"\xff" + len(payload).to_bytes(8, "big")
    )
    return bytes([first | opcode]) + size + bytes(4) + payload


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
