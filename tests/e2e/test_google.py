"""A session with the provider `google`, against a server that answers as Gemini's does, faults included."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from daemon.protocol.records import Record
from daemon.provider.gemini import PART
from daemon.provider.rules_gemini import problems
from tests.e2e.driving import Stage, driver, judge, stage
from tests.e2e.rehearsing import results

MODEL = "gemini-3.8-flash"
KEY = "AIza-not-a-real-key"
COUNTS = {"promptTokenCount": 100, "candidatesTokenCount": 20, "thoughtsTokenCount": 5}
SIGNED = "Rmlyc3Qgc2lnbmF0dXJlLg=="
LAST = "TGFzdCBzaWduYXR1cmUu"


def chunk(*parts: dict[str, Any], stop: str = "", **counts: int) -> dict[str, Any]:
    candidate = {"content": {"parts": [*parts], "role": "model"}, "index": 0}
    candidate |= {"finishReason": stop} if stop else {}
    return {"candidates": [candidate], "usageMetadata": COUNTS | counts, "modelVersion": MODEL}


def run(code: str, **fields: Any) -> dict[str, Any]:
    return {"functionCall": {"name": "run", "args": {"worker": "local", "code": code}}, **fields}


def refusal(code: int, status: str, *details: dict[str, Any]) -> dict[str, Any]:
    return {
        "error": {"code": code, "message": f"{status}, try later.", "status": status, "details": [*details]}
    }


WAIT = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.2s"}
BUSY = web.HTTPTooManyRequests, [refusal(429, "RESOURCE_EXHAUSTED", WAIT)]


class Broken(list[dict[str, Any]]):
    """Chunks after which the connection breaks."""


class Gemini:
    """Answers one request after another as the test wrote it down: the chunks of a stream, or a status and its body."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.bad: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.bad += problems(body, signed=True)
        if request.headers.get("x-goog-api-key") != KEY or request.query_string != "alt=sse":
            self.bad.append(f"{request.path_qs} with the key {request.headers.get('x-goog-api-key')!r}")
        self.bodies.append(json.loads(body))
        chunks = self.answers.pop(0)
        if isinstance(chunks, tuple):
            kind, said = chunks
            return web.json_response(said, status=kind.status_code)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for one in chunks:
            await response.write(f"data: {json.dumps(one)}\r\n\r\n".encode())
        if isinstance(chunks, Broken) and request.transport is not None:
            request.transport.abort()
        return response  # and the stream closes: the vendor has no mark for an end


@asynccontextmanager
async def serving(*answers: Any) -> AsyncIterator[Gemini]:
    mock = Gemini(*answers)
    app = web.Application()
    app.router.add_post(f"/v1beta/models/{MODEL}:streamGenerateContent", mock.answer)
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


def set_up(here: Stage, mock: Gemini) -> None:
    with (here.folder / "outrider.toml").open("a") as config:
        config.write(f'[providers.google]\nurl = "{mock.url}"\nkey = "{KEY}"\n')


def kinds(found: list[Record]) -> list[str]:
    return [record.kind for record in found if record.kind not in ("start", "config", "system")]


async def test_calls_really_run_and_signatures_go_back_over_every_kind_of_trouble(here: Stage) -> None:
    calls = [
        chunk({"text": "Let me see.", "thought": True}),
        chunk({"text": "Two "}),
        chunk({"text": "at once."}),
        chunk(
            run("echo one >>ran; echo 1", thoughtSignature=SIGNED), run("echo two >>ran; echo 2"), stop="STOP"
        ),
    ]
    overloaded = [chunk({"text": "All is "}), refusal(503, "UNAVAILABLE")]
    done = [
        chunk({"text": "All is "}),
        chunk({"text": "well."}),
        chunk({"text": "", "thoughtSignature": LAST}, stop="STOP", cachedContentTokenCount=60),
    ]
    half = Broken([chunk({"text": "Y"})])
    again = Broken([chunk({"text": "Yes."}, stop="STOP")])  # it was whole by then
    async with serving(BUSY, calls, overloaded, done, half, again) as mock:
        set_up(here, mock)
        async with driver(here) as on:
            session = await on.session("go", model=f"google/{MODEL}")
            found = await on.closes(session)
            judge(found)
            assert sorted(here.ran()) == ["one", "two"], "each once"
            assert [said.text().splitlines()[0] for said in results(found)] == ["1", "2"]
            last = found[-1].header
            assert (last.stop, last.provider, last.model) == ("STOP", "google", MODEL)
            assert last.usage is not None
            assert (last.usage.input, last.usage.cache_read, last.usage.output) == (40, 60, 25)
            assert [record.body for record in found if record.header.type == PART][-1] == (
                f'{{"text":"","thoughtSignature":"{LAST}"}}'.encode()
            )
            await on.post(session, "Sure?")
            found = await on.closes(session)
            judge(found)
            assert kinds(found)[-3:] == ["message", "text", "step"]
            assert found[-2].text() == "Yes."
            assert here.daemon.log().count("provider retry") == 3
            assert KEY not in here.daemon.log()
    assert mock.bad == []
    assert mock.answers == []
    assert mock.bodies[::2] == mock.bodies[1::2], "a retry is the same request"
    after = mock.bodies[-1]
    models = [at for at, content in enumerate(after["contents"]) if content["role"] == "model"]
    called, said = (after["contents"][at] for at in models)
    answered = after["contents"][models[0] + 1]  # alone, though the list of workers came with it
    text, one, two = called["parts"]
    assert text == {"text": "Two at once."}
    assert (one["thoughtSignature"], "thoughtSignature" in two) == (SIGNED, False)
    ids = [part["functionCall"]["id"] for part in (one, two)]
    assert [part["functionResponse"]["id"] for part in answered["parts"]] == ids
    assert all(ids), "the vendor gave none"
    assert said["parts"] == [{"text": "All is well."}, {"text": "", "thoughtSignature": LAST}]


async def test_a_session_of_another_provider_goes_on_with_it_and_what_is_blocked_says_so(here: Stage) -> None:
    blocked = [{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}]
    slip = [chunk(stop="MALFORMED_FUNCTION_CALL")]
    spent = refusal(
        429,
        "RESOURCE_EXHAUSTED",
        {"@type": "x", "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]},
        WAIT,
    )
    answers = [slip, [chunk({"text": "Mine now."}, stop="STOP")], blocked, (web.HTTPTooManyRequests, [spent])]
    async with serving(*answers) as mock:
        set_up(here, mock)
        await here.mock.config(calls=1)
        async with driver(here) as on:
            session = await on.session("go")
            await on.closes(session)
            await on.switch(session, f"google/{MODEL}")
            await on.post(session, "And now?")
            found = await on.closes(session)
            judge(found)
            assert found[-2].text() == "Mine now."
            for reason in ("PROHIBITED_CONTENT", "RESOURCE_EXHAUSTED"):
                await on.post(session, "More.")
                info = await on.rests(session)
                assert info.status == "failed"
                error = here.daemon.file(session)[-1]
                assert error.kind == "error"
                if reason == "PROHIBITED_CONTENT":
                    assert "the prompt was blocked" in error.text()
                else:
                    assert reason in error.text()
    assert (mock.bad, mock.answers) == ([], [])
