"""Answers and refusals that broke other harnesses (faults B5, B6, C1, C3), through the one loop that sends requests."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path

import msgspec
import pytest

from daemon.provider.anthropic import Anthropic
from daemon.provider.base import Answer, Block, Outcome, Provider, ProviderError, Request, Retry, Streamed
from daemon.provider.bedrock import Bedrock
from daemon.provider.errors import classify
from daemon.provider.google import Google
from daemon.provider.http import stream
from daemon.provider.openai import OpenAI
from daemon.provider.openai_chat import OpenAIChat
from daemon.provider.retry import LEAST, RetryPolicy

REQUEST = Request("http://127.0.0.1:1/x", {}, b"{}")
STREAM: Mapping[str, str] = {"content-type": "text/event-stream"}
THEN = 1_764_470_000


class Line:
    """A transport that gives one answer after another, the last one again and again, and counts the requests."""

    def __init__(self, *answers: tuple[int, Mapping[str, str], Sequence[bytes | Exception]]) -> None:
        self.answers = answers
        self.asked = 0

    @asynccontextmanager
    async def __call__(self, request: Request) -> AsyncIterator[Answer]:
        status, headers, pieces = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        yield Answer(status, headers, _given(pieces))


async def _given(pieces: Sequence[bytes | Exception]) -> AsyncIterator[bytes]:
    for piece in pieces:
        if isinstance(piece, Exception):
            raise piece
        yield piece


class Clock:
    """Sleeps that are written down and take no time."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def policy(self) -> RetryPolicy:
        return RetryPolicy(random=lambda: 0.0, clock=lambda: 0.0, sleep=self.sleep)


async def taken(provider: Provider, clock: Clock | None = None) -> list[Streamed]:
    return [event async for event in stream(provider, REQUEST, policy=(clock or Clock()).policy())]


