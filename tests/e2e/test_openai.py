"""A session with the provider `openai`, against a server that answers as the Responses API does, faults included."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from daemon.provider.responses_pieces import ITEM
from daemon.provider.rules_responses import problems
from tests.e2e.driving import Stage, driver, judge, stage
from tests.e2e.rehearsing import results

MODEL = "gpt-5.2"
KEY = "sk-proj-not-a-real-key"
COUNTS = {"input_tokens": 100, "output_tokens": 20, "input_tokens_details": {"cached_tokens": 0}}
SEALED = "gAAAAABsealed-9_+/=="
THOUGHT = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": SEALED}


def message(id: str, words: str, **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": words, "annotations": [], "logprobs": []}
    own = {"id": id, "type": "message", "status": "completed", "role": "assistant"}
    return {**own, "content": [part], **fields}


def run(number: int, code: str) -> dict[str, Any]:
    made = {
        "call_id": f"call_{number}",
        "name": "run",
        "arguments": json.dumps({"worker": "local", "code": code}),
    }
    return {"id": f"fc_{number}", "type": "function_call", "status": "completed", **made}


def events(*items: dict[str, Any], end: str = "completed", **response: Any) -> list[dict[str, Any]]:
    """An answer of these items, their texts in two pieces; `end` empty leaves it open."""
    found: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"model": MODEL, "status": "in_progress"}}
    ]
    for place, item in enumerate(items):
        at = {"output_index": place, "item_id": item["id"]}
        begun = {**item, "status": "in_progress", **{name: "" for name in ("arguments",) if name in item}}
        begun |= {"content": []} if item["type"] == "message" else {}
        found.append({"type": "response.output_item.added", "output_index": place, "item": begun})
        kind = "function_call_arguments" if "arguments" in item else "output_text"
        words = item.get("arguments") or "".join(part.get("text", "") for part in item.get("content", ()))
        delta = {"type": f"response.{kind}.delta", **at, "content_index": 0}
        halves = words[: len(words) // 2], words[len(words) // 2 :]
        found += ({**delta, "delta": piece} for piece in halves if piece)
        found.append({"type": "response.output_item.done", "output_index": place, "item": item})
    if end:
        whole = {"model": MODEL, "status": end, "usage": COUNTS, "output": items, **response}
        found.append({"type": f"response.{end}", "response": whole})
    return found


class Server:
    """Answers one request after another as the test wrote it down: events of a stream, or status, headers and body."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.bad: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.bad += problems(body)
        if request.headers.get("authorization") != f"Bearer {KEY}":
            self.bad.append(f"the key {request.headers.get('authorization')!r}")
        self.bodies.append(json.loads(body))
        events = self.answers.pop(0)
        if isinstance(events, tuple):
            status, headers, said = events
            return web.json_response(said, status=status, headers=headers)
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream", "x-request-id": "req_mock"}
        )
        await response.prepare(request)
        for number, one in enumerate(events):
            line = {**one, "sequence_number": number}
            await response.write(f"event: {one['type']}\ndata: {json.dumps(line)}\n\n".encode())
        return response


