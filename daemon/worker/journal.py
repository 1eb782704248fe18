"""What ran and was written here, in a log before it starts and when it ends, so that each happens at most once."""

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from daemon.protocol import framing
from daemon.worker import output
from daemon.worker.segments import Log, Segment
from daemon.worker.units import Acked, Birth, End, Entry, Forgotten, Key, Meta, Result, Unit

__all__ = ["Journal", "Key", "Meta", "Result"]

KEEP_FOR: Final = 24 * 3600.0  # seconds that an acknowledged result stays
KEEP_BYTES: Final = 1 << 30  # of all that has ended; over it it goes, oldest first
KEEP_LEAST: Final = 8 << 20  # of the same, however short the disk is: to let go of less helps nobody
SEGMENT: Final = 1 << 20  # bytes of one file of the log: what is rewritten at once, and goes at once
NAME_MAX: Final = 180  # bytes of a folder's name made from an id; file systems allow 255
OUTPUT: Final = "output"
LATER: Final = "later"
BIRTH: Final = "birth.json"
ENVIRONMENTS: Final = ".environments.json"  # no call's folder has a name that begins so
FORMAT: Final = 2  # of the journal; one in another format is begun anew

T = TypeVar("T")
log = logging.getLogger(__name__)


_decode = msgspec.json.Decoder(Unit).decode
_encode = msgspec.json.Encoder().encode


