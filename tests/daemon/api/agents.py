"""The agent-server surface as a client sees it: a real harness with a scripted model, over HTTP."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from daemon.api.agentserver import Caps
from daemon.api.gate import Gate
from daemon.api.keys import Keys
from daemon.api.server import Served
from daemon.api.stream import Limits
from daemon.definition.agent import parse
from daemon.statefile.interface import SessionStore
from daemon.statefile.memory import MemoryStore
from tests.daemon.api.fakes import serve
from tests.daemon.harness.doubles import Bench, FakePool, FakeProvider, bench

AGENT = """\
apiVersion: agent-controller.dev/v1alpha1
kind: Agent
metadata: {name: greeter}
spec:
  model: {provider: fake, name: m, temperature: 0.5}
  persona: {role: Greeter, instructions: Be brief.}
  task: Greet ${inputs.who}.
  tools: [{name: bash}]
  skills: []
  inputs: {who: {default: Ada}}
"""
V1 = "/v1/sessions"
Frame = tuple[int, str, dict[str, Any]]


class Frames:
    """One open stream, read frame by frame."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.status = answer.status
        self.answer = answer

    async def next(self) -> Frame:
        """(id or 0, type, data); ("", "", {}) at the end, comments passed over."""
        lines: list[str] = []
        while line := (await self.answer.content.readline()).decode():
            line = line.rstrip("\n")
            if line and not line.startswith((":", "retry:")):
                lines.append(line)
            elif lines:
                fields = dict(line.split(": ", 1) for line in lines)
                frame = json.loads(fields["data"])
                assert frame["type"] == fields["event"]
                return int(fields.get("id", 0)), fields["event"], frame["data"]
        return 0, "", {}

    async def until(self, type: str) -> list[Frame]:
        """Every frame up to the first one of that type."""
        found = [await self.next()]
        while found[-1][1] != type:
            assert found[-1][1], f"the stream ended before {type}: {found}"
            found.append(await self.next())
        return found

    async def rest(self) -> list[Frame]:
        """Every frame to the end of the stream."""
        found = []
        while (frame := await self.next())[1]:
            found.append(frame)
        return found


class Server:
    """A served harness, and a client's calls. `b` is the harness with its fakes."""

    def __init__(self, http: aiohttp.ClientSession, b: Bench, served: Served, gate: Gate) -> None:
        self.http = http
        self.b = b
        self.served = served
        self.gate = gate

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        """(status, the answer's JSON or its error's message)."""
        async with self.http.request(method, f"http://x{path}", json=body, **more) as answer:
            text = await answer.text()
            value: Any = json.loads(text) if text else None
            return answer.status, value["error"]["message"] if answer.status >= 400 else value

    async def create(self, **inputs: Any) -> str:
        status, made = await self.call("POST", V1, {"inputs": inputs})
        assert status == 201, made
        return str(made["id"])

    @asynccontextmanager
    async def turn(self, id: str, text: str = "hi", query: str = "", **more: Any) -> AsyncIterator[Frames]:
        async with self.http.post(f"http://x{V1}/{id}/turns{query}", json={"input": text}, **more) as answer:
            yield Frames(answer)

    async def told(self, id: str, text: str = "hi") -> list[Frame]:
        """A whole turn."""
        async with self.turn(id, text) as frames:
            assert frames.status == 200
            return await frames.rest()

    @asynccontextmanager
    async def events(self, id: str, after: int | None = None, query: str = "") -> AsyncIterator[Frames]:
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        async with self.http.get(f"http://x{V1}/{id}/events{query}", headers=headers) as answer:
            yield Frames(answer)


@asynccontextmanager
async def server(
    path: Path,
    provider: FakeProvider,
    *,
    pool: FakePool | None = None,
    store: SessionStore | None = None,
    caps: Caps | None = None,
    agents: str = AGENT,
    limits: Limits | None = None,
    **more: Any,
) -> AsyncIterator[Server]:
    """A server on the socket at `path`; leaving it is shutting down. `more`: what else the harness is made with."""
    agent = parse(agents.encode(), "agent.yaml")
    kept = store or MemoryStore(path.parent)
    keys = Keys(Path("/nowhere/keys.toml"))
    gate = Gate(keys)
    async with (
        bench(kept, provider, pool or FakePool("local"), agents={agent.name: agent}, **more) as b,
        serve(
            b.harness,
            socket=path,
            caps=caps or Caps(),
            limits=limits,
            counts=b.counts,
            finish=1.0,
            keys=keys,
            gate=gate,
        ) as served,
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http,
    ):
        yield Server(http, b, served, gate)
    await kept.close()


async def settled(server: Server, id: str) -> None:
    """Until nothing is under way in a session, and its turn's place is free."""
    await server.b.harness.rested(id)
    await server.served.drain.turns.over()
