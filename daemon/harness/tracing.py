"""Fold a session's records and remember of each part of its context which record it came from: for who explains it."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from daemon import turns
from daemon.chain import Chain
from daemon.protocol.records import BadRecord, CallBody, Header, Record
from daemon.turns import Part


class Source(Struct, frozen=True):
    """A part of a context: `turn` is its turn's index, the last turn's the number of settled ones; `n` the record it
    came from, 0 where none says it.
    """

    part: Part
    n: int
    turn: int


class Traced(Chain):
    """A chain that costs more than the one that steps, and can say where all of a context is from.

    `blank`: messages and blocks that say nothing; `dropped`: results that no call waited for; `broken`: blocks of
    tries that no step closed. All of them are left out of every context.
    """

    def __init__(self, session: str = "") -> None:
        super().__init__(session)
        self.blank: list[Record] = []
        self.dropped: list[Record] = []
        self._broken: list[Record] = []
        self._answers: list[list[int]] = []  # of each question ever seen: the records of its answer's parts

    @classmethod
    def of(cls, records: Iterable[Record], like: Chain) -> "Traced":
        """The fold of these records, up to one whose body does not parse, under the session id that `like` has."""
        made = cls(like._session)
        try:
            for record in records:
                made.add(record)
        except BadRecord:
            pass
        return made

    @property
    def broken(self) -> Sequence[Record]:
        """Blocks that no step has closed, also those of a try that may still run."""
        return [*self._broken, *(record for record, _ in self._blocks)]

    @property
    def summed(self) -> int:
        """The last record that a summary stands for, 0 without one."""
        return self._summed

    def sources(self) -> list[Source]:
        """Every part of `context()`, in order."""
        found: list[Source] = []
        answers = self._answers[len(self._answers) - len(self._seen) :]  # a summary takes the oldest away
        for at, (seen, answer) in enumerate(zip(self._seen, answers, strict=True)):
            for turn, numbers in ((2 * at, seen.origins), (2 * at + 1, answer)):
                parts = self._settled[turn].parts
                found += (Source(part, n, turn) for part, n in zip(parts, numbers, strict=True))
        parts, origins = self._question(self._pending)
        last = len(self._settled)
        return found + [Source(part, n, last) for part, n in zip(parts, origins, strict=True)]

    def add(self, record: Record) -> None:
        waiting = len(self._pending)
        super().add(record)
        if record.kind == "result" and len(self._pending) == waiting:
            self.dropped.append(record)
        elif record.kind == "message" and turns.said(record) is None:
            self.blank.append(record)

    def _close(self, step: Record) -> None:
        self._broken += [record for record, _ in self._blocks if record.header.step != step.id]
        super()._close(step)

    def _settle(
        self, step: Header, said: tuple[Part, ...], blocks: Iterable[tuple[Record, CallBody | None]]
    ) -> None:
        both = list(blocks)
        self.dropped += [r for r in self._pending if r.kind == "result" and r.n > step.upto]
        self._answers.append([record.n for record, call in both if turns.answer([(record, call)], step)])
        self.blank += [record for record, call in both if not turns.answer([(record, call)], step)]
        super()._settle(step, said, both)
