"""The records of a session: their header fields, their bodies, their bytes and their check sum."""

import zlib
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, structs

from daemon.protocol import framing

T = TypeVar("T")

MAX_HEADER: Final = 64 << 10
MAX_BODY: Final = 64 << 20  # a post is at most 8 MiB and a result far less; above this a length is damage
CRC_TAIL: Final = len(b',"crc":"00000000"}')
MEDIA_TYPE: Final = "application/x-outrider-records"

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
NO_EXTRA: Final = msgspec.Raw(b"")

Kind = Literal[
    "start",
    "config",
    "system",
    "message",
    "text",
    "thinking",
    "call",
    "step",
    "result",
    "error",
    "summary",
    "end",
]
Status = Literal["open", "interrupted", "failed", "closed", "stepping", "ended", "expired", "damaged"]


class BadRecord(ValueError):
    """A record cannot be read or written: header, body or check sum is wrong, or it is over the limits."""


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens of one step or of a session; `input` excludes both cache counts."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @property
    def prompt(self) -> int:
        """Tokens the provider read: new ones and both kinds of cached ones."""
        return self.input + self.cache_read + self.cache_write

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
        )


BANDS: Final = (100_000, 128_000, 200_000, 272_000)  # tokens of a prompt past which vendors ask other prices
UNCOUNTED: Final = -1  # stands for a band where a server gave no counts


class Spent(Struct, frozen=True):
    """What steps with one model used. `band`: how many of BANDS each prompt was longer than, or UNCOUNTED.

    `usage` has the prompts of answers that broke off half way too: they were read, and are paid.
    """

    provider: str
    model: str
    band: int
    usage: Usage


class Header(Struct, frozen=True, omit_defaults=True, rename={"for_": "for"}):
    """A record's header; `n` is 0 and `time` empty until the log has appended it. Empty fields are left out.

    `kind` is one of `Kind`, or one a later release writes: then it is kept and passed on.
    """

    n: int
    kind: str
    id: str
    time: str
    len: int
    type: str
    step: str = ""
    block: int = 0  # on a block: the how manieth of its step, from 0, as live pieces of it say too
    provider: str = ""
    for_: str = ""
    exit: int | None = None
    truncated: int = 0
    full_output: str = ""
    failed: bool = False
    worker: str = ""
    seconds: float | None = None
    via: str = ""
    idempotency_key: str = ""
    turn: bool = False  # on a message: it began a turn of the agent-server surface
    source: str = ""
    omitted: int = 0  # bytes of the body that this copy of a record leaves out
    looked: tuple[str, ...] = ()  # on a list of workers: those whose AGENTS.md files were looked for by now
    upto: int = 0
    model: str = ""
    harness: str = ""
    request: str = ""
    sent: str = ""
    usage: Usage | None = None
    cache: tuple[int, ...] = ()
    stop: str = ""
    paused: bool = False  # on a step: the answer stopped half way and is asked to go on
    broken: int = 0  # on a step: answers to the same request that broke off half way before it
    reason: str = ""


class Record(Struct, frozen=True):
    """A header and its body. `raw` is the header's line as it stands in the file, empty until it does."""

    header: Header
    body: bytes = b""
    raw: bytes = b""

    @property
    def n(self) -> int:
        return self.header.n

    @property
    def kind(self) -> str:
        return self.header.kind

    @property
    def id(self) -> str:
        return self.header.id

    def text(self) -> str:
        """The body for a reader: text as it is (bytes that are not UTF-8 replaced), a raw block's words."""
        return readable(self.header.type, self.body)


