"""Code as lines of spans with syntax colours, and diffs; plain where a language is not known or the text is long."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from pygments.lexer import Lexer
from pygments.lexers import LEXERS, find_lexer_class
from pygments.token import Token

from tui.log.text import TAB, Span

COLOURED: Final = (
    20_000  # characters; a lexer takes some 3 ms for a thousand, and nothing else is drawn meanwhile
)
LONGEST: Final = 64 << 10  # characters of a diff's line that are looked at

Lines = list[list[Span]]

_ROLES: Final = (  # the first that a token is in
    (Token.Comment, "comment"),
    (Token.Keyword, "keyword"),
    (Token.Operator.Word, "keyword"),
    (Token.Literal.String, "string"),
    (Token.Literal.Number, "number"),
    (Token.Name.Function, "name"),
    (Token.Name.Class, "name"),
    (Token.Name.Decorator, "name"),
    (Token.Name.Tag, "name"),
    (Token.Name.Builtin, "builtin"),
    (Token.Name.Attribute, "builtin"),
    (Token.Generic.Inserted, "added"),
    (Token.Generic.Deleted, "removed"),
    (Token.Generic.Heading, "hunk"),
    (Token.Generic.Subheading, "hunk"),
)
_DIFFS: Final = frozenset({"diff", "patch", "udiff"})


def coloured(code: str, language: str, each_line: bool = False) -> Lines:
    """The lines of `code`, their tabs as spaces. With `each_line` each is taken for itself, which is right but for what
    spans several lines, and what was coloured once costs nothing again: for code that is still being written.
    """
    lines = _coloured(code, language, each_line)
    return [_untabbed(line) for line in lines] if "\t" in code else lines


def _untabbed(line: list[Span]) -> list[Span]:
    """A tab goes to the next stop of its line, wherever in it the span stands."""
    column, made = 0, []
    for text, role in line:
        before = " " * (column % TAB)
        spread = (before + text).expandtabs(TAB)[len(before) :]
        column = (column + len(spread)) if "\r" not in spread else len(spread) - spread.rindex("\r") - 1
        made.append((spread, role))
    return made


def _coloured(code: str, language: str, each_line: bool) -> Lines:
    lines = code.split("\n")
    if language.lower() in _DIFFS:
        return [[(line, _diff_role(line))] for line in lines]
    lexer = _lexer(language.lower()) if language else None
    if lexer is None or (len(code) > COLOURED and not each_line):
        return [[(line, "")] for line in lines]
    if each_line:
        return [list(_line(language.lower(), line)) for line in lines]
    found = _lexed(lexer, code)
    return found if _texts(found) == lines else [[(line, "")] for line in lines]


def _diff_role(line: str) -> str:
    if line.startswith(("+++", "---", "***", "@@", "diff ", "index ")):
        return "hunk"
    return "added" if line.startswith("+") else "removed" if line.startswith("-") else ""


@lru_cache(64)
def _lexer(language: str) -> Lexer | None:
    name = _names().get(language)
    found = find_lexer_class(name) if name else None
    return found(stripnl=False, ensurenl=True) if found else None


@lru_cache(1)
def _names() -> dict[str, str]:
    """Names of lexers by alias: Pygments reads every installed package's metadata for one that it does not know."""
    return {alias: name for _, name, aliases, _, _ in LEXERS.values() for alias in aliases}


def _lexed(lexer: Lexer, code: str) -> Lines:
    lines: Lines = [[]]
    for kind, text in lexer.get_tokens(code):
        role = _role(kind)
        first, *others = text.split("\n")
        if first:
            lines[-1].append((first, role))
        for other in others:
            lines.append([(other, role)] if other else [])
    if not lines[-1]:  # the lexer wants a newline at the end
        lines.pop()
    return lines


def _texts(lines: Lines) -> list[str]:
    """What a lexer made of code; it drops a byte order mark, and carriage returns."""
    return ["".join(text for text, _ in line) for line in lines]


@lru_cache(1024)
def _line(language: str, line: str) -> Sequence[Span]:
    lexer = _lexer(language)
    if lexer is None or len(line) > 500:
        return [(line, "")]
    found = _lexed(lexer, line)
    return found[0] if _texts(found) == [line] else [(line, "")]


@lru_cache(512)
def _role(kind: object) -> str:
    return next((role for token, role in _ROLES if kind in token), "")
