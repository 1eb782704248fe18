import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.protocol.records import MAX_BODY, TEXT, CallBody, Usage, readable
from daemon.provider.base import Block, Delta, Event, Outcome, ProviderError
from daemon.provider.responses import Decoder
from daemon.provider.responses_pieces import APART, ITEM, Kept
from tests.daemon.provider import recorded
from tests.daemon.provider.recorded import Recording, blocks, comparable, cuts, outcome

NAMES = (
    "copilot-id-rotation",
    "custom-tool",
    "deepseek-reasoning-text-call",
    "lmstudio-tool-call",
    "openrouter-raw-reasoning",
    "parallel-function-calls",
    "quota-error-failed",
    "reasoning-summary-encrypted-call",
    "refusal",
    "text-plain",
    "web-search",
    "xai-tool-call",
)
BROKEN = {"quota-error-failed"}
CALLS = {
    "custom-tool",
    "deepseek-reasoning-text-call",
    "lmstudio-tool-call",
    "parallel-function-calls",
    "reasoning-summary-encrypted-call",
    "xai-tool-call",
}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def recording(name: str, streams_dir: Path) -> Recording:
    return Recording(streams_dir, name, "responses")


def decode(pieces: Sequence[bytes]) -> list[Event | ProviderError]:
    return recorded.decode(pieces, Decoder)


def kept(block: Block) -> dict[str, Any]:
    """The item in a block."""
    assert block.type == ITEM
    item: dict[str, Any] = msgspec.json.decode(msgspec.json.decode(block.body, type=Kept).item)
    return item


# Recordings.


def described(block: Block) -> dict[str, Any]:
    """A block in the words of a recording's `expected.blocks`, without ids of items."""
    if block.kind == "call":
        call = msgspec.json.decode(block.body, type=CallBody)
        said = {"type": "tool_call", "id": block.id, "name": call.name}
        if b"custom_tool_call" in bytes(call.extra):
            return {**said, "arguments_text": call.arguments, "custom": True}
        arguments = msgspec.json.decode(call.arguments)
        return {**said, "arguments": arguments, "arguments_json": call.arguments, "valid_json": True}
    if block.type == TEXT:
        return {"type": "text", "text": block.body.decode()}
    item = kept(block)
    match item["type"]:
        case "message":
            (part,) = item["content"]
            if part["type"] == "refusal":
                return {"type": "refusal", "text": part["refusal"]}
            more = {"phase": item["phase"]} if "phase" in item else {}
            more |= {"annotations": len(part["annotations"])} if part["annotations"] else {}
            return {"type": "text", "text": part["text"], **more}
        case "reasoning":
            encrypted = item.get("encrypted_content") or ""
            return {
                "type": "thinking",
                "summary": [part["text"] for part in item["summary"]],
                "content": [part["text"] for part in item.get("content", [])],
                "encrypted_content_sha256": hashlib.sha256(encrypted.encode()).hexdigest()
                if encrypted
                else None,
                "encrypted_content_length": len(encrypted),
            }
        case kind:
            return {"type": "server_tool_call", "provider_type": kind, "status": item["status"]}


def without_ids(block: dict[str, Any]) -> dict[str, Any]:
    own = {"item_id"} if block["type"] == "tool_call" else {"id"}
    return {name: value for name, value in block.items() if name not in own}


def test_every_recording_is_here(streams_dir: Path) -> None:
    there = {path.stem.removeprefix("responses-") for path in streams_dir.glob("responses-*.sse")}
    assert there == set(NAMES)


def test_a_recording_decodes_the_same_however_it_is_cut(recording: Recording) -> None:
    first, *others = (comparable(decode(pieces)) for pieces in cuts(recording.answer))
    assert all(other == first for other in others)


def test_a_recording_decodes_the_same_when_it_is_cut_in_two(recording: Recording) -> None:
    answer = recording.answer
    whole = comparable(decode([answer]))
    ends = [found.end() for found in re.finditer(rb"\n\n", answer)]
    near = {
        end + by for end in ends for by in (-2, -1, 0, 1, 9)
    }  # where an event ends and where its data begins
    for place in sorted(near | set(range(0, len(answer), 101))):
        assert comparable(decode([answer[:place], answer[place:]])) == whole


