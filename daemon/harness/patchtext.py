"""Read a patch in the apply_patch text format as sections, and refuse what could be meant in two ways."""

import re
from typing import Final

from msgspec import Struct

SHOWN: Final = 120  # characters of a line that are quoted in a message
FORM: Final = (
    "*** Begin Patch, then sections (*** Add File:, *** Update File:, *** Delete File:), then *** End Patch"
)

_MARK: Final = re.compile(
    r"\*\*\*\s*(begin patch|end patch|end of file|add file:|delete file:|update file:|move to:)(.*)",
    re.IGNORECASE | re.DOTALL,
)
_FENCE: Final = re.compile(r"(?:`{3,}|~{3,})\s*[\w+.-]*")
_HEREDOC: Final = re.compile(r"(?:apply_patch\s*)?<<\s*(['\"]?)(\w+)\1|apply_patch")
_RANGE: Final = re.compile(r"-\d+(?:,\d+)?\s+\+\d+(?:,\d+)?(?:\s*@@|\s*$)")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_END: Final = "end patch"
_SECTIONS: Final = ("add file:", "delete file:", "update file:")


class PatchError(Exception):
    """The patch cannot be applied as it stands; the message says where and what would be right."""


class Hunk(Struct, frozen=True):
    """One place of a file that changes.

    `headers`: what stood after `@@`, from the outermost inwards. `lines`: each begins with " ", "-" or "+"; an empty
    one is a blank line of context whose space was left out. `end`: it reaches the end of the file. `newline`: whether
    the file then ends with a newline, None as it did before. `at`: where it begins, a line number of the patch.
    """

    headers: tuple[str, ...]
    lines: tuple[str, ...]
    end: bool = False
    newline: bool | None = None
    at: int = 0


class Add(Struct, frozen=True, tag=True):
    """A new file with `content`, its lines ended as given."""

    path: str
    content: str


class Delete(Struct, frozen=True, tag=True):
    """A file that goes."""

    path: str


class Update(Struct, frozen=True, tag=True):
    """A file that changes in `hunks` and, unless `to` is None, moves there."""

    path: str
    hunks: tuple[Hunk, ...]
    to: str | None = None


Section = Add | Delete | Update


def parse(text: str) -> list[Section]:
    """The sections of a patch, in order. Raises PatchError, which names the line of the patch."""
    return _Reader(text).sections()


def quote(line: str) -> str:
    """A line as a message shows it: on one line, not long, valid UTF-8."""
    shown = line if len(line) <= SHOWN else line[:SHOWN] + "…"
    plain = shown.replace("\t", "").isprintable() and "`" not in shown
    return f"`{shown}`" if plain else repr(shown)


