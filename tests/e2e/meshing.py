"""A daemon in a network namespace of its own, and machines in others that join it and dial as workers do."""

import json
import socket
import subprocess
import sys
from asyncio import StreamReader, StreamWriter, open_connection
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from http.client import HTTPConnection
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import msgspec

from daemon.protocol import api, dialing, frames
from mesh import address, keys, messages
from mesh.address import HARNESS
from mesh.keys import Pair
from mesh.messages import Answer
from mesh.node import Node
from mesh.picking import Backend
from mesh.plan import Endpoint
from mesh.wanted import worker_wanted
from tests.mesh.lab import Lab
from tests.mesh.star import BACKEND, SLOW
from tests.running import OUTRIDER, Place

# Joins with the token on stdin and the key file in the arguments, where it runs; prints the answer.
JOIN = """
import sys, urllib.request, urllib.error
from pathlib import Path
from mesh import keys, messages, token
from mesh.join import Failed, Get, Joined, Joining
from mesh.nodes import Facts
pair = keys.wireguard(Path(sys.argv[1]))
joining = Joining(token.decode(sys.stdin.read()), Facts(sys.argv[2], "linux", "x86_64", "1"), pair)
while not isinstance(step := joining.next(), (Joined, Failed)):
    body = None if isinstance(step, Get) else step.body
    try:
        with urllib.request.urlopen(f"http://{step.place}{step.path}", body, 10) as answer:
            joining.feed(answer.status, answer.read())
    except urllib.error.HTTPError as error:
        joining.feed(error.code, error.read())
    except OSError as error:
        joining.lost(str(error))
if isinstance(step, Failed):
    sys.exit(step.reason)
print(messages.dump(step.answer).decode())
"""


class Local(HTTPConnection):
    """HTTP over a daemon's Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=50 * SLOW)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Housed(Place):
    """A daemon's place whose verbs run in a namespace of a lab, with the backend that is tested."""

    def __init__(self, home: Path, lab: Lab, name: str, endpoint: str, more: str = "") -> None:
        super().__init__(home)
        self._launcher = lab.launcher(name)
        (home / ".config/outrider/outrider.toml").write_text(
            f'[mesh]\nbackend = "{BACKEND}"\nendpoints = ["{endpoint}"]\nname = "hub"\n{more}'
        )

    def outrider(
        self, *arguments: str, input: str = "", **environ: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a verb to its end in the namespace."""
        return subprocess.run(
            [*self._launcher, *OUTRIDER, *arguments],
            env=self.environ | environ,
            cwd=self.work,
            input=input,
            capture_output=True,
            text=True,
            timeout=50 * SLOW,
        )

    def mesh(self) -> dict[str, Any]:
        """How its mesh stands, as the doctor says."""
        checks = json.loads(self.outrider("doctor", "--json").stdout)["checks"]
        found: dict[str, Any] = next(check for check in checks if check["name"] == "mesh")
        return found

    def worker(self, name: str) -> dict[str, Any] | None:
        """A worker as the daemon lists it. No process is started: in the slow machine one takes a second."""
        found: dict[str, Any] | None = next(
            (worker for worker in self._asked("GET", api.WORKERS) if worker["name"] == name), None
        )
        return found

    def forget(self) -> None:
        """Put every machine out of the mesh, for the next test of the same daemon, which may be down."""
        if not self.socket.exists():
            (self.data / "mesh.db").unlink(missing_ok=True)
            return
        for worker in self._asked("GET", api.WORKERS):
            if worker.get("mesh"):
                self._asked("DELETE", api.WORKER.format(name=worker["name"]))

    def _asked(self, method: str, path: str) -> Any:
        with closing(Local(self.socket)) as asked:
            asked.request(method, path)
            answer = asked.getresponse()
            assert answer.status < 300, answer.read()
            return json.loads(answer.read() or b"null")


class Machine:
    """One that joins, in a namespace of a lab; its files are in a folder of its own."""

    def __init__(self, lab: Lab, name: str, folder: Path) -> None:
        self._lab = lab
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.answer: Answer
        self.pair: Pair

    def join(self, token: str, endpoint: str) -> str:
        """Join, and keep the answer; why not, empty where it did."""
        key = self.folder / "wireguard.key"
        command = [*self._lab.launcher(self.name), sys.executable, "-P", "-c", JOIN, str(key), self.name]
        done = subprocess.run(command, input=token, capture_output=True, text=True, timeout=40)
        if done.returncode:
            return done.stderr
        self.answer, self.pair = messages.load(done.stdout.encode()), keys.wireguard(key)
        assert [str(place) for place in self.answer.endpoints] == [endpoint]
        return ""

    @asynccontextmanager
    async def node(self) -> AsyncIterator[Node]:
        """Its end of the tunnel."""
        where = self.answer.endpoints[0]
        wanted = worker_wanted(self.answer, self.pair, Endpoint(where.host, where.port))
        backend = msgspec.convert(BACKEND, Backend)
        async with Node(
            wanted, folder=self.folder / "node", backend=backend, launcher=self._lab.launcher(self.name)
        ) as node:
            yield node

    @property
    def harness(self) -> IPv6Address:
        """The harness's address inside the mesh."""
        return address.address(self.answer.prefix, HARNESS)

    async def dial(self, node: Node, name: str = "what-it-says", seconds: float = 10.0) -> "Line":
        """A control connection that has said hello, under a name that nobody gave it."""
        sock = await node.dial(self.harness, self.answer.control, seconds)
        reader, writer = await open_connection(sock=sock)
        writer.write(dialing.greeting(dialing.Greeting(name, frames.PROTOCOL, "0.1.0")))
        hello = frames.Hello(
            frames.PROTOCOL, "0.1.0", "linux", "x86_64", self.name, ("bash",), "/s", journal="j"
        )
        writer.write(frames.encode(hello))
        return Line(reader, writer)


class Line:
    """A control connection."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answered(self) -> None:
        """Return once the daemon has taken up what was sent, the hello before all."""
        self.writer.write(frames.encode(frames.Ping()))
        while b'"pong"' not in await self.reader.readuntil(b"\n"):
            continue

    async def ended(self) -> None:
        """Return when the daemon has closed it."""
        while await self.reader.read(1 << 16):
            continue
        self.writer.close()
