"""Which WireGuard this machine can have and how: facts, looked at in child processes, and a pure choice."""

import errno
import os
import shutil
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Final, Literal

from msgspec import Struct

from mesh import privilege

Backend = Literal["auto", "kernel", "wireguard-go", "off"]
EngineName = Literal["kernel", "wireguard-go"]
WayOut = Literal["", "pasta", "slirp4netns"]

_NEWLINK: Final = 16
_REQUEST: Final = 0x1 | 0x4 | 0x200 | 0x400  # request, acknowledge, exclusive, create
_LINKINFO: Final = 18
_INFO_KIND: Final = 1
_IFNAME: Final = 3


class Facts(Struct, frozen=True, kw_only=True):
    """What this machine has. Where a reason is empty it has it, else it says why not."""

    root: bool
    namespace: str  # why this process can make no network namespace
    user_namespace: str  # the same of a user and network namespace, which an ordinary user may
    kernel: str  # why the kernel's WireGuard cannot be had in the first of these that can be made
    wireguard_go: str  # where the program is, empty where it is not
    tun: str  # why /dev/net/tun cannot be opened
    pasta: str  # where the program is
    slirp4netns: str
    ipv6: str = ""  # why there is none


class Picked(Struct, frozen=True, kw_only=True, tag="picked"):
    """How the mesh is made here. `way_out` is not empty in a user namespace. `said`: one sentence for a person."""

    engine: EngineName
    way_out: WayOut
    program: str  # of the engine, where it is one
    way: str  # where the program of the way out is
    said: str


class Off(Struct, frozen=True, kw_only=True, tag="off"):
    """There is no mesh here; `said`: why and what would change that."""

    said: str


Choice = Picked | Off


def pick(backend: Backend, facts: Facts, *, listens: bool) -> Choice:
    """The best of what there is. `listens`: other machines are to reach a UDP port of this one (the harness)."""
    if backend == "off":
        return Off(said="the mesh is off: mesh.backend is off")
    if facts.ipv6:
        return Off(
            said=f"addresses inside of the mesh are IPv6, whatever is below, and {facts.ipv6}: boot without "
            "ipv6.disable=1, or load the module ipv6"
        )
    way_out: WayOut = ""
    if facts.namespace:
        if facts.user_namespace:
            fix = (
                "Give this container the capabilities NET_ADMIN and SYS_ADMIN"
                if facts.root
                else "Run as root, or allow user namespaces"
            )
            return Off(
                said=f"no network namespace can be made: {facts.namespace}; and none in a user namespace: "
                f"{facts.user_namespace}. {fix}"
            )
        if facts.tun:
            return Off(
                said=f"an ordinary user's mesh needs /dev/net/tun: {facts.tun}. Run as root, or chmod 0666 it"
            )
        if facts.pasta:
            way_out = "pasta"
        elif facts.slirp4netns and not listens:
            way_out = "slirp4netns"
        else:
            also = "" if listens else " or slirp4netns"
            return Off(
                said=f"an ordinary user's mesh needs pasta{also} for its way out: install the package passt"
                f"{'' if listens else ' or slirp4netns'}, or run as root"
            )
    if backend in ("auto", "kernel") and not facts.kernel:
        return _picked("kernel", way_out, "", facts)
    if backend == "kernel":
        return Off(said=f"mesh.backend is kernel, and {facts.kernel}: load the module wireguard, or set auto")
    if not facts.wireguard_go:
        why = f"{facts.kernel}, and " if backend == "auto" else ""
        return Off(said=f"{why}wireguard-go is not on the PATH: install the package wireguard-go")
    if facts.tun:
        return Off(said=f"wireguard-go needs /dev/net/tun: {facts.tun}")
    return _picked("wireguard-go", way_out, facts.wireguard_go, facts)


