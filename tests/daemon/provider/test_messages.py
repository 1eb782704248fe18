import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.protocol.records import MAX_BODY, TEXT, CallBody, Usage
from daemon.provider.base import Block, Delta, Event, Outcome, ProviderError
from daemon.provider.messages import BLOCK, Decoder
from tests.daemon.provider.recorded import (
    NAMES,
    Recording,
    blocks,
    comparable,
    cuts,
    decode,
    described,
    outcome,
)

BROKEN = {"overloaded-midstream", "spliced-message-start"}
STOPS = {"end_turn": "normal", "tool_use": "calls", "max_tokens": "length", "refusal": "refusal"}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def recording(name: str, streams_dir: Path) -> Recording:
    return Recording(streams_dir, name)


# Recordings.


def test_every_recording_is_here(streams_dir: Path) -> None:
    there = {path.stem.removeprefix("anthropic-") for path in streams_dir.glob("anthropic-*.sse")}
    assert there == set(NAMES)


def test_a_recording_decodes_the_same_however_it_is_cut(recording: Recording) -> None:
    first, *others = (comparable(decode(pieces)) for pieces in cuts(recording.answer))
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", sorted({*NAMES} - BROKEN))
def test_a_recording_decodes_to_what_it_says(name: str, recording: Recording) -> None:
    found, expected = decode([recording.answer]), recording.expected
    assert described(found) == expected["blocks"]
    last = outcome(found)
    assert (last.stop, last.end) == (expected["stop_reason"], STOPS[expected["stop_reason"]])
    usage = expected["usage_normalised"]
    assert last.usage.prompt == usage["input_total"]
    assert last.usage.cache_read == usage["input_cache_read"]
    assert last.usage.cache_write == usage["input_cache_write"]
    assert last.usage.output == usage["output_total"]
    assert last.model.startswith(recording.said["model"].removesuffix("-0"))
    assert last.detail == (expected.get("stop_details") or {}).get("explanation", "")


def test_deltas_join_to_the_block_they_belong_to(recording: Recording) -> None:
    found = decode([recording.answer])
    for number, block in enumerate(blocks(found)):
        pieces = [event for event in found if isinstance(event, Delta) and event.block == number]
        joined = "".join(piece.text for piece in pieces)
        if block.kind == "call":
            call = msgspec.json.decode(block.body, type=CallBody)
            assert joined == call.arguments
            assert {piece.name for piece in pieces} == {call.name}
        elif block.type == TEXT:
            assert joined == block.body.decode()


@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
def test_other_line_ends_decode_to_the_same(recording: Recording, end: bytes) -> None:
    other = recording.answer.replace(b"\n", end)
    for pieces in cuts(other):
        assert comparable(decode(pieces)) == comparable(decode([recording.answer]))


def test_noise_of_the_format_changes_nothing(recording: Recording) -> None:
    noisy = recording.answer.replace(b"data: ", b": ping\nid: 4\nretry: 10\ndata:")
    noisy = noisy.replace(b"\n\n", b'\n\nevent: later.event\ndata: {"type":"later.event"}\n\n')
    # a JSON string may not be cut by a second data line, but between two members it may
    noisy = b"\xef\xbb\xbf" + noisy.replace(b'"index":', b'\ndata:"index":')
    assert comparable(decode([noisy])) == comparable(decode([recording.answer]))


def test_the_last_event_may_lack_its_blank_line(recording: Recording) -> None:
    for bare in (recording.answer.rstrip(b"\n"), recording.answer.rstrip()):
        assert comparable(decode([bare])) == comparable(decode([recording.answer]))


def test_a_recording_cut_before_its_last_event_is_never_complete(name: str, recording: Recording) -> None:
    parts = re.split(rb"(?<=\n\n)", recording.answer.strip() + b"\n\n")
    events = [part for part in parts if part]
    for count in range(len(events) + (name in BROKEN)):  # a whole one of these is not complete either
        last = decode(events[:count])[-1]
        assert isinstance(last, ProviderError)
        assert last.retryable


