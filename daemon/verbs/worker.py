"""The verbs on a worker of this machine: be one, see how it stands, end it."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from daemon import config, release
from daemon.allowance import Allowance
from daemon.plain import count, line, safe, size
from daemon.protocol import dialing
from daemon.verbs.reach import FAILED, OK, REFUSED, USAGE, VerbError, say, say_json
from daemon.verbs.tables import ago, facts, local
from daemon.worker import install, keeper, launch, station, update
from daemon.worker.tunnel import Tunnel

AS_ROOT: Final = (
    "this is root, and agents would run their code as root: start it as the user whose files they may touch, "
    "or say --user NAME with --join, so that root keeps the interface of the mesh alone; or say --as-root, or "
    "as_root = true in [worker] of its configuration"
)


def work(connect: str, name: str, scratch: str, file: str, as_root: bool, environ: Mapping[str, str]) -> int:
    """Be the worker `name` of the daemon that listens at `connect`, until a signal ends it.

    Where it was updated, or is, this process goes on as that release, with the same command line.
    """
    check_name(name)
    place = station.Place(
        scratch=folder(scratch, name, environ),
        release=release.own(),
        harness=station.on_socket(config.check_socket(absolute(connect))),
        name=name,
        allowed=allowance(file, as_root, environ),
    )
    config.check_socket(place.scratch / keeper.SOCKET)
    station.log_to_stderr()
    return be(place, sys.argv[1:])


def check_name(name: str) -> None:
    """Raises VerbError where a worker cannot have this name."""
    try:
        dialing.check_name(name)
    except dialing.BadNameError as error:
        raise VerbError(str(error), USAGE) from error


def allowance(file: str, as_root: bool, environ: Mapping[str, str]) -> Allowance:
    """What is allowed on this machine. Raises VerbError where this is root, which nobody has allowed."""
    allowed = config.worker(environ, file)
    if os.geteuid() == 0 and not (as_root or allowed.as_root):
        raise VerbError(AS_ROOT, USAGE)
    return allowed


def be(place: station.Place, again: Sequence[str]) -> int:
    """Be this worker's link until a signal; where another release is to go on, it gets the arguments `again`."""
    try:
        python = update.successor(place.scratch, place.release) or asyncio.run(station.work(place))
    except station.Removed as error:
        raise VerbError(str(error), REFUSED) from error
    except (station.LinkBusy, station.CannotWork) as error:
        raise VerbError(str(error)) from error
    if python is not None:
        _become(install.command(python, *again))
    return OK


def _become(command: list[str]) -> NoReturn:
    """Go on as another release, in this very process: who watches it sees no end."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise VerbError(f"cannot go on as {command[0]}: {error.strerror}") from error


def check(json: bool) -> int:
    """Say which release this is, after it has shown that it can be a worker here."""
    try:
        asyncio.run(station.check(release.own()))
    except (launch.LaunchError, OSError) as error:
        raise VerbError(str(error)) from error
    if json:
        say_json({"release": release.own()})
    else:
        say(release.own())
    return OK


def status(scratch: str, name: str, environ: Mapping[str, str], json: bool) -> int:
    """Say how a worker of this machine stands, or where none is named, each of them; 1 when one is not connected."""
    folders = [the_one(scratch, name, environ)] if scratch or name else those(environ)
    found = [asyncio.run(_look(path)) for path in folders]
    if json:
        say_json(found[0] if len(found) == 1 else found)
    else:
        for number, one in enumerate(found):
            if number:
                say("")
            _show(one)
    return OK if all(one.state == "connected" for one in found) else FAILED


def standings(environ: Mapping[str, str]) -> list[station.Standing]:
    """How each worker of this user stands."""
    try:
        folders = those(environ)
    except VerbError:
        return []
    return [asyncio.run(_look(path)) for path in folders]


async def _look(scratch: Path) -> station.Standing:
    """How a worker stands, with what is kept of its mesh where no link says it."""
    found = await station.look(scratch)
    if found.mesh is None and (scratch / station.MESH).is_dir():
        from daemon.worker import joining

        try:
            found = msgspec.structs.replace(found, mesh=await joining.look(scratch))
        except joining.JoinError as error:
            found = msgspec.structs.replace(found, reason=str(error))
    if found.mesh is not None and not found.name:  # it has never dialled
        return msgspec.structs.replace(found, name=found.mesh.name)
    return found


def _show(found: station.Standing) -> None:
    since = f", since {local(found.since)} ({ago(found.since)})" if found.since else ""
    styles = {"connected": "good", "dialing": "failed", "down": "failed"}
    runs = f"{count(found.running, 'run')} going" if found.keeper_release else ""
    removed = found.mesh is not None and found.mesh.removed  # whatever was tried before it heard of that
    facts(
        [
            ("worker", found.name or "-", ""),
            ("harness", found.harness, ""),
            ("state", f"{found.state}{since}", styles[found.state]),
            ("reason", "" if removed else found.reason, "note"),
            ("update", found.update, "note"),
            ("last", f"connected {local(found.connected)}" if found.connected else "never connected", ""),
            *_mesh(found.mesh),
            ("link", _process(found.link, found.link_release), ""),
            ("keeper", _process(found.keeper, found.keeper_release), ""),
            ("runs", runs, ""),
            ("environments", str(found.environments) if found.keeper_release else "", ""),
            ("interpreters", ", ".join(found.interpreters), ""),
            ("scratch", found.scratch, ""),
        ]
    )


def _mesh(found: Tunnel | None) -> list[tuple[str, str, str]]:
    """The lines on a worker's end of a mesh."""
    if found is None:
        return []
    if found.removed:
        harness = found.harness or "the harness"
        return [
            (
                "mesh",
                f"removed from that of {harness}: join again by a token of `outrider token new` there",
                "failed",
            )
        ]
    heard = f"{local(found.handshake)} ({ago(found.handshake)})" if found.handshake else "none yet"
    return [
        ("mesh", f"{found.harness or 'the harness'}, {found.address} here", ""),
        ("path", found.path, ""),
        ("relay", found.relay, ""),
        ("handshake", heard if found.how else "", ""),
        ("traffic", f"{size(found.rx)} in, {size(found.tx)} out" if found.how else "", ""),
        ("by", f"{found.how}; MTU {found.mtu}" if found.how else "", ""),
    ]


