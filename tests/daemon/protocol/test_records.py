import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from daemon.protocol import framing, records
from daemon.protocol.records import BadRecord, CallBody, Config, Header, Limits, Record, Usage, WorkerRef

SAMPLE = Record(
    Header(
        n=7,
        kind="result",
        id="00000000000000aa",
        time="2026-01-01T00:00:07.000Z",
        len=12,
        type=records.TEXT,
        for_="call_1",
        exit=0,
        worker="local",
        seconds=0.5,
    ),
    b'out\n{"a":1}\n',
)


def read(data: bytes) -> list[Record]:
    """The whole and sound records in `data`; raises where a reader would see damage, or a tail that waits."""
    cutter = records.decoder()
    cutter.feed(data)
    found = []
    while (got := cutter.next()) is not None:
        header, line, body = got
        records.check(line, body)
        found.append(Record(header, body, line))
    if cutter.pending:
        raise framing.FramingError("a tail")
    return found


def line_of(header: bytes, body: bytes = b"") -> bytes:
    """A record with a right check sum around any header: `header` is JSON without its last brace."""
    return b'%b,"crc":"%08x"}\n%b\n' % (header, zlib.crc32(body, zlib.crc32(header)), body)


words = st.text(max_size=20)
headers = st.builds(
    Header,
    n=st.integers(1, 10**9),
    kind=st.sampled_from(["message", "step", "result", "hologram"]),
    id=words,
    time=words,
    len=st.just(0),
    type=words,
    step=words,
    provider=words,
    for_=words,
    exit=st.none() | st.integers(-255, 255),
    truncated=st.integers(0, 10**9),
    full_output=words,
    failed=st.booleans(),
    worker=words,
    seconds=st.none() | st.floats(0, 1e6),
    via=words,
    idempotency_key=words,
    source=words,
    upto=st.integers(0, 10**9),
    model=words,
    harness=words,
    request=words,
    sent=words,
    usage=st.none() | st.builds(Usage, *[st.integers(0, 10**9)] * 4),
    cache=st.lists(st.integers(0, 1000), max_size=3).map(tuple),
    stop=words,
    reason=words,
)


@given(st.lists(st.tuples(headers, st.binary(max_size=60)), min_size=1, max_size=4))
def test_a_record_comes_back_as_it_was_written(wanted: list[tuple[Header, bytes]]) -> None:
    written = [Record(structs.replace(header, len=len(body)), body) for header, body in wanted]
    encoded = [records.encode(record) for record in written]
    found = read(b"".join(data for _, data in encoded))
    assert [(record.header, record.body) for record in found] == [(r.header, r.body) for r in written]
    assert [record.raw for record in found] == [line for line, _ in encoded]


def test_a_record_is_a_header_line_a_body_and_a_newline_and_empty_fields_are_left_out() -> None:
    line, data = records.encode(SAMPLE)
    assert data == line + b"\n" + SAMPLE.body + b"\n"
    assert line.startswith(
        b'{"n":7,"kind":"result","id":"00000000000000aa","time":"2026-01-01T00:00:07.000Z","len":12,'
        b'"type":"text/plain; charset=utf-8","for":"call_1","exit":0,"worker":"local","seconds":0.5,"crc":"'
    )
    assert (SAMPLE.n, SAMPLE.kind, SAMPLE.id, SAMPLE.text()) == (
        7,
        "result",
        SAMPLE.header.id,
        'out\n{"a":1}\n',
    )


@pytest.mark.parametrize("body", [b"", b"plain", SAMPLE.body, b'{"crc":"00000000"}\n', bytes(range(256))])
def test_a_flip_of_any_bit_of_a_record_shows(body: bytes) -> None:
    sample = Record(structs.replace(SAMPLE.header, len=len(body)), body)
    _, data = records.encode(sample)
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises((BadRecord, framing.FramingError)):
                read(bytes(flipped))


def test_a_record_with_a_byte_missing_or_doubled_shows() -> None:
    _, data = records.encode(SAMPLE)
    for at in range(len(data)):
        with pytest.raises((BadRecord, framing.FramingError)):
            read(data[:at] + data[at + 1 :])
        with pytest.raises((BadRecord, framing.FramingError)):
            read(data[: at + 1] + data[at:])


