"""`[tui]` of outrider.toml: the terminal UI's theme and keys. What the names mean, the terminal UI knows."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct


class TuiTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`theme`: empty for the one chosen last. `keys`: ids of bindings, a dot in them or a table within a table."""

    theme: str = ""
    keys: Mapping[str, Any] = {}


class TuiTableError(Exception):
    """`[tui]` has a value that cannot be; the message names it and what would be right."""


def checked(given: TuiTable) -> TuiTable:
    """`given` with `keys` as ids and a tuple each, empty for a binding that is to go. Raises TuiTableError."""
    return TuiTable(given.theme, dict(_flat(given.keys, "")))


def _flat(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, value in table.items():
        id = f"{path}.{name}" if path else name
        match value:
            case dict():
                yield from _flat(value, id)
            case "" | []:
                yield id, ()
            case str():
                yield id, (value,)
            case list() if all(isinstance(key, str) and key for key in value):
                yield id, tuple(value)
            case _:
                raise TuiTableError(
                    f"tui.keys.{id}: write a key as in 'x' or 'ctrl+t', a list of keys, or '' for none"
                )
