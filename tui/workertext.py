"""What a screen says of workers and of join tokens: cells of their rows and the facts below them. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

from msgspec import Struct

from daemon.plain import count, line, size
from daemon.protocol import api
from tui.words import age, moment

Tone = Literal["", "good", "bad", "warn", "dim"]
"""How a text is meant; the screen's theme says how that looks."""

LOCAL: Final = "local"  # the daemon's own worker: it is never removed
HEAD: Final = ("WORKER", "STATE", "SYSTEM", "RUNS", "PATH", "HANDSHAKE", "IN", "OUT", "ADDRESS")
TOKEN_HEAD: Final = ("ID", "NAME", "STATE", "LEFT", "UNTIL", "EPHEMERAL", "WORKERS")
TOKEN_NAME: Final = 24  # characters of a token's name: a longer one would push the rest off a small screen
_TONES: Final[dict[str, Tone]] = {"connected": "good", "refused": "bad", "gone": "dim"}
_ORDER: Final = ("connected", "refused", "gone")


class Fact(Struct, frozen=True):
    """A line below a table: its name, its text, how it is meant."""

    name: str
    text: str
    tone: Tone = ""


NONE: Final = (Fact("no worker yet", "a makes a join token, with which a machine joins"),)


def ordered(workers: Iterable[api.WorkerInfo]) -> list[api.WorkerInfo]:
    """Those that are here first, `local` before the others of its state, then by name."""
    return sorted(workers, key=lambda one: (_ORDER.index(one.state), one.name != LOCAL, one.name))


def state(worker: api.WorkerInfo) -> tuple[str, Tone]:
    """The state in a word or two."""
    if not worker.cordoned:
        return worker.state, _TONES[worker.state]
    return f"{worker.state}, cordoned", "warn" if worker.state == "connected" else _TONES[worker.state]


def cells(worker: api.WorkerInfo, now: datetime) -> tuple[str, ...]:
    """The texts of a worker's row, one for each of HEAD."""
    mesh = worker.mesh
    return (
        line(worker.name),
        state(worker)[0],
        line(f"{worker.os} {worker.arch}".strip()) or "-",
        str(worker.running),
        (mesh.path if mesh else "") or "-",
        _ago(mesh.handshake, now) if mesh else "-",
        size(mesh.rx) if mesh else "-",
        size(mesh.tx) if mesh else "-",
        line(mesh.address) if mesh else "-",
    )


def facts(worker: api.WorkerInfo, now: datetime) -> list[Fact]:
    """All that is known of a worker, what matters first; nothing empty."""
    said, tone = state(worker)
    seen = f", last seen {_ago(worker.seen, now)}" if worker.seen and worker.state != "connected" else ""
    machine = [line(worker.hostname), line(f"{worker.os} {worker.arch}".strip())]
    machine += [count(worker.cpus, "CPU")] if worker.cpus else []
    machine += [size(worker.memory)] if worker.memory else []
    found = [
        Fact("state", said + seen, tone),
        Fact("reason", line(worker.reason, 1000), "bad" if worker.state == "refused" else "warn"),
        Fact("cordon", "takes no new calls; what runs goes on" if worker.cordoned else "", "warn"),
        Fact("runs", f"{count(worker.running, 'call')} going" if worker.running else ""),
        Fact("machine", ", ".join(text for text in machine if text)),
        Fact("interpreters", line(", ".join(worker.interpreters), 1000)),
        *(_mesh(worker.mesh, now) if worker.mesh else []),
        Fact("release", line(worker.release)),
        Fact("home", line(worker.home)),
        Fact("scratch", line(worker.scratch)),
    ]
    return [fact for fact in found if fact.text]


def _mesh(mesh: api.Membership, now: datetime) -> list[Fact]:
    heard = _ago(mesh.handshake, now) if mesh.handshake else "none since the mesh is up"
    quiet = f"; quiet since {local(mesh.quiet)}" if mesh.quiet else ""
    by = f"by {mesh.path}" if mesh.path else "path not known"
    came = f", from {line(mesh.endpoint)}" if mesh.endpoint else ""
    stays = ", ephemeral: leaves when it is not heard of" if mesh.ephemeral else ""
    return [
        Fact("address", f"{line(mesh.address)}, {by}{came}"),
        Fact("handshake", heard + quiet, "warn" if mesh.quiet or not mesh.handshake else ""),
        Fact("traffic", f"{size(mesh.rx)} in, {size(mesh.tx)} out"),
        Fact("joined", f"{local(mesh.joined)} by token {mesh.token}{stays}"),
    ]


def token_cells(token: api.TokenInfo) -> tuple[str, ...]:
    """The texts of a token's row, one for each of TOKEN_HEAD."""
    return (
        str(token.id),
        line(token.name, TOKEN_NAME) or "-",
        token.state,
        str(token.uses),
        local(token.expires),
        "yes" if token.ephemeral else "-",
        line(", ".join(token.joined)) or "-",
    )


def mesh_line(mesh: api.MeshInfo) -> tuple[str, Tone]:
    """How the mesh stands, in a line."""
    match mesh.state:
        case "up":
            ways = f"UDP {mesh.port}, joining at {', '.join(mesh.join)}"
            return line(f"mesh up as {mesh.name}: {mesh.how}; {ways}", 400), "good"
        case "failing":
            return line(f"mesh down: {mesh.why}", 400), "bad"
        case "idle":
            why = f" (it cannot come up: {mesh.why})" if mesh.why else ""
            return line(f"mesh idle: the first join token brings it up{why}", 400), "warn" if why else "dim"
        case "starting":
            return "mesh starting", "dim"
        case "off":
            return "mesh off, by mesh.backend in outrider.toml", "dim"


def removable(worker: api.WorkerInfo) -> str:
    """Why a worker cannot be removed here, empty where it can."""
    if worker.name == LOCAL:
        return "local is the daemon's own worker; `outrider down` ends it"
    if worker.mesh is None:
        return f"{line(worker.name)} dials from the daemon's machine: `outrider worker down` there ends it"
    return ""


def _ago(time: str, now: datetime) -> str:
    """How long ago a UTC time was, short; `never` for none."""
    passed = age(time, now) if time else "never"
    return passed if passed in ("never", "now", "-") else f"{passed} ago"


def local(time: str) -> str:
    """A UTC time as the clock here shows it."""
    found = moment(time)
    return line(time) if found is None else f"{found.astimezone():%Y-%m-%d %H:%M}"