def test_two_records_with_their_bodies_swapped_show() -> None:
    one, two = Record(SAMPLE.header, b"aaaaaaaaaaaa"), Record(SAMPLE.header, b"bbbbbbbbbbbb")
    line, _ = records.encode(one)
    with pytest.raises(BadRecord, match=r"check sum is [0-9a-f]{8}, the bytes give [0-9a-f]{8}"):
        read(framing.encode(line, two.body))


def test_unknown_fields_and_kinds_are_taken_and_kept_in_the_raw_line() -> None:
    start = b'{"n":3,"kind":"hologram","id":"x","time":"t","len":2,"type":"a/b","depth":[1,{"z":null}]'
    [record] = read(line_of(start, b"hi"))
    assert (record.kind, record.n, record.body) == ("hologram", 3, b"hi")
    assert b'"depth":[1,{"z":null}]' in record.raw


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "does not end in its check sum"),
        (b'{"n":1}', "does not end in its check sum"),
        (b'{"n":1,"crc":"00000000"} ', "does not end in its check sum"),
        (b'{"n":1,"cRc":"00000000"}', "does not end in its check sum"),
        (b'{"n":1,"crc":"00000000"}', "missing required field `kind`"),
        (
            b'{"n":"1","kind":"a","id":"","time":"","len":0,"type":"","crc":"00000000"}',
            r"got `str` - at `\$.n`",
        ),
        (b'{"n":1,"kind":"\xff","id":"","time":"","len":0,"type":"","crc":"00000000"}', "Invalid UTF-8"),
        (b'{"x":' + b"[" * 60_000 + b',"crc":"00000000"}', "recursion"),
    ],
)
def test_a_line_that_is_no_header_is_a_bad_record_with_a_reason(line: bytes, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        records.parse_header(line)


@given(st.binary(max_size=200))
def test_garbage_is_never_a_record(data: bytes) -> None:
    if data:
        with pytest.raises((BadRecord, framing.FramingError)):
            read(data)


@pytest.mark.parametrize(
    "record",
    [
        Record(structs.replace(SAMPLE.header, full_output="x" * records.MAX_HEADER), SAMPLE.body),
        Record(structs.replace(SAMPLE.header, len=records.MAX_BODY + 1), bytes(records.MAX_BODY + 1)),
        Record(structs.replace(SAMPLE.header, len=3), b"four"),
        Record(structs.replace(SAMPLE.header, via="\udc80"), SAMPLE.body),
        Record(structs.replace(SAMPLE.header, usage=records.Usage(True, 1)), SAMPLE.body),
    ],
    ids=["header", "body", "length", "surrogate", "type"],
)
def test_what_could_not_be_read_back_is_not_written(record: Record) -> None:
    with pytest.raises(BadRecord, match=r"result record|the body has|does not parse"):
        records.encode(record)


def test_a_header_of_just_the_limit_can_be_read_back() -> None:
    line, _ = records.encode(SAMPLE)
    room = records.MAX_HEADER - len(line) - len('"full_output":"",')
    [record] = read(
        records.encode(Record(structs.replace(SAMPLE.header, full_output="x" * room), SAMPLE.body))[1]
    )
    assert len(record.raw) == records.MAX_HEADER
    over = Record(structs.replace(SAMPLE.header, full_output="x" * (room + 1)), SAMPLE.body)
    with pytest.raises(BadRecord, match="header of 65537 bytes"):
        records.encode(over)


def test_a_draft_has_its_length_and_waits_for_number_time_and_id() -> None:
    record = records.draft("message", "héllo", via="me")
    assert record.header == Header(0, "message", "", "", 6, records.TEXT, via="me")
    assert records.draft("call", b"{}", records.JSON, id="call_1").id == "call_1"


@pytest.mark.parametrize(
    ("broken", "whole"),
    [
        ("plain ☃", "plain ☃"),
        ("\ud83d\ude00", "😀"),
        ("cut \ud83d", "cut \ufffd"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("", ""),
    ],
)
def test_lone_surrogates_never_reach_a_file(broken: str, whole: str) -> None:
    assert records.mend(broken) == whole
    assert records.draft("text", broken).body == whole.encode()
    assert records.error_of(records.error_draft("provider", broken)).message == whole


@given(st.text())
def test_text_that_is_whole_is_left_as_it_is(text: str) -> None:
    assert records.mend(text) == text


def test_json_bodies_come_back() -> None:
    config = Config(
        model="a/b",
        tools=("run", "read"),
        workers=(WorkerRef("local", "/tmp"), WorkerRef("far")),
        context=1000,
        input=("image/png",),
        params={"temperature": 0.5, "deep": {"er": [1]}},
        limits=Limits(steps=3, seconds=1.5),
    )
    assert records.config_of(records.json_draft("config", config)) == config
    call = CallBody("run", '{"broken', msgspec.Raw(b'{"signature":"x"}'))
    got = records.call_of(records.json_draft("call", call))
    assert (got.name, got.arguments, bytes(got.extra)) == ("run", '{"broken', b'{"signature":"x"}')
    assert bytes(records.call_of(records.json_draft("call", CallBody("run", ""))).extra) == b""
    error = records.error_of(records.error_draft("limit", "too much", via="me"))
    assert (error.code, error.message) == ("limit", "too much")


def test_a_config_that_a_later_release_wrote_is_read() -> None:
    body = b'{"model":"a/b","mood":1,"workers":[{"name":"w","gpu":2}],"limits":{"steps":2,"words":9}}'
    config = records.config_of(records.draft("config", body, records.JSON))
    assert config == Config(model="a/b", workers=(WorkerRef("w"),), limits=Limits(steps=2))


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b'{"model":1}', b"\xff", b"[" * 100_000])
def test_a_body_that_does_not_parse_is_a_bad_record_that_names_itself(body: bytes) -> None:
    decoders: dict[records.Kind, Callable[[Record], object]] = {
        "config": records.config_of,
        "call": records.call_of,
        "error": records.error_of,
    }
    for kind, decode in decoders.items():
        with pytest.raises(BadRecord, match=rf"record 0 \({kind}\): its body does not parse"):
            decode(records.draft(kind, body, records.JSON))


