import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.api.frames import Frames
from daemon.protocol import api
from daemon.protocol.records import Config, Record, Usage
from tests.daemon.book import Book

ID = "00000000000000aa"


def parsed(events: bytes) -> list[tuple[int, str, dict[str, Any]]]:
    """(id or 0, type, data) of each frame; every one has to be well-formed."""
    found = []
    for event in events.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in event.split("\n"))
        frame = json.loads(fields["data"])
        assert frame["v"] == 1
        assert frame["type"] == fields["event"]
        assert frame["sessionId"] == ID
        assert frame["ts"].endswith("Z")
        found.append((int(fields.get("id", 0)), fields["event"], frame["data"]))
    return found


def info(book: Book, **fields: Any) -> api.Info:
    return api.Info(
        ID, "closed", Config("rehearsal/tour", agent="greeter"), "2026-01-01T00:00:00Z",
        "2026-01-01T00:01:00Z", book.n, usage=Usage(3, 4), **fields,
    )  # fmt: skip


def turn() -> Book:
    book = Book()
    book.message("do it")
    book.add("thinking", b'{"thinking":"hm"}', "application/json", step="one")
    book.text("one", "I look")
    book.call("one", "c1", '{"code": "ls"}')
    book.call("one", "c2", "not json")
    book.step("one", 4, Usage(10, 5, 7, 1), stop="tool_use")
    book.result("c2", "no", failed=True)
    book.result("c1", "a.txt", exit=0)
    book.answer("two", text="done")
    return book


def test_a_turn_is_told_in_order_with_the_numbers_of_its_records() -> None:
    book = turn()
    frames = Frames(ID)
    told = parsed(frames.started(info(book), ["x is not acted on"]) + frames.of(book.records))
    told += parsed(frames.ended(info(book)))
    assert told == [
        (0, "session.started", {"agentName": "greeter", "model": "rehearsal/tour"}),
        (0, "warning", {"kind": "definition", "message": "x is not acted on"}),
        (4, "message", {"role": "user", "text": "do it"}),
        (0, "model.request", {"messageCount": 1}),
        (6, "message", {"role": "assistant", "text": "I look"}),
        (7, "tool.call", {"toolName": "run", "callId": "c1", "args": {"code": "ls"}}),
        (8, "tool.call", {"toolName": "run", "callId": "c2", "args": "not json"}),
        (9, "model.response", {"tokensIn": 18, "tokensOut": 5, "finishReason": "tool_use"}),
        (10, "tool.result", {"callId": "c2", "isError": True, "content": "no"}),
        (11, "tool.result", {"callId": "c1", "isError": False, "content": "a.txt"}),
        (0, "model.request", {"messageCount": 3}),
        (12, "message", {"role": "assistant", "text": "done"}),
        (13, "model.response", {"tokensIn": 100, "tokensOut": 10, "finishReason": "end"}),
        (13, "session.ended", {"reason": "completed", "usage": {"input": 3, "output": 4}}),
    ]


def test_what_no_step_closed_is_never_told() -> None:
    book = Book()
    book.message("hi")
    book.text("broken", "Hello wor")
    book.call("broken", "half")
    book.message("and?")
    book.text("whole", "Hello world")
    book.step("whole", 4)
    told = parsed(Frames(ID).of(book.records))
    assert [(n, data.get("text")) for n, type, data in told if type == "message"] == [
        (4, "hi"),
        (7, "and?"),
        (8, "Hello world"),
    ]
    assert not any(type == "tool.call" for _, type, _ in told)


def test_a_failure_is_one_error_and_a_stop_is_a_cancelled_turn() -> None:
    book = Book()
    book.message("hi")
    book.text("broken", "Hel")
    book.error("no such model", "provider")
    frames = Frames(ID)
    assert parsed(frames.of(book.records))[-1] == (
        6,
        "error",
        {"message": "no such model", "kind": "provider"},
    )
    assert parsed(frames.ended(info(book)))[-1][2]["reason"] == "error"
    book.message("again")
    book.error("stopped by me", "stopped")
    frames = Frames(ID)
    frames.of(book.records)
    assert parsed(frames.ended(info(book)))[-1][2]["reason"] == "cancelled"
    book.message("again")
    frames.of(book.records[-1:])
    assert parsed(frames.ended(info(book)))[-1][2]["reason"] == "completed"


def test_a_message_that_came_while_a_try_broke_off_is_told_at_the_end() -> None:
    book = Book()
    book.text("broken", "Hel")
    book.message("and?")
    frames = Frames(ID)
    assert frames.of(book.records) == b""
    told = parsed(frames.ended(info(book), "cancelled"))
    assert [type for _, type, _ in told] == ["message", "session.ended"]
    assert told[-1][2]["reason"] == "cancelled"


