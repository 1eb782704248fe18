"""What ran and was written here, in a log before it starts and when it ends, so that each happens at most once."""

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from daemon.protocol import framing
from daemon.worker import output, smallfiles
from daemon.worker.birth import Origin
from daemon.worker.index import Index, encode
from daemon.worker.units import Acked, End, Entry, Forgotten, Key, Meta, Result

__all__ = ["Journal", "Key", "Meta", "Result"]

NAME_MAX: Final = 180  # bytes of a folder's name made from an id; file systems allow 255
OUTPUT: Final = "output"
LATER: Final = "later"
ENVIRONMENTS: Final = ".environments.json"  # no call's folder has a name that begins so

log = logging.getLogger(__name__)


class Journal:
    """The folder `<scratch>/runs`: a log of all, and a folder for each call that printed something.

    Its methods block as long as a write into the page cache takes, `load` longer: call that off the loop. Any thread
    may call any of them.

    Nothing here waits for the disk: what a keeper that was killed wrote is there all the same. What becomes of that
    with the machine's power is its origin's matter.
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
        self.clock = clock
        self.origin = Origin(folder, clock=clock, boot=boot, uptime=uptime)
        self.index = Index(folder)
        self.entries = self.index.entries

    def close(self) -> None:
        """Hold no file open; a later `begin` would begin another file of the log."""
        with self.index.lock:
            self.index.log.roll()

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
        sound, metas = self.index.load()
        if not sound:
            log.error("%s: the log is damaged, so what it does not know may have run", self.folder)
            self.origin.begin_anew()
        for key, entry in self.entries.items():
            entry.size = folder_size(self.path(key))
        for key, meta in metas.items():
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
            self.finish(key, Result(ended=self.clock(), unknown=f"{why}: {error.strerror}"))
            return
        if happened:
            self.finish(key, Result(ended=self.clock(), exit=0, size=meta.size))
        else:
            self.forget(key)

    def _finish_unknown(self, key: Key, meta: Meta) -> None:
        """Give a run that a keeper lost its result: the output so far, and why its effect is unknown."""
        file = self.path(key) / OUTPUT
        size, lines = output.count_lines(file)
        raw = output.file_end(file, size)
        text, truncated = output.shown(raw, whole=len(raw) == size, lines=lines)
        result = Result(
            ended=self.clock(),
            text=text,
            truncated=truncated,
            full_output=str(file) if truncated else "",
            reset=meta.reset,
            unknown="the worker's keeper ended (it was killed, or the machine restarted) while this was running",
        )
        self.finish(key, result, size)

    def begin(self, meta: Meta, code: bytes = b"") -> Path:
        """Write a run or a write down before it starts; where a run's code is, until the environment's next run.

        Raises OSError: nothing is written down then.
        """
        key = (meta.session, meta.call)
        if meta.len != len(code):
            meta = msgspec.structs.replace(meta, len=len(code))
        data = framing.encode(encode(meta), code)
        path = code_path(self.folder, meta.session, meta.interpreter)
        with self.index.lock:
            if meta.kind == "run":
                smallfiles.write_over(path, code)
            segment = self.index.log.current()
            segment.append(data)
            self.index.add(key, Entry(meta.kind, segment, len(data)))
        return path

    def forget(self, key: Key) -> None:
        """Take back what was begun and did not happen."""
        with self.index.lock:
            if entry := self.entries.get(key):
                self.index.append(entry, Forgotten(session=key[0], call=key[1]))
                self.index.drop(key)
        shutil.rmtree(self.path(key), ignore_errors=True)

    def finish(self, key: Key, result: Result, size: int = 0) -> None:
        """Write a result down, with the bytes of output that are kept. A disk that takes none leaves it in memory."""
        body = encode(result)
        with self.index.lock:
            entry = self.entries[key]
            end = End(session=key[0], call=key[1], ended=result.ended, len=len(body))
            entry.result = None if self.index.append(entry, end, body) else result
            entry.ended, entry.size = result.ended, size

    def result(self, key: Key) -> Result:
        """A finished run's result; one that does not read any more says so as `unknown`."""
        with self.index.lock:
            entry = self.entries[key]
            if entry.result:
                return entry.result
            try:
                body = entry.segment.read(entry.at, entry.length).partition(b"\n")[2]
                return msgspec.json.decode(body, type=Result)
            except (OSError, msgspec.MsgspecError):
                return Result(
                    ended=self.clock(), unknown="the worker's journal of this run does not read any more"
                )

    def ack(self, key: Key) -> None:
        with self.index.lock:
            entry = self.entries.get(key)
            if entry and entry.ended and not entry.acked:
                entry.acked = True
                self.index.append(entry, Acked(session=key[0], call=key[1]))

    def environments(self, session: str) -> dict[str, str]:
        """By interpreter: why the session's next environment will be new, empty for one that was alive."""
        return smallfiles.read(self.folder / folder_name(session) / ENVIRONMENTS, dict[str, str]) or {}

    def set_environment(self, session: str, interpreter: str, reset: str) -> None:
        folder = self.folder / folder_name(session)
        known = self.environments(session) | {interpreter: reset}
        with contextlib.suppress(OSError):  # a full disk costs the model one sentence, not its run
            folder.mkdir(mode=0o700, exist_ok=True)
            smallfiles.write_whole(folder / ENVIRONMENTS, encode(known))

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


def environment_path(folder: Path, session: str, interpreter: str) -> Path:
    """Where an environment keeps files of its own: gone with the last call of its session that is known."""
    return folder / folder_name(session) / f".environment-{folder_name(interpreter)}"


def is_there(path: str) -> bool:
    """Whether something stands at a path, be it a link to nothing. Raises OSError where nobody can say."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def folder_size(folder: Path) -> int:
    """Bytes of the files in a folder."""
    try:
        return sum(item.stat().st_size for item in os.scandir(folder) if item.is_file(follow_symlinks=False))
    except OSError:
        return 0
