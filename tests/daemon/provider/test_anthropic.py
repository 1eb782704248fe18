import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.chain import GO_ON, Context, Media, Raw, Turn, fold
from daemon.protocol.records import draft
from daemon.provider import rules_messages
from daemon.provider.anthropic import Anthropic
from daemon.provider.anthropic_blocks import NOTHING
from daemon.provider.base import Model, Wire
from daemon.provider.fitting import MAX_SIDE
from daemon.provider.images import Image, inspect
from daemon.provider.messages import BLOCK
from daemon.provider.repair import INVALID
from tests.daemon.book import Book
from tests.daemon.provider.contexts import (
    MODEL,
    assistant,
    body,
    call,
    compile_,
    context,
    messages,
    picture,
    plain,
    raw,
    result,
    unmarked,
    user,
)
from tests.daemon.provider.recorded import Recording, blocks, decode

THOUGHT = {"type": "thinking", "thinking": "Hm, ü😀 ", "signature": "c2ln+/=="}
SERVER = {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": []}


# Follow-up requests that were recorded.


def blank_left_out(content: Any) -> Any:
    """A message's content as a list, without blank texts, notes on results, and what says nothing."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    left = []
    for block in plain(content):
        block = {name: value for name, value in block.items() if (name, value) != ("is_error", False)}
        if block["type"] == "tool_result":
            block["content"] = blank_left_out(block["content"])
        if block["type"] == "text":
            block["text"] = re.sub(r"\n\[[^\n]*\]$", "", block["text"])
            if not block["text"].strip():
                continue
        left.append(block)
    return left


@pytest.mark.parametrize(
    "name",
    [
        "parallel-tool-use",
        "text-then-two-tools",
        "thinking-then-tool",
        "tool-no-args",
        "tool-search",
        "web-search-citations",
    ],
)
def test_a_recorded_follow_up_is_built_from_the_records_of_the_answer(streams_dir: Path, name: str) -> None:
    recording = Recording(streams_dir, name)
    expected = recording.said["followup_request"]["messages"]
    book = Book()
    book.message(expected[0]["content"][0]["text"])
    upto = book.n
    for block in blocks(decode([recording.answer])):
        kept = draft(block.kind, block.body, block.type, id=block.id, step="s1", provider="anthropic")
        book.keep(kept)
    book.step("s1", upto, provider="anthropic", model=MODEL)
    for block in expected[2]["content"]:
        text = block["text"] if block["type"] == "text" else blank_left_out(block["content"])[0]["text"]
        book.message(text) if block["type"] == "text" else book.result(block["tool_use_id"], text)
    built = body(fold(book.records).context())["messages"]
    assert [m["role"] for m in built] == [m["role"] for m in expected]
    for ours, theirs in zip(built, expected, strict=True):
        assert blank_left_out(ours["content"]) == blank_left_out(theirs["content"])


def test_a_refusal_without_content_leaves_no_empty_message(streams_dir: Path) -> None:
    assert blocks(decode([Recording(streams_dir, "refusal-no-content").answer])) == []
    book = Book()
    book.message("tell me")
    book.step("s1", book.n, provider="anthropic", model=MODEL)
    book.error("the model refused")
    book.message("something else then")
    (content,) = body(fold(book.records).context())["messages"]
    assert [block["text"] for block in content["content"]] == [
        "tell me",
        "[the model refused]",
        "something else then",
    ]


# The head.


def test_the_request_goes_to_the_messages_api_with_the_key_in_its_header() -> None:
    request = compile_(context(user("hi")))
    assert request.url == "https://api.anthropic.com/v1/messages"
    assert request.headers["x-api-key"] == "secret"
    assert request.headers["anthropic-version"] == "2023-06-01"
    other = compile_(context(user("hi")), provider=Anthropic(url="http://h:1/v1/", headers={"X-More": "1"}))
    assert other.url == "http://h:1/v1/messages"
    assert "x-api-key" not in other.headers
    assert other.headers["x-more"] == "1"


def test_the_head_names_model_system_and_tools() -> None:
    found = body(context(user("hi"), system=" You\ud83d are. "))
    assert found["model"] == MODEL
    assert found["stream"] is True
    assert plain(found["system"]) == [{"type": "text", "text": "You\ufffd are."}]
    schema = {"type": "object", "properties": {}}
    assert found["tools"] == [{"name": "run", "description": "Run code.", "input_schema": schema}]
    bare = body(context(user("hi"), system=" \n"), tools=())
    assert bare.keys() == {"model", "max_tokens", "stream", "messages"}


def test_max_tokens_is_the_params_else_the_models_else_a_default() -> None:
    def limit(model: Model | None = None, **params: Any) -> object:
        return body(context(user("hi")), model=model, params=params)["max_tokens"]

    assert limit() == 8192
    assert limit(Model("m", output=64_000)) == 64_000
    assert limit(Model("m", output=64_000), max_tokens=5) == 5
    assert limit(Model("m"), max_tokens=None) == 8192


def test_params_are_merged_in_and_may_not_touch_what_the_harness_sets() -> None:
    params = {"temperature": 0.5, "thinking": {"type": "enabled", "budget_tokens": 2000}, "none": None}
    found = body(context(user("hi")), params=params)
    assert found["temperature"] == 0.5
    assert found["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert "none" not in found
    provider = Anthropic()
    assert provider.check_params(params) == ""
    for field in ("model", "messages", "system", "tools", "stream"):
        assert f"params.{field}" in provider.check_params({field: 1})


# Turns.


def test_results_come_first_and_complete_then_what_was_said_meanwhile() -> None:
    picture_ = picture()
    turns = (
        user("do"),
        assistant("both", call("a"), call("b")),
        user(result("b", "two"), "also do Y", result("a", Media("image/png", picture_), "seen", failed=True)),
    )
    content = messages(*turns)[2]
    assert [block["type"] for block in content] == ["tool_result", "tool_result", "text"]
    assert content[0] == {
        "type": "tool_result",
        "tool_use_id": "b",
        "content": [{"type": "text", "text": "two"}],
    }
    assert [block["type"] for block in content[1]["content"]] == ["image", "text"]
    assert content[1]["is_error"] is True


def test_calls_go_last_in_an_answer() -> None:
    content = messages(user("x"), assistant(call("a"), "words", call("b")), user(result("a"), result("b")))[1]
    assert [block["type"] for block in content] == ["text", "tool_use", "tool_use"]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("", {}),
        ('{"a": 1}', {"a": 1}),
        ("[1]", {INVALID: "[1]"}),
        ('{"a', {INVALID: '{"a'}),
        ('{"a":"\\ud83d"}', {"a": "\ufffd"}),
    ],
)
def test_arguments_are_sent_as_an_object(given: str, sent: object) -> None:
    assert messages(user("x"), assistant(call("a", given)), user(result("a")))[1][0]["input"] == sent


def test_ids_and_names_of_another_provider_are_made_legal_on_both_sides() -> None:
    foreign = call("functions.add:0", name="functions.run", extra=b'{"sig": 1}', provider="google")
    turns = messages(user("x"), assistant(foreign), user(result("functions.add:0")))
    assert turns[1][0]["id"] == turns[2][0]["tool_use_id"]
    assert turns[1][0]["name"] == "functions_run"
    assert "sig" not in turns[1][0]


def test_what_a_call_carried_goes_back_with_it() -> None:
    extra = b'{"caller":{"type":"code_execution_20260120","tool_id":"s"}}'
    sent = messages(user("x"), assistant(call("a", extra=extra)), user(result("a")))[1][0]
    assert sent["caller"]["tool_id"] == "s"
    assert "caller" not in messages(user("x"), assistant(call("a", extra=b"?")), user(result("a")))[1][0]


def test_blank_text_and_empty_results_are_never_sent() -> None:
    turns = messages(user("x", " \n"), assistant("a", "\t", call("c")), user(result("c", " "), ""))
    assert turns[0] == [{"type": "text", "text": "x"}]
    assert [block["type"] for block in turns[1]] == ["text", "tool_use"]
    assert turns[2] == [
        {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": NOTHING}]}
    ]


def test_a_turn_with_nothing_left_says_so() -> None:
    foreign = raw(THOUGHT, provider="google", type="application/x-other+json")
    turns = messages(user(" "), assistant(foreign), user("go on"))
    assert turns[:2] == [[{"type": "text", "text": NOTHING}]] * 2


def test_half_characters_are_replaced_everywhere() -> None:
    turns = messages(
        user("a\ud83d"),
        assistant("b\ude00", call("c\ud83d", name="d\ud83d")),
        user(result("c\ud83d", "e\ud83d")),
    )
    assert turns[0][0]["text"] == "a\ufffd"
    assert turns[1][0]["text"] == "b\ufffd"
    assert turns[2][0]["content"][0]["text"] == "e\ufffd"


def test_a_context_without_turns_and_one_that_was_answered_ask_to_go_on() -> None:
    assert messages() == [[{"type": "text", "text": GO_ON}]]
    assert messages(user("x"), assistant("y"))[2] == [{"type": "text", "text": GO_ON}]


# Thinking, and the provider's own blocks.


def test_own_blocks_go_back_byte_for_byte() -> None:
    bodies = [
        b'{"signature":"c2ln+/==","thinking":"  Hm, \xc3\xbc ","type":"thinking"}',
        b'{"type":"thinking","thinking":"","signature":"omitted"}',
        b'{"type":"redacted_thinking","data":"Ev4="}',
        b'{"type":"novel","x":1.50}',
        b'{"citations":[{"type":"web_search_result_location"}],"type":"text","text":"cited"}',
    ]
    parts = [Raw("anthropic", MODEL, BLOCK, body, "") for body in bodies]
    request = compile_(context(user("x"), assistant(*parts), user("y")))
    assert b",".join(bodies) in request.body
    assert rules_messages.problems(request.body) == []


def test_thinking_goes_back_to_the_model_that_signed_it_alone() -> None:
    others = [
        raw(THOUGHT, model="claude-y"),
        raw({"type": "redacted_thinking", "data": "x"}, model="claude-y"),
        raw(THOUGHT, provider="bedrock"),
        raw({**THOUGHT, "signature": ""}),
        raw({"type": "thinking", "thinking": "unsigned"}),
    ]
    turns = messages(user("x"), assistant(*others, "said", call("a")), user(result("a")))
    assert [block["type"] for block in turns[1]] == ["text", "tool_use"]


def test_another_providers_block_is_sent_as_its_text_where_it_has_one() -> None:
    foreign = raw(
        {"type": "message", "content": []}, "what it said", provider="openai", type="application/x+json"
    )
    assert messages(user("x"), assistant(foreign), user("y"))[1] == [{"type": "text", "text": "what it said"}]


@pytest.mark.parametrize("data", [b"{half", b"[1]", b'"\\ud83d"', b"\xff", b"[" * 100_000], ids=range(5))
def test_an_own_block_that_does_not_read_is_left_out(data: bytes) -> None:
    broken = Raw("anthropic", MODEL, BLOCK, data, "")
    assert messages(user("x"), assistant(broken, "y"), user("z"))[1] == [{"type": "text", "text": "y"}]


def test_a_cited_text_that_is_blank_is_left_out() -> None:
    blank = raw({"type": "text", "text": " ", "citations": [{}]})
    assert messages(user("x"), assistant(blank, "y"), user("z"))[1] == [{"type": "text", "text": "y"}]


def test_thinking_is_never_the_last_block_of_a_message() -> None:
    content = messages(user("x"), assistant("y", raw(THOUGHT)), user("z"))[1]
    assert [block["type"] for block in content] == ["text", "thinking", "text"]


def test_a_paused_answer_goes_on_where_it_was() -> None:
    first = assistant("I search.", raw(SERVER))
    found = messages(user("x"), first)
    assert found[-1] == [{"type": "text", "text": "I search."}, SERVER], (
        "the last message is the assistant's own"
    )
    second = assistant(raw(FOUND), "Found.")
    found = messages(user("x"), first, user(GO_ON), second, user("thanks"))
    assert [block["type"] for block in found[1]] == [
        "text",
        "server_tool_use",
        "web_search_tool_result",
        "text",
    ]
    assert len(found) == 3


def test_a_paused_answer_that_somebody_spoke_into_does_not_go_on() -> None:
    found = messages(user("x"), assistant("I search.", raw(SERVER)), user("stop that"))
    assert found[1] == [{"type": "text", "text": "I search."}]
    found = messages(user("x"), assistant(raw(SERVER)), user("stop that"))
    assert found[1] == [{"type": "text", "text": NOTHING}]


def test_a_paused_answer_that_was_not_taken_up_does_not_go_on() -> None:
    found = messages(
        user("x"), assistant("I search.", raw(SERVER)), user(GO_ON), assistant("No."), user("thanks")
    )
    assert found[1:4] == [[{"type": "text", "text": word}] for word in ("I search.", GO_ON, "No.")]


def test_a_result_without_the_use_of_its_tool_is_left_out() -> None:
    assert messages(user("x"), assistant("y", raw(FOUND)), user("z"))[1] == [{"type": "text", "text": "y"}]


def test_an_answer_may_pause_twice() -> None:
    again, late = {**SERVER, "id": "srv2"}, {**FOUND, "tool_use_id": "srv2"}
    turns = [user("x"), assistant(raw(SERVER)), user(GO_ON), assistant(raw(FOUND), raw(again))]
    kinds = ["server_tool_use", "web_search_tool_result"] * 2
    assert [block["type"] for block in messages(*turns)[1]] == kinds[:3]
    turns += [user(GO_ON), assistant(raw(late), "done"), user("thanks")]
    assert [block["type"] for block in messages(*turns)[1]] == [*kinds, "text"]


def test_go_on_stays_where_the_answer_before_it_was_whole() -> None:
    found = messages(user("x"), assistant("y"), user(GO_ON), assistant("z"), user("w"))
    assert len(found) == 5


# Images.


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP"])
def test_an_images_type_is_the_one_its_bytes_show(format: str) -> None:
    data = picture(format)
    (block,) = messages(user(Media("image/jpg", data)))[0]
    assert block["source"]["media_type"] == f"image/{format.lower()}"
    assert base64.b64decode(block["source"]["data"]) == data


def test_an_image_that_cannot_be_sent_is_replaced_by_a_note() -> None:
    for data, why in ((picture(size=(50, 50))[:40], "cut off"), (picture("BMP"), "not a PNG")):
        (block,) = messages(user(Media("image/png", data)))[0]
        assert block["type"] == "text"
        assert why in block["text"]


def test_an_image_that_is_too_large_is_sent_smaller() -> None:
    (block,) = messages(user(Media("image/png", picture(size=(MAX_SIDE + 1, 4)))))[0]
    sent = base64.b64decode(block["source"]["data"])
    assert inspect(sent) == Image("image/png", MAX_SIDE, 4)


# Cache marks and the kept wire.


def test_marks_stand_on_the_system_text_and_the_last_two_user_turns() -> None:
    turns = [user("a"), assistant("b"), user("c"), assistant("d"), user("e", Media("image/png", picture()))]
    request = compile_(context(*turns))
    found = msgspec.json.decode(request.body)
    mark = {"type": "ephemeral"}
    assert request.marks == (2, 4)
    assert found["system"][-1]["cache_control"] == mark
    marked = [
        index for index, message in enumerate(found["messages"]) if "cache_control" in json.dumps(message)
    ]
    assert marked == [2, 4]
    assert all(found["messages"][index]["content"][-1]["cache_control"] == mark for index in marked)


def session(steps: int) -> Iterator[Book]:
    """A session before each of its steps, each with results that say how full the context is."""
    book = Book()
    book.message("go")
    for step in range(steps):
        yield book
        book.answer(f"s{step}", f"a{step}", f"b{step}", provider="anthropic", model=MODEL)
        book.result(f"b{step}", exit=0, seconds=0.5)
        if step % 3 == 1:
            book.message("and this")
        book.result(f"a{step}")


def test_the_bytes_before_a_mark_never_change_between_steps() -> None:
    wire, before = Wire(), b""
    for book in session(8):
        request = compile_(fold(book.records, "id").context(), wire=wire)
        assert rules_messages.problems(request.body) == []
        assert compile_(fold(book.records, "id").context()).body == request.body, (
            "the same without the kept form"
        )
        now = unmarked(request.body)
        assert now.startswith(before)
        before = now.removesuffix(b"]}")


class Watched(list[Turn]):
    """Turns that know which of them were looked at."""

    def __init__(self, turns: list[Turn]) -> None:
        super().__init__(turns)
        self.seen: set[int] = set()

    def __getitem__(self, index: Any) -> Any:
        self.seen.add(index)
        return super().__getitem__(index)


def test_a_step_looks_at_new_turns_only() -> None:
    wire = Wire()
    turns = [turn for _ in range(50) for turn in (user("x"), assistant("y"))]
    compile_(Context("s", turns, user("z"), 1, 0), wire=wire)
    watched = Watched([*turns, user("z"), assistant("w")])
    compile_(Context("s", watched, user("v"), 2, 0), wire=wire)
    assert min(watched.seen) >= len(turns) - 1


def test_a_summary_another_model_or_provider_begins_the_kept_form_anew() -> None:
    wire = Wire()
    old = context(user("old"), assistant(raw(THOUGHT), "y"), user("z"))
    new = context(user("new"), assistant(raw(THOUGHT), "y"), user("z"), epoch=1)
    for found, model in ((old, MODEL), (new, MODEL), (new, "claude-y"), (old, MODEL)):
        kept = compile_(found, wire=wire, model=Model(model)).body
        assert kept == compile_(found, model=Model(model)).body


def test_a_paused_answer_is_kept_in_its_final_form_only() -> None:
    wire = Wire()
    first = assistant("I search.", raw(SERVER))
    for turns in (
        [user("x"), first],
        [user("x"), first, user(GO_ON), assistant(raw(FOUND), "Found."), user("more")],
    ):
        assert compile_(context(*turns), wire=wire).body == compile_(context(*turns)).body
    wire = Wire()
    for turns in ([user("x"), first], [user("x"), first, user("stop")]):
        assert compile_(context(*turns), wire=wire).body == compile_(context(*turns)).body


# The provider's small parts.


def test_errors_are_classed_and_decoders_made_and_models_known() -> None:
    provider = Anthropic()
    error = provider.error(
        529, {}, b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    )
    assert (error.code, error.retryable) == ("overloaded", True)
    assert provider.decoder() is not provider.decoder()
    assert provider.transport is None
    assert provider.models()[0].name == "claude-sonnet-5"