class Journal:
    """The folder `<scratch>/runs`: a log of all, and a folder for each call that printed something.

    Its methods block as long as a write into the page cache takes, `load` and `clean` longer: call those off the
    loop. Any thread may call any of them.

    Nothing here waits for the disk: what a keeper that was killed wrote is there all the same. What a power cut
    may have taken is covered by the boot: in another one the journal counts as begun anew, so that a call it does
    not know is never taken for one that was not started. A copy of the folder counts as begun anew as well: it does
    not know what was begun in the first one since.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float] = time.time,
        boot: Callable[[], str] | None = None,
        uptime: Callable[[], float] | None = None,
    ) -> None:
        self.folder = folder
        self.entries: dict[Key, Entry] = {}
        self._sessions: Counter[str] = Counter()
        self._broken: set[Path] = set()  # files of the log that do not read any more
        self._log: Log[Unit] = Log(folder, _decode, SEGMENT)
        self._lock = threading.Lock()
        self._clock = clock
        self._boot = (boot or boot_id)()
        self._uptime = uptime or up_for
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        birth = read(folder / BIRTH, Birth)
        if birth is None or birth.format != FORMAT:
            for old in list(folder.iterdir()):
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            birth = None
        if birth is not None and not birth.place:  # of a release that did not note it
            birth = self._noted(msgspec.structs.replace(birth, place=place_of(folder)))
        if birth is None or birth.boot != self._boot or birth.place != place_of(folder):
            birth = self._begin_anew()
        self._take(birth)

    def _begin_anew(self) -> Birth:
        return self._noted(Birth(self._clock(), self._boot, FORMAT, self._uptime(), place_of(self.folder)))

    def _noted(self, birth: Birth) -> Birth:
        write_whole(self.folder / BIRTH, _encode(birth), durable=True)
        return birth

    def _take(self, birth: Birth) -> None:
        by_uptime = (
            bool(birth.boot) and birth.uptime >= 0
        )  # a clock may be set, long after the machine came up too
        self._now, self.born = (self._uptime, birth.uptime) if by_uptime else (self._clock, birth.time)
        self.id = f"{birth.time!r}-{birth.boot}"  # no other journal has it

    def close(self) -> None:
        """Hold no file open; a later `begin` would begin another file of the log."""
        with self._lock:
            self._log.roll()

    @property
    def age(self) -> float:
        """Seconds since the journal was begun."""
        return max(0.0, self._now() - self.born)

    def path(self, key: Key) -> Path:
        """Where a run's output is, if it has any."""
        return self.folder / folder_name(key[0]) / folder_name(key[1])

    def output(self, key: Key) -> str:
        """The file of a run's output."""
        return f"{self.folder}/{folder_name(key[0])}/{folder_name(key[1])}/{OUTPUT}"

    def load(self) -> None:
        """Take up what an earlier keeper left: what was going then has ended, and nobody can say how.

        A log that is damaged before its end may lack calls: it counts as begun anew.
        """
        metas: dict[Key, Meta] = {}

        def take(segment: Segment, unit: Unit, body: bytes, at: int, length: int) -> None:
            key = (unit.session, unit.call)
            entry = self.entries.get(key)
            if isinstance(unit, Meta):
                metas[key] = unit
                self._add(key, Entry(unit.kind, segment, length))
            elif entry is None:
                segment.dead += length
            elif isinstance(unit, Forgotten):
                self._drop(key)
                segment.dead += length
            else:
                entry.bytes += length
                if isinstance(unit, End):
                    metas.pop(key, None)
                    entry.ended = unit.ended
                    self._ends_at(entry, at, length)
                else:
                    entry.acked = True

        if not self._log.load(take):
            log.error("%s: the log is damaged, so what it does not know may have run", self.folder)
            self._take(self._begin_anew())
        for key, entry in self.entries.items():
            entry.size = folder_size(self.path(key))
        for key, meta in metas.items():
            if key not in self.entries:
                continue
            if meta.kind == "run":
                self._finish_unknown(key, meta)
            else:
                self._settle(key, meta)

    def _settle(self, key: Key, meta: Meta) -> None:
        """Find out whether a write happened that was cut off, and remove what is left of it."""
        try:
            happened = not is_there(meta.path if meta.remove else meta.temporary)
            Path(meta.temporary).unlink(missing_ok=True)
        except OSError as error:
            why = f"the worker's keeper ended while {meta.path} was written, and it cannot be looked at now"
            self.finish(key, Result(ended=self._clock(), unknown=f"{why}: {error.strerror}"))
            return
        if happened:
            self.finish(key, Result(ended=self._clock(), exit=0, size=meta.size))
        else:
            self.forget(key)

    def _finish_unknown(self, key: Key, meta: Meta) -> None:
        """Give a run that a keeper lost its result: the output so far, and why its effect is unknown."""
        file = self.path(key) / OUTPUT
        size, lines = output.count_lines(file)
        raw = output.file_end(file, size)
        text, truncated = output.shown(raw, whole=len(raw) == size, lines=lines)
        result = Result(
            ended=self._clock(),
            text=text,
            truncated=truncated,
            full_output=str(file) if truncated else "",
            reset=meta.reset,
            unknown="the worker's keeper ended (it was killed, or the machine restarted) while this was running",
        )
        self.finish(key, result, size)

    def _add(self, key: Key, entry: Entry) -> None:
        if key in self.entries:
            self._drop(key)
        self.entries[key] = entry
        self._sessions[key[0]] += 1
        entry.segment.live += 1

    def _drop(self, key: Key) -> None:
        entry = self.entries.pop(key)
        entry.segment.live -= 1
        entry.segment.dead += entry.bytes
        self._sessions[key[0]] -= 1
        if not self._sessions[key[0]]:
            del self._sessions[key[0]]

    def _ends_at(self, entry: Entry, at: int, length: int) -> None:
        entry.bytes -= entry.length
        entry.segment.dead += entry.length
        entry.at, entry.length = at, length

    def begin(self, meta: Meta, code: bytes = b"") -> Path:
        """Write a run or a write down before it starts; where a run's code is, until the environment's next run.

        Raises OSError: nothing is written down then.
        """
        key = (meta.session, meta.call)
        if meta.len != len(code):
            meta = msgspec.structs.replace(meta, len=len(code))
        data = framing.encode(_encode(meta), code)
        path = code_path(self.folder, meta.session, meta.interpreter)
        with self._lock:
            if meta.kind == "run":
                write_over(path, code)
            segment = self._log.current()
            segment.append(data)
            self._add(key, Entry(meta.kind, segment, len(data)))
        return path

    def forget(self, key: Key) -> None:
        """Take back what was begun and did not happen."""
        with self._lock:
            if entry := self.entries.get(key):
                self._append(entry, Forgotten(session=key[0], call=key[1]))
                self._drop(key)
        shutil.rmtree(self.path(key), ignore_errors=True)

    def _append(self, entry: Entry, unit: Unit, body: bytes = b"") -> tuple[int, int] | None:
        """Where the unit is, None where the disk does not take it."""
        data = framing.encode(_encode(unit), body)
        try:
            at = entry.segment.append(data)
        except OSError:
            return None
        entry.bytes += len(data)
        return at, len(data)

    def finish(self, key: Key, result: Result, size: int = 0) -> None:
        """Write a result down, with the bytes of output that are kept. A disk that takes none leaves it in memory."""
        body = _encode(result)
        with self._lock:
            entry = self.entries[key]
            end = End(session=key[0], call=key[1], ended=result.ended, len=len(body))
            found = self._append(entry, end, body)
            entry.result = None if found else result
            if found:
                self._ends_at(entry, *found)
            entry.ended, entry.size = result.ended, size

    def result(self, key: Key) -> Result:
        """A finished run's result; one that does not read any more says so as `unknown`."""
        with self._lock:
            entry = self.entries[key]
            if entry.result:
                return entry.result
            try:
                body = entry.segment.read(entry.at, entry.length).partition(b"\n")[2]
                return msgspec.json.decode(body, type=Result)
            except (OSError, msgspec.MsgspecError):
                return Result(
                    ended=self._clock(), unknown="the worker's journal of this run does not read any more"
                )

    def ack(self, key: Key) -> None:
        with self._lock:
            entry = self.entries.get(key)
            if entry and entry.ended and not entry.acked:
                entry.acked = True
                self._append(entry, Acked(session=key[0], call=key[1]))

    def clean(self) -> None:
        """Let go what may go: acknowledged and old; then, over KEEP_BYTES, the oldest that are not going.

        While the disk is short half of it goes, down to KEEP_LEAST, but no result that was not taken. Of one that was
        not acknowledged its output goes first, then its text: a tombstone stays, so that it is never run again and
        whoever asks is told.
        """
        now = self._clock()
        ended = sorted((entry.ended, key) for key, entry in list(self.entries.items()) if entry.ended)
        for when, key in ended:
            if self.entries[key].acked and now - when > KEEP_FOR:
                self._remove(key)
        most = min(KEEP_BYTES, max(KEEP_LEAST, self._total() // 2)) if self._is_short() else KEEP_BYTES
        for step, limit in ((self._remove_acked, most), (self._drop_output, most), (self._bury, KEEP_BYTES)):
            total = self._total()
            for _, key in ended:
                if total <= limit:
                    break
                if entry := self.entries.get(key):
                    total -= entry.size + entry.bytes
                    step(key)
                    total += entry.size + entry.bytes if key in self.entries else 0
        for segment in list(self._log.segments):
            if segment.path not in self._broken and (not segment.live or 2 * segment.dead > segment.size):
                try:
                    with self._lock:
                        self._rewrite(segment)
                except (OSError, framing.FramingError) as error:  # the next start finds out what that costs
                    log.error("%s cannot be made smaller: %s", segment.path, error)
                    self._broken.add(segment.path)

    def _is_short(self) -> bool:
        try:
            return output.to_spare(self.folder) < 0
        except OSError:
            return False

    def _total(self) -> int:
        return sum(entry.size + entry.bytes for entry in list(self.entries.values()) if entry.ended)

    def _rewrite(self, segment: Segment) -> None:
        """Leave out of a file what is dead, or remove it. On a full disk it stays as it is."""
        self._log.roll()
        if not segment.live:
            self._log.remove(segment)
            return
        kept = bytearray()
        placed: dict[Key, tuple[int, int]] = {}
        sizes: Counter[Key] = Counter()
        for unit, body, at, _ in self._log.units(segment):
            key = (unit.session, unit.call)
            entry = self.entries.get(key)
            if entry is None or entry.segment is not segment or (isinstance(unit, End) and at != entry.at):
                continue
            if isinstance(unit, Meta) and entry.buried:
                unit, body = msgspec.structs.replace(unit, len=0), b""
            data = framing.encode(_encode(unit), body)
            if isinstance(unit, End):
                placed[key] = (len(kept), len(data))
            kept += data
            sizes[key] += len(data)
        try:
            write_whole(segment.path, kept)
        except OSError:
            return
        segment.size, segment.dead = len(kept), 0
        for key, size in sizes.items():
            self.entries[key].bytes = size
            self.entries[key].at, self.entries[key].length = placed.get(key, (0, 0))

    def _remove(self, key: Key) -> None:
        shutil.rmtree(self.path(key), ignore_errors=True)
        with self._lock:
            self._drop(key)
            if not self._sessions[key[0]]:
                shutil.rmtree(self.path(key).parent, ignore_errors=True)

    def _remove_acked(self, key: Key) -> None:
        if self.entries[key].acked:
            self._remove(key)

    def _drop_output(self, key: Key) -> None:
        if self.entries[key].size:
            result = self.result(key)
            for name in (OUTPUT, LATER, *(Path(image.path).name for image in result.images)):
                (self.path(key) / name).unlink(missing_ok=True)
            note = "the whole output was let go: the worker's journal was over its limit, or its disk almost full"
            kept = msgspec.structs.replace(result, full_output="", images=(), notes=(*result.notes, note))
            self.finish(key, kept)

    def _bury(self, key: Key) -> None:
        reason = "its result was let go before the harness took it: the worker's journal was over its limit"
        entry = self.entries[key]
        if not entry.buried:
            entry.buried = True
            self.finish(key, Result(ended=entry.ended, unknown=reason))
            entry.bytes = entry.length
            entry.segment.dead = entry.segment.size  # its code goes as well

    def environments(self, session: str) -> dict[str, str]:
        """By interpreter: why the session's next environment will be new, empty for one that was alive."""
        return read(self.folder / folder_name(session) / ENVIRONMENTS, dict[str, str]) or {}

    def set_environment(self, session: str, interpreter: str, reset: str) -> None:
        folder = self.folder / folder_name(session)
        known = self.environments(session) | {interpreter: reset}
        with contextlib.suppress(OSError):  # a full disk costs the model one sentence, not its run
            folder.mkdir(mode=0o700, exist_ok=True)
            write_whole(folder / ENVIRONMENTS, _encode(known))

    def runs(self, limit: int) -> list[Key]:
        """What was not acknowledged, going and newest first, as many as fit `limit` bytes of JSON."""
        order = sorted(
            (key for key, entry in list(self.entries.items()) if not entry.acked),
            key=lambda key: -(self.entries[key].ended or float("inf")),
        )
        chosen: list[Key] = []
        for key in order:
            limit -= len(msgspec.json.encode(key)) + 1
            if limit < 0:
                break
            chosen.append(key)
        return chosen


@functools.lru_cache(1024)
def folder_name(id: str) -> str:
    """A folder's name for an id of any characters: other ones percent-encoded, a long one by its digest."""
    name = urllib.parse.quote(id, safe="-_.~:|@+=,")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > NAME_MAX:
        name = name[: NAME_MAX - 65] + "-" + hashlib.sha256(id.encode()).hexdigest()
    return name


@functools.lru_cache(1024)
def code_path(folder: Path, session: str, interpreter: str) -> Path:
    """Where an environment finds its code."""
    return folder / folder_name(session) / f".code-{folder_name(interpreter)}"


def read(path: Path, type: type[T]) -> T | None:
    """A JSON file's value, None where it is missing or does not read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except (OSError, msgspec.MsgspecError):
        return None


def write_over(path: Path, data: bytes) -> None:
    """Make this a file's content, in place; its folder is made as well.

    It is never made empty first: ext4 would then send its new content to the disk at once.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.mkdir(path.parent, 0o700)
        fd = os.open(path, flags, 0o600)
    try:
        size = len(data := data or b"\n")
        while data:
            data = data[os.write(fd, data) :]
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes | bytearray, *, durable: bool = False) -> None:
    """Replace a file so that it is found whole or not at all, however this process ends.

    With `durable` also after a power cut; without, that may leave a file that does not read.
    """
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(fd)
    os.rename(temporary, path)
    if durable:
        sync_folder(path.parent)


def place_of(folder: Path) -> str:
    """Names a folder itself: another one, a copy of it for one, has another name."""
    found = folder.stat()
    return f"{found.st_dev}-{found.st_ino}"


def is_there(path: str) -> bool:
    """Whether something stands at a path, be it a link to nothing. Raises OSError where nobody can say."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def up_for() -> float:
    """Seconds since the machine was started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Names this boot of the machine; empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def folder_size(folder: Path) -> int:
    """Bytes of the files in a folder."""
    try:
        return sum(item.stat().st_size for item in os.scandir(folder) if item.is_file(follow_symlinks=False))
    except OSError:
        return 0
