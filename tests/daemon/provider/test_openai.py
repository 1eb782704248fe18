import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.chain import GO_ON, Media, Raw, Result, Text, Turn, fold
from daemon.protocol.records import draft
from daemon.provider.base import Model, Query, Request, Tool, Wire
from daemon.provider.models import TEXT_AND_IMAGES
from daemon.provider.openai import ENCRYPTED, OpenAI
from daemon.provider.repair import INVALID
from daemon.provider.responses import Decoder
from daemon.provider.responses_items import NOTHING
from daemon.provider.responses_pieces import ITEM
from tests.daemon.book import Book
from tests.daemon.provider import recorded
from tests.daemon.provider.contexts import TOOL, assistant, call, context, picture, result, user
from tests.daemon.provider.recorded import Recording, blocks

MODEL = "model-x"
SEES = Model(MODEL, input=TEXT_AND_IMAGES)
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2Vj+/=="}
OPEN = {
    "type": "reasoning",
    "id": "rs_2",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm, ü "}],
}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed"}


def compile_(
    *turns: Turn,
    provider: OpenAI | None = None,
    model: Model = SEES,
    wire: Wire | None = None,
    params: dict[str, Any] | None = None,
    tools: tuple[Tool, ...] = (TOOL,),
    system: str = "You are.",
    epoch: int = 0,
) -> Request:
    query = Query(model, context(*turns, system=system, epoch=epoch), tools, params or {}, "session")
    return (provider or OpenAI(key="secret")).compile(query, wire or Wire())


def body(*turns: Turn, **options: Any) -> dict[str, Any]:
    """The request's body, read back; it has passed the wire's rules."""
    request = compile_(*turns, **options)
    assert OpenAI().problems(request) == []
    read: dict[str, Any] = msgspec.json.decode(request.body)
    return read


