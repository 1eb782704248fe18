"""Turn records and deltas into what is drawn: items of safe text, the same for `tail` and for a screen."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from daemon.plain import MAX_CHARS, count, line, printed, safe, seconds, size, tokens
from daemon.protocol import records
from daemon.protocol.api import Delta
from daemon.protocol.records import Config, Header, Record, Usage

OUTPUT_LINES: Final = 200  # of a run's live output that are kept; its result has the tail

State = Literal["", "live", "running", "done", "nonzero", "failed"]
Language = Literal["", "markdown", "bash", "python", "json", "diff"]


class Item(Struct, frozen=True):
    """One thing to draw. `title` is one line, `body` lines joined by newlines; both safe for any terminal.

    `n` is the record's number, 0 for what streams and is no record yet. `call` is the id that a call and its
    result share. `folded`: the title is enough until somebody asks. `hint`: what one can do about it.
    `void`: numbers of earlier blocks that are now known to be of a try that broke off. `time`: UTC.
    """

    n: int
    kind: str
    title: str
    body: str = ""
    state: State = ""
    language: Language = ""
    call: str = ""
    folded: bool = False
    hint: str = ""
    void: tuple[int, ...] = ()
    time: str = ""


_RETRY: Final = "retry"
_POST: Final = "post a message or retry"
_HINTS: Final[Mapping[str, str]] = {  # by an error's code; the ones not here are worth another try
    "stopped": _POST,
    "auth": "set the provider's key (`outrider providers set`), then retry",
    "permission": "check what the provider's key may do, then retry",
    "billing": "add credit with the provider, then retry",
    "model": "give the session another model (`outrider config`), then retry",
    "not_found": "check the model's name, or give the session another (`outrider config`), then retry",
    "context_overflow": "go on in a copy of an earlier part (`outrider fork`), or in a new session",
    "context": "go on in a copy of an earlier part (`outrider fork`), or in a new session",
    "limit": "raise the limit (`outrider config`), then retry",
    "length": _POST,
    "refusal": "post another message",
    "filter": "post another message",
    "no_space": "make room for the data folder, then retry",
}

_SPOKEN: Final = {"text": "answer", "thinking": "thinking", "summary": "summary of what came before"}


class Fold:
    """What drawing a record needs to know of those before it. `add` takes each once, in order."""

    def __init__(self) -> None:
        self.steps = 0
        self.usage = Usage()
        self._calls: dict[str, int] = {}
        self._open: list[Header] = []  # blocks that no step has closed yet

    @property
    def waiting(self) -> Mapping[str, int]:
        """Calls without a result yet: id to record number."""
        return self._calls

    def add(self, record: Record) -> Item:
        """The record as an item; never raises, whatever is in the record."""
        header = record.header
        try:
            item = self._item(record)
        except records.BadRecord as error:
            item = Item(
                header.n, header.kind, line(f"{header.kind} that does not read"), safe(str(error)), "failed"
            )
        return msgspec.structs.replace(item, time=line(header.time), void=self.skip(header))

    def skip(self, header: Header) -> tuple[int, ...]:
        """Take in a record that is not drawn; returns the blocks that it shows to be void."""
        match header.kind:
            case "text" | "thinking" | "call":
                step = header.step
            case "step":
                step = header.id
                self.steps += 1
                self.usage += header.usage or Usage()
            case "error" | "end":
                step = ""
            case "result":
                self._calls.pop(header.for_, None)
                return ()
            case _:
                return ()
        void = [block for block in self._open if block.step != step]
        for block in void:
            self._calls.pop(block.id, None)
        if header.kind in ("step", "error", "end"):
            self._open.clear()
        else:
            self._open = [*(block for block in self._open if block.step == step), header]
        if header.kind == "call":
            self._calls[header.id] = header.n
        return tuple(block.n for block in void)

    def _item(self, record: Record) -> Item:
        header = record.header
        match header.kind:
            case "start":
                return Item(header.n, "start", "session started")
            case "config":
                return _config(record)
            case "system":
                body = _body(record)
                title = f"system text from {header.source or 'nobody'}, {count(len(body), 'character')}"
                return Item(header.n, "system", line(title), body, folded=True)
            case "message":
                return Item(header.n, "message", line(f"message via {header.via or '?'}"), _body(record))
            case "text":
                return Item(header.n, "text", "answer", _body(record), language="markdown")
            case "thinking":
                return _thinking(record)
            case "call":
                asked = records.call_of(record)
                title, text, language = call(asked.name, asked.arguments)
                return Item(header.n, "call", title, text, "running", language, record.id)
            case "result":
                return self._result(record)
            case "step":
                return self._step(record)
            case "error":
                error = records.error_of(record)
                by = f" via {header.via}" if header.via else ""
                hint = _HINTS.get(error.code, _RETRY)
                title, body = f"error: {error.code}{by}", error.message
                if error.code == "stopped" and header.via:
                    title, body = f"stopped{by}", ""  # the message says the same
                return Item(header.n, "error", line(title), safe(body), "failed", hint=hint)
            case "summary":
                return Item(header.n, "summary", _SPOKEN["summary"], _body(record), folded=True)
            case "end":
                by = f" via {header.via}" if header.via else ""
                return Item(header.n, "end", line(f"session {header.reason or 'ended'}{by}"))
            case _:
                return Item(
                    header.n,
                    header.kind,
                    line(f"{header.kind}, {size(header.len)}"),
                    _body(record),
                    folded=True,
                )

    def _result(self, record: Record) -> Item:
        header = record.header
        n = self._calls.get(header.for_, 0)
        parts = [f"result of #{n}" if n else "result"]
        state: State = "done"
        if header.failed:
            state = "failed"
            parts.append("failed")
        elif header.exit is not None:
            parts.append(f"exit {header.exit}")
            state = "nonzero" if header.exit else "done"
        if header.worker:
            parts.append(f"on {header.worker}")
        if header.seconds is not None:
            parts.append(seconds(header.seconds))
        if header.truncated:
            parts.append(f"{count(header.truncated, 'line')} cut, all of it in {header.full_output}")
        body = _body(record, output=True)
        return Item(header.n, "result", line(" · ".join(parts)), body, state, call=header.for_)

    def _step(self, record: Record) -> Item:
        header = record.header
        used = header.usage or Usage()
        parts = [f"step {self.steps + 1}", header.model or header.provider]
        parts.append(f"{tokens(used.prompt)} tokens in, {tokens(used.output)} out")
        if header.stop:
            parts.append(header.stop)
        return Item(header.n, "step", line(" · ".join(part for part in parts if part)), state="done")


def _body(record: Record, output: bool = False) -> str:
    header = record.header
    text = record.text()
    if not text and header.len and not header.type.startswith("text/"):
        return f"({line(header.type)}, {size(header.len)})"
    return (printed(text) if output else safe(text.replace("\r\n", "\n"))).strip("\n")


def _thinking(record: Record) -> Item:
    text = record.text().strip()
    if not text:
        return Item(record.n, "thinking", f"hidden thinking, {size(record.header.len)}")
    title = f"thinking, {count(len(text), 'character')}"
    return Item(record.n, "thinking", title, safe(text), language="markdown", folded=True)


def _config(record: Record) -> Item:
    config = records.config_of(record)
    workers = ", ".join(f"{ref.name}:{ref.cwd}" if ref.cwd else ref.name for ref in config.workers)
    parts = [config.model, f"workers: {workers or 'none'}"]
    if config.context:
        parts.append(f"context {tokens(config.context)}")
    if config.tools and config.tools != "default":
        parts.append(f"tools: {config.tools if isinstance(config.tools, str) else ', '.join(config.tools)}")
    if said := limits_in_words(config):
        parts.append(f"limits: {said}")
    if config.params:
        parts.append(f"params: {msgspec.json.encode(config.params).decode()}")
    body = safe(msgspec.json.format(msgspec.json.encode(config)).decode())
    return Item(record.n, "config", line(" · ".join(parts)), body, language="json", folded=True)


def limits_in_words(config: Config) -> str:
    """The limits of a session in words, empty where it has none."""
    found = msgspec.structs.asdict(config.limits)
    return ", ".join(f"{value:,.10g} {name}" for name, value in found.items() if value)


def call(name: str, arguments: str) -> tuple[str, str, Language]:
    """(title, body, language of the body) of a call: worker and interpreter or path, then code or content."""
    try:
        given = msgspec.json.decode(arguments) if arguments.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return line(f"{name} · arguments that are not valid JSON"), safe(arguments), ""
    if not isinstance(given, dict):
        return line(f"{name} · arguments that are not an object"), safe(arguments), ""
    fields = _Fields(given)
    worker = fields.take("worker")
    parts = [name, *([f"on {worker}"] if worker else [])]
    language: Language = ""
    match name:
        case "run":
            interpreter = fields.take("interpreter") or "bash"
            parts.append(interpreter)
            body = fields.take("code")
            language = (
                "python" if interpreter.startswith("python") else "bash" if interpreter == "bash" else ""
            )
        case "read":
            parts.append(fields.take("path"))
            body = ""
        case "write":
            parts.append(fields.take("path"))
            body = fields.take("content")
        case "edit":
            parts.append(fields.take("path"))
            old, new = fields.take("old"), fields.take("new")
            body, language = "\n".join([*_marked("-", old), *_marked("+", new)]), "diff"
        case "patch":
            body, language = fields.take("input"), "diff"
        case _:
            rest = fields.rest()
            body = msgspec.json.format(msgspec.json.encode(rest)).decode() if rest else ""
            return line(" · ".join(parts)), safe(body), "json" if rest else ""
    parts += [
        f"{key} {value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        for key, value in fields.rest().items()
    ]
    return (
        line(" · ".join(part for part in parts if part)),
        safe(body.replace("\r\n", "\n")).rstrip("\n"),
        language,
    )


class _Fields:
    """A call's arguments, taken one by one; what nobody took is left to be shown as it is."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = dict(given)

    def take(self, name: str) -> str:
        value = self._given.get(name)
        if not isinstance(value, str):
            return ""
        del self._given[name]
        return value

    def rest(self) -> dict[str, Any]:
        return self._given


