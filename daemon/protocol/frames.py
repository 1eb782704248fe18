"""The frames between a harness and its workers: one JSON header line, `len` raw bytes, a newline."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from daemon.protocol import framing

PROTOCOL: Final = 1
MAX_HEADER: Final = 64 << 10
MAX_BODY: Final = 1 << 20  # larger transfers travel as several frames
WINDOW: Final = 4 << 20  # bytes of one transfer sent and not yet taken up
PIECE: Final = 256 << 10  # one frame of a transfer: small enough that others get their turn
HELLO_WAIT: Final = 10.0  # seconds from connect to hello
PING_AFTER: Final = 10.0  # seconds of silence before a ping
DEAD_AFTER: Final = 30.0  # seconds of silence before the peer is given up
MAX_LINES: Final = 2000  # of a run's output that are sent back with its result
MAX_TAIL: Final = 50 << 10  # bytes of the same
MAX_REASON: Final = 4 << 10  # bytes of the text of an error that are taken up
LIVE_CHUNK: Final = 8 << 10  # newest bytes of output in one live chunk
LIVE_EVERY: Final = 0.1  # seconds between two live chunks of one run

# What a worker says of itself and of its runs goes into requests to models, and to clients: all of it has bounds.
Integer = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Natural = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Word = Annotated[str, Meta(max_length=256)]
Place = Annotated[str, Meta(max_length=4096)]  # a path
Sentence = Annotated[str, Meta(max_length=4096)]


class _Frame(Struct, frozen=True, omit_defaults=True, tag_field="kind", kw_only=True):
    len: int = 0


# Harness to worker. `id` names a request on this connection; `session` and `call` name a run for ever.


class Run(_Frame, frozen=True, tag="run"):
    """Run the body (code, UTF-8) once: a `run` whose session and call are known attaches instead.

    `interpreter` empty is the worker's first; `cwd` is where a new environment starts, empty the operator's
    home; `timeout` in seconds.
    """

    id: int
    session: str
    call: str
    interpreter: str = ""
    cwd: str = ""
    timeout: Annotated[float, Meta(ge=0)] = 600.0


class Attach(_Frame, frozen=True, tag="attach"):
    """Ask for a run: answered by `going` (then as a run), its `result`, or `unknown` (never started here)."""

    id: int
    session: str
    call: str


class Interrupt(_Frame, frozen=True, tag="interrupt"):
    """End one run by the ladder SIGINT, SIGTERM, SIGKILL. `done` comes at once, the result as it ends."""

    id: int
    session: str
    call: str


class Kill(_Frame, frozen=True, tag="kill"):
    """End every environment of a session and all processes they started; `done` says what ended and what is left.

    `reason` is what the session's next run is told of why its environment is new.
    """

    id: int
    session: str
    reason: str = ""


class Read(_Frame, frozen=True, tag="read"):
    """Send a regular file, or a part of it, as `bytes` frames.

    `unit` bytes: `offset` counts bytes from 0. `unit` lines: `offset` is the first line, from 1; lines end
    in `\\n`. `limit` 0 is up to the end of the file. A relative `path` is relative to `cwd`.
    """

    id: int
    path: str
    cwd: str = ""
    offset: Natural = 0
    limit: Natural = 0
    unit: Literal["bytes", "lines"] = "bytes"


class Write(_Frame, frozen=True, tag="write"):
    """A piece of a file; the file is replaced atomically when the piece with `last` has arrived.

    `session` and `call`, where given, journal the write like a run, so it happens at most once. `mode` is for
    a new file; an existing one keeps its own. `expect`, where given, is the SHA-256 (hex) of the content that
    is to be replaced: another one is an error of code `changed` and nothing is written. `like`: an existing file
    whose mode and owner a new one takes. `remove`: the file is removed instead, and there is no body; `undoes`, where
    given, is the [session, call] of the write that made it, and the folders that were made for that go as well where
    they are empty. `append`: the pieces go behind what is there, which `expect` has to name; one that is given up
    leaves the file as it was.
    """

    id: int
    path: str
    cwd: str = ""
    session: str = ""
    call: str = ""
    mode: Annotated[int, Meta(ge=0, le=0o7777)] = 0o644
    expect: str = ""
    like: str = ""
    remove: bool = False
    undoes: tuple[str, str] | None = None
    append: bool = False
    last: bool = False


class Ack(_Frame, frozen=True, tag="ack"):
    """The result of this call is safe with the harness; its journal may go in 24 hours."""

    session: str
    call: str


class Update(_Frame, frozen=True, tag="update"):
    """This harness is of another release: get its wheel, install it and come back as it. A keeper ends when it is idle.

    The wheel is had over a connection of its own (see `dialing`), or at `url` where there is one: `size` bytes with
    this SHA-256 (hex). Without `sha256` there is none to be had, and `missing` says why. `refused`: why nothing is
    done with this worker until then; empty: it is taken meanwhile.
    """

    release: str
    url: str = ""
    sha256: str = ""
    size: Natural = 0
    missing: str = ""
    refused: str = ""


# Worker to harness.


class Hello(_Frame, frozen=True, tag="hello"):
    """First frame of a connection.

    `journal` names the worker's journal: another name is another journal, however old. `journal_age`: seconds since
    it was begun; a call older than it that the journal does not know may have run before the journal was lost.
    `running`: runs that go or wait; `environments`: interpreters that are alive; both as the connection was made.
    `runs`: [session, call] still known.
    """

    protocol: int
    release: Word
    os: Word
    arch: Word
    hostname: Word
    interpreters: Annotated[tuple[Word, ...], Meta(max_length=256)]
    scratch: Place
    home: Place = ""
    user: Word = ""
    cpus: Natural = 0
    memory: Natural = 0
    started: Word = ""
    journal: Word = ""
    journal_age: Annotated[float, Meta(ge=0)] = 0.0
    running: Natural = 0
    environments: Natural = 0
    runs: tuple[tuple[str, str], ...] = ()


class Output(_Frame, frozen=True, tag="output"):
    """The newest output of a run that is going, at most LIVE_CHUNK bytes; there may be gaps between two."""

    id: int


class Going(_Frame, frozen=True, tag="going"):
    """The run that `attach` asked for has not ended; its output and result follow."""

    id: int


class Unknown(_Frame, frozen=True, tag="unknown"):
    """The run that `attach` asked for never started here."""

    id: int


class Image(Struct, frozen=True):
    """An image that a run has shown: a file on the worker, to be fetched by `read`; `size` in bytes."""

    path: Place
    type: Word
    size: Natural


class Result(_Frame, frozen=True, tag="result"):
    """How a run ended; the body is the tail of its output within MAX_LINES and MAX_TAIL.

    `exit` None: it has no status (stopped, lost). `truncated`: lines cut before the tail; `full_output`: path
    of all of it on the worker. `reset`: why the environment was new at this run, `unknown`: why nobody can
    say what it did; both empty as a rule. `stopped`: `interrupt` or `timeout` where one ended it. `notes`:
    lines for the model. `images`: what it has shown, in order; their files are kept as long as the run is.
    """

    id: int
    exit: Integer | None = None
    seconds: Seconds = 0.0
    truncated: Natural = 0
    full_output: Place = ""
    reset: Sentence = ""
    unknown: Sentence = ""
    stopped: Literal["", "interrupt", "timeout"] = ""
    notes: Annotated[tuple[Sentence, ...], Meta(max_length=16)] = ()
    images: Annotated[tuple[Image, ...], Meta(max_length=64)] = ()


class Bytes(_Frame, frozen=True, tag="bytes"):
    """A piece of the file that `read` asked for. `size` is the whole file's, in bytes.

    With `unit` lines the last piece says the number of `lines` seen and whether that was the file's `end`.
    """

    id: int
    size: Natural = 0
    lines: Natural = 0
    end: bool = False
    last: bool = False


class Done(_Frame, frozen=True, tag="done"):
    """A request is carried out; the body, where there is one, is text on it. `size`: bytes written."""

    id: int
    size: Natural = 0


ErrorCode = Literal[
    "not_found",
    "is_directory",
    "not_regular",
    "denied",
    "changed",
    "syntax",
    "limit",
    "busy",
    "bad_request",
    "failed",
]


class Error(_Frame, frozen=True, tag="error"):
    """A request is refused or could not be carried out; nothing was run. The body is a sentence: why.

    `path`: where a folder that was to be read really is, without links and dots.
    """

    id: int
    code: ErrorCode = "failed"
    path: str = ""


# Both ways.


class Ping(_Frame, frozen=True, tag="ping"):
    """Answer with a pong."""


class Pong(_Frame, frozen=True, tag="pong"):
    """The answer to a ping."""


class Window(_Frame, frozen=True, tag="window"):
    """The receiver of transfer `id` has taken up `bytes` more; its sender may send that many more.

    `bytes` 0 from the harness gives a read or write up: the worker lets go of it and answers no more.
    """

    id: int
    bytes: Natural


ToWorker = Run | Attach | Interrupt | Kill | Read | Write | Ack | Update | Ping | Pong | Window
ToHarness = Hello | Output | Going | Unknown | Result | Bytes | Done | Error | Ping | Pong | Window
Frame = ToWorker | ToHarness

_encode = msgspec.json.Encoder().encode
_to_worker = msgspec.json.Decoder(ToWorker).decode
_to_harness = msgspec.json.Decoder(ToHarness).decode


def encode(frame: Frame, body: bytes = b"") -> bytes:
    """A frame's bytes; `len` is set from `body`. Raises FramingError for one that the peer would refuse."""
    if frame.len != len(body):
        frame = msgspec.structs.replace(frame, len=len(body))
    header = _encode(frame)
    if len(header) > MAX_HEADER or len(body) > MAX_BODY:
        raise framing.FramingError(
            f"a frame with a header of {len(header)} bytes and a body of {len(body)},"
            f" where at most {MAX_HEADER} and {MAX_BODY} fit"
        )
    return framing.encode(header, body)


def worker_decoder() -> framing.Decoder[ToWorker]:
    """Decodes what a harness sends, at the worker's end."""
    return framing.Decoder(_to_worker, MAX_HEADER, MAX_BODY)


def harness_decoder() -> framing.Decoder[ToHarness]:
    """Decodes what a worker sends, at the harness's end."""
    return framing.Decoder(_to_harness, MAX_HEADER, MAX_BODY)
