import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.protocol.records import TEXT, CallBody, Usage, readable
from daemon.provider import chat
from daemon.provider.base import Block, Delta, Event, Outcome, ProviderError
from daemon.provider.chat import FIELDS, REASONING
from tests.daemon.provider.recorded import (
    CHAT_NAMES,
    Recording,
    blocks,
    comparable,
    cuts,
    decode_chat,
    outcome,
)

BROKEN = {"openrouter-error-chunk"}
ENDS = {"stop": "normal", "tool_calls": "calls", "length": "length", None: "unknown"}


@pytest.fixture(params=CHAT_NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def recording(name: str, streams_dir: Path) -> Recording:
    return Recording(streams_dir, name, "chat")


# Recordings.


def described(found: list[Event | ProviderError]) -> list[dict[str, Any]]:
    """The blocks in the words of a recording's `expected.blocks`, details left out: they say what the text says."""
    pieces = [event.block for event in found if isinstance(event, Delta)]
    return [_described(block, pieces.count(number)) for number, block in enumerate(blocks(found))]


def _described(block: Block, pieces: int) -> dict[str, Any]:
    if block.kind == "call":
        call = msgspec.json.decode(block.body, type=CallBody)
        said = {"type": "tool_call", "id": block.id, "name": call.name, "arguments_json": call.arguments}
        return {**said, "fragments": pieces}
    if block.kind == "thinking":
        kept = msgspec.json.decode(block.body)
        assert readable(block.type, block.body) == kept["text"]
        return {"type": "thinking", "text": kept["text"], "fields": [kept["field"]]}
    return {"type": "text", "text": block.body.decode()}


def expected(recording: Recording) -> list[dict[str, Any]]:
    left_out = {"arguments", "valid_json", "index"}
    return [
        {field: value for field, value in block.items() if field not in left_out}
        for block in recording.expected["blocks"]
        if block["type"] != "other"
    ]


def test_every_recording_is_here(streams_dir: Path) -> None:
    there = {path.stem.removeprefix("chat-") for path in streams_dir.glob("chat-*.sse")}
    assert there == set(CHAT_NAMES)


def test_a_recording_decodes_the_same_however_it_is_cut(recording: Recording) -> None:
    first, *others = (comparable(decode_chat(pieces)) for pieces in cuts(recording.answer))
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", sorted({*CHAT_NAMES} - BROKEN))
def test_a_recording_decodes_to_what_it_says(name: str, recording: Recording) -> None:
    found = decode_chat([recording.answer])
    assert described(found) == expected(recording)
    last, said = outcome(found), recording.expected
    assert (last.stop, last.end) == (said["stop_reason"] or "unknown", ENDS[said["stop_reason"]])
    usage = said["usage_normalised"]
    assert last.usage.prompt == usage["input_total"]
    assert last.usage.cache_read == usage["input_cache_read"]
    assert last.usage.cache_write == usage["input_cache_write"]
    assert last.usage.output == usage["output_total"]
    assert last.model


def test_deltas_join_to_the_block_they_belong_to(recording: Recording) -> None:
    found = decode_chat([recording.answer])
    for number, block in enumerate(blocks(found)):
        pieces = [event for event in found if isinstance(event, Delta) and event.block == number]
        joined = "".join(piece.text for piece in pieces)
        assert {piece.kind for piece in pieces} == {block.kind}
        if block.kind == "call":
            call = msgspec.json.decode(block.body, type=CallBody)
            assert joined == call.arguments
            assert {piece.name for piece in pieces} == {call.name}
        else:
            assert joined == readable(block.type, block.body)


@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
def test_other_line_ends_decode_to_the_same(recording: Recording, end: bytes) -> None:
    other = recording.answer.replace(b"\n", end)
    for pieces in cuts(other):
        assert comparable(decode_chat(pieces)) == comparable(decode_chat([recording.answer]))


def test_noise_of_the_format_changes_nothing(recording: Recording) -> None:
    noisy = recording.answer.replace(b"data: ", b": ping\nid: 4\nretry: 10\ndata:")
    noisy = b"\xef\xbb\xbf" + noisy.replace(b"\n\n", b'\n\nevent: later\ndata: {"object":"later"}\n\n')
    assert comparable(decode_chat([noisy])) == comparable(decode_chat([recording.answer]))


def test_the_last_event_may_lack_its_blank_line(recording: Recording) -> None:
    for bare in (recording.answer.rstrip(b"\n"), recording.answer.rstrip()):
        assert comparable(decode_chat([bare])) == comparable(decode_chat([recording.answer]))


def test_a_recording_is_complete_from_its_finish_reason_on_and_never_before(
    name: str, recording: Recording
) -> None:
    events = [part for part in re.split(rb"(?<=\n\n)", recording.answer.strip() + b"\n\n") if part]
    finished = False
    for count in range(1, len(events) + 1):
        newest = events[count - 1]
        finished = finished or re.search(rb'"finish_reason": ?"', newest) is not None or b"[DONE]" in newest
        last = decode_chat(events[:count])[-1]
        if finished and not (name in BROKEN and b'"error"' in b"".join(events[:count])):
            assert isinstance(last, Outcome), count
            assert last.stop == (recording.expected["stop_reason"] or "unknown")
        else:
            assert isinstance(last, ProviderError), count
            assert not blocks(decode_chat(events[:count])), "no call of a broken answer is ever carried out"


def test_an_answer_cut_inside_an_event_before_its_finish_is_not_complete(streams_dir: Path) -> None:
    answer = Recording(streams_dir, "openai-parallel-tools", "chat").answer
    for size in range(answer.index(b'"finish_reason":"tool_calls"')):
        last = decode_chat([answer[:size]])[-1]
        assert isinstance(last, ProviderError)
        assert (last.code, last.retryable) == ("cut", True)


def test_an_error_in_a_chunk_ends_the_answer_as_an_error(streams_dir: Path) -> None:
    recording = Recording(streams_dir, "openrouter-error-chunk", "chat")
    *found, error = decode_chat([recording.answer])
    said = "".join(event.text for event in found if isinstance(event, Delta) and event.kind == "thinking")
    assert said == recording.expected["blocks"][0]["text"]
    assert isinstance(error, ProviderError)
    assert (error.status, error.retryable) == (400, False)
    assert "Token limit reached" in error.message


def test_a_signature_of_reasoning_is_kept_byte_for_byte(streams_dir: Path) -> None:
    recording = Recording(streams_dir, "openrouter-reasoning-details-tool", "chat")
    block = blocks(decode_chat([recording.answer]))[0]
    assert (block.kind, block.type) == ("thinking", REASONING)
    kept = msgspec.json.decode(block.body)
    assert kept["details"] == recording.said["followup_request"]["messages"][1]["reasoning_details"]


def test_what_comes_after_the_end_does_not_count(streams_dir: Path) -> None:
    answer = Recording(streams_dir, "vllm-text", "chat").answer
    more = chunk({"content": "more"}) + b'data: {"error": "late"}\n\ndata: half'
    assert comparable(decode_chat([answer, more])) == comparable(decode_chat([answer]))


# By hand: quirks that no recording shows.


def event(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def chunk(delta: Any = None, finish: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"object": "chat.completion.chunk", "model": "m", "choices": [choice], **fields})


def call(index: int | None = None, id: str | None = None, name: str | None = None, args: Any = None) -> bytes:
    function = {"name": name, "arguments": args}
    fragment: dict[str, Any] = {"function": {key: v for key, v in function.items() if v is not None}}
    fragment |= {} if index is None else {"index": index}
    fragment |= {} if id is None else {"id": id}
    return chunk({"tool_calls": [fragment]})


END = chunk({}, "stop")
DONE = b"data: [DONE]\n\n"


def answer(*parts: bytes, finish: str = "stop", **fields: Any) -> list[Event | ProviderError]:
    return decode_chat([b"".join(parts) + chunk({}, finish, **fields) + DONE])


def calls(found: list[Event | ProviderError]) -> list[tuple[str, str, str]]:
    """(id, name, arguments) of each call."""
    made = [(block.id, msgspec.json.decode(block.body, type=CallBody)) for block in blocks(found)]
    return [(id, body.name, body.arguments) for id, body in made]


def failed(found: list[Event | ProviderError]) -> ProviderError:
    assert isinstance(found[-1], ProviderError)
    return found[-1]


@pytest.mark.parametrize(
    ("finish", "meant"),
    [
        ("stop", "normal"),
        ("tool_calls", "calls"),
        ("function_call", "calls"),
        ("length", "length"),
        ("content_filter", "filter"),
        ("STOP", "normal"),
        ("something_new", "unknown"),
    ],
)
def test_a_finish_reason_is_kept_and_given_a_meaning(finish: str, meant: str) -> None:
    last = outcome(answer(chunk({"content": "x"}), finish=finish))
    assert (last.stop, last.end) == (finish, meant)


@pytest.mark.parametrize("finish", ["error", "insufficient_system_resource"])
def test_a_finish_reason_that_says_it_broke_is_an_error(finish: str) -> None:
    error = failed(answer(chunk({"content": "x"}), finish=finish))
    assert (error.code, error.retryable) == ("cut", True)
    assert failed(decode_chat([chunk({"content": "x"}, finish)])).code == "cut"


def test_calls_with_a_plain_stop_are_calls() -> None:
    assert outcome(answer(call(0, "a", "run", "{}"))).end == "calls"
    assert outcome(answer(call(0, "a", "run", "{}"), finish="length")).end == "length"


def test_a_finish_reason_in_every_chunk_does_not_cut_the_text() -> None:
    found = decode_chat([chunk({"content": "a"}, "stop") + chunk({"content": "b"}, "stop") + DONE])
    assert [block.body for block in blocks(found)] == [b"ab"]


def test_without_a_finish_reason_the_end_mark_counts_and_without_both_the_answer_is_cut() -> None:
    found = decode_chat([chunk({"content": "x"}) + DONE])
    assert (outcome(found).stop, outcome(found).end) == ("unknown", "unknown")
    assert failed(decode_chat([chunk({"content": "x"})])).code == "cut"
    assert failed(decode_chat([b""])).code == "cut"


def test_half_an_event_after_the_finish_does_not_matter() -> None:
    found = decode_chat([chunk({"content": "x"}) + END + b'data: {"choi'])
    assert outcome(found).end == "normal"
    assert [block.body for block in blocks(found)] == [b"x"]


def test_a_decoder_knows_when_only_the_end_mark_is_missing() -> None:
    decoder = chat.Decoder()
    decoder.feed(chunk({"content": "x"}))
    assert not decoder.whole
    decoder.feed(END)
    assert decoder.whole


def test_a_refusal_is_said_and_meant() -> None:
    found = answer(chunk({"content": None, "refusal": "I'm "}), chunk({"refusal": "sorry."}))
    assert [block.body for block in blocks(found)] == [b"I'm sorry."]
    assert outcome(found).end == "refusal"


def test_reasoning_under_several_names_counts_once() -> None:
    both = {"reasoning": "a", "reasoning_content": "a"}
    details = {"reasoning_details": [{"type": "reasoning.text", "text": "a", "index": 0}]}
    for delta in (both, {**both, **details}, details):
        found = answer(chunk(delta), chunk({"content": "x"}))
        kept = msgspec.json.decode(blocks(found)[0].body)
        assert kept["text"] == "a"
        assert "details" not in kept, "they say no more than the text"


def test_details_that_say_more_are_put_together_and_kept() -> None:
    text = {"type": "reasoning.text", "index": 0, "format": "f"}
    summary = {"type": "reasoning.summary", "index": 1}
    one = {"type": "reasoning.encrypted", "index": 2, "id": "1", "data": "xx"}
    two = {"type": "reasoning.encrypted", "index": 2, "id": "2", "data": "yy"}
    found = answer(
        chunk({"reasoning_details": [{**text, "text": "a"}, {**summary, "summary": "s"}, "?"]}),
        chunk({"reasoning_details": [{**text, "text": "b", "signature": None}, {**summary, "summary": "t"}]}),
        chunk({"reasoning_details": [{**text, "signature": "sig"}, one, two]}),
    )
    kept = msgspec.json.decode(blocks(found)[0].body)
    whole = {**text, "text": "ab", "signature": "sig"}
    assert kept == {"text": "asbt", "details": [whole, {**summary, "summary": "st"}, one, two]}


def test_encrypted_reasoning_alone_is_a_block_without_words() -> None:
    detail = {"type": "reasoning.encrypted", "data": "xx", "index": 0}
    found = answer(chunk({"reasoning_details": [detail]}), chunk({"content": "x"}))
    thinking, text = blocks(found)
    assert (thinking.kind, readable(thinking.type, thinking.body)) == ("thinking", "")
    assert msgspec.json.decode(thinking.body)["details"] == [detail]
    assert [e for e in found if isinstance(e, Delta)] == [Delta("text", "x", 1)]
    assert text.body == b"x"


def test_content_in_parts_is_text_and_thinking() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    found = answer(
        chunk({"content": [thinking]}),
        chunk({"content": [{"type": "thinking", "thinking": "!"}, {"type": "text", "text": "yes"}]}),
        chunk({"content": [{"type": "reference", "ids": [1]}]}),
    )
    first, second, third = blocks(found)
    assert readable(first.type, first.body) == "hm!"
    assert second == Block("text", b"yes")
    assert (third.kind, third.type) == ("thinking", FIELDS)
    assert msgspec.json.decode(third.body) == {"content": [{"type": "reference", "ids": [1]}]}


def test_fields_of_a_delta_that_nobody_knows_are_kept_raw() -> None:
    found = answer(chunk({"content": "x", "annotations": [{"u": 1}], "novel": None}), chunk({"novel": 2}))
    text, more = blocks(found)
    assert text == Block("text", b"x")
    assert msgspec.json.decode(more.body) == {"annotations": [[{"u": 1}]], "novel": [2]}


# Calls in fragments.


def test_calls_are_told_apart_by_index_also_where_their_fragments_mix() -> None:
    found = answer(
        call(0, "a", "run", ""),
        call(1, "b", "read", ""),
        call(0, args='{"x"'),
        call(1, args="{"),
        call(0, args=":1}"),
        call(1, args="}"),
    )
    assert calls(found) == [("a", "run", '{"x":1}'), ("b", "read", "{}")]


@pytest.mark.parametrize("index", [None, 0])
def test_calls_without_an_index_or_with_one_for_all_are_told_apart_by_their_ids(index: int | None) -> None:
    found = answer(
        call(index, "a", "run", '{"x":'),
        call(index, args="1}"),
        call(index, "b", "run", "{"),
        call(index, "b", args="}"),
        call(index, "c", "read", "{}"),
    )
    assert calls(found) == [("a", "run", '{"x":1}'), ("b", "run", "{}"), ("c", "read", "{}")]


@pytest.mark.parametrize("index", [None, 0])
def test_calls_without_ids_are_told_apart_by_a_name_after_whole_arguments(index: int | None) -> None:
    found = answer(
        call(index, name="run", args='{"x":1}'),
        call(index, name="run", args='{"x":'),
        call(index, name="run", args="2}"),
        call(index, name="read", args="{}"),
    )
    assert calls(found) == [("", "run", '{"x":1}'), ("", "run", '{"x":2}'), ("", "read", "{}")]


def test_a_name_in_every_fragment_costs_no_look_at_all_of_them() -> None:
    code = "{}" * 20_000
    pieces = ['{"code": "', *code, '"}']
    found = answer(*(call(0, name="run", args=piece) for piece in pieces))
    assert calls(found) == [("", "run", f'{{"code": "{code}"}}')]


def test_an_empty_last_fragment_that_repeats_the_name_is_no_call() -> None:
    assert calls(answer(call(0, name="run", args="{}"), call(0, name="run", args=""))) == [("", "run", "{}")]


def test_a_new_id_in_every_fragment_is_no_new_call() -> None:
    found = answer(call(0, "a", "run", "{"), call(0, "b", "", '"x":1'), call(0, "c", args="}"))
    assert calls(found) == [("a", "run", '{"x":1}')]


def test_a_name_in_pieces_is_joined_and_a_repeated_one_is_not() -> None:
    assert calls(answer(call(0, "a", "get_"), call(0, name="file"), call(0, args="{}"))) == [
        ("a", "get_file", "{}")
    ]
    assert calls(answer(call(0, "a", "run", "{"), call(0, "a", "run", "}"))) == [("a", "run", "{}")]


def test_an_id_that_comes_late_is_taken() -> None:
    assert calls(answer(call(0, name="run"), call(0, "a", args="{}"))) == [("a", "run", "{}")]


def test_arguments_as_an_object_are_taken_and_none_are_none() -> None:
    assert calls(answer(call(0, "a", "run", {"x": 1}))) == [("a", "run", '{"x":1}')]
    assert calls(answer(call(0, "a", "run"))) == [("a", "run", "")]


def test_what_a_call_carries_besides_is_kept() -> None:
    fragment = {"index": 0, "id": "a", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    signed = {**fragment, "extra_content": {"google": {"thought_signature": "s"}}, "custom": None}
    (block,) = blocks(answer(chunk({"tool_calls": [signed]})))
    body = msgspec.json.decode(block.body, type=CallBody)
    assert msgspec.json.decode(body.extra) == {"extra_content": {"google": {"thought_signature": "s"}}}
    (plain,) = blocks(answer(chunk({"tool_calls": [fragment]})))
    assert b"extra" not in plain.body


def test_text_after_a_call_joins_the_text_before_it() -> None:
    found = answer(chunk({"content": "a"}), call(0, "x", "run", "{}"), chunk({"content": "b"}))
    assert [(block.kind, block.body[:2]) for block in blocks(found)] == [("text", b"ab"), ("call", b'{"')]


def test_anything_odd_in_a_chunk_is_passed_over() -> None:
    odd = [
        event({}),
        event({"choices": None, "usage": None, "model": 3}),
        event({"choices": ["?", {"delta": None}, {"index": 1, "delta": {"content": "other"}}]}),
        chunk({"content": 7, "refusal": 8, "tool_calls": [None], "reasoning": 9, "reasoning_details": "?"}),
        chunk({"tool_calls": None, "content": None}),
    ]
    assert [block.body for block in blocks(answer(*odd, chunk({"content": "x"})))] == [b"x"]


# Usage.


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (None, Usage()),
        ({"prompt_tokens": 9, "completion_tokens": 2}, Usage(9, 2)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(5, 0, 4)),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5}, Usage(5, 0, 4)),
        ({"prompt_tokens": 9, "cached_tokens": 4}, Usage(5, 0, 4)),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3}},
            Usage(2, 0, 4, 3),
        ),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(0, 0, 3)),
        ({"prompt_tokens": "9", "completion_tokens": -1, "prompt_tokens_details": []}, Usage()),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "total_tokens": 18,
                "completion_tokens_details": {"reasoning_tokens": 7},
            },
            Usage(9, 9),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 7,
                "total_tokens": 16,
                "completion_tokens_details": {"reasoning_tokens": 7},
            },
            Usage(9, 7),
        ),
        ({"prompt_tokens": True, "completion_tokens": 10**30}, Usage()),
    ],
)
def test_usage_is_read_as_each_server_writes_it(usage: Any, counted: Usage) -> None:
    assert outcome(answer(chunk({"content": "x"}), usage=usage)).usage == counted


