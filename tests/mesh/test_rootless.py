"""A worker of an ordinary user: user namespace, wireguard-go, and pasta or slirp4netns for the way out."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.plan import Endpoint
from tests.mesh.lab import Lab, gone, needs, readable_tree, run
from tests.mesh.star import BACKEND, PORT, Star, echoing, mesh

ROOT = Path(__file__).parents[2]
USER = "61977"  # nobody's; it has no entry anywhere, as in a container

WORKER = """
import asyncio, json, os, sys
root, text = sys.argv[1:]
sys.path.insert(0, root)
from ipaddress import IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path
import structlog
from mesh.node import MeshError, Node
from mesh.plan import Endpoint, Peer, Wanted

def say(**what):
    print(json.dumps(what), flush=True)

async def main(told):
    hub = bytes.fromhex(told["hub"])
    peer = Peer(key=hub, allowed=(IPv6Network(told["to"]),), preshared=bytes.fromhex(told["preshared"]),
                endpoint=Endpoint(told["endpoint"], told["udp"]), keepalive=25)
    wanted = Wanted(private=bytes.fromhex(told["private"]), address=IPv6Interface(told["address"]), peers={hub: peer})
    try:
        async with Node(wanted, folder=Path(told["folder"])) as node:
            say(said=node.said, pid=node.pid)
            for line in iter(sys.stdin.readline, ""):
                sock = await node.dial(IPv6Address(told["to"]), told["port"])
                reader, writer = await asyncio.open_connection(sock=sock)
                writer.write(line.encode())
                endpoint = (await node.state()).peers[hub].endpoint.host
                say(echo=(await reader.readline()).decode(), endpoint=endpoint, pid=node.pid, starts=node.starts)
                writer.close()
    except MeshError as error:
        say(error=str(error))

told = json.loads(text)
os.environ["PATH"] = told["path"]
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
asyncio.run(main(told))
"""

HUB = """
import asyncio, json, os, sys
root, text = sys.argv[1:]
sys.path.insert(0, root)
from ipaddress import IPv6Interface, IPv6Network
from pathlib import Path
import structlog
from mesh.node import Node
from mesh.plan import Peer, Wanted

def say(**what):
    print(json.dumps(what), flush=True)

async def main(told):
    key = bytes.fromhex(told["worker"])
    peer = Peer(key=key, allowed=(IPv6Network(told["from"]),), preshared=bytes.fromhex(told["preshared"]))
    wanted = Wanted(private=bytes.fromhex(told["private"]), address=IPv6Interface(told["address"]), port=told["udp"],
                    peers={key: peer})
    moves = asyncio.Queue()
    async with Node(wanted, folder=Path(told["folder"]), listens=True) as node:
        sock = await node.listen(0, moves.put_nowait)
        while True:
            say(said=node.said, port=sock.getsockname()[1], pid=node.pid)
            connection, address = await asyncio.get_running_loop().sock_accept(sock)
            connection.close()
            await node.state()
            say(echo=address[0])
            sock.close()
            sock = await moves.get()

