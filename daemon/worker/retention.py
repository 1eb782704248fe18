"""Let go of what the journal need not keep: acknowledged and old; over its limit, or on a full disk, the oldest."""

import logging
import shutil
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from daemon.protocol import framing
from daemon.worker import output
from daemon.worker.journal import LATER, OUTPUT, Journal, Key, Result

KEEP_FOR: Final = 24 * 3600.0  # seconds that an acknowledged result stays
KEEP_BYTES: Final = 1 << 30  # of all that has ended; over it it goes, oldest first
KEEP_LEAST: Final = 8 << 20  # of the same, however short the disk is: to let go of less helps nobody

log = logging.getLogger(__name__)


class Retention:
    """What one journal lets go of."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._index = journal.index
        self._entries = journal.entries
        self._broken: set[Path] = set()  # files of the log that do not read any more

    def clean(self) -> None:
        """Let go what may go: acknowledged and old; then, over KEEP_BYTES, the oldest that are not going. Blocks.

        While the disk is short half of it goes, down to KEEP_LEAST, but no result that was not taken. Of one that was
        not acknowledged its output goes first, then its text: a tombstone stays, so that it is never run again and
        whoever asks is told.
        """
        now = self._journal.clock()
        ended = sorted((entry.ended, key) for key, entry in list(self._entries.items()) if entry.ended)
        for when, key in ended:
            if self._entries[key].acked and now - when > KEEP_FOR:
                self._remove(key)
        most = min(KEEP_BYTES, max(KEEP_LEAST, self._total() // 2)) if self._is_short() else KEEP_BYTES
        for step, limit in ((self._remove_acked, most), (self._drop_output, most), (self._bury, KEEP_BYTES)):
            total = self._total()
            for _, key in ended:
                if total <= limit:
                    break
                if entry := self._entries.get(key):
                    total -= entry.size + entry.bytes
                    step(key)
                    total += entry.size + entry.bytes if key in self._entries else 0
        self._shrink_log()

    def _shrink_log(self) -> None:
        for segment in list(self._index.log.segments):
            if segment.path not in self._broken and (not segment.live or 2 * segment.dead > segment.size):
                try:
                    with self._index.lock:
                        self._index.rewrite(segment)
                except (OSError, framing.FramingError) as error:  # the next start finds out what that costs
                    log.error("%s cannot be made smaller: %s", segment.path, error)
                    self._broken.add(segment.path)

    def _is_short(self) -> bool:
        try:
            return output.to_spare(self._journal.folder) < 0
        except OSError:
            return False

    def _total(self) -> int:
        return sum(entry.size + entry.bytes for entry in list(self._entries.values()) if entry.ended)

    def _remove(self, key: Key) -> None:
        folder = self._journal.path(key)
        shutil.rmtree(folder, ignore_errors=True)
        with self._index.lock:
            self._index.drop(key)
            if not self._index.knows(key[0]):
                shutil.rmtree(folder.parent, ignore_errors=True)

    def _remove_acked(self, key: Key) -> None:
        if self._entries[key].acked:
            self._remove(key)

    def _drop_output(self, key: Key) -> None:
        if self._entries[key].size:
            result = self._journal.result(key)
            for name in (OUTPUT, LATER, *(Path(image.path).name for image in result.images)):
                (self._journal.path(key) / name).unlink(missing_ok=True)
            note = "the whole output was let go: the worker's journal was over its limit, or its disk almost full"
            kept = replace(result, full_output="", images=(), notes=(*result.notes, note))
            self._journal.finish(key, kept)

    def _bury(self, key: Key) -> None:
        reason = "its result was let go before the harness took it: the worker's journal was over its limit"
        entry = self._entries[key]
        if not entry.buried:
            entry.buried = True
            self._journal.finish(key, Result(ended=entry.ended, unknown=reason))
            entry.bytes = entry.length
            entry.segment.dead = entry.segment.size  # its code goes as well
