"""Trying a provider with one request: what is said of each way in which it can end."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from daemon.protocol.api import ProviderSetting
from daemon.protocol.records import Usage
from daemon.provider.base import Model, ProviderError
from daemon.provider.http import open_session
from daemon.provider.openai_chat import OpenAIChat
from daemon.provider.probing import probe
from daemon.provider.rehearsal import Rehearsal
from daemon.provider.service import Providers

KEY = "sk-very-secret-0123456789"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CHUNKS = (
    {"model": "served-1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "rea"}}]},
    {"choices": [{"index": 0, "delta": {"content": "dy"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3}},
)


class Server:
    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Any] = []
        self.answer: Handler = self.streams

    async def streams(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in CHUNKS) + "data: [DONE]\n\n"
        return web.Response(text=body, content_type="text/event-stream")

    def refuses(self, status: int, body: Any, type: str = "application/json") -> None:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=status, text=json.dumps(body), content_type=type)

        self.answer = answer


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    serving = Server()

    async def serve(request: web.Request) -> web.StreamResponse:
        return await serving.answer(request)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", serve)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    serving.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield serving
    await runner.cleanup()


def provider(url: str) -> OpenAIChat:
    return OpenAIChat("mine", url=url, key=KEY)


async def test_an_answer_is_told_with_who_gave_it_and_what_it_took(server: Server) -> None:
    async with open_session() as http:
        got = await probe(provider(server.url), Model("m"), http)
    assert (got.ok, got.model, got.served_by, got.said, got.stop) == (
        True,
        "mine/m",
        "served-1",
        "ready",
        "stop",
    )
    assert got.usage == Usage(12, 3)
    assert got.first is not None
    assert 0 <= got.first <= got.seconds
    (request,) = server.requests
    assert request["model"] == "m"
    assert len(json.dumps(request)) < 300, "it is a small one"


@pytest.mark.parametrize(
    ("status", "body", "code", "words", "fix"),
    [
        (
            401,
            {"error": {"message": f"wrong key {KEY}"}},
            "auth",
            "wrong key ***",
            "`outrider providers set mine`",
        ),
        (404, {"error": {"message": "no model m"}}, "not_found", "no model m", "outrider models"),
        (402, {"error": {"message": "pay"}}, "billing", "pay", "add credit"),
        (429, {"error": {"message": "slow"}}, "rate_limit", "slow", "try again later"),
        (503, {"error": {"message": "full"}}, "overloaded", "full", "try again later"),
        (400, {"error": {"message": "stream_options?"}}, "invalid", "stream_options?", "quirks"),
        (200, {"hello": 1}, "not_a_stream", "came instead of a stream", "correct the provider's url"),
    ],
)
async def test_a_refusal_is_told_in_the_providers_words_with_what_to_do(
    server: Server, status: int, body: Any, code: str, words: str, fix: str
) -> None:
    server.refuses(status, body)
    async with open_session() as http:
        got = await probe(provider(server.url), Model("m"), http)
    assert (got.ok, got.code) == (False, code)
    assert words in got.message
    assert "tried" not in got.message
    assert fix in got.fix
    assert KEY not in got.message


async def test_a_server_that_is_not_there_is_told_so(unused_tcp_port: int) -> None:
    async with open_session() as http:
        got = await probe(provider(f"http://127.0.0.1:{unused_tcp_port}/v1"), Model("m"), http)
        ours = await probe(provider(f"http://127.0.0.1:{unused_tcp_port}/v1"), Model("m"), http, vendors=True)
    assert (got.ok, got.code) == (False, "connection")
    assert got.message == f"the provider cannot be reached: 127.0.0.1:{unused_tcp_port}: Connection refused"
    assert "start the server" in got.fix
    assert "DNS" in ours.fix


async def test_an_answer_that_does_not_end_with_a_word_is_cut_where_it_is_seen(server: Server) -> None:
    async def much(_: web.Request) -> web.Response:
        said = {"choices": [{"index": 0, "delta": {"content": "ready " * 99}, "finish_reason": "stop"}]}
        return web.Response(
            text=f"data: {json.dumps(said)}\n\ndata: [DONE]\n\n", content_type="text/event-stream"
        )

    server.answer = much
    async with open_session() as http:
        got = await probe(provider(server.url), Model("m"), http)
    assert got.ok
    assert (len(got.said), got.said[:12], got.said[-3:]) == (200, "ready ready ", " r…")


async def test_a_server_that_does_not_come_to_an_end_is_left(server: Server) -> None:
    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    server.answer = never
    async with open_session() as http:
        got = await probe(provider(server.url), Model("m"), http, 0.2)
    assert (got.ok, got.code, got.message) == (False, "timeout", "no whole answer within 0.2 s")


async def test_a_rehearsal_can_be_tried_too() -> None:
    got = await probe(Rehearsal(speed=0), Model("echo"), None)
    assert (got.ok, got.model, got.said) == (True, "rehearsal/echo", "Answer with the one word: ready")
    refused = await probe(Rehearsal(["refused"], speed=0), Model("refused"), None)
    assert not refused.ok


async def test_a_daemon_tries_the_first_model_unless_one_is_named(server: Server, tmp_path: Path) -> None:
    written = {"mine": {"kind": "openai-chat", "url": server.url, "models": {"first": {}, "second": {}}}}
    providers = await asyncio.to_thread(Providers, tmp_path / "p.toml", {}, written, {}, None)
    async with open_session() as http, providers.using(http):
        assert (await providers.test("mine", "")).model == "mine/first"
        assert (await providers.test("mine", "other")).model == "mine/other"
        with pytest.raises(ProviderError, match=r"^there is no provider 'nobody'; there are mine, rehearsal"):
            await providers.test("nobody", "")
        await providers.set("empty", ProviderSetting("openai-chat", server.url))
        with pytest.raises(ProviderError, match=r"empty lists no model; name one: .* empty/MODEL"):
            await providers.test("empty", "")
