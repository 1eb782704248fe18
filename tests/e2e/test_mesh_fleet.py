"""Machines in networks of different kinds join by the shell line, as their operators would, and go through a day.

With the kernel's WireGuard (in kernel-vm.sh) there is no rootless one, and Outrider is installed there already.
"""

import asyncio
import base64
import hashlib
import importlib.metadata
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest

from daemon.worker import station
from daemon.worker.station import Standing
from mesh.listener import SCRIPT_PATH
from tests.e2e.members import DOES, connected, does, until
from tests.e2e.meshing import Housed
from tests.mesh.lab import Lab, needs, readable_tree
from tests.mesh.star import BACKEND, SLOW, programs
from tests.mesh.test_rootless import BECOME, USER
from tests.running import OUTRIDER, RELEASE

HUB = "192.0.2.1"
ROOTLESS = BACKEND == "wireguard-go"  # the kernel's takes root
away = asyncio.to_thread


def repacked(name: str, folder: Path, made: set[tuple[str, str]], extra: str = "") -> None:
    """Wheels of what is installed here by this name and of what that needs, so that no index is asked for them."""
    from packaging.requirements import Requirement

    found = importlib.metadata.distribution(name)
    if (found.name, extra) in made:
        return
    made.add((found.name, extra))
    if name != "outrider":
        _pack(found, folder)
    for text in found.requires or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            for each in ("", *needed.extras):
                repacked(needed.name, folder, made, each)