def test_usage_may_stand_in_groqs_own_field() -> None:
    found = answer(x_groq={"id": "r", "usage": {"prompt_tokens": 9, "completion_tokens": 2}})
    assert outcome(found).usage == Usage(9, 2)


# Errors, characters.


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        ({"code": 502, "message": "down"}, "server", True),
        ({"code": 429, "message": "slow"}, "rate_limit", True),
        (
            {"message": "no more", "type": "insufficient_quota", "code": "insufficient_quota"},
            "billing",
            False,
        ),
        ({"message": "odd"}, "server", True),
        ("odd", "server", True),
    ],
)
def test_an_error_object_is_classed_by_what_it_says(error: Any, code: str, retryable: bool) -> None:
    for data in (
        event({"error": error}),
        event({"error": error, "choices": [{"index": 0, "delta": {"content": ""}}]}),
    ):
        found = failed(decode_chat([chunk({"content": "x"}) + data + DONE]))
        assert (found.code, found.retryable) == (code, retryable)


def test_an_error_may_be_the_event_itself_or_stand_in_a_choice() -> None:
    whole = {"object": "error", "message": "too long", "code": 400}
    assert "too long" in failed(decode_chat([event(whole)])).message
    named = b'event: error\ndata: {"message": "so it is"}\n\n'
    assert "so it is" in failed(decode_chat([named])).message
    choice = {"index": 0, "finish_reason": "error", "error": {"code": 502, "message": "there"}}
    assert "there" in failed(decode_chat([event({"choices": [choice]})])).message


