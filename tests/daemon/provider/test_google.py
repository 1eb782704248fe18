import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from daemon.chain import GO_ON, Call, Media, Part, Raw, Result, Text, Turn
from daemon.config import ConfigError, ModelEntry, ProviderEntry
from daemon.protocol.records import TEXT, CallBody
from daemon.provider import differences, fitting, models
from daemon.provider.asking import Asking
from daemon.provider.base import Block, Lister, Model, Query, Request, Tool, Wire
from daemon.provider.gemini import FIELDS, PART, Decoder
from daemon.provider.gemini_contents import NOTHING, SKIP, signs
from daemon.provider.google import Google, at
from daemon.provider.http import open_session
from daemon.provider.images import inspect
from daemon.provider.models import TEXT_AND_IMAGES
from daemon.provider.registry import Registry
from daemon.provider.repair import INVALID
from tests.daemon.provider.contexts import TOOL, assistant, context, picture, raw, result, user
from tests.daemon.provider.recorded import Recording, blocks, decode

NEW = "gemini-3.8-flash"
OLD = "gemini-2.5-pro"
GOOGLE = Google(key="AIza-0123456789")
QUOTA = "type.googleapis.com/google.rpc.QuotaFailure"


def known(name: str) -> Model:
    return models.find(name, models.GOOGLE)


def compile_(
    *turns: Turn,
    model: str | Model = NEW,
    provider: Google = GOOGLE,
    wire: Wire | None = None,
    params: dict[str, Any] | None = None,
    tools: tuple[Tool, ...] = (TOOL,),
    system: str = "You are.",
    epoch: int = 0,
) -> Request:
    found = known(model) if isinstance(model, str) else model
    query = Query(found, context(*turns, system=system, epoch=epoch), tools, params or {}, "session")
    return provider.compile(query, wire or Wire())


def body(*turns: Turn, provider: Google = GOOGLE, **options: Any) -> dict[str, Any]:
    """The request's body, read back; it has passed the wire's rules and the vendor's own types."""
    request = compile_(*turns, provider=provider, **options)
    assert provider.problems(request) == []
    read: dict[str, Any] = msgspec.json.decode(request.body)
    validated(read)
    return read


def validated(request: dict[str, Any]) -> None:
    """What the vendor's own client takes: each part of a request read by its types, which know no other fields."""
    from google.genai import types

    for content in request["contents"]:
        types.Content.model_validate(content)
    for tool in request.get("tools", ()):
        types.Tool.model_validate(tool)
    types.Content.model_validate(request.get("systemInstruction", {}))
    types.GenerationConfig.model_validate(request.get("generationConfig", {}))
    assert set(request) <= {
        *("contents", "tools", "systemInstruction", "generationConfig", "toolConfig", "safetySettings")
    }


