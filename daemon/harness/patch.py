"""Work out what a patch in the apply_patch text format makes of files, all of it or nothing."""

from collections.abc import Iterable, Mapping, Sequence
from posixpath import dirname
from typing import assert_never

from msgspec import Struct

from daemon.harness.patchapply import PROBLEMS, Text
from daemon.harness.patchtext import Add, Delete, Hunk, PatchError, Section, Update, parse

__all__ = [
    "Add",
    "Change",
    "Delete",
    "Hunk",
    "PatchError",
    "Section",
    "Update",
    "parse",
    "paths",
    "plan",
    "summary",
    "undo",
]


class Change(Struct, frozen=True):
    """A file to write, or to remove where `after` is None; `before` is None where it is not there yet.

    `source`: the file that moved here. `lines`: where the hunks changed it, as line numbers of `after`.
    """

    path: str
    before: bytes | None
    after: bytes | None
    source: str | None = None
    lines: tuple[int, ...] = ()


def paths(sections: Iterable[Section]) -> list[str]:
    """The files of which `plan` has to know the content or the absence, in order, each once."""
    named: dict[str, None] = {}
    for section in sections:
        named[section.path] = None
        if isinstance(section, Update) and section.to is not None:
            named[section.to] = None
    return list(named)


def plan(sections: Sequence[Section], files: Mapping[str, bytes | None]) -> list[Change]:
    """The changes that the sections come to, in an order safe to write: at most one a file, what goes last.

    `files`: the content of each of `paths(sections)`, None where it is absent. Raises PatchError, which names each
    hunk that does not apply (of many, the first ten). CPU-bound: for large files call it off the loop.
    """
    before = {path: files[path] for path in paths(sections)}
    _refuse_two_names(before)
    desk, problems = _Desk(before), list[str]()
    spoiled: set[str] = set()  # of these files nothing more can be told
    for section in sections:
        touched = paths([section])
        if not spoiled.isdisjoint(touched):
            spoiled.update(touched)
            continue
        if wrong := desk.take(section):
            problems += wrong
            spoiled.update(touched)
        if len(problems) >= PROBLEMS:
            problems.append("what follows was not checked")
            break
    if problems:
        raise PatchError("\n".join(problems))
    return desk.changes()


def undo(done: Sequence[Change]) -> list[Change]:
    """The changes that put back what the given ones changed, the last of them first."""
    return [Change(change.path, change.after, change.before) for change in reversed(done)]


def summary(changes: Sequence[Change]) -> str:
    """A line for each file: `A path`, `M path`, `D path` or `R path -> path`, and the lines where hunks changed it."""
    moved = {change.source for change in changes if change.source is not None}
    said = []
    for change in changes:
        at = ", ".join(map(str, change.lines))
        where = f" (line{'s' if len(change.lines) > 1 else ''} {at})" if at else ""
        if change.source is not None:
            said.append(f"R {change.source} -> {change.path}{where}")
        elif change.after is None:
            said += [] if change.path in moved else [f"D {change.path}"]
        else:
            said.append(f"A {change.path}" if change.before is None else f"M {change.path}{where}")
    return "\n".join(said)


class _Desk:
    """The files as the sections taken so far leave them."""

    def __init__(self, before: Mapping[str, bytes | None]) -> None:
        self._before = before
        self._now = dict(before)
        self._source: dict[str, str] = {}
        self._lines: dict[str, list[int]] = {}

    def take(self, section: Section) -> list[str]:
        """Applies a section; or applies nothing of it and says what is wrong."""
        there = self._now[section.path]
        match section:
            case Add(path, content):
                if there is not None:
                    return [f"{path}: `*** Add File` on a file that exists: use `*** Update File`"]
                self._now[path] = content.encode()
            case Delete(path):
                if there is None:
                    return [f"{path}: `*** Delete File` on a file that does not exist"]
                self._now[path] = None
                self._forget(path)
            case Update(path, hunks, to):
                if there is None:
                    return [f"{path}: `*** Update File` on a file that does not exist: use `*** Add File`"]
                if to is not None and to != path and self._now[to] is not None:
                    return [
                        f"{path}: `*** Move to: {to}` onto a file that exists: delete it first, or move elsewhere"
                    ]
                text = Text(there)
                if wrong := text.apply(path, hunks):
                    return wrong
                self._now[path] = text.done()
                self._lines[path] = text.shifted(self._lines.get(path, []))
                if to is not None and to != path:
                    self._move(path, to)
            case _:
                assert_never(section)
        return []

    def changes(self) -> list[Change]:
        written, gone = list[Change](), list[Change]()
        for path, after in self._now.items():
            before = self._before[path]
            if after == before:
                continue
            source = self._source.get(path)
            if source is not None and (before is not None or self._now[source] is not None):
                source = None  # something else stands there now, so this is no plain move
            change = Change(path, before, after, source, tuple(sorted(set(self._lines.get(path, [])))))
            (gone if after is None else written).append(change)
        if not written and not gone:
            raise PatchError("the patch changes nothing: the files are already as it would make them")
        folders = {folder for change in written for folder in _folders(change.path)}
        stands = {path for path, after in self._now.items() if after is not None}
        if clash := sorted(folders & stands):
            raise PatchError(f"{clash[0]}: it cannot be a file and a folder that another file stands in")
        return [c for c in gone if c.path in folders] + written + [c for c in gone if c.path not in folders]

    def _move(self, path: str, to: str) -> None:
        source, lines = self._source.get(path, path), self._lines.get(path, [])
        self._now[to], self._now[path] = self._now[path], None
        self._forget(path)
        if self._before[source] is not None and source != to:
            self._source[to] = source
        self._lines[to] = lines

    def _forget(self, path: str) -> None:
        self._source.pop(path, None)
        self._lines.pop(path, None)


def _folders(path: str) -> Iterable[str]:
    while (path := dirname(path)) not in ("", "/"):
        yield path


def _refuse_two_names(before: Mapping[str, bytes | None]) -> None:
    """A relative and an absolute path may be one file; applied as two, the second would undo the first."""
    for whole in (path for path in before if path.startswith("/")):
        for part in (path for path in before if not path.startswith("/")):
            tail = part
            while tail.startswith("../"):
                tail = tail.removeprefix("../")
            if whole.endswith("/" + tail) and before[part] == before[whole]:
                raise PatchError(f"{part} and {whole} may be the same file: name it in one way")