@pytest.mark.parametrize("bad", [b"data: {half\n\n", b"data: 7\n\n", b'data: "x"\n\n'])
def test_a_malformed_event_is_an_error_that_carries_its_bytes(bad: bytes) -> None:
    error = failed(decode_chat([chunk({"content": "x"}) + bad + END + DONE]))
    assert (error.code, error.retryable) == ("malformed", True)
    assert bad[6:].strip().decode() in error.message


def test_half_characters_are_joined_over_pieces_and_replaced_where_they_stay_alone() -> None:
    pieces = ("a\ud83d", "\ude00 \ud83d", "b")
    found = answer(*(chunk({"content": piece, "reasoning": piece}) for piece in pieces))
    thinking, text = blocks(found)
    assert text.body.decode() == readable(thinking.type, thinking.body) == "a😀 \ufffdb"
    assert [e.text for e in found if isinstance(e, Delta) and e.kind == "text"] == [
        "a\ufffd",
        "\ufffd \ufffd",
        "b",
    ]
    odd = answer(call(0, "i\ud83d", "n\ud83d", '{"\ud83d":1}'))
    assert calls(odd) == [("i\ufffd", "n\ufffd", '{"\ufffd":1}')]


def test_characters_that_look_like_line_ends_to_python_stay() -> None:
    text = "a\u2028b\u0085c\u2029"
    (block,) = blocks(answer(chunk({"content": "?"}).replace(b"?", text.encode())))
    assert (block.type, block.body.decode()) == (TEXT, text)
