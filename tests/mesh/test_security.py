"""The attacks that the mesh is made against, each tried, with the WireGuard that MESH_TEST_BACKEND names.

A hub is real but for its pool: registry, join listener, tunnels, and the door that workers of the mesh dial at.
"""

import asyncio
import json
import socket
import sys
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from ipaddress import IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path

import aiohttp
import msgspec
import pytest

from daemon.admission import Door, Offer, Registered
from daemon.protocol import dialing, frames
from daemon.protocol.dialing import Greeting
from mesh import address, interface, token
from mesh.address import HARNESS
from mesh.hub import Mesh
from mesh.join import JOIN_PATH, Failed, Get, Joined, Joining, Post
from mesh.keeping import kept
from mesh.keys import Pair
from mesh.messages import Answer
from mesh.node import MeshError, Node
from mesh.nodes import Facts
from mesh.parts import Fault, Interface, Options
from mesh.picking import Backend
from mesh.plan import Clash, Endpoint, Wanted
from mesh.wanted import worker_wanted
from tests.mesh.joining import worker_keys
from tests.mesh.lab import Lab, run
from tests.mesh.star import BACKEND, PORT, SLOW, Star, echoing, programs
from tests.mesh.tunnels import FakeDaemon, join

ROOT = Path(__file__).parents[2]
CONTROL = 4602
NOBODY = "65534"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")


class FakePool:
    """Echoes what admitted workers say, and ends a worker's connections when it is told."""

    def __init__(self) -> None:
        self.admitted: list[str] = []
        self.open: dict[str, list[StreamWriter]] = {}

    async def serve(self, name: str, reader: StreamReader, writer: StreamWriter) -> None:
        self.admitted.append(name)
        self.open.setdefault(name, []).append(writer)
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass

    def note(self, name: str, text: str) -> None:
        pass

    def turn_away(self, name: str, reason: str) -> None:
        pass

    def end_all(self) -> None:
        for name in list(self.open):
            self.end(name)

    def end(self, name: str) -> None:
        for writer in self.open.pop(name, []):
            writer.transport.abort()


class Doored(FakeDaemon):
    """A daemon with the real door for workers of the mesh."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.pool = FakePool()
        self.offer = Offer("0.1.0", folder)
        self.door: Door

    @asynccontextmanager
    async def admitting(self, sock: socket.socket) -> AsyncIterator[None]:
        async with self.door.open(sock):
            yield

    def cut(self, name: str) -> None:
        super().cut(name)
        self.pool.end(name)


class Member:
    """A machine that joined, in the namespace `place`; with its keys and what it was told."""

    def __init__(self, fort: "Fort", place: str, pair: Pair, answer: Answer) -> None:
        self._fort = fort
        self.place = place
        self.pair = pair
        self.answer = answer

    @property
    def hub(self) -> IPv6Address:
        return address.address(self.answer.prefix, HARNESS)

    def wanted(self, own: IPv6Address | None = None, behind: Sequence[IPv6Network] = ()) -> Wanted:
        """Its interface; with another address of its own than it was given, or more behind the harness."""
        (where,) = self.answer.endpoints
        made = worker_wanted(self.answer, self.pair, Endpoint(where.host, where.port))
        hub = made.peers[self.answer.hub]
        if behind:
            made = msgspec.structs.replace(
                made, peers={hub.key: msgspec.structs.replace(hub, allowed=tuple(behind))}
            )
        at = IPv6Interface((int(own or self.answer.address), 7 if behind else 48))
        return msgspec.structs.replace(made, address=at)

    def node(self, wanted: Wanted | None = None, place: str = "") -> Node:
        lab, where = self._fort.star.lab, place or self.place
        folder = self._fort.star.folder / f"node-{where}"
        backend = msgspec.convert(BACKEND, Backend)
        return Node(wanted or self.wanted(), folder=folder, backend=backend, launcher=lab.launcher(where))

    async def dial(self, node: Node, seconds: float = 10.0) -> "Line":
        """A control connection, under a name that it gives itself."""
        sock = await node.dial(self.hub, CONTROL, seconds)
        reader, writer = await asyncio.open_connection(sock=sock)
        writer.write(dialing.greeting(Greeting("gpu-9", frames.PROTOCOL, "0.1.0")))
        return Line(reader, writer)


class Line:
    """A control connection."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answered(self) -> None:
        self.writer.write(b"hello")
        assert await self.reader.readexactly(5) == b"hello"

    async def rest(self) -> bytes:
        """What still comes, until the harness has ended it."""
        try:
            got = await self.reader.read()
        except ConnectionError:
            got = b""
        self.writer.close()
        return got