def _pack(found: Distribution, folder: Path) -> None:
    info = next(str(path.parent) for path in found.files or () if path.name == "WHEEL")
    tags = re.findall(r"^Tag: (\S+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    path = folder / f"{info.removesuffix('.dist-info')}-{tags[0]}.whl"
    record = ""
    with zipfile.ZipFile(path, "w") as archive:
        for file in found.files or ():
            inside = str(file)
            if inside.startswith("..") or "__pycache__" in inside or inside == f"{info}/RECORD":
                continue
            data = Path(str(found.locate_file(file))).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            record += f"{inside},sha256={digest},{len(data)}\n"
            archive.writestr(inside, data)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")


@pytest.fixture(scope="module")
def wheels() -> Iterator[Path]:
    with readable_tree() as folder:
        if SLOW == 1:
            repacked("outrider", folder, set())
        yield folder


class Fresh:
    """A machine with nothing of ours on it, in the namespace `name`; `has` puts a release there.

    `owner`: whose worker root makes.
    """

    def __init__(
        self, lab: Lab, name: str, folder: Path, wheels: Path, before: tuple[str, ...] = (), owner: str = ""
    ) -> None:
        self.name = name
        self.home = folder / name
        (self.home / ".config/outrider").mkdir(parents=True)
        (self.home / ".config/outrider/outrider.toml").write_text(f'[mesh]\nbackend = "{BACKEND}"\n')
        for path in (self.home, *self.home.rglob("*")):
            path.chmod(0o777)
        self._before = (*lab.launcher(name), *before)
        self.owner = owner
        self._where = f" --scratch {self.home}/w" if owner else ""
        self.as_root = (f"--user={owner}{self._where}",) if owner else () if before else ("--as-root",)
        self._environ = {
            "HOME": str(self.home),
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            "OUTRIDER_WORKER_HOME": str(self.home / "o"),
            "OUTRIDER_PYTHON": f"/usr/bin/python3.{sys.version_info.minor}",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
            "PIP_CONFIG_FILE": "/dev/null",
        }

    def shell(self, line: str, seconds: float = 200.0) -> "subprocess.CompletedProcess[str]":
        """A line in this machine's shell. `seconds`: how long it may take, longer on a slow machine."""
        return subprocess.run(
            [*self._before, "sh", "-c", line],
            env=self._environ,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds * SLOW,
        )

    def joins(self, line: str) -> "subprocess.CompletedProcess[str]":
        """The line that `outrider token new` prints, with what this machine has to say."""
        if SLOW > 1:
            self.has(line)
        return self.shell(" ".join([line, "--name", self.name, *self.as_root, f"--wait {60 * SLOW}"]))

    def has(self, line: str) -> None:
        """Have the release of the line's harness installed: this checkout, as making one takes minutes."""
        found = re.search(r'"(http://[^"]+)"', line)
        assert found is not None
        script = self.shell(f"curl -gfsS {found[1]}{SCRIPT_PATH}").stdout
        (digest,) = re.findall("^WHEEL_SHA256='([0-9a-f]{64})'$", script, re.MULTILINE)
        release = self.home / f"o/release-{digest[:16]}"
        (release / "bin").mkdir(parents=True, exist_ok=True)
        for name, command in (("python", [sys.executable]), ("outrider", OUTRIDER)):
            program = release / "bin" / name
            program.write_text(
                f'#!/bin/sh\nexport OUTRIDER_RELEASE={RELEASE}\nexec {shlex.join(command)} "$@"\n'
            )
            program.chmod(0o755)
        (release / "whole").touch()

    def verb(self, words: str) -> str:
        """What `outrider worker …` prints."""
        said = self.shell(f"{self.home}/o/outrider worker {words}{self._where}", 50)
        return said.stdout + said.stderr

    def stands(self) -> Standing:
        """How its worker stands, without a process for the question."""
        own = self.home / ("w" if self.owner else f".local/state/outrider/workers/{self.name}")
        return asyncio.run(station.look(own))

    def goes(self) -> str:
        """By which way its packets go, empty while no link runs."""
        mesh = self.stands().mesh
        return "" if mesh is None else mesh.path

    def starts_again(self) -> None:
        """As after a reboot."""
        more = " ".join(self.as_root)
        command = f"nohup {self.home}/o/outrider worker {more} >>{self.home}/again.log 2>&1 &"
        assert self.shell(command).returncode == 0

    def end(self) -> None:
        self.verb("down")


@pytest.fixture
def lab() -> Iterator[Lab]:
    programs()
    needs("curl", *(["setpriv", "pasta"] if ROOTLESS else []))
    with Lab() as lab:
        for name in ("hub", "router", "nat", "blocked", "rootless"):
            lab.namespace(name)
        lab.bridge("hub", f"{HUB}/24")
        lab.plug("router", "hub", "192.0.2.9/24")
        lab.veth("router", "nat", ("10.7.0.1/24", "10.7.0.2/24"), ("inside", "eth0"))
        lab.nat("router", "eth0")
        lab.route("nat", "default", "10.7.0.1")
        lab.plug("blocked", "hub", "192.0.2.3/24")
        for hook, way in (("input", "iifname"), ("output", "oifname")):  # loopback is the relay's own
            lab.rules(
                "blocked", hook, f"type filter hook {hook} priority 0; {way} eth0 meta l4proto udp drop"
            )
        if ROOTLESS:
            lab.plug("rootless", "hub", "192.0.2.4/24")
            lab.route("rootless", "default", HUB)
        yield lab


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="or-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def hub(lab: Lab, folder: Path) -> Iterator[Housed]:
    (folder / "hub").mkdir()
    # An idle worker is heard every 10 s; a handshake is made every 2 minutes.
    here = Housed(folder / "hub", lab, "hub", HUB, f"quiet = 5\nstill = 15\ngone = {3 * SLOW}\n")
    here.script("does", DOES)
    here.up()
    yield here
    here.outrider("down")


@pytest.fixture
def machines(lab: Lab, folder: Path, wheels: Path) -> Iterator[list[Fresh]]:
    user = ("sh", "-ec", BECOME, "sh")
    made = [
        # In the slow machine there is no Python but root's.
        Fresh(lab, "nat", folder, wheels, owner="nobody" if SLOW == 1 else ""),
        Fresh(lab, "blocked", folder, wheels),
        *([Fresh(lab, "rootless", folder, wheels, user)] if ROOTLESS else []),
    ]
    yield made
    for machine in made:
        machine.end()


@pytest.mark.campaign
@pytest.mark.timeout(900 if SLOW == 1 else 2100)  # less than the machine itself may take
async def test_a_fleet_of_different_networks_joins_works_and_comes_back(
    lab: Lab, hub: Housed, machines: list[Fresh]
) -> None:
    for machine in machines:
        made = await away(hub.json, "token", "new")
        joined = await away(machine.joins, made["line"])
        assert joined.returncode == 0, joined.stdout + joined.stderr
        assert "This machine is a worker" in joined.stdout
        again = await away(machine.joins, made["line"])
        assert "the worker is already there and connected; nothing was started" in again.stdout

    async def all_work() -> dict[str, str]:
        """Each is connected and runs code; their addresses."""
        found = {}
        for machine in machines:
            found[machine.name] = (await connected(hub, machine.name))["mesh"]["address"]
            assert (await away(does, hub, machine.name, "echo $((6 * 7))")).strip() == "42"
        return found

    before = await all_work()
    assert len(set(before.values())) == len(machines)
    nat, blocked, *others = machines
    *_, removed = machines
    await until(lambda: nat.goes() == f"direct {HUB}:51820", "nat goes direct")
    await until(lambda: blocked.goes() == "relay", "blocked goes by the relay")
    assert re.search(r"path +relay\n", await away(blocked.verb, "status"))
    ways = {machine.name: "relay" if machine is blocked else "direct" for machine in machines}

    def as_said() -> bool:
        said = {name: hub.worker(name) or {"mesh": {}} for name in ways}
        return {name: worker["mesh"].get("path") for name, worker in said.items()} == ways

    await until(as_said, "the harness sees which ways they go")
    seen: dict[str, Any] = {machine.name: await away(hub.worker, machine.name) for machine in machines}
    assert seen["nat"]["mesh"]["endpoint"].startswith("192.0.2.9:")
    for rootless in others:
        assert "in a user namespace, its way out pasta" in await away(rootless.verb, "status")
        assert (await away(does, hub, rootless.name, "id -u")).strip() == USER
    if nat.owner:
        assert (await away(does, hub, nat.name, "id -un")).strip() == nat.owner

    # The hub is started again, gracefully and not.
    await away(hub.ok, "down")
    pid = await away(hub.up)
    assert await all_work() == before
    await away(hub.kill, pid)
    await away(hub.up)
    assert await all_work() == before

    # Networks are cut for longer than a connection lives, and come back with another address.
    await away(lab.sh, "router", "ip link set eth0 down")
    await until(lambda: (hub.worker("nat") or seen["nat"])["state"] != "connected", "the harness misses it")
    # The old address first: with it go others of its network.
    await away(lab.sh, "router", "ip addr del 192.0.2.9/24 dev eth0; ip addr add 192.0.2.19/24 dev eth0")
    await away(lab.sh, "router", "ip link set eth0 up")
    await away(lab.sh, "blocked", "ip addr del 192.0.2.3/24 dev eth0; ip addr add 192.0.2.33/24 dev eth0")
    assert await all_work() == before

    # The machines are rebooted.
    for machine in machines:
        assert "the worker is down" in await away(machine.verb, "down")
        await away(machine.starts_again)
    assert await all_work() == before

    # One is removed: it is out when the verb ends, and stops by itself.
    await away(hub.ok, "worker", "remove", removed.name, "-y")
    assert await away(hub.worker, removed.name) is None
    await until(lambda: not removed.stands().link, "it has ended")
    assert re.search("link +none runs", await away(removed.verb, "status"))
    assert "removed from that of hub: join again" in await away(removed.verb, "status")

    # It joins again as an ephemeral one, which goes when it is not heard of any more. The others stay.
    made = await away(hub.json, "token", "new", "--ephemeral")
    joined = await away(removed.joins, made["line"])
    assert joined.returncode == 0, joined.stdout + joined.stderr
    assert (await connected(hub, removed.name))["mesh"]["address"] != before[removed.name]
    assert "the worker is down" in await away(removed.verb, "down")
    await until(lambda: hub.worker(removed.name) is None, "the ephemeral one has gone")
    for machine in machines:
        if machine is not removed:
            assert (await connected(hub, machine.name))["mesh"]["address"] == before[machine.name]
