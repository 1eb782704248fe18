import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.protocol.api import Delta
from daemon.protocol.records import Record, draft
from daemon.streaming import Live

RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def stored(record: Record, n: int, **fields: Any) -> Record:
    """`record` as the log would have stored it."""
    return Record(
        msgspec.structs.replace(record.header, n=n, id=record.id or f"{n:016x}", **fields), record.body
    )


def shown(live: Live) -> list[tuple[str, str]]:
    return [(item.title, item.body) for item in live.items()]


def test_blocks_stream_until_their_record_comes() -> None:
    live = Live()
    live.feed(Delta("thinking", "hm", 0, step="s"))
    live.feed(Delta("text", "Hel", 1, step="s"))
    live.feed(Delta("text", "lo\x1b", 1, step="s", at=3))
    live.feed(Delta("call", "{", 2, name="run", step="s"))
    assert [(item.kind, item.title, item.body) for item in live.items()] == [
        ("thinking", "thinking", "hm"),
        ("text", "answer", "Hello␛"),
        ("call", "writing a call of run, 1 character", ""),
    ]
    live.record(stored(draft("thinking", "hm", step="s"), 5))
    live.record(stored(draft("text", "Hello", step="s", block=1), 6))
    live.feed(Delta("text", " late", 1, step="s", at=6))
    assert [item.kind for item in live.items()] == ["call"]
    live.record(stored(draft("step", id="s"), 7))
    assert live.items() == []


def test_a_restart_makes_void_what_streamed() -> None:
    live = Live()
    live.feed(Delta("text", "Hello wor", step="s1"))
    live.restart()
    live.feed(Delta("text", "Hello", step="s2"))
    assert shown(live) == [("answer", "Hello")]


def test_a_block_of_the_next_try_makes_void_what_streamed_of_the_one_before() -> None:
    live = Live()
    live.feed(Delta("thinking", "hm", step="s1"))
    live.feed(Delta("text", "Hello wor", 1, step="s1"))
    live.feed(Delta("text", "Good", step="s2"))
    assert shown(live) == [("answer", "Good")]


def test_a_record_of_an_earlier_try_takes_no_block_of_this_one_off() -> None:
    live = Live()
    live.feed(Delta("text", "good", step="s2"))
    live.record(stored(draft("text", "void", step="s1"), 5))
    live.feed(Delta("text", " words", step="s2", at=4))
    assert shown(live) == [("answer", "good words")]
    live.record(stored(draft("text", "good words", step="s2"), 6))
    assert live.items() == []


def test_who_joins_late_knows_blocks_by_their_number() -> None:
    live = Live()
    live.feed(Delta("text", "Hello", 3, step="s"))
    live.record(stored(draft("call", "{}", step="s", block=4), 9))
    assert shown(live) == [("answer", "Hello")]
    live.record(stored(draft("text", "Hello", step="s", block=3), 8))
    assert live.items() == []


def test_a_piece_from_further_back_takes_the_place_of_what_came() -> None:
    live = Live()
    for at, piece in ((0, "Hel"), (3, "lo wo"), (0, "Hello "), (6, "world")):
        live.feed(Delta("text", piece, step="s", at=at))
    assert shown(live) == [("answer", "Hello world")]


def test_what_the_daemon_no_longer_has_is_kept_where_it_came_before() -> None:
    live = Live()
    live.feed(Delta("text", "Hello wor", step="s"))
    live.feed(Delta("text", "o world", step="s", at=4))
    assert shown(live) == [("answer", "Hello world")]


@pytest.mark.parametrize("before", ["", "He"])
def test_a_beginning_that_nobody_has_is_told_of(before: str) -> None:
    live = Live()
    if before:
        live.feed(Delta("text", before, step="s"))
    live.feed(Delta("text", "o world", step="s", at=1004))
    live.feed(Delta("text", "!", step="s", at=1011))
    assert shown(live) == [("answer · without its first 1,004 characters", "…o world!")]


