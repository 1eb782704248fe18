"""The vendors' clients read the same recorded answers of Messages and Chat Completions, and agree with ours."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.protocol import records
from daemon.protocol.records import CallBody
from daemon.provider import chat, messages
from daemon.provider.base import Block, Outcome, ProviderError
from tests.daemon.provider import recorded
from tests.daemon.provider.recorded import CHAT_NAMES, NAMES, Recording, blocks

BROKEN = "overloaded-midstream"  # where both say so
SPLICED = "spliced-message-start"  # the client merges two messages, which no answer is
ERROR_CHUNK = "openrouter-error-chunk"
APART = "xai-reasoning-parallel-tools"  # counts reasoning beside the completion's tokens


def served(answer: bytes) -> Any:
    """An HTTP client of the vendors' own kind that gives this answer to every request, in small pieces."""
    import httpx2

    class Pieces(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            return (answer[at : at + 17] for at in range(0, len(answer), 17))

    def serve(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Pieces())

    return httpx2.Client(transport=httpx2.MockTransport(serve))


def anthropic_events(answer: bytes) -> list[Any]:
    import anthropic

    with (
        served(answer) as http,
        anthropic.Anthropic(
            api_key="none", base_url="http://127.0.0.1:1", http_client=http, max_retries=0
        ) as client,
        client.messages.create(
            model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}], stream=True
        ) as stream,
    ):
        return list(stream)


def openai_chunks(answer: bytes) -> list[Any]:
    import openai

    with (
        served(answer) as http,
        openai.OpenAI(
            api_key="none", base_url="http://127.0.0.1:1/v1", http_client=http, max_retries=0
        ) as client,
        client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        ) as stream,
    ):
        return list(stream)


def put_together(events: list[Any]) -> list[dict[str, Any]]:
    """The blocks of a message as the client's own events have them."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.type == "content_block_start":
            found[event.index] = {"partial": "", **event.content_block.to_dict()}
        elif event.type == "content_block_delta":
            block, delta = found[event.index], event.delta
            for name in ("text", "thinking"):
                if delta.type == f"{name}_delta":
                    block[name] = (block.get(name) or "") + getattr(delta, name)
            if delta.type == "signature_delta":
                block["signature"] = delta.signature
            if delta.type == "input_json_delta":
                block["partial"] += delta.partial_json
    return [found[index] for index in sorted(found)]


def call_of(block: Block) -> CallBody:
    assert block.kind == "call"
    return msgspec.json.decode(block.body, type=CallBody)


@pytest.mark.parametrize("name", sorted({*NAMES} - {BROKEN, SPLICED}))
def test_anthropics_client_reads_the_same(name: str, streams_dir: Path) -> None:
    answer = Recording(streams_dir, name).answer
    events = anthropic_events(answer)
    told = recorded.decode([answer])
    last = told[-1]
    assert isinstance(last, Outcome)
    for theirs, ours in zip(put_together(events), blocks(told), strict=True):
        match theirs["type"]:
            case "tool_use":
                call = call_of(ours)
                assert (ours.id, call.name) == (theirs["id"], theirs["name"])
                assert msgspec.json.decode(call.arguments or "{}") == msgspec.json.decode(
                    theirs["partial"] or "{}"
                )
            case "text":
                assert ours.kind == "text"
                assert records.readable(ours.type, ours.body) == theirs["text"]
            case type:
                raw = msgspec.json.decode(ours.body)
                assert raw["type"] == type
                for field in ("thinking", "signature", "id", "name", "tool_use_id"):
                    assert raw.get(field) == theirs.get(field)
    (end,) = [event for event in events if event.type == "message_delta"]
    assert last.stop == end.delta.stop_reason
    assert last.usage.output == end.usage.output_tokens


def test_anthropics_client_fails_where_ours_does(streams_dir: Path) -> None:
    import anthropic

    answer = Recording(streams_dir, BROKEN).answer
    with pytest.raises(anthropic.APIStatusError):
        anthropic_events(answer)
    assert isinstance(recorded.decode([answer])[-1], ProviderError)


def test_two_messages_in_one_answer_are_not_merged_as_anthropics_client_does(streams_dir: Path) -> None:
    answer = Recording(streams_dir, SPLICED).answer
    merged = "".join(block.get("thinking") or "" for block in put_together(anthropic_events(answer)))
    told = recorded.decode([answer], messages.Decoder)
    assert not any(merged and merged.encode() in block.body for block in blocks(told))


@pytest.mark.parametrize("name", sorted({*CHAT_NAMES} - {ERROR_CHUNK}))
def test_openais_client_reads_the_same_of_each_chat_server(name: str, streams_dir: Path) -> None:
    answer = Recording(streams_dir, name, "chat").answer
    chunks = openai_chunks(answer)
    told = recorded.decode([answer], chat.Decoder)
    last = told[-1]
    assert isinstance(last, Outcome)
    choices = [choice for chunk in chunks for choice in chunk.choices or ()]
    said = "".join(choice.delta.content or "" for choice in choices)
    ours = "".join(records.readable(b.type, b.body) for b in blocks(told) if b.kind == "text")
    assert ours.strip() == said.strip()
    calls: dict[Any, list[str]] = {}
    for choice in choices:
        for piece in choice.delta.tool_calls or ():
            call = calls.setdefault(piece.index if piece.index is not None else piece.id, ["", "", ""])
            call[0] = call[0] or piece.id or ""
            call[1] = call[1] or piece.function.name or ""
            call[2] += piece.function.arguments or ""
    found = [(b.id, call_of(b).name, call_of(b).arguments) for b in blocks(told) if b.kind == "call"]
    assert found == [tuple(call) for call in calls.values()]
    assert last.stop == next((c.finish_reason for c in reversed(choices) if c.finish_reason), last.stop)
    used = [chunk.usage for chunk in chunks if chunk.usage]
    if used:
        assert last.usage.prompt == used[-1].prompt_tokens
        output = (
            used[-1].total_tokens - used[-1].prompt_tokens if name == APART else used[-1].completion_tokens
        )
        assert last.usage.output == output


def test_openais_client_fails_at_the_chunk_that_is_an_error_and_so_do_we(streams_dir: Path) -> None:
    import openai

    answer = Recording(streams_dir, ERROR_CHUNK, "chat").answer
    with pytest.raises(openai.APIError) as caught:
        openai_chunks(answer)
    last = recorded.decode([answer], chat.Decoder)[-1]
    assert isinstance(last, ProviderError)
    assert caught.value.message in last.message
