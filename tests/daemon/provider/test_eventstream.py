import struct
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.provider.eventstream import CORRUPT, Bad, Frame, Parser, parse_headers
from daemon.provider.sse import Event
from tests.aws_frames import event, exception, framed, header
from tests.daemon.provider import aws_oracle
from tests.daemon.provider.recorded import cuts

ANSWER = b"".join(
    [
        event("messageStart", role="assistant"),
        event("contentBlockDelta", contentBlockIndex=0, delta={"text": "ü\u2028😀"}),
        framed(header(":event-type", "empty") + header(":message-type", "event"), b""),
        exception("throttlingException", message="slow down"),
    ]
)


def fed(pieces: list[bytes], limit: int | None = None) -> list[Event]:
    parser = Parser() if limit is None else Parser(limit)
    return [frame for piece in pieces for frame in parser.feed(piece)]


def corrupt(found: list[Event]) -> str:
    """What the last frame says is wrong."""
    last = found[-1]
    assert isinstance(last, Frame)
    assert last.kind == CORRUPT
    return last.name


def test_frames_read_the_same_however_they_are_cut() -> None:
    first, *others = map(fed, cuts(ANSWER))
    assert [(frame.name, frame.kind) for frame in first if isinstance(frame, Frame)] == [
        ("messageStart", "event"),
        ("contentBlockDelta", "event"),
        ("empty", "event"),
        ("throttlingException", "exception"),
    ]
    assert all(other == first for other in others)


def test_botocore_reads_the_same_of_every_recording(streams_dir: Path) -> None:
    files = sorted(streams_dir.glob("*.eventstream"))
    assert len(files) >= 5
    for file in files:
        data = file.read_bytes()
        ours = [(frame.name, frame.data) for frame in fed([data])]
        assert ours == [(headers[":event-type"], payload) for headers, payload in aws_oracle.frames(data)]


def test_a_flipped_bit_anywhere_is_found() -> None:
    whole = fed([ANSWER])
    for at in range(len(ANSWER)):
        for bit in (0x01, 0x80):
            broken = bytearray(ANSWER)
            broken[at] ^= bit
            found = fed([bytes(broken)])
            assert "check sum" in corrupt(found)
            assert found[:-1] == whole[: len(found) - 1], "what came before is as it was"


def test_after_a_corrupt_frame_nothing_is_read() -> None:
    parser = Parser()
    assert corrupt(parser.feed(b"\0" * 16))
    assert parser.feed(ANSWER) == []
    assert parser.end() == []


def lengths(total: int, headers: int) -> bytes:
    """A prelude of these lengths with its check sum."""
    prelude = struct.pack(">II", total, headers)
    return prelude + struct.pack(">I", crc32(prelude))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (lengths(15, 0), "a frame of 15 bytes"),
        (lengths(20, 5), "a frame of 20 bytes with 5 of headers"),
        (lengths(1 << 20, (128 << 10) + 1), "of headers"),
        (lengths(0xFFFFFFFF, 0), "are allowed"),
        (framed(b"\x01a\x2a", b""), "a header of type 42"),
        (framed(header("a", "b") * 2, b""), "two headers 'a'"),
        (framed(b"\x09abc", b""), "do not read"),
        (framed(b"\x01a\x07\xff\xffx", b""), "a header is cut off"),
        (framed(b"\x01\xff\x00", b""), "do not read"),
        (framed(b"\x01a\x05\x00", b""), "do not read"),
    ],
)
def test_a_frame_that_cannot_be_is_corrupt_however_it_comes(data: bytes, what: str) -> None:
    for pieces in ([data], [data[i : i + 1] for i in range(len(data))]):
        assert what in corrupt(fed(pieces))


def test_a_frame_over_the_limit_is_refused_before_it_is_held() -> None:
    data = event("x", text="y" * 100)
    assert fed([data], len(data))[0].data
    assert "are allowed" in corrupt(fed([data[:12]], len(data) - 1))


def test_headers_of_every_type_are_read_as_botocore_reads_them() -> None:
    values = {
        "true": b"\x00",
        "false": b"\x01",
        "byte": b"\x02\xff",
        "short": b"\x03\xff\xfe",
        "int": b"\x04\x00\x00\x00\x07",
        "long": b"\x05" + b"\xff" * 8,
        "bytes": b"\x06\x00\x02ab",
        "text": b"\x07\x00\x03\xc3\xbcx",
        "time": b"\x08" + bytes(7) + b"\x01",
        "uuid": b"\x09" + bytes(range(16)),
    }
    data = b"".join(bytes([len(name)]) + name.encode() + value for name, value in values.items())
    found = parse_headers(data)
    ((theirs, _),) = aws_oracle.frames(framed(data, b""))
    assert found == theirs
    assert (found["true"], found["false"], found["byte"], found["text"]) == (True, False, -1, "üx")


def test_an_error_frame_says_its_code_and_message() -> None:
    heads = header(":message-type", "error") + header(":error-code", "E") + header(":error-message", "why")
    assert fed([framed(heads, b"")]) == [Frame(b"", "E: why", kind="error")]


@given(st.binary(max_size=200))
def test_headers_that_are_garbage_raise_what_they_say(data: bytes) -> None:
    with suppress(Bad, struct.error, IndexError, UnicodeDecodeError):
        parse_headers(data)


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 40))
def test_any_payloads_come_out_as_they_went_in(payloads: list[bytes], size: int) -> None:
    data = b"".join(framed(header(":event-type", "x"), payload) for payload in payloads)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [frame.data for frame in fed(pieces)] == payloads