def test_a_picture_is_told_by_what_it_is() -> None:
    book = Book()
    book.add("message", b"\x89PNG", "image/png", via="me")
    assert parsed(Frames(ID).of(book.records))[-1][2]["text"] == "[image/png, 4 B]"


def test_the_request_that_asked_is_named_in_every_frame() -> None:
    frames = Frames(ID, traceparent="00-aa-bb-01")
    assert b'"traceparent":"00-aa-bb-01"' in frames.ended(info(Book()))


def test_live_pieces_have_no_number() -> None:
    frames, now = Frames(ID), "2026-01-01T00:00:00Z"
    told = parsed(frames.live(api.Delta("text", "He"), now))
    assert told[-1] == (0, "message.delta", {"text": "He"})
    assert frames.live(api.Delta("thinking", "hm"), now) == b""
    assert frames.live(api.Delta("output", "x"), now) == b""
    assert parsed(frames.live(api.RetryEvent("429", 1.5, 2), now))[0][2]["kind"] == "retry"
    assert parsed(frames.live(api.Restart(), now))[0][2]["kind"] == "restart"


def test_a_request_is_told_once_and_before_whatever_it_brought() -> None:
    book, now = turn(), "2026-01-01T00:00:00Z"
    frames, told = Frames(ID), []
    for record in book.records:
        if record.kind in ("text", "call"):
            piece = api.Delta("text" if record.kind == "text" else "call", "x")
            told += parsed(frames.live(piece, now))
        told += parsed(frames.of([record]))
    assert parsed(Frames(ID).of(book.records)) == [frame for frame in told if frame[1] != "message.delta"]
    kinds = [type for _, type, _ in told]
    assert kinds.index("model.request") < kinds.index("message.delta")
    began = next(n for n, record in enumerate(book.records) if record.header.step)
    late = Frames(ID, 0, book.records[began].header.step)
    assert [type for _, type, _ in parsed(late.live(api.Delta("text", "x"), now))] == ["message.delta"]


def test_what_streams_in_after_a_failure_is_of_another_request() -> None:
    book, now = Book(), "2026-01-01T00:00:00Z"
    frames = Frames(ID)
    piece = api.Delta("call", "x")
    assert [type for _, type, _ in parsed(frames.live(piece, now))] == ["model.request"]
    assert frames.live(piece, now) + frames.live(api.Restart(), now).partition(b"event")[0] == b""
    book.error("no such model", "provider")
    frames.of(book.records)
    assert [type for _, type, _ in parsed(frames.live(piece, now))] == ["model.request"]


@given(st.data())
def test_a_stream_cut_anywhere_and_taken_up_again_tells_each_numbered_frame_once(data: st.DataObject) -> None:
    book = turn()
    book.message("more")
    book.text("x", "lost")
    book.text("three", "kept")
    book.step("three", book.n - 2)
    whole = parsed(Frames(ID).of(book.records))
    numbered = [frame for frame in whole if frame[0]]
    assert all(a[0] < b[0] for a, b in pairwise(numbered))
    cut = data.draw(st.integers(0, len(numbered)))
    cursor = numbered[cut - 1][0] if cut else 0
    rest = resumed(book.records, cursor)
    assert [frame for frame in rest if frame[0]] == numbered[cut:]
    at = whole.index(numbered[cut - 1]) + 1 if cut else 0
    assert rest == whole[at:]


def resumed(records: list[Record], cursor: int) -> list[tuple[int, str, dict[str, Any]]]:
    steps = sum(record.kind == "step" for record in records[:cursor])
    last = records[cursor - 1] if cursor else None
    return parsed(Frames(ID, steps, last.header.step if last else "").of(records[cursor:]))


@pytest.mark.parametrize("depth", [1, 900, 990, 995, 1000, 100_000])
def test_arguments_of_any_depth_are_told_on_one_line(depth: int) -> None:
    book = Book()
    book.call("one", "c1", "[\n" * depth + "]" * depth)
    book.step("one", 3)
    events = Frames(ID).of(book.records)
    call = next(event for event in events.split(b"\n\n") if b"event: tool.call" in event)
    assert call.count(b"\n") == 2
    assert call.endswith(b"}}")


def test_arguments_that_no_client_could_read_are_told_as_their_text() -> None:
    book = Book()
    for k, arguments in enumerate(('{"n": ' + "9" * 5000 + "}", '{"x": "\\ud800"}', '{"x": 1e999}', " ")):
        book.call("one", f"c{k}", arguments)
    book.step("one", 3)
    told = [data["args"] for _, type, data in parsed(Frames(ID).of(book.records)) if type == "tool.call"]
    assert told == ['{"n": ' + "9" * 5000 + "}", '{"x": "\\ud800"}', '{"x": 1e999}', {}]