def contents(*turns: Turn, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body(*turns, **options)["contents"]
    return found


def call(
    id: str,
    arguments: str = "{}",
    signature: str = "",
    name: str = "run",
    model: str = NEW,
    provider: str = "google",
) -> Call:
    extra = msgspec.json.encode({"thoughtSignature": signature}) if signature else b""
    return Call(id, name, arguments, extra, provider, model)


def part(fields: dict[str, Any], text: str = "", model: str = NEW, provider: str = "google") -> Raw:
    return raw(fields, text, provider, model, PART)


# Recorded follow-ups.


def as_part(block: Block, model: str, number: int) -> Part:
    """A block as the chain has it."""
    if block.kind == "call":
        made = msgspec.json.decode(block.body, type=CallBody)
        return Call(block.id or str(number), made.name, made.arguments, bytes(made.extra), "google", model)
    if block.type == TEXT:
        return Text(block.body.decode())
    return Raw("google", model, block.type, block.body, "")


@pytest.mark.parametrize("name", ["parallel-calls-no-id", "thinking-call-signature"])
def test_a_recorded_follow_up_is_built_from_the_records_of_the_answer(streams_dir: Path, name: str) -> None:
    recording = Recording(streams_dir, name, "gemini")
    model, request, follow_up = (
        recording.said["model"],
        recording.said["request"],
        recording.said["followup_request"],
    )
    answered = blocks(decode([recording.answer], Decoder))
    calls = [block for block in answered if block.kind == "call"]
    numbers = {id(block): number for number, block in enumerate(calls, 1)}
    parts = [as_part(block, model, numbers.get(id(block), 0)) for block in answered]
    responses = [p["functionResponse"] for p in follow_up["contents"][2]["parts"]]
    results = [Result(one["id"], one["name"], (Text(one["response"]["result"]),), False) for one in responses]
    tools = tuple(
        Tool(one["name"], one["description"], {"type": "object", "properties": {}})
        for one in request["tools"][0]["functionDeclarations"]
    )
    sent = body(
        user(request["contents"][0]["parts"][0]["text"]),
        assistant(*parts),
        user(*results),
        model=model,
        tools=tools,
        system=request["systemInstruction"]["parts"][0]["text"],
        params={"generationConfig": request["generationConfig"], "toolConfig": request["toolConfig"]},
    )
    for one in responses:
        one["response"] = {
            "output": one["response"]["result"]
        }  # the vendor's name for it; theirs is their own
    assert sent["contents"] == follow_up["contents"]
    assert sent["systemInstruction"]["parts"] == request["systemInstruction"]["parts"]
    assert (sent["generationConfig"], sent["toolConfig"]) == (
        request["generationConfig"],
        request["toolConfig"],
    )
    for ours, theirs in zip(
        sent["tools"][0]["functionDeclarations"], request["tools"][0]["functionDeclarations"], strict=True
    ):
        assert {**ours, "parametersJsonSchema": 0} == {
            "name": theirs["name"],
            "description": theirs["description"],
            "parametersJsonSchema": 0,
        }


def test_a_recorded_answer_goes_back_part_by_part_in_its_order(streams_dir: Path) -> None:
    """Code that the vendor ran, its result, what was said of it, and the signature on the empty part at the end."""
    recording = Recording(streams_dir, "code-execution", "gemini")
    model = recording.said["model"]
    parts = [as_part(block, model, 0) for block in blocks(decode([recording.answer], Decoder))]
    _, answer, _ = contents(user("x"), assistant(*parts), user("y"), model=model)
    code, ran, text, last = answer["parts"]
    first, _, second, third = recording.expected["blocks"]
    assert code == {**first["content"], "thoughtSignature": first["signature"]}
    assert ran == second["content"]
    assert text == {"text": third["text"]}
    assert last == {"text": "", "thoughtSignature": third["signature"]}


# Contents.


def test_the_system_text_and_the_tools_stand_beside_the_contents() -> None:
    sent = body(user("hi"))
    assert sent["systemInstruction"] == {"parts": [{"text": "You are."}]}
    assert sent["contents"] == [{"role": "user", "parts": [{"text": "hi"}]}]
    (declared,) = sent["tools"][0]["functionDeclarations"]
    assert declared == {
        "name": "run",
        "description": TOOL.description,
        "parametersJsonSchema": TOOL.schema,
    }
    bare = body(user("hi"), system=" ", tools=())
    assert set(bare) == {"contents"}


def test_parallel_calls_are_one_content_and_their_results_another_in_the_same_order() -> None:
    found = contents(
        user("go"),
        assistant("on it", call("a", '{"x":1}', "c2ln"), call("b", name="functions.run")),
        user(result("a", "one", "two"), Result("b", "functions.run", (Text("no"),), True)),
    )
    assert [content["role"] for content in found] == ["user", "model", "user"]
    assert found[1]["parts"] == [
        {"text": "on it"},
        {"functionCall": {"name": "run", "args": {"x": 1}, "id": "a"}, "thoughtSignature": "c2ln"},
        {"functionCall": {"name": "functions_run", "args": {}, "id": "b"}},
    ]
    assert found[2]["parts"] == [
        {"functionResponse": {"id": "a", "name": "run", "response": {"output": "one\ntwo"}}},
        {"functionResponse": {"id": "b", "name": "functions_run", "response": {"error": "no"}}},
    ]


@pytest.mark.parametrize("model", [NEW, OLD])
def test_what_is_said_beside_results_is_a_content_of_its_own_behind_them(model: str) -> None:
    """Newer models refuse a content of both: "Requests ending with a model turn are not supported."."""
    found = contents(
        user("go"), assistant(call("a", model=model)), user(result("a"), "also do Y"), model=model
    )
    assert [content["role"] for content in found] == ["user", "model", "user", "user"]
    assert [list(one) for one in found[2]["parts"]] == [["functionResponse"]]
    assert found[3]["parts"] == [{"text": "also do Y"}]


def test_an_image_in_a_result_stands_inside_it_with_the_models_that_take_it_there() -> None:
    shown = Result("a", "run", (Media("image/png", picture()), Text("[done]")), False)
    data = base64.b64encode(picture()).decode()
    image = {"inlineData": {"mimeType": "image/png", "data": data}}
    _, _, found = contents(user("go"), assistant(call("a")), user(shown))
    (one,) = found["parts"]
    assert one["functionResponse"]["parts"] == [image]
    assert one["functionResponse"]["response"] == {"output": "[done]"}
    *_, results, beside = contents(user("go"), assistant(call("a", model=OLD)), user(shown, "so"), model=OLD)
    assert results["parts"][0]["functionResponse"]["response"] == {
        "output": "[an image, shown below]\n[done]"
    }
    assert beside["parts"] == [{"text": "The image of the result of a:"}, image, {"text": "so"}]


def test_an_image_goes_as_what_its_bytes_are_and_a_moving_one_as_its_first_picture() -> None:
    ((content),) = contents(user("look", Media("image/jpg", picture()), Media("image/gif", picture("GIF"))))
    text, still, moved = content["parts"]
    assert text == {"text": "look"}
    for one in (still, moved):
        image = inspect(base64.b64decode(one["inlineData"]["data"]))
        assert (one["inlineData"]["mimeType"], image.type) == ("image/png", "image/png")
        assert (image.width, image.height) == (3, 2)


def test_where_images_are_too_many_the_oldest_give_way_to_notes() -> None:
    one = Result("a", "run", tuple(Media("image/png", picture()) for _ in range(60)), False)
    turns = [user("x"), assistant(call("a")), user(one), assistant("y")]
    rest = user(*(Media("image/png", picture()) for _ in range(50)))
    sent = compile_(*turns, rest).body
    assert (sent.count(b'"inlineData"'), sent.count(b"it is left out")) == (50, 60)
    assert GOOGLE.problems(compile_(*turns, rest)) == []


def test_a_moving_image_is_drawn_anew_off_the_loop() -> None:
    assert fitting.heavy(picture("GIF"))
    assert not fitting.heavy(picture())


def test_a_check_of_the_request_says_that_an_image_moves_no_more() -> None:
    moving, still = Media("image/gif", picture("GIF")), Media("image/png", picture())
    found = context(user("look", moving, still))
    query = Query(known(NEW), found, [TOOL], {}, "session")
    parts = [(0, part) for part in found.last.parts] if found.last is not None else []
    sent = differences.find(GOOGLE, query, GOOGLE.compile(query, Wire()), parts, 0)
    assert sent == differences.Sent([(1, "a moving image: its first picture is sent")], 2)


def test_an_image_that_does_not_read_or_is_not_taken_is_a_note() -> None:
    (content,) = contents(user("look", Media("image/png", picture()[:30])))
    assert "cut off" in content["parts"][1]["text"]
    (content,) = contents(
        user("look", Media("image/png", picture())), model=Model("gemma-4", 9, input=("text/plain",))
    )
    assert "the model takes no images" in content["parts"][1]["text"]


def test_a_gemini_of_which_nothing_is_known_is_shown_images() -> None:
    look = user(Media("image/png", picture()))
    assert "inlineData" in contents(look, model=Model("gemini-9", input=("text/plain",)))[0]["parts"][0]
    assert "text" in contents(look, model=Model("gemini-9", 10, input=("text/plain",)))[0]["parts"][0]


def test_nothing_is_ever_empty() -> None:
    found = contents(
        user(" "),
        assistant(part({"text": "hm", "thought": True})),
        user("x"),
        assistant(part({"text": "", "thoughtSignature": "c2ln"})),
        user("y"),
        assistant(call("a", signature="c2ln")),
        user(result("a", " ")),
    )
    assert found[0]["parts"] == found[1]["parts"] == [{"text": NOTHING}]
    assert found[3]["parts"] == [{"text": "", "thoughtSignature": "c2ln"}, {"text": NOTHING}]
    assert found[6]["parts"][0]["functionResponse"]["response"] == {"output": NOTHING}


def test_without_anything_new_the_model_is_told_to_go_on() -> None:
    assert contents(user("hi"), assistant("half"))[-1] == {"role": "user", "parts": [{"text": GO_ON}]}
    assert contents() == [{"role": "user", "parts": [{"text": GO_ON}]}]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("", {}),
        ("null", {}),
        ('{"a":1}', {"a": 1}),
        ("[1]", {INVALID: "[1]"}),
        ('{"a": "unfinish', {INVALID: '{"a": "unfinish'}),
        ('"{}"', {INVALID: '"{}"'}),
        ('{"a":"\\ud83d"}', {"a": "\ufffd"}),
    ],
)
def test_arguments_are_sent_as_a_valid_object(given: str, sent: dict[str, Any]) -> None:
    found = contents(user("hi"), assistant(call("a", given)), user(result("a")))
    assert found[1]["parts"][0]["functionCall"]["args"] == sent