@pytest.mark.parametrize("name", sorted({*NAMES} - BROKEN))
def test_a_recording_decodes_to_what_it_says(name: str, recording: Recording) -> None:
    found, expected = decode([recording.answer]), recording.expected
    assert list(map(described, blocks(found))) == list(map(without_ids, expected["blocks"]))
    last = outcome(found)
    assert last.stop == expected["status"]
    assert last.end == ("refusal" if name == "refusal" else "calls" if name in CALLS else "normal")
    usage = expected["usage_normalised"]
    assert last.usage.prompt == usage["input_total"]
    assert last.usage.cache_read == usage["input_cache_read"]
    assert last.usage.cache_write == usage["input_cache_write"]
    assert last.usage.output == usage["output_total"]
    assert last.model.startswith(recording.said["model"] or "")


def test_ids_are_kept_where_they_mean_anything(name: str, recording: Recording) -> None:
    expected = recording.expected["blocks"]
    for block, said in zip(blocks(decode([recording.answer])), expected, strict=True):
        if name == "copilot-id-rotation":
            assert "id" not in kept(block), "it had another in every event"
        elif block.kind == "call":
            call = msgspec.json.decode(block.body, type=CallBody)
            assert msgspec.json.decode(call.extra)["id"] == said["item_id"]
        elif block.type == ITEM:
            assert kept(block)["id"] == said["id"]


def test_what_is_encrypted_is_kept_byte_for_byte(streams_dir: Path) -> None:
    for name in ("reasoning-summary-encrypted-call", "xai-tool-call"):
        answer = Recording(streams_dir, name, "responses").answer
        found = re.search(rb'output_item\.done.*?"encrypted_content":"([^"]{20,})"', answer)
        assert found
        assert found[1] in blocks(decode([answer]))[0].body


def test_deltas_join_to_the_block_they_belong_to(recording: Recording) -> None:
    found = decode([recording.answer])
    for number, block in enumerate(blocks(found)):
        pieces = [event for event in found if isinstance(event, Delta) and event.block == number]
        joined = "".join(piece.text for piece in pieces)
        if block.kind == "call":
            call = msgspec.json.decode(block.body, type=CallBody)
            assert (joined, {piece.name for piece in pieces}) == (call.arguments, {call.name})
        else:
            assert joined == readable(block.type, block.body)


@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
def test_other_line_ends_decode_to_the_same(recording: Recording, end: bytes) -> None:
    other = recording.answer.replace(b"\n", end)
    for pieces in cuts(other):
        assert comparable(decode(pieces)) == comparable(decode([recording.answer]))


def test_noise_of_the_format_changes_nothing(recording: Recording) -> None:
    noisy = recording.answer.replace(b"data: ", b": ping\nid: 4\nretry: 10\ndata:")
    noisy = noisy.replace(
        b"\n\n", b'\n\ndata: {"type":"response.later.event"}\n\ndata: {"type":"keepalive"}\n\n'
    )
    noisy = b"\xef\xbb\xbf" + noisy + b"data: [DONE]\n\n"
    assert comparable(decode([noisy])) == comparable(decode([recording.answer]))


def test_a_recording_cut_before_its_last_event_is_never_complete(name: str, recording: Recording) -> None:
    events = [part for part in re.split(rb"(?<=\n\n)", recording.answer.strip() + b"\n\n") if part]
    closing = re.compile(rb'"type": ?"(?:response\.(?:completed|incomplete|failed)|error)"')
    last_event = next(at for at, event in enumerate(events) if closing.search(event))
    for count in range(last_event + 1):
        last = decode(events[:count])[-1]
        assert isinstance(last, ProviderError)
        assert (last.code, last.retryable) == ("cut", True)


def test_a_recording_cut_inside_its_last_event_is_not_complete(streams_dir: Path) -> None:
    answer = Recording(streams_dir, "text-plain", "responses").answer.rstrip()
    for size in range(answer.rindex(b"event:"), len(answer)):
        last = decode([answer[:size]])[-1]
        assert isinstance(last, ProviderError)
        assert (last.code, last.retryable) == ("cut", True)


