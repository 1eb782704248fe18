"""The doctor's checks of this machine: each looks at one thing and says whether it is well."""

import errno
import importlib.metadata
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from daemon.plain import line, size
from daemon.statefile.publish import SESSIONS

if TYPE_CHECKING:
    from daemon.config import Settings
    from daemon.verbs.reach import Where

MIB: Final = 1 << 20
LITTLE: Final = 1 << 30  # bytes of room below which an operator wants to know
NONE: Final = 64 * MIB  # bytes of room with which a busy daemon fails within minutes
FILES: Final = 1000  # of which a data folder needs some for each session
SKEW: Final = 120.0  # seconds that a clock may be off before it is said
SOON: Final = 14  # days before a certificate ends
REMOTE: Final = re.compile(
    r"nfs\d?|cifs|smb\w*|ceph|glusterfs|lustre|beegfs|9p|fuse\.(sshfs|s3fs|gcsfuse|rclone)|afs"
)
FLEETING: Final = frozenset({"tmpfs", "ramfs"})
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)[^;<>=!~]*([^;]*)")
_BOUND: Final = re.compile(r"(>=|<)\s*([\d.]+)")


class Check(Struct, frozen=True, omit_defaults=True):
    """What one check found. `fix`: what to do about it, empty where there is nothing to do or say."""

    name: str
    state: Literal["ok", "warning", "failing"]
    what: str
    fix: str = ""


def ok(name: str, what: str) -> Check:
    return Check(name, "ok", what)


def warning(name: str, what: str, fix: str = "") -> Check:
    return Check(name, "warning", what, fix)


def failing(name: str, what: str, fix: str = "") -> Check:
    return Check(name, "failing", what, fix)


def python() -> Check:
    """The interpreter we run on."""
    running = ".".join(map(str, sys.version_info[:3]))
    what = f"{running}, {sys.executable}"
    if sys.platform != "linux":
        return failing("Python", f"{what} on {sys.platform}", "run Outrider on Linux")
    return ok("Python", what)


def packages(distribution: str = "outrider") -> Check:
    """What we are made of: each requirement is installed, in a release that will do."""
    name = "installation"
    again = "install Outrider anew into an environment of its own"
    try:
        version = importlib.metadata.version(distribution)
        required = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return failing(name, f"{distribution} is not installed in {sys.prefix}", again)
    wrong = []
    for requirement in required:
        found = _REQUIREMENT.match(requirement)
        if found is None or "extra ==" in requirement:
            continue
        try:
            there = importlib.metadata.version(found[1])
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{found[1]} is missing")
            continue
        if not all(_within(there, sign, bound) for sign, bound in _BOUND.findall(found[2])):
            wrong.append(f"{found[1]} is {there}, {found[2].strip()} is needed")
    if wrong:
        return failing(name, "; ".join(wrong), again)
    return ok(name, f"outrider {version}, {len(required)} packages")


def _within(version: str, sign: str, bound: str) -> bool:
    have, want = ([int(part) for part in re.findall(r"\d+", text)[:3]] for text in (version, bound))
    have, want = (part + [0] * (3 - len(part)) for part in (have, want))
    return have >= want if sign == ">=" else have < want


def configuration(settings: "Settings", environ: Mapping[str, str]) -> Iterator[Check]:
    """The files that were read, each warning of theirs, and the certificate."""
    files = ", ".join(map(str, settings.files)) or "none; all is as shipped"
    yield ok("configuration", files)
    for text in settings.warnings:
        yield warning("configuration", text)
    if settings.tls is not None:
        yield certificate(settings.tls.cert)
    if environ.get("OUTRIDER_URL") and environ.get("OUTRIDER_DATA"):
        yield warning(
            "environment",
            "OUTRIDER_URL and OUTRIDER_DATA are both set: `up` starts a daemon here, other verbs ask the one elsewhere",
            "unset one of them",
        )


def certificate(path: Path, now: datetime | None = None) -> Check:
    """How long the certificate of our own TLS holds."""
    from cryptography import x509

    try:
        ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except OSError as error:
        return failing("certificate", f"{path}: {error.strerror}", "correct tls.cert in outrider.toml")
    except ValueError:
        return failing(
            "certificate", f"{path} holds no certificate in PEM", "correct tls.cert in outrider.toml"
        )
    left = (ends - (now or datetime.now(UTC))).days
    what = f"{path} holds until {ends:%Y-%m-%d}"
    if left < 0:
        return failing(
            "certificate", f"{path} has ended on {ends:%Y-%m-%d}", "renew it, then restart the daemon"
        )
    return (
        warning("certificate", what, "renew it, then restart the daemon")
        if left < SOON
        else ok("certificate", what)
    )


