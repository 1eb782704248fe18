"""Which WireGuard is taken where, and what a person is told."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mesh import picking
from mesh.handle import HelperError, examine
from mesh.picking import Backend, Facts, Off, Picked, look, pick
from tests.mesh.lab import needs

ALL = Facts(
    root=True,
    namespace="",
    user_namespace="",
    kernel="",
    wireguard_go="/usr/bin/wireguard-go",
    tun="",
    pasta="/usr/bin/pasta",
    slirp4netns="/usr/bin/slirp4netns",
)
NO_KERNEL = "this kernel has no WireGuard"
MAY_NOT = "this process may not (it takes CAP_NET_ADMIN and CAP_SYS_ADMIN)"


def having(**facts: object) -> Facts:
    return msgspec.structs.replace(ALL, **facts)


@pytest.mark.parametrize(
    ("backend", "facts", "engine", "way", "said"),
    [
        ("auto", ALL, "kernel", "", "the kernel's WireGuard in a network namespace of its own"),
        ("kernel", ALL, "kernel", "", "the kernel's WireGuard in a network namespace of its own"),
        ("wireguard-go", ALL, "wireguard-go", "", "wireguard-go in a network namespace of its own"),
        (
            "auto",
            having(kernel=NO_KERNEL),
            "wireguard-go",
            "",
            f"wireguard-go in a network namespace of its own, since {NO_KERNEL}",
        ),
        (
            "auto",
            having(namespace=MAY_NOT),
            "kernel",
            "pasta",
            f"the kernel's WireGuard in a user namespace, its way out pasta, since {MAY_NOT}",
        ),
        (
            "auto",
            having(namespace=MAY_NOT, kernel=NO_KERNEL, pasta=""),
            "wireguard-go",
            "slirp4netns",
            f"wireguard-go in a user namespace, its way out slirp4netns, since {MAY_NOT} and {NO_KERNEL}",
        ),
    ],
)
def test_the_best_is_taken_and_told(backend: Backend, facts: Facts, engine: str, way: str, said: str) -> None:
    picked = pick(backend, facts, listens=False)
    assert isinstance(picked, Picked)
    assert (picked.engine, picked.way_out, picked.said) == (engine, way, said)
    assert picked.way == (f"/usr/bin/{way}" if way else "")
    assert picked.program == ("/usr/bin/wireguard-go" if engine == "wireguard-go" else "")


@pytest.mark.parametrize(
    ("backend", "facts", "listens", "said"),
    [
        ("off", ALL, True, "mesh.backend is off"),
        ("kernel", having(kernel=NO_KERNEL), True, "load the module wireguard, or set auto"),
        ("auto", having(kernel=NO_KERNEL, wireguard_go=""), True, "install the package wireguard-go"),
        ("wireguard-go", having(wireguard_go=""), True, "install the package wireguard-go"),
        ("auto", having(kernel=NO_KERNEL, tun="there is none (modprobe tun)"), True, "modprobe tun"),
        (
            "auto",
            having(namespace=MAY_NOT, user_namespace="not permitted", root=False),
            True,
            "Run as root, or allow user namespaces",
        ),
        (
            "auto",
            having(namespace=MAY_NOT, user_namespace="not permitted"),
            True,
            "Give this container the capabilities NET_ADMIN and SYS_ADMIN",
        ),
        ("auto", having(ipv6="this system has no IPv6"), True, "boot without ipv6.disable=1"),
        ("auto", having(namespace=MAY_NOT, tun="permission denied"), False, "chmod 0666"),
        (
            "auto",
            having(namespace=MAY_NOT, pasta=""),
            True,
            "needs pasta for its way out: install the package passt,",
        ),
        ("auto", having(namespace=MAY_NOT, pasta="", slirp4netns=""), False, "passt or slirp4netns"),
    ],
)
def test_where_there_can_be_none_it_says_what_would_help(
    backend: Backend, facts: Facts, listens: bool, said: str
) -> None:
    off = pick(backend, facts, listens=listens)
    assert isinstance(off, Off)
    assert said in off.said


def test_a_device_that_cannot_be_opened_says_what_would_help(tmp_path: Path) -> None:
    assert picking._tun(str(tmp_path / "tun")).startswith("there is none (modprobe tun; in a container: ")
    assert picking._tun(str(tmp_path)) == "is a directory"


def test_a_system_without_ipv6_is_seen_by_what_the_kernel_does_not_list(tmp_path: Path) -> None:
    assert picking._ipv6(str(tmp_path / "if_inet6")) == "this system has no IPv6"
    (tmp_path / "if_inet6").touch()
    assert picking._ipv6(str(tmp_path / "if_inet6")) == ""


LOOK = """
import os, sys
sys.path.insert(0, sys.argv[1])
from mesh import picking
import msgspec
sys.stdout.buffer.write(msgspec.json.encode(picking.look(os.environ)))
"""


def test_this_machine_is_looked_at_without_a_trace() -> None:
    before = Path("/proc/net/dev").read_text().count("\n")
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", LOOK, root], capture_output=True, check=True)
    facts = msgspec.json.decode(done.stdout, type=Facts)
    assert facts.root == (os.geteuid() == 0)
    assert Path("/proc/net/dev").read_text().count("\n") == before
    assert Path(facts.wireguard_go or "/").exists()


def test_a_path_without_programs_has_none() -> None:
    needs()
    facts = look({"PATH": "/nonexistent"})
    assert (facts.wireguard_go, facts.pasta, facts.slirp4netns) == ("", "", "")
    assert facts.namespace == ""


async def test_how_the_mesh_would_be_made_can_be_asked() -> None:
    assert isinstance(await examine("off", 51820), Off)
    found = await examine("auto", 51820)
    assert found.said
    with pytest.raises(HelperError, match="does not say what this machine has"):
        await examine("auto", 0, launcher=["false"])