@pytest.mark.parametrize(
    ("type", "body", "text"),
    [
        ("text/plain; charset=utf-8", "héllo\n".encode(), "héllo\n"),
        ("Text/Markdown", b"a\xffb", "a\ufffdb"),
        ("image/png", b"\x89PNG", ""),
        ("application/json", b'{"text":"a","message":"b"}', "a"),
        ("application/x-block+json; v=1", b'{"thinking":"hm"}', "hm"),
        ("application/json", b'{"text":1,"message":"b"}', "b"),
        ("application/json", b'{"signature":"x"}', ""),
        ("application/json", b"[1]", ""),
        ("application/json", b"{", ""),
        ("application/json", b'"\xff"', ""),
        ("application/json", b"[" * 100_000, ""),
    ],
)
def test_a_person_reads_the_words_of_a_body(type: str, body: bytes, text: str) -> None:
    assert records.readable(type, body) == text
    assert Record(structs.replace(SAMPLE.header, type=type, len=len(body)), body).text() == text


def test_usage_adds_up_and_a_prompt_counts_the_cache() -> None:
    total = Usage(1, 2, 3, 4) + Usage(10, 20, 30, 40)
    assert total == Usage(11, 22, 33, 44)
    assert total.prompt == 11 + 33 + 44


@pytest.mark.parametrize(
    "bad", [{"name": ""}, {"name": "x" * 64}, {"name": "w", "gpu": 1}, {"cwd": "/"}, {"name": "w", "cwd": 1}]
)
def test_a_worker_that_a_client_names_is_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(bad, WorkerRef)


def test_a_call_without_anything_extra_is_written_whole_whatever_empty_it_was_given() -> None:
    for extra in (records.NO_EXTRA, msgspec.Raw(b"")):
        body = msgspec.json.encode(CallBody("run", "{}", extra))
        assert body == b'{"name":"run","arguments":"{}"}'
        assert msgspec.json.encode(structs.replace(CallBody("run", "{}"), extra=extra)) == body
    kept = CallBody("run", "{}", msgspec.Raw(b'{"a":1}'))
    assert msgspec.json.decode(msgspec.json.encode(kept), type=CallBody) == kept