def items(*turns: Turn, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body(*turns, **options)["input"]
    return found


def answered(*parts: Any, **options: Any) -> list[dict[str, Any]]:
    """The items of an answer, between a question and what comes after it."""
    calls = [part.id for part in parts if not isinstance(part, str) and hasattr(part, "arguments")]
    found = items(user("x"), assistant(*parts), user(*map(result, calls), "y"), **options)
    return found[1 : len(found) - 1 - len(calls)]


def item(fields: dict[str, Any], text: str = "", provider: str = "openai", model: str = MODEL) -> Raw:
    body = msgspec.json.encode({"text": text, "item": fields})
    return Raw(provider, model, ITEM, body, text)


def said(words: str, **fields: Any) -> Raw:
    part = {"type": "output_text", "text": words, "annotations": []}
    own = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    return item({**own, **fields}, words)


def own(id: str, arguments: str = "{}", **extra: Any) -> Any:
    return call(id, arguments, extra=msgspec.json.encode({"id": f"fc_{id}", **extra}), provider="openai")


# Recorded follow-ups.


def continued(recording: Recording, model: str) -> dict[str, Any]:
    """The next request of the recorded conversation, from the records of its answer."""
    expected = recording.said["followup_request"]["input"]
    book, words = Book(), next(one["content"] for one in expected if one.get("role") == "user")
    book.message(words if isinstance(words, str) else words[0]["text"])
    upto = book.n
    for block in blocks(recorded.decode([recording.answer], Decoder)):
        book.keep(draft(block.kind, block.body, block.type, id=block.id, step="s1", provider="openai"))
    book.step("s1", upto, provider="openai", model=model)
    for one in expected:
        if one.get("type") == "function_call_output":
            book.result(one["call_id"], one["output"])
    query = Query(Model(model), fold(book.records).context(), [TOOL], {}, "s")
    request = OpenAI().compile(query, Wire())
    assert OpenAI().problems(request) == []
    read: dict[str, Any] = msgspec.json.decode(request.body)
    return read


@pytest.mark.parametrize(
    "name",
    [
        "deepseek-reasoning-text-call",
        "parallel-function-calls",
        "xai-tool-call",
        "reasoning-summary-encrypted-call",
    ],
)
def test_a_recorded_follow_up_is_built_from_the_records_of_the_answer(streams_dir: Path, name: str) -> None:
    recording = Recording(streams_dir, name, "responses")

    def plain(one: dict[str, Any]) -> dict[str, Any]:
        """What every client sends of an item: some leave ids out, some say less than they got."""
        left = {
            n: v for n, v in one.items() if n not in ("id", "status", "encrypted_content") and v is not None
        }
        if one.get("type") == "function_call_output":
            left["output"] = one["output"].partition("\n[")[0]
        return left

    found = [one for one in continued(recording, "m")["input"] if one["type"] != "message"]
    expected = [one for one in recording.said["followup_request"]["input"] if "role" not in one]
    if not any(one["type"] == "reasoning" for one in expected):  # that client never sent it back
        found = [one for one in found if one["type"] != "reasoning"]
    assert list(map(plain, found)) == list(map(plain, expected))


def test_recorded_reasoning_goes_back_byte_for_byte(streams_dir: Path) -> None:
    for name in ("reasoning-summary-encrypted-call", "xai-tool-call"):
        recording = Recording(streams_dir, name, "responses")
        events = [
            line[6:] for line in recording.answer.split(b"\n") if b'"response.output_item.done"' in line
        ]
        thought, made = (json.loads(event)["item"] for event in events)
        found = continued(recording, "m")["input"]
        assert found[1] == thought
        assert found[2]["id"] == made["id"], "what it led to has its id"


# The head.


def test_the_request_goes_to_responses_and_holds_all_that_the_provider_needs() -> None:
    request = compile_(user("hi"))
    assert request.url == "https://api.openai.com/v1/responses"
    assert request.headers["authorization"] == "Bearer secret"
    found = body(user("hi"), system=" You\ud83d are. ")
    assert {name: found[name] for name in ("model", "store", "include", "prompt_cache_key", "stream")} == {
        "model": MODEL,
        "store": False,
        "include": [ENCRYPTED],
        "prompt_cache_key": "session",
        "stream": True,
    }
    assert found["instructions"] == "You\ufffd are."
    assert found["tools"] == [
        {
            "type": "function",
            "name": "run",
            "description": "Run code.",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        }
    ]
    assert found["input"] == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    ]
    assert {"instructions", "tools"} & body(user("hi"), system=" \n", tools=()).keys() == set()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com/v1/responses"),
        ("http://127.0.0.1:1234", "http://127.0.0.1:1234/v1/responses"),
        ("https://host/openai/v1/", "https://host/openai/v1/responses"),
        ("https://host/v1/responses", "https://host/v1/responses"),
        ("https://host/v1/chat/completions", "https://host/v1/responses"),
        ("https://host/openai/d?api-version=1", "https://host/openai/d/responses?api-version=1"),
    ],
)
def test_an_address_is_taken_as_clients_write_it(url: str, address: str) -> None:
    assert compile_(user("x"), provider=OpenAI(url=url)).url == address
    assert OpenAI(url=url).listing.url == address.replace("/responses", "/models")


def test_a_server_without_a_key_gets_none_and_headers_win() -> None:
    assert "authorization" not in compile_(user("x"), provider=OpenAI(url="http://h")).headers
    other = OpenAI(key="k", headers={"Authorization": "Basic x", "X-A": "b"})
    headers = compile_(user("x"), provider=other).headers
    assert (headers["authorization"], headers["x-a"]) == ("Basic x", "b")


def test_params_are_merged_over_the_request() -> None:
    params = {
        "reasoning": {"effort": "high", "summary": "auto"},
        "include": None,
        "store": True,
        "text": {"verbosity": None},
    }
    found = body(user("x"), params=params)
    assert (found["reasoning"], found["store"], found["text"]) == (params["reasoning"], True, {})
    assert "include" not in found


def test_fields_that_the_harness_owns_cannot_be_set() -> None:
    provider = OpenAI()
    assert provider.check_params({"temperature": 0, "tool_choice": "auto", "max_output_tokens": 9}) == ""
    owned = (
        "model",
        "input",
        "instructions",
        "tools",
        "stream",
        "previous_response_id",
        "conversation",
        "background",
    )
    for field in owned:
        assert f"params.{field}" in provider.check_params({field: 1})


# Turns.


def test_results_come_first_then_what_was_said_meanwhile() -> None:
    found = items(
        user("do"),
        assistant("both", call("a"), call("b")),
        user(result("a", "one"), result("b", failed=True), "also"),
    )
    assert [one["type"] for one in found] == [
        "message",
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "message",
    ]
    assert found[1] == {"type": "message", "role": "assistant", "content": "both"}
    assert found[4] == {"type": "function_call_output", "call_id": "a", "output": "one"}
    assert found[5]["output"] == "Error:\ndone"
    assert found[6]["content"] == [{"type": "input_text", "text": "also"}]


