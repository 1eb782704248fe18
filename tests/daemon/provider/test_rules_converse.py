import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.provider.base import Request
from daemon.provider.bedrock import Bedrock
from daemon.provider.rules_converse import problems
from tests.daemon.provider import aws_oracle
from tests.daemon.provider.contexts import picture
from tests.daemon.provider.test_converse import NAMES, Recording

USER: dict[str, Any] = {"role": "user", "content": [{"text": "hi"}]}
SAID: dict[str, Any] = {"role": "assistant", "content": [{"text": "x"}]}
USE: dict[str, Any] = {"toolUse": {"toolUseId": "a", "name": "run", "input": {}}}
DONE: dict[str, Any] = {"toolResult": {"toolUseId": "a", "content": [{"text": "done"}]}}
CALL: dict[str, Any] = {"role": "assistant", "content": [USE]}
RESULT: dict[str, Any] = {"role": "user", "content": [DONE]}
SPEC: dict[str, Any] = {"name": "run", "inputSchema": {"json": {"type": "object"}}}
TOOLS: dict[str, Any] = {"tools": [{"toolSpec": SPEC}]}
MARK: dict[str, Any] = {"cachePoint": {"type": "default"}}
PNG = base64.b64encode(picture()).decode()


def image(format: str = "png", data: Any = PNG) -> dict[str, Any]:
    return {"image": {"format": format, "source": {"bytes": data}}}


def body(*messages: Any, **fields: Any) -> bytes:
    return json.dumps({"messages": messages, "toolConfig": TOOLS, **fields}).encode()


def found(*messages: Any, **fields: Any) -> list[str]:
    return problems(body(*messages, **fields))


