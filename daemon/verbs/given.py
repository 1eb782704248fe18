"""Make values of what a command line gives as text: workers, settings, limits."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from daemon.plain import line, wanted
from daemon.protocol.records import Limits, WorkerRef
from daemon.verbs.reach import USAGE, VerbError

T = TypeVar("T")


def worker_refs(given: Sequence[str], here: bool) -> tuple[WorkerRef, ...]:
    """NAME or NAME:FOLDER each; none is `local`. `local` starts in the caller's folder when that is `here`."""
    refs = []
    for text in given or ("local",):
        name, _, cwd = text.partition(":")
        if not name:
            raise VerbError(f"worker {line(text)!r}: write NAME or NAME:FOLDER", USAGE)
        if name == "local" and here:
            cwd = str(Path(cwd).expanduser().absolute()) if cwd else str(Path.cwd())
        refs.append(WorkerRef(name, cwd))
    return tuple(refs)


def params(given: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE each, a dot in KEY for a field inside."""
    return tree(given, "--param", "temperature=0.2")


def inputs(given: Sequence[str]) -> dict[str, Any]:
    """NAME=TEXT each; a number or a boolean is taken from its text by who checks it."""
    made: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise VerbError(f"--input {line(text)}: write NAME=TEXT, as in --input file=a.txt", USAGE)
        if name in made:
            raise VerbError(f"--input {line(name)}: it is given twice", USAGE)
        made[name] = value
    return made


def limits(given: Sequence[str]) -> Limits:
    """KEY=N each."""
    return converted(tree(given, "--limit", "steps=10"), Limits, "--limit")


def tree(given: Sequence[str], option: str, example: str) -> dict[str, Any]:
    """KEY=VALUE each, as one object; a dot in KEY is for a field inside. VALUE is JSON where it can be, else text."""
    made: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not all(key.split(".")):
            raise VerbError(f"{option} {line(text)!r}: write KEY=VALUE, as in {example}", USAGE)
        *path, last = key.split(".")
        inner = made
        for name in path:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise VerbError(
                    f"{option} {line(text)!r}: {name} already has a value that is no object", USAGE
                )
        try:
            inner[last] = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            inner[last] = value
    return made


def converted(value: dict[str, Any], type: type[T], option: str) -> T:
    """`value` as a `type`. Raises VerbError that names the field and what there is."""
    known = [field.encode_name for field in msgspec.structs.fields(type)]  # type: ignore[arg-type]
    for name in value:
        if name not in known:
            there = ", ".join(known)
            raise VerbError(f"{option}: there is no {line(name)!r}; there are {there}", USAGE)
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$.")
        field = where.rstrip("`")
        raise VerbError(
            f"{option}: {f'{field}: ' if field else ''}{line(wanted(message), 300)}", USAGE
        ) from error


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
