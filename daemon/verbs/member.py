"""The verbs on a worker that joins a mesh: join, go on after a restart, leave."""

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from daemon import config, release
from daemon.allowance import Allowance
from daemon.plain import line
from daemon.verbs.reach import FAILED, OK, REFUSED, UNREACHABLE, USAGE, VerbError, say, say_json
from daemon.verbs.worker import allowance, be, check_name, folder, the_one
from daemon.worker import dropped, joining, keeper, member, station
from daemon.worker.joining import JoinError, Membership, Token

STDIN: Final = "-"  # as a token: it is read from standard input
VARIABLES: Final = ("OUTRIDER_JOIN", "OUTRIDER_TOKEN")  # as join.sh has them too
MOST: Final = 64 << 10  # bytes of a token, with white space
_CODES: Final[Mapping[str, int]] = {
    "wrong": USAGE,
    "refused": REFUSED,
    "unreachable": UNREACHABLE,
    "failed": FAILED,
}
NOBODYS: Final = (
    "say whose worker this is: --join TOKEN (`outrider token new` on the harness prints one), or --connect SOCKET "
    "and --name NAME for a daemon of this machine"
)


def join(
    text: str, name: str, scratch: str, file: str, as_root: bool, user: str, environ: Mapping[str, str]
) -> int:
    """Join the mesh of a token and be its worker until a signal ends it, or the harness removes it."""
    if text != STDIN:
        _without_the_token(text)
    if user:
        _check_for(user)
        return _as(user)
    allowed = allowance(file, as_root, environ)
    if name and not scratch:
        check_name(name)  # it names a folder
    token = _read(sys.stdin.buffer.read(MOST).decode("utf-8", "replace"))
    place = folder(scratch, name, environ) if scratch or name else None
    found = place or joining.folder(config.workers_folder(environ), token)
    config.check_socket(found / keeper.SOCKET)
    station.log_to_stderr()
    backend = "" if dropped.launcher(environ)[0] else config.worker_mesh(environ, file)[0]
    try:
        membership = asyncio.run(joining.join(found, token, name, release.own(), backend))
    except JoinError as error:
        raise _told(error) from error
    except station.LinkBusy as error:
        raise VerbError(str(error)) from error
    return _work(found, membership, allowed, file, as_root, environ)


def resume(scratch: str, name: str, file: str, as_root: bool, user: str, environ: Mapping[str, str]) -> int:
    """Be the worker that joined before, by what is kept."""
    if user:
        return _as(user)
    allowed = allowance(file, as_root, environ)
    try:
        found = the_one(scratch, name, environ) if scratch or name else _only(environ)
    except VerbError as error:
        raise VerbError(str(error) if NOBODYS in str(error) else f"{error}: {NOBODYS}", USAGE) from error
    config.check_socket(found / keeper.SOCKET)
    station.log_to_stderr()
    try:
        membership = joining.stored(found)
    except JoinError as error:
        raise _told(error) from error
    if membership is None:
        raise VerbError(f"the worker of {found} is in no mesh: {NOBODYS}", USAGE)
    return _work(found, membership, allowed, file, as_root, environ)


def _check_for(user: str) -> None:
    """Raises VerbError where root cannot make the mesh's interface for that user's worker."""
    if os.geteuid() != 0:
        return  # which is told of
    try:
        asyncio.run(joining.check_machine("auto"))
    except JoinError as error:
        raise _told(error) from error


def _as(user: str) -> int:
    """Run this command as that user; root's own part is to start the mesh's helper."""
    arguments = list(sys.orig_argv[1:])
    for number, argument in enumerate(arguments):
        if argument == "--user":
            del arguments[number : number + 2]
            break
        if argument.startswith("--user="):
            del arguments[number]
            break
    try:
        return dropped.run(user, [sys.executable, *arguments])
    except dropped.DropError as error:
        raise VerbError(str(error), USAGE) from error


def _only(environ: Mapping[str, str], none: str = NOBODYS) -> Path:
    """The one scratch folder that is in a mesh. Raises VerbError; `none`: what it says where there is no such."""
    there = [path for path, _ in joining.joined(config.workers_folder(environ))]
    if not there:
        raise VerbError(none, USAGE)
    if len(there) > 1:
        names = ", ".join(line(path.name) for path in there)
        raise VerbError(f"this machine is in several meshes: name one with --name: {names}", USAGE)
    return there[0]


def _work(
    scratch: Path,
    membership: Membership,
    allowed: Allowance,
    file: str,
    as_root: bool,
    environ: Mapping[str, str],
) -> int:
    harness = membership.answer.harness or "the harness"
    if membership.removed:
        raise VerbError(
            f"{harness} has removed this machine from its mesh: join again with --join TOKEN", REFUSED
        )
    backend, mtu = config.worker_mesh(environ, file)
    launcher, lent = dropped.launcher(environ)
    member.prepare()
    place = station.Place(
        scratch=scratch,
        release=release.own(),
        harness=member.Member(
            scratch, membership, backend=backend, mtu=mtu, launcher=launcher, lent=lent
        ).harness,
        name=membership.answer.name,
        allowed=allowed,
    )
    again = ["worker", "--scratch", str(scratch)]  # the token was read, and is spent
    again += ["--config", file] if file else []
    again += ["--as-root"] if as_root else []
    return be(place, again)


def leave(scratch: str, name: str, force: bool, purge: bool, environ: Mapping[str, str], json: bool) -> int:
    """Take this machine out of its harness's mesh, and end its worker and what runs there."""
    found = (
        the_one(scratch, name, environ) if scratch or name else _only(environ, "this machine is in no mesh")
    )
    station.log_to_stderr()
    try:
        left, untold = asyncio.run(joining.leave(found, force))
        if purge:
            shutil.rmtree(found)
    except JoinError as error:
        raise _told(error) from error
    except OSError as error:
        raise VerbError(f"{found} cannot be removed: {error.strerror or error}") from error
    name, harness = left.answer.name, left.answer.harness
    if json:
        say_json({"worker": name, "harness": harness, "told": not untold})
        return OK
    say(f"{name} has left the mesh of {harness or 'the harness'}")
    if untold:
        say(f"the harness was not told ({untold}): `outrider worker remove {name}` there")
    return OK


def _read(text: str) -> Token:
    try:
        return joining.read(text)
    except JoinError as error:
        raise _told(error) from error


def _told(error: JoinError) -> VerbError:
    return VerbError(str(error), _CODES[error.kind])


def _without_the_token(text: str) -> None:
    """Begin this very command anew with the token on standard input: others read command lines and environments.

    Raises VerbError.
    """
    _read(text)  # what is no token is told at once
    reading, writing = os.pipe()
    os.write(writing, text.encode())  # a pipe takes as much as a token can be
    os.close(writing)
    os.dup2(reading, 0)
    os.close(reading)
    command = [sys.executable, *sys.orig_argv[1:]]
    hidden = [_hidden(argument, text) for argument in command]
    if f"--join={STDIN}" not in hidden and STDIN not in hidden:  # it was in the environment
        hidden.append(f"--join={STDIN}")
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    os.execve(sys.executable, hidden, environ)  # noqa: S606 - no shell is wanted


def _hidden(argument: str, text: str) -> str:
    return STDIN if argument == text else f"--join={STDIN}" if argument == f"--join={text}" else argument
