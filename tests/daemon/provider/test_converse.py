import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.protocol.records import MAX_BODY, CallBody, Usage, readable
from daemon.provider.base import Block, Delta, Event, Outcome, ProviderError, Unmarked
from daemon.provider.converse import BLOCK, REASONING, Decoder
from tests.aws_frames import event, exception, framed, header
from tests.daemon.provider import aws_oracle
from tests.daemon.provider.recorded import blocks, comparable, cuts, outcome
from tests.daemon.provider.recorded import decode as decoded

NAMES = (
    "converse-empty-text-delta",
    "converse-reasoning-signature",
    "converse-text-tool",
    "nova-tool-no-args",
)
USAGE = {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}


class Recording:
    """One recording: its answer's bytes and what is said about it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.answer = (folder / f"bedrock-{name}.eventstream").read_bytes()
        self.said: dict[str, Any] = msgspec.json.decode((folder / f"bedrock-{name}.json").read_bytes())
        self.expected: dict[str, Any] = self.said["expected"]


@pytest.fixture(params=NAMES)
def recording(request: pytest.FixtureRequest, streams_dir: Path) -> Recording:
    return Recording(streams_dir, request.param)


# Answers of our own hand, so that the decoder is tested where the recordings are absent.


def start() -> bytes:
    return event("messageStart", role="assistant", p="abcd")


def piece(delta: dict[str, Any], index: int = 0) -> bytes:
    return event("contentBlockDelta", contentBlockIndex=index, delta=delta, p="ab")


def text(*pieces: str, index: int = 0) -> bytes:
    return b"".join(piece({"text": one}, index) for one in pieces) + over(index)


def thought(*deltas: dict[str, Any], index: int = 0) -> bytes:
    return b"".join(piece({"reasoningContent": delta}, index) for delta in deltas) + over(index)


def call(*pieces: str, index: int = 0, name: str = "run", id: str = "tooluse_1", **more: Any) -> bytes:
    use = {"toolUseId": id, "name": name, **more}
    begun = event("contentBlockStart", contentBlockIndex=index, start={"toolUse": use})
    return begun + b"".join(piece({"toolUse": {"input": one}}, index) for one in pieces) + over(index)


def over(index: int = 0) -> bytes:
    return event("contentBlockStop", contentBlockIndex=index)


def stop(reason: str = "end_turn") -> bytes:
    return event("messageStop", stopReason=reason)


def counts(**usage: Any) -> bytes:
    return event("metadata", usage=usage or USAGE, metrics={"latencyMs": 5})


def answer(*parts: bytes, reason: str = "end_turn") -> list[Event | ProviderError]:
    return decode([start(), *parts, stop(reason), counts()])


def decode(pieces: list[bytes]) -> list[Event | ProviderError]:
    return decoded(pieces, Decoder)


def only(found: list[Event | ProviderError]) -> Block:
    (one,) = blocks(found)
    return one


def failed(found: list[Event | ProviderError]) -> ProviderError:
    assert isinstance(found[-1], ProviderError)
    return found[-1]


WHOLE = b"".join(
    [
        start(),
        thought({"text": "Hm, "}, {"text": "ü😀"}, {"signature": "c2ln"}, {"signature": "+/=="}),
        text("", "I run", " it.", index=1),
        call('{"worker": "w", ', '"code": "echo"}', index=2),
        call(index=3, id="tooluse_2"),
        stop("tool_use"),
        counts(**USAGE, cacheReadInputTokens=5, cacheWriteInputTokens=6),
    ]
)
MADE: list[object] = [
    Delta("thinking", "Hm, ", 0),
    Delta("thinking", "ü😀", 0),
    Block("thinking", '{"text":"Hm, ü😀","signature":"c2ln+/=="}'.encode(), REASONING),
    Delta("text", "I run", 1),
    Delta("text", " it.", 1),
    Block("text", b"I run it."),
    Delta("call", '{"worker": "w", ', 2, "run"),
    Delta("call", '"code": "echo"}', 2, "run"),
    Block(
        "call",
        b'{"name":"run","arguments":"{\\"worker\\": \\"w\\", \\"code\\": \\"echo\\"}"}',
        "application/json",
        "tooluse_1",
    ),
    Block("call", b'{"name":"run","arguments":""}', "application/json", "tooluse_2"),
    Outcome(Usage(3, 4, 5, 6), "tool_use", "calls"),
]


def test_a_whole_answer_decodes_to_its_blocks_however_it_is_cut() -> None:
    for pieces in cuts(WHOLE):
        assert decode(pieces) == MADE


def test_an_answer_cut_anywhere_is_complete_from_its_stop_on_alone() -> None:
    complete = len(WHOLE) - len(counts(**USAGE, cacheReadInputTokens=5, cacheWriteInputTokens=6))
    for size in range(len(WHOLE)):
        found = decode([WHOLE[:size]])
        if size < complete:
            assert (failed(found).code, failed(found).retryable) == ("cut", True)
            assert not any(isinstance(one, Outcome) for one in found)
        else:
            assert found[:-1] == MADE[:-1]
            assert outcome(found) == Outcome(Usage(), "tool_use", "calls")


def test_a_flipped_byte_anywhere_is_an_error_and_never_another_text() -> None:
    for at in range(len(WHOLE)):
        broken = bytearray(WHOLE)
        broken[at] ^= 0x20
        *found, last = decode([bytes(broken)])
        assert isinstance(last, ProviderError)
        assert (last.code, last.retryable) == ("malformed", True)
        assert found == MADE[: len(found)]


def test_botocore_gets_the_same_events_of_it() -> None:
    theirs = aws_oracle.events(WHOLE)
    assert [next(iter(one)) for one in theirs][-2:] == ["messageStop", "metadata"]
    said = [one["contentBlockDelta"]["delta"] for one in theirs if "contentBlockDelta" in one]
    joined = "".join(delta.get("text", "") for delta in said)
    reasoned = "".join(delta.get("reasoningContent", {}).get("text", "") for delta in said)
    assert (joined, reasoned) == ("I run it.", "Hm, ü😀")


# Recordings.


def described(found: list[Event | ProviderError]) -> list[dict[str, Any]]:
    """The blocks in the words of a recording's `expected.blocks`."""
    said = []
    for number, block in enumerate(blocks(found)):
        deltas = sum(isinstance(one, Delta) and one.block == number for one in found)
        match block.kind:
            case "call":
                body = msgspec.json.decode(block.body, type=CallBody)
                arguments = msgspec.json.decode(body.arguments or "{}")
                named = {"type": "tool_call", "id": block.id, "name": body.name, "arguments": arguments}
                said.append({**named, "valid_json": True, "deltas": deltas})
            case "text":
                said.append({"type": "text", "text": block.body.decode(), "deltas": deltas})
            case _:
                fields = msgspec.json.decode(block.body)
                signature = fields.get("signature")
                deltas += signature is not None  # its piece is not for readers, so it is no delta of ours
                said.append(
                    {"type": "thinking", "text": fields["text"], "signature": signature, "deltas": deltas}
                )
    return said