def of(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": [*blocks]}


def test_a_sound_request_has_no_problem() -> None:
    thought = {"reasoningContent": {"reasoningText": {"text": "", "signature": "s"}}}
    hidden = {"reasoningContent": {"redactedContent": "QUI="}}
    answer = of("assistant", thought, hidden, {"text": "x"}, USE)
    back = of("user", DONE, {"text": "and"}, image(), MARK)
    assert found(USER, answer, back, system=[{"text": "s"}, MARK]) == []
    assert problems(json.dumps({"messages": [USER, SAID, USER]}).encode()) == []


@pytest.mark.parametrize("name", NAMES)
def test_recorded_requests_that_were_answered_have_no_problem(streams_dir: Path, name: str) -> None:
    said = Recording(streams_dir, name).said
    assert problems(json.dumps(said["request"]).encode()) == []
    if followup := said["followup_request"]:
        tools = said["request"]["toolConfig"]
        assert problems(json.dumps({**followup, "toolConfig": tools}).encode()) == []


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (body(), "messages is empty"),
        (body(USER, USER), "role 'user', where it is the assistant's turn"),
        (body(SAID), "role 'assistant', where it is the user's turn"),
        (body(USER, SAID), "ends with a message of the assistant's"),
        (body(of("user")), "no content"),
        (body({"role": "user", "content": "hi"}), "no content"),
        (body(USER, CALL, USER), "results of [], where the calls are ['a']"),
        (body(USER, CALL, of("user", {"text": "x"}, DONE)), "something stands before a result"),
        (body(RESULT), "results of ['a'], where the calls are []"),
        (body(USER, CALL, RESULT, CALL, RESULT), "call a is there twice"),
        (body(USER, of("assistant", USE, {"text": "x"}), RESULT), "something stands after a call"),
        (body(of("user", {"text": " "})), "blank text ' '"),
        (body(of("user", {"text": 1})), "blank text 1"),
        (body(of("user", {"text": "x", "image": {}})), "['text', 'image'] is not allowed here"),
        (body(of("user", {})), "[] is not allowed here"),
        (body(of("user", {"novel": {}})), "'novel' is not allowed here"),
        (body(USER, of("assistant", image()), USER), "'image' is not allowed here"),
        (body(of("user", image("jpeg"))), "it is no image/jpeg"),
        (body(of("user", image("png", "?"))), "not base64"),
        (body(of("user", image("png", None))), "no data of an image"),
        (body(of("user", *[image()] * 21)), "21 images, where 20 are allowed"),
        (body(USER, of("assistant", {"toolUse": {**USE["toolUse"], "toolUseId": "a b"}}), USER), "'a b'"),
        (body(USER, of("assistant", {"toolUse": {**USE["toolUse"], "name": ""}}), RESULT), ".name is ''"),
        (body(USER, of("assistant", {"toolUse": {**USE["toolUse"], "input": "{}"}}), RESULT), "no object"),
        (
            body(USER, CALL, of("user", {"toolResult": {**DONE["toolResult"], "content": []}})),
            "an empty result",
        ),
        (body(USER, CALL, of("user", {"toolResult": {**DONE["toolResult"], "status": "bad"}})), "'bad'"),
        (
            body(USER, CALL, of("user", {"toolResult": {**DONE["toolResult"], "content": [USE]}})),
            "'toolUse' is not allowed here",
        ),
        (
            body(USER, of("assistant", {"reasoningContent": {"reasoningText": {"text": "x"}}}, USE), RESULT),
            "without its signature",
        ),
        (body(USER, of("assistant", {"reasoningContent": {}}, USE), RESULT), "without anything in it"),
        (
            body(USER, of("assistant", {"reasoningContent": {"redactedContent": "?"}}, USE), RESULT),
            "no base64",
        ),
        (
            body(USER, of("assistant", {"reasoningContent": {"redactedContent": "QUI="}}), USER),
            "reasoning is last",
        ),
        (body(of("user", MARK, {"text": "x"})), "a cache mark after nothing"),
        (body(of("user", {"text": "x"}, *[MARK] * 5)), "5 cache marks, where 4 are allowed"),
        (json.dumps({"messages": [USER, CALL, RESULT]}).encode(), "toolConfig is missing"),
        (body(USER, toolConfig={"tools": []}), "toolConfig has no tools"),
        (body(USER, toolConfig={"tools": [{"toolSpec": SPEC}] * 2}), "run is there twice"),
        (body(USER, toolConfig={"tools": [{"toolSpec": {**SPEC, "name": "a.b"}}]}), "no name or no schema"),
        (
            body(USER, toolConfig={"tools": [{"toolSpec": {**SPEC, "description": ""}}]}),
            "an empty description",
        ),
        (body(USER, inferenceConfig={"maxTokens": 0}), "inferenceConfig.maxTokens is 0"),
        (
            body(
                USER,
                inferenceConfig={"maxTokens": 9},
                additionalModelRequestFields={"thinking": {"budget_tokens": 9}},
            ),
            "it has to be less",
        ),
        (body(USER, system=[{"text": ""}]), "blank text ''"),
        (body(USER, modelId="x"), "modelId stands in the address"),
        (b"{half", "not JSON"),
        (b"[]", "not an object"),
        (body(of("user", {"text": "a\ud83d"})), "half a character"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_api_refuses_is_a_problem(request_: bytes, problem: str) -> None:
    assert any(problem in one for one in problems(request_)), problems(request_)


@pytest.mark.campaign
def test_a_request_that_is_too_large_is_a_problem() -> None:
    assert "where 20000000 are allowed" in problems(body(of("user", {"text": "x" * 20_000_000})))[0]


def test_what_some_models_refuse_is_a_problem_for_them_alone() -> None:
    mixed = body(USER, of("assistant", {"text": "x"}, USE), of("user", DONE, {"text": "and"}))
    assert problems(mixed) == []
    assert len(problems(mixed, apart=True)) == 2
    marked = body(of("user", {"text": "x"}, MARK))
    assert problems(marked) == []
    assert "which the model does not take" in problems(marked, cache=False)[0]


def test_a_provider_judges_by_the_model_in_the_address() -> None:
    provider = Bedrock(url="http://h")
    mixed = body(USER, of("assistant", {"text": "x"}, USE), of("user", DONE, {"text": "and"}, MARK))
    for model, count in (("us.anthropic.claude-sonnet-4-6", 0), ("meta.llama3-3-70b-instruct-v1:0", 3)):
        found = provider.problems(Request(f"http://h/model/{model}/converse-stream", {}, mixed))
        assert len(found) == count


@pytest.mark.parametrize(
    "bad",
    [
        body(of("user", {"novel": {}})),
        body(of("user", {"text": "x", "image": image()["image"]})),
        body(USER, of("assistant", {"toolUse": {"toolUseId": "a", "name": "run"}})),
        body(USER, toolConfig={"tools": []}),
        body(USER, toolConfig={"tools": [{"toolSpec": {"name": "run"}}]}),
    ],
)
def test_botocore_refuses_what_the_rules_refuse_as_far_as_it_looks(bad: bytes) -> None:
    assert problems(bad)
    assert aws_oracle.refused(Request("http://h/model/x/converse-stream", {}, bad))


RECORDED = {"bedrock-input-too-long": "context_overflow"}


def test_every_recorded_refusal_of_bedrocks_has_its_class(streams_dir: Path) -> None:
    lines = (streams_dir / "http-errors.jsonl").read_bytes().splitlines()
    recorded = [msgspec.json.decode(line) for line in lines]
    ours = [one for one in recorded if "Bedrock" in one["provider"]]
    assert {one["name"]: one["expected_class"] for one in ours} == RECORDED
    for one in ours:
        error = Bedrock(url="http://h").error(one["status"], one["headers"], one["body"].encode())
        assert error.code == one["expected_class"]
