"""What goes wrong with machines of a mesh, as their operators meet it: clocks, tokens, killed processes, no relay."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.claim import interface_name
from tests.e2e.members import DOES, Joiner, connected, does, goes, joiner, until
from tests.e2e.meshing import Housed
from tests.mesh.lab import Lab, gone
from tests.mesh.star import BACKEND, programs

HUB = "fd00:aa::1"
away = asyncio.to_thread
# `outrider` on a machine whose clock is so many seconds ahead.
AHEAD = """
import runpy, sys, time
right = time.time
time.time = lambda: right() + {seconds}
sys.argv[0] = "outrider"
runpy.run_module("daemon.cli", run_name="__main__", alter_sys=True)
"""


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


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3 * 86400 + 60, "3 days ahead of the harness's"),
        pytest.param(-3600, "60 minutes behind the harness's", marks=pytest.mark.campaign),
    ],
)
def test_a_machine_whose_clock_is_wrong_is_told_by_how_much_and_spends_no_token(
    lab: Lab, own: Path, hub: Housed, seconds: int, words: str
) -> None:
    text = token(hub)
    wrong = (sys.executable, "-P", "-c", AHEAD.format(seconds=seconds))
    with joiner(lab, "gpu-1", own, wrong) as gpu:
        said = gpu.verb("--join", "-", *gpu.as_root, input=text)
        assert (said.returncode, words in said.stderr) == (3, True), said.stderr
        assert "set the clock that is wrong" in said.stderr
    *_, made = hub.json("token")
    assert (made["state"], made["uses"]) == ("good", 1)


def test_an_expired_and_a_revoked_token_are_refused_with_what_to_do(hub: Housed, gpu: Joiner) -> None:
    revoked = hub.json("token", "new")
    hub.ok("token", "revoke", str(revoked["id"]))
    expired = token(hub, "--expires", "1s")
    token(hub)  # the mesh is needed
    while hub.json("token")[-2]["state"] != "expired":
        continue
    for text in (revoked["token"], expired):
        said = gpu.verb("--join", "-", *gpu.as_root, input=text)
        assert said.returncode == 3
        assert "this token joins no more machines" in said.stderr
        assert "`outrider token new` on the harness makes another" in said.stderr
        assert "Traceback" not in said.stderr


def test_a_machine_without_wireguard_is_told_what_to_install_and_spends_no_token(
    hub: Housed, gpu: Joiner, own: Path
) -> None:
    text = token(hub)
    gpu.configure('[mesh]\nbackend = "wireguard-go"\n')
    (own / "bin").mkdir()
    for name in ("ip", "sh", "bash"):
        (own / "bin" / name).symlink_to(str(shutil.which(name)))
    for users in (gpu.as_root, ("--user=nobody",))[: 2 if BACKEND == "wireguard-go" else 1]:
        said = gpu.verb("--join", "-", *users, input=text, PATH=str(own / "bin"))
        assert (said.returncode, "install the package wireguard-go" in said.stderr) == (1, True), said.stderr
        assert "The token was not used" in said.stderr
        assert "Traceback" not in said.stderr
    *_, made = hub.json("token")
    assert (made["state"], made["uses"]) == ("good", 1)


@pytest.mark.parametrize("hears", [True, False])
async def test_a_machine_that_was_removed_may_try_one_token_after_another(
    hub: Housed, gpu: Joiner, hears: bool
) -> None:
    used = await away(token, hub)
    await away(gpu.start, used)
    await connected(hub, "gpu-1")
    assert gpu.process is not None
    if not hears:
        assert await away(gpu.stop) == 0
    await away(hub.ok, "worker", "remove", "gpu-1", "-y")
    if hears:
        assert await away(gpu.process.wait, 30) == 3
    for _ in range(2):
        said = await away(gpu.verb, "--join", "-", "--name", "gpu-1", *gpu.as_root, input=used)
        assert (said.returncode, "this token joins no more machines" in said.stderr) == (3, True), said.stderr
    await away(gpu.start, await away(token, hub))
    await connected(hub, "gpu-1")

    kept = gpu.home / ".local/state/outrider/workers/gpu-1/mesh/membership.json"
    assert await away(gpu.stop) == 0
    kept.unlink()  # as is said where it is damaged
    await away(gpu.start, await away(token, hub))
    await connected(hub, "gpu-1")


def processes(mark: str, program: str) -> list[int]:
    """Those with this in their arguments, whose program is called so."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            if os.path.basename(words[0]).startswith(program.encode()) and any(
                mark.encode() in each for each in words
            ):
                found.append(int(path.name))
    return found


