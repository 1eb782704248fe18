import itertools
import sys
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from daemon.protocol.framing import Decoder, FramingError, encode


class Head(Struct):
    len: int
    note: str = ""


parse = msgspec.json.Decoder(Head).decode


def decoder(max_header: int = 100, max_body: int = 1000) -> Decoder[Head]:
    return Decoder(parse, max_header, max_body)


def unit(body: bytes, note: str = "") -> bytes:
    return encode(msgspec.json.encode(Head(len(body), note)), body)


def drain(cutter: Decoder[Head]) -> list[tuple[str, bytes]]:
    found = []
    while (got := cutter.next()) is not None:
        header, line, body = got
        assert parse(line) == header
        found.append((header.note, body))
    return found


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


units = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=50)), max_size=8)


def test_units_are_read_whole() -> None:
    cutter = decoder()
    cutter.feed(unit(b"one", "a") + unit(b"", "b") + unit(b"\n\n{}", "c"))
    assert drain(cutter) == [("a", b"one"), ("b", b""), ("c", b"\n\n{}")]
    assert cutter.pending == 0


def test_units_are_read_byte_by_byte() -> None:
    data = unit(b"one", "a") + unit(b"", "b") + unit(b"\n\n{}", "c")
    cutter, found = decoder(), []
    for at in range(len(data)):
        cutter.feed(data[at : at + 1])
        found += drain(cutter)
    assert found == [("a", b"one"), ("b", b""), ("c", b"\n\n{}")]


def test_every_length_of_a_tail_waits_and_is_counted() -> None:
    first, second = unit(b"one"), unit(b"second one", "tail")
    for size in range(len(second)):
        cutter = decoder()
        cutter.feed(first + second[:size])
        assert drain(cutter) == [("", b"one")]
        assert (cutter.consumed, cutter.pending) == (len(first), size)
        cutter.feed(second[size:])
        assert drain(cutter) == [("tail", b"second one")]
        assert (cutter.consumed, cutter.pending) == (len(first) + len(second), 0)


@given(units, st.lists(st.integers(0, 1000), max_size=10), st.booleans())
def test_any_split_gives_the_same_units(
    wanted: list[tuple[str, bytes]], cuts: list[int], eager: bool
) -> None:
    data = b"".join(unit(body, note) for note, body in wanted)
    cutter, found = decoder(), []
    for fed, piece in enumerate(pieces := split(data, cuts)):
        cutter.feed(memoryview(piece))
        if eager:
            found += drain(cutter)
        assert cutter.consumed + cutter.pending == sum(map(len, pieces[: fed + 1]))
    assert found + drain(cutter) == wanted
    assert cutter.consumed == len(data)


@given(
    units, st.integers(0, 500), st.binary(min_size=1, max_size=40), st.lists(st.integers(0, 500), max_size=5)
)
def test_garbage_raises_only_its_one_error(
    wanted: list[tuple[str, bytes]], at: int, garbage: bytes, cuts: list[int]
) -> None:
    data = b"".join(unit(body, note) for note, body in wanted)
    at %= len(data) + 1
    cutter = decoder()
    errors: list[str] = []
    for piece in [*split(data[:at] + garbage + data[at:], cuts), b""]:
        cutter.feed(b"" if errors else piece)
        try:
            drain(cutter)
        except FramingError as error:
            errors.append(str(error))
    assert len(set(errors)) <= 1, "a spent decoder raises its error again"
    assert not errors or len(errors) > 1


def test_a_header_that_nests_without_end_is_a_framing_error() -> None:
    cutter = decoder(max_header=100_000)
    cutter.feed(b'{"len":0,"later":' + b"[" * 50_000 + b"]" * 40_000 + b"}\n")
    with pytest.raises(FramingError, match="not a header line"):
        cutter.next()


def test_a_header_of_the_limit_passes_and_one_byte_more_does_not() -> None:
    header = b'{"len":0}'.ljust(100)
    for first, then in ((header + b"\n\n", b""), (header, b"\n\n")):
        cutter = decoder()
        cutter.feed(first)
        found = drain(cutter)
        cutter.feed(then)
        assert found + drain(cutter) == [("", b"")]
    for first, then in ((b"", header + b" \n\n"), (header, b" "), (b"", header + b" ")):
        cutter = decoder()
        cutter.feed(first)
        assert cutter.next() is None
        cutter.feed(then)
        with pytest.raises(FramingError, match="header line over 100 bytes"):
            cutter.next()


@pytest.mark.parametrize("size", [-1, 1001, 10**30])
def test_a_length_over_the_limits_is_refused_before_a_body_is_waited_for(size: int) -> None:
    cutter = decoder()
    cutter.feed(b'{"len":%d}\n' % size)
    with pytest.raises(FramingError, match=r"body of -?[0-9]+ bytes, where 0 to 1000 are allowed"):
        cutter.next()


def test_a_body_of_the_limit_passes() -> None:
    cutter = decoder()
    cutter.feed(unit(bytes(1000)))
    assert drain(cutter) == [("", bytes(1000))]


def test_a_body_without_its_newline_is_refused() -> None:
    cutter = decoder()
    cutter.feed(b'{"len":3}\nabcd')
    with pytest.raises(FramingError, match="no newline after the body"):
        cutter.next()


def work_of(size: int) -> int:
    """Bytes that the decoder's buffer handles (appended, moved, searched) for a body fed in pieces of 100."""
    handled = 0

    class Spy(bytearray):
        def __iadd__(self, data: object) -> "Spy":
            nonlocal handled
            assert isinstance(data, bytes)
            handled += len(data)
            self.extend(data)
            return self

        def __delitem__(self, key: object) -> None:
            nonlocal handled
            before = len(self)
            super().__delitem__(key)  # type: ignore[arg-type]
            handled += before - len(self)

        def find(self, what: object, start: object = 0, end: object = None) -> int:
            nonlocal handled
            at = super().find(what, start)  # type: ignore[arg-type]
            handled += (len(self) if at < 0 else at) - start  # type: ignore[operator]
            return at

    cutter = decoder(max_header=size, max_body=size)
    cutter._buffer = Spy()
    data = encode(b'{"len":%d,"note":"%b"}' % (size, b"x" * (size // 2)), bytes(size))
    found = []
    for at in range(0, len(data), 100):
        cutter.feed(data[at : at + 100])
        found += drain(cutter)
    assert len(found) == 1
    return handled


def test_a_large_unit_in_small_pieces_costs_its_size_and_not_its_square() -> None:
    small, large = work_of(10_000), work_of(100_000)
    assert large < 11 * small


def test_many_units_in_one_piece_are_not_moved_for_each() -> None:
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def run(n: int) -> int:
        nonlocal calls
        cutter = decoder()
        cutter.feed(unit(b"body") * n)
        calls = 0
        sys.setprofile(count)
        try:
            drain(cutter)
        finally:
            sys.setprofile(None)
        return calls

    assert run(1000) <= 10 * run(100) + 10
