"""A daemon with Bedrock's wire against a server of our own that speaks it: keys, signatures, calls, faults inside."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from daemon.client import Client
from daemon.protocol import api
from daemon.protocol.records import TEXT, Usage, WorkerRef
from daemon.provider.converse import REASONING
from daemon.provider.rules_converse import problems
from tests.aws_check import signature
from tests.aws_frames import event, exception
from tests.running import Place, place

REGION, ACCESS, SECRET, TOKEN = "eu-west-1", "AKIDEXAMPLE", "c2VjcmV0LWtleQ", "session/token+="
BEARER = "bedrock-api-key-0123456789"
MODEL = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
ARN = f"arn:aws:bedrock:{REGION}:123456789012:inference-profile/{MODEL}"
CODE = "echo $((6 * 7))"


def piece(index: int, delta: dict[str, Any]) -> bytes:
    return event("contentBlockDelta", contentBlockIndex=index, delta=delta)


def over(index: int) -> bytes:
    return event("contentBlockStop", contentBlockIndex=index)


START = event("messageStart", role="assistant")
THOUGHT = (
    piece(0, {"reasoningContent": {"text": "I count."}})
    + piece(0, {"reasoningContent": {"signature": "c2ln+/=="}})
    + over(0)
)
CALL = (
    piece(1, {"text": "Let me see."})
    + over(1)
    + event(
        "contentBlockStart", contentBlockIndex=2, start={"toolUse": {"toolUseId": "tooluse_1", "name": "run"}}
    )
    + piece(2, {"toolUse": {"input": '{"worker": "local", '}})
    + piece(2, {"toolUse": {"input": f'"code": "{CODE}"}}'}})
    + over(2)
    + event("messageStop", stopReason="tool_use")
)
SAID = piece(0, {"text": "It is 42."}) + over(0) + event("messageStop", stopReason="end_turn")


def counts(**usage: int) -> bytes:
    return event("metadata", usage=usage, metrics={"latencyMs": 1})


# The first try is throttled in the middle of the answer.
ANSWERS = [
    START
    + THOUGHT
    + piece(1, {"text": "Let m"})
    + exception("throttlingException", message="Too many tokens."),
    START + THOUGHT + CALL + counts(inputTokens=10, outputTokens=20, cacheWriteInputTokens=30),
    START + SAID + counts(inputTokens=1, outputTokens=2, cacheReadInputTokens=30),
]


class Mock:
    """The server: it plays ANSWERS one after the other and remembers what was asked, and what was wrong with it."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.models: list[str] = []
        self.bad: list[str] = []
        self.keys: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.bad += problems(body)
        self.bodies.append(msgspec.json.decode(body))
        path = re.fullmatch(r"/model/([^/]+)/converse-stream", request.raw_path)
        self.models.append(unquote(path[1]) if path else request.raw_path)
        self.keys.append(self.key(request, body))
        response = web.StreamResponse(headers={"content-type": "application/vnd.amazon.eventstream"})
        await response.prepare(request)
        data = ANSWERS[min(len(self.bodies), len(ANSWERS)) - 1]
        for at in range(0, len(data), 50):
            await response.write(data[at : at + 50])
        return response

    def key(self, request: web.Request, body: bytes) -> str:
        """What lets the request in: `bearer`, `signature`, or what is wrong."""
        said = request.headers.get("authorization", "")
        if said.startswith("Bearer "):
            return "bearer" if said == f"Bearer {BEARER}" else said
        headers = {name.lower(): value for name, value in request.headers.items()}
        url = f"http://{request.host}{request.raw_path}"
        right = signature("POST", url, headers, body, ACCESS, SECRET, REGION)
        if headers.get("x-amz-security-token") != TOKEN:
            return "no token"
        return "signature" if said.endswith(f"Signature={right}") else f"{said}, where {right} is right"


@pytest.fixture
def here() -> Iterator[Place]:
    with place() as made:
        yield made


@pytest.fixture
def mock() -> Mock:
    return Mock()


@pytest.fixture
async def url(mock: Mock) -> AsyncIterator[str]:
    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/{rest:.*}", mock.answer)
    server = TestServer(app, host="127.0.0.1")
    await server.start_server()
    yield str(server.make_url("")).rstrip("/")
    await server.close()


def with_key(here: Place, url: str) -> str:
    """Set up by the environment alone; the model to ask."""
    here.environ |= {
        "AWS_BEARER_TOKEN_BEDROCK": BEARER,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": url,
    }
    return MODEL


