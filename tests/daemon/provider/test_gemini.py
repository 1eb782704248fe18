import base64
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.protocol.records import MAX_BODY, TEXT, CallBody, Usage, readable
from daemon.provider.base import Block, Delta, Event, Outcome, ProviderError, Unmarked
from daemon.provider.gemini import ENDS, FIELDS, PART, Decoder
from tests.daemon.provider.recorded import Recording, blocks, comparable, cuts, decode, outcome

NAMES = (
    "gemini-code-execution",
    "gemini-empty-text-last",
    "gemini-grounded-search",
    "gemini-parallel-calls-no-id",
    "gemini-prompt-blocked",
    "gemini-text-crlf",
    "gemini-thinking-call-signature",
    "gemini-utf8-cjk",
    "gemini3-signature-on-empty-text",
)
BLOCKED = "gemini-prompt-blocked"

Found = list[Event | ProviderError]


def decoded(*pieces: bytes) -> Found:
    return decode(pieces, Decoder)


def record(folder: Path, name: str) -> Recording:
    return Recording(folder, name.partition("-")[2], name.partition("-")[0])


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def recording(name: str, streams_dir: Path) -> Recording:
    return record(streams_dir, name)


def split(answer: bytes) -> list[bytes]:
    """An answer's events."""
    return [part for part in re.split(rb"(?<=\n\n)|(?<=\r\n\r\n)", answer) if part.strip()]


# Recordings.


def described(found: Found) -> list[dict[str, Any]]:
    """The blocks in the words of a recording's `expected.blocks`: there an empty part's signature is its text's."""
    told: list[dict[str, Any]] = []
    for block in blocks(found):
        if block.type == FIELDS:
            continue
        if block.kind == "call":
            call = msgspec.json.decode(block.body, type=CallBody)
            extra = msgspec.json.decode(call.extra) if len(call.extra) else {}
            said = {"type": "tool_call", "id": block.id or None, "name": call.name}
            said |= {
                "arguments": json.loads(call.arguments or "{}"),
                "signature": extra.get("thoughtSignature"),
            }
            told.append(said)
            continue
        part = {"text": block.body.decode()} if block.type == TEXT else msgspec.json.decode(block.body)
        signature = part.pop("thoughtSignature", None)
        if part == {"text": ""}:
            told[-1]["signature"] = signature
        elif "text" in part:
            kind = "thinking" if part.get("thought") else "text"
            told.append({"type": kind, "text": part["text"], "signature": signature})
        else:
            (kind,) = part
            told.append({"type": "other", "provider_type": kind, "content": part, "signature": signature})
    return told


def expected(recording: Recording) -> list[dict[str, Any]]:
    return [
        {field: value for field, value in block.items() if field != "deltas"}
        for block in recording.expected["blocks"]
        if block.get("text") != ""  # an empty part with nothing beside it says nothing
    ]


def test_every_recording_is_here(streams_dir: Path) -> None:
    assert {path.stem for path in streams_dir.glob("gemini*.sse")} == set(NAMES)


def test_a_recording_decodes_the_same_however_it_is_cut(recording: Recording) -> None:
    first, *others = (comparable(decoded(*pieces)) for pieces in cuts(recording.answer))
    assert all(other == first for other in others)


def test_a_recording_decodes_to_what_it_says(name: str, recording: Recording) -> None:
    found, said = decoded(recording.answer), recording.expected
    assert described(found) == expected(recording)
    assert any(block.type == FIELDS for block in blocks(found)) is said["grounded"]
    last = outcome(found)
    if name == BLOCKED:
        assert (last.stop, last.end) == ("SAFETY", "filter")
        assert "HARM_CATEGORY_HATE_SPEECH" in last.detail
    else:
        calls = any(block["type"] == "tool_call" for block in said["blocks"])
        assert (last.stop, last.end, last.detail) == ("STOP", "calls" if calls else "normal", "")
    assert last.model == (recording.said["model"] or "")
    usage = said["usage_normalised"] or {}
    assert last.usage.prompt == usage.get("input_total", 0)
    assert last.usage.cache_read == usage.get("input_cache_read", 0)
    assert last.usage.cache_write == usage.get("input_cache_write", 0)
    assert last.usage.output == usage.get("output_total", 0)


