"""Read tables of TOML strictly: an error names the file, the key, and the nearest one that is right."""

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from daemon.plain import wanted

T = TypeVar("T")

VARIABLE = re.compile(r"\$\{?(\w+)\}?")


class ConfigError(Exception):
    """The configuration cannot be used; the message names the file, the key and what would be right."""


def read(file: Path, warnings: list[str]) -> dict[str, Any] | None:
    """The file's tables, None where there is no file; a warning where others can read its keys."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            table = tomllib.load(opened)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    providers = table.get("providers")
    if isinstance(providers, dict) and mode & (stat.S_IRGRP | stat.S_IROTH):
        names = [
            name for name, entry in providers.items() if isinstance(entry, dict) and _secret(entry.get("key"))
        ]
        if names:
            warnings.append(
                f"{file} holds the key of {', '.join(names)} and others can read it: chmod 600 {file}"
            )
    return table


def _secret(key: object) -> bool:
    return (
        isinstance(key, str) and bool(key) and not VARIABLE.fullmatch(key) and not key.startswith("keyring:")
    )


def table(value: Any, path: str, file: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: {path} is a table: write [{path}] and its keys below")
    return value


def convert(table: dict[str, Any], kind: type[T], path: str, file: Path) -> T:
    fields = msgspec.structs.fields(kind)  # type: ignore[arg-type]
    known = [field.encode_name for field in fields]
    for key in table:
        if key not in known:
            raise ConfigError(
                f"{file}: there is no {path}.{key}{nearest(key, known)}; {path} has {', '.join(known)}"
            )
    needed = [field.encode_name for field in fields if field.required]
    if missing := [key for key in needed if key not in table]:
        raise ConfigError(
            f"{file}: {' and '.join(f'{path}.{key}' for key in missing)} {'is' if len(missing) == 1 else 'are'} "
            f"missing; {path} needs {' and '.join(needed)}{_optional(known, needed)}"
        )
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$.")
        place = f"{path}.{where.rstrip('`')}" if where else path
        raise ConfigError(f"{file}: {place}: {wanted(message)}") from error


def _optional(known: list[str], needed: list[str]) -> str:
    others = [key for key in known if key not in needed]
    return f", and may have {', '.join(others)}" if others else ""


def nearest(word: str, known: "tuple[str, ...] | list[str]") -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
