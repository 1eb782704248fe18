"""Small TOML files of the daemon's own, which only their owner can read: read whole, written whole or not at all."""

import contextlib
import json
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


class OwnFileError(Exception):
    """The file cannot be read or written; the message names it and why."""


def read(path: Path) -> dict[str, Any]:
    """The file's tables, none where there is no file. Blocks. Raises OwnFileError."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OwnFileError(f"{path} is not a file; move it away")
            return tomllib.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OwnFileError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OwnFileError(f"{path}: not valid TOML: {error}; correct it or move it away") from error


def write(path: Path, tables: Mapping[str, Any], head: str) -> None:
    """Replace the file, mode 0600, with `head` as its first line; it is on disk when this returns. Blocks.

    Raises OwnFileError; then the old file stands as it was.
    """
    data = "".join([f"# {head}\n", *_tables((), tables)]).encode()
    fresh = path.with_name(f"{path.name}.new-{secrets.token_hex(4)}")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(fd)
            fresh.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise OwnFileError(f"{path} cannot be written: {error.strerror}") from error


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO would be waited for, for ever


def _tables(path: Sequence[str], table: Mapping[str, Any]) -> Iterator[str]:
    values = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if path and (values or not table):
        yield f"\n[{'.'.join(map(_key, path))}]\n"
    for key, value in values.items():
        yield f"{_key(key)} = {_value(value)}\n"
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _tables((*path, key), value)


def _value(value: Any) -> str:
    match value:
        case str():
            return _text(value)
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            return f"{{ {', '.join(f'{_key(key)} = {_value(inner)}' for key, inner in value.items())} }}"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _text(text: str) -> str:
    """A TOML string: as JSON's, where DEL is escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