def with_credentials(here: Place, url: str) -> str:
    """Set up by a table, with a profile whose program gives credentials that are about to end each time."""
    config, aws = here.home / ".config/outrider/outrider.toml", here.home / ".aws"
    config.write_text(f'[providers.bedrock]\nurl = "{url}"\n')
    config.chmod(0o600)
    aws.mkdir()
    helper = aws / "helper"
    fields = f'"AccessKeyId":"{ACCESS}","SecretAccessKey":"{SECRET}","SessionToken":"{TOKEN}"'
    helper.write_text(
        "#!/bin/sh\n"
        'end=$(date -u -d "+1 minute" +%Y-%m-%dT%H:%M:%SZ)\n'
        f'printf \'{{"Version":1,{fields},"Expiration":"%s"}}\' "$end"\n'
    )
    helper.chmod(0o700)
    (aws / "config").write_text(f"[profile work]\nregion = {REGION}\ncredential_process = {helper}\n")
    here.environ["AWS_PROFILE"] = "work"
    return ARN


async def rest(client: Client, id: str) -> api.Info:
    """What stands about the session as soon as nobody steps it."""
    async with asyncio.timeout(50):
        while (info := await client.info(id)).status in ("stepping", "open"):
            await client.records(id, info.n, wait=1)
    return info


@pytest.mark.parametrize(("way", "lets_in"), [(with_key, "bearer"), (with_credentials, "signature")])
async def test_a_session_on_bedrock_thinks_calls_is_throttled_and_ends(
    here: Place, mock: Mock, url: str, way: Any, lets_in: str
) -> None:
    model = way(here, url)
    await asyncio.to_thread(here.up)
    async with Client(here.socket, first_wait=0.05, longest_wait=0.5) as client:
        id = await client.create(api.Create(model=f"bedrock/{model}", workers=(WorkerRef("local"),)))
        await client.post(id, [api.Part(TEXT, b"What is six times seven?")], "test")
        info = await rest(client, id)
        records = await client.records(id)
    assert info.status == "closed", [record.text() for record in records]
    assert mock.bad == []
    assert mock.keys == [lets_in] * 3
    assert mock.models == [model] * 3
    first, again, last = mock.bodies
    assert first == again, "what was throttled is asked once more"

    kept = [record for record in records if record.kind in ("thinking", "text", "call", "result")]
    closed = {record.header.id for record in records if record.kind == "step"}
    said = [record for record in kept if record.kind == "result" or record.header.step in closed]
    assert [record.kind for record in said] == ["thinking", "text", "call", "result", "text"]
    assert said[0].header.type == REASONING
    assert said[3].text().startswith("42"), "the call has really run"
    assert said[4].text() == "It is 42."

    answer, results = last["messages"][1:3]
    reasoning = {"reasoningText": {"text": "I count.", "signature": "c2ln+/=="}}
    assert answer["content"][0] == {"reasoningContent": reasoning}, "thinking goes back as it came"
    assert [next(iter(block)) for block in answer["content"]] == ["reasoningContent", "text", "toolUse"]
    result = results["content"][0]["toolResult"]
    assert (result["toolUseId"], result["content"][0]["text"][:2]) == ("tooluse_1", "42")
    assert results["content"][-1] == {"cachePoint": {"type": "default"}}
    assert info.usage == Usage(11, 22, 30, 30)


async def test_the_provider_is_listed_and_its_key_shown_to_nobody(here: Place, url: str) -> None:
    with_key(here, url)
    await asyncio.to_thread(here.up)
    async with Client(here.socket, first_wait=0.05, longest_wait=0.5) as client:
        said = await client.providers()
    (found,) = [one for one in said.providers if one.name == "bedrock"]
    assert (found.kind, found.has_key, found.served) == ("bedrock", True, True)
    assert said.default == "bedrock/global.anthropic.claude-sonnet-5"
    assert BEARER not in msgspec.json.encode(said).decode()


async def test_without_credentials_a_session_says_what_to_set(here: Place, mock: Mock, url: str) -> None:
    config = here.home / ".config/outrider/outrider.toml"
    config.write_text(f'[providers.bedrock]\nurl = "{url}"\nregion = "{REGION}"\n')
    config.chmod(0o600)
    here.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    await asyncio.to_thread(here.up)
    async with Client(here.socket, first_wait=0.05, longest_wait=0.5) as client:
        id = await client.create(api.Create(model=f"bedrock/{MODEL}"))
        await client.post(id, [api.Part(TEXT, b"hi")], "test")
        info = await rest(client, id)
        records = await client.records(id)
    assert info.status == "failed"
    assert "set AWS_PROFILE or AWS_ACCESS_KEY_ID" in records[-1].text()
    assert mock.bodies == []
