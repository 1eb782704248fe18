"""Where a session may be copied: pure, over its header lines."""

import re
from collections.abc import Iterable
from typing import Final

from daemon.protocol import records
from daemon.statefile.errors import FIRST, CopyPointError, MissingError

ID: Final = re.compile(r"[0-9a-f]{16}")


def copy_points(lines: Iterable[bytes]) -> tuple[list[int], int]:
    """(Every n, ascending, for which the records before n make a session that can go on; the largest n to look at).

    Such a session has start and config, every call that a step closed has its result, and there is no end record:
    nothing from the first end record on is looked at.
    """
    points: list[int] = []
    waiting: dict[str, set[str]] = {}  # calls of a step that is not there yet
    answered: set[str] = set()
    unanswered: set[str] = set()
    n = 1
    for line in lines:
        header = records.parse_header(line)
        match header.kind:
            case "call":
                waiting.setdefault(header.step, set()).add(header.id)
            case "step":
                unanswered |= waiting.pop(header.id, set()) - answered
            case "result":
                answered.add(header.for_)
                unanswered.discard(header.for_)
            case "end":
                break
            case _:
                pass
        n += 1
        if n >= FIRST and not unanswered:
            points.append(n)
    return points, n


def nearest(points: list[int], n: int) -> int:
    """The point nearest to `n`, the earlier of two; 0 where there is none."""
    return min(points, key=lambda point: (abs(point - n), point), default=0)


def check(id: str, n: int, tip: int, lines: Iterable[bytes]) -> int:
    """How many records and one a copy with `n` has of a session with records 1 to `tip`. Raises CopyPointError."""
    possible, end = copy_points(lines)
    at = min(n, end)
    if tip < FIRST - 1:
        why = f"{tip or 'none'} of its records {'reads' if tip == 1 else 'read'}, and a copy has {FIRST - 1} at least"
        raise CopyPointError(id, n, why, 0)
    if not FIRST <= n <= tip + 1:
        why = f"it has records 1 to {tip}, so n is {FIRST} to {tip + 1}"
        raise CopyPointError(id, n, why, nearest(possible, n))
    if at not in possible:
        why = f"a call before record {at} has no result before it"
        raise CopyPointError(id, n, why, nearest(possible, n))
    return at


def check_id(id: str) -> None:
    """Raises MissingError for what is no session's id."""
    if not ID.fullmatch(id):
        raise MissingError(id)
