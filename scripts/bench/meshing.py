"""Cost of the mesh: joining, many peers, throughput and round trips, beside a bare cable and WireGuard by hand.

Everything is in two network namespaces that a veth joins: this process is the harness in one, workers are in the
other. What is compared is measured in short turns of changing order, so that a busy machine is busy for all; a ratio is
the mean of those of the rounds, two standard errors beside it, and a difference below these says nothing. A second
tunnel by hand shows what two that are alike differ by. WireGuard is wireguard-go on both sides, each process in the
session of this one, as what uses it: on a busy machine Linux's scheduler shares between sessions, and one of its own
costs WireGuard up to 40 % of its throughput, by hand or not (sched_autogroup).
"""

import argparse
import asyncio
import contextlib
import logging
import math
import os
import random
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
import common
import structlog
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from daemon import admission
from daemon import release as own
from daemon.admission import Admission, Door, OwnWord
from daemon.cordons import Cordons
from daemon.meshed import Meshed
from daemon.meshtable import MeshTable
from daemon.pool import Pool
from daemon.protocol import api
from mesh import keys, privilege, registry, token
from mesh.join import Failed, Get, Joined, Joining
from mesh.node import Node
from mesh.nodes import Facts
from mesh.nodes import Node as Registered
from mesh.plan import Endpoint, Peer, Wanted
from mesh.registry import Registry

HUB: Final = "fd00:aa::1"
FAR: Final = "fd00:aa::2"
BARE: Final = IPv6Network("fd00:bb::/32")  # inside of what is made by hand, a /64 each
MESH: Final = IPv6Network("fd5e:1:2::/48")
MTU: Final = 1420
RELEASE: Final = "0.1.0"
PORT: Final = 51820
WARM: Final = 20  # round trips that are not counted
CHUNK: Final = 256 << 10
HAND: Final = "WireGuard by hand"
MESH_WAY: Final = "the mesh"
INSIDE: Final = "OUTRIDER_BENCH_FAR"  # the worker's namespace, when this runs in the harness's
# Take a connection, count what comes, say how much when the sender has ended.
SINK: Final = (
    "import socket, sys\nsock = socket.socket(fileno=int(sys.argv[1]))\nroom = bytearray(1 << 20)\ngot = 0\n"
    "while n := sock.recv_into(room): got += n\nsock.sendall(b'%20d' % got)"
)
ECHO: Final = (
    "import socket, sys\nsock = socket.socket(fileno=int(sys.argv[1]))\n"
    "while data := sock.recv(1 << 16): sock.sendall(data)"
)

T = TypeVar("T")
Connect = Callable[[], tuple[socket.socket, socket.socket]]  # the harness's end and the worker's


