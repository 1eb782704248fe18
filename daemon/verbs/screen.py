"""Show the terminal UI on the daemon that the command line names."""

import asyncio
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from daemon import config
from daemon.client import Unreachable
from daemon.plain import safe
from daemon.verbs import reach
from daemon.verbs.paint import is_terminal
from daemon.verbs.reach import OK, UNREACHABLE, USAGE, VerbError, note, say

WEB = "tui.web"
UI = "tui.main"  # by its name: the daemon imports none of it, and no other verb pays for it


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether there is a terminal to show it on (it draws on stderr), or a page of `serve` that is one."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return bool(environ.get("TEXTUAL_DRIVER")) or all(out is not None and is_terminal(out) for out in streams)


def show(socket: str, url: str, environ: Mapping[str, str]) -> int:
    """Show it until the person quits."""
    place = reach.where(socket, url, environ)
    settings = config.load(environ)
    ui: Any = importlib.import_module(UI)
    client = reach.client(place)
    try:
        asyncio.run(client.sign_in())
    except Unreachable as error:
        raise VerbError(safe(str(error)), UNREACHABLE) from error
    try:
        code = ui.run(
            client,
            where=str(place.socket or place.url),
            here=place.here,
            state=config.tui_folder(environ),
            cwd=os.getcwd(),
            start=(lambda: _start(socket)) if place.here else None,
            themes=config.themes_folder(environ),
            theme=settings.tui.theme,
            keys=settings.tui.keys,
        )
    except ui.BadSettings as error:
        raise VerbError(safe(str(error)), USAGE) from error
    return int(code)


def serve(socket: str, url: str, port: int, environ: Mapping[str, str]) -> int:
    """Serve it to a browser of this machine until a signal. What cannot be used is told before anybody opens it."""
    reach.where(socket, url, environ)
    config.load(environ)
    try:
        web: Any = importlib.import_module(WEB)
    except ModuleNotFoundError as error:
        raise VerbError(f"--web needs the extra `web` ({error.name}): pip install 'outrider[web]'") from error
    named = [*(["--socket", socket] if socket else []), *(["--url", url] if url else [])]
    try:
        web.main([sys.executable, "-P", "-m", "daemon.cli", *named], port, _told)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error  # asyncio's own text is long
        raise VerbError(f"--web {port}: cannot listen at {web.HOST}:{port}: {why}", USAGE) from error
    return OK


def _told(url: str) -> None:
    say(url)
    note("Open it in a browser on this machine; it opens once. Ctrl-C ends it.")


async def _start(socket: str) -> None:
    """`outrider up` in a process of its own. Raises Unreachable with what it complained of."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "daemon.cli",
        *(["--socket", socket] if socket else []),
        "up",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    _, said = await process.communicate()
    if process.returncode:
        raise Unreachable(said.decode(errors="replace").removeprefix(reach.COMPLAINT).strip())
