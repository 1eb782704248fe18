"""The mock that the campaigns rest on does what it says."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.processes import Mock


@pytest.fixture
def mock() -> Iterator[Mock]:
    folder = Path(tempfile.mkdtemp(prefix="or-"))
    mock = Mock(folder, "--record", str(folder / "bodies"))
    yield mock
    mock.close()
    shutil.rmtree(folder)


def body(*turns: Any, conv: str = "c") -> dict[str, Any]:
    """A request whose first user turn names the conversation."""
    roles = ("user", "assistant")
    messages = [
        {
            "role": roles[at % 2],
            "content": [{"type": "text", "text": turn}] if isinstance(turn, str) else turn,
        }
        for at, turn in enumerate((f"[[conv:{conv}]] go", *turns))
    ]
    return {"model": "m", "max_tokens": 10, "stream": True, "messages": messages}


async def ask(mock: Mock, request: dict[str, Any]) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.post(f"{mock.url}/v1/messages", json=request) as answer:
        return answer.status, await answer.text()


def codes(stream: str) -> list[str]:
    """The code of each call in an answer."""
    pieces: dict[int, str] = {}
    for line in stream.splitlines():
        event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
        if (delta := event.get("delta", {})).get("type") == "input_json_delta":
            pieces[event["index"]] = pieces.get(event["index"], "") + delta["partial_json"]
    return [json.loads(piece)["code"] for piece in pieces.values()]


CALL = [{"type": "tool_use", "id": "t1", "name": "run", "input": {}}]
RESULT = [{"type": "tool_result", "tool_use_id": "t1", "content": "done"}]


async def test_the_number_of_answers_decides_what_is_answered(mock: Mock) -> None:
    await mock.config(calls=2, parallel=2, code="echo {conv}.{k}.{p}")
    for _ in range(2):  # the same again, as after a restart of whoever asks
        _, first = await ask(mock, body())
        assert codes(first) == ["echo c.0.0", "echo c.0.1"]
    _, second = await ask(mock, body(CALL, RESULT))
    assert codes(second) == ["echo c.1.0", "echo c.1.1"]
    _, third = await ask(mock, body("one", "more", "two", "more"))
    assert codes(third) == []
    assert '"end_turn"' in third
    log = await mock.get("log")
    assert [(entry["conv"], entry["k"], entry["attempt"], entry["whole"]) for entry in log] == [
        ("c", 0, 0, True),
        ("c", 0, 1, True),
        ("c", 1, 0, True),
        ("c", 2, 0, True),
    ]


async def test_a_bad_body_is_refused_and_remembered(mock: Mock) -> None:
    status, said = await ask(mock, body(CALL, "no result"))
    assert status == 400
    assert json.loads(said)["error"]["type"] == "invalid_request_error"
    [bad] = await mock.get("bad")
    assert "t1" in bad["problems"][0]
    recorded = (mock.folder / "bodies").read_text().splitlines()
    assert json.loads(json.loads(recorded[0])["body"]) == body(CALL, "no result")


async def test_a_history_that_changes_is_remembered(mock: Mock) -> None:
    first = body("one", "two")
    await ask(mock, first)
    grown = body("one", "two", "three", "four")
    grown["messages"][0]["content"][0]["cache_control"] = {"type": "ephemeral"}
    await ask(mock, grown)
    assert await mock.get("bad") == []
    await ask(mock, body("ONE", "two", "three", "four"))
    await ask(mock, body("one", "TWO", "three", "four"))
    await ask(mock, grown | {"system": [{"type": "text", "text": "new"}]})
    await ask(mock, grown | {"tools": [{"name": "x", "input_schema": {"type": "object"}}]})
    problems = [problem for bad in await mock.get("bad") for problem in bad["problems"]]
    assert problems == [
        "messages.1: not what it was when it was settled",
        "messages.2: not what it was when it was settled",
        "tools: not what it was",
    ]


async def test_troubles_befall_the_tries_they_are_meant_for(mock: Mock) -> None:
    await mock.config(trouble="status", tries=1, retry_after="2")
    assert (await ask(mock, body()))[0] == 529
    assert (await ask(mock, body()))[0] == 200
    await mock.config(trouble="cut", every=2)
    with pytest.raises(aiohttp.ClientPayloadError):
        await ask(mock, body(conv="d"))
    assert (await ask(mock, body("one", "two", conv="d")))[0] == 200
    with pytest.raises(aiohttp.ClientResponseError):
        await mock.config(troubel="cut")


@pytest.mark.parametrize("trouble", ["hold", "stall"])
async def test_what_is_held_back_goes_when_it_is_released(mock: Mock, trouble: str) -> None:
    await mock.config(trouble=trouble)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ask(mock, body()), name="ask")
        while not await mock.get("log"):
            assert not waiting.done()
        await mock.release()
    assert waiting.result()[0] == 200
    assert "message_stop" in waiting.result()[1]