class Fort:
    """The hub in the namespace `hub` of a star, up; machines join it one by one."""

    def __init__(self, star: Star, group: asyncio.TaskGroup) -> None:
        self.star = star
        self.daemon = Doored(star.folder)
        self.node: Node
        options = Options(
            name="hub",
            port=PORT,
            control=CONTROL,
            join_listen=("127.0.0.1:0",),
            endpoints=(f"[{star.hub.under}]:{PORT}",),
            join_endpoints=("127.0.0.1",),
        )
        self.mesh = Mesh(star.folder, options, self.daemon, self._opening, poll=0.2)
        self.daemon.door = Door(Registered(self.mesh.name_at), self.daemon.pool, self.daemon.offer, group)

    @property
    def admitted(self) -> list[str]:
        return self.daemon.pool.admitted

    @property
    def url(self) -> str:
        return f"http://{self.mesh.status().join[0]}"

    def _opening(self, wanted: Wanted) -> AbstractAsyncContextManager[Interface]:
        return self._opened(wanted)

    @asynccontextmanager
    async def _opened(self, wanted: Wanted) -> AsyncIterator[Interface]:
        lab, backend = self.star.lab, msgspec.convert(BACKEND, Backend)
        folder = self.star.folder / "node-hub"
        self.node = Node(wanted, folder=folder, backend=backend, listens=True, launcher=lab.launcher("hub"))
        try:
            async with self.node:
                yield interface._Kept(self.node, (MeshError, Clash, OSError))
        except MeshError as error:
            raise Fault(str(error)) from error

    async def join(self, number: int, text: str = "") -> Member:
        """Machine `number` joins and gets a namespace of its own."""
        done = await join(text or (await self.mesh.issue()).text, number, time.time)
        assert isinstance(done, Joined), done
        place = f"w{number}"
        if place not in self.star.lab.namespaces:
            self.star.lab.namespace(place)
            self.star.lab.plug(place, "hub", f"{under(number)}/64")
        return Member(self, place, worker_keys(number), done.answer)

    async def refused(self, number: int, text: str = "") -> str:
        """Why machine `number` may not join."""
        done = await join(text or (await self.mesh.issue()).text, number, time.time)
        assert isinstance(done, Failed), done
        return done.reason

    def names(self) -> list[str]:
        return sorted(member.node.name for member in self.mesh.members())

    async def tried(self, place: str, what: Sequence[tuple[str, int, str]], *before: str) -> list[str]:
        """What came of connecting to host and port from a source, by a process in a namespace, in 1 s each."""
        command = [*self.star.lab.launcher(place), *before, sys.executable, "-IS", "-c", CONNECT]
        said = json.loads(await asyncio.to_thread(run, *command, json.dumps(what)))
        assert len(said) == len(what)
        return [str(each) for each in said]


CONNECT = """
import json, socket, sys
said = []
for host, port, source in json.loads(sys.argv[1]):
    with socket.socket(socket.AF_INET6) as sock:
        sock.settimeout(1)
        try:
            if source:
                sock.setsockopt(socket.IPPROTO_IPV6, 78, 1)  # IPV6_FREEBIND: from an address that is not its own
                sock.bind((source, 0))
            sock.connect((host, port))
            said.append("connected")
        except OSError as error:
            said.append(f"no: {error}")
print(json.dumps(said))
"""


def under(number: int) -> str:
    """The address of machine `number` on the network below the mesh."""
    return f"fd00:aa::{number:x}"


@pytest.fixture
def star(tmp_path: Path) -> Iterator[Star]:
    programs()
    with Lab() as lab:
        star = Star(lab, tmp_path)
        lab.forward("hub")  # as careless hosts do
        yield star


@pytest.fixture
async def fort(star: Star) -> AsyncIterator[Fort]:
    async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
        made = Fort(star, group)
        await stack.enter_async_context(kept(made.mesh, group))
        await made.mesh.issue(uses=9)
        try:
            yield made
        finally:
            made.daemon.pool.end_all()


# A peer that sends with another's address


