"""The journal's log with what is kept in memory of it: which calls it knows, and where in it each of them stands."""

import threading
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from daemon.protocol import framing
from daemon.worker import smallfiles
from daemon.worker.segments import Log, Segment
from daemon.worker.units import End, Entry, Forgotten, Key, Meta, Unit

SEGMENT: Final = 1 << 20  # bytes of one file of the log: what is rewritten at once, and goes at once

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Unit).decode


class Index:
    """The log in `folder`, call by call. Whoever changes it, or reads a place in it, holds `lock`."""

    def __init__(self, folder: Path) -> None:
        self.lock = threading.Lock()
        self.log: Log[Unit] = Log(folder, _decode, SEGMENT)
        self.entries: dict[Key, Entry] = {}
        self._sessions: Counter[str] = Counter()

    def load(self) -> tuple[bool, dict[Key, Meta]]:
        """Take up what is in the log: whether it is sound up to its end, and what was begun in it and has no end."""
        metas: dict[Key, Meta] = {}

        def take(segment: Segment, unit: Unit, body: bytes, at: int, length: int) -> None:
            key = (unit.session, unit.call)
            entry = self.entries.get(key)
            if isinstance(unit, Meta):
                metas[key] = unit
                self.add(key, Entry(unit.kind, segment, length))
            elif entry is None:
                segment.dead += length
            elif isinstance(unit, Forgotten):
                self.drop(key)
                segment.dead += length
            else:
                entry.bytes += length
                if isinstance(unit, End):
                    metas.pop(key, None)
                    entry.ended = unit.ended
                    self._ends_at(entry, at, length)
                else:
                    entry.acked = True

        sound = self.log.load(take)
        return sound, {key: meta for key, meta in metas.items() if key in self.entries}

    def add(self, key: Key, entry: Entry) -> None:
        """Know a call whose begin is in the log."""
        if key in self.entries:
            self.drop(key)
        self.entries[key] = entry
        self._sessions[key[0]] += 1
        entry.segment.live += 1

    def drop(self, key: Key) -> None:
        """Know a call no longer: what the log has of it is dead."""
        entry = self.entries.pop(key)
        entry.segment.live -= 1
        entry.segment.dead += entry.bytes
        self._sessions[key[0]] -= 1
        if not self._sessions[key[0]]:
            del self._sessions[key[0]]

    def knows(self, session: str) -> bool:
        """Whether a call of the session is known."""
        return session in self._sessions

    def append(self, entry: Entry, unit: Unit, body: bytes = b"") -> bool:
        """Add a unit to what the log has of a call, a later end for one before; False: the disk does not take it."""
        data = framing.encode(encode(unit), body)
        try:
            at = entry.segment.append(data)
        except OSError:
            return False
        entry.bytes += len(data)
        if isinstance(unit, End):
            self._ends_at(entry, at, len(data))
        return True

    def _ends_at(self, entry: Entry, at: int, length: int) -> None:
        entry.bytes -= entry.length
        entry.segment.dead += entry.length
        entry.at, entry.length = at, length

    def rewrite(self, segment: Segment) -> None:
        """Leave out of a file what is dead, or remove it; on a full disk it stays as it is.

        Raises OSError and FramingError where it does not read any more.
        """
        self.log.roll()
        if not segment.live:
            self.log.remove(segment)
            return
        kept = bytearray()
        placed: dict[Key, tuple[int, int]] = {}
        sizes: Counter[Key] = Counter()
        for unit, body, at, _ in self.log.units(segment):
            key = (unit.session, unit.call)
            entry = self.entries.get(key)
            if entry is None or entry.segment is not segment or (isinstance(unit, End) and at != entry.at):
                continue
            if isinstance(unit, Meta) and entry.buried:
                unit, body = msgspec.structs.replace(unit, len=0), b""
            data = framing.encode(encode(unit), body)
            if isinstance(unit, End):
                placed[key] = (len(kept), len(data))
            kept += data
            sizes[key] += len(data)
        try:
            smallfiles.write_whole(segment.path, kept)
        except OSError:
            return
        segment.size, segment.dead = len(kept), 0
        for key, size in sizes.items():
            self.entries[key].bytes = size
            self.entries[key].at, self.entries[key].length = placed.get(key, (0, 0))