def test_deltas_join_to_the_block_they_belong_to(recording: Recording) -> None:
    found = decoded(recording.answer)
    for number, block in enumerate(blocks(found)):
        pieces = [event for event in found if isinstance(event, Delta) and event.block == number]
        joined = "".join(piece.text for piece in pieces)
        if block.kind == "call":
            call = msgspec.json.decode(block.body, type=CallBody)
            assert (joined, {piece.name for piece in pieces}) == (call.arguments, {call.name})
        else:
            assert joined == readable(block.type, block.body)


@pytest.mark.parametrize("end", [b"\r\n", b"\r", b"\n"])
def test_other_line_ends_decode_to_the_same(recording: Recording, end: bytes) -> None:
    other = recording.answer.replace(b"\r\n", b"\n").replace(b"\n", end)
    for pieces in cuts(other):
        assert comparable(decoded(*pieces)) == comparable(decoded(recording.answer))


def test_noise_of_the_format_changes_nothing(recording: Recording) -> None:
    noisy = recording.answer.replace(b"\r\n", b"\n").replace(b"data: ", b": ping\nid: 4\nretry: 10\ndata:")
    noisy = b"\xef\xbb\xbf" + noisy.replace(
        b"\n\n", b'\n\nevent: later\ndata: {"later":1}\n\ndata: [DONE]\n\n'
    )
    assert comparable(decoded(noisy)) == comparable(decoded(recording.answer))


def test_the_last_event_may_lack_its_blank_line(recording: Recording) -> None:
    for bare in (recording.answer.rstrip(b"\r\n"), recording.answer.strip()):
        assert comparable(decoded(bare)) == comparable(decoded(recording.answer))


def test_a_recording_is_complete_from_its_finish_reason_on_and_never_before(recording: Recording) -> None:
    events = split(recording.answer)
    finished = False
    for count in range(1, len(events) + 1):
        newest = events[count - 1]
        finished = finished or b'"finishReason"' in newest or b'"blockReason"' in newest
        last = decoded(*events[:count])[-1]
        if finished:
            assert isinstance(last, Outcome), count
        else:
            assert isinstance(last, ProviderError), count
            assert (last.code, last.retryable) == ("cut", True)


def test_an_answer_cut_inside_its_last_event_is_not_complete(streams_dir: Path) -> None:
    answer = record(streams_dir, "gemini-thinking-call-signature").answer
    for size in range(answer.rindex(b"}")):
        last = decoded(answer[:size])[-1]
        assert isinstance(last, ProviderError)
        assert (last.code, last.retryable) == ("cut", True)


def test_a_whole_recording_is_known_to_be_whole_before_the_stream_ends(streams_dir: Path) -> None:
    for name in set(NAMES) - {"gemini-utf8-cjk"}:  # it has no counts, so more may come
        *before, last = split(record(streams_dir, name).answer)
        decoder = Decoder()
        assert isinstance(decoder, Unmarked)
        for event_ in before:
            decoder.feed(event_)
            assert not decoder.whole
        decoder.feed(last + b"\n\n")
        assert decoder.whole, name


def test_signatures_are_kept_byte_for_byte(streams_dir: Path) -> None:
    for name in (
        "gemini-parallel-calls-no-id",
        "gemini-code-execution",
        "gemini3-signature-on-empty-text",
        "gemini-thinking-call-signature",
    ):
        recording = record(streams_dir, name)
        there = re.findall(rb'"thoughtSignature": "([^"]+)"', recording.answer)
        bodies = b"".join(block.body for block in blocks(decoded(recording.answer)))
        assert there
        assert re.findall(rb'"thoughtSignature":"([^"]+)"', bodies) == there


