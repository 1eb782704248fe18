"""Three machines in networks of three kinds join by the shell line, as their operators would, and go through a day."""

import asyncio
import base64
import hashlib
import importlib.metadata
import re
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

from tests.e2e.members import DOES, connected, does, until
from tests.e2e.meshing import Housed
from tests.mesh.lab import Lab, needs, readable_tree
from tests.mesh.star import BACKEND, programs
from tests.mesh.test_rootless import BECOME, USER

HUB = "192.0.2.1"
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
        repacked("outrider", folder, set())
        yield folder


class Fresh:
    """A machine with nothing of ours on it, in the namespace `name`."""

    def __init__(self, lab: Lab, name: str, folder: Path, wheels: Path, before: tuple[str, ...] = ()) -> None:
        self.name = name
        self.home = folder / name
        (self.home / ".config/outrider").mkdir(parents=True)
        (self.home / ".config/outrider/outrider.toml").write_text(f'[mesh]\nbackend = "{BACKEND}"\n')
        for path in (self.home, *self.home.rglob("*")):
            path.chmod(0o777)
        self._before = (*lab.launcher(name), *before)
        self.as_root = () if before else ("--as-root",)
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
        """A line in this machine's shell."""
        return subprocess.run(
            [*self._before, "sh", "-c", line],
            env=self._environ,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def joins(self, line: str) -> "subprocess.CompletedProcess[str]":
        """The line that `outrider token new` prints, with what this machine has to say."""
        return self.shell(" ".join([line, "--name", self.name, *self.as_root]))

    def verb(self, words: str) -> str:
        """What `outrider worker …` prints."""
        said = self.shell(f"{self.home}/o/outrider worker {words}", 50)
        return said.stdout + said.stderr

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
    needs("curl", "setpriv", "pasta")
    if BACKEND != "wireguard-go":
        pytest.skip("runs on the host")
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
    here = Housed(folder / "hub", lab, "hub", HUB, "quiet = 5\nstill = 15\ngone = 3\n")
    here.script("does", DOES)
    here.up()
    yield here
    here.outrider("down")


@pytest.fixture
def machines(lab: Lab, folder: Path, wheels: Path) -> Iterator[list[Fresh]]:
    user = ("sh", "-ec", BECOME, "sh")
    made = [
        Fresh(lab, "nat", folder, wheels),
        Fresh(lab, "blocked", folder, wheels),
        Fresh(lab, "rootless", folder, wheels, user),
    ]
    yield made
    for machine in made:
        machine.end()


@pytest.mark.campaign
@pytest.mark.timeout(900)
async def test_a_fleet_of_three_kinds_of_networks_joins_works_and_comes_back(
    lab: Lab, hub: Housed, machines: list[Fresh]
) -> None:
    for machine in machines:
        made = await away(hub.json, "token", "new", *(["--ephemeral"] if machine.name == "nat" else []))
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
    assert len(set(before.values())) == 3
    nat, blocked, rootless = machines
    assert f"direct {HUB}:51820" in await away(nat.verb, "status")
    assert re.search(r"path +relay\n", await away(blocked.verb, "status"))
    assert "in a user namespace, its way out pasta" in await away(rootless.verb, "status")
    seen: dict[str, Any] = {machine.name: await away(hub.worker, machine.name) for machine in machines}
    assert [seen[name]["mesh"]["path"] for name in ("nat", "blocked", "rootless")] == [
        "direct",
        "relay",
        "direct",
    ]
    assert seen["nat"]["mesh"]["endpoint"].startswith("192.0.2.9:")
    assert (await away(does, hub, "rootless", "id -u")).strip() == USER

    # The hub is started again, gracefully and not.
    await away(hub.ok, "down")
    pid = await away(hub.up)
    assert await all_work() == before
    await away(hub.kill, pid)
    await away(hub.up)
    assert await all_work() == before

    # Networks are cut for longer than a connection lives, and come back with another address.
    await away(lab.sh, "router", "ip link set eth0 down")
    await until(lambda: (hub.worker("nat") or {}).get("state") != "connected", "the harness misses it")
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
    await away(hub.ok, "worker", "remove", "rootless", "-y")
    assert await away(hub.worker, "rootless") is None
    await until(lambda: re.search("link +none runs", rootless.verb("status")), "it has ended")
    assert "removed from that of hub: join again" in await away(rootless.verb, "status")

    # The ephemeral one goes when it is not heard of any more.
    await away(nat.verb, "down")
    await until(lambda: hub.worker("nat") is None, "the ephemeral one has gone")
    assert (await connected(hub, "blocked"))["mesh"]["address"] == before["blocked"]