@pytest.mark.parametrize("posing", ["another worker", "the harness", "a worker to come", "another network"])
async def test_a_worker_that_sends_with_an_address_that_is_not_its_own_is_heard_as_nobody(
    fort: Fort, posing: str
) -> None:
    honest, liar = await fort.join(2), await fort.join(3)
    own = {
        "another worker": honest.answer.address,
        "the harness": honest.hub,
        "a worker to come": IPv6Address(int(liar.answer.address) + 1),
        "another network": IPv6Address("fd77::2"),
    }[posing]
    async with honest.node() as node, liar.node(liar.wanted(own)) as false:
        line = await honest.dial(node)
        await line.answered()
        endpoint = (await fort.node.state()).peers[honest.pair.public].endpoint
        with pytest.raises((TimeoutError, OSError)):
            await liar.dial(false, 1.5)
        await line.answered()
        state = (await fort.node.state()).peers
        if posing != "the harness":  # whose address it has itself by then: it sends to nobody
            assert state[liar.pair.public].handshake > 0  # it came through as itself alone
        assert state[honest.pair.public].endpoint == endpoint
        line.writer.close()
    assert fort.admitted == ["gpu-2"]


async def test_a_worker_that_says_another_name_gets_its_own(fort: Fort) -> None:
    one = await fort.join(2)
    async with one.node() as node:
        line = await one.dial(node)  # it says to be gpu-9
        await line.answered()
        line.writer.close()
    assert fort.admitted == ["gpu-2"]


# Processes of the harness's machine, and its neighbours


async def test_a_local_process_finds_no_control_port_and_no_way_into_the_mesh(fort: Fort) -> None:
    one = await fort.join(2)
    async with one.node() as node:
        line = await one.dial(node)
        await line.answered()
        hub, theirs = str(one.hub), str(one.answer.address)
        ways = [
            (hub, CONTROL, ""),
            (hub, CONTROL, theirs),
            (hub, CONTROL, hub),
            ("::1", CONTROL, ""),
            (fort.star.hub.under, CONTROL, ""),
        ]
        for before in (["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"], []):
            assert "connected" not in await fort.tried("hub", ways, *before)
        assert str(CONTROL) not in fort.star.lab.sh("hub", "ss -Hltn")
        inside = ["nsenter", f"--net=/proc/{node.pid}/ns/net"]
        assert await fort.tried("hub", ways[:1], *inside) == ["connected"]  # so the port is there
        user = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--inh-caps=-all"]
        user.append("--bounding-set=-all")
        for pid in (fort.node.pid, node.pid):
            entered = await asyncio.to_thread(
                run, *user, "nsenter", f"--net=/proc/{pid}/ns/net", "echo", "in", check=False
            )
            assert entered == ""
        await line.answered()
        line.writer.close()
    assert fort.admitted == ["gpu-2"]


async def test_a_neighbour_with_a_route_and_a_workers_address_finds_no_control_port(fort: Fort) -> None:
    one = await fort.join(2)
    lab = fort.star.lab
    lab.namespace("lan")
    lab.plug("lan", "hub", "fd00:aa::77/64")
    lab.route("lan", f"{one.answer.prefix}", fort.star.hub.under)
    async with one.node() as node:
        line = await one.dial(node)
        await line.answered()
        hub, theirs = str(one.hub), str(one.answer.address)
        ways = [(hub, CONTROL, ""), (hub, CONTROL, theirs), (fort.star.hub.under, CONTROL, "")]
        assert "connected" not in await fort.tried("lan", ways)
        lab.address("lan", "eth0", f"{theirs}/128")
        lab.route("hub", f"{theirs}/128", "fd00:aa::77")  # even where the harness's machine would answer it
        assert "connected" not in await fort.tried("lan", ways)
        await line.answered()
        line.writer.close()
    assert fort.admitted == ["gpu-2"]


# Workers among each other


