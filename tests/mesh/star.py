"""A harness and workers for tests, each in a network namespace of a lab: a star of WireGuard over one bridge."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path
from typing import Final

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from mesh.node import Node
from mesh.picking import Backend
from mesh.plan import Endpoint, Peer, Wanted
from tests.mesh.lab import Lab, needs

BACKEND: Final = os.environ.get("MESH_TEST_BACKEND", "wireguard-go")  # `kernel` inside of kernel-vm.sh
SLOW: Final = 5 if "KERNEL_VM" in os.environ else 1  # times longer to wait: there is one slow processor
PORT: Final = 51820
PREFIX: Final = IPv6Network("fd5e:1:2::/48")


def pair() -> tuple[bytes, bytes]:
    """A private and its public key."""
    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def mesh(number: int) -> IPv6Address:
    return PREFIX[number]


class Machine:
    """One that is in the mesh, or is to be: its keys, its number, its namespace `name`."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.private, self.public = pair()
        self.preshared = os.urandom(32)
        self.under = f"fd00:aa::{number}"  # its address on the bridge


class Star:
    """The harness `hub` and workers that are plugged to its bridge. Folders are below `folder`."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.hub = Machine("hub", 1)
        self.workers: dict[str, Machine] = {}
        lab.namespace("hub")
        lab.bridge("hub", f"{self.hub.under}/64")

    def worker(self, name: str) -> Machine:
        """A worker that the harness knows when it is next told."""
        machine = Machine(name, 2 + len(self.workers))
        self.workers[name] = machine
        self.lab.namespace(name)
        self.lab.plug(name, "hub", f"{machine.under}/64")
        return machine

    def hub_wanted(self, *without: Machine) -> Wanted:
        return Wanted(
            private=self.hub.private,
            address=IPv6Interface((int(mesh(1)), 48)),
            port=PORT,
            peers={
                worker.public: Peer(
                    key=worker.public,
                    allowed=(IPv6Network(mesh(worker.number)),),
                    preshared=worker.preshared,
                )
                for worker in self.workers.values()
                if worker not in without
            },
        )

    def worker_wanted(
        self, worker: Machine, allowed: Sequence[IPv6Network] = (IPv6Network(mesh(1)),), prefix: int = 48
    ) -> Wanted:
        hub = Peer(
            key=self.hub.public,
            allowed=tuple(allowed),
            preshared=worker.preshared,
            endpoint=Endpoint(self.hub.under, PORT),
            keepalive=25,
        )
        address = IPv6Interface((int(mesh(worker.number)), prefix))
        return Wanted(private=worker.private, address=address, peers={hub.key: hub})

    def hub_node(self) -> Node:
        return self._node("hub", self.hub_wanted(), listens=True)

    def worker_node(self, worker: Machine, wanted: Wanted | None = None) -> Node:
        return self._node(worker.name, wanted or self.worker_wanted(worker))

    def _node(self, name: str, wanted: Wanted, listens: bool = False) -> Node:
        return Node(
            wanted,
            folder=self.folder / name,
            backend=msgspec.convert(BACKEND, Backend),
            listens=listens,
            launcher=self.lab.launcher(name),
        )


class Echo:
    """A control port that gives back what it gets, and notes who came."""

    def __init__(self, sock: socket.socket) -> None:
        self.port: int = sock.getsockname()[1]
        self.sock = sock
        self.came: list[str] = []
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        self.came.append(writer.get_extra_info("peername")[0])
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
            self.writers.discard(writer)

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


@asynccontextmanager
async def echoing(hub: Node) -> AsyncIterator[Echo]:
    """An Echo on the hub's mesh address."""
    echo = Echo(await hub.listen(0))
    async with await asyncio.start_server(echo.serve, sock=echo.sock):
        try:
            yield echo
        finally:
            echo.abort()


class Line:
    """A connection from a worker to an Echo."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, data: bytes = b"hello") -> None:
        """Send, and wait until all of it came back."""
        self.writer.write(data)
        assert await self.reader.readexactly(len(data)) == data


@asynccontextmanager
async def calling(worker: Node, port: int, host: IPv6Address = mesh(1)) -> AsyncIterator[Line]:  # noqa: B008 - a value
    reader, writer = await asyncio.open_connection(sock=await worker.dial(host, port))
    try:
        yield Line(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def talking(star: Star, worker: Machine) -> AsyncIterator[tuple[Node, Node, Line]]:
    """The hub's node, the worker's, and a connection between them over which something was said."""
    async with (
        star.hub_node() as hub,
        star.worker_node(worker) as far,
        echoing(hub) as echo,
        calling(far, echo.port) as line,
    ):
        await line.say()
        yield hub, far, line


def programs() -> None:
    """Skip where what the tests in namespaces take is missing."""
    needs("ip", "nft", *(["wireguard-go"] if BACKEND == "wireguard-go" else []))
    if BACKEND == "wireguard-go" and not os.path.exists("/dev/net/tun"):
        pytest.skip("there is no /dev/net/tun: modprobe tun")
