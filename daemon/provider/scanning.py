"""Look on this machine for servers of Chat Completions: the ports that the usual ones have, all asked at once."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from daemon.config import ProviderEntry
from daemon.protocol import api
from daemon.provider import listed

PORTS: Final = (11434, 1234, 8080, 8000)  # Ollama, LM Studio, llama.cpp, vLLM unless told otherwise
HOST: Final = "127.0.0.1"
LIMIT: Final = 2.0  # seconds; who is on this machine answers in milliseconds
MOST: Final = 1 << 20  # bytes of an answer
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

# By what a server says of who owns its models: its name for people, and as a provider.
OWNERS: Final[Mapping[str, tuple[str, str]]] = {
    "library": ("Ollama", "ollama"),
    "llamacpp": ("llama.cpp", "llamacpp"),
    "vllm": ("vLLM", "vllm"),
    "organization_owner": ("LM Studio", "lmstudio"),
    "sglang": ("SGLang", "sglang"),
}


async def scan(
    entries: Mapping[str, ProviderEntry], ports: Iterable[int] = PORTS, limit: float = LIMIT
) -> list[api.Found]:
    """The servers that answer on loopback, by port; `entries`: the providers there are, so that none is found anew.

    Each port gets `limit` seconds. No proxy is asked, and no key is sent.
    """
    timeout = aiohttp.ClientTimeout(total=limit)
    async with (
        aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as http,
        asyncio.TaskGroup() as group,
    ):
        asked = [group.create_task(_ask(http, port), name=f"look at port {port}") for port in ports]
    found: list[api.Found] = []
    taken = {*entries}
    for task in asked:
        if (server := task.result()) is not None:
            name = _free(server.name, taken, server.url)
            taken.add(name)
            found.append(
                msgspec.structs.replace(server, name=name, configured=_configured(entries, server.url))
            )
    return found


async def _ask(http: aiohttp.ClientSession, port: int) -> api.Found | None:
    url = f"http://{HOST}:{port}/v1"
    try:
        async with http.get(f"{url}/models", allow_redirects=False) as response:
            said = response.headers.get("Server", "")
            if response.status in (401, 403):
                return api.Found(url, _named(said), "local", note="it wants a key")
            if response.status != 200:
                return None
            body = await _read(response)
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
        return None
    try:
        answer = msgspec.json.decode(body)
        models = listed.parse(answer)
    except (ValueError, RecursionError):
        return None  # some other web server
    title, name = OWNERS.get(_owner(answer), ("", ""))
    if not title and "llama.cpp" in said:
        title, name = OWNERS["llamacpp"]
    if not title and await _is_ollama(http, port):
        title, name = OWNERS["library"]
    note = "" if models else "it has no model yet"
    return api.Found(url, title or _named(said), name or "local", tuple(model.name for model in models), note)


async def _is_ollama(http: aiohttp.ClientSession, port: int) -> bool:
    """One whose models are somebody's own, or that has none, says who it is at its root."""
    try:
        async with http.get(f"http://{HOST}:{port}/", allow_redirects=False) as response:
            return (await _read(response)).startswith(b"Ollama is running")
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
        return False


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MOST:
            raise ValueError("too long")
    return bytes(body)


def _owner(answer: Any) -> str:
    entries = answer.get("data") if isinstance(answer, dict) else None
    first = entries[0] if isinstance(entries, list) and entries else None
    owner = first.get("owned_by") if isinstance(first, dict) else None
    return owner.lower() if isinstance(owner, str) else ""


def _named(server: str) -> str:
    """What a server calls itself, where that says something to somebody."""
    return f"a server of Chat Completions ({server[:40]})" if server else "a server of Chat Completions"


def _free(name: str, taken: set[str], url: str) -> str:
    """A name that no provider has."""
    port = urlsplit(url).port
    return next(
        free
        for free in (name, f"{name}-{port}", f"{name}-{port}-2")
        if free not in taken or free[-2:] == "-2"
    )


def _configured(entries: Mapping[str, ProviderEntry], url: str) -> str:
    """The provider that has this address already, empty for none."""
    port = urlsplit(url).port
    for name, entry in entries.items():
        try:
            parts = urlsplit(entry.url)
            if parts.hostname in LOOPBACK and (parts.port or 80) == port:
                return name
        except ValueError:
            continue
    return ""