def test_a_call_and_its_result_have_one_legal_name_and_one_id() -> None:
    long = "x" * 70
    for given, sent in (("9lives", "_9lives"), ("run", "run"), ("", "unknown"), ("-" * 80, "_" + "-" * 63)):
        turns = user("hi"), assistant(call(long, name=given)), user(Result(long, given, (Text("x"),), False))
        found = contents(*turns)
        made, came = (
            found[1]["parts"][0]["functionCall"],
            found[2]["parts"][0]["functionResponse"],
        )
        assert (made["name"], made["id"]) == (came["name"], came["id"])
        assert made["name"] == sent
        assert len(made["id"]) <= 64


def test_half_a_character_is_never_sent() -> None:
    sent = body(user("a\ud83d"), system="b\ud83d", params={"safetySettings": [{"x": "c\ud83d"}]})
    assert json.dumps(sent, ensure_ascii=False).count("\ufffd") == 3


# Signatures.


def test_parts_go_back_byte_for_byte_where_they_stood() -> None:
    signed = Raw("google", NEW, PART, b'{"thoughtSignature" : "c2ln",  "text":"two"}', "two")
    turns = user("hi"), assistant("one", signed, part({"novel": 1, "text": "x"}, "x"), "four"), user("y")
    assert (
        b'[{"text":"one"},{"thoughtSignature" : "c2ln",  "text":"two"},{"novel":1,"text":"x"},{"text":"four"}]'
        in compile_(*turns).body
    )