told = json.loads(text)
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
asyncio.run(main(told))
"""

# Its own /dev/net/tun, since tests do not change the machine's, then the user.
BECOME = f"""
mkdir -p /run/lab-tun; mount -t tmpfs tmpfs /run/lab-tun; mknod -m 666 /run/lab-tun/tun c 10 200
mount --bind /run/lab-tun/tun /dev/net/tun
exec setpriv --reuid {USER} --regid {USER} --clear-groups --inh-caps=-all --bounding-set=-all "$@"
"""


class Far:
    """The ordinary user's process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    async def said(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        assert line, "the worker's process ended"
        said = json.loads(line)
        assert isinstance(said, dict)
        return said

    async def echoes(self, text: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        said = await self.said()
        assert said["echo"] == f"{text}\n"
        return said


@pytest.fixture
def python() -> Iterator[str]:
    """A Python with our libraries that every user may run."""
    needs("ip", "setpriv", "wireguard-go", "pasta", "slirp4netns")
    if BACKEND != "wireguard-go":
        pytest.skip("runs on the host")
    user = ["setpriv", "--reuid", USER, "--clear-groups"]
    done = subprocess.run([*user, "unshare", "-Urn", "true"], capture_output=True)
    if done.returncode:
        pytest.skip(f"no user namespaces here: {done.stderr.decode().strip()}")
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    with readable_tree() as folder:
        python = f"/usr/bin/python3.{sys.version_info.minor}"
        if not os.path.exists(python):
            pytest.skip(f"{python} is missing, and {sys.executable} may be root's alone")
        run(python, "-m", "venv", "--without-pip", str(folder / "venv"))
        (found,) = folder.glob("venv/lib/python3*/site-packages")
        (found / "ours.pth").write_text("\n".join(libraries))
        yield str(folder / "venv/bin/python")


@pytest.fixture
def star(tmp_path: Path) -> Iterator[Star]:
    with Lab() as lab:
        star = Star(lab, tmp_path)
        lab.address("hub", "br0", "192.0.2.1/24")
        yield star


@contextlib.contextmanager
def far(star: Star, python: str, port: int, endpoint: str, place: str = "w", path: str = "") -> Iterator[Far]:
    """A worker of an ordinary user in the namespace `place`."""
    worker = star.workers["w"]
    told = {
        "hub": star.hub.public.hex(),
        "private": worker.private.hex(),
        "preshared": worker.preshared.hex(),
        "address": f"{mesh(worker.number)}/48",
        "to": str(mesh(1)),
        "endpoint": endpoint,
        "udp": PORT,
        "port": port,
        "path": path or os.environ["PATH"],
    }
    with running(star, python, WORKER, told, place) as process:
        yield process


@contextlib.contextmanager
def running(star: Star, python: str, script: str, told: dict[str, Any], place: str) -> Iterator[Far]:
    """An ordinary user's process in the namespace `place`."""
    folder = Path(python).parents[2] / "mesh"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    told["folder"] = str(folder)
    command = ["sh", "-ec", BECOME, "sh", python, "-c", script, str(ROOT), json.dumps(told)]
    process = subprocess.Popen(
        [*star.lab.launcher(place), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Far(process)
        finally:
            process.kill()
            assert not left(str(folder))


def left(folder: str) -> list[str]:
    """Command lines that name a folder, of processes that do not end soon."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if folder in line and not gone(int(entry.name)):
                found.append(line)
    return found


def plug(star: Star) -> None:
    star.worker("w")
    star.lab.address("w", "eth0", "192.0.2.2/24")
    star.lab.route("w", "default", "192.0.2.1")
    star.lab.route("w", "::/0", star.hub.under)


@pytest.mark.parametrize("way", ["pasta", "slirp4netns"])
@pytest.mark.parametrize("endpoint", ["192.0.2.1", "fd00:aa::1"])
async def test_an_ordinary_user_joins_by_a_way_out(star: Star, python: str, way: str, endpoint: str) -> None:
    plug(star)
    path = only(Path(python).parents[2], way)
    async with star.hub_node() as hub, echoing(hub) as echo:
        with far(star, python, echo.port, endpoint, path=path) as worker:
            said = (await worker.said())["said"]
            assert said.startswith(
                f"wireguard-go in a user namespace, its way out {way}, since this process may not"
            )
            await worker.echoes("hello")
        assert echo.came == [str(mesh(2))]


def only(folder: Path, way: str) -> str:
    """A PATH on which of the ways out there is this one alone."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("wireguard-go", "ip", way):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    return str(programs)


@pytest.mark.parametrize("endpoint", ["127.0.0.1", "::1"])
async def test_an_ordinary_user_reaches_a_hub_on_the_same_machine(
    star: Star, python: str, endpoint: str
) -> None:
    plug(star)
    star.lab.route("hub", "default", "192.0.2.2")
    star.lab.route("hub", "::/0", star.workers["w"].under)
    async with star.hub_node() as hub, echoing(hub) as echo:
        with far(star, python, echo.port, endpoint, place="hub") as worker:
            await worker.said()
            assert (await worker.echoes("hello"))["endpoint"] == endpoint


async def test_what_is_killed_of_an_ordinary_users_mesh_is_replaced(star: Star, python: str) -> None:
    plug(star)
    async with star.hub_node() as hub, echoing(hub) as echo:
        with far(star, python, echo.port, "192.0.2.1") as worker:
            await worker.said()
            assert (await worker.echoes("one"))["starts"] == 1
            for starts in (2, 3, 4):
                (helper,) = children(worker.process.pid)
                (inner,) = children(helper)
                (engine,) = children(inner)
                os.kill((helper, inner, engine)[starts - 2], signal.SIGKILL)
                assert all(map(gone, (helper, inner, engine)))
                assert (await worker.echoes("two"))["starts"] == starts


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_an_ordinary_users_mesh_says_what_is_missing(star: Star, python: str) -> None:
    plug(star)
    with far(star, python, 1, "192.0.2.1", path="/nonexistent") as worker:
        assert "install the package passt or slirp4netns" in (await worker.said())["error"]


async def test_an_ordinary_users_hub_is_reached_and_moves_its_listener_when_its_helper_dies(
    star: Star, python: str
) -> None:
    plug(star)
    star.lab.route("hub", "default", "192.0.2.2")
    worker = star.workers["w"]
    told = {
        "worker": worker.public.hex(),
        "private": star.hub.private.hex(),
        "preshared": worker.preshared.hex(),
        "address": f"{mesh(1)}/48",
        "from": str(mesh(worker.number)),
        "udp": PORT,
    }
    with running(star, python, HUB, told, "hub") as hub:
        up = await hub.said()
        assert "its way out pasta" in up["said"]
        async with star.worker_node(worker) as far:
            await far.point(star.hub.public, Endpoint("192.0.2.1", PORT))
            (await far.dial(mesh(1), up["port"])).close()
            assert (await hub.said())["echo"] == str(mesh(worker.number))
            (helper,) = children(hub.process.pid)
            os.kill(helper, signal.SIGKILL)
            again = await hub.said()
            assert again["port"] == up["port"]
            (await far.dial(mesh(1), up["port"], 30.0)).close()
            assert (await hub.said())["echo"] == str(mesh(worker.number))