async def test_a_worker_reaches_no_worker_no_service_of_the_harness_and_nothing_behind_it(fort: Fort) -> None:
    one, two = await fort.join(2), await fort.join(3)
    lab = fort.star.lab
    lab.sh("hub", "ip addr add fd00:cc::1/64 dev br0 nodad")
    async with serving(lab) as port:
        assert await fort.tried(one.place, [(fort.star.hub.under, port, "")]) == ["connected"]  # by the LAN
        everything = one.wanted(behind=[IPv6Network("fc00::/7")])
        async with one.node(everything) as node, two.node() as other, echoing(other) as theirs:
            for member, far in ((one, node), (two, other)):
                line = await member.dial(far)
                await line.answered()
                line.writer.close()
            with pytest.raises(ConnectionRefusedError):
                await node.dial(one.hub, port)
            closed = [
                (two.answer.address, theirs.port),
                (IPv6Address(fort.star.hub.under), port),
                (IPv6Address("fd00:cc::1"), port),
                (IPv6Address(under(3)), port),
            ]
            for host, at in closed:
                with pytest.raises(OSError, match=r"no answer|unreachable|No route"):
                    await node.dial(host, at, 1.0)
            assert theirs.came == []
    assert sorted(fort.admitted) == ["gpu-2", "gpu-3"]


SERVE = """
import socket
server = socket.create_server(("::", 0), family=socket.AF_INET6)
print(server.getsockname()[1])
while True:
    server.accept()[0].close()
"""


@asynccontextmanager
async def serving(lab: Lab) -> AsyncIterator[int]:
    """A service of the harness's machine that is open to everybody; its port."""
    server = lab.start("hub", [sys.executable, "-IS", "-uc", SERVE])
    try:
        assert server.stdout is not None
        yield int(await asyncio.to_thread(server.stdout.readline))
    finally:
        server.kill()
        server.communicate()


# A stolen token


async def test_a_stolen_token_is_worth_nothing_once_its_owner_has_joined(fort: Fort) -> None:
    text = (await fort.mesh.issue()).text
    await fort.join(2, text)
    assert "this token joins no more machines" in await fort.refused(3, text)
    assert fort.names() == ["gpu-2"]


async def test_a_thief_that_is_faster_is_a_node_of_its_own_and_its_owner_hears_of_it(fort: Fort) -> None:
    victim = await fort.join(2)
    text = (await fort.mesh.issue()).text
    thief = await fort.join(6, text)
    assert "this token joins no more machines" in await fort.refused(3, text)
    assert thief.answer.address != victim.answer.address
    async with victim.node() as node, thief.node() as false:
        lines = [await victim.dial(node), await thief.dial(false)]
        for line in lines:
            await line.answered()
        assert sorted(fort.admitted) == ["gpu-2", "gpu-6"]
        assert await fort.mesh.remove("gpu-6")
        assert await lines[1].rest() == b""
        await lines[0].answered()
        lines[0].writer.close()


async def test_a_token_that_was_revoked_joins_nothing_and_guessing_others_is_slowed(fort: Fort) -> None:
    issued = await fort.mesh.issue()
    assert await fort.mesh.revoke(issued.grant.id)
    assert "this token joins no more machines" in await fort.refused(2, issued.text)
    good = token.decode((await fort.mesh.issue()).text)
    reasons = []
    for guess in range(31):
        wrong = msgspec.structs.replace(good, secret=guess.to_bytes(token.SECRET, "big"))
        reasons.append(await fort.refused(2, token.encode(wrong)))
    assert "too many requests from this address were refused" in reasons[-1]
    assert fort.names() == []


# A replayed join


async def test_a_join_that_is_replayed_is_refused_whoever_sends_it_and_tells_nothing(fort: Fort) -> None:
    text = (await fort.mesh.issue(uses=5)).text
    joining = Joining(token.decode(text), Facts("gpu-2", "linux", "x86_64", "1"), worker_keys(2))
    async with aiohttp.ClientSession() as session:
        got = joining.next()
        assert isinstance(got, Get)
        async with session.get(f"{fort.url}{got.path}") as answer:
            joining.feed(answer.status, await answer.read())
        post = joining.next()
        assert isinstance(post, Post)
        async with session.post(f"{fort.url}{JOIN_PATH}", data=post.body) as answer:
            assert answer.status == 200
            recorded = await answer.read()
        for _ in range(3):
            async with session.post(f"{fort.url}{JOIN_PATH}", data=post.body) as answer:
                assert (answer.status, await answer.read()) == (
                    409,
                    b"this request was answered before; join anew",
                )
    again = Joining(token.decode(text), Facts("gpu-2", "linux", "x86_64", "1"), worker_keys(2))
    async with aiohttp.ClientSession() as session, session.get(f"{fort.url}{got.path}") as answer:
        again.feed(answer.status, await answer.read())
    again.feed(200, recorded)  # the harness's answer to another question
    failed = again.next()
    assert isinstance(failed, Failed)
    joining.feed(200, recorded)
    assert isinstance(joining.next(), Joined)
    assert fort.names() == ["gpu-2"]
    assert [grant.uses for grant in await fort.mesh.grants() if grant.id == 2] == [4]


