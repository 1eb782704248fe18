"""Markdown as rows, whole or as it streams in."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tui.log.code import coloured
from tui.log.text import EMPTY, Row, Span, clean, width, wrap

DEEPEST: Final = 8  # levels of lists and quotes that are indented; deeper ones stay there
NARROWEST: Final = 4  # columns of a table's column
BULLETS: Final = "•◦▪"


@lru_cache(1)
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"maxNesting": 20}).enable(["table", "strikethrough"])


def rows(text: str, columns: int, writing: bool = False) -> list[Row]:
    """Markdown, wrapped to `columns`. `writing`: its end is still to come."""
    return _Writer(columns, writing).write(_parser().parse(text))


def boundary(text: str) -> int:
    """How many characters of a text that is still coming are blocks which nothing that follows can change.

    All top-level blocks but the last are done, once the first line of the one after them is whole.
    """
    return _boundary(text, _parser().parse(text))[0]


def _boundary(text: str, tokens: Sequence[Token]) -> tuple[int, int]:
    """(characters, tokens) that are done."""
    starts = [
        (token.map[0], at)
        for at, token in enumerate(tokens)
        if token.level == 0 and token.nesting >= 0 and token.map
    ]
    lines = text.split("\n")
    # A first line that is not whole may turn out to go on with the block before it.
    if starts and starts[-1][0] >= len(lines) - 1:
        starts.pop()
    if len(starts) < 2:
        return 0, 0
    line, at = starts[-1]
    return _offset(lines, line), at


def _offset(lines: Sequence[str], line: int) -> int:
    return sum(len(text) + 1 for text in lines[:line])


class Stream:
    """Markdown that streams in: what is settled is drawn once, and only what follows it again and again."""

    def __init__(self) -> None:
        self._done = ""
        self._open = ""
        self._columns = 0
        self._settled: list[Row] = []
        self._rest: list[Row] = []
        self._stale = False

    def feed(self, text: str) -> None:
        """More of it; costs nothing until it is drawn."""
        self._open += text
        self._stale = True

    def rows(self, columns: int) -> list[Row]:
        """All of it so far."""
        settled, rest = self.parts(columns)
        return settled + rest

    def parts(self, columns: int) -> tuple[list[Row], list[Row]]:
        """(rows that stay as they are, those after them). While `columns` stay, the first is one list that grows."""
        if columns != self._columns:
            self._columns = columns
            self._settled = rows(self._done, columns) if self._done else []
        elif not self._stale:
            return self._settled, self._rest
        self._stale = False
        tokens = _parser().parse(self._open)
        size, at = _boundary(self._open, tokens)
        if size:
            self._settled += self._after(_Writer(columns, False).write(tokens[:at]))
            self._done += self._open[:size]
            self._open = self._open[size:]
        self._rest = self._after(_Writer(columns, True).write(tokens[at:]))
        return self._settled, self._rest

    def _after(self, found: list[Row]) -> list[Row]:
        return [EMPTY, *found] if self._settled and found else found


class _Writer:
    """One text on its way to rows: what stands before each line by the lists and quotes around it."""

    def __init__(self, columns: int, writing: bool) -> None:
        self._columns = columns
        self._writing = writing
        self._rows: list[Row] = []
        self._prefix: list[tuple[Span, Span]] = []  # before an item's first row, and before its others
        self._fresh = 0  # how many of the last prefixes have not had their first row
        self._lists: list[int | None] = []  # the next number, None in a list of bullets
        self._gap = False

    def write(self, tokens: Sequence[Token]) -> list[Row]:
        at = 0
        while at < len(tokens):
            at = self._block(tokens, at)
        return self._rows

    def _block(self, tokens: Sequence[Token], at: int) -> int:
        token = tokens[at]
        match token.type:
            case "paragraph_open":
                self._inline(tokens[at + 1], "")
                self._gap = not token.hidden
                return at + 3
            case "heading_open":
                self._inline(tokens[at + 1], f"heading {token.tag}")
                self._gap = True
                return at + 3
            case "bullet_list_open":
                self._lists.append(None)
            case "ordered_list_open":
                start = token.attrGet("start")
                self._lists.append(int(start) if start is not None else 1)
            case "bullet_list_close" | "ordered_list_close":
                self._lists.pop()
                self._gap = True
            case "list_item_open":
                self._push(self._marker())
            case "blockquote_open":
                self._push((("▎ ", "quote"), ("▎ ", "quote")))
            case "list_item_close" | "blockquote_close":
                if self._fresh:  # an empty one
                    self._line([])
                self._prefix.pop()
                self._gap = self._gap or token.type == "blockquote_close"
            case "fence" | "code_block":
                language = token.info.split()[0] if token.info.split() else ""
                lines = coloured(token.content.removesuffix("\n"), language, self._writing)
                for line in lines:
                    self._line(
                        [(text, f"code {role}") for text, role in line], words=False, bar=("│ ", "dim")
                    )
                self._gap = True
            case "hr":
                self._line([("─" * max(1, self._room()), "dim")])
                self._gap = True
            case "html_block":
                for text in token.content.rstrip("\n").split("\n"):
                    self._line([(text, "dim")])
                self._gap = True
            case "table_open":
                end = next(
                    (i for i in range(at, len(tokens)) if tokens[i].type == "table_close"), len(tokens) - 1
                )
                self._table(tokens[at:end])
                self._gap = True
                return end + 1
            case _:
                pass
        return at + 1

    def _push(self, prefix: tuple[Span, Span]) -> None:
        if len(self._prefix) >= DEEPEST or self._room() < 12:
            prefix = (("", ""), ("", ""))
        if self._gap and self._rows and not self._fresh:
            self._rows.append(self._blank())
        self._gap = False
        self._prefix.append(prefix)
        self._fresh += 1

    def _marker(self) -> tuple[Span, Span]:
        number = self._lists[-1] if self._lists else None
        if number is None:
            mark = f"{BULLETS[(len(self._lists) - 1) % len(BULLETS)]} "
        else:
            mark = f"{number}. "
            self._lists[-1] = number + 1
        return (mark, "mark"), (" " * len(mark), "")

    def _room(self) -> int:
        return self._columns - sum(width(rest) for _, (rest, _) in self._prefix)

    def _line(self, spans: Sequence[Span], words: bool = True, bar: Span | None = None) -> None:
        """One line below what is there, after a row that is empty where one is due."""
        if self._gap and self._rows:
            self._rows.append(self._blank())
        self._gap = False
        fresh = len(self._prefix) - self._fresh
        first = [start if i >= fresh else rest for i, (start, rest) in enumerate(self._prefix)]
        rest = [rest for _, rest in self._prefix]
        self._fresh = 0
        gutter = 0
        if bar:
            first.append(bar)
            rest.append(bar)
            gutter = len(bar[0]) if len(first) == 1 else 0
        self._rows += wrap(spans, self._columns, first=first, rest=rest, words=words, gutter=gutter)

    def _blank(self) -> Row:
        return Row(tuple(rest for _, rest in self._prefix if rest[1]), 99)

    def _inline(self, token: Token, role: str) -> None:
        for line in _lines(token.children or [], role):
            self._line(line)

    def _table(self, tokens: Sequence[Token]) -> None:
        table: list[list[list[Span]]] = []
        sides: list[str] = []  # of the columns
        for token in tokens:
            if token.type == "tr_open":
                table.append([])
            elif token.type == "th_open":
                sides.append(str(token.attrGet("style") or "").removeprefix("text-align:"))
            elif token.type == "inline":
                role = "strong" if len(table) == 1 else ""
                lines = _lines(token.children or [], role)
                table[-1].append([(clean(text), role) for line in lines for text, role in line])
        sizes = _columns([[_wide(cell) for cell in row] for row in table], self._room())
        for number, row in enumerate(table):
            cells = [wrap(cell, size, words=True) for cell, size in zip(row, sizes, strict=False)]
            for at in range(max(map(len, cells), default=0)):
                spans: list[Span] = []
                for column, (cell, size) in enumerate(zip(cells, sizes, strict=False)):
                    part = cell[at].spans if at < len(cell) else ()
                    free = size - _wide(part)
                    before = {"right": free, "center": free // 2}.get(sides[column], 0)
                    spans += [*([(" │ ", "dim")] if column else []), *_blank(before), *part]
                    if column < len(cells) - 1:
                        spans += _blank(free - before)
                self._line(spans, words=False)
            if not number:
                self._line([("─┼─".join("─" * size for size in sizes), "dim")], words=False)


def _blank(columns: int) -> list[Span]:
    return [(" " * columns, "")] if columns > 0 else []


def _wide(spans: Sequence[Span]) -> int:
    return sum(width(text) for text, _ in spans)


def _columns(table: list[list[int]], room: int) -> list[int]:
    """How wide each column is, so that all fit if they can: the widest give way first."""
    count = max(map(len, table), default=0)
    sizes = [max((row[at] for row in table if at < len(row)), default=1) or 1 for at in range(count)]
    over = sum(sizes) + 3 * (count - 1) - room
    while over > 0 and (widest := max(sizes, default=0)) > NARROWEST:
        next_widest = max((size for size in sizes if size < widest), default=NARROWEST)
        at = [i for i, size in enumerate(sizes) if size == widest]
        take = min(widest - max(next_widest, NARROWEST), max(1, over // len(at)))
        for i in at:
            if over <= 0:
                break
            sizes[i] -= take
            over -= take
    return sizes


def _lines(tokens: Sequence[Token], role: str) -> Iterator[list[Span]]:
    """The lines of a paragraph; it has more than one where it breaks hard."""
    line: list[Span] = []
    roles = [role] if role else []
    links: list[tuple[str, int]] = []
    for token in tokens:
        match token.type:
            case "text":
                line.append((token.content, " ".join(roles)))
            case "code_inline":
                line.append((token.content, " ".join([*roles, "code"])))
            case "softbreak":
                line.append((" ", " ".join(roles)))
            case "hardbreak":
                yield line
                line, links = [], [(href, 0) for href, _ in links]
            case "strong_open" | "em_open" | "s_open":
                roles.append(token.type.removesuffix("_open"))
            case "link_open":
                roles.append("link")
                links.append((str(token.attrGet("href") or ""), len(line)))
            case "strong_close" | "em_close" | "s_close":
                roles.pop()
            case "link_close":
                roles.pop()
                href, start = links.pop()
                if href and href != "".join(text for text, _ in line[start:]):
                    line.append((f" ({href})", "dim"))
            case "image":
                href = str(token.attrGet("src") or "")
                line.append((f"▣ {token.content or 'image'}", " ".join([*roles, "link"])))
                line.append((f" ({href})", "dim"))
            case _:
                line.append((token.content, " ".join([*roles, "dim"])))
    yield line
