"""Play one step of a rehearsal's script as the bytes of a Messages stream, with its pauses and its faults. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from daemon.provider.script import Fault, Script, Step

SIGNATURE: Final = "rehearsal"  # thinking without one would not be sent back
LINES: Final = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}
WORKERS: Final = "Workers of this session:"  # how the harness's list of them begins
NO_WORKERS: Final = "This session has no workers"
TOKEN: Final = 4  # characters to a token, about

_WORKER: Final = re.compile(r"^- ([^\s:]+):(?:.*?[;.] ?[Ff]older: ([^;\n]+))?", re.MULTILINE)
_PLACE: Final = re.compile(r"\{(worker|cwd|message|result|output|session|model|step|messages)(?:\.(\d+))?\}")
_NOTE: Final = re.compile(r"\n?\[[^\n]*\]\s*\Z")


class Scene(Struct, frozen=True):
    """What a request shows: how many answers came since the start and since the newest message, and what can be put
    into a script's texts. `said`: the words of each answer.
    """

    answers: int
    since: int
    values: Mapping[str, str]
    results: tuple[str, ...]
    said: tuple[str, ...] = ()


class Piece(Struct, frozen=True):
    """Bytes to send after `pause` seconds; `drop`: the connection breaks instead."""

    pause: float
    data: bytes = b""
    drop: bool = False


def scene(body: bytes, session: str) -> Scene:
    """What the body of a Messages request shows."""
    request = msgspec.json.decode(body)
    messages: list[dict[str, Any]] = request.get("messages", [])
    answers = since = posts = 0
    results: list[str] = []
    texts = [block["text"] for block in request.get("system", ())]
    said: list[str] = []
    answered: list[str] = []
    for message in messages:
        if message["role"] == "assistant":
            answers += 1
            since += 1
            answered.append(_text(message["content"]))
            continue
        content = message["content"]
        found = [_text(block["content"]) for block in content if block["type"] == "tool_result"]
        words = [block["text"] for block in content if block["type"] == "text"]
        if not found:  # what comes while calls run does not begin the script anew
            since = 0
        posts += any(map(_posted, words))
        results = found or results
        texts += words
        said += filter(_posted, words)
    worker, folder = _worker(texts)
    values = {
        "worker": worker,
        "cwd": folder,
        "message": said[-1] if said else "",
        "session": session,
        "model": str(request.get("model", "")),
        "messages": str(posts),
    }
    return Scene(answers, since, values, tuple(results), tuple(answered))


def choose(script: Script, seen: Scene) -> tuple[int, Step]:
    """The number and the step that answers, its texts filled in.

    Without a worker no step from the first one on that needs it is played, but the script's `alone` said; such an
    answer does not count, so with a worker it goes on where it was.
    """
    number = seen.answers if script.per == "session" else seen.since
    said = seen.said[len(seen.said) - number :]
    alone = _pattern(script.alone)
    number -= sum(1 for text in said if alone.fullmatch(text))
    needs = any("{worker}" in repr(step.calls) for step in script.steps[: number + 1])
    if needs and not seen.values["worker"]:
        faults = script.steps[number].faults if number < len(script.steps) else ()
        return number, Step(text=_filled(script.alone, seen, number), faults=faults)
    if number >= len(script.steps):
        return number, Step(text=_filled(script.end, seen, number))
    step = script.steps[number]
    calls = tuple(
        msgspec.structs.replace(call, arguments=_deep(call.arguments, seen, number)) for call in step.calls
    )
    text, thinking = _filled(step.text, seen, number), _filled(step.thinking, seen, number)
    return number, msgspec.structs.replace(step, text=text, thinking=thinking, calls=calls)


def fault(step: Step, played: int) -> Fault | None:
    """The fault of the try after `played` earlier ones, None when it goes well."""
    turns = [fault for fault in step.faults for _ in range(fault.times)]
    return turns[played] if played < len(turns) else None


def pieces(script: Script, step: Step, serial: int, prompt: int, wrong: Fault | None) -> Iterator[Piece]:
    """The step's stream. `serial`: number of the answer, which makes its ids. `prompt`: bytes of the request, from
    which the tokens that it does not claim are guessed.
    """
    end = LINES[step.lines]
    chunk = script.chunk if step.chunk is None else step.chunk
    pause = script.delay if step.delay is None else step.delay
    pace = script.pace if step.pace is None else step.pace
    sent = 0
    for count, event in enumerate(_events(script, step, serial, prompt)):
        if wrong is not None and wrong.bytes is None and count == (wrong.after or 0):
            if wrong.kind == "error":
                error = {"type": wrong.type, "message": wrong.message}
                yield Piece(pause, _event({"type": "error", "error": error}, end))
                return
            if wrong.kind != "stall":
                yield Piece(pause, drop=wrong.kind == "drop")
                return
            pause += wrong.seconds
        data = _event(event, end)
        if step.noise:
            data = _noise(count, end) + data.replace(b"data: ", b"data:", count % 2)
        for part in _parts(data, chunk):
            if wrong is not None and wrong.bytes is not None and sent + len(part) >= wrong.bytes:
                yield Piece(pause, part[: wrong.bytes - sent])
                pause = 0.0
                if wrong.kind != "stall":
                    yield Piece(0.0, drop=wrong.kind == "drop")
                    return
                part, sent, pause, wrong = part[wrong.bytes - sent :], wrong.bytes, wrong.seconds, None
            yield Piece(pause, part)
            sent += len(part)
            pause = 0.0
        pause = pace


def _events(script: Script, step: Step, serial: int, prompt: int) -> Iterator[dict[str, Any]]:
    size = script.piece if step.piece is None else step.piece
    usage = step.usage
    said = len(step.thinking) + len(step.text) + sum(len(repr(call.arguments)) for call in step.calls)
    tokens = {
        "input_tokens": max(1, prompt // TOKEN - usage.cache_read - usage.cache_write)
        if usage.input is None
        else usage.input,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
        "output_tokens": max(1, said // TOKEN) if usage.output is None else usage.output,
    }
    message = {
        "id": f"rehearsal_{serial}",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "rehearsal",
    }
    yield {"type": "message_start", "message": {**message, "usage": {**tokens, "output_tokens": 1}}}
    for index, (block, kind, field, text) in enumerate(_blocks(step, serial)):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for start in range(0, len(text), size):
            delta = {"type": kind, field: text[start : start + size]}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        if kind == "thinking_delta":
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = step.stop or ("tool_use" if step.calls else "end_turn")
    yield {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": tokens}
    yield {"type": "message_stop"}


def _blocks(step: Step, serial: int) -> Iterator[tuple[dict[str, Any], str, str, str]]:
    """Each block: how it begins, the kind of its pieces, their field, and the whole text of it."""
    if step.thinking:
        yield (
            {"type": "thinking", "thinking": "", "signature": ""},
            "thinking_delta",
            "thinking",
            step.thinking,
        )
    if step.text:
        yield {"type": "text", "text": ""}, "text_delta", "text", step.text
    for place, call in enumerate(step.calls):
        given = call.arguments
        arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
        start = {
            "type": "tool_use",
            "id": call.id or f"rehearsal_{serial}_{place}",
            "name": call.tool,
            "input": {},
        }
        yield start, "input_json_delta", "partial_json", arguments


def _event(event: Mapping[str, Any], end: bytes) -> bytes:
    return b"event: %b%bdata: %b%b%b" % (event["type"].encode(), end, msgspec.json.encode(event), end, end)


def _noise(count: int, end: bytes) -> bytes:
    kinds = (
        b": a comment%b%b" % (end, end),
        b'event: ping%bdata: {"type": "ping"}%b%b' % (end, end, end),
        b"id: %d%bretry: 5000%b" % (count, end, end),
        b'event: rehearsal.later%bdata: {"type": "rehearsal.later"}%b%b' % (end, end, end),
    )
    return (b"\xef\xbb\xbf" if count == 0 else b"") + kinds[count % len(kinds)]


def _parts(data: bytes, size: int) -> Iterable[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size)) if size else (data,)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content if block["type"] == "text")


def _posted(text: str) -> bool:
    """Whether a text of the user's side is somebody's message, not a note of the harness."""
    note = text.startswith("[") and text.endswith("]")
    return not note and not text.startswith((WORKERS, NO_WORKERS))


def _worker(texts: Iterable[str]) -> tuple[str, str]:
    """The first worker of the newest list of them, and its folder."""
    found = ("", "")
    for text in texts:
        for part in text.split("\n\n"):
            if part.startswith(WORKERS) and (match := _WORKER.search(part)):
                found = (match[1], (match[2] or "").strip())
            elif part.startswith(NO_WORKERS):
                found = ("", "")
    return found


def _filled(text: str, seen: Scene, number: int) -> str:
    def value(match: re.Match[str]) -> str:
        name, place = match[1], match[2]
        if name not in ("result", "output"):
            return str(number + 1) if name == "step" else seen.values[name]
        chosen = seen.results if place is None else seen.results[int(place) - 1 : int(place)]
        return "\n".join(_NOTE.sub("", result) if name == "output" else result for result in chosen)

    return _PLACE.sub(value, text)


def _pattern(text: str) -> re.Pattern[str]:
    """What a text looks like, whatever was put into it."""
    return re.compile(".*".join(map(re.escape, _PLACE.sub("\0", text).split("\0"))), re.DOTALL)


def _deep(value: Any, seen: Scene, number: int) -> Any:
    if isinstance(value, str):
        return _filled(value, seen, number)
    if isinstance(value, dict):
        return {name: _deep(item, seen, number) for name, item in value.items()}
    return [_deep(item, seen, number) for item in value] if isinstance(value, list) else value