def test_exhausted_credit_inside_the_stream_is_not_retried(streams_dir: Path) -> None:
    (error,) = decode([Recording(streams_dir, "quota-error-failed", "responses").answer])
    assert isinstance(error, ProviderError)
    assert (error.code, error.status, error.retryable) == ("billing", 429, False)
    assert "exceeded your current quota" in error.message


def test_what_comes_after_the_end_does_not_count(streams_dir: Path) -> None:
    answer = Recording(streams_dir, "text-plain", "responses").answer
    more = b'data: [DONE]\n\nevent: error\ndata: {"type":"error"}\n\ndata: half'
    assert comparable(decode([answer, more])) == comparable(decode([answer]))


# By hand: quirks that no recording shows, and the recorded ones once more, for where the recordings are absent.


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def created(**fields: Any) -> bytes:
    return event("response.created", response={"model": "m", "status": "in_progress", "output": [], **fields})


def added(place: int | None, **item: Any) -> bytes:
    return event("response.output_item.added", **at(place), item=item)


def done(place: int | None, **item: Any) -> bytes:
    return event("response.output_item.done", **at(place), item=item)


def delta(what: str, place: int | None, piece: Any, **fields: Any) -> bytes:
    return event(f"response.{what}.delta", **at(place), delta=piece, **fields)


def at(place: int | None) -> dict[str, Any]:
    return {} if place is None else {"output_index": place}


def completed(kind: str = "completed", **fields: Any) -> bytes:
    return event(f"response.{kind}", response={"model": "m", "status": kind, **fields})


def answer(*parts: bytes, **fields: Any) -> list[Event | ProviderError]:
    return decode([created() + b"".join(parts) + completed(**fields)])


def said(words: str, **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": words, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": [part], **fields}


def only(found: list[Event | ProviderError]) -> Block:
    (one,) = blocks(found)
    return one


def failed(found: list[Event | ProviderError]) -> ProviderError:
    assert isinstance(found[-1], ProviderError)
    return found[-1]


def deltas(found: Sequence[Event | ProviderError]) -> list[Delta]:
    return [event for event in found if isinstance(event, Delta)]


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2Vj+/=="}
RUN = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "run", "arguments": '{"a": 1}'}


def test_a_plain_message_is_its_text() -> None:
    assert only(answer(added(0, **said("")), delta("output_text", 0, "Hi"), done(0, **said("Hi")))) == Block(
        "text", b"Hi"
    )


@pytest.mark.parametrize(
    "more",
    [
        {"phase": "final_answer"},
        {"novel": 1},
        {"content": [{"type": "output_text", "text": "Hi", "annotations": [{"type": "url_citation"}]}]},
        {"content": [{"type": "output_text", "text": "Hi", "novel": 1}]},
        {"content": [{"type": "novel"}, {"type": "output_text", "text": "Hi"}]},
    ],
)
def test_a_message_that_is_more_than_its_text_is_kept_whole(more: dict[str, Any]) -> None:
    block = only(answer(done(0, **said("Hi", **more))))
    assert (block.kind, readable(block.type, block.body)) == ("text", "Hi")
    assert kept(block) == said("Hi", **more)


def test_a_message_after_encrypted_reasoning_is_kept_with_its_id() -> None:
    thought, words = blocks(answer(done(0, **THOUGHT), done(1, **said("Hi"))))
    assert (kept(thought), kept(words)) == (THOUGHT, said("Hi"))
    readable_thought = {**THOUGHT, "encrypted_content": None}
    assert blocks(answer(done(0, **readable_thought), done(1, **said("Hi"))))[1].type == TEXT


def test_an_empty_message_is_no_block_and_takes_no_number() -> None:
    found = answer(
        added(0, **said("")), done(0, **said("")), added(1, **RUN), delta("function_call_arguments", 1, "{")
    )
    assert [piece.block for piece in deltas(found)] == [0]
    assert only(answer(done(0, **said("", content=[])), done(1, **RUN))).kind == "call"