def test_a_result_with_an_image_is_a_list() -> None:
    data = picture()
    turns = (user("x"), assistant(call("a")), user(result("a", "seen", Media("image/png", data))))
    output = items(*turns)[2]["output"]
    assert output[0] == {"type": "input_text", "text": "seen"}
    assert (output[1]["type"], output[1]["detail"]) == ("input_image", "auto")
    kind, _, encoded = output[1]["image_url"].partition(",")
    assert (kind, base64.b64decode(encoded)) == ("data:image/png;base64", data)
    blind = items(*turns, model=Model(MODEL))[2]["output"]
    assert "the model takes no images" in blind


@pytest.mark.parametrize("data", [picture(size=(50, 50))[:40], b"BM" + bytes(50), b""], ids=range(3))
def test_an_image_that_cannot_be_sent_is_replaced_by_a_note(data: bytes) -> None:
    (part,) = items(user(Media("image/png", data)))[0]["content"]
    assert (part["type"], "cannot be shown" in part["text"]) == ("input_text", True)


def test_an_images_type_is_the_one_its_bytes_show() -> None:
    (part,) = items(user(Media("image/png", picture("JPEG"))))[0]["content"]
    assert part["image_url"].startswith("data:image/jpeg;base64,")


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("", {}),
        ("null", {}),
        ('{"a": 1}', {"a": 1}),
        ("[1]", {INVALID: "[1]"}),
        ('{"a', {INVALID: '{"a'}),
        ('"{\\"a\\":1}"', {INVALID: '"{\\"a\\":1}"'}),
        ('{"a":"\\ud83d"}', {"a": "\ufffd"}),
    ],
)
def test_arguments_are_sent_as_an_object(given: str, sent: object) -> None:
    (made,) = answered(own("a", given))
    assert json.loads(made["arguments"]) == sent


def test_ids_and_names_of_another_provider_are_made_legal_on_both_sides() -> None:
    id = "functions.add 0" + "x" * 70
    foreign = call(id, name="functions.run", extra=b'{"id":"fc_9","sig":1}', provider="google")
    found = items(user("x"), assistant(foreign), user(result(id)))
    assert found[1]["call_id"] == found[2]["call_id"]
    assert len(found[1]["call_id"]) <= 64
    assert (found[1]["name"], found[1].keys() & {"id", "sig"}) == ("functions_run", set())


def test_blank_text_and_empty_results_are_never_sent() -> None:
    found = items(user("x", " \n"), assistant("a", "\t", call("c")), user(result("c", " "), ""))
    assert [one["type"] for one in found] == ["message", "message", "function_call", "function_call_output"]
    assert len(found[0]["content"]) == 1
    assert found[3]["output"] == NOTHING


def test_a_turn_with_nothing_left_says_so() -> None:
    foreign = item(THOUGHT, provider="other")
    found = items(user(" "), assistant(foreign), user("go on"))
    assert found[0]["content"] == [{"type": "input_text", "text": NOTHING}]
    assert found[1]["content"] == NOTHING


def test_half_characters_are_replaced_everywhere() -> None:
    given = Result("c\ud83d", "d", (Text("e\ud83d"),), False)
    found = items(user("a\ud83d"), assistant("b\ude00", call("c\ud83d", name="d\ud83d")), user(given))
    assert found[0]["content"][0]["text"] == "a\ufffd"
    assert found[1]["content"] == "b\ufffd"
    assert found[3]["output"] == "e\ufffd"


def test_a_context_without_turns_and_one_that_was_answered_ask_to_go_on() -> None:
    assert items()[0]["content"][0]["text"] == GO_ON
    assert items(user("x"), assistant("y"))[2]["content"][0]["text"] == GO_ON


# Reasoning, and the provider's own items.


def test_an_answer_with_encrypted_reasoning_goes_back_item_by_item_as_it_came() -> None:
    spaced = b'{"type": "reasoning","id":"rs_1","summary":[ ],"encrypted_content":"x", "novel":1.50}'
    thought = Raw("openai", MODEL, ITEM, b'{"text":"","item":' + spaced + b"}", "")
    looked = assistant(thought, said("I look.", phase="commentary"), own("a"), item(SEARCH))
    turns = user("x"), looked, user(result("a"))
    sent = compile_(*turns).body
    assert spaced in sent
    assert (
        b'"content":[{"type":"output_text","text":"I look.","annotations":[]}],"phase":"commentary"' in sent
    )
    found = items(*turns)
    assert [one.get("id") for one in found] == [None, "rs_1", "msg_1", "fc_a", "ws_1", None]


