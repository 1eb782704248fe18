import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.provider.sse import Event, Parser, TooLong


def whole(*pieces: bytes) -> list[Event]:
    parser = Parser()
    found = [event for piece in pieces for event in parser.feed(piece)]
    return found + parser.end()


def data(*pieces: bytes) -> list[bytes]:
    return [event.data for event in whole(*pieces)]


STREAM = 'event: one\ndata: {"a": "ü😀"}\n\n: ping\nid: 7\ndata: x\ndata: y\n\ndata:z\n\n'.encode()


def test_events_have_their_name_and_their_data_lines_joined() -> None:
    assert whole(STREAM) == [
        Event('{"a": "ü😀"}'.encode(), "one"),
        Event(b"x\ny", "", "7"),
        Event(b"z", "", "7"),
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_gives_the_same_events_whole_and_byte_by_byte(end: bytes) -> None:
    stream = STREAM.replace(b"\n", end)
    assert whole(stream) == whole(STREAM)
    assert whole(*(stream[i : i + 1] for i in range(len(stream)))) == whole(STREAM)


def test_a_cr_and_its_lf_in_different_reads_are_one_line_end() -> None:
    assert data(b"data: a\r", b"\n\r", b"\ndata: b\r", b"\n\r", b"\n") == [b"a", b"b"]


def test_a_cr_alone_ends_a_line_at_once() -> None:
    assert Parser().feed(b"data: a\r\r") == [Event(b"a")]


def test_an_event_comes_as_soon_as_its_blank_line_does() -> None:
    parser = Parser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\n") == [Event(b"a")]


def test_a_byte_order_mark_at_the_start_is_left_out_however_it_is_cut() -> None:
    assert data(b"\xef\xbb\xbfdata: a\n\n") == [b"a"]
    assert data(b"\xef", b"\xbb", b"\xbf", b"data: a\n\n") == [b"a"]
    assert data(b"data: a\n\n\xef\xbb\xbfdata: b\n\n") == [b"a"], "later it is part of a field's name"


def test_one_space_after_the_colon_is_left_out_and_no_more() -> None:
    assert data(b"data:a\n\ndata:  b\n\ndata\n\n") == [b"a", b" b", b""]


def test_comments_and_unknown_fields_make_no_event() -> None:
    assert data(b": hello\n\n:\n\nfoo: bar\n\nevent: x\n\ndata: a\n\n") == [b"a"]


def test_a_name_counts_for_its_own_event_only() -> None:
    assert [event.name for event in whole(b"event: x\n\ndata: a\n\nevent: y\ndata: b\n\n")] == ["", "y"]


def test_an_id_with_a_nul_is_not_taken_and_retry_takes_digits_only() -> None:
    parser = Parser()
    events = parser.feed(b"id: 1\0\nretry: 12x\nretry: 500\ndata: a\n\n")
    assert events == [Event(b"a")]
    assert parser.retry == 500


def test_the_last_event_comes_without_its_blank_line_and_without_a_line_end() -> None:
    assert data(b"data: a\n\ndata: b\n") == [b"a", b"b"]
    assert data(b"data: a\n\ndata: b") == [b"a", b"b"]
    assert Parser().end() == []


def test_characters_that_look_like_line_ends_to_python_stay_in_the_line() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei".encode()
    assert data(b"data: " + text + b"\n\n") == [text]


@pytest.mark.parametrize("piece", [b"0123456789", b"data: 0123456789\n"])
def test_a_stream_without_an_end_of_its_event_is_refused(piece: bytes) -> None:
    parser = Parser(limit=100)
    for _ in range(10):
        parser.feed(piece)
    with pytest.raises(TooLong):
        parser.feed(piece)


def test_the_limit_is_an_events_not_the_streams() -> None:
    parser = Parser(limit=100)
    assert sum(len(parser.feed(piece)) for piece in [b"data: 0123", b"456789\n\n"] * 50) == 50


LINES = st.lists(
    st.sampled_from(
        [b"data: x", b"data:", b"data", b"event: e", b": c", b"", b"", b"id: 1", b"\xff", b"data: \xc3\xbc"]
    )
)
ENDS = st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=1)


@given(LINES, ENDS, st.data())
def test_any_split_gives_the_same_events(lines: list[bytes], ends: list[bytes], draw: st.DataObject) -> None:
    stream = b"".join(line + ends[i % len(ends)] for i, line in enumerate(lines))
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)))))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert whole(*pieces) == whole(stream)


@given(st.binary())
def test_any_bytes_are_taken(stream: bytes) -> None:
    assert whole(*(stream[at : at + 1] for at in range(len(stream)))) == whole(stream)
