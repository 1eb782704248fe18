import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from daemon.config import ModelEntry, ProviderEntry
from daemon.protocol.api import ProviderSetting
from daemon.provider import listed
from daemon.provider.asking import Asking
from daemon.provider.base import Model, ProviderError
from daemon.provider.entries import BASE_URL
from daemon.provider.http import open_session
from daemon.provider.listing import MAX_ANSWER, list_models
from daemon.provider.models import TEXT_AND_IMAGES
from daemon.provider.openai_chat import OpenAIChat
from daemon.provider.registry import Registry
from daemon.provider.service import Providers

LONG = 30.0  # seconds, and never that long: for what is waited for
KEY = "sk-very-secret-0123456789"
WORDS = ("text/plain",)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


# What servers list.


@pytest.mark.parametrize(
    ("entry", "model"),
    [
        ({"id": "qwen3:8b", "object": "model", "owned_by": "library"}, Model("qwen3:8b", 0, 0, WORDS)),
        ({"id": "llama", "max_model_len": 4096}, Model("llama", 4096, 0, WORDS)),
        ({"id": "llama", "meta": {"n_ctx_train": 131072}}, Model("llama", 131072, 0, WORDS)),
        (
            {"id": "kimi", "context_window": 262144, "max_completion_tokens": 16384},
            Model("kimi", 262144, 16384, WORDS),
        ),
        (
            {
                "id": "anthropic/claude-haiku-4.5",
                "context_length": 200000,
                "architecture": {"input_modalities": ["text", "image"]},
                "top_provider": {"max_completion_tokens": 64000},
            },
            Model("anthropic/claude-haiku-4.5", 200000, 64000, TEXT_AND_IMAGES),
        ),
        (
            {"id": "mistral-small-latest", "max_context_length": 131072, "capabilities": {"vision": True}},
            Model("mistral-small-latest", 131072, 0, TEXT_AND_IMAGES),
        ),
        (
            {"id": "openai/gpt-4o-2024-08-06"},
            Model("openai/gpt-4o-2024-08-06", 128000, 16384, TEXT_AND_IMAGES),
        ),
        ({"id": "odd", "context_length": "9", "meta": 3}, Model("odd", 0, 0, WORDS)),
    ],
)
def test_an_entry_is_read_as_each_server_writes_it(entry: dict[str, Any], model: Model) -> None:
    assert listed.parse({"object": "list", "data": [entry]}) == (model,)


def test_models_that_do_not_talk_are_left_out_and_well_known_ones_come_first() -> None:
    names = [
        "nomic-embed-text",
        "qwen3",
        "whisper-1",
        "gpt-4o",
        "deepseek/deepseek-chat",
        "qwen3",
        "dall-e-3",
    ]
    found = listed.parse({"data": [*({"id": name} for name in names), {}, {"id": ""}, None]})
    assert [model.name for model in found] == ["gpt-4o", "deepseek/deepseek-chat", "qwen3"]


@pytest.mark.parametrize("answer", [{}, {"data": 3}, None, "x", {"data": None}])
def test_an_answer_without_a_list_is_none(answer: Any) -> None:
    with pytest.raises(ValueError, match="lists no models"):
        listed.parse(answer)


def test_a_bare_list_is_one_too() -> None:
    assert [model.name for model in listed.parse([{"id": "a"}])] == ["a"]
    assert [model.name for model in listed.parse({"models": [{"name": "a"}]})] == ["a"]


# Asking for it.


class Server:
    """A server on loopback that answers GET /v1/models."""

    def __init__(self) -> None:
        self.answer: Handler = self.lists("first", "second")
        self.url = ""
        self.keys: list[str] = []
        self.paths: list[str] = []

    def lists(self, *names: str) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            self.keys.append(request.headers.get("Authorization", ""))
            return web.json_response({"data": [{"id": name} for name in names]})

        return answer

    def says(self, status: int, body: bytes) -> Handler:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=status, body=body)

        return answer


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    serving = Server()

    async def serve(request: web.Request) -> web.StreamResponse:
        serving.paths.append(request.path)
        return await serving.answer(request)

    app = web.Application()
    app.router.add_get("/{version}/models", serve)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    host, port = site._server.sockets[0].getsockname()  # type: ignore[attr-defined]
    serving.url = f"http://{host}:{port}"
    yield serving
    await runner.cleanup()