def test_items_are_given_in_the_order_in_which_they_began() -> None:
    parts = [added(0, type="reasoning", id="rs_1", summary=[]), added(1, **said(""))]
    parts += [delta("output_text", 1, "Hi"), done(1, **said("Hi")), done(0, **THOUGHT)]
    found = decode([created() + b"".join(parts[:4])])
    assert blocks(found) == [], "the first is still to come"
    found = answer(*parts)
    assert [block.kind for block in blocks(found)] == ["thinking", "text"]
    assert [piece.block for piece in deltas(found)] == [1]


def test_blocks_come_as_they_complete() -> None:
    found = decode([created() + done(0, **said("Hi")) + added(1, **RUN)])
    assert blocks(found) == [Block("text", b"Hi")]
    assert failed(found).code == "cut"


def test_only_the_place_ties_an_items_events_together() -> None:
    parts = [added(0, **said("", id="a")), added(1, **{**RUN, "id": "b", "arguments": ""})]
    parts += [
        delta("function_call_arguments", 1, '{"a":', item_id="c"),
        delta("output_text", 0, "H", item_id="d"),
    ]
    parts += [
        delta("function_call_arguments", 1, "1}", item_id="e"),
        delta("output_text", 0, "i", item_id="f"),
    ]
    parts += [done(0, **said("Hi", id="g")), done(1, **{**RUN, "id": "h", "arguments": ""})]
    words, call = blocks(answer(*parts))
    assert words == Block("text", b"Hi")
    assert msgspec.json.decode(call.body) == {"name": "run", "arguments": '{"a":1}'}, "and no id"


def test_without_places_the_ids_tie_them_together() -> None:
    parts = [added(None, **said("", id="a")), added(None, **{**RUN, "id": "b", "arguments": ""})]
    parts += [
        delta("output_text", None, "Hi", item_id="a"),
        delta("function_call_arguments", None, "{}", item_id="b"),
    ]
    words, call = blocks(answer(*parts, done(None, **said("Hi", id="a")), done(None, **{**RUN, "id": "b"})))
    assert (words.body, call.id) == (b"Hi", "c1")


def test_items_at_one_place_after_another_are_all_kept() -> None:
    found = answer(done(0, **THOUGHT), done(0, **said("Hi")), done(0, **RUN))
    assert [block.kind for block in blocks(found)] == ["thinking", "text", "call"]


def test_arguments_may_come_whole_when_they_are_done() -> None:
    whole = event("response.function_call_arguments.done", output_index=0, arguments='{"a": 1}')
    found = answer(added(0, **{**RUN, "arguments": ""}), whole, done(0, **RUN))
    assert deltas(found) == [Delta("call", '{"a": 1}', 0, "run")]
    assert only(found).body == b'{"name":"run","arguments":"{\\"a\\": 1}","extra":{"id":"fc_1"}}'
    unended = only(answer(added(0, **{**RUN, "arguments": ""}), whole))
    assert msgspec.json.decode(unended.body, type=CallBody).arguments == '{"a": 1}'


def test_pieces_stand_in_for_texts_that_an_items_end_lacks() -> None:
    found = answer(added(0, **said("")), delta("output_text", 0, "Hi"), done(0, **said("", content=[])))
    assert only(found) == Block("text", b"Hi")
    found = answer(
        delta("reasoning_summary_text", 0, "one", summary_index=0),
        delta("reasoning_summary_text", 0, "two", summary_index=1),
        done(0, type="reasoning", id="rs_1", summary=[]),
    )
    assert [part["text"] for part in kept(only(found))["summary"]] == ["one", "two"]
    assert "".join(piece.text for piece in deltas(found)) == f"one{APART}two"
    found = answer(delta("reasoning_text", 0, "hm"), done(0, type="reasoning", id="rs_1", summary=[]))
    assert kept(only(found))["content"] == [{"type": "reasoning_text", "text": "hm"}]
    found = answer(added(0, **{**RUN, "arguments": ""}), delta("function_call_arguments", 0, "{}"))
    assert blocks(found) == [], "a call that never was done is none"


