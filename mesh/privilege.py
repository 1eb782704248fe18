"""Linux namespaces and capabilities of this process, which Python 3.11 has no calls for. Raises OSError."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import Final

CAP_NET_ADMIN: Final = 12
CAP_SYS_ADMIN: Final = 21
NOBODY: Final = 65534  # what a process of root's becomes when it has what it needs
LAST_CAP: Final = 63  # the kernel has fewer; asking for one that it has not is an error that is passed over

NEWNS: Final = 0x00020000
NEWUSER: Final = 0x10000000
NEWNET: Final = 0x40000000

MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 1 << 18

_PDEATHSIG: Final = 1
_DUMPABLE: Final = 4
_KEEPCAPS: Final = 8
_CAPBSET_DROP: Final = 24
_NO_NEW_PRIVS: Final = 38
_CAP_AMBIENT: Final = 47
_AMBIENT_RAISE: Final = 2
_CAPABILITIES: Final = 0x20080522  # version 3: two words of 32 bits each

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _prctl(option: int, value: int = 0, third: int = 0) -> None:
    _call("prctl", option, ctypes.c_ulong(value), ctypes.c_ulong(third), ctypes.c_ulong(0), ctypes.c_ulong(0))


def effective() -> frozenset[int]:
    """The capabilities that this process can use now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            bits = int(line.split()[1], 16)
            return frozenset(bit for bit in range(LAST_CAP + 1) if bits >> bit & 1)
    return frozenset()


def unshare(flags: int) -> None:
    """Leave these namespaces for new ones; a new user namespace has this user as root, and no other."""
    uid, gid = os.getuid(), os.getgid()
    _call("unshare", flags)
    if flags & NEWUSER:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def enter(namespace: int) -> None:
    """Join the network namespace that this descriptor is of."""
    _call("setns", namespace, NEWNET)


def mount(source: str, target: Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    _call(
        "mount", source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode()
    )


def private_run(owner: int) -> None:
    """An empty /var/run that no other process sees, with a folder `wireguard` for `owner`."""
    unshare(NEWNS)
    mount("none", Path("/"), flags=MS_REC | MS_PRIVATE)
    run = Path("/var/run").resolve()
    mount("tmpfs", run, "tmpfs", options="mode=755,size=1m")
    folder = run / "wireguard"
    folder.mkdir(0o700)
    if owner != os.geteuid():
        os.chown(folder, owner, owner)


def lend_tun(owner: int) -> None:
    """Have /dev/net/tun be one that `owner` may open, for this mount namespace alone (after `private_run`)."""
    tun = Path("/dev/net/tun")
    if tun.stat().st_mode & 0o006 == 0o006:
        return
    own = Path("/var/run").resolve() / "tun"
    os.mknod(own, 0o020600, tun.stat().st_rdev)
    os.chown(own, owner, owner)
    mount(str(own), tun, flags=MS_BIND)


def die_with_parent() -> None:
    """Be killed when the thread that started this process ends. A change of user or capabilities undoes it."""
    _prctl(_PDEATHSIG, signal.SIGKILL)


def close_to_others() -> None:
    """Let no other process of this user trace this one or take its descriptors; what it starts is as any other."""
    _prctl(_DUMPABLE, 0)


def keep_only_net_admin(uid: int, *, inherit: bool) -> None:
    """Become `uid` and give up every capability but CAP_NET_ADMIN, for ever.

    `inherit`: the program that this process executes next has it too.
    """
    for bit in range(LAST_CAP + 1):
        if bit != CAP_NET_ADMIN:
            with contextlib.suppress(OSError):  # one that this kernel has not, or no right to drop any
                _prctl(_CAPBSET_DROP, bit)
    if uid != os.geteuid():
        _prctl(_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    bits = 1 << CAP_NET_ADMIN
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0)
    words = (ctypes.c_uint32 * 6)(bits, bits, bits if inherit else 0, 0, 0, 0)
    _call("capset", header, words)
    if inherit:
        _prctl(_CAP_AMBIENT, _AMBIENT_RAISE, CAP_NET_ADMIN)
    else:
        _prctl(_DUMPABLE, 0)
    _prctl(_NO_NEW_PRIVS, 1)
