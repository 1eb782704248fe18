import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.protocol import records
from daemon.protocol.records import Record, draft
from daemon.statefile.blocks import BLOCK
from daemon.statefile.errors import MissingError
from daemon.statefile.scan import PATIENCE, Scan, scan, scan_fd
from tests.daemon.statefile.fakes import pieces, some

FILE = pieces(some(4))
bodies = st.binary(max_size=200) | st.text(max_size=100).map(str.encode)


@contextmanager
def in_memory(content: bytes) -> Iterator[int]:
    fd = os.memfd_create("state")
    try:
        os.pwrite(fd, content, 0)
        yield fd
    finally:
        os.close(fd)


def scanned(content: bytes) -> Scan:
    with in_memory(content) as fd:
        return scan_fd(fd)


def starts(all_pieces: list[bytes]) -> list[int]:
    return [sum(map(len, all_pieces[:k])) for k in range(len(all_pieces))]


@given(st.lists(bodies, min_size=1, max_size=8))
def test_any_sequence_of_records_is_found_at_its_offsets(found: list[bytes]) -> None:
    parts = pieces([draft("text", body, "application/octet-stream") for body in found])
    result = scanned(b"".join(parts))
    assert list(result.offsets) == starts(parts)
    assert (result.end, result.damage, result.torn) == (sum(map(len, parts)), None, 0)


@given(st.binary(max_size=400))
def test_garbage_is_damage_at_the_first_record(garbage: bytes) -> None:
    result = scanned(garbage)
    assert result.damage is not None
    assert (result.damage.n, result.damage.offset, len(result.offsets)) == (1, 0, 0)


@given(st.binary(min_size=1, max_size=400))
def test_garbage_after_whole_records_is_a_torn_tail(garbage: bytes) -> None:
    result = scanned(b"".join(FILE) + garbage)
    assert (len(result.offsets), result.torn, result.damage) == (4, len(garbage), None)


@given(st.integers(0, sum(map(len, FILE))), st.integers(0, 60), st.binary(max_size=60))
def test_a_splice_anywhere_keeps_what_stands_before_it(at: int, cut: int, new: bytes) -> None:
    content = b"".join(FILE)
    result = scanned(content[:at] + new + content[at + cut :])
    before = sum(1 for start, piece in zip(starts(FILE), FILE, strict=True) if start + len(piece) <= at)
    assert list(result.offsets[:before]) == starts(FILE)[:before]


@pytest.mark.parametrize("change", [0x01, 0x20, 0x80, 0xFF])
def test_a_flipped_byte_in_an_older_record_is_damage_there(change: int) -> None:
    content, at = bytearray(b"".join(FILE)), starts(FILE)
    for place in range(at[3]):
        content[place] ^= change
        result = scanned(bytes(content))
        content[place] ^= change
        k = max(k for k in range(3) if at[k] <= place)
        assert result.damage is not None, f"byte {place} flipped"
        assert (result.damage.n, result.damage.offset) == (k + 1, at[k])
        assert (list(result.offsets), result.end, result.torn) == (at[:k], at[k], 0)


@pytest.mark.parametrize("value", [b"\n", b"{", b" ", b"9", b"\x00"])
def test_an_older_byte_made_to_look_right_is_damage_too(value: bytes) -> None:
    content, at = b"".join(FILE), starts(FILE)
    for place in range(at[3]):
        if content[place : place + 1] != value:
            result = scanned(content[:place] + value + content[place + 1 :])
            assert result.damage is not None, f"byte {place} made {value!r}"
            assert result.damage.n == max(k for k in range(3) if at[k] <= place) + 1


def test_a_flipped_byte_in_the_last_record_is_a_torn_tail() -> None:
    content, start = bytearray(b"".join(FILE)), starts(FILE)[3]
    for place in range(start, len(content)):
        content[place] ^= 0xFF
        result = scanned(bytes(content))
        content[place] ^= 0xFF
        assert (len(result.offsets), result.end, result.torn, result.damage) == (3, start, len(FILE[3]), None)


def test_a_file_cut_at_any_byte_of_its_last_record_has_a_torn_tail() -> None:
    content, start = b"".join(FILE), starts(FILE)[3]
    for length in range(start + 1, len(content)):
        result = scanned(content[:length])
        assert (len(result.offsets), result.end, result.torn, result.damage) == (
            3,
            start,
            length - start,
            None,
        )


def test_zeros_that_a_power_cut_left_are_a_torn_tail() -> None:
    result = scanned(b"".join(FILE) + bytes(100_000))
    assert (len(result.offsets), result.torn, result.damage) == (4, 100_000, None)