def test_a_text_that_was_told_whole_wins_over_its_pieces() -> None:
    whole = event("response.output_text.done", output_index=0, content_index=0, text="Hello")
    found = answer(
        added(0, **said("")), delta("output_text", 0, "Hel"), whole, done(0, **said("", content=[]))
    )
    assert only(found) == Block("text", b"Hello")


def test_an_answer_that_comes_in_one_piece_is_taken() -> None:
    found = answer(output=[THOUGHT, said("Hi"), RUN])
    assert [block.kind for block in blocks(found)] == ["thinking", "text", "call"]
    assert outcome(found).end == "calls"


def test_items_that_nothing_ended_are_as_the_whole_answer_tells_them() -> None:
    parts = [added(0, **said("")), delta("output_text", 0, "H"), added(1, **{**RUN, "arguments": ""})]
    words, call = blocks(answer(*parts, output=[said("Hi"), RUN]))
    assert (words.body, call.id) == (b"Hi", "c1")


def test_half_a_call_is_none() -> None:
    begun = [added(0, **{**RUN, "arguments": ""}), delta("function_call_arguments", 0, '{"a": 1')]
    assert blocks(answer(*begun, kind="incomplete")) == []
    half = {**RUN, "arguments": '{"a": 1', "status": "incomplete"}
    assert blocks(answer(*begun, done(0, **half), kind="incomplete")) == []
    assert blocks(answer(*begun, kind="incomplete", output=[half])) == []


def test_what_was_encrypted_of_half_a_reasoning_is_not_kept() -> None:
    found = answer(added(0, **THOUGHT), delta("reasoning_summary_text", 0, "Hm"), kind="incomplete")
    assert kept(only(found)) == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm"}],
        "status": "incomplete",
    }
    early = {**THOUGHT, "encrypted_content": "early"}
    assert kept(only(answer(added(0, **early), done(0, **THOUGHT))))["encrypted_content"] == "c2Vj+/=="
    late = {"type": "reasoning", "id": "rs_1", "summary": []}
    assert "encrypted_content" not in kept(only(answer(added(0, **early), done(0, **late))))


def test_a_call_keeps_what_is_not_known_of_it() -> None:
    fields = {
        **RUN,
        "namespace": "files",
        "caller": {"type": "program", "caller_id": "p"},
        "status": "completed",
    }
    call = msgspec.json.decode(only(answer(done(0, **fields))).body, type=CallBody)
    assert msgspec.json.decode(call.extra) == {
        "id": "fc_1",
        "namespace": "files",
        "caller": {"type": "program", "caller_id": "p"},
    }
    direct = msgspec.json.decode(only(answer(done(0, **RUN, caller={"type": "direct"}))).body, type=CallBody)
    assert msgspec.json.decode(direct.extra) == {"id": "fc_1"}


def test_arguments_as_an_object_are_taken() -> None:
    call = msgspec.json.decode(only(answer(done(0, **{**RUN, "arguments": {"a": 1}}))).body, type=CallBody)
    assert call.arguments == '{"a":1}'


def test_a_custom_call_has_its_input_as_it_is() -> None:
    begun = {"type": "custom_tool_call", "id": "ct_1", "call_id": "c1", "name": "sql", "input": ""}
    pieces = [delta("custom_tool_call_input", 0, "SELECT "), delta("custom_tool_call_input", 0, "1")]
    found = answer(added(0, **begun), *pieces, done(0, **{**begun, "input": "SELECT 1"}))
    call = msgspec.json.decode(only(found).body, type=CallBody)
    assert (call.name, call.arguments) == ("sql", "SELECT 1")
    assert msgspec.json.decode(call.extra) == {"id": "ct_1", "type": "custom_tool_call"}
    assert [piece.text for piece in deltas(found)] == ["SELECT ", "1"]


def test_items_of_the_providers_own_are_kept_raw() -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "x": 1.5},
    }
    novel = {"type": "novel_item", "id": "n_1", "deep": [{"er": None}]}
    progress = event("response.web_search_call.searching", output_index=0, item_id="ws_1")
    found = answer(added(0, type="web_search_call", id="ws_1"), progress, done(0, **search), done(1, **novel))
    assert [(block.kind, kept(block)) for block in blocks(found)] == [
        ("thinking", search),
        ("thinking", novel),
    ]
    assert outcome(found).end == "normal"