def test_every_recording_of_converse_is_here(streams_dir: Path) -> None:
    there = {path.stem.removeprefix("bedrock-") for path in streams_dir.glob("bedrock-*.eventstream")}
    assert there - {"invoke-anthropic-tool"} == set(NAMES)


def test_a_recording_decodes_to_what_it_says(recording: Recording) -> None:
    found, expected = decode([recording.answer]), recording.expected
    wanted = [block for block in expected["blocks"] if block.get("text") != ""]
    assert described(found) == wanted
    last = outcome(found)
    meant = {"end_turn": "normal", "tool_use": "calls"}[expected["stop_reason"]]
    assert (last.stop, last.end) == (expected["stop_reason"], meant)
    usage = expected["usage_normalised"]
    assert (last.usage.prompt, last.usage.output) == (usage["input_total"], usage["output_total"])
    assert last.usage.cache_read == usage["input_cache_read"]
    assert last.usage.cache_write == usage["input_cache_write"]


def test_a_recording_decodes_the_same_however_it_is_cut(recording: Recording) -> None:
    first, *others = (comparable(decode(pieces)) for pieces in cuts(recording.answer))
    assert all(other == first for other in others)


def test_a_recording_cut_anywhere_is_incomplete_before_its_stop(recording: Recording) -> None:
    headers, _ = aws_oracle.frames(recording.answer)[-1]
    assert headers[":event-type"] == "metadata"
    whole = decode([recording.answer])
    last_frame = len(recording.answer) - _metadata(recording.answer)
    for size in range(len(recording.answer)):
        found = decode([recording.answer[:size]])
        if size < last_frame:
            assert failed(found).code == "cut"
        else:
            assert found[:-1] == whole[:-1]
            assert outcome(found).usage == Usage()


