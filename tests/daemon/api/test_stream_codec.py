from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.protocol import api, events, records
from daemon.protocol.records import JSON, TEXT, Config, Header, Record


def stored(n: int, type: str, body: bytes) -> Record:
    header = Header(n, "message", f"{n:016x}", "2026-01-02T03:04:05.678Z", len(body), type, via="me")
    return Record(header, body, records.encode(Record(header, body))[0])


bodies = st.one_of(
    st.builds(lambda s: (TEXT, s.encode()), st.text(max_size=50)),
    st.builds(lambda s: (JSON, s.encode()), st.text(max_size=50)),
    st.just(("image/png", b"")),
)
all_events = st.one_of(
    st.builds(lambda n, b: stored(n, *b), st.integers(1, 10**9), bodies),
    st.builds(api.Delta, st.sampled_from(["text", "thinking", "call", "output"]), st.text(max_size=30)),
    st.builds(api.RetryEvent, st.text(max_size=30), st.floats(0, 100), st.integers(1, 9)),
    st.just(api.Restart()),
    st.builds(lambda m: api.ApiError(api.ApiErrorBody(400, m)), st.text(max_size=30)),
)


def read(decoder: events.Decoder[events.SessionEvent], data: bytes, size: int) -> list[events.SessionEvent]:
    found = []
    for at in range(0, len(data), size):
        decoder.feed(data[at : at + size])
        while (event := decoder.next()) is not None:
            found.append(event)
    return found


@given(st.lists(all_events, max_size=5), st.integers(1, 200), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_events_in_any_pieces_and_line_ends_come_back(
    sent: list[events.SessionEvent], size: int, end: bytes
) -> None:
    data = events.COMMENT + events.COMMENT.join(map(events.encode, sent)) + b"event: later\ndata: {}\n\n"
    assert read(events.Decoder(events.SESSION), data.replace(b"\n", end), size) == sent


infos = st.builds(
    lambda title, n: api.Info("0" * 16, "closed", Config("a/b"), "t", "u", n, title=title),
    st.text(max_size=30),
    st.integers(1, 9),
)
workers = st.builds(lambda reason: api.WorkerInfo("w", "refused", reason), st.text(max_size=30))
daemon_events = st.one_of(
    infos,
    st.lists(workers, max_size=3).map(lambda found: api.Workers(tuple(found))),
    st.builds(
        lambda i, w: api.State(tuple(i), tuple(w)), st.lists(infos, max_size=3), st.lists(workers, max_size=3)
    ),
    st.builds(lambda m: api.ApiError(api.ApiErrorBody(503, m)), st.text(max_size=30)),
)


@given(st.lists(daemon_events, max_size=5), st.integers(1, 200))
def test_the_daemons_events_in_any_pieces_come_back(sent: list[events.DaemonEvent], size: int) -> None:
    data = b"".join(map(events.encode, sent)) + b"event: later\ndata: {}\n\n"
    decoder, found = events.Decoder(events.DAEMON), []
    for at in range(0, len(data), size):
        decoder.feed(data[at : at + size])
        while (event := decoder.next()) is not None:
            found.append(event)
    assert found == sent


@given(st.binary(max_size=200))
def test_garbage_raises_only_its_own_error(data: bytes) -> None:
    for garbage in (
        data,
        b"event: record\ndata: " + data + b"\n\n",
        b"event: delta\ndata: " + data + b"\n\n",
    ):
        with suppress(events.BadEvent):
            read(events.Decoder(events.SESSION), garbage, 7)


def test_a_record_event_is_three_lines_with_the_header_as_it_stands_in_the_file() -> None:
    line = b'{"n":7,"kind":"message","id":"a","time":"t","len":5,"type":"text/plain","later":[1, 2],"crc":"00000000"}'
    event = events.encode(Record(records.parse_header(line), b'a\n"b', line))
    assert event == b'id: 7\nevent: record\ndata: {"header":%b,"body":"a\\n\\"b"}\n\n' % line
    (back,) = read(events.Decoder(events.SESSION), event, 1)
    assert isinstance(back, Record)
    assert back.raw == line


def test_a_record_that_is_not_text_comes_as_its_header_alone() -> None:
    event = events.encode(stored(1, "image/png", b"\x89PNG"))
    assert b"body" not in event
    (back,) = read(events.Decoder(events.SESSION), event, 1000)
    assert isinstance(back, Record)
    assert (back.header.len, back.body) == (4, b"")


def test_what_a_foreign_writer_put_into_a_header_cannot_break_the_stream() -> None:
    line = b'{"n":1,\r"kind":"message","id":"a","time":"t","len":0,"type":"image/png","x":"\xff","crc":"00000000"}'
    event = events.encode(Record(records.parse_header(line), b"", line))
    assert b"\r" not in event
    event.decode()
    assert len(read(events.Decoder(events.SESSION), event, 1)) == 1


def test_text_that_is_not_utf_8_comes_with_its_bytes_replaced() -> None:
    (back,) = read(events.Decoder(events.SESSION), events.encode(stored(1, TEXT, b"a\xffb")), 9)
    assert isinstance(back, Record)
    assert back.body.decode() == "a�b"


def test_a_record_without_a_line_of_its_own_is_given_one() -> None:
    record = msgspec.structs.replace(stored(3, TEXT, b"x"), raw=b"")
    assert read(events.Decoder(events.SESSION), events.encode(record), 50) == [stored(3, TEXT, b"x")]


def test_an_event_over_the_limit_is_refused() -> None:
    decoder = events.Decoder(events.SESSION, 100)
    decoder.feed(b"data: " + b"x" * 100)
    with pytest.raises(events.BadEvent, match="over 100 bytes"):
        decoder.next()


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (TEXT, True),
        (JSON, True),
        ("application/x-thinking+json", True),
        ("application/json; a=b", True),
        ("image/png", False),
        ("application/octet-stream", False),
    ],
)
def test_text_and_json_are_carried(type: str, text: bool) -> None:
    assert events.carries_text(type) is text
