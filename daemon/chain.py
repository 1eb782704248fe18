"""Fold a session's records into its status, the context its next request is built from, and its totals."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Final

from msgspec import Struct

from daemon import turns
from daemon.protocol import records
from daemon.protocol.records import BANDS, UNCOUNTED, CallBody, Config, Header, Record, Spent, Status, Usage
from daemon.turns import Call, Media, Part, Raw, Result, Text, Turn
from daemon.worktime import Worktime

__all__ = [
    "Call",
    "Chain",
    "Context",
    "Media",
    "Part",
    "Raw",
    "Result",
    "Text",
    "Turn",
    "context",
    "fold",
    "status",
]

TITLE: Final = 80  # characters of a session's title
NO_RESULT: Final = "interrupted, effect unknown"
GO_ON: Final = "Go on."
SILENT: Final = frozenset({"config", "system"})  # kinds that say nothing about where a session stands


class Context(Struct, frozen=True):
    """What the next request holds. `upto`: number of the last record in it.

    `settled` only ever grows while `epoch` stays the same, so a turn's wire form can be kept by its index;
    `last` is the user turn that no step has seen yet, None when there is nothing new to answer; it is settled as
    it stands when a step closes.
    """

    system: str
    settled: Sequence[Turn]
    last: Turn | None
    upto: int
    epoch: int


class _Seen(Struct, frozen=True):
    """A step that has answered: its number, and for each part of its question the record it came from or 0."""

    n: int
    origins: tuple[int, ...]


class Chain:
    """The fold. `add` takes each record once, in order; what it costs does not depend on what came before.

    `session` is the id in the line that tells the model where it is; empty leaves the line out.

    `prompt` and `answer` are the last step's tokens (after a summary an estimate of what is left), and
    `pending_tokens` estimates what the next request holds on top of them. `answered`: the last step said
    something that can be read, or called. `pauses`: how often in a row the answer has paused.
    `call_ids`: ids of all call records. `posts`: idempotency keys, with the number of the last record under each.
    `said`: the last record that is no config: what somebody said, or what came of it.
    `turn`: the message that began the turn of the agent-server surface that is under way, 0 for none.
    """

    def __init__(self, session: str = "") -> None:
        self.n = 0
        self.config: Config | None = None
        self.created = ""
        self.updated = ""
        self.title = ""
        self.usage = Usage()
        self.prompt = 0
        self.answer = 0
        self.answered = False
        self.pauses = 0
        self.steps = 0
        self.pending_tokens = 0
        self._spent: dict[tuple[str, str, int], Usage] = {}
        self.workers_shown = ""
        self.workers_looked: set[str] = (
            set()
        )  # those, with their folders, whose AGENTS.md files were looked for
        self.rules: set[bytes] = (
            set()
        )  # SHA-256 of the AGENTS.md files that were given, each with its path and worker
        self.workers_had: set[str] = set()  # names of all that the session has or had
        self.call_ids: set[str] = set()
        self.posts: dict[str, int] = {}
        self.said = 0
        self.turn = 0
        self._worktime = Worktime()
        self._session = session
        self._first: Config | None = None
        self._start: datetime | None = None
        self._newest = ""
        self._ended: Status | None = None
        self._upto = 0
        self._message = 0
        self._result = 0
        self._epoch = 0
        self._summed = 0
        self._system: list[Record] = []
        self._pending: list[Record] = []
        self._head: tuple[Part, ...] = ()
        self._blocks: list[tuple[Record, CallBody | None]] = []
        self._calls: dict[str, CallBody] = {}  # of the last answer
        self._asked = 0  # tokens of the prompt that it answered
        self._orphans: dict[str, Record] = {}
        self._settled: list[Turn] = []
        self._seen: list[_Seen] = []

    @property
    def orphans(self) -> Sequence[Record]:
        """Call records closed by a step that have no result, oldest first."""
        return tuple(self._orphans.values())

    @property
    def spent(self) -> tuple[Spent, ...]:
        """What all steps used, by model and length of prompt: what a cost is computed from."""
        return tuple(Spent(*key, usage) for key, usage in self._spent.items())

    @property
    def worked(self) -> float:
        """Seconds at work."""
        return self._worktime.seconds

    @property
    def status(self) -> Status:
        """Where the session stands, from its records alone."""
        if self._ended is not None:
            return self._ended
        if self._newest == "error":
            return "failed"
        if self._orphans:
            return "interrupted"
        return "open" if self.pauses or max(self._message, self._result) > self._upto else "closed"

    def add(self, record: Record) -> None:
        """Take the next record in.

        Raises records.BadRecord when a body that must parse does not; then nothing has changed, and who reads
        the file treats the session as damaged at this record.
        """
        header = record.header
        config = records.config_of(record) if header.kind == "config" else None
        call = records.call_of(record) if header.kind == "call" else None
        self.n = header.n
        self.updated = header.time
        if header.kind not in SILENT:
            self._newest = header.kind
        if header.kind != "config":
            self.said = header.n
        match header.kind:
            case "start":
                self.created = header.time
                self._start = records.instant(header.time)
            case "config":
                self.config = config
                self._first = self._first or config
                self.workers_had |= {ref.name for ref in config.workers} if config else set()
            case "system":
                self._add_system(record)
            case "message":
                self.title = self.title or record.text().strip().partition("\n")[0].rstrip()[:TITLE]
                if header.idempotency_key:
                    self.posts[header.idempotency_key] = header.n
                self._message = header.n
                self.turn = header.n if header.turn else self.turn
                self._wait(record)
            case "result":
                known = self._orphans.pop(header.for_, None)
                if known is not None:
                    self._worktime.result(header)
                if known is not None and header.for_ in self._calls:
                    self._result = header.n
                    self._wait(record)
                elif header.type.startswith("image/") and self._has_result(header.for_):
                    self._result = header.n  # what the call has shown, beside its text
                    self._wait(record)
            case "error":
                self.turn = 0
                self._worktime.error(header)
                self._wait(record)
            case "text" | "thinking" | "call":
                self._blocks.append((record, call))
                if call is not None:
                    self.call_ids.add(header.id)
            case "step":
                self._close(record)
            case "summary":
                self._summarise(record)
            case "end":
                self._ended = "expired" if header.reason == "expired" else "ended"
            case _:
                pass  # a later release's kind: kept in the file, nothing to us

    def _has_result(self, call: str) -> bool:
        """Whether a result of that call waits for the next step."""
        return any(r.kind == "result" and r.header.for_ == call for r in self._pending)

    def context(self) -> Context:
        """What a request built now would hold."""
        parts, _ = self._question(self._pending)
        if not parts and self.status == "open":
            parts = (Text(GO_ON),)  # there was nothing to read in what was posted
        last = Turn("user", parts) if parts else None
        return Context(self._system_text(), self._settled, last, self.n, self._epoch)

    def _add_system(self, record: Record) -> None:
        if record.header.source == "workers":
            self.workers_shown = record.text()
            self.workers_looked.update(record.header.looked)
        elif record.header.source == "agents.md":
            self.rules.add(sha256(record.body).digest())
        if self.steps:
            self._wait(record)
        else:
            self._system.append(record)
            self.pending_tokens += turns.tokens(record)

    def _wait(self, record: Record) -> None:
        self._pending.append(record)
        self.pending_tokens += turns.tokens(record)

    def _close(self, step: Record) -> None:
        header = step.header
        blocks = [(record, call) for record, call in self._blocks if record.header.step == header.id]
        self._blocks.clear()  # blocks of a try that no step closed never enter
        if not self.steps:
            self._keep_unseen_system(header.upto)
        usage = header.usage or Usage()
        self._worktime.step(header)
        self.steps += 1
        self.usage += usage
        self._spend(header, usage)
        if usage.prompt:
            self.prompt, self.answer = usage.prompt, usage.output
        else:  # a server that does not count: what it was sent, by our own estimate
            self.prompt += self.answer + self.pending_tokens
            self.answer = sum(turns.tokens(record) for record, _ in blocks)
        self._upto = header.upto
        said = turns.answer(blocks, header)
        words = any(not isinstance(part, Raw) or part.text.strip() for part in said)
        self.answered = words or bool(self.pauses and self.answered)
        self.pauses = self.pauses + 1 if header.paused else 0
        if said:
            self._settle(header, said, blocks)
        # else what it saw is asked again, together with what comes next
        self.pending_tokens = sum(turns.tokens(record) for record in self._pending if record.n > header.upto)
        if self.status == "closed":
            self.turn = 0

    def _spend(self, step: Header, usage: Usage) -> None:
        band = bisect_left(BANDS, usage.prompt) if usage.prompt or usage.output else UNCOUNTED
        again = step.broken
        lost = Usage(usage.input * again, 0, usage.cache_read * again, usage.cache_write * again)
        key = (step.provider, step.model, band)
        self._spent[key] = self._spent.get(key, Usage()) + usage + lost

    def _settle(
        self, step: Header, said: tuple[Part, ...], blocks: Iterable[tuple[Record, CallBody | None]]
    ) -> None:
        question, origins = self._question(record for record in self._pending if record.n <= step.upto)
        if not question:
            question, origins = (Text(GO_ON),), (0,)
        self._settled += Turn("user", question), Turn("assistant", said)
        self._seen.append(_Seen(step.n, origins))
        # A result that came too late for its step has been answered for; it would lack its call from here on.
        self._pending = [r for r in self._pending if r.n > step.upto and r.kind != "result"]
        self._head, self._result, self._asked = (), 0, step.usage.prompt if step.usage else 0
        self._calls = {block.id: call for block, call in blocks if call is not None}
        self._orphans |= {block.id: block for block, call in blocks if call is not None}

    def _keep_unseen_system(self, upto: int) -> None:
        """What was written while the first step ran was not in its system text, which then stays as it was."""
        unseen = [record for record in self._system if record.n > upto]
        if unseen:
            self._system = [record for record in self._system if record.n <= upto]
            self._pending = sorted(self._pending + unseen, key=lambda record: record.n)

    def _summarise(self, record: Record) -> None:
        upto = record.header.upto
        if upto < self._summed:
            return  # the summary that is there stands for more
        self._summed = upto
        cut = sum(1 for seen in self._seen if seen.n <= upto)
        if cut and self._results_after(cut, upto):
            cut -= 1  # the calls of that answer stay with their results
        text = record.text()
        self._head = (Text(text),) if text.strip() else ()
        old, seen = self._settled[2 * cut :], self._seen[cut:]
        self._settled, self._seen = [], []
        for at, step in enumerate(seen):
            keep = [
                (part, n)
                for part, n in zip(old[2 * at].parts, step.origins, strict=True)
                if (at and isinstance(part, Result)) or (n > upto and not isinstance(part, Result))
            ]
            if not at:
                keep = [(part, 0) for part in self._head] + keep
                self._head = ()
            keep = keep or [(Text(GO_ON), 0)]
            self._settled += Turn("user", tuple(part for part, _ in keep)), old[2 * at + 1]
            self._seen.append(_Seen(step.n, tuple(n for _, n in keep)))
        if not seen:
            self._calls = {}
        self._pending = [
            r for r in self._pending if (r.header.for_ in self._calls if r.kind == "result" else r.n > upto)
        ]
        self._epoch += 1
        self.prompt, self.answer = sum(turns.part_tokens(p) for turn in self._settled for p in turn.parts), 0
        self.pending_tokens = sum(map(turns.tokens, (*self._system, record, *self._pending)))

    def _results_after(self, cut: int, upto: int) -> bool:
        """Whether a result for the calls of answer `cut` - 1 lies past `upto`, or is still to come."""
        if cut < len(self._seen):
            parts, origins = self._settled[2 * cut].parts, self._seen[cut].origins
            return any(isinstance(p, Result) and n > upto for p, n in zip(parts, origins, strict=True))
        late = any(r.kind == "result" and r.n > upto for r in self._pending)
        return late or any(call in self._orphans for call in self._calls)

    def _system_text(self) -> str:
        texts = [text for record in self._system if (text := record.text().strip())]
        if self._session:
            context = self._first.context if self._first is not None else 0
            limit = f", context limit {context} tokens" if context else ""
            texts.insert(1, f"This is session {self._session}, started {self.created}{limit}.")
        return "\n\n".join(texts)

    def _question(self, waiting: Iterable[Record]) -> tuple[tuple[Part, ...], tuple[int, ...]]:
        """The parts of a user turn, and the record each came from: every call's result, then all else."""
        results: dict[str, list[Record]] = {}
        others: list[tuple[Part, int]] = [(part, 0) for part in self._head]
        for record in waiting:
            if record.kind == "result":
                results.setdefault(record.header.for_, []).append(record)
            elif (part := turns.said(record)) is not None:
                others.append((part, record.n))
        first: list[tuple[Part, int]] = [
            (self._answer(id, call, results.get(id, ())), results[id][-1].n if id in results else 0)
            for id, call in self._calls.items()
        ]
        together = first + others
        return tuple(part for part, _ in together), tuple(n for _, n in together)

    def _answer(self, id: str, call: CallBody, found: Sequence[Record]) -> Result:
        if not found:
            return Result(id, call.name, (Text(NO_RESULT),), True)
        record, *images = found
        content, note = turns.content(record), self._note(record.header)
        more = tuple(turns.content(image) for image in images)
        if isinstance(content, Media):
            return Result(id, call.name, (content, Text(note), *more), record.header.failed)
        gap = "\n" if content.text and not content.text.endswith("\n") else ""
        return Result(id, call.name, (Text(f"{content.text}{gap}{note}"), *more), record.header.failed)

    def _note(self, header: Header) -> str:
        notes = []
        if header.exit is not None:
            notes.append(f"exit {header.exit}")
        if header.seconds is not None:
            notes.append(f"took {header.seconds:.1f} s")
        if header.truncated:
            where = f", the whole output is in {header.full_output}" if header.full_output else ""
            notes.append(f"{header.truncated} earlier lines cut{where}")
        if self._start is not None and (time := records.instant(header.time)) is not None:
            notes.append(f"{(time - self._start).total_seconds():.0f} s since the session's start")
        if self._asked:
            notes.append(f"{self._asked} tokens of context used")
        return f"[{', '.join(notes) or 'done'}]"


def fold(all_records: Iterable[Record], session: str = "") -> Chain:
    """A chain of all these records."""
    chain = Chain(session)
    for record in all_records:
        chain.add(record)
    return chain


def status(all_records: Iterable[Record]) -> Status:
    """Where a session of these records stands."""
    return fold(all_records).status


def context(all_records: Iterable[Record], session: str = "") -> Context:
    """What the next request of a session of these records holds."""
    return fold(all_records, session).context()