def _metadata(data: bytes) -> int:
    """The length of an answer's last frame."""
    at = 0
    while at + (size := int.from_bytes(data[at : at + 4])) < len(data):
        at += size
    return size


def test_a_flipped_byte_of_a_recording_is_an_error(recording: Recording) -> None:
    whole = decode([recording.answer])
    for at in range(len(recording.answer)):
        broken = bytearray(recording.answer)
        broken[at] ^= 0xFF
        *found, last = decode([bytes(broken)])
        assert isinstance(last, ProviderError)
        assert last.code == "malformed"
        assert found == whole[: len(found)]


def test_botocore_reads_the_same_text_of_a_recording(recording: Recording) -> None:
    theirs = aws_oracle.events(recording.answer)
    said = [one["contentBlockDelta"]["delta"] for one in theirs if "contentBlockDelta" in one]
    found = blocks(decode([recording.answer]))
    text = "".join(block.body.decode() for block in found if block.kind == "text")
    assert text == "".join(delta.get("text", "") for delta in said)
    inputs = "".join(delta.get("toolUse", {}).get("input", "") for delta in said)
    calls = [msgspec.json.decode(block.body, type=CallBody) for block in found if block.kind == "call"]
    assert inputs == "".join(body.arguments for body in calls)


# What the recordings do not show.


@pytest.mark.parametrize(
    ("reason", "meant"),
    [
        ("end_turn", "normal"),
        ("stop_sequence", "normal"),
        ("tool_use", "calls"),
        ("max_tokens", "length"),
        ("guardrail_intervened", "filter"),
        ("content_filtered", "filter"),
        ("refusal", "refusal"),
        ("model_context_window_exceeded", "context"),
        ("something_new", "unknown"),
    ],
)
def test_a_stop_reason_is_kept_and_given_a_meaning(reason: str, meant: str) -> None:
    last = outcome(answer(text("x"), reason=reason))
    assert (last.stop, last.end) == (reason, meant)


@pytest.mark.parametrize("reason", ["malformed_tool_use", "malformed_model_output"])
def test_a_models_own_slip_is_tried_again_once(reason: str) -> None:
    error = failed(answer(text("x"), reason=reason))
    assert (error.code, error.retryable) == ("model_bad_call", True)


def test_an_end_with_calls_is_one_with_calls_whatever_it_is_called() -> None:
    assert outcome(answer(call("{}"), reason="end_turn")).end == "calls"


def test_a_guardrail_says_why_it_stopped_and_a_router_which_model_it_took() -> None:
    trace = {"guardrail": {"actionReason": "Blocked."}, "promptRouter": {"invokedModelId": "arn:x"}}
    found = decode(
        [start(), text("x"), stop("guardrail_intervened"), event("metadata", usage=USAGE, trace=trace)]
    )
    assert (outcome(found).detail, outcome(found).model) == ("Blocked.", "arn:x")


def test_counts_that_come_before_the_stop_count() -> None:
    found = decode([start(), text("x"), counts(), stop()])
    assert outcome(found) == Outcome(Usage(3, 4), "end_turn", "normal")


def test_counts_that_are_none_are_nothing() -> None:
    odd = counts(inputTokens="3", outputTokens=-1, cacheReadInputTokens=True)
    assert outcome(decode([start(), text("x"), stop(), odd])).usage == Usage()


def test_a_decoder_says_when_nothing_but_counts_can_come() -> None:
    decoder = Decoder()
    assert isinstance(decoder, Unmarked)
    decoder.feed(start() + text("x"))
    assert not decoder.whole
    decoder.feed(stop())
    assert decoder.whole


