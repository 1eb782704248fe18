"""A worker that root starts for another user: all of it is that user's, but for the mesh's helper, which root starts.

Root's process does nothing beside: it hands signals on, and ends with the worker.
"""

import errno
import os
import pwd
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from mesh import starter

STARTER: Final = (
    "OUTRIDER_STARTER"  # in the worker's environment: the descriptor of its socket to root's process
)
_ENDED: Final = 128  # and a signal's number, as shells say it
_NOT_STARTED: Final = 126  # the same for what cannot be executed
# What is of root's session, and would lead the user's programs to root's files.
_ROOTS: Final = ("XDG_", "SUDO_", "MAIL", "OLDPWD", "PWD")


class DropError(Exception):
    """The worker cannot be that user's; the message says why and what would do."""


def launcher(environ: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What starts the mesh's helper for this process, and the descriptors that it has to inherit; empty: nothing."""
    fd = environ.get(STARTER, "")
    return (starter.launcher(int(fd)), (int(fd),)) if fd.isdigit() else ((), ())


def run(name: str, command: Sequence[str]) -> int:
    """Run a command as this user, and start helpers for it, until it ends; its code. Raises DropError."""
    if os.geteuid() != 0:
        raise DropError("--user is for root: another user's worker is that user's already")
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise DropError(f"--user {name}: there is no such user on this machine") from None
    if user.pw_uid == 0:
        raise DropError(
            f"--user {name} is root: name the user whose files agents may touch, or say --as-root"
        )
    ours, theirs = starter.pair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _become(user, theirs.fileno(), command)
    theirs.close()
    started = starter.Starter(ours)
    before = {
        number: signal.signal(number, lambda got, _: os.kill(pid, got))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    try:
        while select.select([ours], [], [])[0] and started.take():
            pass
        _, status = os.waitpid(pid, 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        started.close()
    code = os.waitstatus_to_exitcode(status)
    if code == _NOT_STARTED:
        raise DropError(
            f"{name} cannot run {command[0]}: install Outrider where that user can read it, in /opt for one"
        )
    return code if code >= 0 else _ENDED - code


def _become(user: pwd.struct_passwd, fd: int, command: Sequence[str]) -> NoReturn:
    """Be this user, for ever, and the command."""
    try:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        os.chdir("/")
        os.set_inheritable(fd, True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_ROOTS)}
        own = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": user.pw_shell}
        os.execve(command[0], list(command), kept | own | {STARTER: str(fd)})  # noqa: S606 - no shell is wanted
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ENOENT):
            sys.stderr.write(f"outrider: {user.pw_name}: {error}\n")
    os._exit(_NOT_STARTED)
