"""The verbs on sessions that ask once and print an answer: ls, info, new, post, stop, retry, workers, models."""

import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from daemon.plain import line, safe, tokens
from daemon.protocol import api
from daemon.protocol.records import TEXT, Status, WorkerRef
from daemon.verbs.paint import ink, is_terminal
from daemon.verbs.reach import OK, USAGE, VIA, VerbError, Where, connect, say, say_json, session_id

_STATUS: Final = {
    "stepping": "good",
    "open": "note",
    "interrupted": "note",
    "failed": "failed",
    "damaged": "failed",
    "ended": "dim",
    "expired": "dim",
}


async def ls(place: Where, status: Status | None, limit: int, json: bool) -> int:
    """The sessions, newest updated first, as a table or as one JSON array."""
    async with connect(place) as client:
        found: list[api.Info] = []
        while len(found) < limit:
            want = min(limit - len(found), api.MAX_LIST)
            page = await client.list(status=status, limit=want, after=found[-1].id if found else "")
            found += page
            if len(page) < want:
                break
    if json:
        say_json(found)
    elif found:
        table(
            ("ID", "STATUS", "UPDATED", "CONTEXT", "MODEL", "TITLE"),
            [
                (info.id, info.status, ago(info.updated), _context(info), info.config.model, info.title)
                for info in found
            ],
            style={1: _STATUS},
        )
    elif sys.stdout.isatty():
        say("No sessions." if status is None else f"No sessions that are {status}.")
    return OK


async def info(place: Where, prefix: str, json: bool) -> int:
    """All that the daemon says about a session."""
    async with connect(place) as client:
        found = await client.info(await session_id(client, prefix))
    if json:
        say_json(found)
        return OK
    config = found.config
    rows = [
        ("id", found.id),
        ("status", found.status),
        ("title", found.title),
        ("model", config.model),
        (
            "workers",
            ", ".join(f"{ref.name}:{ref.cwd}" if ref.cwd else ref.name for ref in config.workers) or "none",
        ),
        ("tools", config.tools if isinstance(config.tools, str) else ", ".join(config.tools)),
        ("params", msgspec.json.encode(config.params).decode() if config.params else ""),
        ("records", str(found.n)),
        ("context", _context(found)),
        ("tokens", f"{tokens(found.usage.prompt)} in, {tokens(found.usage.output)} out"),
        ("created", f"{_local(found.created)}"),
        ("updated", f"{_local(found.updated)} ({ago(found.updated)})"),
        ("copy of", f"{found.from_.session}, records 1 to {found.from_.n - 1}" if found.from_ else ""),
        ("damage", found.damage),
    ]
    pen = ink(sys.stdout)
    for name, value in rows:
        if value:
            style = _STATUS.get(value, "") if name == "status" else "failed" if name == "damage" else ""
            say(f"{pen(f'{name:<8}', 'dim')}  {pen(line(value, 1000), style)}")
    return OK


async def new(place: Where, create: api.Create, json: bool) -> int:
    """Make a session and print its id."""
    async with connect(place) as client:
        id = await client.create(create)
    if json:
        say_json(api.Created(id))
    else:
        say(id)
    return OK


async def post(place: Where, prefix: str, parts: Sequence[api.Part], json: bool) -> int:
    """Post to a session; its number is printed when it is durable."""
    async with connect(place) as client:
        id = await session_id(client, prefix)
        n = await client.post(id, parts, VIA)
    if json:
        say_json({"id": id, "n": n})
    else:
        say(f"#{n}")
    return OK


async def stop(place: Where, prefix: str, json: bool) -> int:
    """Stop what a session does; done when it returns."""
    async with connect(place) as client:
        id = await session_id(client, prefix)
        await client.stop(id, VIA)
        found = await client.info(id)
    if json:
        say_json({"id": id, "status": found.status})
    else:
        say(f"stopped {id}")
    return OK


async def retry(place: Where, prefix: str, json: bool) -> int:
    """Let a failed session go on."""
    async with connect(place) as client:
        id = await session_id(client, prefix)
        status = await client.retry(id)
    if json:
        say_json({"id": id, "status": status})
    else:
        say(f"{id} is {status}")
    return OK