def test_a_refusal_is_a_text_and_an_end() -> None:
    parts = [{"type": "refusal", "refusal": "I can't."}]
    found = answer(added(0, **said("")), delta("refusal", 0, "I can't."), done(0, **said("", content=parts)))
    block = only(found)
    assert (block.kind, readable(block.type, block.body)) == ("text", "I can't.")
    assert (outcome(found).end, deltas(found)[0].kind) == ("refusal", "text")


@pytest.mark.parametrize(
    ("kind", "details", "stop", "end"),
    [
        ("completed", None, "completed", "normal"),
        ("incomplete", {"reason": "max_output_tokens"}, "max_output_tokens", "length"),
        ("incomplete", {"reason": "content_filter"}, "content_filter", "filter"),
        ("incomplete", {"reason": "context_window"}, "context_window", "context"),
        ("incomplete", {"reason": "novel"}, "novel", "unknown"),
        ("incomplete", None, "incomplete", "unknown"),
        ("incomplete", {"reason": 7}, "7", "unknown"),
    ],
)
def test_how_an_answer_ended_is_kept_and_given_a_meaning(
    kind: str, details: Any, stop: str, end: str
) -> None:
    last = outcome(answer(done(0, **said("Hi")), kind=kind, incomplete_details=details))
    assert (last.stop, last.end) == (stop, end)


def test_the_status_counts_more_than_the_events_name() -> None:
    last = outcome(answer(status="incomplete", incomplete_details={"reason": "max_output_tokens"}))
    assert last.end == "length"
    assert failed(answer(status="failed", error={"code": "server_error", "message": "x"})).code == "server"
    assert failed(answer(kind="cancelled")).code == "cut"


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        ({"code": "server_error", "message": "An error occurred."}, "server", True),
        ({"code": "server_is_overloaded", "message": "Overloaded."}, "overloaded", True),
        ({"code": "rate_limit_exceeded", "message": "Try again in 1.5s."}, "rate_limit", True),
        ({"code": "insufficient_quota", "message": "You exceeded."}, "billing", False),
        ({"code": "invalid_prompt", "message": "It was flagged."}, "invalid", False),
        ({"code": "invalid_image_format", "message": "It is no image."}, "invalid", False),
        ({"code": "context_length_exceeded", "message": "Too long."}, "context_overflow", False),
        ({"message": "No tool output found for function call c1."}, "server", True),
        ({"code": None, "message": "?"}, "server", True),
    ],
)
def test_an_error_in_the_stream_is_classed_in_every_form_it_has(
    error: dict[str, Any], code: str, retryable: bool
) -> None:
    forms = [
        event("error", error=error),
        event("error", **error, param=None, sequence_number=3),
        event("response.failed", response={"status": "failed", "error": error}),
        f"event: error\ndata: {json.dumps({'error': error})}\n\n".encode(),
    ]
    for form in forms:
        found = decode([created() + done(0, **said("Hi")) + form])
        assert blocks(found) == [Block("text", b"Hi")], "what is whole is given first"
        last = failed(found)
        assert (last.code, last.retryable) == (code, retryable)
        assert error["message"] in last.message


def test_a_failure_without_a_reason_is_tried_again() -> None:
    last = failed(
        decode([created() + event("response.failed", response={"status": "failed", "error": None})])
    )
    assert last.retryable


def test_another_answer_inside_breaks_it() -> None:
    found = decode([created() + added(0, **RUN) + created() + done(0, **RUN) + completed()])
    assert (failed(found).code, blocks(found)) == ("cut", [])


def test_the_end_mark_of_another_wire_is_none() -> None:
    assert failed(decode([created() + done(0, **said("Hi")) + b"data: [DONE]\n\n"])).code == "cut"


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (None, Usage()),
        ({"input_tokens": 9, "output_tokens": 2}, Usage(9, 2)),
        (
            {
                "input_tokens": 9,
                "output_tokens": 2,
                "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
            },
            Usage(2, 2, 4, 3),
        ),
        ({"input_tokens": 3, "input_tokens_details": {"cached_tokens": 9}}, Usage(0, 0, 3)),
        ({"input_tokens": -1, "output_tokens": "7", "input_tokens_details": 3}, Usage()),
        ([1], Usage()),
    ],
)
def test_usage_is_in_four_counters(usage: Any, counts: Usage) -> None:
    assert outcome(answer(usage=usage)).usage == counts


