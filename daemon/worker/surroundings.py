"""The environment variables of agents' code: the operator's own, without the daemon's and without secrets."""

import os
import pwd
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# A variable is a secret of the daemon or its operator, and agents' code does not get it, when its name ends so.
SECRET_ENDINGS: Final = ("_API_KEY", "_TOKEN", "_SECRET", "_SECRET_KEY", "_SECRET_ACCESS_KEY", "_PASSWORD")
# These belong to the daemon's process: its own settings, its Python, its virtual environment.
OWN_PREFIXES: Final = ("OUTRIDER_", "PYTHON")
OWN_NAMES: Final = frozenset({"VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT"})
# These belong to the place the daemon was started from: a service manager, a terminal, a multiplexer.
PLACE_NAMES: Final = frozenset(
    {
        "COLUMNS",
        "CREDENTIALS_DIRECTORY",
        "GPG_TTY",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "LINES",
        "LISTEN_FDNAMES",
        "LISTEN_FDS",
        "LISTEN_PID",
        "MAINPID",
        "NODE_CHANNEL_FD",
        "NODE_CHANNEL_SERIALIZATION_MODE",
        "NOTIFY_SOCKET",
        "OLDPWD",
        "PWD",
        "SHLVL",
        "SSH_ASKPASS",
        "SSH_TTY",
        "STY",
        "SUDO_ASKPASS",
        "TERMCAP",
        "TMUX",
        "TMUX_PANE",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
        "WINDOWID",
        "_",
    }
)
NO_EDITOR: Final = (
    "sh -c 'echo \"no editor can be opened here: there is no terminal. Give the text on the command line "
    '(git commit -m, --no-edit), or set GIT_EDITOR or GIT_SEQUENCE_EDITOR to a program of yours" >&2; '
    "exit 1' no-editor"
)
# Whatever starts it (a script, sudo, xargs), vim would wait for keys at the end of its input; what it is told on its
# command line it does first. A VIMINIT stands for the user's own file, so it reads that.
NO_SCREEN_VIM: Final = (
    'for f in has("nvim") ? [stdpath("config")."/init.vim", stdpath("config")."/init.lua"] : '
    '[$HOME."/.vimrc", $HOME."/.vim/vimrc"]|if filereadable(f)|exe "source" fnameescape(f)|break|endif|endfor|'
    'if !has("ttyin") && index(v:argv, "-s") < 0|exe "autocmd VimEnter * call writefile('
    "['vim: there is no terminal here, so no editor can be opened'], '/dev/stderr', 'a')\\|cquit\"|endif"
)
# There is no terminal: nothing may page, ask or open a screen, and an editor must fail, not leave its file as it is
# (an editor that only succeeds would let `git rebase -i` rewrite history as it stands).
NO_TERMINAL: Final[Mapping[str, str]] = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "EDITOR": NO_EDITOR,
    "VISUAL": NO_EDITOR,
    "GIT_EDITOR": NO_EDITOR,
    "GIT_SEQUENCE_EDITOR": NO_EDITOR,
    "VIMINIT": NO_SCREEN_VIM,
    "GIT_TERMINAL_PROMPT": "0",
    "SSH_ASKPASS_REQUIRE": "never",
    "DEBIAN_FRONTEND": "noninteractive",
    "HISTFILE": "/dev/null",
}


def is_private(name: str) -> bool:
    """Whether agents' code must not get the variable of this name."""
    return name in OWN_NAMES or name.startswith(OWN_PREFIXES) or name.endswith(SECRET_ENDINGS)


def without_private(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a process that agents' code descends from: nothing private, no virtual environment in PATH."""
    kept = {
        name: value for name, value in environ.items() if not is_private(name) and name not in PLACE_NAMES
    }
    if path := kept.get("PATH"):
        kept["PATH"] = without_own(path, environ.get("VIRTUAL_ENV", ""))
    return kept


def without_own(path: str, venv: str = "") -> str:
    """PATH without the environment that this project runs in, and without the virtual environment `venv`."""
    inside = {str(Path(sys.prefix) / "bin")} if sys.prefix != sys.base_prefix else set()
    if venv:
        inside.add(str(Path(venv) / "bin"))
    return ":".join(part for part in path.split(":") if part.rstrip("/") not in inside)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """What a login profile made of variables, without secrets and what was only the shell's own."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("OUTRIDER_") and not name.endswith(SECRET_ENDINGS) and name not in PLACE_NAMES
    }


def surroundings(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that an environment's interpreter starts with; a login profile comes on top."""
    user = account()
    given = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "LANG": "C.UTF-8"}
    return given | without_private(environ) | dict(NO_TERMINAL)


def account() -> pwd.struct_passwd:
    """The operator: the account this process runs as; one without an entry gets HOME and its number."""
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        return pwd.struct_passwd(
            (str(os.getuid()), "x", os.getuid(), os.getgid(), "", os.environ.get("HOME", "/"), "/bin/sh")
        )


def home() -> str:
    """The operator's home: where environments start and relative paths begin when no folder is given."""
    folder = os.environ.get("HOME") or account().pw_dir
    return folder if os.path.isdir(folder) else "/"
