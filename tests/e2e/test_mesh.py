"""Machines join a harness by the command line, run agents' code, and come back from whatever happens to them."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.members import DOES, Joiner, connected, does, goes, joiner
from tests.e2e.meshing import Housed
from tests.mesh.lab import Lab
from tests.mesh.star import SLOW, programs

HUB = "fd00:aa::1"
away = asyncio.to_thread


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    programs()
    with Lab() as lab:
        lab.namespace("hub")
        lab.bridge("hub", f"{HUB}/64")
        lab.namespace("gpu-1")
        lab.plug("gpu-1", "hub", "fd00:aa::2/64")
        yield lab


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="or-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def hub(lab: Lab, folder: Path) -> Iterator[Housed]:
    """One for all of these tests: starting it takes longer than most of them."""
    (folder / "hub").mkdir()
    here = Housed(folder / "hub", lab, "hub", HUB)
    here.script("does", DOES)
    here.up()
    yield here
    here.outrider("down")


@pytest.fixture
def own(folder: Path) -> Path:
    """A machine's folder, with a short path, for its sockets."""
    return Path(tempfile.mkdtemp(dir=folder))


@pytest.fixture
def gpu(lab: Lab, hub: Housed, own: Path) -> Iterator[Joiner]:
    """A machine that has joined nothing; whatever it is by then, it is out of the mesh after the test."""
    if not hub.socket.exists():
        hub.up()  # the test before had it down
    with joiner(lab, "gpu-1", own) as made:
        yield made
    hub.forget()


def token(hub: Housed, *more: str) -> str:
    made: str = hub.json("token", "new", *more)["token"]
    return made


async def test_a_machine_joins_runs_code_and_is_removed(hub: Housed, gpu: Joiner) -> None:
    text = await away(token, hub)
    await away(gpu.start, text)
    known = await connected(hub, "gpu-1")
    assert (await away(does, hub, "gpu-1", "echo $((6 * 7))")).strip() == "42"

    await goes(gpu, f"direct [{HUB}]:51820")
    said = await away(gpu.status)
    assert (said["name"], said["state"], said["mesh"]["address"]) == (
        *("gpu-1", "connected"),
        known["mesh"]["address"],
    )
    assert said["mesh"]["handshake"]
    assert min(said["mesh"]["rx"], said["mesh"]["tx"]) > 0
    shown = await away(gpu.verb, "status")
    assert shown.returncode == 0
    assert f"hub, {known['mesh']['address']} here" in shown.stdout

    # What agents run gets at neither the mesh nor what leads there.
    prefix, _, _ = known["mesh"]["address"].rpartition(":")
    tries = f"socket.create_connection(('{prefix}:1', 4602), 2)"
    assert "Error" in await away(does, hub, "gpu-1", f'python3 -c "import socket; {tries}" 2>&1')
    held = await away(
        does, hub, "gpu-1", "python3 -c \"import os; print(*sorted(os.listdir('/proc/self/fd')))\""
    )
    assert set(held.split()) <= {"0", "1", "2", "3"}, "descriptors of the mesh are with what agents run"

    other = await away(gpu.verb, "--join", text, "--scratch", str(gpu.home / "other"), *gpu.as_root)
    assert (other.returncode, "this token joins no more machines" in other.stderr) == (3, True)

    assert gpu.process is not None
    assert (await away(hub.outrider, "worker", "remove", "gpu-1", "-y")).returncode == 0
    assert await away(hub.worker, "gpu-1") is None, "it is out when the verb has ended"
    assert await away(gpu.process.wait, 30) == 3
    assert "hub has removed this machine from its mesh" in gpu.log()
    stands = await away(gpu.status)
    assert (stands["state"], stands["link"], stands["keeper"]) == ("down", 0, 0)
    assert stands["mesh"]["removed"]
    assert (await away(gpu.verb, *gpu.as_root)).returncode == 3, "it stays out"