@pytest.mark.parametrize(
    "other",
    [
        part({"text": "", "thoughtSignature": "c2ln"}, provider="other"),
        part({"text": "", "thoughtSignature": "c2ln"}, model=OLD),
        part({"executableCode": {"code": "1"}, "thoughtSignature": "c2ln"}, model=OLD),
        part({"text": "hm", "thought": True}),
        raw({"groundingMetadata": []}, provider="google", model=NEW, type=FIELDS),
        raw({"type": "thinking", "thinking": "hm", "signature": "s"}),
        Raw("google", NEW, PART, b"{half", ""),
        Raw("google", NEW, PART, b"[]", ""),
    ],
)
def test_no_other_block_goes_back(other: Raw) -> None:
    assert contents(user("hi"), assistant(other, "x"), user("so"))[1]["parts"] == [{"text": "x"}]


def test_words_of_another_models_or_providers_block_are_sent_in_its_place() -> None:
    for other in (
        part({"text": "cited", "thoughtSignature": "c2ln"}, "cited", model=OLD),
        raw({"type": "text", "text": "cited"}, text="cited", provider="anthropic"),
    ):
        found = contents(user("hi"), assistant("a", other), user("x"))[1]["parts"]
        assert found == [{"text": "a"}, {"text": "cited"}]


def test_a_thought_with_a_signature_goes_back_and_says_nothing_by_itself() -> None:
    thought = part({"text": "hm", "thought": True, "thoughtSignature": "c2ln"})
    found = contents(user("hi"), assistant(thought), user("x"))[1]["parts"]
    assert found == [
        {"text": "hm", "thought": True, "thoughtSignature": "c2ln"},
        {"text": NOTHING},
    ]


@pytest.mark.parametrize(
    ("made", "signature"),
    [
        (call("a", signature="c2ln"), "c2ln"),
        (call("a"), SKIP),
        (call("a", signature="c2ln", model=OLD), SKIP),
        (call("a", signature="c2ln", provider="other"), SKIP),
        (Call("a", "run", "{}", b"[", "google", NEW), SKIP),
        (Call("a", "run", "{}", b'{"functionCall":3,"thoughtSignature":"c2ln"}', "google", NEW), "c2ln"),
    ],
)
def test_the_first_call_of_an_answer_has_its_signature_or_the_word_that_stands_for_one(
    made: Call, signature: str
) -> None:
    turns = user("hi"), assistant("x", made, call("b")), user(result("a"), result("b"))
    _, first, second = contents(*turns)[1]["parts"]
    assert first["thoughtSignature"] == signature
    assert "thoughtSignature" not in second


