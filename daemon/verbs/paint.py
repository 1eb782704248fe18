"""Draw items on a terminal or into a pipe: headers, indented bodies, and below them what is live right now."""

import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Mapping
from typing import Final, TextIO

from daemon import plain
from daemon.protocol.api import Delta
from daemon.protocol.records import Record
from daemon.streaming import Live
from daemon.view import Fold, Item

CLIP_LINES: Final = 40  # of a body without --full: a screen of it
CLIP_CHARS: Final = 8 << 10
INDENT: Final = "  "  # what stands in a body can never look like a header
LIVE_LINES: Final = 6  # of a run's live output or of a thought
QUIET: Final = 3  # seconds without a piece before it is said how long
REDRAW: Final = 0.04  # seconds between two drawings of the live part: smooth to the eye
PROSE: Final = 100  # columns of words on a terminal: longer lines are hard to read
TAB: Final = 4  # columns of a tab in the live part, where each line's width is counted

_RESET: Final = "\x1b[0m"
_STYLES: Final[Mapping[str, str]] = {
    "message": "\x1b[1;36m",
    "text": "\x1b[1;32m",
    "call": "\x1b[1;34m",
    "result": "\x1b[34m",
    "nonzero": "\x1b[33m",
    "failed": "\x1b[31m",
    "error": "\x1b[1;31m",
    "dim": "\x1b[2m",
    "note": "\x1b[33m",
    "head": "\x1b[1m",
    "good": "\x1b[32m",
}
_DIM: Final = frozenset({"start", "config", "system", "thinking", "step", "summary", "end", "output"})
_PROSE: Final = frozenset({"message", "text", "thinking", "error", "summary", "system"})


class Ink:
    """Colours where they are wanted, plain text elsewhere."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def __call__(self, text: str, style: str) -> str:
        if not (self.colour and text and style in _STYLES):
            return text
        return f"{_STYLES[style]}{text}{_RESET}"


def is_terminal(out: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `out` is a terminal that can move its cursor."""
    return out.isatty() and environ.get("TERM", "") not in ("", "dumb")


def ink(out: TextIO, environ: Mapping[str, str] = os.environ) -> Ink:
    """The ink for `out`: NO_COLOR and TERM=dumb are honoured."""
    return Ink(is_terminal(out, environ) and not environ.get("NO_COLOR"))