def test_what_is_hidden_is_kept_letter_for_letter_and_in_pieces_joined() -> None:
    one = only(answer(thought({"redactedContent": "QUI="})))
    assert (one.kind, one.type, one.body) == ("thinking", REASONING, b'{"redactedContent":"QUI="}')
    two = only(answer(thought({"redactedContent": "QUI="}, {"redactedContent": "Qw=="})))
    assert base64.b64decode(msgspec.json.decode(two.body)["redactedContent"]) == b"ABC"
    odd = only(answer(thought({"redactedContent": "?"}, {"redactedContent": "!"})))
    assert msgspec.json.decode(odd.body)["redactedContent"] == "?!"


def test_a_signature_without_a_text_is_kept() -> None:
    assert only(answer(thought({"signature": "s"}))).body == b'{"text":"","signature":"s"}'


def test_empty_texts_and_empty_reasoning_are_no_blocks_and_take_no_number() -> None:
    found = answer(text(""), thought({"text": ""}, index=1), text("x", index=2))
    assert found[:2] == [Delta("text", "x", 0), Block("text", b"x")]


def test_reasoning_can_be_read_by_whoever_looks_at_the_record() -> None:
    block = only(answer(thought({"text": "Hm."}, {"signature": "s"})))
    assert readable(block.type, block.body) == "Hm."


def test_a_text_with_citations_is_kept_raw_and_readable() -> None:
    cited = piece({"text": "so"}) + piece({"citation": {"title": "t"}}) + over()
    block = only(answer(cited))
    assert (block.kind, block.type) == ("text", BLOCK)
    assert msgspec.json.decode(block.body) == {"text": "so", "citations": [{"title": "t"}]}
    assert readable(block.type, block.body) == "so"


def test_blocks_that_we_do_not_know_are_kept_raw() -> None:
    image = event("contentBlockStart", contentBlockIndex=0, start={"image": {"format": "png"}})
    image += piece({"image": {"source": {"bytes": "AA=="}}}) + over()
    server = call('{"q":', "1}", index=1, type="server_tool_use")
    found = blocks(answer(image, server, piece({"novel": "\ud83d"}, 2) + over(2)))
    assert [(block.kind, block.type) for block in found] == [("thinking", BLOCK)] * 3
    bodies = [msgspec.json.decode(block.body) for block in found]
    assert bodies[0] == {"image": {"format": "png"}, "pieces": [{"source": {"bytes": "AA=="}}]}
    assert bodies[1]["toolUse"]["type"] == "server_tool_use"
    assert bodies[1]["pieces"] == ['{"q":', "1}"]
    assert bodies[2] == {"novel": {}, "pieces": ["\ufffd"]}


def test_fields_of_a_call_that_we_do_not_know_stay_with_it() -> None:
    body = msgspec.json.decode(only(answer(call("{}", later=1))).body)
    assert body == {"name": "run", "arguments": "{}", "extra": {"later": 1}}


def test_unknown_events_and_kinds_of_frames_change_nothing() -> None:
    later = event("laterEvent", x=1) + framed(header(":message-type", "novel"), b"?")
    assert decode([start(), later, text("x"), stop(), counts()]) == answer(text("x"))


def test_another_kind_of_piece_under_one_index_begins_another_block() -> None:
    found = answer(piece({"reasoningContent": {"text": "a"}}) + piece({"text": "b"}) + over())
    assert [(block.kind, block.body) for block in blocks(found)] == [
        ("thinking", b'{"text":"a"}'),
        ("text", b"b"),
    ]


def test_a_blocks_missing_stop_is_made_up_at_the_answers() -> None:
    assert only(answer(piece({"text": "x"}))) == Block("text", b"x")


def test_half_characters_are_replaced() -> None:
    found = answer(text("a\ud83d"), call('{"a":"\ud83d"}', name="r\ud83d", index=1))
    assert found[0] == Delta("text", "a\ufffd", 0)
    assert blocks(found)[0].body == "a\ufffd".encode()
    assert msgspec.json.decode(blocks(found)[1].body, type=CallBody).name == "r\ufffd"


# What breaks off.


