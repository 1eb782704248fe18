"""What of a file a `read` shows, and the line ends that a `write` keeps."""

from hypothesis import given
from hypothesis import strategies as st

from daemon.harness import shown
from daemon.protocol import frames


def test_a_part_says_which_lines_it_is_and_where_to_go_on() -> None:
    assert shown.lines(b"a\nb\n", 1, True) == "a\nb\n"
    assert shown.lines(b"a\nb", 1, True) == "a\nb"
    assert shown.lines(b"c\nd\n", 3, False) == "c\nd\n[lines 3 to 4; more from offset 5]"


def test_lines_over_the_limit_are_shown_as_far_as_they_fit() -> None:
    data = b"".join(b"%05d %s\n" % (n, b"x" * 93) for n in range(1, 1001))
    text = shown.lines(data, 1, True)
    *whole, note = text.split("\n")
    assert note == "[lines 1 to 512; more from offset 513]"
    assert whole[-1].startswith("00512 ")
    assert len("\n".join(whole)) < frames.MAX_TAIL


def test_of_a_line_that_does_not_fit_its_beginning_is_shown_to_a_whole_character() -> None:
    data = "🚀".encode() * 20_000
    text = shown.lines(b"\xe9x" + data, 7, False)
    assert "\n[line 7 is longer than a result can be" in text
    assert set(text.partition("\n")[0]) == {"\ufffd", "x", "🚀"}
    assert text.count("\ufffd") == 1
    assert len(text.encode()) <= frames.MAX_TAIL + 200


@given(st.lists(st.binary(max_size=40_000).map(lambda line: line.replace(b"\n", b"")), max_size=5))
def test_what_is_shown_always_fits_and_always_says_how_to_see_the_rest(lines: list[bytes]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    text = shown.lines(data, 1, True)
    assert len(text.encode("utf-8", "surrogatepass")) <= 3 * frames.MAX_TAIL + 300
    assert len(data) <= frames.MAX_TAIL or text.endswith("]")


def test_line_ends_are_kept_where_they_are_all_alike() -> None:
    assert shown.is_crlf(b"a\r\nb\r\nc")
    assert not shown.is_crlf(b"a\r\nb\nc")
    assert not shown.is_crlf(b"a\rb")
    assert not shown.is_crlf(b"")
    assert shown.with_crlf(b"x\ny\n") == b"x\r\ny\r\n"
    assert shown.with_crlf(b"x\r\ny\n") == b"x\r\ny\n", "who gives line ends means them"