async def failed(server: Server, limit: float = 5.0) -> ProviderError:
    provider = OpenAIChat(url=server.url, key=KEY, known=[Model("mine")])
    async with open_session() as http:
        with pytest.raises(ProviderError) as caught:
            await list_models(provider, http, limit)
    assert KEY not in caught.value.message
    assert [model.name for model in provider.models()] == ["mine"], "what was known stays"
    return caught.value


async def test_a_server_lists_its_models_after_those_configured(server: Server) -> None:
    provider = OpenAIChat(url=server.url, key=KEY, known=[Model("second", 9), Model("mine")])
    async with open_session() as http:
        found = await list_models(provider, http)
    assert [(model.name, model.context) for model in found] == [("second", 9), ("mine", 0), ("first", 0)]
    assert list(found) == list(provider.models())
    assert server.keys == [f"Bearer {KEY}"]


async def test_a_server_that_refuses_says_why_without_the_key(server: Server) -> None:
    server.answer = server.says(401, json.dumps({"error": {"message": f"bad key {KEY}"}}).encode())
    error = await failed(server)
    assert (error.code, error.message) == ("auth", "bad key *** (status 401)")


async def test_an_answer_that_is_no_list_is_said_to_be_none(server: Server) -> None:
    for body in (b"<html>", b"{}", b"[" * MAX_ANSWER + b"["):
        server.answer = server.says(200, body)
        assert (await failed(server)).code == "not_a_list"


async def test_a_redirect_is_not_followed_with_the_key(server: Server) -> None:
    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPFound("http://127.0.0.1:1/")

    server.answer = elsewhere
    assert (await failed(server)).status == 302


async def test_a_server_that_does_not_answer_is_not_waited_for(server: Server) -> None:
    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    server.answer = never
    error = await failed(server, 0.05)
    assert (error.code, error.message) == ("timeout", "no list of models from openai-chat within 0.05 s")


async def test_a_server_that_is_not_there_is_said_not_to_be(unused_tcp_port: int) -> None:
    async with open_session() as http:
        with pytest.raises(ProviderError) as caught:
            await list_models(OpenAIChat(url=f"http://127.0.0.1:{unused_tcp_port}"), http)
    assert caught.value.code == "connection"


async def test_a_daemons_providers_ask_when_they_are_told_to_and_not_again_at_once(
    server: Server, tmp_path: Path
) -> None:
    env = {BASE_URL: server.url}
    providers = await asyncio.to_thread(Providers, tmp_path / "p.toml", {}, {}, env, None)
    await providers.refresh(LONG)
    assert providers.default() == "rehearsal/tour", "there is nothing to ask with"
    async with open_session() as http, providers.using(http):
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(providers.refresh(LONG), name=f"refresh {number}")
        assert providers.default() == "openai-chat/first"
        assert len(server.keys) == 1
        server.answer = server.lists("mine")
        await providers.set("more", ProviderSetting(kind="openai-chat", url=server.url))
        assert providers.default() == "openai-chat/first", "what is known of the others stays known"
        await providers.refresh(LONG)
    assert len(server.keys) == 2, "one that is set up is asked at once"
    described = {info.name: info for info in providers.describe().providers}
    assert [model.name for model in described["more"].models] == ["more/mine"]
    chat = described["openai-chat"]
    assert (chat.kind, chat.url, chat.has_key) == ("openai-chat", server.url, False)