def test_a_recording_cut_inside_its_last_event_is_not_complete(streams_dir: Path) -> None:
    answer = Recording(streams_dir, "text-plain").answer.rstrip()
    for size in range(answer.rindex(b"event:"), answer.rindex(b"}") + 1):
        last = decode([answer[:size]])[-1]
        assert isinstance(last, ProviderError)
        assert (last.code, last.retryable) == ("cut", True)


def test_an_overload_in_the_stream_gives_the_whole_blocks_and_then_fails(streams_dir: Path) -> None:
    recording = Recording(streams_dir, "overloaded-midstream")
    *found, error = decode([recording.answer])
    assert described(found) == recording.expected["blocks"][:2]
    assert isinstance(error, ProviderError)
    assert (error.code, error.status, error.retryable) == ("overloaded", 529, True)
    assert "Overloaded" in error.message


def test_a_second_start_in_one_answer_breaks_it(streams_dir: Path) -> None:
    answer = Recording(streams_dir, "spliced-message-start").answer
    whole = Recording(streams_dir, "tool-no-args").answer
    for spliced in (answer, whole.partition(b"event: message_delta")[0] + whole):
        error = decode([spliced])[-1]
        assert isinstance(error, ProviderError)
        assert (error.code, error.retryable) == ("cut", True)
        assert "another answer began inside it" in error.message
    assert not [block for block in blocks(decode([answer])) if block.kind == "call"], (
        "a merged call never comes"
    )


def test_what_comes_after_the_end_does_not_count(streams_dir: Path) -> None:
    answer = Recording(streams_dir, "text-plain").answer
    more = b'data: [DONE]\n\nevent: error\ndata: {"type":"error"}\n\ndata: half'
    assert comparable(decode([answer, more])) == comparable(decode([answer]))


def test_signatures_are_kept_byte_for_byte(streams_dir: Path) -> None:
    for name in ("thinking-then-tool", "omitted-thinking", "code-execution"):
        recording = Recording(streams_dir, name)
        found = re.search(rb'"signature":"([^"]{20,})"', recording.answer)
        assert found
        block = blocks(decode([recording.answer]))[0]
        assert (block.kind, block.type) == ("thinking", BLOCK)
        assert found[1] in block.body


# By hand: quirks that no recording shows.


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def start(**usage: int) -> bytes:
    return event("message_start", message={"model": "m", "usage": {"input_tokens": 3, **usage}})


def block(content: dict[str, Any], *deltas: dict[str, Any], index: int = 0, stop: bool = True) -> bytes:
    found = event("content_block_start", index=index, content_block=content)
    found += b"".join(event("content_block_delta", index=index, delta=delta) for delta in deltas)
    return found + (event("content_block_stop", index=index) if stop else b"")


def end(stop: str | None = "end_turn", **usage: Any) -> bytes:
    return event("message_delta", delta={"stop_reason": stop}, usage=usage) + event("message_stop")


def answer(*parts: bytes, stop: str = "end_turn") -> list[Event | ProviderError]:
    return decode([start() + b"".join(parts) + end(stop)])


def only(found: list[Event | ProviderError]) -> Block:
    (one,) = blocks(found)
    return one


def failed(found: list[Event | ProviderError]) -> ProviderError:
    assert isinstance(found[-1], ProviderError)
    return found[-1]


@pytest.mark.parametrize(
    ("stop", "meant"),
    [
        ("end_turn", "normal"),
        ("stop_sequence", "normal"),
        ("tool_use", "calls"),
        ("max_tokens", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "paused"),
        ("model_context_window_exceeded", "context"),
        ("something_new", "unknown"),
    ],
)
def test_a_stop_reason_is_kept_and_given_a_meaning(stop: str, meant: str) -> None:
    last = outcome(answer(block({"type": "text", "text": "x"}), stop=stop))
    assert (last.stop, last.end) == (stop, meant)


