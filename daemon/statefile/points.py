"""Where a session may be copied: pure, over its header lines."""

from collections.abc import Iterable
from typing import Final

from daemon.protocol import records

FIRST: Final = 3  # start and config belong to every session


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
