"""Machines whose workers are not root's: root keeps the interface for another user, or a user has one of its own."""

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.members import DOES, ROOT, Joiner, connected, does, joiner, until
from tests.e2e.meshing import Housed
from tests.mesh.lab import Lab, gone, needs, readable_tree, run
from tests.mesh.star import BACKEND, programs
from tests.mesh.test_rootless import BECOME

HUB = "192.0.2.1"
USER = "nobody"
away = asyncio.to_thread


@pytest.fixture
def python() -> Iterator[list[str]]:
    """A Python with our libraries that every user may run, in a folder of its own."""
    programs()
    own = f"/usr/bin/python3.{sys.version_info.minor}"
    if not os.path.exists(own):
        pytest.skip(f"{own} is missing, and {sys.executable} may be root's alone")
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    with readable_tree() as folder:
        run(own, "-m", "venv", "--without-pip", str(folder / "venv"))
        (found,) = folder.glob("venv/lib/python3*/site-packages")
        (found / "ours.pth").write_text("\n".join([*libraries, str(ROOT)]))
        yield [str(folder / "venv/bin/python"), "-P", "-m", "daemon.cli"]


@pytest.fixture
def lab() -> Iterator[Lab]:
    programs()
    with Lab() as lab:
        lab.namespace("hub")
        lab.bridge("hub", f"{HUB}/24")
        lab.namespace("gpu-1")
        lab.plug("gpu-1", "hub", "192.0.2.2/24")
        lab.route("gpu-1", "default", HUB)
        yield lab


@pytest.fixture
def hub(lab: Lab) -> Iterator[Housed]:
    folder = Path(tempfile.mkdtemp(prefix="or-"))
    (folder / "hub").mkdir()
    here = Housed(folder / "hub", lab, "hub", HUB)
    here.script("does", DOES)
    here.up()
    yield here
    here.outrider("down")
    shutil.rmtree(folder)


@pytest.fixture
def gpu(lab: Lab, python: list[str]) -> Iterator[Joiner]:
    folder = Path(python[0]).parents[2]
    with joiner(lab, "gpu-1", folder, python) as made:
        for path in (made.home, *made.home.rglob("*")):
            path.chmod(0o777)
        made.environ["OUTRIDER_CONFIG"] = str(made.home / ".config/outrider/outrider.toml")
        yield made


def uids(pid: int) -> set[str]:
    """The users that a process is: real, effective, saved, of its files."""
    for text in Path(f"/proc/{pid}/status").read_text().splitlines():
        if text.startswith("Uid:"):
            return set(text.split()[1:])
    return set()


def descendants(pid: int) -> list[int]:
    """By what each process says of its parent: not every kernel lists children."""
    children = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(file.read_text().rpartition(")")[2].split()[1]) == pid:
                children.append(int(file.parent.name))
    return [*children, *(far for child in children for far in descendants(child))]


async def test_roots_worker_for_another_user_is_that_users_but_for_the_interface(
    hub: Housed, gpu: Joiner
) -> None:
    uid = str(pwd.getpwnam(USER).pw_uid)
    scratch = gpu.home / "scratch"
    gpu.as_root = (f"--user={USER}", f"--scratch={scratch}")
    token = (await away(hub.json, "token", "new"))["token"]
    await away(gpu.start, token)
    await connected(hub, "gpu-1")
    assert (await away(does, hub, "gpu-1", "id -un")).strip() == USER
    said = await away(gpu.verb, "status", f"--scratch={scratch}")
    assert "in a network namespace of its own" in said.stdout

    assert gpu.process is not None
    found = await away(gpu.status, f"--scratch={scratch}")
    for part in (found["link"], found["keeper"]):
        assert await away(uids, part) == {uid}
    engines = [pid for pid in await away(descendants, gpu.process.pid) if _program(pid) == "wireguard-go"]
    assert len(engines) == (1 if BACKEND == "wireguard-go" else 0)

    for pid in engines:  # root's part starts another
        os.kill(pid, signal.SIGKILL)
        assert await away(gone, pid)
    assert (await away(does, hub, "gpu-1", "echo still")).strip() == "still"
    assert await away(gpu.stop) == 0
    await away(gpu.start)
    await connected(hub, "gpu-1")
    assert await away(gpu.stop) == 0


def _program(pid: int) -> str:
    """The name of what a process runs, empty where it has ended."""
    try:
        return os.path.basename(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode())
    except OSError:
        return ""


async def test_root_without_a_word_on_users_is_told_what_to_say(gpu: Joiner) -> None:
    gpu.as_root = ()
    for arguments, words in (
        ((), "or say --user NAME with --join"),
        (("--user=nosuchuser",), "there is no such user"),
        (("--user=root",), "name the user whose files agents may touch"),
        ((f"--user={USER}", "--as-root"), "either agents' code is that user's, or root's"),
    ):
        said = await away(gpu.verb, "--join", "-", *arguments, input="orj_x")
        assert (said.returncode, words in said.stderr) == (2, True), said.stderr


async def _have_no_root(gpu: Joiner) -> None:
    """Have the machine's worker be an ordinary user's."""
    needs("setpriv", "pasta")
    if BACKEND != "wireguard-go":
        pytest.skip("runs on the host")
    user = ["setpriv", "--reuid", "61977", "--clear-groups"]
    done = await away(subprocess.run, [*user, "unshare", "-Urn", "true"], capture_output=True)
    if done.returncode:
        pytest.skip(f"no user namespaces here: {done.stderr.decode().strip()}")
    gpu.launcher = (*gpu.launcher, "sh", "-ec", BECOME, "sh")
    gpu.as_root = ()


async def test_a_worker_that_is_started_before_the_network_waits_for_it(
    lab: Lab, hub: Housed, gpu: Joiner
) -> None:
    await _have_no_root(gpu)
    token = (await away(hub.json, "token", "new"))["token"]
    await away(gpu.start, token)
    await connected(hub, "gpu-1")
    assert await away(gpu.stop) == 0

    lab.sh("gpu-1", "ip route del default")
    await away(gpu.start)
    said = await until(
        lambda: text if "last word" in (text := gpu.verb("status").stdout) else "",
        "it says what it waits for",
    )
    assert "External interface not usable" in said, said
    lab.route("gpu-1", "default", HUB)
    await connected(hub, "gpu-1")
    assert (await away(does, hub, "gpu-1", "id -u")).strip() == "61977"
    assert (await away(gpu.verb, "leave")).returncode == 0


async def test_an_ordinary_users_worker_joins_and_runs_code(hub: Housed, gpu: Joiner) -> None:
    await _have_no_root(gpu)
    token = (await away(hub.json, "token", "new"))["token"]
    await away(gpu.start, token)
    await connected(hub, "gpu-1")
    assert (await away(does, hub, "gpu-1", "id -u")).strip() == "61977"
    said = await away(gpu.verb, "status")
    assert "in a user namespace, its way out pasta" in said.stdout
    assert (await away(gpu.verb, "leave")).returncode == 0