@asynccontextmanager
async def serving(*answers: Any) -> AsyncIterator[Server]:
    mock = Server(*answers)
    app = web.Application()
    app.router.add_post("/v1/responses", mock.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    mock.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield mock
    finally:
        await runner.cleanup()


@pytest.fixture
def here() -> Iterator[Stage]:
    with stage() as made:
        yield made


def set_up(here: Stage, mock: Server) -> None:
    with (here.folder / "outrider.toml").open("a") as config:
        config.write(f'[providers.mine]\nkind = "openai"\nurl = "{mock.url}"\nkey = "{KEY}"\n')
        config.write(f'[providers.mine.models."{MODEL}"]\ncontext = 400000\n')


def refusal(code: str) -> dict[str, Any]:
    return {"error": {"message": f"{code}, try later.", "type": code, "code": code, "param": None}}


BUSY = 429, {"retry-after-ms": "100"}, refusal("rate_limit_exceeded")


async def test_calls_really_run_and_reasoning_goes_back_over_every_kind_of_trouble(here: Stage) -> None:
    looked = message("msg_1", "Two at once.", phase="commentary")
    calls = [run(1, "echo one >>ran; echo 1"), run(2, "echo two >>ran; echo 2")]
    overloaded = {"type": "error", **refusal("server_is_overloaded")}
    broken = events(message("msg_9", "All is not"), run(9, "echo never >>ran"), end="")[:-1]
    said = message("msg_2", "All is well.", phase="final_answer")
    cached = {**COUNTS, "input_tokens_details": {"cached_tokens": 60}}
    answers = [
        BUSY,
        events(THOUGHT, looked, *calls),
        [*broken, overloaded],
        events(said, usage=cached),
        events(message("msg_3", "Yes.")),
    ]
    async with serving(*answers) as mock:
        set_up(here, mock)
        async with driver(here) as on:
            session = await on.session("go", model=f"mine/{MODEL}")
            found = await on.closes(session)
            judge(found)
            assert sorted(here.ran()) == ["one", "two"], "each once, and none of what broke off"
            assert [result.text().splitlines()[0] for result in results(found)] == ["1", "2"]
            last = found[-1].header
            assert (last.stop, last.provider, last.model) == ("completed", "mine", MODEL)
            assert last.usage is not None
            assert (last.usage.input, last.usage.cache_read, last.usage.output) == (40, 60, 20)
            assert [record.text() for record in found if record.header.type == ITEM][-1] == "All is well."
            await on.post(session, "Sure?")
            found = await on.closes(session)
            judge(found)
            assert found[-2].text() == "Yes."
            assert here.daemon.log().count("provider retry") == 2
            assert KEY not in here.daemon.log()
            assert session == mock.bodies[0]["prompt_cache_key"]
    assert (mock.bad, mock.answers) == ([], [])
    first, same, *broken_off, after = mock.bodies
    assert first == same
    assert broken_off[0] == broken_off[1], "a retry is the same request"
    assert first["store"] is False
    sent = after["input"]
    assert sent[1:3] == [THOUGHT, looked], "as they came"
    assert [{**one, "status": "completed"} for one in sent[3:5]] == calls
    assert [one.get("call_id") for one in sent[5:7]] == ["call_1", "call_2"]
    assert sent[-2] == {
        "type": "message",
        "role": "assistant",
        "content": "All is well.",
        "phase": "final_answer",
    }
    assert sent[-1]["content"] == [{"type": "input_text", "text": "Sure?"}]


async def test_a_session_of_another_provider_goes_on_with_it_and_every_bad_end_says_why(here: Stage) -> None:
    said = "I can't help with that."
    refused = message("msg_2", "", content=[{"type": "refusal", "refusal": said}])
    cut = {"incomplete_details": {"reason": "max_output_tokens"}}
    quota = {"code": "insufficient_quota", "message": "You exceeded your current quota."}
    half = {**run(3, "echo half >>ran"), "status": "incomplete", "arguments": '{"worker": "local", "co'}
    answers = [
        events(message("msg_1", "Mine now.")),
        events(refused),
        events(message("msg_3", "As I w"), half, end="incomplete", **cut),
        [
            *events(message("msg_4", "Not"), end=""),
            {"type": "response.failed", "response": {"status": "failed", "error": quota}},
        ],
        (
            400,
            {},
            {
                "error": {
                    "message": "No tool output found for function call call_1.",
                    "type": "invalid_request_error",
                }
            },
        ),
        events(message("msg_5", "Here again.")),
    ]
    async with serving(*answers) as mock:
        set_up(here, mock)
        await here.mock.config(calls=1)
        async with driver(here) as on:
            session = await on.session("go")
            await on.closes(session)
            await on.switch(session, f"mine/{MODEL}")
            await on.post(session, "And now?")
            found = await on.closes(session)
            judge(found)
            assert found[-2].text() == "Mine now."
            for why in (
                "refused to answer",
                "output limit",
                "exceeded your current quota",
                "No tool output found",
            ):
                await on.post(session, "More.")
                assert (await on.rests(session)).status == "failed"
                error = here.daemon.file(session)[-1]
                assert error.kind == "error"
                assert why in error.text()
            await on.post(session, "Once more.")
            found = await on.closes(session)
            judge(found)
            assert found[-2].text() == "Here again."
            texts = [record.text() for record in found if record.kind == "text"]
            assert (said in texts, "As I w" in texts) == (True, True)
            assert "half" not in here.ran()
    assert (mock.bad, mock.answers) == ([], [])
    sent = [one.get("content") for one in mock.bodies[-1]["input"]]
    assert said in sent
    assert "Not" not in sent, "what broke off is no part of it"