def _picked(engine: EngineName, way_out: WayOut, program: str, facts: Facts) -> Picked:
    name = "the kernel's WireGuard" if engine == "kernel" else "wireguard-go"
    where = f"a user namespace, its way out {way_out}" if way_out else "a network namespace of its own"
    reasons = [facts.namespace] if way_out else []
    if engine == "wireguard-go" and facts.kernel:
        reasons.append(facts.kernel)
    why = f", since {' and '.join(reasons)}" if reasons else ""
    way = {"pasta": facts.pasta, "slirp4netns": facts.slirp4netns, "": ""}[way_out]
    return Picked(engine=engine, way_out=way_out, program=program, way=way, said=f"{name} in {where}{why}")


def look(environ: Mapping[str, str]) -> Facts:
    """What this machine has. Blocks for some milliseconds; call it where no thread and no loop runs: it forks."""
    path = environ.get("PATH")
    namespace, kernel = _tried(privilege.NEWNET)
    user_namespace = ""
    if namespace:
        user_namespace, kernel = _tried(privilege.NEWUSER | privilege.NEWNET)
    return Facts(
        root=os.geteuid() == 0,
        namespace=namespace,
        user_namespace=user_namespace,
        kernel=kernel,
        wireguard_go=shutil.which("wireguard-go", path=path) or "",
        tun=_tun(),
        ipv6=_ipv6(),
        pasta=shutil.which("pasta", path=path) or "",
        slirp4netns=shutil.which("slirp4netns", path=path) or "",
    )


def _tun(path: str = "/dev/net/tun") -> str:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        why = os.strerror(error.errno or 0).lower()
        if error.errno in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
            return f"there is none (modprobe tun; in a container: start it with the device {path})"
        if error.errno == errno.EPERM:  # no file's mode says this: its cgroup does
            return f"{why} (in a container: start it with the device {path})"
        return why
    return ""


def _ipv6(table: str = "/proc/net/if_inet6") -> str:
    return "" if os.path.exists(table) else "this system has no IPv6"


def _tried(flags: int) -> tuple[str, str]:
    """Why such namespaces cannot be made, and why the kernel's WireGuard cannot in them; both empty where they can."""
    said = _in_child(lambda: _try(flags)).split("\n")
    return (said[0], said[1]) if len(said) == 2 else ("a process that tried it was ended", "")


def _try(flags: int) -> str:
    try:
        privilege.unshare(flags)
        missing = {privilege.CAP_NET_ADMIN, privilege.CAP_SYS_ADMIN} - privilege.effective()
    except OSError as error:
        return f"{_plainly(error)}\n"
    if missing:
        return "this process has neither CAP_NET_ADMIN nor CAP_SYS_ADMIN\n"
    number = add_link(b"wireguard")
    if number == errno.EOPNOTSUPP:
        return "\nthis kernel has no WireGuard"
    return f"\nthe kernel makes no WireGuard interface: {os.strerror(number).lower()}" if number else "\n"


def _plainly(error: OSError) -> str:
    if error.errno == errno.EPERM:
        return "this process may not (it takes CAP_NET_ADMIN and CAP_SYS_ADMIN)"
    if error.errno == errno.ENOSPC:
        return "this system allows no more of them (sysctl user.max_user_namespaces, user.max_net_namespaces)"
    return os.strerror(error.errno or 0).lower()


def _in_child(work: Callable[[], str]) -> str:
    """What `work` returns in a process of its own, empty where that ended without an answer."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            os.write(writing, work().encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said.decode(errors="replace")


def add_link(kind: bytes) -> int:
    """Make an interface of this kind where this process is: 0 or the errno. Without a library, which loads slowly."""

    def attribute(number: int, value: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)

    body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, 0, 0, 0)
    body += attribute(_IFNAME, b"or-probe\0") + attribute(_LINKINFO, attribute(_INFO_KIND, kind))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(5)
        netlink.send(struct.pack("=IHHII", 16 + len(body), _NEWLINK, _REQUEST, 1, 0) + body)
        answer = netlink.recv(8192)
    number: int = struct.unpack_from("=i", answer, 16)[0]
    return -number
