"""What ran and was written here, on disk before it starts and when it ends, so that each happens at most once."""

import contextlib
import hashlib
import os
import shutil
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from daemon.worker import output

KEEP_FOR: Final = 24 * 3600.0  # seconds that an acknowledged result stays
KEEP_BYTES: Final = 1 << 30  # of all journals that have ended; over it they go, oldest first
NAME_MAX: Final = 180  # bytes of a folder's name made from an id; file systems allow 255
META: Final = "meta.json"
RESULT: Final = "result.json"
OUTPUT: Final = "output"
LATER: Final = "later"
CODE: Final = "code"
ACKED: Final = "acked"
BIRTH: Final = "birth.json"
ENVIRONMENTS: Final = "environments.json"

T = TypeVar("T")
Key = tuple[str, str]  # session, call


class Meta(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Written before a run starts or a file is replaced. `started` is wall-clock seconds."""

    session: str
    call: str
    kind: Literal["run", "write"] = "run"
    started: float
    interpreter: str = ""
    timeout: float = 0.0
    reset: str = ""
    path: str = ""
    temporary: str = ""
    size: int = 0


class Result(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How it ended: the fields of frames.Result, the tail as `text`; `size` of a written file."""

    ended: float
    exit: int | None = None
    seconds: float = 0.0
    truncated: int = 0
    full_output: str = ""
    reset: str = ""
    unknown: str = ""
    stopped: Literal["", "interrupt", "timeout"] = ""
    notes: tuple[str, ...] = ()
    text: str = ""
    size: int = 0


class Birth(Struct, frozen=True):
    """When the journal was begun, and in which boot of the machine."""

    time: float
    boot: str = ""


class Entry:
    """What is kept in memory of a journal: enough to know it and to choose what goes."""

    __slots__ = ("acked", "ended", "kind", "output_gone", "result", "size")

    def __init__(self, kind: Literal["run", "write"]) -> None:
        self.kind = kind
        self.ended = 0.0  # 0: going
        self.acked = False
        self.size = 0
        self.output_gone = False
        self.result: Result | None = None  # where the disk did not take it


class Journal:
    """The folder `<scratch>/runs`. Every method but the look-ups blocks: call it off the loop, one at a time.

    Nothing here waits for the disk: what a keeper that was killed wrote is there all the same. What a power cut
    may have taken is covered by the boot: in another one the journal counts as begun anew, so that a call it does
    not know is never taken for one that was not started.
    """

    def __init__(
        self, folder: Path, *, clock: Callable[[], float] = time.time, boot: Callable[[], str] | None = None
    ) -> None:
        self.folder = folder
        self.entries: dict[Key, Entry] = {}
        self._clock = clock
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        birth = read(folder / BIRTH, Birth)
        now = (boot or boot_id)()
        if birth is None or birth.boot != now:
            birth = Birth(clock(), now)
            write_whole(folder / BIRTH, msgspec.json.encode(birth), durable=True)
        self.born = birth.time
        self.id = f"{birth.time!r}-{birth.boot}"  # no other journal has it

    @property
    def age(self) -> float:
        """Seconds since the journal was begun."""
        return max(0.0, self._clock() - self.born)

    def path(self, key: Key) -> Path:
        return self.folder / folder_name(key[0]) / folder_name(key[1])

    def load(self) -> None:
        """Take up what an earlier keeper left: what was going then has ended, and nobody can say how."""
        for folder in self._folders():
            meta = read(folder / META, Meta)
            if meta is None:  # it never got as far as starting
                shutil.rmtree(folder, ignore_errors=True)
                continue
            key = (meta.session, meta.call)
            if not (folder / RESULT).exists():
                if meta.kind == "write" and not self._written(folder, meta):
                    continue
                if meta.kind == "run":
                    self.finish_unknown(key, meta)
            result = read(folder / RESULT, Result)
            entry = self.entries.setdefault(key, Entry(meta.kind))
            entry.ended = result.ended if result else self._clock()
            entry.acked = (folder / ACKED).exists()
            entry.size = folder_size(folder)
            entry.output_gone = not (folder / OUTPUT).exists()

    def _folders(self) -> Iterator[Path]:
        for session in sorted(self.folder.iterdir()):
            if session.is_dir():
                yield from (folder for folder in sorted(session.iterdir()) if folder.is_dir())

    def _written(self, folder: Path, meta: Meta) -> bool:
        """Settle a write that was cut off: its temporary file is there as long as nothing was replaced."""
        if Path(meta.temporary).exists():
            Path(meta.temporary).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            return False
        write_whole(folder / RESULT, msgspec.json.encode(Result(ended=self._clock(), exit=0, size=meta.size)))
        return True

    def finish_unknown(self, key: Key, meta: Meta) -> None:
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
        self.finish(key, result)

    def begin(self, meta: Meta, code: bytes | None = None) -> Path:
        """Write a run or a write down before it starts; its folder."""
        key = (meta.session, meta.call)
        folder = self.path(key)
        if not folder.parent.is_dir():
            folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if code is not None:
            write_private(folder / CODE, code)
        write_whole(folder / META, msgspec.json.encode(meta))
        self.entries[key] = Entry(meta.kind)
        return folder

    def forget(self, key: Key) -> None:
        """Take back what was begun and did not happen."""
        self.entries.pop(key, None)
        shutil.rmtree(self.path(key), ignore_errors=True)

    def finish(self, key: Key, result: Result) -> None:
        """Write a result down, whole. A disk that takes none leaves it in memory only."""
        folder = self.path(key)
        entry = self.entries.setdefault(key, Entry("run"))
        entry.ended = result.ended
        try:
            write_whole(folder / RESULT, msgspec.json.encode(result))
            entry.result = None
        except OSError:
            entry.result = result
        entry.size = folder_size(folder)

    def result(self, key: Key) -> Result:
        """A finished journal's result; one that does not read any more says so as `unknown`."""
        found = self.entries[key].result or read(self.path(key) / RESULT, Result)
        if found is None:
            return Result(
                ended=self._clock(), unknown="the worker's journal of this run does not read any more"
            )
        return found

    def ack(self, key: Key) -> None:
        entry = self.entries.get(key)
        if entry and entry.ended and not entry.acked:
            entry.acked = True
            with contextlib.suppress(OSError):
                (self.path(key) / ACKED).touch(mode=0o600)

    def clean(self) -> None:
        """Let go what may go: acknowledged and old; then, over KEEP_BYTES, the oldest that are not going.

        Of one that was not acknowledged its output goes first, then its text: a tombstone stays, so that it is
        never run again and whoever asks is told.
        """
        now = self._clock()
        ended = sorted((entry.ended, key) for key, entry in self.entries.items() if entry.ended)
        for when, key in ended:
            if self.entries[key].acked and now - when > KEEP_FOR:
                self._remove(key)
        total = sum(entry.size for entry in self.entries.values() if entry.ended)
        for step in (self._remove_acked, self._drop_output, self._bury):
            for _, key in ended:
                if total <= KEEP_BYTES:
                    return
                if entry := self.entries.get(key):
                    total -= entry.size
                    step(key)
                    total += entry.size if key in self.entries else 0

    def _remove(self, key: Key) -> None:
        self.forget(key)
        if not any(session == key[0] for session, _ in self.entries):
            shutil.rmtree(self.path(key).parent, ignore_errors=True)

    def _remove_acked(self, key: Key) -> None:
        if self.entries[key].acked:
            self._remove(key)

    def _drop_output(self, key: Key) -> None:
        entry = self.entries[key]
        if not entry.output_gone:
            for name in (OUTPUT, LATER):
                (self.path(key) / name).unlink(missing_ok=True)
            result = self.result(key)
            note = "the whole output was let go: the worker's journal was over its limit"
            self.finish(key, msgspec.structs.replace(result, full_output="", notes=(*result.notes, note)))
            entry.output_gone = True

    def _bury(self, key: Key) -> None:
        reason = "its result was let go before the harness took it: the worker's journal was over its limit"
        ended = self.entries[key].ended
        (self.path(key) / CODE).unlink(missing_ok=True)
        self.finish(key, Result(ended=ended, unknown=reason))

    def environments(self, session: str) -> dict[str, str]:
        """By interpreter: why the session's next environment will be new, empty for one that was alive."""
        return read(self.folder / folder_name(session) / ENVIRONMENTS, dict[str, str]) or {}

    def set_environment(self, session: str, interpreter: str, reset: str) -> None:
        folder = self.folder / folder_name(session)
        folder.mkdir(mode=0o700, exist_ok=True)
        known = self.environments(session) | {interpreter: reset}
        with contextlib.suppress(OSError):  # a full disk costs the model one sentence, not its run
            write_whole(folder / ENVIRONMENTS, msgspec.json.encode(known))

    def runs(self, limit: int) -> list[Key]:
        """Journals that were not acknowledged, going and newest first, as many as fit `limit` bytes of JSON."""
        order = sorted(
            (key for key, entry in self.entries.items() if not entry.acked),
            key=lambda key: -(self.entries[key].ended or float("inf")),
        )
        chosen: list[Key] = []
        for key in order:
            limit -= len(msgspec.json.encode(key)) + 1
            if limit < 0:
                break
            chosen.append(key)
        return chosen


def folder_name(id: str) -> str:
    """A folder's name for an id of any characters: other ones percent-encoded, a long one by its digest."""
    name = urllib.parse.quote(id, safe="-_.~:|@+=,")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > NAME_MAX:
        name = name[: NAME_MAX - 65] + "-" + hashlib.sha256(id.encode()).hexdigest()
    return name


def read(path: Path, type: type[T]) -> T | None:
    """A JSON file's value, None where it is missing or does not read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except (OSError, msgspec.MsgspecError):
        return None


def write_private(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)


def write_whole(path: Path, data: bytes, *, durable: bool = False) -> None:
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
