"""Print tables and facts: whole in a pipe, fitted to its width on a terminal."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from daemon.plain import line, safe
from daemon.verbs.paint import cut, ink, is_terminal, width, wrap
from daemon.verbs.reach import say

GAP: Final = 2  # columns between two columns
LAST: Final = 16  # columns that the last column has before others are cut for it
LEAST: Final = 16  # columns that any other keeps
CELL: Final = 1000  # characters of a cell in a pipe

Styles = Mapping[str, str]
"""A cell's text to the style it is shown in."""


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], style: Mapping[int, Styles] | None = None
) -> None:
    """Columns under their heads. `style`: column to text to style.

    On a terminal what does not fit is cut: the last column, and before it becomes too narrow the widest others, but
    never the first, which names the row.
    """
    pen = ink(sys.stdout)
    shown = [[line(cell, CELL) or "-" for cell in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(head, *shown, strict=True)]
    if is_terminal(sys.stdout):
        widths = fitted(widths, shutil.get_terminal_size().columns - 1)
        shown = [[cut(cell, most) for cell, most in zip(row, widths, strict=True)] for row in shown]
    say(pen(_row(head, widths), "head"))
    for row in shown:
        styles = [(style or {}).get(at, {}).get(cell, "") for at, cell in enumerate(row)]
        say(_row([pen(cell, found) for cell, found in zip(row, styles, strict=True)], widths, row))


def fitted(widths: Sequence[int], edge: int) -> list[int]:
    """`widths` cut so that all columns with their gaps fit into `edge`, as far as they may be cut."""
    made = list(widths)
    over = sum(made) + GAP * (len(made) - 1) - edge
    if over > 0:
        by = min(over, max(0, made[-1] - LAST))
        made[-1] -= by
        over -= by
    while over > 0 and len(made) > 2:
        at = max(range(1, len(made) - 1), key=made.__getitem__)
        if made[at] <= LEAST:
            break
        made[at] -= 1
        over -= 1
    if over > 0:
        made[-1] = max(LEAST, made[-1] - over)
    return made


def _row(cells: Sequence[str], widths: Sequence[int], plain: Sequence[str] | None = None) -> str:
    """Cells side by side; `plain` is what they are without colours."""
    padded = [
        cell + " " * (most - width(bare))
        for cell, bare, most in zip(cells, plain or cells, widths, strict=True)
    ]
    return (" " * GAP).join([*padded[:-1], cells[-1]])


def facts(rows: Sequence[tuple[str, str, str]]) -> None:
    """(name, value, style) each on a line of its own, those with a value; long ones are wrapped on a terminal."""
    pen = ink(sys.stdout)
    shown = [(name, line(value, CELL), style) for name, value, style in rows if value]
    before = max((len(name) for name, _, _ in shown), default=0)
    for name, value, style in shown:
        first, *more = wrapped(value, before + GAP)
        say(f"{pen(f'{name:<{before}}', 'dim')}  {pen(first, style)}")
        for row in more:
            say(f"{' ' * (before + GAP)}{pen(row, style)}")


def wrapped(text: str, before: int) -> list[str]:
    """`text` in rows that fit behind `before` columns of a terminal; as one row in a pipe."""
    if not is_terminal(sys.stdout):
        return [text]
    return wrap(text, max(LAST, shutil.get_terminal_size().columns - 1 - before), words=True)


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


def local(time: str) -> str:
    """A UTC time as the clock here shows it."""
    try:
        return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return safe(time)