class _Reader:
    def __init__(self, text: str) -> None:
        lines = text.removeprefix("\ufeff").split("\n")
        # A patch that came with CRLF throughout says nothing about the line ends of a new file.
        if len(lines) > 1 and all(line.endswith("\r") for line in lines[:-1]):
            lines = [line.removesuffix("\r") for line in lines]
        for number, line in enumerate(lines, 1):
            if _SURROGATE.search(line):
                raise PatchError(f"line {number} of the patch holds half of a character (a lone surrogate)")
        self._lines = lines
        self._at = 0
        self._last_end = next(
            (n for n in range(len(lines) - 1, -1, -1) if _marker(lines[n].lstrip())[0] == _END), -1
        )

    def sections(self) -> list[Section]:
        closers = self._opening()
        found: list[Section] = []
        while True:
            kind, rest = self._mark(anywhere=True)
            if kind == _END:
                self._at += 1
                if not self._closing(closers):
                    break
            elif kind in _SECTIONS:
                found.append(self._section(kind, rest))
            elif self._at >= len(self._lines):
                raise PatchError(
                    "the patch ends without a line `*** End Patch`, so it may have been cut off: send all of it"
                )
            elif self._blank():
                self._at += 1
            else:
                raise self._wrong(f"here a section begins. A patch is {FORM}; this line is")
        if not found:
            raise PatchError(f"the patch has no section: a patch is {FORM}")
        return found

    def _opening(self) -> set[str]:
        """Goes past what stands before the first section; gives the lines that close what was opened there."""
        closers = {"EOF"}  # written at the end even where no heredoc was begun
        while self._at < len(self._lines):
            line = self._lines[self._at].strip()
            kind, _ = self._mark(anywhere=True)
            if kind == "begin patch":
                self._at += 1
                return closers
            if kind in _SECTIONS:
                return closers
            if heredoc := _HEREDOC.fullmatch(line):
                closers.add(heredoc[2] or "EOF")
            elif line and not _FENCE.fullmatch(line):
                if line.startswith(("--- ", "diff --git ")):
                    raise self._wrong(f"this looks like a unified diff. A patch here is {FORM}; this line is")
                raise self._wrong(f"a patch is {FORM}, with nothing around it; this line is")
            self._at += 1
        raise PatchError(f"the patch is empty: a patch is {FORM}")

    def _closing(self, closers: set[str]) -> bool:
        """Goes past what stands after the end; whether another patch begins there."""
        while self._at < len(self._lines):
            if self._mark(anywhere=True)[0] == "begin patch":
                self._at += 1
                return True
            line = self._lines[self._at].strip()
            if line and line not in closers and not _FENCE.fullmatch(line):
                raise self._wrong("nothing may follow `*** End Patch`; this line is")
            self._at += 1
        return False

    def _section(self, kind: str, rest: str) -> Section:
        path = self._path(rest)
        self._at += 1
        match kind:
            case "add file:":
                return Add(path, self._content(path))
            case "delete file:":
                return Delete(path)
            case _:
                return self._update(path)

    def _content(self, path: str) -> str:
        lines: list[str] = []
        blanks, final = 0, "\n"
        while self._at < len(self._lines):
            line = self._lines[self._at]
            kind, _ = self._mark(anywhere=True)
            if line.startswith("+"):
                lines += [""] * blanks + [line[1:]]
                blanks, final = 0, "\n"
            elif self._blank():
                blanks += 1  # of the file when another line follows, else a gap before the next section
            elif line.startswith("\\") and lines:
                final = ""
            elif kind and kind != "end of file":
                break
            elif not kind:
                raise self._wrong(f"in the new file {path} every line begins with `+`; this one is")
            self._at += 1
        return "\n".join(lines) + final if lines else ""

    def _update(self, path: str) -> Update:
        to, hunks, begun = None, list[Hunk](), self._at
        while self._blank():
            self._at += 1
        kind, rest = self._mark()
        if kind == "move to:":
            to = self._path(rest)
            self._at += 1
        while hunk := self._hunk(path, len(hunks) + 1):
            hunks.append(hunk)
        if to is None and not any(line[:1] in ("+", "-") for hunk in hunks for line in hunk.lines if line):
            raise PatchError(
                f"line {begun} of the patch: `*** Update File: {path}` changes nothing: give hunks with `-` or `+` "
                "lines, or `*** Move to:`"
            )
        return Update(path, tuple(hunks), to)

    def _hunk(self, path: str, number: int) -> Hunk | None:
        headers: list[str] = []
        lines: list[str] = []
        begun, end, bare = self._at, False, True  # bare: no `@@` yet
        old_open = new_open = False  # marked as without a newline at its end
        while self._at < len(self._lines):
            line = self._lines[self._at].removesuffix("\r")
            kind, _ = self._mark()
            if kind == "end of file" and any(lines):
                end = True
                self._at += 1
                break
            if line.startswith("***") or (kind == "" and self._is_end()):
                if not kind and line.startswith("***"):
                    raise self._wrong("there is no such marker; this line is")
                if kind in ("begin patch", "move to:", "end of file"):
                    raise self._wrong(f"in hunk {number} of {path}, this marker is out of place; the line is")
                break
            if line.startswith("@@"):
                if any(lines):
                    break
                lines.clear()
                if bare:
                    begun, bare = self._at, False
                if header := _header(line):
                    headers.append(header)
            elif line.startswith("\\") and any(lines):
                old_open |= lines[-1][:1] != "+"
                new_open |= lines[-1][:1] != "-"
            elif not line.strip() and not line.startswith(" "):
                lines.append("")
            elif line[0] in " +-":
                if bare and number > 1:
                    raise self._wrong(f"hunk {number} of {path} begins with a line `@@`; this line is")
                lines.append(line)
            else:
                raise self._wrong(
                    f"in hunk {number} of {path} a line begins with a space (kept), `-` (removed) or `+` (added); "
                    "this one is"
                )
            self._at += 1
        if not any(lines):
            if bare:
                return None
            raise PatchError(
                f"hunk {number} of {path} (line {begun + 1} of the patch) has no lines: after `@@` come the lines "
                "that are kept, removed and added"
            )
        newline = False if new_open else True if old_open else None
        return Hunk(tuple(headers), tuple(lines), end or old_open or new_open, newline, begun + 1)

    def _mark(self, anywhere: bool = False) -> tuple[str, str]:
        """The marker on this line, and what follows it.

        `anywhere`: also behind spaces; not in a hunk, where a space makes it a line of the file.
        """
        if self._at >= len(self._lines):
            return "", ""
        line = self._lines[self._at]
        return _marker(line.lstrip() if anywhere else line)

    def _is_end(self) -> bool:
        """Whether this is `*** End Patch` behind spaces, with no other end below it."""
        return self._at == self._last_end

    def _blank(self) -> bool:
        return self._at < len(self._lines) and not self._lines[self._at].strip()

    def _path(self, given: str) -> str:
        path = given.strip()
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if not parts or path.endswith(("/", "/.")):
            raise self._wrong("a path to a file is missing; the line is")
        if "\0" in path:
            raise self._wrong("a path holds a NUL; the line is")
        named = [part for part in parts if part != ".."]
        if parts[-1] == ".." or parts[len(parts) - len(named) :] != named:
            raise self._wrong("write the path without `..` after a name; the line is")
        return ("/" if path.startswith("/") else "") + "/".join(parts)

    def _wrong(self, what: str) -> PatchError:
        return PatchError(f"line {self._at + 1} of the patch: {what} {quote(self._lines[self._at])}")


def _marker(line: str) -> tuple[str, str]:
    """(the marker a line begins with, in small letters, what follows it), or two empty strings."""
    found = _MARK.match(line)
    if found is None:
        return "", ""
    kind, rest = found[1].lower(), found[2]
    return ("", "") if not kind.endswith(":") and rest.strip(" \t\r*") else (kind, rest)


def _header(line: str) -> str:
    """What an `@@` line says of the place, without line numbers and closing `@@`; empty when it says nothing."""
    text = line[2:].rstrip()
    if numbers := _RANGE.match(text.lstrip()):
        text = text.lstrip()[numbers.end() :]
    text = text.removesuffix(" @@").rstrip().removeprefix(" ")
    return "" if text.strip() in ("", "...", "…") else text
