"""The cgroup of one environment, where cgroup v2 lets us make one: all in it can be ended at once, forking or not."""

import contextlib
import functools
import os
import time
from pathlib import Path
from typing import Final

from daemon.worker import reaper

PREFIX: Final = "outrider-"  # then the keeper's pid and a number
WAIT: Final = 5.0  # seconds that processes get to go once killed; one in an uninterruptible wait may not
PAUSE: Final = 0.01


@functools.cache
def own() -> Path | None:
    """The folder of this process's cgroup, None where there is no cgroup v2 or none may be made in it.

    What keepers left there that were killed together with their reapers is removed.
    """
    try:
        found = mounted(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
        if found is None or not os.access(found, os.W_OK) or not os.access(found / "cgroup.procs", os.W_OK):
            return None
        for old in found.glob(f"{PREFIX}*-*"):
            if not Path(f"/proc/{old.name.split('-')[1]}").exists():
                with contextlib.suppress(OSError):
                    old.rmdir()
    except OSError:
        return None
    return found


def mounted(mountinfo: str, membership: str) -> Path | None:
    """The folder of a process's cgroup, from what /proc says of its mounts and of its cgroups."""
    path = next((line[3:] for line in membership.splitlines() if line.startswith("0::/")), None)
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        if path is not None and kind.startswith("cgroup2 "):
            root, at = mount.split()[3:5]
            if (path + "/").startswith(root.rstrip("/") + "/"):
                return Path(at) / path[len(root.rstrip("/")) :].lstrip("/")
    return None


class Cgroup:
    """A cgroup of our own; `path` is its folder. The reaper puts the interpreter into it, and removes it."""

    _made = 0

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls) -> "Cgroup | None":
        """A new one, None where there can be none. Blocks for as long as a mkdir takes."""
        folder = own()
        if folder is None:
            return None
        cls._made += 1
        path = folder / f"{PREFIX}{os.getpid()}-{cls._made}"
        try:
            path.mkdir()
        except OSError:
            return None
        if not (path / "cgroup.kill").exists():  # before Linux 5.14
            path.rmdir()
            return None
        return cls(path)

    def processes(self) -> list[tuple[int, str]]:
        """Pid and name of what is in it."""
        with contextlib.suppress(OSError):
            pids = (self.path / "cgroup.procs").read_text().split()
            return [(int(pid), reaper.name(int(pid))) for pid in pids]
        return []

    def end(self) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """Kill what is in it and remove it: what was ended, what is left. Blocks."""
        found = self.processes()
        left = found
        give_up = time.monotonic() + WAIT
        while left and time.monotonic() < give_up:
            with contextlib.suppress(OSError):
                (self.path / "cgroup.kill").write_text("1")
            time.sleep(PAUSE)
            left = self.processes()
        with contextlib.suppress(OSError):
            self.path.rmdir()
        return [one for one in found if one not in left], left
