"""What streams past in one session, blocks of its step and output of its runs, to each reader from the beginning on.

Each reader knows how far it has come in each of them, so joining, lagging behind and coming back are one case: it gets
what it lacks, in one piece. Nothing waits for a reader, and nothing is kept for one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

from msgspec import Struct

from daemon.protocol.api import Delta, Restart, RetryEvent
from daemon.protocol.records import Record

KEPT: Final = 256 << 10  # characters of all that streams in a session: nearly every answer whole
OUTPUT: Final = 64 << 10  # of one run's output: what is drawn of it is less
JOINED: Final = 64  # small pieces become one: a string alone takes 50 bytes
NOTES: Final = 100  # retries and restarts that a slow reader may have waiting

LiveEvent = Delta | RetryEvent | Restart


class Passing:
    """A block of the step in flight, or a run's output: its text, or the end of it where that became too long.

    `begin`, `end`: of the text that is here, in characters from the block's beginning. `after`: the last record
    before its step, or its run, that says something of that; what streams is told once that record is. `done`: the
    record that takes its place, 0 until there is one.
    """

    def __init__(self, first: Delta, after: int) -> None:
        self.about = first
        self.after = after
        self.begin = self.end = self.done = 0
        self._old: deque[str] = deque()
        self._new: list[str] = []

    @property
    def output(self) -> bool:
        return self.about.kind == "output"

    @property
    def size(self) -> int:
        """Characters that are kept."""
        return self.end - self.begin

    def add(self, piece: Delta) -> None:
        """Take a piece."""
        if piece.name != self.about.name and piece.name:
            self.about = piece  # a name may come in pieces too
        self.end += len(piece.text)
        self._new.append(piece.text)
        if len(self._new) == JOINED:
            self._old.append("".join(self._new))
            self._new.clear()

    def since(self, at: int) -> Delta:
        """The piece from character `at` on, or from the first that is kept."""
        at = max(at, self.begin)
        about, left = self.about, self.end - at
        if self._new and len(self._new[-1]) == left:  # as it is for a reader who keeps up
            text = self._new[-1]
        else:
            found = list[str]()
            for piece in chain(reversed(self._new), reversed(self._old)):
                if left <= 0:
                    break
                found.append(piece[-left:])
                left -= len(piece)
            text = "".join(reversed(found))
        return Delta(about.kind, text, about.block, about.call, about.name, about.step, at)

    def cut(self, most: int) -> None:
        """Keep no more than the last `most` characters."""
        rest = self.since(max(self.begin, self.end - most))
        self._old, self._new = deque([rest.text]), []
        self.begin = rest.at


class _Note(Struct, frozen=True):
    after: int
    event: RetryEvent | Restart


class Live:
    """One reader. `wait` returns once there may be something, `take` gives it."""

    def __init__(self, passing: Callable[[], Iterable[Passing]]) -> None:
        self._passing = passing
        self._taken: dict[Passing, int] = {}
        self._left: deque[Passing] = deque()
        self._notes: deque[_Note] = deque(maxlen=NOTES)
        self._there = asyncio.Event()
        self._there.set()

    def note(self, note: _Note) -> None:
        """A retry or a restart."""
        self._notes.append(note)
        self._there.set()

    def wake(self) -> None:
        """Something streams."""
        self._there.set()

    def leave(self, one: Passing) -> None:
        """It is kept for nobody else: what this reader still lacks of it goes out before its record, if it is soon."""
        if self._taken.get(one, -1) < one.end:
            self._left.append(one)
            while sum(left.size for left in self._left) > KEPT:
                self._left.popleft()

    async def wait(self) -> None:
        """Returns once something came since the last time, at first at once."""
        await self._there.wait()
        self._there.clear()

    def take(self, had: int) -> list[LiveEvent]:
        """What this reader lacks, if it had all records up to `had`: nothing of a block that is one of those, nor of
        a step whose past is not among them yet.
        """
        found: list[LiveEvent] = []
        while self._notes and self._notes[0].after <= had:
            found.append(self._notes.popleft().event)
        taken: dict[Passing, int] = {}
        for one in chain(self._left, self._passing()):
            if one.after > had or 0 < one.done <= had:
                continue
            at = self._taken.get(one, -1)
            if one.end > at:
                found.append(one.since(max(0, at)))
            taken[one] = one.end
        self._taken = taken
        if self._left:
            self._left = deque(one for one in self._left if one.after > had)
        return found

    def until(self, had: int, last: int) -> int:
        """The record up to `last` before which a reader that has those up to `had` should take again."""
        if had >= last:
            return last
        waiting = [note.after for note in self._notes]
        waiting += [
            one.after for one in chain(self._left, self._passing()) if one.end > self._taken.get(one, -1)
        ]
        return min((after for after in waiting if had < after < last), default=last)


class LiveReaders:
    """What streams in one session, and its readers. `tip`: its last record that is, or soon will be, durable."""

    def __init__(self) -> None:
        self._readers: set[Live] = set()
        self._step = ""
        self._blocks: dict[int, Passing] = {}
        self._outputs: dict[str, Passing] = {}
        self._size = 0
        self.tip: Callable[[], int] = lambda: 0

    def __bool__(self) -> bool:
        return bool(self._readers)

    def put(self, event: LiveEvent) -> None:
        """Take what streams in; a delta's `at` is set here. A restart, or the next step, makes void what was open."""
        if not isinstance(event, Delta):
            if isinstance(event, Restart):
                self._void()
            note = _Note(self.tip(), event)
            for reader in self._readers:
                reader.note(note)
            return
        one = self._of(event)
        one.add(event)
        self._size += len(event.text)
        if (one.output and one.size > OUTPUT) or self._size > KEPT:
            self._shrink(one)
        for reader in self._readers:
            reader.wake()

    def again(self, call: str) -> None:
        """What comes of this run's output from now on takes the place of what came."""
        self._outputs.pop(call, None)
        self._size = sum(one.size for one in self._all())

    def appended(self, records: Iterable[Record]) -> None:
        """These records were appended: they take the place of what streamed of them."""
        for record in records:
            header = record.header
            match header.kind:
                case "text" | "thinking" | "call":
                    if header.step == self._step and (block := self._blocks.get(header.block)) is not None:
                        block.done = header.n
                case "step" | "error" | "end":
                    for block in self._blocks.values():
                        block.done = block.done or header.n
                case "result":
                    if (output := self._outputs.get(header.for_)) is not None:
                        output.done = header.n
                case _:
                    pass

    def durable(self, n: int) -> None:
        """Records up to `n` are durable: who joins gets those, so what streamed of them is kept no longer."""
        over = [one for one in self._all() if 0 < one.done <= n]
        for one in over:
            kept: dict[Any, Passing] = self._outputs if one.output else self._blocks
            del kept[one.about.call if one.output else one.about.block]
            for reader in self._readers:
                reader.leave(one)
        self._size = sum(one.size for one in self._all())

    def clear(self) -> None:
        """Nothing streams: the session was loaded anew."""
        self._outputs.clear()
        self._void()

    @contextmanager
    def read(self) -> Iterator[Live]:
        reader = Live(self._all)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    def _all(self) -> Iterable[Passing]:
        return chain(self._blocks.values(), self._outputs.values())

    def _of(self, delta: Delta) -> Passing:
        if delta.kind == "output":
            if (found := self._outputs.get(delta.call)) is None:
                found = self._outputs[delta.call] = Passing(delta, self.tip())
            return found
        if delta.step != self._step:
            self._void()
            self._step = delta.step
        if (found := self._blocks.get(delta.block)) is None:
            found = self._blocks[delta.block] = Passing(delta, self.tip())
        return found

    def _void(self) -> None:
        self._blocks.clear()
        self._step = ""
        self._size = sum(one.size for one in self._all())

    def _shrink(self, one: Passing) -> None:
        """Halve what became too long, or else the longest: so that it is not done again for each piece."""
        if one.output and one.size > OUTPUT:
            one.cut(OUTPUT // 2)
        while (total := sum(one.size for one in self._all())) > KEPT:
            longest = max(self._all(), key=lambda one: one.size)
            longest.cut(longest.size // 2)
        self._size = total
