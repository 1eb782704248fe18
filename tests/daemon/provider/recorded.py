"""The recorded streams: what they are, what they decode to, and how they are cut for a decoder."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from daemon.protocol.records import CallBody
from daemon.provider import chat, messages
from daemon.provider.base import Block, Decoder, Delta, Event, Outcome, ProviderError

NAMES = (
    "code-execution",
    "compaction",
    "image-input",
    "max-tokens",
    "omitted-thinking",
    "overloaded-midstream",
    "parallel-tool-use",
    "refusal-no-content",
    "spliced-message-start",
    "text-plain",
    "text-then-two-tools",
    "thinking-then-tool",
    "tool-no-args",
    "tool-search",
    "web-search-citations",
)

CHAT_NAMES = (
    "avian-double-finish",
    "azure-tool-call",
    "deepseek-reasoning-content",
    "deepseek-tool-split-args",
    "groq-parallel-tools",
    "llamacpp-reasoning-tool",
    "mistral-tool-no-index",
    "mistral-vllm-empty-name",
    "ollama-reasoning-tool",
    "openai-length-empty",
    "openai-parallel-tools",
    "openai-text-usage-last",
    "openrouter-error-chunk",
    "openrouter-reasoning-details-tool",
    "snowflake-no-finish-reason",
    "vllm-text",
    "xai-reasoning-parallel-tools",
)


class Recording:
    """One recording: its answer's bytes and what is said about it."""

    def __init__(self, folder: Path, name: str, wire: str = "anthropic") -> None:
        self.answer = (folder / f"{wire}-{name}.sse").read_bytes()
        self.said: dict[str, Any] = msgspec.json.decode((folder / f"{wire}-{name}.json").read_bytes())

    @property
    def expected(self) -> dict[str, Any]:
        found: dict[str, Any] = self.said["expected"]
        return found


def decode(
    pieces: Iterable[bytes], make: Callable[[], Decoder] = messages.Decoder
) -> list[Event | ProviderError]:
    """All that a decoder makes of an answer in these pieces; an error is the last."""
    decoder = make()
    found: list[Event | ProviderError] = []
    try:
        for piece in pieces:
            found += decoder.feed(piece)
        found += decoder.end()
        decoder.feed(b"")
    except ProviderError as error:
        found.append(error)
    return found


def decode_chat(pieces: Iterable[bytes]) -> list[Event | ProviderError]:
    """The same for Chat Completions."""
    return decode(pieces, chat.Decoder)


def cuts(data: bytes, seed: int = 0) -> Iterator[list[bytes]]:
    """`data` whole, one byte at a time, and in random pieces."""
    yield [data]
    yield [data[i : i + 1] for i in range(len(data))]
    chance = random.Random(seed)
    for _ in range(5):
        places = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(1, 60)))
        yield [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def comparable(found: Sequence[Event | ProviderError]) -> list[object]:
    """The events, an error as what it says."""
    return [(e.code, e.retryable, e.message) if isinstance(e, ProviderError) else e for e in found]


def blocks(found: Iterable[Event | ProviderError]) -> list[Block]:
    return [event for event in found if isinstance(event, Block)]


def described(found: Sequence[Event | ProviderError]) -> list[dict[str, Any]]:
    """The blocks in the words of a recording's `expected.blocks`."""
    deltas: dict[int, int] = {}
    for event in found:
        if isinstance(event, Delta):
            deltas[event.block] = deltas.get(event.block, 0) + 1
    return [_described(block, deltas.get(number, 0)) for number, block in enumerate(blocks(found))]


def _described(block: Block, deltas: int) -> dict[str, Any]:
    if block.kind == "call":
        call = msgspec.json.decode(block.body, type=CallBody)
        arguments = msgspec.json.decode(call.arguments or "{}")
        said = {"type": "tool_call", "id": block.id, "name": call.name, "arguments": arguments}
        return {**said, "valid_json": True, "deltas": deltas}
    if block.type.startswith("text/plain"):
        return {"type": "text", "text": block.body.decode(), "deltas": deltas}
    raw = msgspec.json.decode(block.body)
    match raw["type"]:
        case "text":
            cited = len(raw["citations"])  # nor is a citation's
            return {"type": "text", "text": raw["text"], "deltas": deltas + cited, "citations": cited}
        case "thinking":
            # a signature's piece is not for readers, so it is no delta of ours
            return {
                "type": "thinking",
                "text": raw["thinking"],
                "signature": raw["signature"],
                "deltas": deltas + 1,
            }
        case "server_tool_use":
            said = {"id": raw["id"], "name": raw["name"], "arguments": raw["input"]}
            return {"type": "server_tool_call", "provider_type": raw["type"], **said}
        case str() as kind if kind.endswith("_tool_result"):
            content = raw["content"]
            kinds = f"list of {len(content)}" if isinstance(content, list) else content["type"]
            said = {"tool_use_id": raw["tool_use_id"], "content_type": kinds}
            return {"type": "server_tool_result", "provider_type": kind, **said}
        case kind:
            rest = {name: value for name, value in raw.items() if name != "type"}
            return {"type": "other", "provider_type": kind, "content": rest}


def outcome(found: Sequence[Event | ProviderError]) -> Outcome:
    last = found[-1]
    assert isinstance(last, Outcome)
    return last
