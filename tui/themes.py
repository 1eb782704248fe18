"""Themes of a person's own: a folder of TOML files, each a base and the colours that are others in it."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

BASE: Final = "textual-dark"
MOST: Final = 64 << 10  # bytes of a file: more is no theme
FIELDS: Final = ("base", "dark", "colours")
OWN: Final = (  # colours that a theme is made of; from these come all others
    "primary",
    "secondary",
    "warning",
    "error",
    "success",
    "accent",
    "foreground",
    "background",
    "surface",
    "panel",
    "boost",
)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class BadTheme(ValueError):
    """A theme's file cannot be used; the message names the file, the field and what would be right."""


def read(folder: Path) -> tuple[Theme, ...]:
    """The themes of the files `*.toml` in a folder, by name; none where there is no folder. Raises BadTheme."""
    try:
        files = sorted(folder.glob("*.toml"))
        return tuple(_theme(path, path.read_bytes()) for path in files)
    except OSError as error:
        raise BadTheme(f"{error.filename}: {error.strerror}") from error


def _theme(path: Path, text: bytes) -> Theme:
    try:
        return made(path.stem, text)
    except ValueError as error:
        raise BadTheme(f"{path}: {error}") from error


def made(name: str, text: bytes) -> Theme:
    """The theme of a file `name`.toml. Raises ValueError, which names the field."""
    if not _NAME.fullmatch(name):
        raise ValueError("a theme has its file's name: small letters, digits, - and _")
    if name in BUILTIN_THEMES:
        raise ValueError(f"there is a theme {name!r} already; give the file another name")
    if len(text) > MOST:
        raise ValueError(f"has {len(text):,} bytes; a theme has at most {MOST:,}")
    try:
        table = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not valid TOML: {error}") from error
    for field in table:
        if field not in FIELDS:
            raise ValueError(
                f"{field}: there is no such field{_near(field, FIELDS)}; there are {', '.join(FIELDS)}"
            )
    base = _base(table.get("base", BASE))
    dark = table.get("dark", base.dark)
    if not isinstance(dark, bool):
        raise ValueError("dark: write true or false")
    colours = _colours(table.get("colours", {}), base)
    own = {field: colours.pop(field, getattr(base, field)) for field in OWN}
    return Theme(
        name,
        **own,
        dark=dark,
        luminosity_spread=base.luminosity_spread,
        text_alpha=base.text_alpha,
        variables=base.variables | colours,
        ansi=base.ansi,
    )


def _base(name: Any) -> Theme:
    if not isinstance(name, str) or name not in BUILTIN_THEMES:
        raise ValueError(f"base: there is no theme {name!r}; there are {', '.join(BUILTIN_THEMES)}")
    return BUILTIN_THEMES[name]


def _colours(given: Any, base: Theme) -> dict[str, str]:
    if not isinstance(given, dict):
        raise ValueError("colours: write a table, [colours] and below it primary = '#ff8800'")
    known = [*OWN, *(name for name in base.to_color_system().generate() if not name.endswith("-style"))]
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"colours.{name}: there is no such colour{_near(name, known)}")
        if not isinstance(value, str) or not _is_colour(value):
            raise ValueError(
                f"colours.{name}: {value!r} is no colour; write '#ff8800', 'rgb(255, 136, 0)' or 'orange'"
            )
    return dict(given)


def _is_colour(text: str) -> bool:
    try:
        Color.parse(text)
    except ColorParseError:
        return False
    return True


def _near(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def chosen(theme: Theme) -> frozenset[str]:
    """The names of the colours that a person has written down for a theme; none for Textual's own."""
    return frozenset() if theme.name in BUILTIN_THEMES else frozenset(theme.variables)


def known(more: Iterable[Theme]) -> Mapping[str, Theme]:
    """Every theme by its name: those of Textual and `more`."""
    return BUILTIN_THEMES | {theme.name: theme for theme in more}
