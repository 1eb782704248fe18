"""Have a text edited in the person's own editor."""

import asyncio
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

USUAL: Final = "vi"  # where neither VISUAL nor EDITOR names one


class Failed(Exception):
    """The editor did not end well; the message names it."""


async def edited(text: str, edit: Callable[[Path], Awaitable[None]]) -> str:
    """`text` as `edit` leaves it in a file of the owner's alone, without line ends at its end.

    Raises OSError, Failed.
    """
    path = await asyncio.to_thread(_made, text)
    try:
        await edit(path)
        return await asyncio.to_thread(_read, path)
    finally:
        await asyncio.to_thread(path.unlink, True)


def run(path: Path) -> None:
    """The editor on the terminal, until the person leaves it. Blocks the main thread. Raises OSError, Failed."""
    name = next((name for name in ("VISUAL", "EDITOR") if os.environ.get(name, "").strip()), "")
    named = os.environ[name] if name else USUAL
    try:
        command = shlex.split(named)
    except ValueError as error:
        raise Failed(f"{name}={named}: {error}") from error
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def hand_on(number: int, frame: object) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    # A ctrl+c there is the editor's, and would end us too. Not SIG_IGN: that the editor would inherit. What is to end
    # us ends the editor, so that we can.
    handlers = {
        signal.SIGINT: _not_ours,
        signal.SIGQUIT: _not_ours,
        signal.SIGHUP: hand_on,
        signal.SIGTERM: hand_on,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        with subprocess.Popen([*command, str(path)]) as child:
            for number in early:
                child.send_signal(number)
            code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code:
        how = f"exit {code}" if code > 0 else f"signal {-code}"
        raise Failed(f"{command[0]} ended with {how}: the message is as it was")


def _not_ours(number: int, frame: object) -> None:
    """Pass over a signal."""


def _made(text: str) -> Path:
    fd, name = tempfile.mkstemp(prefix="outrider-", suffix=".md")
    with open(fd, "wb") as file:
        file.write(text.encode("utf-8", "replace"))
    return Path(name)


def _read(path: Path) -> str:
    return path.read_text("utf-8", "replace").rstrip("\n")
