import base64
import json
from typing import Any

import pytest

from daemon.provider import rules_responses
from tests.daemon.provider.contexts import picture

USER: dict[str, Any] = {"type": "message", "role": "user", "content": "hi"}
SAID: dict[str, Any] = {"type": "message", "role": "assistant", "content": "x"}
CALL: dict[str, Any] = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "a",
    "name": "run",
    "arguments": "{}",
}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "a", "output": "done"}
FREE: dict[str, Any] = {"type": "custom_tool_call", "call_id": "b", "name": "sql", "input": "SELECT 1"}
GIVEN: dict[str, Any] = {"type": "custom_tool_call_output", "call_id": "b", "output": "1"}
THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
OPEN: dict[str, Any] = {
    **THOUGHT,
    "encrypted_content": None,
    "content": [{"type": "reasoning_text", "text": "hm"}],
}
SEARCH: dict[str, Any] = {"type": "web_search_call", "id": "ws_1"}
TOOL: dict[str, Any] = {"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": False}


def problems(*items: Any, **fields: Any) -> list[str]:
    body = {"model": "m", "stream": True, "input": items, **fields}
    return rules_responses.problems(json.dumps(body).encode())


def shown(url: str) -> dict[str, Any]:
    return {**USER, "content": [{"type": "input_image", "detail": "auto", "image_url": url}]}


