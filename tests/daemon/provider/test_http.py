import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from msgspec import structs

from daemon.protocol.records import Usage
from daemon.provider.anthropic import Anthropic
from daemon.provider.base import (
    Answer,
    Block,
    Delta,
    Event,
    Outcome,
    Provider,
    ProviderError,
    Request,
    Retry,
    Streamed,
)
from daemon.provider.http import PIECE, TAKEN, open_session, stream
from daemon.provider.messages import Decoder as MessagesDecoder
from daemon.provider.openai_chat import OpenAIChat
from daemon.provider.retry import RetryPolicy

KEY = "sk-ant-very-secret-0123456789"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


START = event("message_start", message={"model": "m", "usage": {"input_tokens": 1}})
TEXT = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
STOP = event("content_block_stop", index=0)
END = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1}) + event(
    "message_stop"
)
PING = event("ping")
DONE = Outcome(Usage(1, 1), "end_turn", "normal", "m")


def piece(text: str) -> bytes:
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


def said(text: str) -> bytes:
    return START + TEXT + piece(text) + STOP + END


WHOLE = [Delta("text", "hello", 0), Block("text", b"hello"), DONE]


class Clock:
    """A clock that only a test, or a wait on it, moves on."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def policy(self, **fields: Any) -> RetryPolicy:
        return RetryPolicy(random=lambda: 1.0, clock=self, sleep=self.sleep, **fields)


class Server:
    """A provider on loopback: each request is answered by the next of `answers`, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[Handler] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.gone = asyncio.Event()
        self.url = ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        self.bodies.append(await request.read())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        try:
            return await answer(request)
        except asyncio.CancelledError:
            self.gone.set()
            raise

    def request(self, body: bytes = b"{}") -> Request:
        return Request(
            f"{self.url}/v1/messages", {"x-api-key": KEY, "content-type": "application/json"}, body
        )

    async def take(
        self, policy: RetryPolicy | None = None, body: bytes = b"{}", provider: Provider | None = None
    ) -> list[Streamed]:
        """All that one request brings."""
        async with open_session() as session:
            events = stream(
                provider or Anthropic(),
                self.request(body),
                session=session,
                policy=policy or Clock().policy(),
            )
            return [event async for event in events]

    async def fail(self, policy: RetryPolicy | None = None) -> ProviderError:
        with pytest.raises(ProviderError) as caught:
            await self.take(policy)
        assert KEY not in f"{caught.value} {caught.value.message}"
        return caught.value


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    serving = Server()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/messages", serving.serve)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    host, port = site._server.sockets[0].getsockname()  # type: ignore[attr-defined]
    serving.url = f"http://{host}:{port}"
    yield serving
    await runner.cleanup()


