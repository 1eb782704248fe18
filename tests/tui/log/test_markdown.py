import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.tui.log.fakes import ANSWER
from tests.tui.log.test_text import ACTS
from tui.log.markdown import Stream, boundary, rows
from tui.log.text import joined

BLOCKS = ["\n", "\n\n", "# ", "- ", "  - ", "1. ", "> ", "```", "```py\n", "~~~\n", "    ", "\t", "+ "]
LINES = ["| a | b |\n", "|---|---|\n", "---\n", "***\n", "===\n", "<div>\n"]
INLINE = ["a", "word ", "*x*", "**", "`c`", "<b>", "&amp;", "世"]
PIECES = st.sampled_from([*BLOCKS, *LINES, *INLINE])
TEXTS = st.lists(PIECES, max_size=30).map("".join)


def shown(text: str, columns: int = 40) -> list[str]:
    return [row.text.rstrip() for row in rows(text, columns)]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("# Title\n\nA *few* `words`.", ["Title", "", "A few words."]),
        ("one\ntwo  \nthree", ["one two", "three"]),
        ("- a\n- b\n  - c\n    1. d\n", ["• a", "• b", "  ◦ c", "    1. d"]),
        ("3. a\n4. b", ["3. a", "4. b"]),
        ("- a\n\n- b\n\ntext", ["• a", "", "• b", "", "text"]),
        ("> quote\n>\n> - x", ["▎ quote", "▎", "▎ • x"]),
        ("```python\nif x:\n    y\n```", ["│ if x:", "│     y"]),
        ("- a\n\n      code\n", ["• a", "", "  │ code"]),
        ("[a](http://x.y) ![b](c.png)", ["a (http://x.y) ▣ b (c.png)"]),
        ("<http://x.y>", ["http://x.y"]),
        ("a\n\n---\n\nb", ["a", "", "─" * 40, "", "b"]),
        ("<div>\nx\n</div>", ["<div>", "x", "</div>"]),
        ("-\n- b", ["•", "• b"]),
        ("", []),
        ("| a | bee |\n|---|---|\n| 1 | 2 |\n| long | |", ["a    │ bee", "─────┼────", "1    │ 2", "long │"]),
    ],
)
def test_markdown_is_drawn_as_rows(text: str, lines: list[str]) -> None:
    assert shown(text) == lines


def test_roles_say_how_each_part_is_drawn() -> None:
    (row,) = rows("a **b *c*** `d` ~~e~~", 40)
    assert [(text, role) for text, role in row.spans if text.strip()] == [
        ("a ", ""),
        ("b ", "strong"),
        ("c", "strong em"),
        ("d", "code"),
        ("e", "s"),
    ]
    assert rows("## x", 40)[0].spans[0] == ("x", "heading h2")
    (keyword, *_) = rows("```python\nif x: pass\n```", 40)[0].spans[1:]
    assert keyword == ("if", "code keyword")


def test_a_wide_table_is_fitted_and_its_cells_wrapped() -> None:
    text = f"| a | {'word ' * 20}|\n|---|---|\n| short | {'more ' * 20}|"
    lines = shown(text, 30)
    assert all(cell_len(line) <= 30 for line in lines)
    assert len(lines) > 8


def test_entities_cannot_bring_in_what_acts_on_a_terminal() -> None:
    assert shown("&#x202e;evil &#27;[31m &#8203;x") == ["\\u202eevil \ufffd[31m \\u200bx"]


def test_deep_nesting_stays_on_the_screen() -> None:
    for line in shown("> " * 60 + "x", 30) + shown("".join("  " * at + "- x\n" for at in range(30)), 30):
        assert cell_len(line) <= 30


@settings(deadline=None)
@given(TEXTS, st.integers(8, 50))
def test_no_row_is_too_wide_and_none_acts_on_the_terminal(text: str, columns: int) -> None:
    for row in rows(text, columns):
        assert cell_len(row.text) <= max(columns, 12)
        assert not ACTS.search(row.text)


@settings(deadline=None, max_examples=300)
@given(TEXTS, TEXTS)
def test_what_is_settled_is_drawn_the_same_whatever_follows(start: str, end: str) -> None:
    at = boundary(start)
    settled = [row.text for row in rows(start[:at], 40)]
    assert [row.text for row in rows(start + end, 40)][: len(settled)] == settled


@settings(deadline=None)
@given(TEXTS, st.integers(1, 7), st.lists(st.sampled_from([30, 40]), max_size=3))
def test_a_stream_ends_in_what_the_whole_text_looks_like(text: str, size: int, widths: list[int]) -> None:
    stream = Stream()
    for at in range(0, len(text), size):
        stream.feed(text[at : at + size])
        stream.rows(widths[at % len(widths)] if widths else 40)
    assert [row.text for row in stream.rows(40)] == [row.text for row in rows(text, 40)]


def test_a_stream_draws_only_what_is_new_again() -> None:
    stream = Stream()
    stream.feed("one\n\ntwo\n\nthree\nis")
    settled, rest = stream.parts(40)
    before = list(settled)
    assert [row.text for row in settled] == ["one", "", "two"]
    assert [row.text for row in rest] == ["", "three is"]
    assert stream.parts(40)[1] is rest
    stream.feed(" and more\n\nfour\n\nfive")
    more, rest = stream.parts(40)
    assert more is settled
    assert all(new is old for new, old in zip(more, before, strict=False))
    assert [row.text for row in stream.rows(40)] == [
        "one", "", "two", "", "three is and more", "", "four", "", "five",
    ]  # fmt: skip
    assert stream.parts(30)[0] is not settled


def test_a_paragraph_is_copied_as_one_line_and_code_without_its_bar() -> None:
    found = rows("some words that are wrapped\n\n```\nx = 1\ny\n```\n\n- a list item that is wrapped", 12)
    assert joined(found) == "some words that are wrapped\n\nx = 1\ny\n\n• a list item that is wrapped"


def test_an_ordinary_answer_is_drawn_whole() -> None:
    assert shown(ANSWER, 60)[:8] == [
        "I looked at the failing test first. Two things stand out:",
        "",
        "1. connect() is called before the server listens.",
        "2. The time limit is 2 seconds, which is tight.",
        "",
        "│ async def connect(path: str) -> Client:",
        "│     for attempt in range(3):  # the server may still start",
        "│         try:",
    ]


def test_a_tables_columns_stand_on_the_side_that_it_says() -> None:
    text = "| name | size | state |\n|:--|--:|:-:|\n| parser.py | 7 | ok |\n| a | 1200 | missing |\n"
    assert [row.text for row in rows(text, 60)] == [
        "name      │ size │  state",
        "──────────┼──────┼────────",
        "parser.py │    7 │   ok",
        "a         │ 1200 │ missing",
    ]
