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


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\nc\r\n", "a\nb\nc", "a\nB\nc", b"a\r\nB\nc\r\n"),
        (b"a\nb\r\nc\n", "a\nb\nc\n", "a\nx\ny\nc\n", b"a\nx\r\ny\nc\n"),
        (b"a\nb\r\nc\nd\n", "b\nc\n", "b\n", b"a\nb\r\nd\n"),
        (b"a\nb\n", "a\r\nb\r\n", "a\r\nB\r\n", b"a\nB\n"),
        (b"x\r\nfoo\r\n", "\nfoo", "\nbar\nbaz", b"x\r\nbar\r\nbaz\r\n"),
        (b"a\r\n\r\nb", "\n\n", "\n", b"a\r\nb"),
        (b"a\nb", "b", "x\r\ny", b"a\nx\r\ny"),
        (b"a\r\nb", "a\nb", "", b""),
        (b"\xef\xbb\xbfa\r\nb\r\n", "a\nb\n", "b\na\n", b"\xef\xbb\xbfb\r\na\r\n"),
        (b"a\rb\r\nc\r\n", "a\rb\nc", "a\rx\nc", b"a\rx\r\nc\r\n"),
        (b"a\xe9\r\nb\nc\r\n", "\nb\n", "\nB\n", b"a\xe9\r\nB\nc\r\n"),
    ],
)
def test_every_kept_line_keeps_its_end_and_every_other_takes_the_one_of_its_place(
    before: bytes, old: str, new: str, after: bytes
) -> None:
    assert apply(before, old, new)[0] == after


def test_lines_that_differ_in_their_ends_only_are_several_places() -> None:
    with pytest.raises(EditError, match="occurs 2 times, at lines 1, 4"):
        apply(b"a\nb\n-\na\r\nb\r\n", "a\nb\n", "x\n")
    assert apply(b"a\nb\n-\na\r\nb\r\n", "a\r\nb\r\n", "x\r\n")[0] == b"a\nb\n-\nx\r\n"


def test_an_edit_of_line_ends_alone_is_refused_and_not_said_to_be_done() -> None:
    for old, new in (("a\r\n", "a\n"), ("a\n", "a\r\n")):
        with pytest.raises(EditError, match="nothing but line ends"):
            apply(b"a\r\nb\r\n", old, new)


def test_bytes_that_a_model_cannot_give_are_named() -> None:
    with pytest.raises(EditError, match="bytes that are not UTF-8, shown as \ufffd"):
        apply(b"caf\xe9\n", "caf\ufffd", "coffee")


def test_a_large_file_with_very_many_places_is_edited_in_one_pass() -> None:
    data = b"ab\r\n" * 200_000
    edited, lines = apply(data, "ab", "c", every=True)
    assert edited == b"c\r\n" * 200_000
    assert lines[-1] == 200_000


@given(st.lists(st.sampled_from(["a", "b", "", "a\rb", "é"]), min_size=1, max_size=8), st.data())
def test_an_edit_given_in_one_ending_changes_its_lines_alone(lines: list[str], data: st.DataObject) -> None:
    ends = data.draw(st.lists(st.sampled_from(["\n", "\r\n"]), min_size=len(lines), max_size=len(lines)))
    at = data.draw(st.integers(0, len(lines) - 1))
    before = "".join(line + end for line, end in zip(lines, ends, strict=True))
    marked = [*lines[:at], "mark", *lines[at + 1 :]]
    given_old, given_new = "\n".join(marked), "\n".join([*lines[:at], "new", *lines[at + 1 :]])
    text = "".join(line + end for line, end in zip(marked, ends, strict=True))
    edited, _ = apply(text.encode(), given_old, given_new)
    assert edited.decode() == text.replace("mark", "new")
    assert before.count("\n") == edited.count(b"\n")
