"""Requests made out of the daemon's own schema, right and wrong ones: each answer is one that the schema documents."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from msgspec import Struct
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from daemon.client import Client
from daemon.protocol import agentserver, api
from daemon.protocol.dialing import LOCAL
from tests.running import Place, place

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ENDLESS = (api.ALL_EVENTS, api.EVENTS)  # what they answer goes on for as long as it is read
QUICK = "200ms"  # a read may wait, where a wait is asked for
Operation = schemathesis.APIOperation[Any, Any, Any, Any]
NEVER = {
    "POST /sessions/{id}/stop",  # nothing steps for long enough
    "POST /tokens",  # the mesh is off, so that no port is opened
    "DELETE /tokens/{id}",
    "DELETE /workers/{name}",
}
AGENT = """\
apiVersion: agent-controller.dev/v1alpha1
kind: Agent
metadata: {name: echo}
spec:
  model: {provider: rehearsal, name: echo}
  task: Say it again, ${inputs.how}.
  tools: []
  inputs: {how: {default: please}}
"""
ENDING = ("POST /sessions/{id}/end", "DELETE /v1/sessions/{id}")
TURNS = 30  # each is one, to its end
EXAMPLES = 150  # of each operation, right ones and wrong ones
CHANCES = 3  # times that so many are made up, by chance, until one is accepted


class Target(Struct):
    """A daemon that is asked over TCP, and sessions that it has: one at rest and two that failed."""

    url: str
    key: str
    schema: dict[str, Any]
    sessions: list[str]


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with place() as here:
        broken = here.script(
            "broken",
            '[[steps]]\ntext = "x"\nfaults = [{ kind = "status", status = 400, type = "invalid_request_error" }]\n',
        )
        (here.home / ".config/outrider/outrider.toml").write_text('[mesh]\nbackend = "off"\n')
        (here.home / "agent.yaml").write_text(AGENT)
        up = here.json("up", "--listen", "127.0.0.1:0", "--agent", str(here.home / "agent.yaml"))
        sessions = [here.json("new", "--model", model)["id"] for model in ("rehearsal/echo", broken, broken)]
        for id in sessions:
            here.outrider("post", "--follow", id, "hello")
        url = f"http://{up['listen'][0]}"
        key = made(here)
        headers = {"Authorization": f"Bearer {key}"}
        yield Target(
            url, key, requests.get(f"{url}/openapi.json", headers=headers, timeout=20).json(), sessions
        )


def made(here: Place) -> str:
    """An admin's key, made through the Unix socket."""

    async def make() -> str:
        async with Client(here.socket) as client:
            return (await client.make_key("campaign", "admin")).key

    return asyncio.run(make())


def operations(schema: dict[str, Any]) -> list[Operation]:
    """Every operation that ends."""
    found = [result.ok() for result in schemathesis.openapi.from_dict(schema).get_all_operations()]  # type: ignore[union-attr]
    return [operation for operation in found if operation.path not in ENDLESS]


def ask(target: Target, operation: Operation, mode: schemathesis.GenerationMode) -> Counter[int]:
    """Send many requests of one kind; how often each status was answered."""
    seen: Counter[int] = Counter()
    http = requests.Session()
    known = target.sessions[-1:] if operation.label in ENDING else target.sessions  # the others live on

    @settings(
        max_examples=EXAMPLES if operation.path != agentserver.TURNS else TURNS,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=operation.as_strategy(generation_mode=mode),
        id=st.sampled_from(["", *known]),
        name=st.sampled_from(["", LOCAL]),
    )
    def one(case: Any, id: str, name: str) -> None:
        if id and "id" in (case.path_parameters or {}):
            case.path_parameters["id"] = id
        if name and operation.path.startswith(api.WORKERS) and "name" in (case.path_parameters or {}):
            case.path_parameters["name"] = name
        if name and operation.path == api.PROVIDER_TEST:
            case.path_parameters["name"] = "rehearsal"
        if case.query and "wait" in case.query:
            case.query["wait"] = QUICK
        headers = {"Authorization": f"Bearer {target.key}"}
        answer = case.call(base_url=target.url, session=http, headers=headers, timeout=30)
        seen[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    with http, contextlib.suppress(Unsatisfiable):  # a request that takes nothing cannot be made wrong
        for _ in range(CHANCES):
            one()
            if mode is not schemathesis.GenerationMode.POSITIVE or operation.label in NEVER or accepted(seen):
                break
    return seen


def accepted(seen: Counter[int]) -> bool:
    """Whether any request was answered as asked for."""
    return any(status < 300 for status in seen)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("default")  # the tool's own
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: str(mode.value))
def test_every_answer_is_one_that_the_schema_documents(
    target: Target, mode: schemathesis.GenerationMode
) -> None:
    answered = {operation.label: ask(target, operation, mode) for operation in operations(target.schema)}
    good = {label for label, seen in answered.items() if accepted(seen)}
    bad = {label for label, seen in answered.items() if any(status >= 400 for status in seen)}
    if mode is schemathesis.GenerationMode.POSITIVE:
        assert good >= set(answered) - NEVER, answered
    else:
        assert bad, answered
