"""Networks of namespaces on one machine: veth, bridges, NAT, blocked UDP, moved addresses; all gone at the end."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.needed import missing

_numbers = itertools.count(1)


def needs(*programs: str) -> None:
    """Skip, and say so, where this is not root or a program is missing."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces take root: run the tests as root")
    if absent := [program for program in programs if shutil.which(program) is None]:
        missing(f"missing on the PATH: {', '.join(absent)} (see PACKAGES in .ci/run)")


def kernel_machine() -> str:
    """The script that runs a command under a kernel with WireGuard, which is built by now.

    Skips where the programs or the source that build it are missing; a build that fails, fails the test.
    """
    needs("busybox")
    machine = str(Path(__file__).with_name("kernel-vm.sh"))
    ready = subprocess.run([machine, "-p"], capture_output=True, text=True)
    if ready.returncode == 125:
        missing(f"no kernel with WireGuard: {ready.stderr.strip()[-400:]} (see PACKAGES in .ci/run)")
    assert ready.returncode == 0, ready.stderr
    return machine


class Lab:
    """A context manager. Names given to it are its own: two labs, also of two test processes, never collide."""

    def __init__(self) -> None:
        self._tag = f"lab{os.getpid()}x{next(_numbers)}"
        self._links = itertools.count(1)
        self.namespaces: dict[str, str] = {}

    def __enter__(self) -> Self:
        needs("ip")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for full in self.namespaces.values():
            for pid in map(int, run("ip", "netns", "pids", full, check=False).split()):
                if pid != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            run("ip", "netns", "delete", full, check=False)

    def namespace(self, name: str) -> str:
        """Make a network namespace with loopback up; returns its full name, as `ip netns` has it."""
        full = f"{self._tag}{name}"
        run("ip", "netns", "add", full)
        self.namespaces[name] = full
        self.sh(name, "ip link set lo up")
        return full

    def launcher(self, name: str) -> tuple[str, ...]:
        """The command that starts another inside of a namespace."""
        return ("ip", "netns", "exec", self.namespaces[name])

    def sh(self, name: str, script: str, check: bool = True) -> str:
        """What a shell's script prints, inside of a namespace."""
        return run(*self.launcher(name), "sh", "-ec", script, check=check)

    def start(self, name: str, command: Sequence[str]) -> "subprocess.Popen[str]":
        """A process inside of a namespace, its output in a pipe; the caller ends it."""
        return subprocess.Popen([*self.launcher(name), *command], stdout=subprocess.PIPE, text=True)

    def veth(self, one: str, two: str, addresses: tuple[str, str], names: tuple[str, str] = ("", "")) -> None:
        """Join two namespaces by a cable; `addresses` with their lengths, IPv4 or IPv6."""
        number = next(self._links)
        ends = tuple(name or f"v{number}{side}" for name, side in zip(names, "ab", strict=True))
        full = [self.namespaces[one], self.namespaces[two]]
        run(
            *("ip", "-n", full[0], "link", "add", ends[0], "type", "veth"),
            *("peer", "name", ends[1], "netns", full[1]),
        )
        for name, end, address in zip((one, two), ends, addresses, strict=True):
            self.address(name, end, address)
            self.sh(name, f"ip link set {end} up")

    def bridge(self, name: str, address: str, link: str = "br0") -> None:
        """A bridge inside of a namespace, for `plug`."""
        self.sh(name, f"ip link add {link} type bridge; ip link set {link} up")
        self.address(name, link, address)

    def plug(self, name: str, into: str, address: str, link: str = "br0") -> None:
        """Join a namespace to another's bridge; its own end is `eth0`."""
        end = f"p{next(self._links)}"
        run(
            *("ip", "-n", self.namespaces[into], "link", "add", end, "type", "veth"),
            *("peer", "name", "eth0", "netns", self.namespaces[name]),
        )
        self.sh(into, f"ip link set {end} master {link} up")
        self.address(name, "eth0", address)
        self.sh(name, "ip link set eth0 up")

    def address(self, name: str, link: str, address: str) -> None:
        nodad = " nodad" if ":" in address else ""
        self.sh(name, f"ip addr add {address} dev {link}{nodad}")

    def route(self, name: str, to: str, via: str) -> None:
        self.sh(name, f"ip route add {to} via {via}")

    def forward(self, name: str) -> None:
        """Have a namespace route for others, as careless hosts do."""
        self.sh(
            name, "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"
        )

    def nat(self, name: str, out: str) -> None:
        """Have a router hide what is behind it: what leaves by the link `out` comes from there."""
        self.forward(name)
        self.rules(name, "nat", f"type nat hook postrouting priority 100; oifname {out} masquerade")

    def block_udp(self, name: str) -> None:
        """Have a namespace take no UDP, neither for itself nor for others."""
        for hook in ("input", "output", "forward"):
            self.rules(name, f"block-{hook}", f"type filter hook {hook} priority 0; meta l4proto udp drop")

    def let_udp(self, name: str) -> None:
        """Undo `block_udp`."""
        for hook in ("input", "output", "forward"):
            self.sh(name, f"nft delete table inet block-{hook}")

    def rules(self, name: str, table: str, chain: str) -> None:
        """A table of nftables with one chain: its head, then its rules, with semicolons between."""
        head, _, rest = chain.partition("; ")
        self.sh(name, f"nft 'add table inet {table}; add chain inet {table} c {{ {head}; }}'")
        for rule in rest.split("; "):
            self.sh(name, f"nft 'add rule inet {table} c {rule}'")

    def move(self, name: str, link: str, old: str, new: str) -> None:
        """Give a machine another address, as one has that changes networks."""
        self.address(name, link, new)
        self.sh(name, f"ip addr del {old} dev {link}")


@contextlib.contextmanager
def readable_tree() -> Iterator[Path]:
    """A folder that every user may enter; removed at the end."""
    folder = Path(f"/tmp/or-lab-{os.getpid()}-{next(_numbers)}")
    folder.mkdir(mode=0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def run(*command: str, check: bool = True, seconds: float = 30) -> str:
    """What a command prints; it fails the test where it fails, with what it said, or takes longer."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=seconds)
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends within this time."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X"):
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False
