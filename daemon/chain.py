"""Fold a session's records into its status, the context its next request is built from, and its totals."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, Literal

from msgspec import Struct

from daemon.protocol import records
from daemon.protocol.records import CallBody, Config, Record, Status, Usage

TITLE: Final = 80  # characters of a session's title
NO_RESULT: Final = "interrupted, effect unknown"
MEDIA_TOKENS: Final = 1600  # what a large image costs with the vendors that say
GO_ON: Final = "Go on."
SILENT: Final = frozenset({"config", "system"})  # kinds that say nothing about where a session stands


class Text(Struct, frozen=True):
    """Words of either side."""

    text: str


class Media(Struct, frozen=True):
    """An image or another attachment: media type and raw bytes."""

    type: str
    data: bytes


class Call(Struct, frozen=True):
    """A tool call as the provider sent it; `arguments` may not be valid JSON. `extra`: raw JSON it wants back."""

    id: str
    name: str
    arguments: str
    extra: bytes
    provider: str


class Result(Struct, frozen=True):
    """The one result of a call; `failed` when it was refused, not carried out, or its outcome is unknown."""

    call: str
    name: str
    content: tuple[Text | Media, ...]
    failed: bool


class Raw(Struct, frozen=True):
    """A block only its own provider (and, for signatures, model) can read, byte for byte.

    `text` is what another provider may be sent in its place; empty means that it is left out there.
    """

    provider: str
    model: str
    type: str
    body: bytes
    text: str


Part = Text | Media | Call | Result | Raw


class Turn(Struct, frozen=True):
    """What one side said before the other answered. Turns alternate and the first is the user's.

    In a user turn results come first. An assistant turn has at least one part.
    """

    role: Literal["user", "assistant"]
    parts: tuple[Part, ...]


class Context(Struct, frozen=True):
    """What the next request holds. `upto`: number of the last record in it.

    `settled` only ever grows while `epoch` stays the same, so a turn's wire form can be kept by its index;
    `last` is the user turn that no step has seen yet, None when there is nothing new to answer.
    """

    system: str
    settled: Sequence[Turn]
    last: Turn | None
    upto: int
    epoch: int


class Chain:
    """The fold. `add` takes each record once, in order; what it costs does not depend on what came before.

    `session` is the id in the line that tells the model where it is; empty leaves the line out.
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
        self.steps = 0
        self.answered = False  # the last step said something: words or a call, not thinking alone
        self.pending_tokens = 0
        self.workers_shown = ""
        self.call_ids: set[str] = set()
        self.posts: dict[str, int] = {}
        self._session = session
        self._context = 0
        self._start: datetime | None = None
        self._newest = ""
        self._ended: Status | None = None
        self._upto = 0
        self._to_answer = 0
        self._epoch = 0
        self._system: list[Record] = []
        self._pending: list[Record] = []
        self._head: tuple[Part, ...] = ()
        self._blocks: list[Record] = []
        self._calls: dict[str, CallBody] = {}
        self._orphans: dict[str, Record] = {}
        self._settled: list[Turn] = []
        self._closed_at: list[int] = []

    @property
    def orphans(self) -> Sequence[Record]:
        """Call records closed by a step that have no result, oldest first."""
        return tuple(self._orphans.values())

    @property
    def status(self) -> Status:
        """Where the session stands, from its records alone."""
        if self._ended is not None:
            return self._ended
        if self._newest == "error":
            return "failed"
        if self._orphans:
            return "interrupted"
        return "open" if self._to_answer > self._upto else "closed"

    def add(self, record: Record) -> None:
        """Take the next record in. Raises records.BadRecord when a body that must parse does not."""
        header = record.header
        self.n = header.n
        self.updated = header.time
        if header.kind not in SILENT:
            self._newest = header.kind
        match header.kind:
            case "start":
                self.created = header.time
                self._start = datetime.fromisoformat(header.time)
            case "config":
                first = self.config is None
                self.config = records.config_of(record)
                if first:
                    self._context = self.config.context
            case "system":
                self._add_system(record)
            case "message":
                self.title = self.title or record.text().strip().partition("\n")[0][:TITLE]
                if header.idempotency_key:
                    self.posts[header.idempotency_key] = header.n
                self._to_answer = header.n
                self._wait(record)
            case "result":
                self._orphans.pop(header.for_, None)
                self._to_answer = header.n
                self._wait(record)
            case "error":
                self._wait(record)
            case "text" | "thinking" | "call":
                self._blocks.append(record)
            case "step":
                self._close(record)
            case "summary":
                self._summarise(record)
            case "end":
                self._ended = "expired" if header.reason == "expired" else "ended"
            case _:
                pass  # a later release's kind: kept in the file, nothing to us

    def context(self) -> Context:
        """What a request built now would hold."""
        parts = self._user_parts(self._pending)
        last = Turn("user", parts) if parts else None
        return Context(self._system_text(), self._settled, last, self.n, self._epoch)

    def _add_system(self, record: Record) -> None:
        if record.header.source == "workers":
            self.workers_shown = record.text()
        if self.steps:
            self._wait(record)
        else:
            self._system.append(record)
            self.pending_tokens += _tokens(record)

    def _wait(self, record: Record) -> None:
        self._pending.append(record)
        self.pending_tokens += _tokens(record)

    def _close(self, step: Record) -> None:
        header = step.header
        blocks = [record for record in self._blocks if record.header.step == header.id]
        self._blocks.clear()  # blocks of a try that no step closed never enter
        usage = header.usage or Usage()
        self.steps += 1
        self.usage += usage
        before, self.prompt, self.answer = self.prompt, usage.prompt, usage.output
        self._upto = header.upto
        answer = _assistant_parts(blocks, header)
        self.answered = any(not isinstance(part, Raw) or part.text for part in answer)
        if not answer:
            return  # nothing was said: what it saw is asked again, together with what comes next
        seen = [record for record in self._pending if record.n <= header.upto]
        self._pending = [record for record in self._pending if record.n > header.upto]
        self.pending_tokens = sum(map(_tokens, self._pending))
        self.prompt = before  # notes on results say what they said in the request, or its cached bytes would change
        question = self._user_parts(seen) or (Text(GO_ON),)
        self.prompt = usage.prompt
        self._settled += Turn("user", question), Turn("assistant", answer)
        self._closed_at.append(header.n)
        self._head = ()
        self._calls = {block.id: records.call_of(block) for block in blocks if block.kind == "call"}
        self._orphans = {block.id: block for block in blocks if block.kind == "call"}
        self.call_ids.update(self._calls)

    def _summarise(self, record: Record) -> None:
        upto = record.header.upto
        waiting = bool(self._orphans) or any(r.kind == "result" and r.n > upto for r in self._pending)
        cut = sum(1 for n in self._closed_at if n <= upto)
        if waiting and cut == len(self._closed_at):
            cut -= 1  # the last answer's calls still need their results
        kept = self._settled[2 * cut :]
        if not kept:
            self._calls = {}
        self._pending = [r for r in self._pending if r.n > upto]
        self.pending_tokens = sum(map(_tokens, self._pending))
        self._closed_at = self._closed_at[cut:]
        self._head = (Text(record.text()),)
        if kept:
            rest = tuple(part for part in kept[0].parts if not isinstance(part, Result))
            kept[0] = Turn("user", (*self._head, *rest))
            self._head = ()
        self._settled = kept
        self._epoch += 1

    def _system_text(self) -> str:
        texts = [text for record in self._system if (text := record.text().strip())]
        if self._session:
            limit = f", context limit {self._context} tokens" if self._context else ""
            texts.insert(1, f"This is session {self._session}, started {self.created}{limit}.")
        return "\n\n".join(texts)

    def _user_parts(self, waiting: Iterable[Record]) -> tuple[Part, ...]:
        results: dict[str, Part] = {}
        others: list[Part] = [*self._head]
        for record in waiting:
            if record.kind == "result":
                call = record.header.for_
                if call in self._calls and call not in results:
                    results[call] = self._result(record)
            elif record.kind == "error":
                others.append(Text(f"[{records.error_of(record).message}]"))
            else:
                part = _said(record)
                if isinstance(part, Media) or part.text.strip():
                    others.append(part)
        for call in self._orphans:
            results.setdefault(call, Result(call, self._calls[call].name, (Text(NO_RESULT),), True))
        return (*results.values(), *others)

    def _result(self, record: Record) -> Result:
        header = record.header
        name = self._calls[header.for_].name
        body, note = _said(record), self._note(record)
        if isinstance(body, Media):
            return Result(header.for_, name, (body, Text(note)), header.failed)
        gap = "\n" if body.text and not body.text.endswith("\n") else ""
        return Result(header.for_, name, (Text(f"{body.text}{gap}{note}"),), header.failed)

    def _note(self, record: Record) -> str:
        header = record.header
        notes = []
        if header.exit is not None:
            notes.append(f"exit {header.exit}")
        if header.seconds is not None:
            notes.append(f"took {header.seconds:.1f} s")
        if header.truncated:
            notes.append(f"{header.truncated} earlier lines cut, the whole output is in {header.full_output}")
        if self._start is not None:
            since = (datetime.fromisoformat(header.time) - self._start).total_seconds()
            notes.append(f"{since:.0f} s since the session's start")
        if self.prompt:
            notes.append(f"{self.prompt} tokens of context used")
        return f"[{', '.join(notes)}]" if notes else "[done]"


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


def _tokens(record: Record) -> int:
    """An estimate, on the high side, of what a record adds to a prompt."""
    return MEDIA_TOKENS if record.header.type.startswith("image/") else len(record.body) // 3 + 8


def _said(record: Record) -> Text | Media:
    type = record.header.type
    if type.startswith("text/") or type.endswith("json"):
        return Text(record.text())
    if type.startswith("image/"):
        return Media(type, record.body)
    return Text(f"[an attachment of type {type}, {len(record.body)} bytes, that cannot be shown here]")


def _assistant_parts(blocks: Iterable[Record], step: records.Header) -> tuple[Part, ...]:
    parts: list[Part] = []
    for block in blocks:
        provider = block.header.provider or step.provider
        if block.kind == "call":
            body = records.call_of(block)
            parts.append(Call(block.id, body.name, body.arguments, bytes(body.extra), provider))
        elif block.kind == "thinking":
            parts.append(Raw(provider, step.model, block.header.type, block.body, ""))
        elif not block.header.type.startswith("text/"):
            parts.append(Raw(provider, step.model, block.header.type, block.body, block.text()))
        elif (text := block.text()).strip():
            parts.append(Text(text))
    return tuple(parts)