def sh(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@contextlib.contextmanager
def namespaces() -> Iterator[tuple[str, str]]:
    """The harness's and the worker's, joined by a veth; what runs there is ended with them."""
    tag = f"orb{os.getpid()}"
    names = (f"{tag}h", f"{tag}w")
    try:
        for name in names:
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
        sh(
            "ip",
            "-n",
            names[0],
            "link",
            "add",
            "up0",
            "type",
            "veth",
            "peer",
            "name",
            "up0",
            "netns",
            names[1],
        )
        for name, address in zip(names, (HUB, FAR), strict=True):
            sh("ip", "-n", name, "addr", "add", f"{address}/64", "dev", "up0", "nodad")
            sh("ip", "-n", name, "link", "set", "up0", "up")
        yield names
    finally:
        for name in names:
            for pid in sh("ip", "netns", "pids", name, check=False).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            sh("ip", "netns", "delete", name, check=False)


def within(name: str, work: Callable[[], T]) -> T:
    """What `work` returns in a network namespace."""
    found: list[T] = []

    def enter() -> None:
        fd = os.open(f"/run/netns/{name}", os.O_RDONLY)
        try:
            privilege.enter(fd)
        finally:
            os.close(fd)
        found.append(work())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if not found:
        raise SystemExit(f"nothing came of what was tried in {name}")
    return found[0]


def pair() -> tuple[bytes, bytes]:
    """A private and its public key."""
    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


# Ways between the namespaces


def connected(server: socket.socket, far: str, host: str) -> tuple[socket.socket, socket.socket]:
    """The harness's end and the worker's of a connection that was made in the namespace `far`."""
    where = (host, server.getsockname()[1])
    theirs = within(far, lambda: socket.create_connection(where, 20))
    ours, _ = server.accept()
    for sock in (ours, theirs):
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


def plain(far: str, host: str) -> Connect:
    server = socket.create_server((host, 0), family=socket.AF_INET6)
    return lambda: connected(server, far, host)


@contextlib.contextmanager
def by_hand(far: str, number: int) -> Iterator[tuple[Connect, list[int]]]:
    """WireGuard as its manual sets it up: an interface in each namespace. Connections by it, and its processes.

    `number`: of this tunnel, from 1 on.
    """
    pids: list[int] = []
    port, network = PORT + number, int(BARE[0]) + (number << 64)
    ends = [
        (name, f"orb{os.getpid()}{letter}{number}", IPv6Address(network + each), *pair())
        for each, (name, letter) in enumerate((("", "a"), (far, "b")), 1)
    ]
    with contextlib.ExitStack() as stack:
        for name, link, address, private, _ in ends:
            prefix = ["ip", "netns", "exec", name] if name else []
            process = subprocess.Popen(
                [*prefix, "wireguard-go", "-f", link],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LOG_LEVEL": "error"},
            )
            stack.callback(ended, process)
            pids.append(process.pid)
            peer = next(end for end in ends if end[1] != link)
            said = ["set=1", f"private_key={private.hex()}", f"listen_port={0 if name else port}"]
            said += [f"public_key={peer[4].hex()}", f"allowed_ip={peer[2]}/128"]
            said += [f"endpoint=[{HUB}]:{port}", "persistent_keepalive_interval=25"] if name else []
            uapi(link, said)
            sh(*prefix, "ip", "addr", "add", f"{address}/64", "dev", link, "nodad")
            sh(*prefix, "ip", "link", "set", link, "mtu", str(MTU), "up")
        yield plain(far, str(ends[0][2])), pids


def uapi(link: str, said: Sequence[str]) -> None:
    """Tell a wireguard-go, once it listens."""
    give_up = time.monotonic() + 20
    while True:
        with socket.socket(socket.AF_UNIX) as sock:
            try:
                sock.connect(f"/var/run/wireguard/{link}.sock")
            except OSError as error:
                if time.monotonic() > give_up:
                    raise SystemExit(f"wireguard-go by hand does not start: {error}") from None
                time.sleep(0.02)
                continue
            sock.sendall("\n".join([*said, "", ""]).encode())
            if sock.recv(100) != b"errno=0\n\n":
                raise SystemExit("wireguard-go by hand refuses its settings")
            return


def ended(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait()


@asynccontextmanager
async def ours(far: str, folder: Path) -> AsyncIterator[tuple[Connect, list[int]]]:
    """Two nodes of the mesh, connections as a worker has them, and the processes of WireGuard."""
    (hub_key, hub_public), (key, public) = pair(), pair()
    preshared = secrets.token_bytes(32)
    at = [IPv6Interface((int(MESH[number]), 48)) for number in (1, 2)]
    worker = Peer(key=public, allowed=(IPv6Network(MESH[2]),), preshared=preshared)
    hub = Peer(
        key=hub_public,
        allowed=(IPv6Network(MESH[1]),),
        preshared=preshared,
        endpoint=Endpoint(HUB, PORT),
        keepalive=25,
    )
    near = Wanted(private=hub_key, address=at[0], port=PORT, mtu=MTU, peers={public: worker})
    there = Wanted(private=key, address=at[1], mtu=MTU, peers={hub_public: hub})
    launcher = ("ip", "netns", "exec", far)
    async with (
        Node(near, folder=folder / "hub", backend="wireguard-go", listens=True) as one,
        Node(there, folder=folder / "far", backend="wireguard-go", launcher=launcher) as other,
    ):
        server = await one.listen(0)
        server.setblocking(True)
        loop = asyncio.get_running_loop()

        def connect() -> tuple[socket.socket, socket.socket]:
            dialed = asyncio.run_coroutine_threadsafe(
                other.dial(IPv6Address(MESH[1]), server.getsockname()[1]), loop
            ).result(30)
            accepted, _ = server.accept()
            for sock in (accepted, dialed):
                sock.setblocking(True)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return accepted, dialed

        yield connect, [pid for node in (one, other) for pid in children(node.pid)]
        server.close()


def processor(pids: Sequence[int]) -> float:
    """Seconds of processor time that these processes have had; a busy machine changes it less than a clock's."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(sum(map(int, each[11:15])) for each in fields) / os.sysconf(
        "SC_CLK_TCK"
    )  # with children that ended


def rate(connect: Connect, seconds: float) -> tuple[float, int]:
    """Bytes a second from the worker to the harness, and bytes."""
    near, far = connect()
    with subprocess.Popen([sys.executable, "-c", SINK, str(near.fileno())], pass_fds=[near.fileno()]):
        near.close()
        block = bytes(CHUNK)
        start = time.perf_counter()
        while time.perf_counter() < start + seconds:
            far.sendall(block)
        far.shutdown(socket.SHUT_WR)
        got = int(far.recv(20, socket.MSG_WAITALL))
        taken = time.perf_counter() - start
        far.close()
    return got / taken, got


def trips(connect: Connect, times: int) -> list[float]:
    """Seconds of each round trip of 64 bytes."""
    near, far = connect()
    taken = []
    with subprocess.Popen([sys.executable, "-c", ECHO, str(far.fileno())], pass_fds=[far.fileno()]):
        far.close()
        for _ in range(times + WARM):
            start = time.perf_counter()
            near.sendall(bytes(64))
            near.recv(64, socket.MSG_WAITALL)
            taken.append(time.perf_counter() - start)
        near.close()
    return taken[WARM:]


def spread(found: Sequence[float]) -> str:
    return f"{min(found):.3g} to {max(found):.3g}"


def ratio(found: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """The mean of the rounds' ratios, and two standard errors of it."""
    logs = [math.log(one / other) for one, other in zip(found, base, strict=True)]
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    middle = math.exp(statistics.fmean(logs))
    return middle, 2 * error * middle


def compare(name: str, found: dict[str, list[float]], unit: str) -> None:
    """Each way's rounds, and each against WireGuard by hand in the same round."""
    print(f"{name} ({unit}), the median of {len(found[HAND])} rounds:")
    for way, each in found.items():
        middle, error = ratio(each, found[HAND])
        said = "" if way == HAND else f"; {middle:.3f} times {HAND}, give or take {error:.3f}"
        print(f"  {way:20} {statistics.median(each):8.4g} ({spread(each)}){said}", flush=True)


async def ways(far: str, folder: Path, rounds: int, seconds: float, times: int) -> float:
    """Bytes and round trips by each way; the mesh's round trip in seconds."""
    with by_hand(far, 1) as one, by_hand(far, 2) as another:
        async with ours(far, folder) as own:
            there = {
                "veth": (plain(far, HUB), list[int]()),
                HAND: one,
                "the same again": another,
                MESH_WAY: own,
            }
            rates: dict[str, list[float]] = {way: [] for way in there}
            waits: dict[str, list[float]] = {way: [] for way in there}
            costs: dict[str, list[float]] = {way: [] for way, (_, pids) in there.items() if pids}
            for number in range(rounds + 1):
                for way in random.sample(list(there), len(there)):
                    connect, pids = there[way]
                    before = processor(pids)
                    fast, size = await asyncio.to_thread(rate, connect, seconds if number else 0.5)
                    spent = processor(pids) - before
                    wait = await asyncio.to_thread(trips, connect, times)
                    if number:  # the first one warms up
                        rates[way].append(fast / 1e6)
                        waits[way].append(common.median_ms(wait) * 1e3)
                        if way in costs:
                            costs[way].append(spent / size * 1e9)
    compare("throughput, worker to harness", rates, "MB/s")
    compare("processor time of both WireGuards for it", costs, "s a GB")
    compare("round trip of 64 bytes over TCP", waits, "us")
    print(f"  aim: at most 5 % lost to {HAND}", flush=True)
    return statistics.median(waits[MESH_WAY]) / 1e6


# Joining, and runs


class Harness:
    """What a daemon has of workers: a pool, its doors and its mesh, without its sessions."""

    def __init__(self, data: Path, group: asyncio.TaskGroup, far: str) -> None:
        self.data = data
        self.far = far
        self.changed = asyncio.Event()
        self.pool = Pool(
            release=own.own(),
            on_change=self.changed.set,
            cordons=Cordons(data / "cordons.toml"),
            joined=lambda: self.mesh.joined(),
        )
        offer = admission.Offer(own.own(), data / admission.FOLDER)

        def door(who: Admission) -> Door:
            return Door(who, self.pool, offer, group)

        table = MeshTable(
            backend="wireguard-go",
            name="hub",
            port=PORT,
            join_listen=f"[{HUB}]:4601",
            endpoints=(f"[{HUB}]:{PORT}",),
            join_endpoints=(f"[{HUB}]:4601",),
        )
        self.mesh = Meshed(data, table, self.pool, offer, door, self.changed.set, group)
        self.door = door(OwnWord())

    def worker(self, name: str, *how: str, text: str = "") -> "subprocess.Popen[bytes]":
        """`outrider worker` in the other namespace."""
        command = ["ip", "netns", "exec", self.far, str(common.OUTRIDER), "worker", *how, "--as-root"]
        with (self.data / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--scratch", str(self.data / name), "--name", name],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self.environ,
            )
        assert process.stdin is not None
        process.stdin.write(text.encode())
        process.stdin.close()
        return process

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.data),
            "OUTRIDER_CONFIG": str(self.data / "w.toml"),
        }

    def end(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        ended(process)
        down = ["worker", "down", "--scratch", str(self.data / name)]
        subprocess.run([common.OUTRIDER, *down], env=self.environ, capture_output=True, check=False)

    async def hello(self, name: str) -> None:
        """Wait until a worker has said it."""
        try:
            async with asyncio.timeout(60):
                while self.pool.hello(name) is None:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            log = (self.data / f"{name}.log").read_text()
            raise SystemExit(f"the worker {name} did not come: {log}") from None


@asynccontextmanager
async def harness(data: Path, far: str) -> AsyncIterator[Harness]:
    (data / "w.toml").write_text('[mesh]\nbackend = "wireguard-go"\n')
    async with asyncio.TaskGroup() as group:
        one = Harness(data, group, far)
        async with admission.on_unix(data / "workers.sock", one.door), one.mesh.kept():
            yield one


async def joins(one: Harness, times: int) -> None:
    """From the verb to the hello, by the mesh and by a Unix socket, in turns."""
    far: list[float] = []
    near: list[float] = []
    bare: list[float] = []
    spent: dict[int, list[float]] = {id(far): [], id(near): []}
    for number in range(times + 1):
        start = time.perf_counter()
        await asyncio.to_thread(sh, str(common.OUTRIDER), "--version")
        bare.append(time.perf_counter() - start)
        text = (await one.mesh.make_token(api.NewToken())).token
        connect = ("--connect", str(one.data / "workers.sock"))
        for name, how, taken in (
            (f"m{number}", ("--join", "-"), far),
            (f"u{number}", connect, near),
        ):
            start = time.perf_counter()
            process = one.worker(name, *how, text=text if taken is far else "")
            await one.hello(name)
            taken.append(time.perf_counter() - start)
            spent[id(taken)].append(processor([process.pid, *children(process.pid)]))
            await asyncio.to_thread(one.end, name, process)
    print(
        f"`outrider worker --join` to hello: {common.ms(far[1:])}, at most {max(far[1:]):.2f} s of {times} "
        "(aim: under 3 s)\n"
        f"  `--connect` to a Unix socket, the same without the mesh: {common.ms(near[1:])}\n"
        f"  processor time until then, the keeper's left out: {common.ms(spent[id(far)][1:])}; without the mesh: "
        f"{common.ms(spent[id(near)][1:])}\n"
        f"  `outrider --version`, its share that is Python: {common.ms(bare[1:])}",
        flush=True,
    )


async def runs(one: Harness, times: int, trip: float) -> None:
    """Seconds of a run that does nothing, by the mesh and by a Unix socket, in turns."""
    text = (await one.mesh.make_token(api.NewToken())).token
    workers = {
        "m": one.worker("m", "--join", "-", text=text),
        "u": one.worker("u", "--connect", str(one.data / "workers.sock")),
    }
    taken: dict[str, list[float]] = {name: [] for name in workers}
    try:
        for name in workers:
            await one.hello(name)
        for number in range(times + WARM):
            for name in workers:
                start = time.perf_counter()
                output = await one.pool.run(name, "s", f"c{number}", "true", interpreter="bash")
                taken[name].append(time.perf_counter() - start)
                if output.exit or output.text:
                    raise SystemExit(f"{name} answered {output}")
    finally:
        for name, process in workers.items():
            await asyncio.to_thread(one.end, name, process)
    far, near = (common.median_ms(taken[name][WARM:]) for name in ("m", "u"))
    print(
        f"`true` by the mesh: {common.ms(taken['m'][WARM:])}; by a Unix socket: {common.ms(taken['u'][WARM:])}\n"
        f"  {far - near:+.2f} ms, of which the mesh's own round trip is {trip * 1e3:.2f} ms: "
        f"{far - near - trip * 1e3:+.2f} ms are ours (aim: within 1 ms)",
        flush=True,
    )


# Many peers


def registered(data: Path, peers: int) -> None:
    """A data folder in whose mesh there are so many machines."""
    made = keys.hub(data / keys.FOLDER)
    with Registry(data / registry.FILE, made.wireguard.public, time.time) as one:
        hashed = secrets.token_bytes(32)
        one.grant(hashed, uses=max(1, peers))
        for number in range(peers):
            facts = Facts(f"gpu-{number}", "linux", "x86_64", RELEASE)
            if not isinstance(one.join(hashed, pair()[1], facts, secrets.token_bytes(32), 60), Registered):
                raise SystemExit("the registry refuses a machine")


async def joined(text: str) -> float:
    """Seconds that a machine that joins waits for the answer to its question."""
    facts = Facts("late", "linux", "x86_64", RELEASE)
    private, public = pair()
    joining = Joining(token.decode(text), facts, keys.Pair(private, public))
    taken = 0.0
    async with aiohttp.ClientSession() as http:
        while True:
            step = joining.next()
            if isinstance(step, Joined):
                return taken
            if isinstance(step, Failed):
                raise SystemExit(step.reason)
            start = time.perf_counter()
            body = None if isinstance(step, Get) else step.body
            async with http.request(
                "GET" if body is None else "POST", f"http://{step.place}{step.path}", data=body
            ) as answer:
                joining.feed(answer.status, await answer.read())
            taken = time.perf_counter() - start


def memory(pid: int) -> float:
    """What a process has in memory, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from children(int(child))


def mesh_memory(daemon: int) -> dict[str, float]:
    """Of the daemon, its mesh's helper and WireGuard, in MB."""
    found = {"daemon": memory(daemon)}
    for pid in children(daemon):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"wireguard-go" in line.split(b"\0")[0]:
            found["wireguard-go"] = memory(pid)
        elif b"mesh import helper" in line:
            found["helper"] = memory(pid)
    return found


async def many(peers: int, times: int) -> None:
    """A daemon with so many machines: until it is up, a list, a change, memory; the same with one."""
    for number in (1, peers):
        with common.folder() as data:
            await asyncio.to_thread(registered, data, number)
            (data / "outrider.toml").write_text(
                f'[mesh]\nbackend = "wireguard-go"\nport = {PORT}\njoin_listen = "[{HUB}]:4601"\n'
                f'endpoints = ["[{HUB}]:{PORT}"]\njoin_endpoints = ["[{HUB}]:4601"]\nname = "hub"\n'
            )
            with common.running(data) as daemon:
                async with common.client(daemon.socket) as one:
                    while (found := await one.mesh()).state != "up":
                        if found.state == "failing":
                            raise SystemExit(found.why)
                        await asyncio.sleep(0.01)
                    up = time.monotonic() - daemon.spawned
                    lists = []
                    for _ in range(times):
                        start = time.perf_counter()
                        if len(await one.workers()) < number:
                            raise SystemExit("workers are missing in the list")
                        lists.append(time.perf_counter() - start)
                    text = (await one.make_token(api.NewToken(uses=times))).token
                    changes = [await joined(text) for _ in range(times)]
                    removals = []
                    for name in ("late", *(f"late-{n}" for n in range(2, times + 1))):
                        start = time.perf_counter()
                        await one.remove_worker(name)
                        removals.append(time.perf_counter() - start)
                    held = ", ".join(
                        f"{name} {size:.0f} MB" for name, size in mesh_memory(daemon.process.pid).items()
                    )
                    print(
                        f"{number:5} machines: ready after {daemon.seconds:.2f} s, the mesh up after {up:.2f} s; "
                        f"GET /workers {common.ms(lists)}\n"
                        f"      one more joins {common.ms(changes)}, one is removed {common.ms(removals)}; {held}",
                        flush=True,
                    )


async def measure(far: str, asked: argparse.Namespace) -> None:
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors", flush=True)
    with common.folder() as folder:
        trip = await ways(far, folder, asked.rounds, asked.seconds, asked.trips)
    if asked.joins or asked.runs:
        with common.folder() as folder:
            async with harness(folder, far) as one:
                if asked.joins:
                    await joins(one, asked.joins)
                if asked.runs:
                    await runs(one, asked.runs, trip)
    if asked.peers:
        await many(asked.peers, asked.changes)
    print(f"load {os.getloadavg()[0]:.1f} at the end", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="of each way's bytes and round trips")
    parser.add_argument("--seconds", type=float, default=1.0, help="of bytes in a round")
    parser.add_argument("--trips", type=int, default=300, help="round trips in a round")
    parser.add_argument("--joins", type=int, default=5, help="0 leaves this part out")
    parser.add_argument("--runs", type=int, default=300, help="0 leaves this part out")
    parser.add_argument("--peers", type=int, default=1000, help="0 leaves this part out")
    parser.add_argument("--changes", type=int, default=20, help="lists, joins and removals with many peers")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.exit(2, "network namespaces take root\n")
    if INSIDE not in os.environ:
        with namespaces() as (near, other):
            command = ["ip", "netns", "exec", near, sys.executable, *sys.argv]
            sys.exit(subprocess.run(command, env={**os.environ, INSIDE: other}, check=False).returncode)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    asyncio.run(measure(os.environ.pop(INSIDE), arguments))