async def workers(place: Where, json: bool) -> int:
    """The workers the daemon knows."""
    async with connect(place) as client:
        found = await client.workers()
    if json:
        say_json(found)
    else:
        style = {1: {"connected": "good", "refused": "failed", "gone": "dim"}}
        table(
            ("NAME", "STATE", "SYSTEM", "INTERPRETERS", "RUNNING", "HOST"),
            [
                (
                    w.name,
                    w.state,
                    f"{w.os} {w.arch}",
                    ", ".join(w.interpreters),
                    str(w.running),
                    w.reason or w.hostname,
                )
                for w in found
            ],
            style=style,
        )
    return OK


async def models(place: Where, json: bool) -> int:
    """The models the daemon serves."""
    async with connect(place) as client:
        found = await client.models()
    if json:
        say_json(found)
    else:
        for name in found:
            say(line(name))
    return OK


# What the options say.


def worker_refs(given: Sequence[str], here: bool) -> tuple[WorkerRef, ...]:
    """NAME or NAME:FOLDER each; none is `local`. `local` starts in the caller's folder when that is `here`."""
    refs = []
    for text in given or ("local",):
        name, _, cwd = text.partition(":")
        if not name:
            raise VerbError(f"--worker {line(text)!r}: write NAME or NAME:FOLDER", USAGE)
        if name == "local" and here:
            cwd = str(Path(cwd).expanduser().absolute()) if cwd else str(Path.cwd())
        refs.append(WorkerRef(name, cwd))
    return tuple(refs)


def params(given: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE each, a dot in KEY for a field inside; VALUE is JSON where it is valid JSON, else text."""
    made: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not all(key.split(".")):
            raise VerbError(f"--param {line(text)!r}: write KEY=VALUE, as in temperature=0.2", USAGE)
        *path, last = key.split(".")
        inner = made
        for name in path:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise VerbError(
                    f"--param {line(text)!r}: {name} already has a value that is no object", USAGE
                )
        try:
            inner[last] = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError):
            inner[last] = value
    return made


def text_of(given: str, what: str) -> str:
    """`given` itself, what stdin holds for `-`, or what the file holds for @FILE."""
    try:
        if given == "-":
            text = sys.stdin.buffer.read().decode()
        elif given.startswith("@"):
            text = Path(given[1:]).expanduser().read_text()
        else:
            text = given
    except OSError as error:
        raise VerbError(f"{what}: {given[1:]}: {error.strerror}", USAGE) from error
    except UnicodeDecodeError as error:
        raise VerbError(f"{what} is not UTF-8 text: byte {error.start} is not valid", USAGE) from error
    if not text.strip():
        raise VerbError(f"{what} is empty", USAGE)
    return text


def message(given: str) -> list[api.Part]:
    """A post of one text: `given`, or stdin for `-`."""
    text = text_of(given, "the message") if given == "-" else given
    if not text.strip():
        raise VerbError("the message is empty", USAGE)
    return [api.Part(TEXT, text.encode("utf-8", "replace"))]


# How it looks.


def table(head: Sequence[str], rows: Sequence[Sequence[str]], style: dict[int, dict[str, str]]) -> None:
    """Columns under their heads; on a terminal the last one is cut at its edge. `style`: column to word to style."""
    pen = ink(sys.stdout)
    shown = [[line(cell, 1000) or "-" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *shown, strict=True)]
    edge = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else 0
    before = sum(widths[:-1]) + 2 * (len(widths) - 1)
    say(pen("  ".join(f"{name:<{width}}" for name, width in zip(head, widths, strict=True)).rstrip(), "head"))
    for row in shown:
        last = line(row[-1], max(8, edge - before)) if edge else row[-1]
        cells = [
            pen(f"{cell:<{widths[at]}}", style.get(at, {}).get(cell, "")) for at, cell in enumerate(row[:-1])
        ]
        say("  ".join([*cells, last]))


def ago(time: str, now: datetime | None = None) -> str:
    """How long ago a UTC time was, short."""
    try:
        passed = ((now or datetime.now(UTC)) - datetime.fromisoformat(time)).total_seconds()
    except (ValueError, TypeError):
        return line(time)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= size:
            return f"{int(passed // size)} {unit} ago"
    return f"{max(0, int(passed))} s ago"


def _local(time: str) -> str:
    try:
        return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return safe(time)


def _context(info: api.Info) -> str:
    used = tokens(info.prompt)
    return f"{used}/{tokens(info.config.context)}" if info.config.context else used