def test_an_older_model_gets_no_word_for_a_signature() -> None:
    turns = user("hi"), assistant(call("a", signature="c2ln")), user(result("a"))
    assert "thoughtSignature" not in contents(*turns, model=OLD)[1]["parts"][0]
    own = user("hi"), assistant(call("a", signature="c2ln", model=OLD)), user(result("a"))
    assert contents(*own, model=OLD)[1]["parts"][0]["thoughtSignature"] == "c2ln"


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("gemini-3-pro-preview", True),
        ("gemini-3.8-flash", True),
        ("gemini-4-argon", True),
        ("gemini-flash-latest", True),
        ("models/gemini-3.1-pro-preview", True),
        ("gemini-2.5-pro", False),
        ("gemini-2.0-flash-lite-001", False),
        ("gemini-live-2.5-flash", False),
        ("gemini-1.5-pro", False),
        ("gemma-4-31b-it", False),
    ],
)
def test_signatures_are_wanted_from_gemini_3_on(model: str, wanted: bool) -> None:
    assert signs(model) is wanted


def test_what_a_call_carried_besides_goes_back_with_it() -> None:
    extra = b'{"functionCall":{"willContinue":false},"partMetadata":{"x":1},"thoughtSignature":"c2ln"}'
    found = contents(user("hi"), assistant(Call("a", "run", "{}", extra, "google", NEW)), user(result("a")))
    (made,) = found[1]["parts"]
    assert made["functionCall"]["willContinue"] is False
    assert (made["partMetadata"], made["thoughtSignature"]) == ({"x": 1}, "c2ln")


# Head, params, wire.


def test_key_and_headers_are_sent() -> None:
    request = compile_(user("x"), provider=Google(key="AIza-1", headers={"X-A": "b"}))
    assert (request.headers["x-goog-api-key"], request.headers["x-a"]) == ("AIza-1", "b")
    assert "x-goog-api-key" not in compile_(user("x"), provider=Google()).headers


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("https://generativelanguage.googleapis.com", "https://generativelanguage.googleapis.com/v1beta"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1beta"),
        ("http://127.0.0.1:8080/v1beta", "http://127.0.0.1:8080/v1beta"),
        ("https://host/gemini/v1alpha/", "https://host/gemini/v1alpha"),
        ("https://host/v1/publishers/google", "https://host/v1/publishers/google"),
        ("https://host/gemini", "https://host/gemini/v1beta"),
    ],
)
def test_an_address_is_taken_with_a_version_or_without(url: str, root: str) -> None:
    provider = Google(url=url)
    assert compile_(user("x"), provider=provider).url == f"{root}/models/{NEW}:streamGenerateContent?alt=sse"
    assert provider.listing.url == f"{root}/models?pageSize=1000"
    assert at(f"{url}?a=b", "/x", "c=d") == f"{root}/x?a=b&c=d"


def test_a_models_name_stands_in_the_address_and_a_path_as_it_is() -> None:
    for name, path in (
        ("tunedModels/mine", "tunedModels/mine"),
        ("models/gemini-x", "models/gemini-x"),
        ("a b?c", "models/a%20b%3Fc"),
    ):
        assert f"/v1beta/{path}:streamGenerateContent?" in compile_(user("x"), model=Model(name)).url


def test_params_are_the_vendors_own_fields() -> None:
    params = {
        "generationConfig": {"maxOutputTokens": 9, "thinkingConfig": {"includeThoughts": True}, "topK": None},
        "safetySettings": [],
    }
    assert GOOGLE.check_params(params) == ""
    sent = body(user("x"), params=params)
    assert sent["generationConfig"] == {"maxOutputTokens": 9, "thinkingConfig": {"includeThoughts": True}}
    assert sent["safetySettings"] == []
    assert "generationConfig" not in body(user("x"))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        *(({field: 1}, f"params.{field}: the harness sets this") for field in
          ("contents", "model", "systemInstruction", "system_instruction", "tools")),
        ({"cachedContent": "x"}, "params.cachedContent: "),
        ({"cached_content": "x"}, "params.cached_content: "),
        ({"generationConfig": {"candidateCount": 2}}, "params.generationConfig.candidateCount"),
        ({"generation_config": {"candidate_count": 2}}, "params.generation_config.candidate_count"),
    ],
)  # fmt: skip
def test_fields_that_the_harness_owns_cannot_be_set(params: dict[str, Any], words: str) -> None:
    assert words in GOOGLE.check_params(params)
    assert GOOGLE.check_params({"generationConfig": {"candidateCount": 1}, "cachedContent": None}) == ""


