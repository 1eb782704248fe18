"""Find the one place where a hunk stands in the lines of a file, or say why there is none."""

import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from daemon.harness.patchtext import Hunk, quote

NAMED: Final = 10  # line numbers listed where lines stand at several places
VAGUE: Final = 200  # a header or line that stands more often than this says nothing of a place
ALIKE: Final = 0.5  # share of two-letter pieces that makes a line like another
NEAR_LENGTH: Final = 400  # characters of a line up to which it is compared so

_FOLD: Final = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d", "-"),
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"'),
        **dict.fromkeys("\u00a0\u202f\u205f\u3000", " "),
        **{chr(code): " " for code in range(0x2000, 0x200B)},
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", None),
        "\u2026": "...",
    }
)
_BROKEN: Final = re.compile(
    "[\ufffd\udc80-\udcff]+"
)  # bytes that are not UTF-8, as kept and as a model sees them
# Beginnings of lines that belong to the block above them though they are not indented deeper than its first line.
_GOES_ON: Final = (
    *(
        "}",
        ")",
        "]",
        "{",
        "</",
        "#",
        "end",
        "else",
        "elif",
        "except",
        "finally",
        "catch",
        "case ",
        "default:",
    ),
    *("public:", "private:", "protected:"),
)


def fold(line: str) -> str:
    """A line without surrounding whitespace, its typographic punctuation made plain."""
    plain = (
        line if line.isascii() else _BROKEN.sub("\ufffd", unicodedata.normalize("NFC", line.translate(_FOLD)))
    )
    return plain.strip()


def _same(line: str) -> str:
    return line


LEVELS: Final[tuple[tuple[Callable[[str], str], str], ...]] = (
    (_same, ""),
    (str.rstrip, "trailing whitespace ignored"),
    (str.strip, "surrounding whitespace ignored"),
    (fold, "whitespace and typographic punctuation ignored"),
)


class Place(Struct, frozen=True):
    """Where a hunk stands: `start` is an index of the file's lines; `lines` are those of the hunk that count."""

    start: int
    lines: tuple[str, ...]


class NoPlace(Exception):
    """There is not exactly one place; the message says what there is and what would be right."""


class Lines:
    """The lines of a file, without their ends, and where each stands under each way of comparing."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self._forms: dict[int, tuple[list[str], dict[str, list[int]]]] = {}
        self._last = next((i for i in range(len(lines) - 1, -1, -1) if lines[i].strip()), -1)

    def __len__(self) -> int:
        return len(self.lines)

    def form(self, level: int) -> tuple[list[str], dict[str, list[int]]]:
        """(each line as this level compares it, the indices of each)."""
        if level not in self._forms:
            change = LEVELS[level][0]
            made = list(map(change, self.lines)) if level else self.lines
            index: dict[str, list[int]] = {}
            for number, line in enumerate(made):
                index.setdefault(line, []).append(number)
            self._forms[level] = made, index
        return self._forms[level]

    def find(self, level: int, wanted: list[str], start: int = 0) -> list[int]:
        """Every index from `start` on where the lines `wanted` stand."""
        made, index = self.form(level)
        pattern = [LEVELS[level][0](line) for line in wanted]
        rarest = min(range(len(pattern)), key=lambda k: len(index.get(pattern[k], ())))
        at = index.get(pattern[rarest], [])
        return [
            place - rarest
            for place in at[bisect_left(at, start + rarest) :]
            if made[place - rarest : place - rarest + len(pattern)] == pattern
        ]

    def blank_from(self, start: int) -> bool:
        """Whether only blank lines stand from `start` on."""
        return start > self._last

    def block(self, header: int) -> range:
        """The lines from a header to the end of the block it opens, or of the file where it opens none."""
        depth, deeper = _depth(self.lines[header]), False
        for number in range(header + 1, len(self.lines)):
            line = self.lines[number]
            if not line.strip():
                continue
            if _depth(line) > depth:
                deeper = True
            elif not line.lstrip().startswith(_GOES_ON):
                return range(header, number if deeper else len(self.lines))
        return range(header, len(self.lines))


def locate(view: Lines, hunk: Hunk, full: int, changed: int) -> Place:
    """The only place of a hunk. Raises NoPlace.

    `full` and `changed` are the indices after the last line, and after the last changed line, of the hunk before it:
    lines of context in between may be given twice.
    """
    if not any(line[:1] in (" ", "-") for line in hunk.lines if line):
        if hunk.end or not view.lines:
            return Place(len(view), tuple(line or "+" for line in list(_variants(hunk.lines))[-1]))
        raise NoPlace(
            "it only adds lines, so nothing says where: give a line of the file before or after them as context "
            "(a space, then the line), or `*** End of File` after them to append"
        )
    for start in dict.fromkeys((full, changed)):
        for lines in _variants(hunk.lines):
            old = [line[1:] for line in lines if line[:1] != "+"]
            for level, (_, how) in enumerate(LEVELS):
                found = view.find(level, old, start)
                if hunk.end:
                    found = [p for p in found if p + len(old) == len(view)] or [
                        p for p in found if view.blank_from(p + len(old))
                    ]
                if found and hunk.headers:
                    found = _under(view, hunk.headers, found, _reach(lines))
                if len(found) == 1:
                    return Place(found[0], lines)
                if found:
                    raise NoPlace(
                        f"its lines stand at {_numbers(found)}{f' ({how})' if how else ''}: give more lines of "
                        "context around the change, or an `@@` line with the class or function it stands in"
                    )
    raise NoPlace(_why(view, hunk, full))


def _variants(lines: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The lines as given, then without wholly empty ones at the end, at the start and at both: those may be gaps."""
    first = next(i for i, line in enumerate(lines) if line)
    last = next(i for i in range(len(lines), 0, -1) if lines[i - 1])
    yield from dict.fromkeys((lines, lines[:last], lines[first:], lines[first:last]))