async def test_nobody_waits_for_a_server_that_does_not_answer_unless_he_says_so(
    server: Server, tmp_path: Path
) -> None:
    asked, go = asyncio.Event(), asyncio.Event()
    quick = server.answer

    async def slow(request: web.Request) -> web.StreamResponse:
        asked.set()
        await go.wait()
        return await quick(request)

    server.answer = slow
    mute = {"mute": {"kind": "openai-chat", "url": server.url}}
    providers = await asyncio.to_thread(Providers, tmp_path / "p.toml", mute, {}, {}, None)

    def told() -> tuple[bool, list[str]]:
        info = providers.describe().providers[0]
        return info.asking, [model.name for model in info.models]

    async with open_session() as http, providers.using(http):
        assert told() == (False, [])
        await providers.refresh()
        await asked.wait()
        await providers.refresh(0.01)
        assert told() == (True, []), "it is being asked, and nobody asks it twice"
        assert len(server.paths) == 1
        go.set()
        await providers.refresh(LONG)
        assert told() == (False, ["mute/first", "mute/second"])
        assert len(server.paths) == 1
    await providers.refresh(LONG)


async def test_what_is_asked_is_let_go_of_at_the_end(server: Server, tmp_path: Path) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def never(_: web.Request) -> web.Response:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        raise AssertionError

    server.answer = never
    mute = {"mute": {"kind": "openai-chat", "url": server.url}}
    providers = await asyncio.to_thread(Providers, tmp_path / "p.toml", mute, {}, {}, None)
    async with open_session() as http:
        async with providers.using(http):
            await providers.refresh()
            await asked.wait()
        await left.wait()
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "models of mute"] == []


async def test_a_start_waits_for_the_lists_of_those_alone_of_which_no_model_is_known(
    server: Server, tmp_path: Path
) -> None:
    entries = {
        "known": {"kind": "google", "url": server.url, "key": "AIza-not-a-real-key"},
        "local": {"kind": "openai-chat", "url": server.url},
    }
    providers = await asyncio.to_thread(Providers, tmp_path / "p.toml", entries, {}, {}, None)
    async with open_session() as http, providers.using(http):
        await providers.begin(LONG)
        assert "local/first" in providers.served()
        assert server.paths == ["/v1/models"]
        await providers.refresh(LONG)
    assert server.paths == ["/v1/models", "/v1beta/models"], "the others are asked after it"


async def test_a_server_that_gives_no_list_keeps_the_daemon_going(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    env = {BASE_URL: f"http://127.0.0.1:{unused_tcp_port}/v1", "OPENAI_MODEL": "mine"}
    providers = await asyncio.to_thread(Providers, tmp_path / "p.toml", {}, {}, env, None)
    async with open_session() as http, providers.using(http):
        await providers.refresh(LONG)
    assert providers.default() == "openai-chat/mine"


async def test_every_server_that_is_worth_it_is_asked(server: Server, unused_tcp_port: int) -> None:
    entries = {
        "gone": ProviderEntry("openai-chat", f"http://127.0.0.1:{unused_tcp_port}"),
        "fixed": ProviderEntry("openai-chat", "http://127.0.0.1:1", models={"only": ModelEntry()}),
    }
    registry = await asyncio.to_thread(Registry, entries, env={BASE_URL: server.url})
    assert registry.default() == "fixed/only"
    with capture_logs() as lines:
        async with open_session() as http, Asking(http) as asking:
            asking.ask(registry.providers)
            await asking.wait(LONG)
    assert [line["provider"] for line in lines if line["event"] == "no list of models"] == ["gone"]
    assert asking.why("gone").startswith("the provider cannot be reached: 127.0.0.1:")
    assert not asking.why("openai-chat")
    assert registry.served()[:3] == ["fixed/only", "openai-chat/first", "openai-chat/second"]


async def test_the_default_is_the_first_model_that_the_environments_server_lists(server: Server) -> None:
    registry = await asyncio.to_thread(Registry, {}, env={BASE_URL: server.url})
    assert registry.default() == "rehearsal/tour", "nobody knows any other yet"
    async with open_session() as http, Asking(http) as asking:
        asking.ask(registry.providers)
        await asking.wait(LONG)
    assert registry.default() == "openai-chat/first"