def test_settled_turns_are_written_once_and_their_bytes_never_change() -> None:
    wire = Wire()
    turns = [user("one"), assistant("two", call("a", signature="c2ln"))]
    compile_(*turns, user(result("a")), wire=wire)
    kept = list(wire.turns)
    assert len(kept) == 2
    wire.turns[0] = b'{"role":"user","parts":[{"text":"kept"}]}'
    later = [*turns, user(result("a")), assistant("three")]
    request = compile_(*later, user("four"), wire=wire)
    assert b'"kept"' in request.body, "not written anew"
    assert wire.turns[1] == kept[1]
    assert b'"kept"' not in compile_(*later, user("four"), wire=wire, epoch=1).body


def test_the_kept_form_is_one_models_and_one_sight() -> None:
    wire = Wire()
    look = [user(Media("image/png", picture())), assistant("x"), user("y")]
    assert b"inlineData" in compile_(*look, wire=wire).body
    assert b"inlineData" not in compile_(*look, wire=wire, model=Model(NEW, 9)).body
    assert b"inlineData" in compile_(*look, wire=wire, model=Model(OLD, 9, 9, TEXT_AND_IMAGES)).body


def test_a_large_session_costs_no_more_than_its_new_turns() -> None:
    wire = Wire()
    turns = [user("go")]
    for number in range(50):
        turns += assistant(call(f"c{number}")), user(result(f"c{number}"))
        before = list(map(id, wire.turns))
        compile_(*turns, wire=wire)
        assert list(map(id, wire.turns))[: len(before)] == before, "what was kept is not touched"
    assert len(wire.turns) == len(turns) - 1


# Errors.


def refused(status: int, message: str, *details: Any) -> Any:
    error = {"code": status, "message": message, "status": "X", "details": [*details]}
    return GOOGLE.error(status, {}, msgspec.json.encode([{"error": error}]))


def quota(*ids: str) -> dict[str, Any]:
    return {"@type": QUOTA, "violations": [{"quotaId": id, "quotaMetric": "x"} for id in ids]}


WAIT = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "23.4s"}
PER_MINUTE = "GenerateContentInputTokensPerModelPerMinute-FreeTier"
PER_DAY = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"


@pytest.mark.parametrize(
    ("found", "code", "retryable"),
    [
        (refused(429, "Quota exceeded.", quota(PER_MINUTE), WAIT), "rate_limit", True),
        (refused(429, "Resource has been exhausted (e.g. check quota)."), "rate_limit", True),
        (refused(429, "Quota exceeded, limit: 250", quota(PER_DAY, PER_MINUTE), WAIT), "billing", False),
        (refused(429, "Quota exceeded, limit: 0, model: x", quota(PER_MINUTE), WAIT), "billing", False),
        (refused(429, "odd", {"violations": [None]}, {"violations": 3}, None), "rate_limit", True),
        (refused(503, "The model is overloaded. Please try again later."), "overloaded", True),
        (refused(500, "An internal error has occurred."), "server", True),
        (refused(504, "Deadline expired."), "timeout", True),
        (refused(499, "The operation was cancelled."), "timeout", True),
        (refused(403, "Your API key was reported as leaked."), "permission", False),
        (refused(404, "models/x is not found for API version v1beta"), "not_found", False),
        (refused(400, "API key not valid.", {"reason": "API_KEY_INVALID"}), "auth", False),
        (refused(400, "User location is not supported for the API use."), "invalid", False),
        (refused(400, "The input token count (2) exceeds the maximum number of tokens allowed (1)."),
         "context_overflow", False),
        (refused(400, "Function call is missing a thought_signature in functionCall parts."),
         "bad_history", False),
        (refused(400, "Please ensure that the number of function response parts is equal to the number of"
                      " function call parts of the function call turn."), "bad_history", False),
        (refused(400, "Requests ending with a model turn are not supported."), "bad_history", False),
        (refused(400, "Please ensure that multiturn requests alternate between user and model."),
         "bad_history", False),
    ],
)  # fmt: skip
def test_each_refusal_is_of_its_class(found: Any, code: str, retryable: bool) -> None:
    assert (found.code, found.retryable) == (code, retryable)


