"""The daemon's mesh with real tunnels, between network namespaces."""

import asyncio
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.claim import interface_name
from mesh.node import MeshError
from tests.e2e.meshing import Housed, Machine
from tests.mesh.lab import Lab, gone
from tests.mesh.star import BACKEND, programs

HUB = "fd00:aa::1"
away = asyncio.to_thread
ENDPOINT = f"[{HUB}]:51820"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    programs()
    with Lab() as lab:
        lab.namespace("hub")
        lab.bridge("hub", f"{HUB}/64")
        for number, name in enumerate(("gpu-1", "gpu-2"), 2):
            lab.namespace(name)
            lab.plug(name, "hub", f"fd00:aa::{number}/64")
        yield lab


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="or-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def house(lab: Lab, folder: Path) -> Iterator[Housed]:
    """One for all of these tests: starting it takes longer than most of them."""
    (folder / "hub").mkdir()
    here = Housed(folder / "hub", lab, "hub", HUB)
    yield here
    here.outrider("down")


@pytest.fixture
def hub(house: Housed) -> Iterator[Housed]:
    """The daemon, which no machine is in the mesh of."""
    yield house
    house.forget()


@pytest.fixture
def own(folder: Path) -> Path:
    """For the machines of one test, with a short path."""
    return Path(tempfile.mkdtemp(dir=folder))


def joined(lab: Lab, hub: Housed, own: Path, name: str = "gpu-1") -> Machine:
    """A machine that has joined."""
    machine = Machine(lab, name, own)
    assert machine.join(hub.json("token", "new")["token"], ENDPOINT) == ""
    return machine


def engines(here: Housed) -> list[int]:
    """The processes of a daemon's mesh: each has the name of its interface, or its folder, in its arguments."""
    marks = (interface_name(here.data / "mesh").encode(), os.fsencode(here.data / "mesh"))
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if any(mark in line for mark in marks):
            found.append(int(folder.name))
    return found


async def test_a_machine_that_joined_dials_in_and_is_known_by_its_address(
    lab: Lab, hub: Housed, own: Path
) -> None:
    await away(hub.up)
    assert "not in use" in (await away(hub.mesh))["what"]
    machine = await away(joined, lab, hub, own)
    assert re.match(
        rf"harness hub: up, .*{BACKEND.removesuffix('-go')}", (await away(hub.mesh))["what"], re.IGNORECASE
    )
    found = await away(hub.worker, "gpu-1")
    assert found is not None
    assert (found["state"], found["hostname"]) == ("gone", "gpu-1")
    async with machine.node() as node:
        line = await machine.dial(node)
        await line.answered()
        found = await away(hub.worker, "gpu-1")
        assert found is not None
        assert (found["state"], found["scratch"]) == ("connected", "/s")
        assert found["mesh"]["address"] == str(machine.answer.address)
        line.writer.close()


async def test_a_removed_worker_is_cut_off_and_its_keys_open_nothing_any_more(
    lab: Lab, hub: Housed, own: Path
) -> None:
    await away(hub.up)
    machine, other = await away(joined, lab, hub, own), await away(joined, lab, hub, own, "gpu-2")
    async with machine.node() as node, other.node() as far:
        line, stays = await machine.dial(node), await other.dial(far)
        await line.answered()
        await away(hub.ok, "worker", "remove", "gpu-1", "-y")
        await line.ended()
        assert await away(hub.worker, "gpu-1") is None
        with pytest.raises((MeshError, OSError)):
            await machine.dial(node, seconds=2.0)
        assert "its key is refused" in await away(
            machine.join, (await away(hub.json, "token", "new"))["token"], ENDPOINT
        )
        await stays.answered()
        stays.writer.close()


@pytest.mark.campaign  # WireGuard notices that a session is gone when nothing was answered for 15 s
async def test_after_a_kill_the_daemon_has_the_same_mesh_and_workers_dial_again(
    lab: Lab, hub: Housed, own: Path
) -> None:
    pid = await away(hub.up)
    machine = await away(joined, lab, hub, own)
    async with machine.node() as node:
        line = await machine.dial(node)
        await line.answered()
        before = await away(engines, hub)
        await away(hub.kill, pid)
        line.writer.close()
        assert await away(lambda: all(gone(engine) for engine in before))
        await away(hub.up)
        again = await machine.dial(node, seconds=30.0)
        await again.answered()
        found = await away(hub.worker, "gpu-1")
        assert found is not None
        assert (found["state"], found["mesh"]["address"]) == ("connected", str(machine.answer.address))
        again.writer.close()


def test_a_daemon_that_ends_takes_its_mesh_down(lab: Lab, hub: Housed, own: Path) -> None:
    pid = hub.up()
    joined(lab, hub, own)
    before = engines(hub)
    assert before
    os.kill(pid, signal.SIGTERM)
    assert gone(pid)
    assert all(gone(engine) for engine in before)
    assert lab.sh("hub", "ss -Hlnu 'sport = 51820'") == ""


@pytest.mark.campaign  # five starts of a daemon
def test_two_daemons_of_one_machine_each_have_a_mesh_when_their_ports_differ(
    lab: Lab, hub: Housed, own: Path
) -> None:
    hub.up()
    hub.json("token", "new")
    (own / "two").mkdir()
    two = Housed(own / "two", lab, "hub", HUB)
    file = own / "two/.config/outrider/outrider.toml"
    text = file.read_text()
    try:
        two.up()
        refused = two.outrider("token", "new")
        assert refused.returncode == 3
        assert "UDP port 51820 is another program's" in refused.stderr
        assert two.json("workers")[0]["name"] == "local"
        for more, words in (
            ("port = 51900\n", "mesh.join_listen: cannot listen on [::]:4601"),
            ('port = 51900\njoin_listen = "[::]:4700"\n', ""),
        ):
            two.ok("down")
            file.write_text(text + more)
            two.up()
            made = two.outrider("token", "new")
            assert words in made.stderr
            assert made.returncode == (3 if words else 0)
        assert hub.mesh()["state"] == two.mesh()["state"] == "ok"
    finally:
        two.outrider("down")


async def test_nobody_but_a_worker_reaches_the_control_port(lab: Lab, hub: Housed, own: Path) -> None:
    await away(hub.up)
    machine = await away(joined, lab, hub, own)
    harness, port = str(machine.harness), machine.answer.control
    await away(lab.sh, "gpu-2", f"ip -6 route add {machine.answer.prefix} via {HUB}")
    await away(lab.forward, "hub")
    for where in ("hub", "gpu-2"):  # a process of the same host, and a neighbour that sends there
        said = await away(
            lab.sh,
            where,
            f"python3 -c \"import socket; socket.create_connection(('{harness}', {port}), 2)\" 2>&1 || true",
        )
        assert "Error" in said, said
    async with machine.node() as node:
        with pytest.raises((MeshError, OSError)):
            await node.dial(machine.harness, 4601, 2.0)  # nor does a worker get at what else the machine has
        line = await machine.dial(node)
        await line.answered()
        line.writer.close()