class Painter:
    """Draws a session's records as they come. With `live` also what streams, which needs a terminal.

    What streams stands below the records and is drawn over; the record that follows takes its place.
    `retry`: the command line that goes on after an error.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        *,
        live: bool = False,
        full: bool = False,
        retry: str = "",
        terminal: bool | None = None,
        pen: Ink | None = None,
        screen: Callable[[], os.terminal_size] = shutil.get_terminal_size,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out or sys.stdout
        self.live = live
        self._terminal = live or (is_terminal(self._out) if terminal is None else terminal)
        self._ink = pen or ink(self._out)
        self._full = full
        self._retry = retry
        self._screen = screen
        self._clock = clock
        self._fold = Fold()
        self._streams = Live()
        self._busy = False
        self._first = True
        self._drawn = 0  # lines of the live part on the screen now
        self._drawn_at = 0.0
        self._stale = False
        self._since = clock()

    def record(self, record: Record) -> None:
        """Draw a record."""
        item = self._fold.add(record)
        self._seen(record)
        self._out.write(self._erased() + self._item(item))
        self._redraw()

    def skip(self, record: Record) -> None:
        """Take in a record that is not drawn, for what comes after it; its body may be left out."""
        self._fold.skip(record.header)
        self._seen(record)

    def delta(self, delta: Delta) -> None:
        """Take in a piece that streams."""
        if self.live:
            self._streams.feed(delta)
            self._since = self._clock()
            self._stale = True
            self.tick()

    def restart(self) -> None:
        """What streamed so far of this step is void."""
        self._streams.restart()
        self._stale = True
        self.tick()

    def lost(self) -> None:
        """The connection is lost: what streamed so far stays until more comes."""
        self._streams.lost()
        self._stale = True
        self.tick()

    def note(self, text: str) -> None:
        """A line that is no record."""
        self._out.write(self._erased() + self._note(text))
        self._redraw()

    def tick(self) -> None:
        """Time has passed: bring the live part up to date when it is due."""
        now = self._clock()
        if now - self._drawn_at < REDRAW:
            return
        if self._stale or (self._busy and int(now - self._since) != int(self._drawn_at - self._since)):
            self._out.write(self._erased())
            self._redraw()

    def close(self) -> None:
        """Leave the screen with the records alone, also without the `^C` that a terminal shows."""
        self._out.write(self._erased() or ("\r\x1b[J" if self.live else ""))
        self._out.flush()

    def _seen(self, record: Record) -> None:
        self._streams.record(record)
        self._since = self._clock()
        match record.kind:
            case "step":
                self._busy = bool(self._fold.waiting)
            case "error" | "end":
                self._busy = False
            case "message" | "result" | "text" | "thinking" | "call":
                self._busy = True
            case _:
                pass

    # Records.

    def _item(self, item: Item) -> str:
        style = "dim" if item.kind in _DIM else item.kind
        if item.kind == "result" and item.state in ("nonzero", "failed"):
            style = item.state
        gap = "" if self._first or item.kind in ("step", "config", "system") else "\n"
        self._first = False
        void = ", ".join(f"#{n}" for n in item.void)
        parts = [self._note(f"void, of a try that broke off: {void}")] if void else []
        parts += [gap, self._ink(f"#{item.n} ", "dim"), self._ink(item.title, style), "\n"]
        shown = item.body if self._full or not item.folded else ""
        start, note, end = (shown, "", "") if self._full else plain.clip(shown, CLIP_LINES, CLIP_CHARS)
        parts.append(self._body(item, start))
        if note:
            parts += [INDENT, self._ink(f"… {note}; --full shows all …", "note"), "\n", self._body(item, end)]
        if item.hint:
            rows = self._prose(f"What to do: {item.hint}")
            if self._retry and "retry" in item.hint:
                rows.append(f"{INDENT}{self._retry}")  # alone on its row, to be copied
            parts += [f"{INDENT}{self._ink(row, 'note')}\n" for row in rows]
        return "".join(parts)

    def _body(self, item: Item, text: str) -> str:
        if not text:
            return ""
        style = "failed" if item.kind == "error" else ""
        prose = item.kind in _PROSE or (item.kind == "result" and item.state == "failed")
        rows = self._prose(text) if prose else text.split("\n")
        return "".join(f"{INDENT}{self._ink(row, style)}\n" if row else "\n" for row in rows)

    def _note(self, text: str) -> str:
        rows = self._prose(f"({plain.line(text, 500)})")
        return "".join(self._ink(row, "note") + "\n" for row in rows)

    def _prose(self, text: str) -> list[str]:
        if not self._terminal:
            return text.split("\n")
        return wrap(text, min(self._screen().columns, PROSE) - len(INDENT) - 1, words=True)

    # What is live.

    def _erased(self) -> str:
        """What takes the live part off the screen."""
        up, self._drawn = self._drawn, 0
        return f"\x1b[{up}A\r\x1b[J" if up else ""

    def _redraw(self) -> None:
        self._stale = False
        self._drawn_at = self._clock()
        if self.live:
            screen = self._screen()
            rows = self._live_rows(screen.columns - 1, max(3, screen.lines - 3))
            self._out.write("".join(f"{row}\n" for row in rows))
            self._drawn = len(rows)
        self._out.flush()

    def _live_rows(self, width: int, height: int) -> list[str]:
        items = self._streams.items()
        if not items and not self._busy:
            return []
        rows: list[str] = [] if self._first else [""]
        for item in items:
            style = "dim" if item.kind in _DIM else item.kind
            number = self._fold.waiting.get(item.call, 0)
            title = f"{item.title} of #{number}" if number else item.title
            rows.append(self._ink(cut(title, width), style))
            if item.kind in _PROSE:
                body = self._prose(item.body)
            else:
                body = wrap(item.body, width - len(INDENT)) if item.body else []
            if item.kind != "text":
                body = [self._ink(row, "dim") for row in body[-LIVE_LINES:]]
            rows += [INDENT + row for row in body]
        if not items:
            rows.append(self._ink(cut(self._waiting(), width), "dim"))
        elif self._busy and (quiet := int(self._clock() - self._since)) >= QUIET:
            rows.append(self._ink(cut(f"… nothing new for {quiet} s", width), "dim"))
        return rows[-height:]

    def _waiting(self) -> str:
        calls = ", ".join(f"#{n}" for n in self._fold.waiting.values())
        word = f"running {calls}" if calls else "waiting for the model"
        passed = int(self._clock() - self._since)
        return f"… {word}, {passed} s" if passed > 1 else f"… {word}"


def _wide(char: str) -> int:
    if unicodedata.combining(char) or char in "\u200d\ufe0f\u200b":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def width(text: str) -> int:
    """Columns that a text takes."""
    return len(text) if text.isascii() else sum(map(_wide, text))


def wrap(text: str, width: int, words: bool = False) -> list[str]:
    """`text` in rows of at most `width` columns; with `words` broken at a space where there is one."""
    rows = []
    for row in text.expandtabs(TAB).split("\n"):
        if len(row) <= width and row.isascii():
            rows.append(row)
            continue
        start = at = used = 0
        space = -1
        while at < len(row):
            wide = _wide(row[at])
            if used + wide > width and at > start:
                at = space if words and space > start else at
                rows.append(row[start:at])
                while words and row[at : at + 1] == " ":
                    at += 1
                start, used, space = at, 0, -1
                continue
            if row[at] == " ":
                space = at
            used += wide
            at += 1
        rows.append(row[start:])
    return rows


def cut(text: str, width: int) -> str:
    """One row of at most `width` columns."""
    rows = wrap(text, width)
    return rows[0] if len(rows) == 1 else f"{wrap(text, width - 1)[0]}…"
