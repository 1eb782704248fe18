"""Work out what the hunks of a patch make of the bytes of one file."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from daemon.harness.patchfind import Lines, NoPlace, Place, locate
from daemon.harness.patchtext import Hunk, quote

PROBLEMS: Final = (
    10  # told at once: looking for what each may have meant takes time, and more would not be read
)


class Text:
    """One file, what hunks take out of it and put in; every byte not asked for is kept."""

    def __init__(self, data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        self._mark = "\ufeff" if text.startswith("\ufeff") else ""
        *whole, last = text.removeprefix("\ufeff").split("\n")
        self._final = not last
        self._ends = ["\r\n" if line.endswith("\r") else "\n" for line in whole] + ([""] if last else [])
        self._view = Lines([line.removesuffix("\r") for line in whole] + ([last] if last else []))
        self._out: set[int] = set()
        self._in: dict[int, list[tuple[str, str]]] = {}
        self._spans: list[
            tuple[int, int]
        ] = []  # (index of a hunk's first change, lines it adds less those it removes)

    def apply(self, path: str, hunks: Sequence[Hunk]) -> list[str]:
        """Applies the hunks in order; says of each that cannot be applied why."""
        problems = []
        full = changed = 0
        for number, hunk in enumerate(hunks, 1):
            try:
                place = locate(self._view, hunk, full, changed)
                full, changed = self._put(place, max(full, changed))
            except NoPlace as error:
                of = f"hunk {number} of {len(hunks)}" if len(hunks) > 1 else "the hunk"
                problems.append(f"{path}, {of} (line {hunk.at} of the patch): {error}")
                if len(problems) == PROBLEMS:
                    break
            if hunk.newline is not None:
                self._final = hunk.newline
        return problems

    def done(self) -> bytes:
        """The file with every hunk applied."""
        lines: list[tuple[str, str]] = []
        for number in range(len(self._view) + 1):
            lines += self._in.get(number, [])
            if number < len(self._view) and number not in self._out:
                lines.append((self._view.lines[number], self._ends[number]))
        parts = [self._mark]
        end = next((end for _, end in lines if end), "\n")
        for place, (line, own) in enumerate(lines):
            end = own or end
            parts += [line, end if self._final or place < len(lines) - 1 else ""]
        return "".join(parts).encode("utf-8", "surrogateescape")

    def shifted(self, lines: Iterable[int]) -> list[int]:
        """Line numbers before these hunks as they are after them, and those of the hunks."""
        moved = [line + sum(more for at, more in self._spans if at < line) for line in lines]
        past = 0
        for at, more in self._spans:
            moved.append(at + past + 1)
            past += more
        return moved

    def _put(self, place: Place, taken: int) -> tuple[int, int]:
        """Notes what a hunk takes out and puts in; gives the indices after its last line and its last change."""
        new = _indented(place, self._view.lines)
        self._refuse_broken(place, new)
        at, changed, first, more = place.start, 0, -1, 0
        removed: deque[str] = deque()
        end = ""
        added = iter(new)
        for line in place.lines:
            kind = line[:1] or " "
            if kind == " ":
                removed.clear()
                end = ""
                at += 1
                continue
            first = at if first < 0 else first
            if kind == "-":
                self._out.add(at)
                removed.append(self._ends[at])
                at += 1
                more -= 1
            else:
                end = (removed.popleft() if removed else end) or self._end_near(at)
                self._in.setdefault(at, []).append((next(added), end))
                more += 1
            changed = at
        if first >= 0:
            self._spans.append((first, more))
        return max(at, taken), changed if first >= 0 else at

    def _end_near(self, at: int) -> str:
        """The line end in use at an index: that of the line before it, or else of one beside it."""
        near = (self._ends[i] for i in (at - 1, at, at - 2) if 0 <= i < len(self._ends))
        return next((end for end in near if end), "\n")

    def _refuse_broken(self, place: Place, new: list[str]) -> None:
        """A model sees bytes that are not UTF-8 as U+FFFD; to write that back would lose them."""
        if not any("\ufffd" in line for line in new):
            return
        at = place.start
        for line in place.lines:
            if line[:1] == "-" and any("\udc80" <= char <= "\udcff" for char in self._view.lines[at]):
                raise NoPlace(
                    f"line {at + 1} of the file holds bytes that are not UTF-8, which a patch cannot give: change "
                    "that line with `run`"
                )
            at += line[:1] != "+"


def _indented(place: Place, lines: list[str]) -> list[str]:
    """The added lines, with the file's indentation where the hunk gives the removed lines with another one.

    Raises NoPlace where the two indentations do not map one to one.
    """
    new = [line[1:] for line in place.lines if line[:1] == "+"]
    old = [line for line in place.lines if line[:1] != "+"]
    kept, taken = dict[str, set[str]](), dict[str, set[str]]()
    for line, there in zip(old, lines[place.start :], strict=False):
        if line[1:].strip():
            (taken if line[0] == "-" else kept).setdefault(_indent(line[1:]), set()).add(_indent(there))
    seen = taken or kept  # a context line may only lack its first space, a removed line has its sign
    pairs = [(given, there) for given, all_there in seen.items() for there in all_there]
    if not new or all(given == there for given, there in pairs):
        return new
    if not taken and all(there == given + " " or there == given for given, there in pairs):
        return new
    one = {given: next(iter(there)) for given, there in seen.items() if len(there) == 1}
    more = {there[: len(there) - len(given)] for given, there in pairs if there.endswith(given)}
    less = {given[: len(given) - len(there)] for given, there in pairs if given.endswith(there)}
    made = []
    for line in new:
        indent = _indent(line)
        if not line.strip():
            made.append(line)
        elif len(more) == 1 and all(there.endswith(given) for given, there in pairs):
            made.append(next(iter(more)) + line)
        elif (
            len(less) == 1
            and all(given.endswith(there) for given, there in pairs)
            and line.startswith(tuple(less))
        ):
            made.append(line[len(next(iter(less))) :])
        elif len(one) == len(seen) and indent in one:
            made.append(one[indent] + line[len(indent) :])
        else:
            raise NoPlace(
                f"its lines stand at line {place.start + 1} with another indentation, and it does not follow how "
                f"{quote(line)} is to be indented: give the lines with the indentation of the file"
            )
    return made


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