async def failed(provider: Provider, clock: Clock | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await taken(provider, clock)
    return caught.value


def recorded(folder: Path, name: str) -> tuple[int, Mapping[str, str], Sequence[bytes]]:
    return 200, STREAM, [(folder / f"{name}.sse").read_bytes()]


def refused(
    status: int, body: object = None, **headers: str
) -> tuple[int, Mapping[str, str], Sequence[bytes]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, named, [msgspec.json.encode(body or {"error": {"message": "no"}})]


# B5, B6: what a stream of status 200 holds.


async def test_an_overload_in_the_stream_is_waited_out_and_what_came_before_is_void(
    streams_dir: Path,
) -> None:
    names = ("anthropic-overloaded-midstream", "anthropic-text-then-two-tools")
    line, clock = Line(*(recorded(streams_dir, name) for name in names)), Clock()
    events = await taken(Anthropic(transport=line), clock)
    retry = next(at for at, event in enumerate(events) if isinstance(event, Retry))
    found = events[retry]
    assert isinstance(found, Retry)
    assert (found.restart, found.attempt, line.asked) == (True, 2, 2)
    assert clock.slept == [LEAST]
    after = [event for event in events[retry:] if isinstance(event, Block)]
    assert [block.kind for block in after] == ["text", "call", "call"]
    assert isinstance(events[-1], Outcome)


async def test_exhausted_credit_in_the_stream_is_asked_for_once(streams_dir: Path) -> None:
    line = Line(recorded(streams_dir, "responses-quota-error-failed"))
    error = await failed(OpenAI(transport=line))
    assert (error.code, error.retryable, line.asked) == ("billing", False, 1)


async def test_an_error_in_a_chunk_is_one_and_no_empty_answer(streams_dir: Path) -> None:
    line = Line(recorded(streams_dir, "chat-openrouter-error-chunk"))
    error = await failed(OpenAIChat(url="http://127.0.0.1:1", transport=line))
    assert (error.message, error.retryable, line.asked) == ("Token limit reached", False, 1)


async def test_an_answer_that_breaks_six_times_is_given_up_and_none_of_it_is_the_answer(
    streams_dir: Path,
) -> None:
    whole = (streams_dir / "anthropic-text-then-two-tools.sse").read_bytes()
    line = Line((200, STREAM, [whole[: len(whole) // 2], ConnectionResetError("reset")]))
    error = await failed(Anthropic(transport=line))
    assert (error.code, line.asked) == ("connection", 6)


# C1: how long to wait.

DATE = formatdate(THEN, usegmt=True)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry_after": "2"}, 2),
        ({"retry_after": formatdate(THEN + 3, usegmt=True), "date": DATE}, 3),
        ({"retry_after": formatdate(THEN - 3, usegmt=True), "date": DATE}, LEAST),
        ({"retry_after": "0"}, LEAST),
        ({"retry_after": "-5"}, LEAST),
        ({"retry_after": "abc"}, LEAST),
        ({"retry_after": str(THEN + 5), "date": DATE}, 5),
        ({"retry_after": "1", "retry_after_ms": "0"}, 1),
        ({"retry_after": "1", "retry_after_ms": "2500"}, 2.5),
        ({"retry_after": "300"}, 300),
    ],
)
@pytest.mark.parametrize("status", [429, 503, 529])
async def test_the_wait_is_what_was_asked_for_and_never_nothing(
    status: int, headers: dict[str, str], wait: float, streams_dir: Path
) -> None:
    line, clock = Line(refused(status, **headers), recorded(streams_dir, "anthropic-text-plain")), Clock()
    events = await taken(Anthropic(transport=line), clock)
    assert isinstance(events[-1], Outcome)
    assert clock.slept == [pytest.approx(wait)]


@pytest.mark.parametrize(
    "headers", [{"retry_after": "301"}, {"retry_after": "3600"}, {"retry_after_ms": "1e9"}]
)
async def test_a_longer_wait_than_is_allowed_fails_at_once_and_names_its_end(headers: dict[str, str]) -> None:
    line, clock = Line(refused(429, **headers)), Clock()
    error = await failed(Anthropic(transport=line), clock)
    assert (line.asked, clock.slept) == (1, [])
    assert "the provider asks to wait" in error.message
    assert "UTC; retry then" in error.message


async def test_googles_wait_in_the_body_alone_is_kept(streams_dir: Path) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7.5s"}]
    error = {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED", "details": details}
    line = Line(refused(429, [{"error": error}]), recorded(streams_dir, "gemini-text-crlf"))
    clock = Clock()
    assert isinstance((await taken(Google(transport=line), clock))[-1], Outcome)
    assert clock.slept == [7.5]


@pytest.mark.parametrize("provider", ["anthropic", "openai", "openai-chat"])
async def test_a_429_of_quota_that_names_no_wait_is_asked_for_once(provider: str) -> None:
    line = Line(
        refused(429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}})
    )
    made: dict[str, Provider] = {
        "anthropic": Anthropic(transport=line),
        "openai": OpenAI(transport=line),
        "openai-chat": OpenAIChat(transport=line),
    }
    error = await failed(made[provider])
    assert (error.code, line.asked) == ("billing", 1)


# C3: that a request is too long, in each vendor's words.

TOO_LONG = [
    (400, "prompt is too long: 208310 tokens > 200000 maximum"),
    (413, "prompt is too long: 208310 tokens > 200000 maximum"),
    (
        400,
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length",
    ),
    (400, "Your input exceeds the context window of this model. Please adjust your input and try again."),
    (
        400,
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 150000 tokens.",
    ),
    (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
    (400, "Input is too long for requested model."),
    (
        400,
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.",
    ),
    (
        400,
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    ),
    (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
    (
        400,
        "This endpoint's maximum context length is 204800 tokens. However, you requested about 300000 tokens",
    ),
    (400, "the request exceeds the available context size (4096 tokens), try increasing it"),
    (
        500,
        "the request exceeds the available context size. try increasing the context size or enable context shift",
    ),
    (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
    (
        400,
        "Trying to keep the first 9000 tokens when context the overflows. The model is loaded with 4096 tokens",
    ),
    (400, "Please reduce the length of the messages or completion."),
    (
        400,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens",
    ),
    (400, "prompt token count of 64000 exceeds the limit of 12288"),
    (400, "Invalid request: Your request exceeded model token limit: 8192 (requested: 9000)"),
    (400, "invalid params, context window exceeds limit"),
    (422, "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000"),
    (400, "Range of input length should be [1, 30720]"),
]


@pytest.mark.parametrize(("status", "words"), TOO_LONG)
def test_every_vendors_words_for_too_long_a_request_are_known(status: int, words: str) -> None:
    body = msgspec.json.encode({"error": {"type": "invalid_request_error", "message": words}})
    error = classify(status, {}, body)
    assert (error.code, error.retryable) == ("context_overflow", False)


@pytest.mark.parametrize(
    "words",
    [
        "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens",
        "temperature: must be less than 1",
        "messages.0.content.0.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
        "tools.0.custom.name: String should have at most 64 characters",
        "metadata.user_id: String should have at most 256 characters",
    ],
)
def test_other_limits_are_not_taken_for_too_long_a_request(words: str) -> None:
    body = msgspec.json.encode({"error": {"type": "invalid_request_error", "message": words}})
    assert classify(400, {}, body).code == "invalid"


@pytest.mark.parametrize("make", [Anthropic, OpenAI, Google])
async def test_a_request_that_is_too_long_is_sent_once(
    make: type[Anthropic] | type[OpenAI] | type[Google],
) -> None:
    line = Line(refused(400, {"error": {"message": "prompt is too long: 3 tokens > 2 maximum"}}))
    error = await failed(make(transport=line))
    assert (error.code, line.asked) == ("context_overflow", 1)


def test_bedrocks_words_are_classed_by_its_own_wire() -> None:
    body = b'{"message":"Input is too long for requested model."}'
    error = Bedrock("bedrock", url="http://127.0.0.1:1").error(
        400, {"x-amzn-errortype": "ValidationException"}, body
    )
    assert error.code == "context_overflow"