def parts(mesh: Path) -> dict[str, list[int]]:
    """The helper and the wireguard-go of a folder's mesh."""
    helpers = processes(os.fspath(mesh), "python")
    engines = processes(interface_name(mesh), "wireguard-go")
    return {"helper": helpers, "wireguard-go": engines if BACKEND == "wireguard-go" else []}


@pytest.mark.parametrize(
    ("side", "part"),
    [
        ("harness", "helper"),
        ("worker", "wireguard-go"),
        pytest.param("harness", "wireguard-go", marks=pytest.mark.campaign),
        pytest.param("worker", "helper", marks=pytest.mark.campaign),
    ],
)
async def test_a_part_of_the_mesh_that_is_killed_is_replaced_and_all_goes_on(
    hub: Housed, gpu: Joiner, side: str, part: str
) -> None:
    if part == "wireguard-go" and part != BACKEND:
        pytest.skip("the kernel's WireGuard is no process")
    await away(gpu.start, await away(token, hub))
    before = (await connected(hub, "gpu-1"))["mesh"]["address"]
    scratch = gpu.home / ".local/state/outrider/workers/gpu-1"
    mesh = hub.data / "mesh" if side == "harness" else scratch / "mesh/node"
    (old,) = (await away(parts, mesh))[part]
    os.kill(old, signal.SIGKILL)
    assert await away(gone, old)
    # A call that comes meanwhile is done.
    assert (await away(does, hub, "gpu-1", "echo still")).strip() == "still"
    found = await connected(hub, "gpu-1")
    assert found["mesh"]["address"] == before
    (new,) = (await away(parts, mesh))[part]
    assert new != old
    assert (await away(hub.mesh))["state"] == "ok"
    assert (await away(gpu.verb, "status")).returncode == 0
    log = gpu.log() if side == "worker" else (hub.data / "daemon.log").read_text()
    assert "the mesh is down and is brought up again" in log


@pytest.mark.campaign  # the worker's ways are all tried before it asks
async def test_a_worker_hears_that_the_registry_is_lost_and_joins_anew(hub: Housed, gpu: Joiner) -> None:
    await away(gpu.start, await away(token, hub))
    await connected(hub, "gpu-1")
    await away(hub.ok, "down")
    (hub.data / "mesh.db").unlink()
    await away(hub.up)
    fresh = await away(token, hub)
    await until(lambda: "it does not know this machine" in gpu.stands().reason, "it has heard of it")
    assert await away(gpu.stop) == 0
    await away(gpu.start, fresh)
    await connected(hub, "gpu-1")


@pytest.mark.skipif("KERNEL_VM" not in os.environ, reason="sets the clock: runs inside of kernel-vm.sh")
async def test_a_worker_whose_clock_was_ahead_is_back_once_it_is_right(hub: Housed, gpu: Joiner) -> None:
    """WireGuard takes no handshake that is older than one that it has seen."""
    right = time.time()
    time.clock_settime(time.CLOCK_REALTIME, right + 3 * 86400)
    await away(gpu.start, await away(token, hub))
    await connected(hub, "gpu-1")
    assert await away(gpu.stop) == 0
    time.clock_settime(time.CLOCK_REALTIME, time.time() - 3 * 86400)
    await until(lambda: (hub.worker("gpu-1") or {})["state"] == "gone", "it has gone")
    await away(gpu.start)
    await connected(hub, "gpu-1")


