"""Screens as text, compared with what was reviewed: files of text in a folder `snapshots` beside the test.

OUTRIDER_SNAPSHOTS=write writes them anew; look at the diff before it is committed.
"""

import difflib
import os
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from rich.style import Style
from textual._context import visible_screen_stack
from textual.app import App
from textual.strip import Strip

SMALL, LARGE = (80, 24), (160, 45)
SIZES = (SMALL, pytest.param(LARGE, marks=pytest.mark.campaign))
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def rendered(app: App[Any]) -> list[Strip]:
    """The lines of the screen, with what stands behind a dialog: whoever renders without it leaves that blank."""
    visible_screen_stack.set(app._background_screens)
    return app.screen._compositor.render_strips()


def screen_text(app: App[Any]) -> str:
    """What stands on the screen, without spaces at the ends of lines."""
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in rendered(app)) + "\n"


def screen_styles(app: App[Any]) -> str:
    """How it is drawn: per line the columns of each style by a letter, then what the letters mean."""
    letters: dict[str, str] = {}
    lines = []
    for strip in rendered(app):
        cells = [
            (letters.setdefault(_words(segment.style), LETTERS[min(len(letters), 51)]), segment.cell_length)
            for segment in strip
        ]
        runs = [
            f"{letter}{sum(width for _, width in run)}"
            for letter, run in groupby(cells, lambda cell: cell[0])
        ]
        lines.append(" ".join(runs))
    return "\n".join(lines + [f"{letter} {words}" for words, letter in letters.items()]) + "\n"


def _words(style: Style | None) -> str:
    style = style or Style()
    attributes = [
        name for name in ("bold", "dim", "italic", "underline", "reverse", "strike") if getattr(style, name)
    ]
    colours = [colour.name if colour else "-" for colour in (style.color, style.bgcolor)]
    return " ".join([f"{colours[0]} on {colours[1]}", *attributes])


def check(test: str, name: str, text: str) -> None:
    """Compare `text` with the snapshot `name` of the test file `test` (its `__file__`)."""
    path = Path(test).parent / "snapshots" / f"{name}.txt"
    if os.environ.get("OUTRIDER_SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.is_file(), f"{path} is missing: OUTRIDER_SNAPSHOTS=write makes it"
    reviewed = path.read_text()
    if text != reviewed:
        found = difflib.unified_diff(
            reviewed.splitlines(),
            text.splitlines(),
            f"{name}, as it was reviewed",
            "as it is",
            n=1,
            lineterm="",
        )
        raise AssertionError("\n".join([*found, "OUTRIDER_SNAPSHOTS=write writes it anew"]))