@pytest.mark.parametrize("length", [0, 10, len(FILE[0]) - 1])
def test_a_first_record_is_never_torn_since_files_are_whole_when_they_get_their_name(length: int) -> None:
    result = scanned(FILE[0][:length])
    assert result.damage is not None
    assert (result.damage.n, result.torn) == (1, 0)


def test_a_whole_record_with_the_wrong_number_is_damage_and_says_so() -> None:
    for parts in ([*FILE, FILE[0]], [*FILE, FILE[3]], [*FILE[:2], FILE[3]]):
        result = scanned(b"".join(parts))
        assert result.damage is not None
        assert result.damage.n == len(parts)
        assert "says that it is record" in result.damage.reason


def test_a_torn_record_that_quotes_its_own_session_is_torn() -> None:
    quoting = pieces([draft("result", b"".join(FILE))], 5)[0]
    result = scanned(b"".join(FILE) + quoting[:-5])
    assert (len(result.offsets), result.torn, result.damage) == (4, len(quoting) - 5, None)


def test_in_doubt_nothing_is_torn() -> None:
    quoting = pieces([draft("result", pieces(some(), 70)[2])], 5)[0]
    result = scanned(b"".join(FILE) + quoting[:-1])
    assert result.damage is not None
    assert (result.damage.n, result.torn) == (5, 0)


def test_a_tail_made_to_take_for_ever_is_given_up() -> None:
    line = b'{"n":9,"kind":"text","id":"x","time":"","len":%d,"type":"","crc":"00000000"}\n'
    size, count = 400_000, 200 * PATIENCE
    content = b"".join(FILE) + (line % size) * count + b"\n" * (size + 1)
    result = scanned(content)
    assert result.damage is not None
    assert result.damage.n == 5


def test_brackets_without_end_are_not_a_header() -> None:
    deep = b'{"n":5,"x":' + b"[" * 30_000 + b',"crc":"00000000"}\n'
    result = scanned(b"".join(FILE) + deep)
    assert (len(result.offsets), result.torn) == (4, len(deep))


def test_a_length_over_the_limit_is_damage_when_something_follows() -> None:
    bad = FILE[2].replace(b'"len":', b'"len":99999999')
    result = scanned(b"".join([*FILE[:2], bad, FILE[3]]))
    assert result.damage is not None
    assert (result.damage.n, result.damage.offset) == (3, starts(FILE)[2])


@pytest.mark.parametrize("place", [*range(-34, 4), 300])
def test_a_valid_record_is_found_across_the_edge_of_two_blocks(place: int) -> None:
    head = b"".join(FILE[:2])
    empty = len(pieces([draft("text", bytes(BLOCK))], 3)[0]) - BLOCK
    filler = bytearray(pieces([draft("text", bytes(BLOCK + 1 + place - empty))], 3)[0])
    assert len(filler) == BLOCK + 1 + place
    filler[-2] = 1  # damaged, and the search for what is valid begins one byte after its start
    result = scanned(head + filler + FILE[3])
    assert result.damage is not None
    assert (result.damage.n, result.damage.offset) == (3, len(head))


def test_bodies_are_kept_as_they_are_whatever_lines_they_seem_to_have() -> None:
    body = "a\u2028b\u0085c\u2029d\r\ne\n\n{}\n\x0b\x0c\x1c".encode()
    parts = pieces([*some(2), draft("message", body), draft("text", b""), draft("text", b"\n")])
    result = scanned(b"".join(parts))
    assert list(result.offsets) == starts(parts)


def test_unknown_kinds_and_fields_are_whole_records() -> None:
    line, data = records.encode(Record(records.Header(3, "from-later", "x", "t", 2, "text/plain"), b"ok"))
    start = line[: -records.CRC_TAIL] + b',"new":{"deep":[1,"\xc3\xa9"]}'
    later = b'%b,"crc":"%08x"}\nok\n' % (start, zlib.crc32(b"ok", zlib.crc32(start)))
    assert data != later
    result = scanned(b"".join(FILE[:2]) + later)
    assert (len(result.offsets), result.damage, result.torn) == (3, None, 0)


def test_what_is_not_a_file_of_records_is_damage_or_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="there is no session 'gone'"):
        scan(tmp_path / "gone.state")
    os.mkfifo(tmp_path / "pipe.state")
    (tmp_path / "loop.state").symlink_to("loop.state")
    for path in (tmp_path, tmp_path / "pipe.state", tmp_path / "loop.state"):
        assert scan(path).damage is not None


@settings(max_examples=30)
@given(st.data())
def test_scan_of_a_path_is_scan_of_its_bytes(
    tmp_path_factory: pytest.TempPathFactory, choice: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "one.state"
    content = b"".join(FILE)[: choice.draw(st.integers(0, sum(map(len, FILE))))]
    path.write_bytes(content)
    assert scan(path) == scanned(content)
