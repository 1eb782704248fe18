"""Keep the sessions' files that a harness puts here below a limit: those that were written longest ago go first."""

import contextlib
import os
from pathlib import Path
from typing import Final

FOLDER: Final = "sessions"  # in the scratch folder
KEEP_BYTES: Final = 1 << 30  # of all of them, as of the journals
LEFT_OVER: Final = 24 * 3600.0  # seconds after which a temporary file is no write that goes on


def clean(folder: Path, now: float, keep: int = KEEP_BYTES) -> None:
    """Let go of what is over the limit. `now` in UNIX seconds. Blocks."""
    found: list[tuple[float, int, str]] = []
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return  # there is none yet
    for entry in entries:
        with contextlib.suppress(OSError):
            about = entry.stat(follow_symlinks=False)
            if not entry.is_file(follow_symlinks=False):
                continue
            if not entry.name.startswith("."):
                found.append((about.st_mtime, about.st_size, entry.path))
            elif now - about.st_mtime > LEFT_OVER:
                os.unlink(entry.path)
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= keep:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= size