def test_text_before_the_reasoning_is_bound_to_nothing() -> None:
    found = answered("I think.", item(THOUGHT), own("a"))
    assert found[0] == {"type": "message", "role": "assistant", "content": "I think."}
    assert found[1:] == [
        THOUGHT,
        {"type": "function_call", "id": "fc_a", "call_id": "a", "name": "run", "arguments": "{}"},
    ]


@pytest.mark.parametrize(
    "other",
    [
        call("a", provider="openai"),
        call("a", provider="google"),
        Text("words"),
        item({"type": "computer_call", "id": "cu_1"}),
        item({"type": "novel"}),
        item({**THOUGHT, "id": "rs_9", "encrypted_content": None}),
        Raw("openai", MODEL, ITEM, b"{half", ""),
    ],
    ids=range(7),
)
def test_where_one_item_cannot_go_back_as_it_came_no_other_has_its_id(other: Any) -> None:
    found = answered(item(THOUGHT), other, said("y", phase="final_answer"))
    assert found[0] == {name: value for name, value in THOUGHT.items() if name != "id"}
    assert not any("id" in one for one in found)
    assert {"type": "message", "role": "assistant", "content": "y", "phase": "final_answer"} in found
    assert "computer_call" not in [one["type"] for one in found]


def test_reasoning_that_leads_to_nothing_is_left_out() -> None:
    assert [one["type"] for one in answered(said("y"), item(THOUGHT))] == ["message"]
    assert answered(item(THOUGHT), item({**THOUGHT, "id": "rs_9"})) == [
        {"type": "message", "role": "assistant", "content": NOTHING}
    ]
    found = answered(
        item(THOUGHT), item({**THOUGHT, "id": "rs_2"}), own("a"), item({**THOUGHT, "id": "rs_3"})
    )
    assert [one["id"] for one in found] == ["rs_1", "rs_2", "fc_a"]


def test_reasoning_goes_back_to_the_provider_and_model_that_made_it_alone() -> None:
    for other in (
        item(THOUGHT, model="model-y"),
        item(THOUGHT, provider="other"),
        item(OPEN, model="model-y"),
    ):
        found = answered(other, "said", own("a"))
        assert [one["type"] for one in found] == ["message", "function_call"]
        assert "id" not in found[1]


def test_reasoning_that_anyone_can_read_goes_back_first_and_calls_last() -> None:
    found = answered(item(OPEN), own("a"), "afterwards", own("b"))
    assert found[0] == OPEN
    assert [one["type"] for one in found[1:]] == ["message", "function_call", "function_call"]
    assert not any("id" in one for one in found[1:])


def test_reasoning_that_nobody_can_read_is_left_out_and_so_is_what_hangs_on_it() -> None:
    summary = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "x"}]}
    found = answered(item(summary), item(SEARCH), said("y"))
    assert found == [{"type": "message", "role": "assistant", "content": "y"}]
    assert answered(item(SEARCH), "y")[0] == SEARCH


def test_another_models_message_is_sent_as_its_text() -> None:
    other = item({"type": "message", "id": "msg_1", "content": []}, "what it said", model="model-y")
    assert answered(other) == [{"type": "message", "role": "assistant", "content": "what it said"}]


@pytest.mark.parametrize(
    "data", [b"{half", b"[1]", b'{"text":"","item":[1]}', b'{"text":"","item":{}}', b"\xff"]
)
def test_an_own_item_that_does_not_read_is_left_out(data: bytes) -> None:
    broken = Raw("openai", MODEL, ITEM, data, "")
    assert answered(broken, "y")[-1] == {"type": "message", "role": "assistant", "content": "y"}


