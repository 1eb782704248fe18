import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.provider import rules_chat, rules_messages
from daemon.provider.quirks import Quirks

MISTRAL = Quirks(thinking="none", ids="short", bridge=True)
USER: dict[str, Any] = {"role": "user", "content": "hi"}
CALL: dict[str, Any] = {"id": "a", "type": "function", "function": {"name": "run", "arguments": "{}"}}
CALLS: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "a", "content": "done"}


def problems(*messages: dict[str, Any], mistral: bool = False) -> list[str]:
    body = {"model": "m", "stream": True, "messages": messages}
    return rules_chat.problems(json.dumps(body).encode(), MISTRAL if mistral else Quirks())


def test_a_sound_chat_request_has_no_problem() -> None:
    system = {"role": "system", "content": "You are."}
    assert problems(system, USER, CALLS, RESULT, USER) == []
    assert problems(USER, {"role": "assistant", "content": "x"}, USER) == []


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ((), "messages is empty"),
        ((USER, USER), "after one of the user's"),
        ((CALLS, RESULT), "an answer to nothing"),
        ((USER, CALLS), "ends in calls without results"),
        ((USER, CALLS, USER, RESULT), "results of ['a'] are missing"),
        ((USER, CALLS, RESULT, RESULT), "a result of 'a'"),
        ((USER, RESULT), "a result of 'a'"),
        ((USER, CALLS, RESULT, CALLS, RESULT), "tool_calls.0.id is 'a'"),
        ((USER, {**CALLS, "tool_calls": []}, USER), "an empty list of calls"),
        ((USER, {"role": "assistant", "content": " "}, USER), "an answer of ' '"),
        ((USER, {"role": "assistant", "content": "x"}), "ends with a message of the assistant's"),
        ((USER, CALLS, {**RESULT, "content": ""}), "blank text"),
        (({"role": "user", "content": []},), "no content"),
        (
            ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},),
            "no image in it",
        ),
        ((USER, {"role": "developer", "content": "x"}), "role 'developer'"),
        (
            (
                USER,
                {**CALLS, "tool_calls": [{**CALL, "function": {"name": "run", "arguments": "[1]"}}]},
                RESULT,
            ),
            "arguments are no object",
        ),
    ],
)
def test_what_a_chat_server_refuses_is_a_problem(messages: tuple[dict[str, Any], ...], problem: str) -> None:
    assert any(problem in found for found in problems(*messages))


def test_what_mistral_refuses_is_a_problem_there() -> None:
    found = problems(USER, CALLS, RESULT, USER, mistral=True)
    assert len(found) == 2
    assert "tool_calls.0.id is 'a'" in found[0]
    assert "after one of the tool's" in found[1]


def test_a_server_that_asks_for_reasoning_with_each_answer_misses_it() -> None:
    said = {"role": "assistant", "content": "x"}
    body = {"model": "m", "stream": True, "messages": [USER, said, USER]}
    deepseek = Quirks(thinking="reasoning_content")
    assert "without reasoning_content" in rules_chat.problems(json.dumps(body).encode(), deepseek)[0]
    body["messages"] = [USER, {**said, "reasoning_content": ""}, USER]
    assert rules_chat.problems(json.dumps(body).encode(), deepseek) == []


# Messages.

SAID: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
USE: dict[str, Any] = {"type": "tool_use", "id": "a", "name": "run", "input": {}}
USES: dict[str, Any] = {"role": "assistant", "content": [USE]}
DONE: dict[str, Any] = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x"}]}
GIVEN: dict[str, Any] = {"role": "user", "content": [DONE]}
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


def faults(*messages: Any, **fields: Any) -> list[str]:
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": messages, **fields}
    return rules_messages.problems(json.dumps(body).encode())


