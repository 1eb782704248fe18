"""The format of a rehearsal's script: TOML read into values, or an error that names file, field and fix."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from daemon.plain import wanted

SHIPPED: Final = Path(__file__).parent / "rehearsals"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MAX_FILE: Final = 1 << 20  # bytes of a script

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


class BadScript(ValueError):
    """A script that cannot be played: the message names the file, the field and what would be right."""


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call. `arguments` is a table, or a string that is sent as it stands, valid JSON or not."""

    tool: Annotated[str, Meta(min_length=1)]
    arguments: dict[str, Any] | str = {}
    id: str = ""


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """What goes wrong at a step, `times` times, before the step is played as it stands; several come in order.

    status: the answer is an error of `status` with `headers` and a body that says `message`. error: an error event of
    `type`. cut: the stream ends. drop: the connection breaks. stall: nothing comes for `seconds`, then the rest.
    All but status happen after `after` events; cut, drop and stall instead after `bytes` bytes of the stream.
    """

    kind: Literal["status", "error", "cut", "drop", "stall"]
    times: Annotated[int, Meta(ge=1)] = 1
    status: Annotated[int, Meta(ge=300, le=599)] = 529
    headers: dict[str, str] = {}
    type: str = "overloaded_error"
    message: str = "This fault is part of the rehearsal."
    after: Count | None = None
    bytes: Count | None = None
    seconds: Seconds = 3600.0


class Tokens(Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens that a step claims; those left out are counted from the text, four characters to one."""

    input: Count | None = None
    output: Count | None = None
    cache_read: Count = 0
    cache_write: Count = 0


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """One answer: thinking, then text, then calls. `stop` is the wire's stop reason; empty is the usual one.

    `delay`: seconds before it begins; `pace`: seconds between two pieces of `piece` characters; `chunk`: bytes in one
    read, 0 for an event each. `lines`: how lines end. `noise`: comments, pings and unknown events in between.
    """

    thinking: str = ""
    text: str = ""
    calls: tuple[Call, ...] = ()
    stop: str = ""
    usage: Tokens = Tokens()
    faults: tuple[Fault, ...] = ()
    delay: Seconds | None = None
    pace: Seconds | None = None
    piece: Annotated[int, Meta(ge=1)] | None = None
    chunk: Count | None = None
    lines: Literal["lf", "crlf", "cr"] = "lf"
    noise: bool = False


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """Steps that answer one another. `per` session: one for each answer since the start; `per` message: since the
    newest message. `end`: said when the steps are over; `alone`: said in place of calls where there is no worker.
    """

    steps: Annotated[tuple[Step, ...], Meta(min_length=1)]
    title: str = ""
    per: Literal["session", "message"] = "session"
    end: str = "The script of this rehearsal is over: there is nothing more in it to say."
    alone: str = "This step of the rehearsal would run something, but the session has no worker."
    delay: Seconds = 0.0
    pace: Seconds = 0.0
    piece: Annotated[int, Meta(ge=1)] = 16
    chunk: Count = 0


_PARTS: Final[tuple[tuple[str, type[Struct]], ...]] = (
    (r"steps\[\d+\]\.calls\[\d+\]", Call),
    (r"steps\[\d+\]\.faults\[\d+\]", Fault),
    (r"steps\[\d+\]\.usage", Tokens),
    (r"steps\[\d+\]", Step),
    (r"", Script),
)


def names(folder: Path | None) -> tuple[str, ...]:
    """The scripts there are, shipped ones first; a file in `folder` may replace a shipped one. Reads the folders."""
    found = sorted((path.stem for path in SHIPPED.glob("*.toml")), reverse=True)  # the tour is first
    if folder is not None and folder.is_dir():
        found += [path.stem for path in sorted(folder.glob("*.toml")) if NAME.fullmatch(path.stem)]
    return tuple(dict.fromkeys(found))


def load(name: str, folder: Path | None) -> Script:
    """The script `name` from `folder`, else from those shipped. Reads a file. Raises BadScript."""
    if not NAME.fullmatch(name):
        raise BadScript(
            f"there is no rehearsal {name!r}: a name has letters, digits, dots, dashes and underscores"
        )
    for place in (folder, SHIPPED):
        if place is not None and (path := place / f"{name}.toml").is_file():
            try:
                with path.open("rb") as file:
                    return parse(file.read(MAX_FILE), str(path))
            except OSError as error:
                raise BadScript(f"{path}: cannot be read: {error.strerror}") from None
    raise BadScript(f"there is no rehearsal {name!r}; there are {', '.join(names(folder))}")


def parse(data: bytes, where: str) -> Script:
    """A script from TOML bytes; `where` names them in an error. Raises BadScript."""
    try:
        value = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise BadScript(f"{where}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadScript(f"{where}: not TOML: {error}") from None
    try:
        script = msgspec.convert(value, Script)
    except msgspec.ValidationError as error:
        raise BadScript(f"{where}: {_explained(str(error))}") from None
    for number, step in enumerate(script.steps):
        if not (step.thinking or step.text or step.calls or step.stop):
            what = "is empty; give it text, thinking or calls (or a stop, for an answer of nothing)"
            raise BadScript(f"{where}: steps[{number}] {what}")
        for place, fault in enumerate(step.faults):
            if fault.after is not None and fault.bytes is not None:
                raise BadScript(
                    f"{where}: steps[{number}].faults[{place}]: give `after` or `bytes`, not both"
                )
    return script


def _explained(error: str) -> str:
    problem, _, path = error.partition(" - at `$")
    field = path.rstrip("`").lstrip(".")
    part = next(kind for pattern, kind in _PARTS if re.match(pattern, field))
    if found := re.fullmatch("Invalid enum value (.*)", problem, re.DOTALL):
        words = get_args(get_type_hints(part)[field.rpartition(".")[2]])
        return f"{field}: {found[1]} is none of {', '.join(words)}"
    return f"{field or 'the file'}: {wanted(problem)}; fields here are {', '.join(part.__struct_fields__)}"