def _marked(mark: str, text: str) -> list[str]:
    return [f"{mark} {row}" for row in text.removesuffix("\n").split("\n")] if text else []


class Live:
    """The blocks of a step in flight and the output of its runs, none of them a record yet."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[str, str, list[str]]] = {}
        self._stored = 0
        self._step = ""
        self._outputs: dict[str, str] = {}

    def feed(self, delta: Delta) -> None:
        """Take a piece in; costs what the piece is long."""
        if delta.kind == "output":
            rows = (self._outputs.get(delta.call, "") + delta.text).split("\n")
            self._outputs[delta.call] = "\n".join(rows[-OUTPUT_LINES:])[-MAX_CHARS:]
        elif delta.block >= self._stored:
            kind, name, pieces = self._blocks.setdefault(delta.block, (delta.kind, delta.name, []))
            if delta.name and not name:
                self._blocks[delta.block] = (kind, delta.name, pieces)
            pieces.append(delta.text)

    def record(self, record: Record) -> None:
        """A record has come: what streamed of it is no longer live."""
        match record.kind:
            case "text" | "thinking" | "call":
                if record.header.step != self._step:  # another try, of which no restart was heard
                    self._stored, self._step = 0, record.header.step
                self._stored += 1
                for block in [block for block in self._blocks if block < self._stored]:
                    del self._blocks[block]
            case "step" | "error" | "end":
                self.restart()
            case "result":
                self._outputs.pop(record.header.for_, None)
            case _:
                pass

    def restart(self) -> None:
        """What streamed so far of this step is void."""
        self._blocks.clear()
        self._stored = 0

    def items(self) -> list[Item]:
        """What is live now, blocks first."""
        found = []
        for kind, name, pieces in self._blocks.values():
            text = "".join(pieces)
            if kind == "call":
                title = f"writing a call of {name or 'a tool'}, {count(len(text), 'character')}"
                found.append(Item(0, "call", line(title), state="live"))
            else:
                found.append(Item(0, kind, _SPOKEN[kind], safe(text), "live", "markdown"))
        for call_id, output in self._outputs.items():
            found.append(
                Item(0, "output", "output so far", printed(output).strip("\n"), "live", call=call_id)
            )
        return found