def streams(
    *pieces: bytes,
    hold: asyncio.Event | None = None,
    drop: bool = False,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> Handler:
    """A stream of these pieces; then it waits for `hold`, and ends or breaks."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            status=status, headers={"content-type": "text/event-stream", **(headers or {})}
        )
        await response.prepare(request)
        for data in pieces:
            await response.write(data)
        if hold is not None:
            await hold.wait()
        if drop:
            assert request.transport is not None
            request.transport.close()
        return response

    return answer


def answers(status: int, body: str = "", **headers: str) -> Handler:
    names = {name.replace("_", "-"): value for name, value in headers.items()}

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, headers=names)

    return answer


async def test_an_answer_streams_to_its_outcome(server: Server) -> None:
    server.answers = [streams(said("hello"))]
    assert await server.take() == WHOLE
    assert server.headers[0]["x-api-key"] == KEY


async def test_a_large_body_is_sent_in_pieces_with_its_length(server: Server) -> None:
    server.answers = [streams(said("hello"))]
    body = bytes(range(256)) * (
        9 << 10
    )  # 2.25 MiB: handed over whole, the client would warn, and warnings are errors
    assert len(body) > PIECE
    assert await server.take(body=body) == WHOLE
    assert server.bodies == [body]
    assert server.headers[0]["Content-Length"] == str(len(body))
    assert "Transfer-Encoding" not in server.headers[0]


async def test_an_overload_is_tried_again_with_growing_waits(server: Server) -> None:
    server.answers = [answers(529), answers(500, "oops"), streams(said("hello"))]
    clock = Clock()
    *retries, _, _, _ = found = await server.take(clock.policy())
    assert found[2:] == WHOLE
    assert clock.slept == [1, 2]
    assert retries == [
        Retry("an unknown status (status 529)", 1, 2, restart=False),
        Retry("Internal Server Error: oops (status 500)", 2, 3, restart=False),
    ]


async def test_a_wait_that_the_provider_asks_for_is_kept(server: Server) -> None:
    server.answers = [answers(429, retry_after="7"), streams(said("hello"))]
    clock = Clock()
    assert (await server.take(clock.policy()))[1:] == WHOLE
    assert clock.slept == [7]


async def test_a_wait_that_is_too_long_fails_at_once(server: Server) -> None:
    server.answers = [answers(429, retry_after="3600")]
    error = await server.fail()
    assert len(server.bodies) == 1
    assert "asks to wait 3600 s, until" in error.message


async def test_a_refused_request_is_not_tried_again(server: Server) -> None:
    body = json.dumps({"error": {"type": "invalid_request_error", "message": f"bad key {KEY}"}})
    server.answers = [answers(400, body, request_id="req_1")]
    error = await server.fail()
    assert (error.code, error.status, error.request_id) == ("invalid", 400, "req_1")
    assert error.message == "bad key *** (status 400, request req_1)"
    assert len(server.bodies) == 1


@pytest.mark.parametrize("drop", [False, True])
async def test_an_answer_that_breaks_off_is_begun_anew(server: Server, drop: bool) -> None:
    server.answers = [streams(START + TEXT + piece("Hello wor"), drop=drop), streams(said("hello"))]
    first, retry, *rest = await server.take()
    assert first == Delta("text", "Hello wor", 0)
    assert isinstance(retry, Retry)
    assert retry.restart
    assert rest == WHOLE


async def test_an_error_event_is_tried_again_and_says_the_request(server: Server) -> None:
    overloaded = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    server.answers = [
        streams(START + TEXT + piece("x") + STOP + overloaded, headers={"request-id": "req_7"}),
        streams(said("hello")),
    ]
    found = await server.take()
    assert found[:2] == [Delta("text", "x", 0), Block("text", b"x")], "what came before it in the same read"
    assert found[2] == Retry("Overloaded (request req_7)", 1, 2, restart=True)
    assert found[3:] == WHOLE


async def test_an_error_event_for_good_ends_it(server: Server) -> None:
    server.answers = [
        streams(START + event("error", error={"type": "billing_error", "message": "no credit"}))
    ]
    assert (await server.fail()).code == "billing"
    assert len(server.bodies) == 1


async def test_after_six_tries_the_last_error_is_final(server: Server) -> None:
    server.answers = [answers(503, "full")]
    error = await server.fail()
    assert len(server.bodies) == 6
    assert error.message == "Service Unavailable: full (status 503); tried 6 times"


async def test_a_finished_answer_is_whole_though_the_connection_breaks_after_it(server: Server) -> None:
    server.answers = [streams(said("hello"), drop=True)]
    assert await server.take() == WHOLE


async def test_a_finished_answer_that_does_not_close_is_left(server: Server) -> None:
    server.answers = [streams(said("hello"), hold=asyncio.Event())]
    assert await server.take() == WHOLE
    await server.gone.wait()


FINISHED = b'data: {"choices":[{"delta":{"content":"hello"},"finish_reason":"stop"}]}\n\n'
ENDED = [Delta("text", "hello", 0), Block("text", b"hello"), Outcome(Usage(), "stop", "normal")]


@pytest.mark.parametrize("how", ["closes", "breaks", "falls silent"])
async def test_an_answer_whose_end_mark_alone_is_missing_is_whole(server: Server, how: str) -> None:
    hold = asyncio.Event() if how == "falls silent" else None
    server.answers = [streams(FINISHED, drop=how == "breaks", hold=hold)]
    policy = Clock().policy(stall=300 if hold is None else 1.0)
    assert await server.take(policy, provider=OpenAIChat()) == ENDED
    assert len(server.bodies) == 1


async def test_a_chat_answer_that_breaks_before_its_finish_is_begun_anew(server: Server) -> None:
    half = b'data: {"choices":[{"delta":{"content":"hel"}}]}\n\n'
    server.answers = [streams(half, drop=True), streams(FINISHED)]
    first, retry, *rest = await server.take(provider=OpenAIChat())
    assert first == Delta("text", "hel", 0)
    assert isinstance(retry, Retry)
    assert retry.restart
    assert rest == ENDED


@pytest.mark.parametrize(
    "silence", [START, PING * 3, b": comment\n\n", b""], ids=["start", "pings", "comment", "-"]
)
async def test_a_stream_that_falls_silent_is_given_up(server: Server, silence: bytes) -> None:
    server.answers = [streams(silence, hold=asyncio.Event()), streams(said("hello"))]
    retry, *rest = await server.take(Clock().policy(stall=0.3))
    assert isinstance(retry, Retry)
    assert "no event for 0.3 s" in retry.why
    assert rest == WHOLE


class Paced(Anthropic):
    """A provider whose answer's pieces each take some of a clock's seconds to come."""

    def __init__(self, clock: Clock, *pieces: tuple[float, bytes]) -> None:
        @asynccontextmanager
        async def send(_: Request) -> AsyncIterator[Answer]:
            async def chunks() -> AsyncIterator[bytes]:
                for seconds, data in pieces:
                    clock.now += seconds
                    yield data

            yield Answer(200, {}, chunks())

        super().__init__(transport=send)


async def test_pings_do_not_keep_a_silent_stream_alive() -> None:
    clock = Clock()
    provider = Paced(clock, (1, START), *[(100.0, PING)] * 9)
    with pytest.raises(ProviderError, match="no event for 300 s"):
        [_ async for _ in stream(provider, Request("", {}, b""), policy=clock.policy(tries=1))]
    assert clock.now == 100 + 1 + 300


async def test_a_slow_answer_may_take_any_time_in_all() -> None:
    clock = Clock()
    slow = [(299.0, piece(str(number))) for number in range(9)]
    provider = Paced(clock, (299, START + TEXT), *slow, (299, STOP + END))
    found = [event async for event in stream(provider, Request("", {}, b""), policy=clock.policy())]
    assert found[-2:] == [Block("text", b"012345678"), DONE]


async def test_the_time_that_tries_may_take_counts_from_the_first_failure() -> None:
    clock = Clock()
    provider = Paced(clock, (250.0, START), (250.0, PING))
    with pytest.raises(ProviderError, match="tried 3 times in"):
        [_ async for _ in stream(provider, Request("", {}, b""), policy=clock.policy())]
    assert clock.slept == [1, 2]


async def test_a_cancelled_request_closes_its_connection_at_once(server: Server) -> None:
    server.answers = [streams(START + TEXT + piece("x"), hold=asyncio.Event())]
    begun = asyncio.Event()

    async def follow() -> None:
        async with open_session() as session:
            async for _ in stream(Anthropic(), server.request(), session=session):
                begun.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow(), name="follow")
        await begun.wait()
        task.cancel()
    assert task.cancelled()
    await server.gone.wait()


async def test_a_stream_that_is_left_early_closes_its_connection(server: Server) -> None:
    server.answers = [streams(START + TEXT + piece("x"), hold=asyncio.Event())]
    async with open_session() as session:
        async with aclosing(stream(Anthropic(), server.request(), session=session)) as events:
            assert await anext(events) == Delta("text", "x", 0)
        await server.gone.wait()


async def test_a_wait_for_the_next_try_can_be_cancelled(server: Server) -> None:
    server.answers = [answers(503)]
    waiting = asyncio.Event()

    async def sleep(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.take(RetryPolicy(sleep=sleep)), name="take")
        await waiting.wait()
        task.cancel()
    assert task.cancelled()


async def test_a_redirect_is_not_followed_with_the_key(server: Server) -> None:
    server.answers = [answers(307, location="http://elsewhere.example/")]
    error = await server.fail()
    assert (error.code, error.status) == ("redirect", 307)
    assert "http://elsewhere.example/" in error.message
    assert len(server.bodies) == 1


async def test_a_page_instead_of_a_stream_is_said_to_be_one(server: Server) -> None:
    server.answers = [answers(200, "<h1>Log in</h1>", content_type="text/html")]
    assert (await server.fail()).code == "not_a_stream"


@pytest.mark.parametrize(
    ("kind", "body", "code", "words"),
    [
        ("Text/HTML; charset=utf-8", b"<h1>Log in</h1>", "not_a_stream", "Log in"),
        ("text/event-stream", b"\n<html>Bad Gateway</html>", "not_a_stream", "Bad Gateway"),
        ("text/event-stream", b'{"error":{"message":"model not loaded"}}', "server", "model not loaded"),
        (
            "text/event-stream",
            b'{"error":{"type":"invalid_request_error","message":"no such model"}}',
            "invalid",
            "no such model",
        ),
        ("text/plain", b"upstream connect error", "cut", "what came: upstream connect error"),
        ("text/event-stream", b"", "cut", "it was empty"),
        ("text/event-stream", b": nothing but a comment\n\n", "cut", "before its first event"),
    ],
)
async def test_what_came_in_place_of_a_stream_is_told_whatever_it_calls_itself(
    server: Server, kind: str, body: bytes, code: str, words: str
) -> None:
    server.answers = [streams(body, headers={"content-type": kind})]
    error = await server.fail(Clock().policy(tries=1))
    assert error.code == code
    assert words in error.message


async def test_what_does_not_speak_http_is_told_without_a_status_that_nobody_sent(server: Server) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x15\x03\x01\x00\x02\x02\x46")  # a TLS server's alert
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening, open_session() as session:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
        request = structs.replace(server.request(), url=url)
        with pytest.raises(ProviderError) as caught:
            [_ async for _ in stream(Anthropic(), request, session=session, policy=Clock().policy(tries=1))]
    assert (caught.value.code, caught.value.retryable) == ("connection", True)
    assert "does not speak HTTP" in caught.value.message
    assert "400" not in caught.value.message


async def test_an_error_body_that_never_ends_is_cut(server: Server) -> None:
    server.answers = [streams(b"x" * 200_000, hold=asyncio.Event(), status=400)]
    assert (await server.fail()).status == 400


async def test_a_provider_that_is_not_there_is_tried_again(server: Server) -> None:
    async with open_session() as session:
        request = Request("http://127.0.0.1:1/v1/messages", {"x-api-key": KEY}, b"{}")
        with pytest.raises(ProviderError) as caught:
            [_ async for _ in stream(Anthropic(), request, session=session, policy=Clock().policy(tries=2))]
    assert (caught.value.code, caught.value.retryable) == ("connection", True)
    assert "cannot be reached" in caught.value.message
    assert caught.value.message.endswith("; tried 2 times")


async def test_a_connection_that_is_not_secure_is_not_tried_again(server: Server) -> None:
    server.answers = [answers(200)]
    request = structs.replace(server.request(), url=server.url.replace("http:", "https:"))
    async with open_session() as session:
        with pytest.raises(ProviderError) as caught:
            [_ async for _ in stream(Anthropic(), request, session=session, policy=Clock().policy())]
    assert caught.value.code == "tls"


@pytest.mark.parametrize("url", ["http://", "nowhere", "ftp://127.0.0.1/", ""])
async def test_a_request_that_cannot_be_sent_says_so_without_the_key(server: Server, url: str) -> None:
    request = Request(url or server.url, {"x-api-key": KEY if url else f"{KEY}\n"}, b"{}")
    async with open_session() as session:
        with pytest.raises(ProviderError) as caught:
            [_ async for _ in stream(Anthropic(), request, session=session, policy=Clock().policy())]
    assert caught.value.code == "url"
    assert KEY not in caught.value.message


async def test_a_provider_over_http_needs_a_client_session() -> None:
    with pytest.raises(ValueError, match="client session"):
        await anext(stream(Anthropic(), Request("", {}, b"")))


async def test_a_key_in_a_bearer_header_is_hidden_too(server: Server) -> None:
    server.answers = [answers(400, f"no such key: {KEY}")]
    async with open_session() as session:
        request = Request(
            f"{server.url}/v1/messages", {"authorization": f"Bearer {KEY}", "accept": "key"}, b"{}"
        )
        with pytest.raises(ProviderError, match=r"no such key: \*\*\*"):
            [_ async for _ in stream(Anthropic(), request, session=session)]


async def test_an_unread_error_of_the_client_is_ours(server: Server) -> None:
    server.answers = [streams(START, headers={"content-encoding": "gzip"})]
    error = await server.fail(Clock().policy(tries=1))
    assert error.retryable
    assert isinstance(error, ProviderError)
    assert not isinstance(error, aiohttp.ClientError)


async def test_a_body_that_unpacks_to_much_is_taken_in_small_pieces(server: Server) -> None:
    nothing = b": nothing" * 11 + b"\n"
    packed = gzip.compress(START + nothing * 100_000 + said("hello").removeprefix(START))
    server.answers = [streams(packed, headers={"content-encoding": "gzip"})]
    sizes: list[int] = []

    class Measured(MessagesDecoder):
        def feed(self, data: bytes) -> list[Event]:
            sizes.append(len(data))
            return super().feed(data)

    class Measuring(Anthropic):
        def decoder(self) -> MessagesDecoder:
            return Measured()

    assert await server.take(provider=Measuring()) == WHOLE
    assert max(sizes) <= TAKEN
    assert sum(sizes) > 10_000_000


async def test_an_error_is_valid_unicode_for_whoever_follows(server: Server) -> None:
    broken = event("error", error={"type": "overloaded_error", "message": "half \ud800" + "m" * 10**6})
    server.answers = [streams(START, broken), streams(said("hello"))]
    retry, *rest = await server.take()
    assert isinstance(retry, Retry)
    assert retry.why.startswith("half \ufffdm")
    assert len(retry.why) < 5000
    assert rest == WHOLE