class WorkerRef(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A worker that a session may use. `cwd`: where it starts there; empty is the operator's home."""

    name: Annotated[str, Meta(min_length=1, max_length=63)]
    cwd: str = ""


class Limits(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits of one session; 0 is none. `seconds` and `ttl` in seconds, `cost` in US dollars."""

    steps: Annotated[int, Meta(ge=0)] = 0
    tokens: Annotated[int, Meta(ge=0)] = 0
    seconds: Annotated[float, Meta(ge=0)] = 0
    cost: Annotated[float, Meta(ge=0)] = 0
    ttl: Annotated[float, Meta(ge=0)] = 0


class Config(Struct, frozen=True, omit_defaults=True):
    """Body of a config record. `context`: tokens, 0 is the model's own limit. `input`: media types taken.

    `derived`: those of `tools` and `input` that nobody named: they are what the model decides, and follow it.
    `agent`: name of the definition it was made from; `surface`: of the API it was made on, empty for the native one.
    """

    model: str
    tools: str | tuple[str, ...] = ""
    workers: tuple[WorkerRef, ...] = ()
    context: int = 0
    input: tuple[str, ...] = ()
    params: dict[str, Any] = {}
    limits: Limits = Limits()
    agent: str = ""
    surface: str = ""
    derived: tuple[str, ...] = ()


class _AnyWorker(WorkerRef, frozen=True, forbid_unknown_fields=False):
    """A worker as a later release may have written it."""


class _AnyLimits(Limits, frozen=True, forbid_unknown_fields=False):
    """Limits as a later release may have written them."""


class _AnyConfig(Config, frozen=True):
    """A config as it is read: what a client asks for is strict, what stands in a file is not."""

    workers: tuple[_AnyWorker, ...] = ()
    limits: _AnyLimits = _AnyLimits()


class CallBody(Struct, frozen=True, omit_defaults=True):
    """Body of a call record. `arguments` is the provider's own string, valid JSON or not.

    `extra` is what the provider wants back with the call (a signature), as its own JSON; empty is NO_EXTRA.
    """

    name: str
    arguments: str
    extra: msgspec.Raw = NO_EXTRA

    def __post_init__(self) -> None:
        # Only the default itself is left out when written; another empty one would leave a hole.
        if not len(self.extra):
            structs.force_setattr(self, "extra", NO_EXTRA)


class ErrorBody(Struct, frozen=True):
    """Body of an error record: `code` is a short word, `message` the sentence a person reads."""

    code: str
    message: str


_encode = msgspec.json.Encoder().encode
_header = msgspec.json.Decoder(Header).decode
_config = msgspec.json.Decoder(_AnyConfig).decode
_call = msgspec.json.Decoder(CallBody).decode
_error = msgspec.json.Decoder(ErrorBody).decode


def draft(kind: Kind, body: bytes | str = b"", type: str = TEXT, **fields: Any) -> Record:
    """A record not yet appended: the log gives it `n`, `time`, `len` and, where `id` is not given, an id."""
    data = mend(body).encode() if isinstance(body, str) else body
    return Record(Header(0, kind, fields.pop("id", ""), "", len(data), type, **fields), data)


def json_draft(kind: Kind, body: Struct, **fields: Any) -> Record:
    """A record whose body is `body` as JSON."""
    return draft(kind, _encode(body), JSON, **fields)


def error_draft(code: str, message: str, **fields: Any) -> Record:
    """An error record: `code` a short word, `message` a sentence a person can act on."""
    return json_draft("error", ErrorBody(code, mend(message)), **fields)


def mend(text: str) -> str:
    """`text` as valid Unicode: halves of a surrogate pair joined, a lone one replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def config_of(record: Record) -> Config:
    """The config in a config record's body; fields of a later release are passed over. Raises BadRecord."""
    read = _body(_config, record)
    workers = tuple(WorkerRef(worker.name, worker.cwd) for worker in read.workers)
    limits = Limits(**structs.asdict(read.limits))
    return Config(
        read.model,
        read.tools,
        workers,
        read.context,
        read.input,
        read.params,
        limits,
        read.agent,
        read.surface,
        read.derived,
    )


def call_of(record: Record) -> CallBody:
    """The call in a call record's body. Raises BadRecord."""
    return _body(_call, record)


def error_of(record: Record) -> ErrorBody:
    """The error in an error record's body. Raises BadRecord."""
    return _body(_error, record)


def _body(decode: Callable[[bytes], T], record: Record) -> T:
    try:
        return decode(record.body)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"record {record.n} ({record.kind}): its body does not parse: {error}") from error


def essence(type: str) -> str:
    """A media type without its parameters, in lower case."""
    return type.partition(";")[0].strip().lower()


def readable(type: str, body: bytes) -> str:
    """What a person reads of a body of media type `type`; empty where there is nothing to read."""
    type = essence(type)
    if type.startswith("text/"):
        return body.decode("utf-8", "replace")
    if type.endswith("json"):
        try:
            value = msgspec.json.decode(body)
        except (ValueError, RecursionError):
            return ""
        if isinstance(value, dict):
            for key in ("text", "thinking", "message"):
                if isinstance(found := value.get(key), str):
                    return found
    return ""


def encode(record: Record) -> tuple[bytes, bytes]:
    """(header line with its check sum, the whole record's bytes) for a record whose header is complete.

    Raises BadRecord for one that `decoder` would refuse: no file gets a record it cannot be read past.
    """
    header, body = record.header, record.body
    try:
        start = _encode(header)[:-1]
    except UnicodeEncodeError as error:
        raise BadRecord(f"a header field of the {header.kind} record is not Unicode: {error}") from error
    if header.len != len(body):
        raise BadRecord(f"the header says {header.len} bytes, the body has {len(body)}")
    if (size := len(start) + CRC_TAIL) > MAX_HEADER or len(body) > MAX_BODY:
        raise BadRecord(
            f"a {header.kind} record with a header of {size} bytes and a body of {len(body)},"
            f" where at most {MAX_HEADER} and {MAX_BODY} fit"
        )
    crc = zlib.crc32(body, zlib.crc32(start))
    line = b'%b,"crc":"%08x"}' % (start, crc)
    parse_header(
        line
    )  # a field of another type than it is declared with would be written, and never read again
    return line, framing.encode(line, body)


def without_body(line: bytes) -> bytes:
    """A record's bytes for a copy of its session that leaves this body out; the header says how long it is."""
    fields: dict[str, Any] = msgspec.json.decode(line)
    del fields["crc"]
    fields["omitted"], fields["len"] = fields["len"], 0
    start = _encode(fields)[:-1]
    return framing.encode(b'%b,"crc":"%08x"}' % (start, zlib.crc32(start)), b"")


def parse_header(line: bytes) -> Header:
    """A header from its line, without a look at the check sum. Raises BadRecord."""
    if not line.endswith(b'"}') or line[-CRC_TAIL : -CRC_TAIL + 8] != b',"crc":"':
        raise BadRecord("the header line does not end in its check sum")
    try:
        return _header(line)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"the header line does not parse: {error}") from error


def check(line: bytes, body: bytes) -> None:
    """Raises BadRecord when header line and body do not fit their check sum."""
    crc = zlib.crc32(body, zlib.crc32(line[:-CRC_TAIL]))
    if line[-10:-2] != b"%08x" % crc:
        raise BadRecord(f"check sum is {line[-10:-2].decode('ascii', 'replace')}, the bytes give {crc:08x}")


def decoder() -> framing.Decoder[Header]:
    """A framing decoder for records; the check sum is the caller's to verify with `check`."""
    return framing.Decoder(parse_header, MAX_HEADER, MAX_BODY)


def instant(time: str) -> datetime | None:
    """A record's time; None for one that is not RFC 3339 with a zone, which must not cost more than a note."""
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def stamp(moment: datetime) -> str:
    """A moment in UTC as records write it."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