def test_a_custom_call_and_its_output_are_of_one_kind() -> None:
    made = call(
        "a", "SELECT 1", name="sql", extra=b'{"id":"ct_1","type":"custom_tool_call"}', provider="openai"
    )
    found = items(user("x"), assistant(made, call("b")), user(result("a"), result("b")))
    assert found[1] == {"type": "custom_tool_call", "call_id": "a", "name": "sql", "input": "SELECT 1"}
    assert [one["type"] for one in found[3:]] == ["custom_tool_call_output", "function_call_output"]
    bound = items(user("x"), assistant(item(THOUGHT), made), user(result("a")))
    assert bound[2]["id"] == "ct_1"
    moved = items(user("x"), assistant(made), user(result("a")), provider=OpenAI("other"))
    assert moved[1]["type"] == "function_call"
    assert json.loads(moved[1]["arguments"]) == {INVALID: "SELECT 1"}
    assert moved[2]["type"] == "function_call_output"


def test_what_a_call_carried_goes_back_with_it() -> None:
    caller = {"type": "program", "caller_id": "p"}
    (_, made) = answered(item(THOUGHT), own("a", namespace="files", caller=caller))
    assert (made["namespace"], made["caller"]) == ("files", caller)
    (made,) = answered(own("a", namespace="files", caller=caller))
    assert (made["namespace"], made.keys() & {"caller", "id"}) == ("files", set())
    assert answered(call("a", extra=b"?", provider="openai"))[0]["call_id"] == "a"


# The kept wire.


def test_settled_turns_are_written_once_and_their_bytes_never_change() -> None:
    wire = Wire()
    turns = [user("one"), assistant("two", own("a"))]
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
    assert b"input_image" in compile_(*look, wire=wire).body
    assert b"input_image" not in compile_(*look, wire=wire, model=Model(MODEL)).body
    assert b"input_image" in compile_(*look, wire=wire, model=Model("other", input=TEXT_AND_IMAGES)).body


def test_a_large_session_costs_no_more_than_its_new_turns() -> None:
    wire = Wire()
    turns = [user("go")]
    for number in range(50):
        turns += (
            assistant(item({**THOUGHT, "id": f"rs_{number}"}), own(f"c{number}")),
            user(result(f"c{number}")),
        )
        compile_(*turns, wire=wire)
    assert len(wire.turns) == len(turns) - 1
    assert len(items(*turns, wire=wire)) == 1 + 3 * 50


def test_too_many_images_give_way_to_notes() -> None:
    shows = [user(*(Media("image/png", picture(size=(n + 1, 1))) for n in range(60)))]
    shows += [assistant("y"), user(*(Media("image/png", picture(size=(1, n + 1))) for n in range(60)))]
    sent = compile_(*shows).body
    assert sent.count(b"input_image") == 50
    assert OpenAI().problems(compile_(*shows)) == []


# Refusals.


@pytest.mark.parametrize(
    "words",
    [
        "No tool output found for function call call_1.",
        "No tool call found for function call output with call_id call_1.",
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        "Item 'msg_1' of type 'message' was provided without its required 'reasoning' item: 'rs_1'.",
        "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
        "Duplicate item found with id rs_1. Remove duplicate items from your input and try again.",
        "The encrypted content for item rs_1 could not be verified. Reason: Encrypted content item_id did not match.",
        "The reasoning_text in the thinking mode must be passed back to the API.",
    ],
)
def test_a_history_that_was_refused_is_told_from_other_mistakes(words: str) -> None:
    said = {"error": {"message": words, "type": "invalid_request_error", "param": "input", "code": None}}
    error = OpenAI().error(400, {"x-request-id": "req_1"}, json.dumps(said).encode())
    assert (error.code, error.retryable, error.request_id) == ("bad_history", False, "req_1")
    assert words in error.message


def test_recorded_refusals_are_classed(streams_dir: Path) -> None:
    found = {}
    for line in (streams_dir / "http-errors.jsonl").read_text().splitlines():
        told = json.loads(line)
        if told["provider"] in ("OpenAI", "DeepSeek"):
            headers = {name.lower(): value for name, value in told["headers"].items()}
            found[told["name"]] = OpenAI().error(told["status"], headers, told["body"].encode()).code
            assert found[told["name"]] == told["expected_class"]
    assert len(found) == 2


# Models.


def test_a_server_that_lists_its_models_is_learnt_from() -> None:
    provider = OpenAI(url="http://h", key="k", known=[Model("mine", 9)])
    assert provider.listing.headers["accept"] == "application/json"
    provider.learn({"data": [{"id": "gpt-5"}, {"id": "mine"}, {"id": "text-embedding-3"}]})
    assert [(model.name, model.context) for model in provider.models()] == [("mine", 9), ("gpt-5", 400_000)]
    with pytest.raises(ValueError, match="lists no models"):
        provider.learn({})
