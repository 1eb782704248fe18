"""The edit that keeps every byte it was not asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.harness.edit import EditError, apply


def test_an_edit_takes_the_line_ending_of_its_place() -> None:
    assert apply(b"a\r\nb\r\nc", "b", "B\nB2") == (b"a\r\nB\r\nB2\r\nc", [2])


def test_the_last_line_without_a_newline_takes_the_ending_of_the_line_before() -> None:
    assert apply(b"a\r\nb", "b", "B\nC")[0] == b"a\r\nB\r\nC"


def test_line_ends_given_as_newline_match_a_crlf_file() -> None:
    assert apply(b"a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\n")[0] == b"x\r\ny\r\nc\r\n"


def test_a_mixed_file_keeps_the_bytes_of_lines_not_asked_for() -> None:
    assert apply(b"a\r\nb\nc\r\n", "b", "B\nX")[0] == b"a\r\nB\nX\nc\r\n"


def test_a_lone_carriage_return_and_a_byte_order_mark_stay() -> None:
    assert apply(b"\xef\xbb\xbfa\rb\nc", "c", "d")[0] == b"\xef\xbb\xbfa\rb\nd"


def test_bytes_that_are_not_utf8_stay() -> None:
    assert apply(b"\xff\xfe x \xf0\n", "x", "y")[0] == b"\xff\xfe y \xf0\n"


def test_separators_other_than_newline_are_no_line_ends() -> None:
    data = "a\u2028b\u0085c\x0bd\nTARGET\n".encode()
    assert apply(data, "TARGET", "T")[1] == [2]


def test_no_match_says_where_the_first_line_stands() -> None:
    with pytest.raises(EditError, match=r"0 times; its first line stands at line 2"):
        apply(b"x\n  foo(\n    1)\n", "foo(\n2)", "y")


def test_no_match_at_all_says_to_read_again() -> None:
    with pytest.raises(EditError, match="read the file again"):
        apply(b"x\n", "nowhere", "y")


def test_other_capitals_are_hinted_at() -> None:
    with pytest.raises(EditError, match="other capitals"):
        apply(b"Hello\n", "hello", "y")


def test_several_matches_name_their_lines() -> None:
    with pytest.raises(EditError, match="occurs 3 times, at lines 1, 2, 4"):
        apply(b"a\na\nb\na\n", "a", "z")


def test_all_replaces_each() -> None:
    assert apply(b"a\r\na\nb", "a", "x\ny", every=True) == (b"x\r\ny\r\nx\ny\nb", [1, 2])


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("a", "a")])
def test_an_edit_that_cannot_be_meant_is_refused(old: str, new: str) -> None:
    with pytest.raises(EditError):
        apply(b"a", old, new)


@given(st.binary(max_size=60), st.binary(max_size=60), st.text(min_size=1, max_size=8))
def test_what_stands_around_the_place_never_changes(before: bytes, after: bytes, new: str) -> None:
    mark = "\x01mark\x01"
    data = before + mark.encode() + after
    if data.count(mark.encode()) != 1 or new == mark:
        return
    edited, _ = apply(data, mark, new)
    assert edited.startswith(before)
    assert edited.endswith(after)