@pytest.mark.parametrize(
    ("name", "code", "status", "retryable"),
    [
        ("throttlingException", "rate_limit", 429, True),
        ("ThrottlingException", "rate_limit", 429, True),
        ("serviceUnavailableException", "overloaded", 503, True),
        ("internalServerException", "server", 500, True),
        ("modelStreamErrorException", "server", 500, True),
        ("modelTimeoutException", "timeout", 408, True),
        ("validationException", "invalid", 400, False),
        ("accessDeniedException", "permission", 403, False),
        ("laterException", "server", 500, True),
    ],
)
def test_an_exception_in_the_stream_has_the_class_of_its_name(
    name: str, code: str, status: int, retryable: bool
) -> None:
    found = decode([start() + text("x") + exception(name, message="No, not now.")])
    error = failed(found)
    assert (error.code, error.status, error.retryable) == (code, status, retryable)
    assert error.message == "No, not now."
    assert only(found) == Block("text", b"x"), "what was whole before it is given"


def test_what_a_model_said_of_its_failure_stands_in_the_message() -> None:
    error = failed(
        decode([start() + exception("modelStreamErrorException", message="A", originalMessage="B")])
    )
    assert error.message == "A: B"


def test_an_exception_that_does_not_read_is_said_as_it_is() -> None:
    frame = framed(header(":message-type", "exception") + header(":exception-type", "x"), b"<oops>")
    assert failed(decode([frame])).message == "<oops>"
    empty = framed(header(":message-type", "exception") + header(":exception-type", "x"), b"{}")
    assert failed(decode([empty])).message == "x"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (
            "The model returned the following errors: Input is too long for requested model.",
            "context_overflow",
        ),
        ("Expected toolResult blocks at messages.2.content for the following Ids: a", "bad_history"),
        ("The security token included in the request is expired", "auth"),
    ],
)
def test_a_refusal_in_the_stream_is_told_apart_by_its_words(message: str, code: str) -> None:
    assert failed(decode([exception("validationException", message=message)])).code == code


def test_an_error_frame_is_a_server_error() -> None:
    heads = header(":message-type", "error") + header(":error-code", "E") + header(":error-message", "why")
    error = failed(decode([start() + framed(heads, b"")]))
    assert (error.message, error.code, error.retryable) == ("E: why", "server", True)


def test_an_exception_in_place_of_the_counts_does_not_void_the_answer() -> None:
    late = exception("internalServerException", message="Oh.")
    found = decode([start(), text("x"), stop(), late])
    assert (only(found), outcome(found)) == (Block("text", b"x"), Outcome(Usage(), "end_turn", "normal"))


def test_a_second_start_in_one_answer_breaks_it() -> None:
    error = failed(decode([start() + text("x") + start() + text("y", index=1) + stop() + counts()]))
    assert (error.code, error.retryable) == ("cut", True)
    assert "another answer began inside it" in error.message


@pytest.mark.parametrize(
    "parts",
    [
        [text("x")],
        [start(), piece({"toolUse": {"input": "{}"}})],
        [start(), call("{}") + stop() + text("x")],
        [start(), event("contentBlockDelta", contentBlockIndex=0)],
        [start(), piece({"text": 1})],
        [start(), piece({"reasoningContent": "x"})],
        [start(), event("contentBlockStart", contentBlockIndex=0)],
        [start(), framed(header(":event-type", "messageStop"), b"[1]")],
        [start(), framed(header(":event-type", "messageStop"), b"{half")],
        [start(), framed(header(":event-type", "messageStop"), b"[" * 100_000)],
    ],
)
def test_what_is_not_of_the_format_is_malformed(parts: list[bytes]) -> None:
    error = failed(decode([b"".join(parts)]))
    assert (error.code, error.retryable) == ("malformed", True)


def test_a_stop_without_a_reason_is_unknown() -> None:
    found = decode([start(), text("x"), event("messageStop"), counts()])
    assert (outcome(found).stop, outcome(found).end) == ("unknown", "unknown")


def test_a_block_over_what_a_record_holds_is_too_long() -> None:
    big = text(*["x" * (16 << 20)] * (MAX_BODY // (16 << 20) + 1))
    error = failed(decode([start() + big]))
    assert (error.code, error.retryable) == ("too_long", False)


def test_what_comes_after_the_counts_does_not_count() -> None:
    assert decode([WHOLE + exception("throttlingException") + b"junk"]) == MADE


def test_events_are_counted_for_the_stall_clock() -> None:
    decoder = Decoder()
    decoder.feed(WHOLE[:50])
    assert decoder.events == 0
    decoder.feed(WHOLE[50:])
    assert decoder.events == len(aws_oracle.frames(WHOLE))