def test_the_vendors_own_reader_finds_the_same(recording: Recording) -> None:
    from google.genai import types

    found = decoded(recording.answer)
    text, calls, signatures = "", [], []
    last = types.GenerateContentResponse()
    for event_ in split(recording.answer):
        last = types.GenerateContentResponse.model_validate_json(event_.partition(b"data:")[2].strip())
        for candidate in last.candidates or ():
            for part in (candidate.content and candidate.content.parts) or ():
                text += (part.text or "") if not part.thought else ""
                signatures += [part.thought_signature] if part.thought_signature else []
                if part.function_call is not None:
                    calls.append((part.function_call.name, part.function_call.args))
    ours = [block for block in described(found) if block["type"] == "tool_call"]
    assert [(call["name"], call["arguments"]) for call in ours] == calls
    assert "".join(block["text"] for block in described(found) if block["type"] == "text") == text
    kept = [block["signature"] for block in described(found) if block["signature"]]
    assert [base64.b64decode(signature) for signature in kept] == signatures
    usage = last.usage_metadata
    if usage is not None:
        assert outcome(found).usage.prompt == (usage.prompt_token_count or 0) + (
            usage.tool_use_prompt_token_count or 0
        )
        assert outcome(found).usage.output == (usage.candidates_token_count or 0) + (
            usage.thoughts_token_count or 0
        )


# By hand: quirks that no recording shows.


def event(value: Any, end: str = "\n\n") -> bytes:
    return f"data: {json.dumps(value)}{end}".encode()


def chunk(*parts: Any, stop: str = "", usage: dict[str, Any] | None = None, **fields: Any) -> bytes:
    candidate = {"content": {"role": "model", "parts": [*parts]}, "index": 0, **fields}
    candidate |= {"finishReason": stop} if stop else {}
    return event({"candidates": [candidate], **({"usageMetadata": usage} if usage is not None else {})})


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"text": text, **fields}


def call(name: str = "run", args: Any = None, id: str = "", **fields: Any) -> dict[str, Any]:
    inner = {"name": name} | ({} if args is None else {"args": args}) | ({"id": id} if id else {})
    return {"functionCall": inner, **fields}


COUNTS = {"promptTokenCount": 5, "candidatesTokenCount": 2}
END = chunk(stop="STOP", usage=COUNTS)


def answer(*parts: Any, stop: str = "STOP") -> Found:
    return decoded(chunk(*parts), chunk(stop=stop, usage=COUNTS))


def only(found: Found) -> Block:
    (one,) = blocks(found)
    return one


def failed(found: Found) -> ProviderError:
    assert isinstance(found[-1], ProviderError)
    return found[-1]


@pytest.mark.parametrize(("stop", "meant"), [*ENDS.items(), ("OTHER", "unknown"), ("LATER", "unknown")])
def test_a_finish_reason_is_kept_and_given_a_meaning(stop: str, meant: str) -> None:
    last = outcome(answer(said("x"), stop=stop))
    assert (last.stop, last.end) == (stop, meant)


def test_a_stop_after_a_call_means_the_call_and_a_cut_after_one_the_cut() -> None:
    assert outcome(answer(call())).end == "calls"
    assert outcome(answer(call(), stop="MAX_TOKENS")).end == "length"
    assert outcome(answer(call(), stop="SAFETY")).end == "filter"


