"""The tail of output that is shown, and copying it with flat memory."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.protocol import frames
from daemon.worker import output
from daemon.worker.output import Sink, clean, shown
from tests.daemon.worker.dialing import Dial


def whole(data: bytes) -> tuple[str, int]:
    lines = data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)
    return shown(data, whole=True, lines=lines)


def test_output_within_the_limits_is_shown_as_it_is() -> None:
    assert whole(b"") == ("", 0)
    assert whole(b"a\nb\n") == ("a\nb\n", 0)
    assert whole("é\nno end".encode()) == ("é\nno end", 0)
    assert whole(b"\n\n\n") == ("\n\n\n", 0)


def test_the_last_2000_lines_are_shown_and_the_others_counted() -> None:
    text, cut = whole(b"".join(b"%d\n" % n for n in range(5000)))
    assert text.splitlines()[0] == "3000"
    assert (len(text.splitlines()), cut) == (2000, 3000)


def test_the_last_50_kib_are_shown_in_whole_lines() -> None:
    text, cut = whole(b"".join(b"%04d %s\n" % (n, b"x" * 94) for n in range(1000)))
    assert len(text) <= frames.MAX_TAIL
    assert len(text.splitlines()) + cut == 1000
    assert all(len(line) == 99 for line in text.splitlines())


def test_one_huge_line_keeps_its_end_and_counts_as_cut() -> None:
    text, cut = whole(b"x" * 5_000_000)
    assert (text, cut) == ("x" * frames.MAX_TAIL, 1)


def test_a_huge_line_before_a_short_one_is_shown_in_part() -> None:
    text, cut = whole(b"first\n" + b"x" * 100_000 + b"\nlast\n")
    assert text.endswith("xxx\nlast\n")
    assert (len(text), cut) == (frames.MAX_TAIL, 2)


def test_a_line_is_never_cut_within_a_character() -> None:
    for shift in range(4):
        text, _ = whole(b"a" * shift + "💡".encode() * 20_000)
        assert set(text) <= {"💡"}


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    assert whole(b"\xf0\x9f") == ("\ufffd", 0)
    assert whole(b"caf\xe9 x")[0] == "caf\ufffd x"
    assert whole("é".encode("utf-16-le") + b"\xff\xfe")[0].startswith("\ufffd")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b(Bplain\x1b[?25l\x1b=", "plain"),
        ("\x1b[38;5;196mX\x1b[K", "X"),
        ("0%\r50%\r100%\n", "100%\n"),
        ("0%\r50%\r\n", "50%\n"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("10%\r       \r", "10%"),
        ("|\b/\b-\bdone", "done"),
        ("bell\x07 tab\t nul\x00", "bell tab\t nul"),
        ("ends in \x1b[", "ends in "),
        ("ends in \x1b", "ends in "),
        ("\x1b]0;never ended\nnext", "\nnext"),
        ("\u009b31mc1", "c1"),
    ],
)
def test_what_a_terminal_would_not_show_is_not_shown(raw: str, text: str) -> None:
    assert clean(raw) == text


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_any_bytes_give_a_tail_within_the_limits(data: bytes, start: int) -> None:
    raw = data[start:]
    lines = data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)
    text, cut = shown(raw, whole=len(raw) == len(data), lines=lines)
    assert len(text.encode()) <= frames.MAX_TAIL
    assert 0 <= cut <= lines + 1


@given(st.text(st.sampled_from("ab\n\r\b\x1b[;m0é"), max_size=200))
def test_cleaned_text_has_no_controls_and_its_lines(text: str) -> None:
    result = clean(text)
    assert not set(result) & set("\r\b\x1b")
    assert result.count("\n") == text.count("\n")


def test_a_sink_counts_and_keeps(tmp_path: Path) -> None:
    sink = Sink(str(tmp_path / "out"))
    for _ in range(100):
        sink.write(b"line\n" * 1000)
    sink.write(b"end")
    sink.close()
    assert (sink.size, sink.lines) == (500_003, 100_001)
    assert len(sink.ring) == output.RING
    text, cut = sink.tail()
    assert text.endswith("line\nend")
    assert cut == 100_001 - 2000


def test_a_full_disk_ends_the_keeping_and_not_the_run() -> None:
    sink = Sink("/dev/full")
    sink.write(b"a\n" * 10)
    sink.write(b"b\n")
    assert "No space left" in sink.trouble
    assert sink.tail() == ("a\n" * 10 + "b\n", 0)
    sink.close()


def test_output_over_the_limit_of_a_file_is_only_counted(tmp_path: Path) -> None:
    sink = Sink(str(tmp_path / "out"), 10)
    sink.write(b"12345678")
    sink.write(b"12345678\n")
    sink.write(b"z\n")
    assert (tmp_path / "out").read_bytes() == b"1234567812"
    assert "only the first 10 bytes" in sink.trouble
    assert sink.tail() == ("1234567812345678\nz\n", 0)
    sink.close()


def test_a_sink_makes_its_file_when_there_is_output_and_adds_to_one_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "session/call/later"
    Sink(str(path)).close()
    assert not path.parent.exists()
    for n in range(2):
        sink = Sink(str(path))
        sink.write(b"%d" % n)
        sink.close()
        assert sink.ring == b"%d" % n
    assert path.read_bytes() == b"01"


@pytest.mark.parametrize("limit", [1 << 40, 300_000, 0])
def test_moved_and_written_output_is_the_same(tmp_path: Path, limit: int) -> None:
    data = b"".join(b"%d\n" % n for n in range(70_000)) + b"end"
    read, write = os.pipe()
    os.set_blocking(read, False)
    moved, written = Sink(str(tmp_path / "moved"), limit), Sink(str(tmp_path / "written"), limit)
    for start in range(0, len(data), 50_000):
        piece = data[start : start + 50_000]
        os.write(write, piece)
        assert output.copy(read, moved, 1 << 20) == (len(piece), False)
        written.write(piece)
        assert moved.ring == written.ring == data[: start + 50_000][-output.RING :]
    os.close(write)
    os.close(read)
    assert moved.tail() == written.tail()
    assert (moved.size, moved.kept, moved.lines, moved.trouble) == (
        written.size,
        written.kept,
        written.lines,
        written.trouble,
    )
    assert moved.lines == 70_001
    for sink in (moved, written):
        sink.close()
        assert sink.lines == 70_001
        assert Path(sink.path).read_bytes() == data[:limit]


def test_a_disk_that_is_short_takes_no_output_from_its_first_byte_on_and_the_end_is_shown_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = [-1]
    monkeypatch.setattr(output, "to_spare", lambda _: spare[0])
    sink = Sink(str(tmp_path / "short"))
    sink.write(b"line\n")
    assert (sink.kept, sink.tail()) == (0, ("line\n", 0))
    assert sink.trouble == "only the first 0 bytes of the output are kept: the disk is almost full"
    sink.close()
    spare[0] = 2 << 20
    sink = Sink(str(tmp_path / "small"))
    sink.write(bytes(1 << 20))
    spare[0] = -1
    sink.write(bytes(1 << 20))
    sink.close()
    assert (sink.kept, sink.size) == (1 << 20, 2 << 20), "it is looked at again long before LOOK_EVERY"


def test_lines_of_a_large_file_are_counted_alike_with_and_without_wc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"line\n" * 1000 + b"end")
    assert output.newlines(file) == 1000
    monkeypatch.setattr(output, "COUNT_SELF", 0)
    assert output.newlines(file) == 1000
    assert output.count_lines(file) == (5003, 1001)


def test_copying_stops_at_an_empty_pipe_and_at_its_end(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    sink = Sink(str(tmp_path / "out"))
    os.write(write, b"x" * 1000)
    assert output.copy(read, sink, 10) == (10, False)
    assert output.copy(read, sink, 1 << 20) == (990, False)
    os.close(write)
    assert output.copy(read, sink, 1 << 20) == (0, True)
    os.close(read)
    sink.close()


async def test_live_chunks_are_few_and_small_and_end_in_whole_characters(dial: Dial) -> None:
    ran = await dial.run("for i in {1..40}; do printf 'é%.0s' {1..3000}; sleep 0.005; done")
    assert 0 < len(ran.live) <= 2 + ran.end.seconds / frames.LIVE_EVERY
    for chunk in ran.live:
        assert len(chunk) <= frames.LIVE_CHUNK
        assert chunk[0] & 0xC0 != 0x80 or len(chunk) < frames.LIVE_CHUNK - 4


async def test_a_truncated_result_says_where_the_whole_is(dial: Dial) -> None:
    ran = await dial.run("seq 100000")
    assert ran.end.truncated == 98_000
    assert ran.text == "".join(f"{n}\n" for n in range(98_001, 100_001))
    found, _ = await dial.read(ran.end.full_output)
    assert found == b"".join(b"%d\n" % n for n in range(1, 100_001))


async def test_a_pipe_that_is_cut_short_by_the_code_is_not_by_us(dial: Dial) -> None:
    assert (await dial.run("yes | head -n 3; echo ${PIPESTATUS[@]}")).text == "y\ny\ny\n141 0\n"
