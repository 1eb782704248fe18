import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.chain import GO_ON, Media, Part, Raw, Result, Text, Turn
from daemon.protocol.records import CallBody
from daemon.provider.base import Block, Model, Query, Request, Tool, Wire
from daemon.provider.chat import FIELDS, REASONING
from daemon.provider.chat_messages import BRIDGE, NOTHING
from daemon.provider.models import TEXT_AND_IMAGES
from daemon.provider.openai_chat import OpenAIChat, at
from daemon.provider.quirks import Quirks, of_host, of_model
from daemon.provider.repair import INVALID
from tests.daemon.provider.contexts import TOOL, assistant, call, context, picture, raw, result, user
from tests.daemon.provider.recorded import Recording, blocks, decode_chat

MODEL = "model-x"
SEES = Model(MODEL, input=TEXT_AND_IMAGES)
LOCAL = "http://127.0.0.1:8080/v1"
MISTRAL = OpenAIChat("openai-chat", url="https://api.mistral.ai/v1")
DEEPSEEK = OpenAIChat("openai-chat", url="https://api.deepseek.com")


def compile_(
    *turns: Turn,
    provider: OpenAIChat | None = None,
    model: Model = SEES,
    wire: Wire | None = None,
    params: dict[str, Any] | None = None,
    tools: tuple[Tool, ...] = (TOOL,),
    system: str = "You are.",
    epoch: int = 0,
) -> Request:
    query = Query(model, context(*turns, system=system, epoch=epoch), tools, params or {}, "session")
    return (provider or OpenAIChat(url=LOCAL)).compile(query, wire or Wire())


def body(*turns: Turn, provider: OpenAIChat | None = None, **options: Any) -> dict[str, Any]:
    """The request's body, read back; it has passed the wire's rules."""
    request = compile_(*turns, provider=provider, **options)
    assert (provider or OpenAIChat(url=LOCAL)).problems(request) == []
    read: dict[str, Any] = msgspec.json.decode(request.body)
    return read


def messages(*turns: Turn, **options: Any) -> list[dict[str, Any]]:
    """The messages after the system's."""
    found: list[dict[str, Any]] = body(*turns, **options)["messages"]
    return found[1:]


def thought(kept: dict[str, Any], provider: str = "openai-chat", model: str = MODEL) -> Raw:
    return raw(kept, provider=provider, model=model, type=REASONING)


# Recorded follow-ups.

FOLLOWED = (
    "avian-double-finish",
    "azure-tool-call",
    "deepseek-tool-split-args",
    "groq-parallel-tools",
    "llamacpp-reasoning-tool",
    "ollama-reasoning-tool",
    "openai-parallel-tools",
    "openrouter-reasoning-details-tool",
    "xai-reasoning-parallel-tools",
)


def part(block: Block, provider: str, model: str) -> Part:
    """A block as the chain has it."""
    if block.kind == "call":
        made = msgspec.json.decode(block.body, type=CallBody)
        return call(block.id, made.arguments, made.name, bytes(made.extra), provider)
    if block.kind == "thinking":
        return Raw(provider, model, block.type, block.body, "")
    return Text(block.body.decode())