@pytest.mark.parametrize("stop", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"])
def test_a_call_that_the_model_wrote_wrong_is_asked_for_once_more(stop: str) -> None:
    found = decoded(chunk(said("x")), chunk(stop=stop, usage=COUNTS, finishMessage="call: print(run"))
    error = failed(found)
    assert (error.code, error.retryable) == ("model_bad_call", True)
    assert stop in error.message
    assert "print(run" in error.message
    assert not blocks(found)


def test_a_signature_that_the_server_misses_is_the_requests_fault() -> None:
    error = failed(answer(stop="MISSING_THOUGHT_SIGNATURE"))
    assert (error.code, error.retryable) == ("bad_history", False)


def test_why_a_filter_ended_it_is_told() -> None:
    ratings = [{"category": "HARM_CATEGORY_A", "blocked": True}, {"category": "HARM_CATEGORY_B"}]
    found = decoded(chunk(said("x")), chunk(stop="SAFETY", safetyRatings=ratings))
    assert outcome(found).detail == "HARM_CATEGORY_A"
    found = decoded(chunk(said("x")), chunk(stop="RECITATION", finishMessage="from a book"))
    assert outcome(found).detail == "from a book"


@pytest.mark.parametrize(
    ("feedback", "detail"),
    [
        ({"blockReason": "OTHER"}, "the prompt was blocked"),
        ({"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "No."}, "the prompt was blocked: No."),
    ],
)
def test_a_prompt_that_was_blocked_is_filtered(feedback: dict[str, Any], detail: str) -> None:
    found = decoded(event({"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 7}}))
    assert found == [Outcome(Usage(7), feedback["blockReason"], "filter", "", detail)]


def test_feedback_without_a_reason_blocks_nothing() -> None:
    feedback = event({"promptFeedback": {"safetyRatings": [{"category": "A", "probability": "LOW"}]}})
    assert outcome(decoded(feedback, chunk(said("x")), END)).end == "normal"


def test_a_finish_reason_in_the_first_empty_chunk_or_in_each_ends_nothing() -> None:
    """Servers in front of the vendor's send it so."""
    for chunks in (
        [chunk(stop="STOP"), chunk(said("Hel")), chunk(said("lo"))],
        [chunk(said(piece), stop="STOP") for piece in ("Hel", "lo", "")],
        [chunk(stop="STOP", usage=COUNTS), chunk(said("Hel")), chunk(said("lo"), stop="STOP")],
    ):
        decoder = Decoder()
        for one in chunks:
            decoder.feed(one)
            assert not decoder.whole
        found = decoded(*chunks)
        assert only(found) == Block("text", b"Hello")
        assert outcome(found).stop == "STOP"


def test_a_reason_that_is_no_common_one_is_the_end_also_without_counts() -> None:
    decoder = Decoder()
    decoder.feed(chunk(stop="MAX_TOKENS"))
    assert decoder.whole


def test_counts_may_come_after_the_finish_reason() -> None:
    found = decoded(chunk(said("x"), stop="STOP"), event({"usageMetadata": COUNTS}))
    assert outcome(found).usage == Usage(5, 2)


def test_tokens_are_counted_in_four_counters() -> None:
    usage = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 60,
        "toolUsePromptTokenCount": 7,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": 30,
        "totalTokenCount": 157,
    }
    last = outcome(decoded(chunk(said("x"), usage={"promptTokenCount": 1}), chunk(stop="STOP", usage=usage)))
    assert last.usage == Usage(47, 50, 60, 0)


@pytest.mark.parametrize("count", [True, -1, 2**53 + 1, 10**30, 1.5, "7", None, [1], {"a": 1}])
def test_a_count_that_is_none_is_left_out(count: object) -> None:
    found = decoded(chunk(said("x"), usage=COUNTS), chunk(stop="STOP", usage={"promptTokenCount": count}))
    assert outcome(found).usage == Usage(5, 2)


def test_a_signature_keeps_its_part_apart_wherever_it_stands() -> None:
    found = answer(
        said("a"),
        said("b"),
        said("c", thoughtSignature="sig1"),
        said("d"),
        said("", thoughtSignature="sig2"),
        said("e"),
    )
    assert [(block.kind, block.type, block.body) for block in blocks(found)] == [
        ("text", TEXT, b"ab"),
        ("text", PART, b'{"text":"c","thoughtSignature":"sig1"}'),
        ("text", TEXT, b"d"),
        ("thinking", PART, b'{"text":"","thoughtSignature":"sig2"}'),
        ("text", TEXT, b"e"),
    ]
    assert [(e.block, e.text) for e in found if isinstance(e, Delta)] == [
        (0, "a"),
        (0, "b"),
        (1, "c"),
        (2, "d"),
        (4, "e"),
    ]


def test_thoughts_are_joined_and_stand_apart_from_what_is_said() -> None:
    found = answer(said("h", thought=True), said("m", thought=True), said("so"), said("hm", thought=True))
    assert [(block.kind, block.body) for block in blocks(found)] == [
        ("thinking", b'{"text":"hm","thought":true}'),
        ("text", b"so"),
        ("thinking", b'{"text":"hm","thought":true}'),
    ]


def test_empty_parts_and_empty_signatures_are_nothing() -> None:
    assert blocks(answer(said(""), {}, said("", thoughtSignature=""), said("", thought=True))) == []
    assert only(answer(said("a", thoughtSignature=None), said("b", thought=False))).body == b"ab"


def test_calls_keep_ids_arguments_and_what_stands_beside_them() -> None:
    found = answer(
        call("run", {"b": 1.5, "a": [None]}, "call_1", thoughtSignature="s", partMetadata={"x": 1}),
        call("run", {}, "call_2"),
        call("run"),
        call(),
    )
    bodies = [msgspec.json.decode(block.body) for block in blocks(found)]
    assert [block.id for block in blocks(found)] == ["call_1", "call_2", "", ""]
    assert bodies[0]["arguments"] == '{"b":1.5,"a":[null]}'
    assert bodies[0]["extra"] == {"thoughtSignature": "s", "partMetadata": {"x": 1}}
    assert [body["arguments"] for body in bodies[1:]] == ["{}", "", ""]
    assert not any("extra" in body for body in bodies[1:])


def test_arguments_that_come_as_text_are_taken_as_they_are() -> None:
    body = only(answer(call("run", '{"a" : 1', thoughtSignature=""))).body
    assert msgspec.json.decode(body) == {"name": "run", "arguments": '{"a" : 1'}


def test_a_field_inside_a_call_that_nobody_knows_is_kept() -> None:
    part = {"functionCall": {"name": "run", "args": {}, "later": 1}}
    assert msgspec.json.decode(only(answer(part)).body)["extra"] == {"functionCall": {"later": 1}}


@pytest.mark.parametrize(
    "part",
    [
        {"inlineData": {"mimeType": "image/png", "data": "iVBO"}, "thoughtSignature": "s"},
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"toolCall": {"id": "t", "toolType": "GOOGLE_SEARCH"}, "thoughtSignature": "s"},
        {"novel": 1.5, "more": [{"x": None}]},
        {"text": 7},
        {"functionCall": "odd"},
    ],
)
def test_a_part_of_any_other_kind_is_kept_raw_in_its_place(part: dict[str, Any]) -> None:
    first, kept, last = blocks(answer(said("a"), part, said("b")))
    assert (first.body, last.body) == (b"a", b"b")
    assert (kept.kind, kept.type, msgspec.json.decode(kept.body)) == ("thinking", PART, part)


def test_an_answers_other_fields_are_kept_in_a_block_of_their_own() -> None:
    found = decoded(
        chunk(said("x"), groundingMetadata={}, safetyRatings=[{"category": "A"}]),
        chunk(stop="STOP", groundingMetadata={"a": 1}, citationMetadata={"b": 2}, tokenCount=3),
    )
    kept = blocks(found)[-1]
    assert (kept.kind, kept.type) == ("thinking", FIELDS)
    assert msgspec.json.decode(kept.body) == {"groundingMetadata": [{"a": 1}], "citationMetadata": [{"b": 2}]}


def test_only_the_first_candidate_counts() -> None:
    other = {"index": 1, "content": {"parts": [{"text": "no"}]}, "finishReason": "STOP"}
    found = decoded(chunk(said("x")), event({"candidates": [other, None, 7]}), END)
    assert only(found).body == b"x"


def test_half_characters_are_joined_over_pieces_and_replaced_where_they_stay_alone() -> None:
    found = answer(said("a\ud83d"), said("\ude00 \ud83d"), said("b"))
    assert only(found).body.decode() == "a😀 \ufffdb"
    found = answer(call("n\ud83d", {"\ud83d": "\ud83d"}, "i\ud83d", thoughtSignature="\ud83d"))
    assert only(found).id == "i\ufffd"
    assert b"\\ud83d" not in only(found).body


def test_bytes_that_are_not_utf_8_are_replaced() -> None:
    assert only(decoded(chunk(said("caf?")).replace(b"?", b"\xe9"), END)).body.decode() == "caf\ufffd"


def test_characters_that_look_like_line_ends_to_python_stay() -> None:
    text = "a\u2028b\u0085c\u2029"
    assert only(decoded(chunk(said("?")).replace(b"?", text.encode()), END)).body.decode() == text


@pytest.mark.parametrize(
    "bad", [b"data: {half\n\n", b"data: 7\n\n", b'data: ["a"]\n\n', b"data: []\n\n", b"data: [{},{}]\n\n"]
)
def test_a_malformed_event_is_an_error_that_carries_its_bytes(bad: bytes) -> None:
    error = failed(decoded(chunk(said("x")), bad, END))
    assert (error.code, error.retryable) == ("malformed", True)
    assert repr(bad[6:-2]) in error.message


@pytest.mark.parametrize(
    "value",
    [
        {"candidates": 7},
        {"candidates": [{"content": 7}]},
        {"candidates": [{"content": {"parts": 7}}]},
        {"candidates": [{"content": {"parts": [7, None]}, "finishReason": 7, "finishMessage": {}}]},
        {"promptFeedback": {"blockReason": 7}, "usageMetadata": [], "modelVersion": None},
        {},
    ],
)
def test_fields_of_another_type_are_passed_over(value: dict[str, Any]) -> None:
    assert only(decoded(chunk(said("x")), event(value), END)).body == b"x"


NAMES_INSIDE = st.sampled_from(
    [
        "candidates",
        "content",
        "parts",
        "text",
        "thought",
        "thoughtSignature",
        "functionCall",
        "name",
        "args",
        "id",
        "finishReason",
        "finishMessage",
        "promptFeedback",
        "blockReason",
        "safetyRatings",
        "usageMetadata",
        "promptTokenCount",
        "modelVersion",
        "groundingMetadata",
        "index",
        "novel",
    ]
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.floats(0, 1)
    | st.sampled_from(["", "x", "STOP", "\ud83d"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES_INSIDE, inner, max_size=4),
    max_leaves=12,
)
PARTS = st.lists(st.dictionaries(NAMES_INSIDE, ANYTHING, max_size=3), max_size=3)
ODD = st.builds(lambda parts, more: {"candidates": [{**more, "content": {"parts": parts}}]}, PARTS,
                st.dictionaries(NAMES_INSIDE, ANYTHING, max_size=3))  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(ODD | ANYTHING, max_size=4), st.data())
def test_whatever_a_server_sends_is_read_or_refused_the_same_however_it_is_cut(
    values: list[Any], data: st.DataObject
) -> None:
    stream = b"".join(map(event, values)) + END
    whole = comparable(decoded(stream))
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    assert comparable(decoded(*(stream[a:b] for a, b in pairwise([0, *places, len(stream)])))) == whole
    for block in blocks(decoded(stream)):
        block.body.decode()
        readable(block.type, block.body)


# Errors.


def error(code: int, status: str, message: str = "so it is", *details: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status, "details": [*details]}}


WAIT = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.5s"}


@pytest.mark.parametrize(
    ("said_", "code", "retryable"),
    [
        (error(503, "UNAVAILABLE", "The model is overloaded."), "overloaded", True),
        (error(500, "INTERNAL"), "server", True),
        (error(504, "DEADLINE_EXCEEDED"), "timeout", True),
        (error(499, "CANCELLED"), "timeout", True),
        (error(429, "RESOURCE_EXHAUSTED", "quota", WAIT), "rate_limit", True),
        (error(400, "INVALID_ARGUMENT"), "invalid", False),
        (error(403, "PERMISSION_DENIED"), "permission", False),
        (error(400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens"),
         "context_overflow", False),
    ],
)  # fmt: skip
def test_an_error_in_the_stream_is_classed_by_its_code(
    said_: dict[str, Any], code: str, retryable: bool
) -> None:
    for stream in (event(said_), event([said_]), b"event: error\n" + event(said_["error"])):
        *found, last = decoded(chunk(said("x")), stream, END)
        assert isinstance(last, ProviderError)
        assert (last.code, last.retryable) == (code, retryable)
        assert said_["error"]["message"] in last.message
        assert not any(isinstance(one, Outcome) for one in found)
    assert failed(decoded(event(error(429, "x", "y", WAIT)))).retry_after == 3.5


@pytest.mark.parametrize("spaces", [None, 2])
def test_a_body_of_plain_json_is_the_error_that_it_holds(spaces: int | None) -> None:
    """As it comes where the vendor failed before the stream began, list or not."""
    for value in (error(503, "UNAVAILABLE"), [error(503, "UNAVAILABLE")]):
        body = json.dumps(value, indent=spaces).encode()
        for pieces in cuts(body):
            assert failed(decoded(*pieces)).code == "overloaded"


def test_a_body_of_plain_json_without_an_error_is_no_stream() -> None:
    last = failed(decoded(json.dumps([{"candidates": []}]).encode()))
    assert (last.code, last.retryable) == ("not_a_stream", False)
    assert "check the provider's url" in last.message


def test_a_failed_decoder_stays_failed() -> None:
    decoder = Decoder()
    with pytest.raises(ProviderError):
        decoder.feed(event(error(500, "INTERNAL")))
    with pytest.raises(ProviderError):
        decoder.feed(END)
    with pytest.raises(ProviderError):
        decoder.end()


def test_nothing_at_all_is_a_cut() -> None:
    assert failed(decoded()).code == "cut"
    assert failed(decoded(b"data: [DONE]\n\n")).code == "cut"


def test_an_event_over_the_limit_is_too_long_and_not_asked_for_again() -> None:
    decoder = Decoder(limit=100)
    with pytest.raises(ProviderError) as caught:
        decoder.feed(b"data: " + b"x" * 101)
    assert (caught.value.code, caught.value.retryable) == ("too_long", False)


def test_an_answer_without_an_end_is_given_up_at_its_limit() -> None:
    decoder = Decoder(most=10_000)
    piece = chunk(said("x" * 900))
    for _ in range(9):
        decoder.feed(piece)
    with pytest.raises(ProviderError) as caught:
        decoder.feed(piece * 3)
    assert (caught.value.code, caught.value.retryable) == ("too_long", False)


def test_a_block_that_no_record_takes_is_too_long() -> None:
    half = chunk(said("x" * (MAX_BODY // 2 + 1)))
    for end in (END, chunk(said("thought", thought=True)) + END):
        error_ = failed(decoded(half, half, end))
        assert (error_.code, error_.retryable) == ("too_long", False)


@pytest.mark.parametrize("depth", [100, 300, 700, 900, 990, 1100, 100_000])
@pytest.mark.parametrize("place", ["part", "args", "field"])
def test_an_event_however_deep_is_taken_or_malformed(depth: int, place: str) -> None:
    deep = "[" * depth + "]" * depth
    part = {
        "part": '{"new":%s}',
        "args": '{"functionCall":{"name":"x","args":{"a":%s}}}',
        "field": '{"text":"%.0s"}',
    }
    field = f',"newField":{deep}' if place == "field" else ""
    inner = part[place] % deep
    raw = f'data: {{"candidates":[{{"content":{{"parts":[{inner}]}}{field}}}]}}\n\n'.encode()
    found = decoded(raw, END)
    last = found[-1]
    assert blocks(found) if depth == 100 else blocks(found) or isinstance(last, ProviderError)
    if isinstance(last, ProviderError):
        assert last.code == "malformed"