def test_usage_counts_are_totals_and_the_last_ones_win_where_given() -> None:
    found = decode(
        [start(cache_read_input_tokens=7, output_tokens=1) + end(output_tokens=9, input_tokens=None)]
    )
    assert outcome(found).usage == Usage(3, 9, 7, 0)


def test_text_in_the_blocks_start_counts_too() -> None:
    found = answer(block({"type": "text", "text": "Hel"}, {"type": "text_delta", "text": "lo"}))
    assert only(found) == Block("text", b"Hello")


def test_an_empty_text_block_is_none() -> None:
    found = answer(block({"type": "text", "text": ""}), block({"type": "text", "text": "x"}, index=1))
    assert only(found) == Block("text", b"x")


def test_deltas_number_the_blocks_that_are_given() -> None:
    piece = {"type": "text_delta", "text": "x"}
    found = answer(block({"type": "text", "text": ""}), block({"type": "text", "text": ""}, piece, index=1))
    assert [e for e in found if isinstance(e, Delta)] == [Delta("text", "x", 0)]


def test_arguments_stay_the_providers_own_string() -> None:
    pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", '{"a" : ', "1")]
    found = only(answer(block({"type": "tool_use", "id": "t1", "name": "run", "input": {}}, *pieces)))
    assert (found.kind, found.id) == ("call", "t1")
    assert msgspec.json.decode(found.body) == {"name": "run", "arguments": '{"a" : 1'}


def test_arguments_that_come_whole_with_the_blocks_start_are_taken() -> None:
    found = only(answer(block({"type": "tool_use", "id": "t1", "name": "run", "input": {"a": 1}})))
    assert msgspec.json.decode(found.body, type=CallBody).arguments == '{"a":1}'


def test_what_a_call_carries_besides_is_kept_unless_it_says_nothing() -> None:
    direct = {"type": "tool_use", "id": "t", "name": "run", "input": {}, "caller": {"type": "direct"}}
    assert b"extra" not in only(answer(block(direct))).body
    other = {**direct, "caller": {"type": "code_execution_20260120", "tool_id": "s1"}, "none": None}
    body = msgspec.json.decode(only(answer(block(other))).body, type=CallBody)
    assert msgspec.json.decode(body.extra) == {"caller": other["caller"]}


def test_a_call_without_id_or_name_is_still_given() -> None:
    found = only(answer(block({"type": "tool_use"})))
    assert (found.id, msgspec.json.decode(found.body)) == ("", {"name": "", "arguments": ""})


def test_redacted_thinking_is_kept_raw() -> None:
    found = only(answer(block({"type": "redacted_thinking", "data": "Ev4="})))
    assert (found.kind, found.type) == ("thinking", BLOCK)
    assert msgspec.json.decode(found.body) == {"type": "redacted_thinking", "data": "Ev4="}


def test_an_unknown_block_with_unknown_pieces_is_kept_raw() -> None:
    pieces = [
        {"type": "novel_delta", "words": "a", "list": [1], "flag": False},
        {"type": "novel_delta", "words": "b", "list": [2], "flag": True, "more": {"x": 1}, "none": None},
    ]
    found = only(answer(block({"type": "novel", "list": [], "flag": None, "n": 1.5}, *pieces)))
    assert (found.kind, found.type) == ("thinking", BLOCK)
    expected = {"type": "novel", "list": [1, 2], "flag": True, "n": 1.5, "words": "ab", "more": {"x": 1}}
    assert msgspec.json.decode(found.body) == expected


def test_text_with_anything_beside_it_is_kept_raw() -> None:
    found = only(answer(block({"type": "text", "text": "x", "novel": {"y": 1}, "citations": []})))
    assert (found.kind, found.type) == ("text", BLOCK)
    assert msgspec.json.decode(found.body) == {
        "type": "text",
        "text": "x",
        "novel": {"y": 1},
        "citations": [],
    }