def _process(pid: int, release: str) -> str:
    if not pid:
        return "none runs"
    return f"pid {pid}, release {release}" if release else f"pid {pid}, does not answer"


def down(scratch: str, name: str, environ: Mapping[str, str], json: bool) -> int:
    """End a worker of this machine: its link, its keeper and what runs there."""
    link, kept = asyncio.run(station.end(the_one(scratch, name, environ)))
    if json:
        say_json({"link": link or None, "keeper": kept or None})
    elif not link and not kept:
        say("the worker was not up")
    else:
        ended = [f"{what} (pid {pid})" for what, pid in (("link", link), ("keeper", kept)) if pid]
        say(f"the worker is down: ended {' and '.join(ended)}")
    return OK


def folder(scratch: str, name: str, environ: Mapping[str, str]) -> Path:
    """A worker's scratch folder: the one that was given, else its own among all of this user's."""
    return absolute(scratch) if scratch else config.workers_folder(environ) / name


def the_one(scratch: str, name: str, environ: Mapping[str, str]) -> Path:
    """The scratch folder of the worker that is meant: the only one where none is named. Raises VerbError."""
    if scratch or name:
        found = folder(scratch, name, environ)
        if not found.is_dir() and (named := None if scratch else _member(name, environ)) is not None:
            return named
        if not found.is_dir():
            raise VerbError(f"no worker has ever worked in {safe(str(found))}")
        return found
    there = those(environ)
    if len(there) > 1:
        names = ", ".join(line(path.name) for path in there)
        raise VerbError(f"there are several workers here: name one of them with --name: {names}", USAGE)
    return there[0]


def those(environ: Mapping[str, str]) -> list[Path]:
    """The scratch folders of all workers of this user. Raises VerbError where there is none."""
    base = config.workers_folder(environ)
    there = sorted(path for path in base.iterdir() if path.is_dir()) if base.is_dir() else []
    if not (workers := [path for path in there if _is_ones(path)]):
        left = f" (what is left of others: {', '.join(line(path.name) for path in there)})" if there else ""
        raise VerbError(
            f"no worker of this user is in {safe(str(base))}{left}: name another one's folder with --scratch"
        )
    return workers


def _is_ones(scratch: Path) -> bool:
    """Whether a folder is that of a worker, and not what one has left that is in no mesh any more."""
    from daemon.worker import joining

    try:
        return (scratch / station.STATE).exists() or joining.stored(scratch) is not None
    except joining.JoinError:
        return True  # `status` says what is wrong with it


def _member(name: str, environ: Mapping[str, str]) -> Path | None:
    """The scratch folder of the worker that has this name in its mesh, whatever the folder's own."""
    from daemon.worker import joining

    found = joining.joined(config.workers_folder(environ))
    return next((path for path, membership in found if membership.answer.name == name), None)


def absolute(text: str) -> Path:
    """A path as the command line has it, from the root on."""
    return Path(os.path.abspath(Path(text).expanduser()))