@pytest.mark.campaign
@pytest.mark.timeout(300 * SLOW)
async def test_name_and_address_stay_over_restarts_of_either_side_and_a_move(
    lab: Lab, hub: Housed, gpu: Joiner
) -> None:
    await away(gpu.start, await away(token, hub))
    before = (await connected(hub, "gpu-1"))["mesh"]["address"]

    async def same() -> None:
        assert (await connected(hub, "gpu-1"))["mesh"]["address"] == before
        assert (await away(does, hub, "gpu-1", "echo here")).strip() == "here"

    assert await away(gpu.stop) == 0
    await away(gpu.start)  # no token: by what is kept
    await same()
    await away(gpu.kill)
    await away(gpu.start)
    await same()
    await away(hub.ok, "down")
    await away(hub.up)
    await same()
    await away(lab.move, "gpu-1", "eth0", "fd00:aa::2/64", "fd00:aa::77/64")
    await same()


@pytest.mark.campaign
@pytest.mark.timeout(300 * SLOW)
async def test_a_harness_that_is_reached_elsewhere_by_now_is_found_again(hub: Housed, gpu: Joiner) -> None:
    await away(gpu.start, await away(token, hub))
    before = (await connected(hub, "gpu-1"))["mesh"]["address"]
    await away(hub.ok, "down")
    file = hub.home / ".config/outrider/outrider.toml"
    text = file.read_text()
    file.write_text(f"{text}port = 51900\n")
    await away(hub.up)
    file.write_text(text)  # for the next start
    assert (await connected(hub, "gpu-1"))["mesh"]["address"] == before
    await goes(gpu, f"direct [{HUB}]:51900")
    assert "the harness says other things by now" in gpu.log()
    await away(hub.ok, "down")


async def test_a_known_machine_that_joins_again_is_left_as_it_is_and_spends_no_token(
    hub: Housed, gpu: Joiner
) -> None:
    await away(gpu.start, await away(token, hub))
    address = (await connected(hub, "gpu-1"))["mesh"]["address"]
    fresh = await away(token, hub)
    running = await away(gpu.verb, "--join", "-", "--name", "gpu-1", *gpu.as_root, input=fresh)
    assert (running.returncode, "is the worker of" in running.stderr) == (1, True)
    await away(gpu.stop)
    await away(gpu.start, fresh)
    assert (await connected(hub, "gpu-1"))["mesh"]["address"] == address
    assert "in the mesh of hub already, as gpu-1" in gpu.log()
    assert [made["uses"] for made in await away(hub.json, "token")][-2:] == [0, 1]


async def test_one_that_leaves_is_forgotten_and_joins_as_a_new_one(hub: Housed, gpu: Joiner) -> None:
    await away(gpu.start, await away(token, hub))
    first = await connected(hub, "gpu-1")
    left = await away(gpu.verb, "leave")
    assert (left.returncode, left.stdout) == (0, "gpu-1 has left the mesh of hub\n")
    assert await away(hub.worker, "gpu-1") is None
    scratch = gpu.home / ".local/state/outrider/workers/gpu-1"
    assert not list((scratch / "mesh").glob("*.key"))
    assert (scratch / "runs").is_dir(), "journals stay"
    none = await away(gpu.verb, "status")
    assert (none.returncode, "what is left of others: gpu-1" in none.stderr) == (1, True)
    again = await away(gpu.verb, "leave")
    assert (again.returncode, "is in no mesh" in again.stderr) == (2, True)
    await away(gpu.start, await away(token, hub))
    second = await connected(hub, "gpu-1")
    assert second["mesh"]["address"] != first["mesh"]["address"]
    await away(hub.ok, "down")
    refused = await away(gpu.verb, "leave")
    assert (refused.returncode, "--force leaves without it" in refused.stderr) == (4, True)
    assert (await away(gpu.verb, "leave", "--force", "--purge")).returncode == 0
    assert not scratch.exists()