def folder(path: Path) -> Check:
    """The data folder: ours, writable, on which file system, with how much room."""
    name = "data folder"
    there = next(found for found in (path, *path.parents) if found.exists())
    made = "" if there == path else ", which `outrider up` will make"
    if not there.is_dir():
        return failing(name, f"{there} is no folder", "name another with OUTRIDER_DATA")
    looked = path
    try:
        if there == path:
            for looked in filter(Path.exists, (path, path / SESSIONS)):
                with tempfile.TemporaryFile(dir=looked) as file:
                    file.write(b"\0")
                    file.flush()
                    os.fsync(file.fileno())
        elif not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
        room = os.statvfs(there)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "make room" if full else "correct its owner and mode (0700), or name another with OUTRIDER_DATA"
        return failing(name, f"{looked} cannot be written: {error.strerror}", fix)
    kind, free = file_system(there), room.f_bavail * room.f_frsize
    what = f"{path}{made}, on {kind or 'an unknown file system'} with {size(free)} free"
    if free < NONE or (room.f_files and room.f_favail < FILES):
        return failing(name, f"{what}, {room.f_favail} files", "make room: nothing can be kept")
    if REMOTE.fullmatch(kind):
        return warning(
            name, what, "keep it on a disk of this machine: locks and writes over a network can be lost"
        )
    if kind in FLEETING:
        return warning(
            name, what, "sessions there are gone after a restart of the machine: name a disk's folder"
        )
    if there == path and path.stat().st_mode & 0o077:
        return warning(name, f"{path} is open to others", f"chmod 700 {path}")
    if free < LITTLE:
        return warning(name, what, "make room soon")
    return ok(name, what)


def file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that `path` is on, empty where it cannot be told."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    real, best, found = os.path.realpath(path), -1, ""
    for text in lines:
        fields, _, rest = text.partition(" - ")
        try:
            point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields.split()[4])
            kind = rest.split()[0]
        except IndexError:
            continue
        if len(point) >= best and (real == point or real.startswith(point.rstrip("/") + "/")):
            best, found = len(point), kind
    return found


def sockets(settings: "Settings") -> Check:
    """Whether the Unix sockets' paths are short enough for the kernel."""
    from daemon import config
    from daemon.worker import keeper

    paths = (settings.socket, settings.scratch / keeper.SOCKET, settings.data / config.WORKERS)
    for path in paths:
        if (length := len(os.fsencode(path))) > config.SOCKET_LIMIT:
            return failing(
                "sockets",
                f"{path} is {length} bytes long, the system takes {config.SOCKET_LIMIT}",
                "name a shorter data folder, or a shorter socket in [daemon] of outrider.toml",
            )
    longest = max(len(os.fsencode(path)) for path in paths)
    return ok("sockets", f"{settings.socket}; the longest path has {longest} of {config.SOCKET_LIMIT} bytes")


def key_in_the_clear(place: "Where") -> Iterator[Check]:
    """How a daemon elsewhere is asked."""
    host = re.sub(r"^https?://|[:/].*$", "", place.url.replace("[::1]", "localhost"))
    if place.url.startswith("http://") and host not in ("localhost", "127.0.0.1"):
        yield warning(
            "connection",
            f"{place.url} is not encrypted: the key and the sessions cross the network in the clear",
            "use https there, or a tunnel",
        )


def clock(now: datetime | None = None) -> Check:
    """Whether the clock can be right: it is not before this installation was made."""
    seen = now or datetime.now(UTC)
    made = datetime.fromtimestamp(Path(__file__).stat().st_mtime, UTC)
    what = f"{seen:%Y-%m-%d %H:%M:%S} UTC"
    if (made - seen).total_seconds() > SKEW:
        return failing(
            "clock",
            f"{what} is before this installation was made, {made:%Y-%m-%d %H:%M}",
            "set the clock; TLS fails with a wrong one",
        )
    return ok("clock", what)


def newest(updated: str, now: datetime | None = None) -> Check:
    """Whether the last record lies in the past."""
    try:
        ahead = (datetime.fromisoformat(updated) - (now or datetime.now(UTC))).total_seconds()
    except (ValueError, TypeError):
        return warning("times", f"the last session was updated at {line(updated)}, which is no time")
    if ahead > SKEW:
        return warning(
            "times",
            f"the last session was updated {ahead:.0f} s from now",
            "the clock here or there is wrong, or was set back",
        )
    return ok("times", "the last record lies in the past")


def keys_of_the_environment(has_key: Mapping[str, bool], environ: Mapping[str, str]) -> Iterator[Check]:
    """Keys that stand in this environment and that the daemon does not have."""
    from daemon import config

    for provider, variable in config.KEYS.items():
        if environ.get(variable) and not has_key.get(provider, False):
            yield warning(
                f"provider {provider}",
                f"{variable} is set here, and not where the daemon was started",
                "`outrider down`, then `outrider up`, gives it to the daemon",
            )


def holder(data: Path) -> int:
    """The pid of the daemon that works on a data folder, 0 where none does or it cannot be told."""
    from daemon.statefile.errors import LockedError, StateFileError
    from daemon.statefile.store import Store

    if not data.is_dir():
        return 0
    try:
        with Store(data).lock():
            return 0
    except LockedError as error:
        return error.pid
    except StateFileError:
        return 0