@pytest.mark.campaign  # a direct way that is lost is missed after the better part of a minute
@contextlib.contextmanager
def small(lab: Lab) -> Iterator[None]:
    """Have the machine's network drop large packets of UDP, and say nothing, while the context is open."""
    hooks = ("input", "output")
    for hook in hooks:
        head = f"type filter hook {hook} priority 0"
        lab.rules("gpu-1", f"small-{hook}", f"{head}; meta l4proto udp meta length > 1400 drop")
    try:
        yield
    finally:
        for hook in hooks:
            lab.sh("gpu-1", f"nft delete table inet small-{hook}")


@pytest.mark.parametrize("shrinks", [True, False])
async def test_much_passes_both_ways_where_the_network_takes_no_full_packets(
    lab: Lab, hub: Housed, gpu: Joiner, shrinks: bool
) -> None:
    much = f": {'x' * 100_000}; head -c 30000 /dev/zero | tr '\\0' y"
    with contextlib.ExitStack() as stack:
        if not shrinks:
            stack.enter_context(small(lab))
        await away(gpu.start, await away(token, hub))
        await connected(hub, "gpu-1")
        if shrinks:
            assert len(await away(does, hub, "gpu-1", much)) > 10_000
            stack.enter_context(small(lab))
        assert len(await away(does, hub, "gpu-1", much)) > 10_000
        if not shrinks:
            await until(lambda: (mesh := gpu.stands().mesh) and mesh.mtu == 1280, "the MTU is lowered")
            assert await away(lambda: len(does(hub, "gpu-1", much))) > 10_000


async def test_where_the_harness_has_no_relay_none_is_tried(lab: Lab, hub: Housed, gpu: Joiner) -> None:
    file = hub.home / ".config/outrider/outrider.toml"
    text = file.read_text()
    await away(hub.ok, "down")
    file.write_text(f"{text}relay = false\n")
    await away(hub.up)
    file.write_text(text)  # for the next start
    await away(gpu.start, await away(token, hub))
    await connected(hub, "gpu-1")
    await goes(gpu, f"direct [{HUB}]:51820")
    await away(lab.block_udp, "hub")
    await until(lambda: gpu.goes().startswith("trying"), "its way is lost")

    await away(lab.let_udp, "hub")
    await goes(gpu, f"direct [{HUB}]:51820")
    await connected(hub, "gpu-1")
    assert "relay" not in gpu.log()
    await away(hub.ok, "down")


async def test_the_doctor_on_a_workers_machine_speaks_of_the_worker(hub: Housed, gpu: Joiner) -> None:
    await away(gpu.start, await away(token, hub))
    known = await connected(hub, "gpu-1")
    await goes(gpu, f"direct [{HUB}]:51820")

    def doctor() -> tuple[int, dict[str, Any]]:
        said = subprocess.run(
            [*gpu.launcher, *gpu._outrider, "doctor", "--json"],
            env=gpu.environ,
            cwd=gpu.home,
            capture_output=True,
            text=True,
        )
        return said.returncode, {check["name"]: check for check in json.loads(said.stdout)["checks"]}

    code, checks = await away(doctor)
    assert (code, checks["worker gpu-1"]["state"], checks["daemon"]["state"]) == (0, "ok", "ok")
    assert (
        f"connected to hub at [{known['mesh']['address'][:-1]}1]:4602, direct"
        in checks["worker gpu-1"]["what"]
    )
    assert "none on this machine, which has workers" in checks["daemon"]["what"]

    await away(hub.ok, "down")
    await until(lambda: gpu.stands().state == "dialing", "it has noticed")
    code, checks = await away(doctor)
    assert (code, checks["worker gpu-1"]["state"]) == (1, "failing")
    assert re.search(r"not connected to hub at \[.*\]:4602: \w+", checks["worker gpu-1"]["what"])

    assert await away(gpu.stop) == 0
    code, checks = await away(doctor)
    assert (code, checks["worker gpu-1"]["state"]) == (1, "failing")
    assert re.search("`outrider worker --scratch .*gpu-1` starts it", checks["worker gpu-1"]["fix"])