def test_the_wait_in_the_body_is_kept_to() -> None:
    assert refused(429, "Quota exceeded.", quota(PER_MINUTE), WAIT).retry_after == pytest.approx(23.4)


# Models.


def entry(name: str, **fields: Any) -> dict[str, Any]:
    can = ["generateContent", "countTokens"]
    return {"name": f"models/{name}", "supportedGenerationMethods": can, **fields}


def test_the_models_that_talk_are_learned_with_their_limits() -> None:
    provider = Google(known=models.GOOGLE[:1])
    assert isinstance(provider, Lister)
    provider.learn(
        {
            "models": [
                entry(NEW, inputTokenLimit=7, outputTokenLimit=3),
                entry("gemini-9-pro", inputTokenLimit=7, outputTokenLimit=3),
                entry("gemini-3.7-flash"),
                entry("gemma-4-31b-it", inputTokenLimit=5, outputTokenLimit="x"),
                entry("gemini-embedding-001", supportedGenerationMethods=["embedContent"]),
                entry("gemini-2.5-flash-preview-tts"),
                entry("gemini-3-pro-image"),
                entry("gemini-live-2.5-flash"),
                {"name": 7},
                None,
            ]
        }
    )
    assert provider.models() == (
        models.GOOGLE[0],
        Model("gemini-9-pro", 7, 3, TEXT_AND_IMAGES),
        known("gemini-3.7-flash"),
        Model("gemma-4-31b-it", 5, 0, ("text/plain",)),
    )


@pytest.mark.parametrize("answer", [{}, [], None, {"models": 3}, {"data": []}])
def test_an_answer_without_a_list_is_none(answer: Any) -> None:
    with pytest.raises(ValueError, match="lists no models"):
        Google().learn(answer)


async def test_the_server_is_asked_for_its_models() -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.path_qs, request.headers.get("x-goog-api-key")))
        return web.json_response({"models": [entry("gemini-9-pro", inputTokenLimit=7, outputTokenLimit=3)]})

    app = web.Application()
    app.router.add_get("/v1beta/models", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        entries = {"google": ProviderEntry("google", url, "AIza-0123456789")}
        registry = await asyncio.to_thread(Registry, entries, None, {})
        async with open_session() as http, Asking(http) as asking:
            asking.ask(registry.providers)
            await asking.wait(30)
    finally:
        await runner.cleanup()
    assert seen == [("/v1beta/models?pageSize=1000", "AIza-0123456789")]
    assert registry.default() == f"google/{NEW}"
    assert "google/gemini-9-pro" in registry.served()
    assert registry.resolve("google/gemini-9-pro")[1].context == 7


def test_an_entry_gives_url_key_headers_and_models() -> None:
    named = ProviderEntry(
        "google",
        "http://127.0.0.1:1",
        " AIza-1 ",
        headers={"X-A": "b"},
        models={"gemini-own": ModelEntry(9, 8)},
    )
    registry = Registry({"mine": named}, env={})
    assert registry.default() == "mine/gemini-own"
    provider, model = registry.resolve("mine/gemini-own")
    assert isinstance(provider, Google)
    assert not provider.lists
    request = provider.compile(Query(model, context(user("x")), (), {}, "s"), Wire())
    assert request.url.startswith("http://127.0.0.1:1/v1beta/models/gemini-own:")
    assert (request.headers["x-goog-api-key"], request.headers["x-a"]) == ("AIza-1", "b")
    assert registry.resolve("mine/gemini-2.5-pro")[1].context == 1_048_576


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (ProviderEntry("google", url="generativelanguage.googleapis.com"), "providers.google.url"),
        (ProviderEntry("google", key="AIza\n-x"), "providers.google.key"),
        (ProviderEntry("google", quirks={"usage": False}), "providers.google.quirks"),
    ],
)
def test_an_entry_that_cannot_be_used_names_the_field_and_the_fix(given: ProviderEntry, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        Registry({"google": given}, env={})