def test_half_characters_are_replaced_everywhere() -> None:
    found = answer(
        delta("output_text", 0, "a\ud83d"),
        done(0, **said("a\ud83d", phase="\ud83d")),
        done(1, **{**RUN, "name": "r\ud83d", "arguments": '"\\ud83d"', "call_id": "c\ud83d"}),
        model="m\ud83d",
    )
    words, call = blocks(found)
    assert kept(words)["phase"] == "\ufffd"
    assert (deltas(found)[0].text, call.id, outcome(found).model) == ("a\ufffd", "c\ufffd", "m\ufffd")
    pair = answer(
        delta("output_text", 0, "\ud83d"), delta("output_text", 0, "\ude00"), done(0, **said("", content=[]))
    )
    assert only(pair).body.decode() == "😀", "halves in two events make one"


@pytest.mark.parametrize(
    "bad",
    [
        b"data: {half\n\n",
        b"data: [1]\n\n",
        b"data: 7\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
        added(0) + event("response.output_item.added", output_index=1, item=7),
        event("response.output_item.done", output_index=1, item=None),
        delta("output_text", 0, None),
        delta("output_text", 0, {"text": "x"}),
    ],
    ids=range(8),
)
def test_an_event_that_does_not_read_is_an_error_with_its_bytes(bad: bytes) -> None:
    last = failed(decode([created() + bad]))
    assert (last.code, last.retryable) == ("malformed", True)


def test_fields_of_other_forms_break_nothing() -> None:
    strange = [
        event("response.created", response=None),
        event("response.in_progress", response=[]),
        added(0, type=7, content={"a": 1}),
        delta("output_text", 0, "x", content_index="0", item_id=3),
        event("response.output_text.done", output_index=0, text=None),
        event("response.output_text.done", output_index="0", text="x"),
        done(
            0,
            type="message",
            content=[None, 7, {"type": None, "text": "x"}, {"type": "output_text", "text": 8}],
        ),
        done(1, type="reasoning", summary=None, content=[7]),
        done(2, type="function_call", call_id=None, name=None, arguments=None),
        b'data: {"type": 7}\n\n',
        b'data: {"type": ["a"]}\n\n',
        completed(output=[None, {"type": None}], usage=True, incomplete_details=7, model=None),
    ]
    found = decode([b"".join(strange)])
    assert isinstance(found[-1], Outcome)
    assert [comparable(decode(pieces)) for pieces in cuts(b"".join(strange))] == [comparable(found)] * 7


def test_a_message_whose_content_is_a_plain_string_is_taken() -> None:
    assert only(answer(done(0, type="message", role="assistant", content="Hi"))) == Block("text", b"Hi")


def test_pieces_of_another_kind_than_the_items_are_none_of_it() -> None:
    found = answer(added(0, **said("")), delta("reasoning_text", 0, "hm"), delta("output_text", 0, "Hi"))
    assert (only(found), [piece.text for piece in deltas(found)]) == (Block("text", b"Hi"), ["Hi"])


def test_pings_are_no_events() -> None:
    decoder = Decoder()
    decoder.feed(b': x\n\ndata: {"type":"keepalive"}\n\ndata: {"type":"ping"}\n\n')
    assert decoder.events == 0
    decoder.feed(created())
    assert decoder.events == 1


def test_an_answer_without_end_is_refused() -> None:
    with pytest.raises(ProviderError) as caught:
        Decoder(limit=100).feed(b"data: " + b"x" * 200)
    assert (caught.value.code, caught.value.retryable) == ("too_long", False)
    with pytest.raises(ProviderError):
        Decoder(most=100).feed(created() * 3)
    found = answer(done(0, **{**RUN, "arguments": "x" * (MAX_BODY + 1)}))
    assert failed(found).code == "too_long"
