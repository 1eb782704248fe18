import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tui.log.text import Row, clean, cut, joined, width, wrap

ACTS = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
HOSTILE = st.text(
    st.characters(codec=None)
    | st.sampled_from("\x1b\r\x00\x07\x9b\u202e\u200d\u200b\ufe0f\u0301\ud800世\t\n❤👩💻")
)


@given(HOSTILE)
def test_nothing_that_acts_on_a_terminal_or_takes_no_column_is_left(text: str) -> None:
    shown = clean(text)
    assert not ACTS.search(shown)
    shown.encode()


@given(HOSTILE, st.integers(2, 30), st.booleans())
def test_no_row_is_wider_than_its_room(text: str, columns: int, words: bool) -> None:
    for row in wrap([(text, "")], columns, words=words):
        assert cell_len(row.text) <= columns


@given(st.lists(st.text("ab \u4e16\u0301", max_size=12), max_size=5), st.integers(2, 12))
def test_rows_hold_the_whole_line_with_each_part_in_its_role(parts: list[str], columns: int) -> None:
    spans = [(part, str(at)) for at, part in enumerate(parts)]
    rows = wrap(spans, columns)
    for at, part in enumerate(parts):
        assert "".join(t for row in rows for t, role in row.spans if role == str(at)) == clean(part, not at)


@given(st.lists(st.text("abcdefgh", min_size=1, max_size=15), min_size=1), st.integers(4, 30))
def test_what_was_wrapped_is_copied_as_it_was(words: list[str], columns: int) -> None:
    text = " ".join(words)
    assert joined(wrap([(text, "")], columns, words=True)) == text
    assert joined(wrap([(text, "")], columns)).replace(" ", "") == text.replace(" ", "")


def test_words_stay_whole_where_they_fit() -> None:
    assert [row.text for row in wrap([("the quick brown fox", "")], 9, words=True)] == [
        "the quick",
        "brown fox",
    ]
    assert [row.text for row in wrap([("incomprehensible word", "")], 6, words=True)] == [
        "incomp",
        "rehens",
        "ible",
        "word",
    ]


def test_spaces_at_the_start_stay() -> None:
    assert [row.text for row in wrap([("    deep enough", "")], 10, words=True)] == ["    deep", "enough"]


def test_a_wide_character_is_not_split_and_a_mark_stays_with_its_letter() -> None:
    assert [row.text for row in wrap([("世界世界a", "")], 5)] == ["世界", "世界a"]
    assert [row.text for row in wrap([("abe\u0301cd", "")], 3)] == ["abe\u0301", "cd"]


def test_the_gutter_is_not_copied() -> None:
    rows = wrap([("one two three", "")], 8, first=[("• ", "")], rest=[("  ", "")], words=True, gutter=0)
    assert [row.text for row in rows] == ["• one", "  two", "  three"]
    assert joined(rows) == "• one two three"
    assert joined([Row((("│ ", ""), ("x = 1", "")), 2), Row((("│ ", ""), ("y", "")), 2)]) == "x = 1\ny"


def test_what_stands_aside_is_not_copied() -> None:
    assert (
        joined([Row((("● answer", ""), ("   #7", "dim")), aside=5), Row((("  yes", ""),), 2)])
        == "● answer\nyes"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("👩\u200d💻", "👩💻"),
        ("❤\ufe0f", "❤"),
        ("pass\u200bword", "pass\\u200bword"),
        ("a\u200db", "a\\u200db"),
        ("می\u200cخواهم", "میخواهم"),
        ("ev\u202eil", "ev\\u202eil"),
        ("soft\xadhyphen", "soft\\xadhyphen"),
        ("Z\u0300\u0301\u0302\u0303\u0304", "Z\u0300\u0301\u0302"),
        ("\u0301x", "\u25cc\u0301x"),
        ("a\tb", "a       b"),
        ("\x1b[31m\x00\n", "␛[31m␀␊"),
    ],
)
def test_what_hides_is_shown_and_what_shapes_is_left_out(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_a_long_text_is_cut_to_its_columns() -> None:
    assert cut("abcdef", 4) == "abc…"
    assert cut("世界世界", 4) == "世…"
    assert (cut("abc", 3), cut("abc", 0), width("世a")) == ("abc", "", 3)
