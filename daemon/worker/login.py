"""What is said to a login shell before its first run, and the PATH of one."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from typing import Final

from daemon.worker import surroundings

PATH_WAIT: Final = 5.0  # seconds for a login shell to say its PATH
# Without a terminal these wait for keys that never come; what needs no screen goes through.
SCREEN_EDITORS: Final = ("vi", "vim", "view", "nvim")
NO_SCREEN: Final = (
    '{ case " $* " in *" -"[eEsS]*|*" --"[!" "]*) command "$FUNCNAME" "$@" ;; '
    '*) echo "$FUNCNAME: there is no terminal here, so no editor can be opened" >&2; return 1 ;; esac; }'
)


def first_line(env: Mapping[str, str], status: int) -> str:
    """What makes a login shell fit for runs.

    It answers `ready` on descriptor `status`, with a word more where TMOUT cannot be unset.
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
        f"echo ready ${{TMOUT:+tmout}} >&{status}"
    )


def login_path(bash: str, env: Mapping[str, str]) -> str:
    """PATH as a login shell that is not interactive has it, or ours where it does not say. Blocks."""
    try:
        done = subprocess.run(
            [bash, "-lc", 'printf "\\n%s" "$PATH"'],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(env),
            start_new_session=True,
            timeout=PATH_WAIT,
            check=True,
        )
        return done.stdout.decode().rpartition("\n")[2] or env.get("PATH", os.defpath)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return env.get("PATH", os.defpath)
