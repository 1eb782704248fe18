import json
from typing import Any

import pytest

from daemon.provider import rules_chat
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