# A removed worker


async def test_a_removed_worker_that_keeps_its_keys_is_out_at_once_and_stays_out(fort: Fort) -> None:
    one, two = await fort.join(2), await fort.join(3)
    async with one.node() as node, two.node() as other:
        line, more = await one.dial(node), await two.dial(other)
        await line.answered()
        await more.answered()
        assert await fort.mesh.remove("gpu-2")
        assert await line.rest() == b""
        assert one.pair.public not in (await fort.node.state()).peers
        with pytest.raises(TimeoutError):
            await one.dial(node, 1.5)
        await more.answered()
        assert "its key is refused" in await fort.refused(2)
        more.writer.close()
    async with one.node() as node:  # a new interface, with all that it has kept
        with pytest.raises(TimeoutError):
            await one.dial(node, 1.5)
        assert not (await node.state()).peers[one.answer.hub].handshake
    assert fort.admitted == ["gpu-2", "gpu-3"]
    assert fort.names() == ["gpu-3"]


async def test_who_joins_after_a_removed_worker_never_has_its_address(fort: Fort) -> None:
    one = await fort.join(2)
    assert await fort.mesh.remove("gpu-2")
    two = await fort.join(3)
    assert two.answer.address != one.answer.address
    posing = two.wanted(one.answer.address)
    async with two.node(posing) as node:
        with pytest.raises(TimeoutError):
            await two.dial(node, 1.5)
    assert fort.admitted == []


# An agent's command on a worker


async def test_an_agents_command_on_a_worker_has_no_way_into_the_mesh(fort: Fort, tmp_path: Path) -> None:
    one, two = await fort.join(2), await fort.join(3)
    async with (
        one.node() as node,
        two.node() as other,
        echoing(other) as theirs,
        serving(fort.star.lab) as port,
    ):
        line = await one.dial(node)
        await line.answered()
        user = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --bounding-set=-all"
        code = "\n".join(
            [
                "exec 2>&1",
                "for at in " + f"{one.hub}/{CONTROL} {two.answer.address}/{theirs.port}; do",
                '  timeout 2 bash -c "exec 9<>/dev/tcp/$at" && echo in: $at; done',
                f"timeout {10 * SLOW} bash -c 'exec 9<>/dev/tcp/{fort.star.hub.under}/{port}' && echo by the LAN",
                "echo links: $(ip -o link)",
                "echo routes: $(ip -6 route show table all)",
                "for fd in /proc/self/fd/*; do echo fd: $(readlink $fd); done",
                f"{user} nsenter --net=/proc/{node.pid}/ns/net echo in: namespace",
                f"{user} ls /proc/{node.pid}/root/var/run/wireguard && echo in: wireguard",
            ]
        )
        scratch = tmp_path / "s"
        command = [*fort.star.lab.launcher(one.place), sys.executable, "-c", AGENT, str(ROOT), str(scratch)]
        said = await asyncio.to_thread(run, *command, code, seconds=100)
        assert "by the LAN" in said
        assert "in:" not in said
        assert node.name not in said
        assert str(one.answer.prefix.network_address).rstrip(":") not in said.partition("links:")[2]
        assert "socket:" not in said
        await line.answered()
        line.writer.close()
        assert theirs.came == []
    assert fort.admitted == ["gpu-2"]


# A keeper, as a worker has one, where this runs; carries out a command for a session, and prints its output.
AGENT = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from daemon.pool import Pool
from daemon.worker import launch

async def main():
    scratch = Path(sys.argv[2])
    path = await launch.ensure(scratch, "1")
    try:
        reader, writer = await asyncio.open_unix_connection(str(path))
        changed = asyncio.Event()
        pool = Pool(release="1", on_change=changed.set)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(pool.serve("w", reader, writer))
            while pool.hello("w") is None:
                changed.clear()
                await changed.wait()
            print((await pool.run("w", "s", "c", sys.argv[3], interpreter="bash")).text)
            serving.cancel()
    finally:
        await launch.end(scratch)

asyncio.run(main())
"""
