"""Looking for servers of models on this machine, as each kind of them answers."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from daemon.config import ProviderEntry
from daemon.protocol import api
from daemon.provider.scanning import MOST, scan

Start = Callable[..., Awaitable[int]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a server on loopback that answers GET /v1/models so; its port."""
    runners: list[web.AppRunner] = []

    async def started(answer: Any, status: int = 200, server: str = "", root: str = "") -> int:
        async def models(_: web.Request) -> web.Response:
            body = {"body": answer} if isinstance(answer, bytes) else {"text": web.json_response(answer).text}
            return web.Response(status=status, headers={"Server": server} if server else None, **body)

        async def home(_: web.Request) -> web.Response:
            return web.Response(text=root)

        app = web.Application()
        app.router.add_get("/v1/models", models)
        app.router.add_get("/", home)
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port: int = runner.addresses[0][1]
        return port

    yield started
    for runner in runners:
        await runner.cleanup()


def lists(*names: str, owner: str = "me") -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": owner} for name in names]}


@pytest.mark.parametrize(
    ("answer", "more", "server", "name"),
    [
        (lists("qwen3:8b", owner="library"), {}, "Ollama", "ollama"),
        (lists("ada/own-model", owner="ada"), {"root": "Ollama is running"}, "Ollama", "ollama"),
        ({"object": "list", "data": None}, {"root": "Ollama is running"}, None, None),
        (lists("gpt-oss-20b", owner="llamacpp"), {"server": "llama.cpp"}, "llama.cpp", "llamacpp"),
        (lists("m.gguf"), {"server": "llama.cpp"}, "llama.cpp", "llamacpp"),
        (lists("meta-llama/Llama-3.3-70B", owner="vllm"), {}, "vLLM", "vllm"),
        (lists("qwen/qwen3-4b", owner="organization_owner"), {}, "LM Studio", "lmstudio"),
        (lists("x"), {"server": "uvicorn"}, "a server of Chat Completions (uvicorn)", "local"),
    ],
)
async def test_each_server_is_known_by_what_it_says(
    start: Start, answer: Any, more: dict[str, str], server: str | None, name: str | None
) -> None:
    port = await start(answer, **{"server": "", **more} if "server" not in more else more)
    found = await scan({}, [port])
    if server is None:
        assert found == [], "it lists nothing"
        return
    (one,) = found
    assert (one.name, one.url) == (name, f"http://127.0.0.1:{port}/v1")
    assert one.server.startswith(server.partition(" (")[0])
    assert one.models == tuple(entry["id"] for entry in answer["data"])


async def test_what_answers_otherwise_is_no_server_of_models(start: Start, unused_tcp_port: int) -> None:
    ports = [
        await start(b"<html>hello</html>"),
        await start({"models": 3}),
        await start(lists("x"), status=404),
        await start(b"[" * 100_000),
        await start(b"x" * (MOST + 1)),
        unused_tcp_port,
    ]
    assert await scan({}, ports) == []


async def test_one_that_wants_a_key_and_one_without_a_model_are_told(start: Start) -> None:
    closed, empty = await start({}, status=401), await start(lists(), root="Ollama is running")
    assert [(found.name, found.note) for found in await scan({}, [closed, empty])] == [
        ("local", "it wants a key"),
        ("ollama", "it has no model yet"),
    ]


async def test_one_that_is_set_up_is_told_so_and_a_name_that_is_taken_is_not_given_again(
    start: Start,
) -> None:
    ports = [await start(lists("a", owner="vllm")) for _ in range(3)]
    entries = {
        "mine": ProviderEntry("openai-chat", f"http://localhost:{ports[0]}/v1"),
        "vllm": ProviderEntry(),
    }
    found = await scan(entries, ports)
    assert [one.configured for one in found] == ["mine", "", ""]
    assert [one.name for one in found] == [f"vllm-{port}" for port in ports]
    assert {one.name for one in await scan({}, ports)} == {"vllm", f"vllm-{ports[1]}", f"vllm-{ports[2]}"}


async def test_a_server_that_says_nothing_is_waited_for_no_longer_than_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel takes connections, nobody answers
        assert await scan({}, [silent.getsockname()[1]], 0.2) == []


def test_a_scan_asks_for_ports_that_there_are() -> None:
    assert msgspec.convert({}, api.Scan).ports == ()
    for wrong in ([0], [65536], ["x"], [1] * 101):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"ports": wrong}, api.Scan)
