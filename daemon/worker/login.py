"""What is said to a login shell before its first run, and what one knows: its variables, where python3 and node are."""

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from daemon.worker import surroundings, syntax

PATH_WAIT: Final = 5.0  # seconds for a login shell to say its variables, and for a python or node its version
# Has a login shell say its exported variables with its own means: its PATH may be spoilt.
SAY_ALL: Final = (
    "builtin printf '\\0\\0'; "
    "IFS=$'\\n'; "
    'for REPLY in $(builtin compgen -e); do builtin printf "%s=%s\\0" "$REPLY" "${!REPLY-}"; done'
)
PYTHON: Final = "python3"
PYTHON_FITS: Final = "import sys; sys.exit(sys.version_info < (3, 6))"  # what driver.py needs
NODE: Final = "node"
# What driver.cjs needs; other programs go by the name as well.
NODE_FITS: Final = (
    "process.exit(parseInt(process.versions.node) >= 18 && "
    "require('inspector').Session.prototype.connectToMainThread ? 0 : 1)"
)
# Without a terminal these wait for keys that never come; what needs no screen goes through.
SCREEN_EDITORS: Final = ("vi", "vim", "view", "nvim")
NO_SCREEN: Final = (
    '{ case " $* " in *" -"[eEsS]*|*" --"[!" "]*) command "$FUNCNAME" "$@" ;; '
    '*) echo "$FUNCNAME: there is no terminal here, so no editor can be opened" >&2; return 1 ;; esac; }'
)


def first_line(env: Mapping[str, str], status: int) -> str:
    """What makes a login shell fit for runs.

    It answers `ready PID` on descriptor `status`, with a word more where TMOUT cannot be unset.
    """
    exports = " ".join(
        f"{name}={shlex.quote(env[name])}" for name in surroundings.NO_TERMINAL if name != "HISTFILE"
    )
    secrets = "|".join(["OUTRIDER_*", *(f"*{ending}" for ending in surroundings.SECRET_ENDINGS)])
    return (
        "unset HISTFILE TMOUT MAILCHECK PROMPT_COMMAND; PS0= PS1= PS2=; "
        "set +m +H +o history +o vi +o emacs; unalias -a; "
        "unset -f command_not_found_handle; trap - DEBUG ERR RETURN EXIT; "
        f"export {exports}; "
        f"for REPLY in {' '.join(SCREEN_EDITORS)}; do eval \"$REPLY\"'() {NO_SCREEN}'; done; "
        f"for REPLY in $(compgen -e); do case $REPLY in {secrets}) unset -v $REPLY;; esac; done; unset REPLY; "
        f"echo ready $$ ${{TMOUT:+tmout}} >&{status}"
    )


def login_path(bash: str, env: Mapping[str, str]) -> str:
    """PATH as a login shell that is not interactive has it, or ours where it does not say. Blocks."""
    return (said_by([bash, "-l"], env) or env).get("PATH", os.defpath)


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a program that the operator starts from a login shell, without the daemon's. Blocks.

    The shell is one like our bash; one whose profile does not come up is tried without what only interactive shells
    read, and where that does not say either, they are the daemon's own with nothing on top.
    """
    env = surroundings.surroundings(environ)
    if bash := syntax.program():
        env = said_by([bash, "--noediting", "-l", "-i"], env) or said_by([bash, "-l"], env) or env
    return surroundings.without_secrets(env) | dict(surroundings.NO_TERMINAL)


def said_by(bash: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """The variables that a shell says it has; none where it says none. Blocks."""
    *said, _ = output([*bash, "-c", SAY_ALL], env).rpartition(b"\0\0")[2].split(b"\0")
    pairs = (os.fsdecode(one).partition("=") for one in said)
    return {name: value for name, _, value in pairs}


def python(env: Mapping[str, str]) -> str | None:
    """The operator's python3: the first on PATH that is not of this project's own environment."""
    return shutil.which(PYTHON, path=surroundings.without_own(env.get("PATH", os.defpath)))


def runs_python(env: Mapping[str, str]) -> bool:
    """Whether there is a python3 that starts and is new enough. Blocks."""
    found = python(env)
    return found is not None and _ends_well([found, "-c", PYTHON_FITS], env, subprocess.DEVNULL)


def node(env: Mapping[str, str]) -> str | None:
    """The operator's node: the first on PATH."""
    return shutil.which(NODE, path=surroundings.without_own(env.get("PATH", os.defpath)))


def runs_node(env: Mapping[str, str]) -> bool:
    """Whether there is a node that starts and is new enough. Blocks."""
    found = node(env)
    return found is not None and _ends_well([found, "-e", NODE_FITS], env, subprocess.DEVNULL)


def output(argv: Sequence[str], env: Mapping[str, str]) -> bytes:
    """What a program prints that ends well in time, without a terminal; nothing of one that does not. Blocks."""
    # Not a pipe: what a profile leaves running would hold it open.
    with open(os.memfd_create("said", os.MFD_CLOEXEC), "rb") as file:
        if not _ends_well(argv, env, file.fileno()):
            return b""
        file.seek(0)
        return file.read()


def _ends_well(argv: Sequence[str], env: Mapping[str, str], stdout: int) -> bool:
    """Run a program without a terminal, in the operator's home; whether it ends in time with status 0."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
            env=dict(env),
            cwd=surroundings.home(),
            start_new_session=True,
            timeout=PATH_WAIT,
            check=False,
        )
        return done.returncode == 0
    return False
