"""Have a text edited in the person's own editor."""

import asyncio
import os
import shlex
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

USUAL: Final = "vi"  # where neither VISUAL nor EDITOR names one


async def edited(text: str, edit: Callable[[Path], Awaitable[None]]) -> str:
    """`text` as `edit` leaves it in a file of the owner's alone, without line ends at its end. Raises OSError."""
    path = await asyncio.to_thread(_made, text)
    try:
        await edit(path)
        return await asyncio.to_thread(_read, path)
    finally:
        await asyncio.to_thread(path.unlink, True)


def run(path: Path) -> None:
    """The editor on the terminal, until the person leaves it. Blocks. Raises OSError."""
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or USUAL)
    subprocess.run([*command, str(path)], check=False)


def _made(text: str) -> Path:
    fd, name = tempfile.mkstemp(prefix="outrider-", suffix=".md")
    with open(fd, "w") as file:
        file.write(text)
    return Path(name)


def _read(path: Path) -> str:
    return path.read_text(errors="replace").rstrip("\n")