def shown(data: Any, type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": type, "data": data}}


def test_a_sound_messages_request_has_no_problem() -> None:
    assert faults(SAID, USES, GIVEN) == []
    assert faults({"role": "user", "content": "hi"}) == []
    assert faults({"role": "user", "content": [shown(PIXEL), *SAID["content"]]}) == []


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ((), "messages is empty"),
        ((USES,), "role 'assistant', where it is the user's turn"),
        ((SAID, SAID), "role 'user', where it is the assistant's turn"),
        ((SAID, USES), "ends in calls without results: a"),
        ((SAID, USES, SAID), "results of [], where the calls are ['a']"),
        ((SAID, USES, GIVEN, USES, GIVEN), "call a is there twice"),
        (
            (SAID, USES, {**GIVEN, "content": [*SAID["content"], DONE]}),
            "something stands before a result",
        ),
        ((SAID, {**USES, "content": [USE, *SAID["content"]]}, GIVEN), "something stands after a call"),
        ((SAID, {**USES, "content": [{**USE, "input": "{}"}]}, GIVEN), "input is no object"),
        ((SAID, {**USES, "content": [{**USE, "id": "a:0"}]}, GIVEN), "id is 'a:0'"),
        ((SAID, USES, {**GIVEN, "content": [{**DONE, "content": []}]}), "an empty result"),
        ((SAID, {"role": "assistant", "content": []}, SAID), "no content"),
        (({"role": "user", "content": [{"type": "text", "text": " \n"}]},), "blank text"),
        (({"role": "user", "content": [shown("!")]},), "not base64"),
        (({"role": "user", "content": [shown(None)]},), "no data of an image"),
        (({"role": "user", "content": [shown(PIXEL, "image/jpeg")]},), "it is no image/jpeg"),
        (({"role": "user", "content": [shown("A" * (5 << 20) + "AAAA")]},), "bytes of base64"),
        (({"role": "user", "content": [shown(PIXEL)] * 101},), "101 images, where 100 are allowed"),
        (("hi",), "role None"),
        (({"role": "user", "content": [{"type": "text", "text": "\ud83d"}]},), "half a character"),
        (
            (SAID, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}, SAID),
            "thinking without its signature",
        ),
        (
            (SAID, {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s"}]}, SAID),
            "server_tool_use without its result",
        ),
    ],
)
def test_what_the_messages_api_refuses_is_a_problem(messages: tuple[Any, ...], problem: str) -> None:
    assert any(problem in found for found in faults(*messages))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model": ""}, "model is missing"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stream": False}, "stream is not true"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "it has to be less"),
        ({"system": [{"type": "text", "text": ""}]}, "system.0: blank text"),
        ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "tools.0: no name"),
        ({"tools": [7]}, "tools.0: no name"),
        ({"metadata": [{"cache_control": {}}] * 5}, "5 cache marks, where 4 are allowed"),
        pytest.param(
            {"metadata": "x" * rules_messages.SIZE},
            "bytes, where 32000000 are allowed",
            marks=pytest.mark.campaign,
            id="size",
        ),
    ],
)
def test_what_the_messages_api_refuses_in_the_head_is_a_problem(fields: dict[str, Any], problem: str) -> None:
    assert any(problem in found for found in faults(SAID, **fields))


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"a": NaN}', b"[" * 100_000])
def test_what_is_no_object_of_json_is_one_problem(body: bytes) -> None:
    for problems in (rules_messages.problems, rules_chat.problems):
        (found,) = problems(body)
        assert found.startswith(("the body is not JSON", "the body is not an object"))


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from(["user", "tool_use", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "id", "tool_calls", "text", "source"]), inner
        )
    ),
    max_leaves=12,
)


@given(ANYTHING, st.sampled_from(["messages", "tools", "system", "thinking", "model"]))
def test_a_body_of_any_form_has_problems_and_breaks_nothing(value: Any, field: str) -> None:
    body = json.dumps({"model": "m", "stream": True, "messages": [USER], field: value}).encode()
    assert isinstance(rules_messages.problems(body), list)
    assert isinstance(rules_chat.problems(body), list)