def meant(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what makes no difference: how arguments are spaced, how no content is written."""
    plain = {**message, "content": (message.get("content") or "").strip()}
    for made in plain.get("tool_calls", ()):
        made["function"]["arguments"] = json.loads(made["function"]["arguments"])
    return {field: value for field, value in plain.items() if field == "content" or value}


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_recorded_follow_up_is_built_with_the_same_meaning(name: str, streams_dir: Path) -> None:
    recording = Recording(streams_dir, name, "chat")
    request, follow_up = recording.said["request"], recording.said["followup_request"]["messages"]
    model = request["model"]
    answer = [part(block, "openai-chat", model) for block in blocks(decode_chat([recording.answer]))]
    results = [
        result(message["tool_call_id"], message["content"])
        for message in follow_up
        if message["role"] == "tool"
    ]
    asked = [message["content"] for message in follow_up if message["role"] == "user"]
    system = "".join(message["content"] for message in follow_up if message["role"] == "system")
    tools = tuple(
        Tool(t["function"]["name"], t["function"]["description"], t["function"]["parameters"])
        for t in request["tools"]
    )
    sent = body(
        user(*asked),
        assistant(*answer),
        user(*results),
        provider=OpenAIChat(url=recording.said["url"].replace("RESOURCE", "resource")),
        model=Model(model),
        system=system,
        tools=tools,
    )
    expected = [meant(message) for message in follow_up]
    if name.startswith("ollama"):  # its client wrote the same reasoning under both names
        del expected[1]["reasoning_content"]
    assert [meant(message) for message in sent["messages"]] == expected
    assert (sent["model"], sent["stream"], sent["stream_options"]) == (model, True, {"include_usage": True})
    for ours, theirs in zip(sent["tools"], request["tools"], strict=True):
        theirs["function"].pop("strict", None)
        assert ours == theirs


# Messages.


def test_the_system_text_comes_first_as_a_system_message() -> None:
    first, second = body(user("hi"))["messages"]
    assert first == {"role": "system", "content": "You are."}
    assert second == {"role": "user", "content": "hi"}
    assert body(user("hi"), system=" ")["messages"] == [second]


def test_text_alone_is_a_plain_string_and_with_images_there_are_parts() -> None:
    assert messages(user("a", " ", "b")) == [{"role": "user", "content": "a\n\nb"}]
    ((message),) = messages(user("look", Media("image/jpg", picture())))
    text, image = message["content"]
    assert text == {"type": "text", "text": "look"}
    head, _, data = image["image_url"]["url"].partition(",")
    assert (head, base64.b64decode(data)) == ("data:image/png;base64", picture())


def test_a_model_that_takes_no_images_gets_a_note() -> None:
    (message,) = messages(user("look", Media("image/png", picture())), model=Model(MODEL))
    assert "the model takes no images" in message["content"]


def test_an_image_that_does_not_read_is_a_note() -> None:
    (message,) = messages(user("look", Media("image/png", picture()[:30])))
    assert "cut off" in message["content"]


def test_results_are_messages_of_their_own_in_front_of_what_was_said_meanwhile() -> None:
    found = messages(
        user("go"),
        assistant("on it", call("a"), call("b", name="functions.run")),
        user(result("a", "one", "two"), result("b", failed=True), "also do Y"),
    )
    function = {"name": "functions_run", "arguments": "{}"}
    assert found[1]["tool_calls"][1] == {"id": "b", "type": "function", "function": function}
    assert found[2:] == [
        {"role": "tool", "tool_call_id": "a", "content": "one\ntwo"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: done"},
        {"role": "user", "content": "also do Y"},
    ]


def test_an_image_in_a_result_comes_in_the_message_after_the_results() -> None:
    found = messages(
        user("go"),
        assistant(call("a"), call("b")),
        user(Result("a", "run", (Media("image/png", picture()), Text("[done]")), False), result("b"), "so"),
    )
    assert found[2]["content"] == "[an image, shown below]\n[done]"
    text, image, said = found[4]["content"]
    assert (text["text"], image["type"], said["text"]) == (
        "The image of the result of a:",
        "image_url",
        "so",
    )


def test_nothing_is_ever_empty() -> None:
    found = messages(
        user(" "),
        assistant(thought({"text": "hm"}, provider="other")),
        user("x"),
        assistant(call("a")),
        user(result("a", " ")),
    )
    assert [message["content"] for message in found] == [NOTHING, NOTHING, "x", "", NOTHING]


def test_without_anything_new_the_model_is_told_to_go_on() -> None:
    assert messages(user("hi"), assistant("half"))[-1] == {"role": "user", "content": GO_ON}
    assert messages() == [{"role": "user", "content": GO_ON}]


def test_words_of_another_providers_block_are_sent_in_its_place() -> None:
    cited = raw({"type": "text", "text": "cited"}, text="cited", provider="anthropic")
    assert messages(user("hi"), assistant("a", cited), user("x"))[1]["content"] == "a\n\ncited"


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
    found = messages(user("hi"), assistant(call("a", given)), user(result("a")))
    assert json.loads(found[1]["tool_calls"][0]["function"]["arguments"]) == sent


def test_ids_that_servers_make_stay_and_long_ones_become_forty_characters() -> None:
    long = "fc_" + "x" * 60
    found = messages(
        user("hi"),
        assistant(call("functions.run:0"), call(long)),
        user(result("functions.run:0"), result(long)),
    )
    first, second = (made["id"] for made in found[1]["tool_calls"])
    assert first == found[2]["tool_call_id"] == "functions.run:0"
    assert second == found[3]["tool_call_id"]
    assert len(second) == 40


def test_half_a_character_is_never_sent() -> None:
    text = json.dumps(body(user("a\ud83d"), system="b\ud83d", params={"user": "c\ud83d"}), ensure_ascii=False)
    assert text.count("\ufffd") == 3


# Reasoning.


def test_reasoning_goes_back_in_the_field_it_came_in() -> None:
    turns = [
        user("hi"),
        assistant(thought({"text": "hm", "field": "reasoning"}), call("a")),
        user(result("a")),
    ]
    assert messages(*turns)[1]["reasoning"] == "hm"
    details = [{"type": "reasoning.text", "text": "hm", "signature": "s"}]
    turns[1] = assistant(thought({"text": "hm", "field": "reasoning", "details": details}), call("a"))
    message = messages(*turns)[1]
    assert (message["reasoning_details"], "reasoning" in message) == (details, False)


@pytest.mark.parametrize(
    "part",
    [
        thought({"text": "hm", "field": "reasoning"}, provider="other"),
        thought({"text": "hm", "field": "reasoning"}, model="other"),
        thought({"text": "hm"}),
        thought({"text": 7}),
        raw({"annotations": []}, provider="openai-chat", model=MODEL, type=FIELDS),
        raw({"type": "thinking", "thinking": "hm", "signature": "s"}),
        Raw("openai-chat", MODEL, REASONING, b"{half", ""),
    ],
)
def test_no_other_thinking_goes_back(part: Raw) -> None:
    message = messages(user("hi"), assistant(part, "x"), user("so"))[1]
    assert message == {"role": "assistant", "content": "x"}


def test_deepseek_gets_its_reasoning_with_every_answer_and_an_empty_one_where_there_was_none() -> None:
    found = messages(
        user("hi"),
        assistant(thought({"text": "hm", "field": "reasoning_content"}), call("a")),
        user(result("a")),
        assistant(thought({"text": "of another", "field": "reasoning_content"}, provider="other"), call("b")),
        user(result("b")),
        assistant("done"),
        user("x"),
        provider=DEEPSEEK,
    )
    answers = [message["reasoning_content"] for message in found if message["role"] == "assistant"]
    assert answers == ["hm", "", ""]


def test_a_server_that_refuses_reasoning_gets_none() -> None:
    for provider in (MISTRAL, OpenAIChat(), OpenAIChat(url=LOCAL, quirks=Quirks(thinking="none"))):
        turns = user("hi"), assistant(thought({"text": "hm", "field": "reasoning"}), "x"), user("so")
        assert messages(*turns, provider=provider)[1] == {"role": "assistant", "content": "x"}


def test_what_a_call_carried_goes_back_to_its_own_provider() -> None:
    extra = b'{"extra_content":{"google":{"thought_signature":"s"}}}'
    for provider, sent in (("openai-chat", True), ("other", False)):
        made = call("a", extra=extra, provider=provider)
        found = messages(user("hi"), assistant(made), user(result("a")))[1]["tool_calls"][0]
        assert ("extra_content" in found) is sent
    broken = call("a", extra=b"[", provider="openai-chat")
    assert messages(user("hi"), assistant(broken), user(result("a")))[1]["tool_calls"][0]["id"] == "a"


# Quirks.


def test_mistral_gets_ids_of_nine_letters_and_a_word_between_a_result_and_a_message() -> None:
    turns = [user("hi"), assistant(call("call_1"), call("gSIMJiOkT"))]
    turns.append(user(result("call_1"), result("gSIMJiOkT"), "and?"))
    found = messages(*turns, provider=MISTRAL)
    assert [message["role"] for message in found] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    assert found[4]["content"] == BRIDGE
    assert found[3]["tool_call_id"] == "gSIMJiOkT"
    assert "stream_options" not in body(*turns, provider=MISTRAL)


def test_quirks_are_known_by_host_and_by_model() -> None:
    assert of_host("https://api.deepseek.com/beta").thinking == "reasoning_content"
    assert of_host("https://mine.openai.azure.com/openai/v1").thinking == "none"
    assert of_host("https://notapi.deepseek.com.example/v1") == Quirks()
    assert of_host("http://127.0.0.1:8000") == Quirks()
    assert of_model(Quirks(), "mistralai/Devstral-Small-2") == Quirks(ids="short", bridge=True)
    assert of_model(Quirks(), "qwen3") == Quirks()


def test_only_openai_gets_the_session_as_cache_key() -> None:
    assert body(user("x"), provider=OpenAIChat())["prompt_cache_key"] == "session"
    assert "prompt_cache_key" not in body(user("x"))


# Head, params, wire.


def test_a_key_and_headers_are_sent_and_a_server_without_a_key_gets_none() -> None:
    request = compile_(user("x"), provider=OpenAIChat(url=LOCAL, key="sk-1", headers={"X-A": "b"}))
    assert (request.headers["authorization"], request.headers["x-a"]) == ("Bearer sk-1", "b")
    assert "authorization" not in compile_(user("x")).headers
    own = OpenAIChat(url=LOCAL, key="sk-1", headers={"Authorization": "Basic x"})
    assert compile_(user("x"), provider=own).headers["authorization"] == "Basic x"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com/v1/chat/completions"),
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434/v1/chat/completions"),
        ("http://127.0.0.1:11434/", "http://127.0.0.1:11434/v1/chat/completions"),
        ("https://host/openai/v1/", "https://host/openai/v1/chat/completions"),
        ("https://host/v1/chat/completions", "https://host/v1/chat/completions"),
        ("https://host/openai/d?api-version=1", "https://host/openai/d/chat/completions?api-version=1"),
    ],
)
def test_an_address_is_taken_as_clients_write_it(url: str, address: str) -> None:
    assert at(url, "/chat/completions") == address
    assert compile_(user("x"), provider=OpenAIChat(url=url)).url == address
    assert OpenAIChat(url=url).listing.url == address.replace("/chat/completions", "/models")


def test_params_are_merged_over_the_request() -> None:
    sent = body(user("x"), params={"max_completion_tokens": 9, "stream_options": None, "extra": {"a": None}})
    assert (sent["max_completion_tokens"], sent["extra"]) == (9, {})
    assert "stream_options" not in sent
    assert "max_tokens" not in sent


def test_fields_that_the_harness_owns_cannot_be_set() -> None:
    provider = OpenAIChat()
    assert provider.check_params({"temperature": 0, "tool_choice": "auto", "max_tokens": 1}) == ""
    for field in ("model", "messages", "tools", "stream", "n"):
        assert f"params.{field}" in provider.check_params({field: 1})


def test_without_tools_there_is_no_list_of_them() -> None:
    assert "tools" not in body(user("x"), tools=())
    assert body(user("x"))["tools"][0]["function"]["parameters"] == TOOL.schema


def test_settled_turns_are_written_once_and_their_bytes_never_change() -> None:
    wire = Wire()
    turns = [user("one"), assistant("two", call("a"))]
    compile_(*turns, user(result("a")), wire=wire)
    kept = list(wire.turns)
    assert len(kept) == 2
    wire.turns[0] = b'{"role":"user","content":"kept"}'
    later = [*turns, user(result("a")), assistant("three")]
    request = compile_(*later, user("four"), wire=wire)
    assert b'"content":"kept"' in request.body, "not written anew"
    assert wire.turns[1] == kept[1]
    assert b'"content":"kept"' not in compile_(*later, user("four"), wire=wire, epoch=1).body


def test_the_kept_form_is_one_models_and_one_sight() -> None:
    wire = Wire()
    look = [user(Media("image/png", picture())), assistant("x"), user("y")]
    assert b"image_url" in compile_(*look, wire=wire).body
    assert b"image_url" not in compile_(*look, wire=wire, model=Model(MODEL)).body
    assert b"image_url" in compile_(*look, wire=wire, model=Model("other", input=TEXT_AND_IMAGES)).body


def test_a_large_session_costs_no_more_than_its_new_turns() -> None:
    wire = Wire()
    turns = [user("go")]
    for number in range(50):
        turns += assistant(call(f"c{number}")), user(result(f"c{number}"))
        compile_(*turns, wire=wire)
    assert len(wire.turns) == len(turns) - 1
    assert len(messages(*turns, wire=wire)) == len(turns)
