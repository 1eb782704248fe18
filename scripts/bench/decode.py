"""Cost of decoding an answer: microseconds an event, beside parsing the same JSON, at lengths ten times apart."""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from daemon.provider import chat, converse, eventstream, gemini, messages, responses
from daemon.provider.base import Decoder
from tests import aws_frames

PIECE = "and so on, "  # the text of one event
READ = 1 << 14  # bytes of one read


def event(value: object, name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (head, msgspec.json.encode(value))


def chat_answer(pieces: int) -> Iterator[bytes]:
    def chunk(delta: object, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return event({**head, "choices": [choice], "usage": None})

    for number in range(pieces):
        yield chunk({"reasoning_content" if number % 2 else "content": PIECE})
    for number in range(pieces):
        first = {"id": "call_1", "type": "function"} if not number else {}
        function = {"arguments": PIECE, **({"name": "run"} if not number else {})}
        yield chunk({"tool_calls": [{"index": 0, **first, "function": function}]})
    yield chunk({}, "tool_calls")
    yield b"data: [DONE]\n\n"


def gemini_answer(pieces: int) -> Iterator[bytes]:
    """Its calls come whole, so there is one for some of the events."""

    def chunk(part: object, **fields: object) -> bytes:
        candidate = {"content": {"parts": [part], "role": "model"}, "index": 0, **fields}
        details = [{"modality": "TEXT", "tokenCount": 100}]
        counts = {"promptTokenCount": 100, "totalTokenCount": 200, "promptTokensDetails": details}
        head = {"usageMetadata": counts, "modelVersion": "gemini-m", "responseId": "r"}
        return event({"candidates": [candidate], **head})

    for _ in range(pieces):
        yield chunk({"text": PIECE, "thought": True})
    for number in range(pieces):
        call = {"functionCall": {"name": "run", "args": {"code": PIECE}, "id": str(number)}}
        yield chunk({"text": PIECE} if number % 20 else {**call, "thoughtSignature": "s"})
    yield chunk({"text": "", "thoughtSignature": "s"}, finishReason="STOP")


def converse_answer(pieces: int) -> Iterator[bytes]:
    def piece(index: int, delta: object) -> bytes:
        return aws_frames.event("contentBlockDelta", contentBlockIndex=index, delta=delta, p="abcdefgh")

    yield aws_frames.event("messageStart", role="assistant")
    for _ in range(pieces):
        yield piece(0, {"reasoningContent": {"text": PIECE}})
    yield aws_frames.event("contentBlockStop", contentBlockIndex=0)
    use = {"toolUse": {"toolUseId": "t", "name": "run"}}
    yield aws_frames.event("contentBlockStart", contentBlockIndex=1, start=use)
    for _ in range(pieces):
        yield piece(1, {"toolUse": {"input": PIECE}})
    yield aws_frames.event("contentBlockStop", contentBlockIndex=1)
    yield aws_frames.event("messageStop", stopReason="tool_use")
    yield aws_frames.event("metadata", usage={"inputTokens": 1, "outputTokens": 1, "totalTokens": 2})


def messages_answer(pieces: int) -> Iterator[bytes]:
    yield event(
        {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 1}}}, "message_start"
    )
    blocks = [
        ({"type": "thinking", "thinking": "", "signature": "s"}, "thinking_delta", "thinking"),
        ({"type": "tool_use", "id": "t", "name": "run", "input": {}}, "input_json_delta", "partial_json"),
    ]
    for index, (block, kind, field) in enumerate(blocks):
        yield event(
            {"type": "content_block_start", "index": index, "content_block": block}, "content_block_start"
        )
        for _ in range(pieces):
            delta = {"type": kind, field: PIECE}
            yield event(
                {"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta"
            )
        yield event({"type": "content_block_stop", "index": index}, "content_block_stop")
    yield event({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")


def responses_answer(pieces: int) -> Iterator[bytes]:
    """All that was said comes again at the end of each item, and at the end of all."""
    head = {"id": "resp_1", "model": "m", "object": "response"}
    whole = PIECE * pieces
    thought: dict[str, object] = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "s"}
    call: dict[str, object] = {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "run"}
    done = [
        {**thought, "summary": [{"type": "summary_text", "text": whole}]},
        {**call, "arguments": whole},
    ]
    kinds = [("reasoning_summary_text", "summary_index"), ("function_call_arguments", "content_index")]

    def told(kind: str, **fields: object) -> bytes:
        return event({"type": f"response.{kind}", **fields, "sequence_number": 1}, f"response.{kind}")

    yield told("created", response={**head, "status": "in_progress"})
    for place, item in enumerate((thought, call)):
        kind, part = kinds[place]
        yield told("output_item.added", output_index=place, item=item)
        for _ in range(pieces):
            at = {"output_index": place, "item_id": item["id"], part: 0}
            yield told(f"{kind}.delta", **at, delta=PIECE, obfuscation="abcdefgh")
        yield told("output_item.done", output_index=place, item=done[place])
    usage = {"input_tokens": 1, "output_tokens": 1}
    yield told("completed", response={**head, "status": "completed", "output": done, "usage": usage})


def best(times: int, work: Callable[[], None]) -> float:
    """Seconds of the fastest of some runs: the others were disturbed."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def decode(make: Callable[[], Decoder], data: bytes) -> None:
    decoder = make()
    for start in range(0, len(data), READ):
        decoder.feed(data[start : start + READ])
    decoder.end()


def payload(event: bytes) -> bytes:
    """The JSON in one event of any wire."""
    _, found, data = event.partition(b"data: ")
    return data.strip() if found else eventstream.Parser().feed(event)[0].data


def parse(events: Sequence[bytes]) -> None:
    for one in events:
        msgspec.json.decode(one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pieces", type=int, default=10_000, help="events of the longest answer's text, about"
    )
    parser.add_argument("--times", type=int, default=5, help="runs of each, of which the fastest counts")
    given = parser.parse_args()
    print(f"{'wire':10} {'events':>8} {'decode':>9} {'parse':>9}   microseconds an event")
    wires: list[tuple[str, Callable[[int], Iterator[bytes]], Callable[[], Decoder]]] = [
        ("chat", chat_answer, chat.Decoder),
        ("converse", converse_answer, converse.Decoder),
        ("gemini", gemini_answer, gemini.Decoder),
        ("messages", messages_answer, messages.Decoder),
        ("responses", responses_answer, responses.Decoder),
    ]
    for name, answer, make in wires:
        for pieces in (given.pieces // 100, given.pieces // 10, given.pieces):
            events = list(answer(pieces))
            bare = [payload(one) for one in events if b"[DONE]" not in one]
            data = b"".join(events)
            full = best(given.times, lambda make=make, data=data: decode(make, data))  # type: ignore[misc]
            only = best(given.times, lambda bare=bare: parse(bare))  # type: ignore[misc]
            each = [seconds / len(events) * 1e6 for seconds in (full, only)]
            print(f"{name:10} {len(events):8} {each[0]:9.2f} {each[1]:9.2f}")


if __name__ == "__main__":
    main()
