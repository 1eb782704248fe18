"""An item as rows: its title with number and time, and of its body as much as a screen wants."""

from datetime import tzinfo
from typing import Final

from daemon.plain import MAX_CHARS, MAX_LINES, clip, count, size
from daemon.protocol import records
from daemon.streaming import Streamed, streaming
from daemon.view import Item, State
from tui.log import markdown
from tui.log.code import coloured
from tui.log.text import EMPTY, Row, Span, clean, cut, width, wrap

PROSE: Final = 110  # columns of words: longer lines are hard to read
RESULT_LINES: Final = 12  # of a result that went well, above which it is folded
FAILED_LINES: Final = 40  # of one that did not
CODE_LINES: Final = 40  # of a call
SPARE: Final = 20  # rows over the limit that are not worth a note
LIVE_LINES: Final = 12  # of what streams in, where its end says most
TITLE: Final = (
    120  # columns of a title with its number at the right: on a wide screen the eye would lose the row
)
NUMBERED: Final = 46  # columns from which on a title has its number, with the time from TIMED on
TIMED: Final = 60

HERE: Final = {  # what a hint has for a shell, and for here
    "(`outrider providers set`)": "(in the settings)",
    "(`outrider config`)": "(f3)",
    "(`outrider fork`)": "(f in the log)",
}
_GLYPHS: Final = {
    "message": "❯",
    "text": "●",
    "thinking": "∴",
    "call": "▶",
    "result": "└",
    "output": "└",
    "step": "─",
    "error": "✗",
    "config": "⚙",
    "system": "§",
    "summary": "Σ",
    "start": "○",
    "end": "■",
}
_CLOSE: Final = frozenset(
    {"step", "result", "start", "config", "system", "end", "other"}
)  # no row before them
_PROSE: Final = frozenset({"message", "error", "system", "summary"})
_BAR: Final[Span] = ("│ ", "dim")
_INDENT: Final[Span] = ("  ", "")


def folds(item: Item) -> bool:
    """Whether an item is folded until somebody opens it."""
    if item.folded:
        return True
    lines = item.body.count("\n") + 1
    match item.kind:
        case "result":
            return lines > (RESULT_LINES if item.state == "done" else FAILED_LINES)
        case "call":
            return lines > CODE_LINES
        case _:
            return False


def draw(
    item: Item, columns: int, *, folded: bool, state: State, gap: bool = True, zone: tzinfo | None = None
) -> list[Row]:
    """A record as rows of at most `columns` columns. `state`: as the records after it left it.

    `gap`: whether kinds that begin something new have an empty row before them.
    """
    title = item.title
    if folded and item.body and "character" not in title:
        title += f" · {count(item.body.count(chr(10)) + 1, 'line')}, {size(len(item.body.encode()))}"
    glyph = "▸" if folded and item.body else _GLYPHS.get(item.kind, "·")
    found = [EMPTY] if gap and item.kind not in _CLOSE else []
    found.append(_title(item, glyph, title, columns, state, zone))
    if not folded:
        found += capped(_body(item, columns, state), columns)
    if item.hint:
        found += _words(f"→ {_here(item.hint)}", "hint", columns)
    return found


def _here(hint: str) -> str:
    for verb, key in HERE.items():
        hint = hint.replace(verb, key)
    return hint


def _title(item: Item, glyph: str, title: str, columns: int, state: State, zone: tzinfo | None) -> Row:
    columns = min(columns, TITLE)
    role = f"title {item.kind}"
    note: Span = ("", "")
    match state:
        case "void":
            role, note = "title void", (" · void: of a try that broke off", "dim")
        case "running":
            note = (" · running", "running")
        case "failed" | "nonzero":
            role = f"title {item.kind} {state}"
        case _:
            pass
    right = _right(item, columns, zone)
    room = columns - width(glyph) - 1 - width(note[0]) - (width(right) + 2 if right else 0)
    text = cut(clean(title), max(4, room))
    spans: list[Span] = [(f"{glyph} ", role), (text, role)]
    if note[0]:
        spans.append(note)
    if not right:
        return Row(tuple(spans))
    gap = " " * max(1, columns - sum(width(part) for part, _ in spans) - width(right))
    return Row((*spans, (gap, ""), (right, "dim")), aside=len(gap) + len(right))


def _right(item: Item, columns: int, zone: tzinfo | None) -> str:
    if not item.n or columns < NUMBERED:
        return ""
    moment = records.instant(item.time) if columns >= TIMED else None
    return f"#{item.n} {moment.astimezone(zone):%H:%M:%S}" if moment else f"#{item.n}"


def _body(item: Item, columns: int, state: State) -> list[Row]:
    if item.media:
        how = "opens" if item.media.startswith("image/") else "saves"
        text = f"▣ {clean(item.media)}, {size(item.size)} · enter {how} it outside"
        return [_note(text, "picture", columns)]
    if not item.body:
        return []
    start, note, end = clip(item.body, MAX_LINES, MAX_CHARS)
    found = _text(item, start, columns, state)
    if note:
        found += [_note(f"… {note} · v: all", "hint", columns), *_text(item, end, columns, state)]
    return found


