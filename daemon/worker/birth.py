"""When, where and in which boot of the machine a journal was begun, noted in its folder: what makes it another one."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from daemon.worker import smallfiles

FILE: Final = "birth.json"
FORMAT: Final = 2  # of the journal; one in another format is begun anew


class Birth(Struct, frozen=True):
    """When the journal was begun, in which boot of the machine, and in which format.

    `uptime`: the machine's own at that time, which no change of its clock moves; negative where it was not noted.
    `place`: the folder itself, which no copy of it is; empty where it was not noted.
    """

    time: float
    boot: str = ""
    format: int = 1
    uptime: float = -1.0
    place: str = ""


class Origin:
    """The birth of the journal in `folder`, which is made, emptied or begun anew where it has none that holds.

    What a power cut may have taken is covered by the boot: in another one the journal counts as begun anew, so that a
    call it does not know is never taken for one that was not started. A copy of the folder counts as begun anew as
    well: it does not know what was begun in the first one since.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float],
        boot: Callable[[], str] | None,
        uptime: Callable[[], float] | None,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._boot = (boot or boot_id)()
        self._uptime = uptime or up_for
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        birth = smallfiles.read(folder / FILE, Birth)
        if birth is None or birth.format != FORMAT:
            for old in list(folder.iterdir()):
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            birth = None
        if birth is not None and not birth.place:  # of a release that did not note it
            birth = self._noted(replace(birth, place=place_of(folder)))
        if birth is None or birth.boot != self._boot or birth.place != place_of(folder):
            self.begin_anew()
        else:
            self._take(birth)

    def begin_anew(self) -> None:
        """From here on it is another journal, begun now. Blocks."""
        born = Birth(self._clock(), self._boot, FORMAT, self._uptime(), place_of(self._folder))
        self._take(self._noted(born))

    def _noted(self, birth: Birth) -> Birth:
        smallfiles.write_whole(self._folder / FILE, msgspec.json.encode(birth), durable=True)
        return birth

    def _take(self, birth: Birth) -> None:
        by_uptime = (
            bool(birth.boot) and birth.uptime >= 0
        )  # a clock may be set, long after the machine came up too
        self._now, self.born = (self._uptime, birth.uptime) if by_uptime else (self._clock, birth.time)
        self.id = f"{birth.time!r}-{birth.boot}"  # no other journal has it

    @property
    def age(self) -> float:
        """Seconds since the journal was begun."""
        return max(0.0, self._now() - self.born)


def place_of(folder: Path) -> str:
    """Names a folder itself: another one, a copy of it for one, has another name."""
    found = folder.stat()
    return f"{found.st_dev}-{found.st_ino}"


def up_for() -> float:
    """Seconds since the machine was started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Names this boot of the machine; empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
