"""Turn records and deltas into what is drawn: items of safe text, the same for `tail` and for a screen."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct

from daemon import fixes
from daemon.asked import Language, call
from daemon.plain import count, line, printed, safe, seconds, size, tokens
from daemon.protocol import api, records
from daemon.protocol.records import Config, Header, Record, Usage

State = Literal["", "live", "running", "done", "nonzero", "failed", "void"]


class Item(Struct, frozen=True):
    """One thing to draw. `title` is one line, `body` lines joined by newlines; both safe for any terminal.

    `n` is the record's number, 0 for what streams and is no record yet. `call` is the id that a call and its
    result share. `folded`: the title is enough until somebody asks. `hint`: what one can do about it.
    `void`: numbers of earlier blocks that are now known to be of a try that broke off. `time`: UTC.
    `media`: the body's media type where it is no text, `size` bytes long.
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
    media: str = ""
    size: int = 0


class Noted(Struct, frozen=True):
    """What a header says together with those before it.

    `about`: for a result the number of its call, for a step which one it is (from 1), else 0. `state`: its own.
    `void`: as in Item.
    """

    about: int = 0
    state: State = ""
    void: tuple[int, ...] = ()


_SUMMARY: Final = "summary of what came before"


class Fold:
    """What drawing a record needs to know of those before it. `add` or `note` takes each once, in order."""

    def __init__(self) -> None:
        self.steps = 0
        self.usage = Usage()
        self._calls: dict[str, int] = {}
        self._answered = (
            "",
            0,
        )  # the last result's call, by id and number: images that it showed come behind it
        self._open: list[Header] = []  # blocks that no step has closed yet

    @property
    def waiting(self) -> Mapping[str, int]:
        """Calls without a result yet: id to record number."""
        return self._calls

    def add(self, record: Record) -> Item:
        """The record as an item; never raises, whatever is in the record."""
        noted = self.note(record.header)
        return msgspec.structs.replace(item(record, noted.about), void=noted.void)

    def skip(self, header: Header) -> tuple[int, ...]:
        """Take in a record that is not drawn; returns the blocks that it shows to be void."""
        return self.note(header).void

    def note(self, header: Header) -> Noted:
        """Take in a header; what a screen keeps of a record whose body it has not got."""
        match header.kind:
            case "text" | "thinking":
                return Noted(void=self._voided(header, header.step))
            case "call":
                void = self._voided(header, header.step)
                self._calls[header.id] = header.n
                return Noted(0, "running", void)
            case "step":
                self.steps += 1
                self.usage += header.usage or Usage()
                return Noted(self.steps, "done", self._voided(header, header.id))
            case "error":
                return Noted(0, "failed", self._voided(header, ""))
            case "end":
                return Noted(void=self._voided(header, ""))
            case "result":
                call, about = self._answered
                about = self._calls.pop(header.for_, about if call == header.for_ else 0)
                self._answered = (header.for_, about)
                return Noted(about, _outcome(header))
            case _:
                return _NOTHING

    def _voided(self, header: Header, step: str) -> tuple[int, ...]:
        void = [block for block in self._open if block.step != step]
        for block in void:
            self._calls.pop(block.id, None)
        if header.kind in ("step", "error", "end"):
            self._open.clear()
        else:
            if void:
                self._open = [block for block in self._open if block.step == step]
            self._open.append(header)
        return tuple(block.n for block in void)


_NOTHING: Final = Noted()


def _outcome(header: Header) -> State:
    return "failed" if header.failed else "nonzero" if header.exit else "done"


def item(record: Record, about: int = 0) -> Item:
    """A record as an item; `about` as Fold.note gave it. Never raises, whatever is in the record."""
    header = record.header
    try:
        found = _item(record, about)
    except records.BadRecord as error:
        title = line(f"{header.kind} that does not read")
        found = Item(header.n, header.kind, title, safe(str(error)), "failed")
    media = "" if not header.len or _is_text(header) or record.text() else line(header.type)
    return msgspec.structs.replace(
        found, time=line(header.time), media=media, size=header.len if media else 0
    )


def _is_text(header: Header) -> bool:
    return header.type.startswith("text/") or header.type == records.JSON


def _item(record: Record, about: int) -> Item:
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
            return _result(record, about)
        case "step":
            return _step(record, about)
        case "error":
            error = records.error_of(record)
            by = f" via {header.via}" if header.via else ""
            hint = fixes.in_session(error.code)
            title, body = f"error: {error.code}{by}", error.message
            if error.code == "stopped" and header.via:
                title, body = f"stopped{by}", ""  # the message says the same
            return Item(header.n, "error", line(title), safe(body), "failed", hint=hint)
        case "summary":
            return Item(header.n, "summary", _SUMMARY, _body(record), folded=True)
        case "end":
            by = f" via {header.via}" if header.via else ""
            return Item(header.n, "end", line(f"session {header.reason or 'ended'}{by}"))
        case _:
            title = line(f"{header.kind}, {size(header.len)}")
            return Item(header.n, header.kind, title, _body(record), folded=True)


def _result(record: Record, about: int) -> Item:
    header = record.header
    parts = [f"result of #{about}" if about else "result"]
    if header.failed:
        parts.append("failed")
    elif header.exit is not None:
        parts.append(f"exit {header.exit}")
    if header.worker:
        parts.append(f"on {header.worker}")
    if header.seconds is not None:
        parts.append(seconds(header.seconds))
    if header.truncated:
        parts.append(f"{count(header.truncated, 'line')} cut, all of it in {header.full_output}")
    body = _body(record, output=True)
    return Item(header.n, "result", line(" · ".join(parts)), body, _outcome(header), call=header.for_)


def _step(record: Record, about: int) -> Item:
    header = record.header
    used = header.usage or Usage()
    parts = [f"step {about}" if about else "step", header.model or header.provider]
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
    found = {name: value for name, value in msgspec.structs.asdict(config.limits).items() if value}
    told = {
        "cost": "${:,.10g} cost",
        "ttl": "{:,.10g} seconds idle",
    }  # the others are counts of what they are named
    return ", ".join(told.get(name, f"{{:,.10g}} {name}").format(value) for name, value in found.items())


def key_in_words(provider: api.ProviderInfo) -> str:
    """`yes`, `missing` where it is not where it should be, `none` where it takes one, `-` where it may need none."""
    if provider.problem:
        return "missing"
    if provider.has_key:
        return "yes"
    return "none" if "key" in provider.asks and not provider.url and provider.kind not in api.SIGNED else "-"