def _text(item: Item, text: str, columns: int, state: State) -> list[Row]:
    if state == "void":
        shape = _code_line if item.kind == "call" else _words
        return [row for line in text.split("\n") for row in shape(line, "dim", columns)]
    if item.language == "markdown":
        return indented(markdown.rows(text, min(columns, PROSE) - 2))
    if item.kind in _PROSE or (item.kind == "result" and state == "failed"):
        role = "failed" if item.kind in ("error", "result") else "said" if item.kind == "message" else ""
        return [row for line in text.split("\n") for row in _words(line, role, columns)]
    if item.language:
        lines = coloured(text, item.language)
        return [
            row for line in lines for row in _code([(part, f"code {role}") for part, role in line], columns)
        ]
    role = "output" if item.kind == "result" else ""
    return [row for line in text.split("\n") for row in _code_line(line, role, columns)]


def _words(line: str, role: str, columns: int) -> list[Row]:
    room = min(columns, PROSE)
    return wrap([(line, role)], room, first=[_INDENT], rest=[_INDENT], words=True, gutter=2)


def _code_line(line: str, role: str, columns: int) -> list[Row]:
    return _code([(line, role)], columns)


def _code(line: list[Span], columns: int) -> list[Row]:
    first = [_INDENT, _BAR]
    return wrap(line, columns, first=first, rest=first, gutter=4)


def indented(rows: list[Row]) -> list[Row]:
    """Rows of a body below their title."""
    return [Row((_INDENT, *row.spans), row.gutter + 2, row.glue) if row.spans else row for row in rows]


def capped(rows: list[Row], columns: int) -> list[Row]:
    """About MAX_LINES rows at most: long lines make more of them than the text has lines."""
    if len(rows) <= MAX_LINES + SPARE:
        return rows
    start, end = MAX_LINES // 4, MAX_LINES - MAX_LINES // 4
    note = f"… {count(len(rows) - start - end, 'row')} not shown · v: all"
    return [*rows[:start], _note(note, "hint", columns), *rows[-end:]]


def _note(text: str, role: str, columns: int) -> Row:
    return Row((_INDENT, (cut(text, max(1, columns - 2)), role)), 2)


class LiveBlock:
    """A block or an output that streams in, as rows; what is drawn of it once is not drawn again."""

    def __init__(self, stream: Streamed) -> None:
        self.stream = stream
        self._taken = 0
        self._drawn = (-1, 0, False)
        self._text = markdown.Stream()
        self._settled: list[Row] = []
        self._indented: list[Row] = []  # of these, as many as there were the last time
        self._rows: list[Row] = []

    def rows(self, columns: int, about: int) -> list[Row]:
        """All of it now, or of code and output the end. `about`: number of the call whose output it is."""
        drawn = (self.stream.size, columns, self.stream.broken)
        if drawn == self._drawn:
            return self._rows
        self._drawn = drawn
        self._rows = (
            self._prose(columns) if self.stream.kind in ("text", "thinking") else self._end(columns, about)
        )
        return self._rows

    def _prose(self, columns: int) -> list[Row]:
        stream, pieces = self.stream, self.stream.pieces
        if stream.begin and not self._taken:
            self._text.feed("…")
        self._text.feed("".join(pieces[self._taken :]))
        self._taken = len(pieces)
        item = streaming(Streamed(0, stream.kind, [], begin=stream.begin, broken=stream.broken))
        title = _title(item, _GLYPHS.get(item.kind, "·"), item.title, columns, "live", None)
        settled, rest = self._text.parts(min(columns, PROSE) - 2)
        if settled is not self._settled:
            self._settled, self._indented = settled, []
        self._indented += indented(settled[len(self._indented) :])
        body = self._indented + indented(rest)
        return [EMPTY, title, *(body if item.kind == "text" else body[-LIVE_LINES:])]

    def _end(self, columns: int, about: int) -> list[Row]:
        item = streaming(self.stream)
        title = f"{item.title} of #{about}" if about else item.title
        found = [] if item.kind == "output" else [EMPTY]
        found.append(_title(item, _GLYPHS.get(item.kind, "·"), title, columns, "live", None))
        lines = item.body.split("\n") if item.body else []
        body = "\n".join(line[-MAX_CHARS // LIVE_LINES :] for line in lines[-LIVE_LINES:])
        if item.language:
            spans = [
                [(part, f"code {role}") for part, role in line]
                for line in coloured(body, item.language, True)
            ]
        else:
            spans = [[(line, "output")] for line in body.split("\n")] if lines else []
        rows = [row for line in spans for row in _code(line, columns)]
        return [*found, *rows[-LIVE_LINES:]]