def test_half_characters_are_joined_over_pieces_and_replaced_where_they_stay_alone() -> None:
    pieces = [{"type": "text_delta", "text": piece} for piece in ("a\ud83d", "\ude00 \ud83d", "b")]
    found = answer(block({"type": "text", "text": ""}, *pieces))
    assert only(found).body.decode() == "a😀 \ufffdb"
    shown = [e.text for e in found if isinstance(e, Delta)]
    assert shown == ["a\ufffd", "\ufffd \ufffd", "b"]
    call = {"type": "tool_use", "id": "i\ud83d", "name": "n\ud83d", "input": {"\ud83d": "\ud83d"}}
    assert only(answer(block(call))).body.decode() == json.dumps(
        {"name": "n\ufffd", "arguments": '{"\ufffd":"\ufffd"}'}, ensure_ascii=False, separators=(",", ":")
    )


def test_bytes_that_are_not_utf_8_are_replaced() -> None:
    broken = block({"type": "text", "text": "caf?"}).replace(b"caf?", b"caf\xe9")
    assert only(answer(broken)).body.decode() == "caf\ufffd"


def test_characters_that_look_like_line_ends_to_python_stay() -> None:
    text = "a\u2028b\u0085c\u2029"
    raw = block({"type": "text", "text": "?"}).replace(b"?", text.encode())
    assert only(answer(raw)).body.decode() == text


def test_pings_are_no_events_and_a_later_versions_events_are_passed_over() -> None:
    decoder = Decoder()
    decoder.feed(start())
    seen = decoder.events
    decoder.feed(event("ping") + b": comment\n\n")
    assert decoder.events == seen
    decoder.feed(event("message_later") + event("rate_limits") + event("content_block_later", index=0))
    decoder.feed(block({"type": "text", "text": "x"}) + end())


def test_another_wires_end_mark_is_passed_over() -> None:
    assert only(answer(b"data: [DONE]\n\n", block({"type": "text", "text": "x"}))).body == b"x"


def test_a_block_whose_stop_was_left_out_is_given_at_the_end() -> None:
    found = answer(block({"type": "text", "text": "x"}, stop=False), event("content_block_stop", index=9))
    assert only(found) == Block("text", b"x")


def test_an_answer_without_a_stop_reason_ends_in_an_unknown_way() -> None:
    found = decode([start() + event("message_delta", delta=None) + end(None)])
    assert found == [Outcome(Usage(3), "", "unknown", "m")]


@pytest.mark.parametrize(
    "bad",
    [
        b"data: {half\n\n",
        b"data: 7\n\n",
        event("content_block_start", index=0),
        event("content_block_start", index="a", content_block={"type": "text"}),
        block({"type": "text", "text": ""}, stop=False)
        + event("content_block_start", index=0, content_block={}),
        event("content_block_delta", index=3, delta={"type": "text_delta", "text": "x"}),
        event("content_block_delta", index=[], delta={"type": "text_delta", "text": "x"}),
        block({"type": "text", "text": ""}, {"type": "text_delta"}),
        block({"type": "text", "text": ""}).replace(b"content_block_stop", b"content_block_delta"),
    ],
)
def test_a_malformed_event_is_an_error_that_carries_its_bytes(bad: bytes) -> None:
    error = failed(answer(bad))
    assert (error.code, error.retryable) == ("malformed", True)
    assert repr(bad.strip().rpartition(b"data: ")[2][:20])[2:-1] in error.message


def test_an_answer_that_does_not_begin_is_malformed() -> None:
    assert failed(decode([end()])).code == "malformed"
    assert failed(decode([b""])).code == "cut"