def test_a_call_without_its_beginning_is_shown_as_what_came() -> None:
    live = Live()
    live.feed(Delta("call", 'nt(1)"}', name="run", step="s", at=500))
    assert shown(live) == [("writing a call of run, 507 characters", '…nt(1)"}')]


def test_a_lost_connection_leaves_what_streamed_and_says_so_until_more_comes() -> None:
    live = Live()
    live.feed(Delta("thinking", "hm", step="s"))
    live.feed(Delta("text", "Hello wo", 1, step="s"))
    live.feed(Delta("output", "1\n", call="c1"))
    live.lost()
    assert shown(live) == [
        ("thinking · broken off here", "hm"),
        ("answer · broken off here", "Hello wo"),
        ("output so far · broken off here", "1"),
    ]
    live.record(stored(draft("thinking", "hm", step="s"), 5))
    live.feed(Delta("text", "Hello world", 1, step="s"))
    live.feed(Delta("output", "1\n2\n", call="c1"))
    assert shown(live) == [("answer", "Hello world"), ("output so far", "1\n2")]


@pytest.mark.parametrize(
    "next",
    [
        stored(draft("text", "Good", step="s2"), 5),
        stored(draft("step", id="s2"), 5),
        stored(draft("error", "{}"), 5),
    ],
)
def test_what_broke_off_goes_when_the_session_has_gone_on_without_it(next: Record) -> None:
    live = Live()
    live.feed(Delta("text", "Hello wo", 1, step="s1"))
    live.lost()
    live.record(next)
    assert live.items() == []


def test_the_output_of_a_run_is_live_until_its_result() -> None:
    live = Live()
    live.feed(Delta("output", "1\n" * 300, call="c1"))
    live.feed(Delta("output", "\x1b[31m2\x1b[0m", call="c1", at=600))
    (item,) = live.items()
    assert (item.kind, item.call, item.state) == ("output", "c1", "live")
    assert item.body.endswith("1\n2")
    assert item.body.count("\n") < 200
    live.record(stored(draft("result", "", for_="c1"), 6))
    assert live.items() == []


def test_long_output_that_comes_again_is_not_there_twice() -> None:
    live = Live()
    lines = [f"{n}\n" for n in range(1000)]
    for n, piece in enumerate(lines):
        live.feed(Delta("output", piece, call="c1", at=len("".join(lines[:n]))))
    at = len("".join(lines[:950]))
    live.feed(Delta("output", "".join(lines[950:]) + "end\n", call="c1", at=at))
    (item,) = live.items()
    assert item.body.split("\n")[-52:] == [*(f"{n}" for n in range(949, 1000)), "end"]


def test_streams_keep_their_key_and_grow_at_their_end() -> None:
    live = Live()
    live.feed(Delta("text", "a", step="s"))
    (first,) = live.streams()
    live.feed(Delta("text", "b", step="s", at=1))
    assert live.streams() == [first]
    assert ("".join(first.pieces), first.size) == ("ab", 2)
    live.feed(Delta("text", "ab", step="s"))
    assert live.streams()[0].key != first.key


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ('{"worker": "w", "code": "print(\\"hi\\")\\nx', 'print("hi")\nx'),
        ('{"worker": "w", "code": "a\\', "a"),
        ('{"worker": "w", "code": "caf\\u00e', "caf"),
        ('{"worker": "w", "code": "\\ud83d', ""),
        ('{"worker": "w", "co', ""),
        ("", ""),
    ],
)
def test_the_code_of_a_call_is_shown_as_it_is_written(written: str, code: str) -> None:
    live = Live()
    live.feed(Delta("call", written, 0, name="run"))
    (item,) = live.items()
    assert item.body == code


@given(st.text(), st.integers(0, 60), st.integers(0, 2))
def test_no_arguments_wherever_they_break_off_fail_to_be_drawn(text: str, end: int, at: int) -> None:
    live = Live()
    live.feed(Delta("call", msgspec.json.encode({"code": text}).decode()[:end], 0, name="run", at=at))
    (item,) = live.items()
    assert not RAW.search(item.body)