@pytest.mark.parametrize(
    "items",
    [
        (USER,),
        ({"role": "user", "content": "hi"},),
        (USER, SAID, USER),
        (USER, USER),
        (USER, THOUGHT, {**SAID, "id": "msg_1"}, USER),
        (USER, THOUGHT, CALL, OUTPUT),
        (USER, {**THOUGHT, "id": None}, SAID, USER),
        (USER, OPEN, SAID, USER),
        (USER, THOUGHT, {**THOUGHT, "id": "rs_2"}, SEARCH, {**SAID, "id": "msg_1"}, USER),
        (USER, SAID, CALL, FREE, OUTPUT, GIVEN, USER),
        (USER, CALL, SAID, OUTPUT, USER),
        (USER, CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "x"}]}),
        (USER, {"type": "novel", "id": "n"}, USER),
    ],
    ids=range(13),
)
def test_a_sound_request_has_no_problem(items: tuple[Any, ...]) -> None:
    assert problems(*items, tools=[TOOL], instructions="You are.") == []


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ((), "input is empty"),
        (([USER],), "role None"),
        ((SAID,), "ends with 'message' of the assistant's"),
        ((USER, THOUGHT), "without the item that it led to"),
        ((USER, THOUGHT, USER), "without the item that it led to"),
        ((USER, CALL, THOUGHT, OUTPUT), "without the item that it led to"),
        ((USER, THOUGHT, SAID, USER), "with its id, where what it led to has none"),
        ((USER, {**THOUGHT, "encrypted_content": None}, SAID, USER), "nobody can read"),
        ((USER, {**THOUGHT, "summary": None}, {**SAID, "id": "m"}, USER), "no summary"),
        ((USER, CALL), "ends in calls without outputs: a"),
        (
            (USER, {**CALL, "id": None}, OPEN, CALL, OUTPUT),
            "'reasoning' stands between a call and its output",
        ),
        ((USER, CALL, USER), "outputs of ['a'] are missing"),
        ((USER, CALL, USER, OUTPUT), "a function_call_output of 'a'"),
        ((USER, OUTPUT), "a function_call_output of 'a', where the calls without one are []"),
        ((USER, OUTPUT, CALL), "a function_call_output of 'a'"),
        ((USER, CALL, OUTPUT, OUTPUT), "a function_call_output of 'a'"),
        ((USER, CALL, {**GIVEN, "call_id": "a"}), "a custom_tool_call_output of 'a'"),
        ((USER, FREE, {**OUTPUT, "call_id": "b"}), "a function_call_output of 'b'"),
        ((USER, CALL, OUTPUT, {**CALL, "id": "fc_2"}, OUTPUT), "call_id is 'a'"),
        (
            (USER, CALL, OUTPUT, {**CALL, "call_id": "c"}, {**OUTPUT, "call_id": "c"}),
            "id is 'fc_1', there twice",
        ),
        ((USER, {**SAID, "id": ""}, USER), "id is ''"),
        ((USER, {**CALL, "call_id": "x" * 65}, {**OUTPUT, "call_id": "x" * 65}), "call_id is 'xxx"),
        ((USER, {**CALL, "name": "a.b"}, OUTPUT), "name is 'a.b'"),
        ((USER, {**CALL, "name": None}, OUTPUT), "name is None"),
        ((USER, {**CALL, "call_id": None}, OUTPUT), "call_id is 'None'"),
        ((USER, {**CALL, "arguments": "[1]"}, OUTPUT), "arguments are no object"),
        ((USER, {**CALL, "arguments": '{"a'}, OUTPUT), "arguments are no object"),
        ((USER, {**CALL, "arguments": {}}, OUTPUT), "arguments are no object"),
        ((USER, {**FREE, "input": None}, GIVEN), "input is no text"),
        ((USER, CALL, {**OUTPUT, "output": " "}), "blank text ' '"),
        ((USER, CALL, {**OUTPUT, "output": []}), "no content"),
        ((USER, CALL, {**OUTPUT, "output": None}), "blank text None"),
        (({**USER, "content": ""},), "blank text ''"),
        (({**USER, "content": []},), "no content"),
        (({**USER, "content": [{"type": "input_text", "text": " "}]},), "blank text ' '"),
        (({**USER, "content": [{"type": "output_text", "text": "x"}]},), "'output_text' is not allowed here"),
        (
            (USER, {**SAID, "content": [{"type": "input_text", "text": "x"}]}, USER),
            "'input_text' is not allowed",
        ),
        (({**USER, "role": "system"},), "role 'system'"),
        ((USER, {"type": "computer_call", "id": "c"}, USER), "computer_call without what belongs to it"),
        ((USER, {"type": "item_reference", "id": "c"}, USER), "item_reference without what belongs to it"),
        ((USER, {"type": 7}, USER), "type 7"),
        ((shown("https://example.org/x.png"),), "no image in it"),
        ((shown("data:image/png;base64,QUJD"),), "it is no image/png"),
        ((shown("data:image/png;base64,?"),), "not base64"),
        ((shown("data:image/png;base64," + "QUJD" * 2_000_000),), "bytes of base64"),
    ],
)
def test_what_a_server_refuses_is_a_problem(items: tuple[Any, ...], problem: str) -> None:
    assert any(problem in found for found in problems(*items))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model": ""}, "model is missing"),
        ({"stream": None}, "stream is not true"),
        ({"instructions": " "}, "instructions: blank text"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools.0: no function with a name"),
        ({"tools": [{"type": "function", "function": {"name": "run"}}]}, "tools.0: no function with a name"),
        ({"tools": [{**TOOL, "parameters": {}}]}, "tools.0: no schema of an object"),
        ({"tools": [{**TOOL, "strict": True}]}, "tools.0: strict"),
        ({"user": "\ud83d"}, "half a character"),
    ],
)
def test_a_head_that_a_server_refuses_is_a_problem(fields: dict[str, Any], problem: str) -> None:
    assert any(problem in found for found in problems(USER, **fields))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a":NaN}', b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_object_is_a_problem(body: bytes) -> None:
    (problem,) = rules_responses.problems(body)
    assert problem.startswith("the body is not")


def test_too_many_images_are_a_problem() -> None:

    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    assert problems(shown(url)) == []
    assert any("501 images" in found for found in problems(*[shown(url)] * 501))


def test_the_request_of_a_recorded_refusal_has_a_problem() -> None:
    """The order of http-errors.jsonl's deepseek-responses-missing-tool-output: words between a call and its output."""
    made: list[dict[str, Any]] = [
        {"type": "function_call", "call_id": f"call-{name}", "name": "read", "arguments": "{}"}
        for name in "ab"
    ]
    gave = [{"type": "function_call_output", "call_id": f"call-{name}", "output": "x"} for name in "ab"]
    (found,) = problems({"role": "assistant", "content": "x"}, made[0], SAID, made[1], *gave, USER)
    assert "stands between a call and its output" in found
    assert problems(SAID, SAID, *made, *gave, USER) == []