def _reach(lines: tuple[str, ...]) -> int:
    """Which of the old lines the first change is at: the one removed, or the one before what is added."""
    kinds = [line[:1] or " " for line in lines]
    first = next((i for i, kind in enumerate(kinds) if kind != " "), len(kinds) - 1)
    return max(first - 1, 0) if kinds[first] == "+" else first


def _under(view: Lines, headers: tuple[str, ...], found: list[int], reach: int) -> list[int]:
    """Those of `found` whose change stands in the block that the headers name."""
    for scopes in _scopes(view, headers):
        if inside := [p for p in found if any(p + reach in scope for scope in scopes)]:
            return inside
    return []


def _scopes(view: Lines, headers: tuple[str, ...]) -> Iterator[list[range]]:
    """The blocks that the headers may name, one list for each way of reading them, the strictest first."""
    for rule in (0, len(LEVELS) - 1, len(LEVELS)):
        scopes = [range(len(view))]
        for header in headers:
            hits = [h for h in _header_hits(view, header, rule) if any(h in scope for scope in scopes)]
            if len(hits) <= VAGUE:
                scopes = [view.block(h) for h in hits]
        yield scopes


def _header_hits(view: Lines, header: str, rule: int) -> list[int]:
    """The indices of the lines that are this header or, under the last rule, begin with it."""
    if rule < len(LEVELS):
        return view.form(rule)[1].get(LEVELS[rule][0](header), [])
    start = fold(header)
    return [
        number
        for number, line in enumerate(view.form(len(LEVELS) - 1)[0])
        if line.startswith(start) and not re.match(r"\w", line[len(start) :])
    ]


def _why(view: Lines, hunk: Hunk, full: int) -> str:
    lines = list(_variants(hunk.lines))[-1]
    old = [line[1:] for line in lines if line[:1] != "+"]
    new = [line[1:] for line in lines if line[:1] != "-"]
    found = next(filter(None, (view.find(level, old) for level in range(len(LEVELS)))), [])
    for header in hunk.headers:
        if not _header_hits(view, header, len(LEVELS)):
            there = f"; the lines of the hunk stand at {_numbers(found)}" if found else ""
            return f"no line of the file is {quote(header)}, which its `@@` line gives{there}"
    where = _numbers(found)
    if found and found[-1] < full:
        return (
            f"its lines stand at {where}, but the hunk before it reaches to line {full}: give the hunks in the order "
            "of the file, and each line in one of them"
        )
    if found and hunk.end:
        return (
            f"its lines stand at {where}, which is not the end of the file ({len(view)} lines): leave out "
            "`*** End of File`"
        )
    if found:
        return f"its lines stand at {where}, outside the block of its `@@` line {quote(hunk.headers[-1])}"
    if any(line[:1] == "+" and line[1:].strip() for line in lines) and (done := view.find(1, new)):
        return (
            f"its old lines are not in the file, but its new ones are, at {_numbers(done)}: it may have been applied "
            "before"
        )
    return f"its lines are not in the file{_near(view, old)}"


def _near(view: Lines, old: list[str]) -> str:
    """Where most of the lines stand as they are given, and the first that differs there."""
    made, index = view.form(len(LEVELS) - 1)
    wanted = list(map(fold, old))
    votes: Counter[int] = Counter()
    for number, line in enumerate(wanted):
        places = index.get(line, [])
        if line and len(places) <= VAGUE:
            votes.update(place - number for place in places)
    if not votes:
        return _alike(view, wanted)
    most = max(votes.values())
    starts = sorted(start for start, count in votes.items() if count == most)
    start = starts[0]
    differ = [k for k, line in enumerate(wanted) if not 0 <= start + k < len(made) or made[start + k] != line]
    k = next((k for k in differ if 0 <= start + k < len(made)), differ[0])
    if 0 <= start + k < len(made):
        differs = f"line {start + k + 1} of the file is {quote(view.lines[start + k])}"
    else:
        differs = f"the file has lines 1 to {len(made)} only"
    others = f" (and as well at {_numbers(starts[1:])})" if starts[1:] else ""
    return (
        f"; they nearly match at line {max(start, 0) + 1}{others}, {len(wanted) - len(differ)} of {len(wanted)} the "
        f"same: {differs} where the hunk has {quote(old[k])}. Read the file there and give its lines as they are"
    )


def _alike(view: Lines, wanted: list[str]) -> str:
    """The line of the file that is most like the longest one wanted."""
    longest = max(wanted, key=len)
    pieces = _pieces(longest)
    best, number = 0.0, 0
    for at, line in enumerate(view.form(len(LEVELS) - 1)[0]):
        if pieces and 2 * len(longest) > len(line) > len(longest) / 2 and len(line) <= NEAR_LENGTH:
            other = _pieces(line)
            share = len(pieces & other) / max(len(pieces), len(other), 1)
            best, number = max((best, number), (share, at), key=lambda pair: pair[0])
    if best < ALIKE:
        return ", and neither is any line like them: read the file again, it may have changed"
    there = f"line {number + 1} of the file is {quote(view.lines[number])}"
    return f"; {there} where the hunk has {quote(longest)}. Read the file there"


def _pieces(line: str) -> set[str]:
    return {line[at : at + 2] for at in range(len(line) - 1)}


def _numbers(found: list[int]) -> str:
    shown = ", ".join(str(place + 1) for place in found[:NAMED]) + (", …" if len(found) > NAMED else "")
    return f"line{'s' if len(found) > 1 else ''} {shown}"


def _depth(line: str) -> int:
    spread = line.expandtabs(8)
    return len(spread) - len(spread.lstrip())