@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        ("overloaded_error", "overloaded", True),
        ("api_error", "server", True),
        ("rate_limit_error", "rate_limit", True),
        ("timeout_error", "timeout", True),
        ("invalid_request_error", "invalid", False),
        ("authentication_error", "auth", False),
        ("permission_error", "permission", False),
        ("billing_error", "billing", False),
        ("request_too_large", "too_large", False),
        ("an_error_of_tomorrow", "server", True),
    ],
)
def test_an_error_event_is_classed_by_its_type(kind: str, code: str, retryable: bool) -> None:
    error = failed(answer(event("error", error={"type": kind, "message": "so it is"}, request_id="req_1")))
    assert (error.code, error.retryable, error.request_id) == (code, retryable, "req_1")
    assert "so it is" in error.message


def test_an_error_object_is_one_whatever_its_event_is_called() -> None:
    assert failed(decode([b'data: {"error": {"type": "overloaded_error"}}\n\n'])).code == "overloaded"
    assert failed(decode([b'data: {"type": "error", "error": "no more"}\n\n'])).message == "no more"


def test_a_failed_decoder_stays_failed() -> None:
    decoder = Decoder()
    with pytest.raises(ProviderError):
        decoder.feed(event("error", error={}))
    with pytest.raises(ProviderError):
        decoder.feed(end())
    with pytest.raises(ProviderError):
        decoder.end()


def test_an_event_over_the_limit_is_too_long_and_not_asked_for_again() -> None:
    decoder = Decoder(limit=100)
    with pytest.raises(ProviderError) as caught:
        decoder.feed(b"x" * 101)
    assert (caught.value.code, caught.value.retryable) == ("too_long", False)


@pytest.mark.parametrize(
    "piece",
    [
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": "x" * 900}),
        b": nothing\n" * 100,
    ],
    ids=["text", "comments"],
)
def test_an_answer_without_an_end_is_given_up_at_its_limit(piece: bytes) -> None:
    decoder = Decoder(most=10_000)
    decoder.feed(start() + block({"type": "text", "text": ""}, stop=False))
    for _ in range(8):
        decoder.feed(piece)
    with pytest.raises(ProviderError) as caught:
        decoder.feed(piece * 3)
    assert (caught.value.code, caught.value.retryable) == ("too_long", False)


def test_a_block_that_no_record_takes_is_too_long() -> None:
    half = {"type": "text_delta", "text": "x" * (MAX_BODY // 2 + 1)}
    error = failed(answer(block({"type": "text", "text": ""}, half, half)))
    assert (error.code, error.retryable) == ("too_long", False)


@pytest.mark.parametrize("depth", [100, 300, 700, 900, 990, 1100, 100_000])
def test_a_block_however_deep_is_taken_or_malformed(depth: int) -> None:
    deep = b'{"type":"new","x":' + b"[" * depth + b"]" * depth + b"}"
    raw = b'data: {"type":"content_block_start","index":0,"content_block":' + deep + b"}\n\n"
    found = answer(raw + event("content_block_stop", index=0))
    error = found[-1]
    assert blocks(found) if depth == 100 else blocks(found) or isinstance(error, ProviderError)
    if isinstance(error, ProviderError):
        assert error.code == "malformed"


@pytest.mark.parametrize("count", [True, -1, 2**53 + 1, 10**30, 1.5, "7", None, [1], {"a": 1}])
def test_a_count_that_is_none_is_left_out(count: object) -> None:
    closing = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": count})
    counted = outcome(decode([start() + closing + event("message_stop")])).usage.output
    assert type(counted) is int
    assert counted <= 1


@pytest.mark.parametrize("old", [5, "word", None, {"a": 1}, [{"b": 2}]])
def test_citations_of_any_shape_are_taken(old: object) -> None:
    found = answer(
        block(
            {"type": "text", "text": "x", "citations": old}, {"type": "citations_delta", "citation": {"c": 3}}
        )
    )
    kept = msgspec.json.decode(blocks(found)[0].body)["citations"]
    assert kept[-1] == {"c": 3}
