"""Show a record's picture outside of the terminal: saved for its owner alone, opened by the system's opener."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from daemon.plain import line, safe
from tui.attach import IMAGES

FAILS: Final = 3.0  # seconds in which an opener that cannot has said so; one that is the viewer itself stays
ENDINGS: Final = {type: ending for ending, (type, _) in reversed(IMAGES.items())}
OTHER: Final = ".bin"  # of what is not opened, for nobody knows what a program does with it
FAR: Final = ("SSH_CONNECTION", "SSH_TTY")  # are set where the screen is another machine's
DISPLAYS: Final = (
    "DISPLAY",
    "WAYLAND_DISPLAY",
)  # without one, xdg-open would start a browser in this terminal


class Pictures:
    """Pictures of this run of the app, in one folder. `environ` and `platform` as in `os` and `sys`."""

    def __init__(self, environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> None:
        self._environ = environ
        self._platform = platform
        self._folder: Path | None = None
        self._viewers: list[subprocess.Popen[bytes]] = []  # of which the end is not known

    async def show(self, session: str, n: int, media: str, data: bytes) -> str:
        """Save record `n` and have it opened; a line that says so, or where it lies. Raises OSError."""
        return await asyncio.to_thread(self._show, session, n, media, data)

    def _show(self, session: str, n: int, media: str, data: bytes) -> str:
        ending = ENDINGS.get(media, "")
        is_one = bool(ending) and IMAGES[ending][1].match(data) is not None
        path = self._save(f"{session[:8]}-{n}{ending if is_one else OTHER}", data)
        where = safe(f"saved as {path}")
        if not is_one:
            return f"{line(media)} is not opened; {where}"
        why, command = self._opener()
        if not command:
            return f"{why}; {where}"
        failed = self._run((*command, str(path)))
        return f"{failed}; {where}" if failed else f"{Path(command[0]).name} opens it; {where}"

    def _opener(self) -> tuple[str, tuple[str, ...]]:
        """(why there is none, the command without the file)."""
        if any(self._environ.get(name) for name in FAR):
            return "this terminal is on another machine", ()
        name = "open" if self._platform == "darwin" else "xdg-open"
        if self._platform != "darwin" and not any(self._environ.get(one) for one in DISPLAYS):
            return "there is no desktop to open it on", ()
        found = shutil.which(name, path=self._environ.get("PATH"))
        return ("", (found,)) if found else (f"{name} is not installed", ())

    def _save(self, name: str, data: bytes) -> Path:
        if self._folder is None or not self._folder.is_dir():
            self._folder = Path(tempfile.mkdtemp(prefix="outrider-"))  # 0700
        path = self._folder / name
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        return path

    def _run(self, command: tuple[str, ...]) -> str:
        """Why it could not, empty where it did or is still at it. It has nothing of the terminal, and outlives us."""
        self._viewers = [viewer for viewer in self._viewers if viewer.poll() is None]
        none = subprocess.DEVNULL
        try:
            viewer = subprocess.Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True)
        except OSError as error:
            return f"{Path(command[0]).name} does not start: {error.strerror}"
        try:
            code = viewer.wait(FAILS)
        except subprocess.TimeoutExpired:
            self._viewers.append(viewer)
            return ""
        return f"{Path(command[0]).name} could not open it (exit {code})" if code else ""
