"""What servers of Chat Completions write and take, each by its own habits: made by hand where none is recorded."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.chain import Turn
from daemon.config import ConfigError, ProviderEntry
from daemon.protocol.records import CallBody, Usage, readable
from daemon.provider.base import Block, Event, Model, Outcome, ProviderError, Query, Request, Wire
from daemon.provider.openai_chat import OpenAIChat
from daemon.provider.quirks import Quirks, of_host
from daemon.provider.registry import Registry
from tests.daemon.provider.contexts import TOOL, context, user
from tests.daemon.provider.recorded import decode_chat

DONE = "data: [DONE]\n\n"
AZURE = "https://mine.openai.azure.com/openai/deployments/gpt-x?api-version=2024-10-21"


def said(event: Event | ProviderError) -> Any:
    """A block, an outcome or an error in a few words; None for a delta."""
    match event:
        case Block("call", body, _, id):
            call = msgspec.json.decode(body, type=CallBody)
            return ("call", id, call.name, call.arguments)
        case Block(kind, body, type):
            return (kind, readable(type, body))
        case Outcome(usage, stop, end):
            return (end, stop, usage)
        case ProviderError():
            return (event.code, event.retryable)
        case _:
            return None


def decoded(*chunks: Any, end: str = DONE) -> list[Any]:
    """What the chunks give; a text is sent as it stands."""
    text = "".join(chunk if isinstance(chunk, str) else f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return [told for event in decode_chat([(text + end).encode()]) if (told := said(event)) is not None]


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"object": "chat.completion.chunk", "choices": [choice], **more}


def call(id: str | None, name: str | None, arguments: str, **more: Any) -> dict[str, Any]:
    fields = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}
    return {"tool_calls": [{key: value for key, value in fields.items() if value is not None}]}


def counts(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output, **more}


# What they write.

ANSWERS: dict[str, tuple[list[Any], str, list[Any]]] = {
    "ollama gives each call the index 0, and its counts last": (
        [
            chunk({"role": "assistant", "content": "", "reasoning": "two "}),
            chunk({"content": "", "reasoning": "files"}),
            chunk({"content": "", **call("call_a", "write", '{"p":1}', index=0)}),
            chunk({"content": "", **call("call_b", "write", '{"p":2}', index=0)}),
            chunk({"content": ""}, "tool_calls"),
            {"choices": [], "usage": counts(9, 5)},
        ],
        DONE,
        [
            ("thinking", "two files"),
            ("call", "call_a", "write", '{"p":1}'),
            ("call", "call_b", "write", '{"p":2}'),
            ("calls", "tool_calls", Usage(9, 5)),
        ],
    ),
    "an older ollama has neither index nor id of its own kind, and says stop after calls": (
        [chunk(call("call_1", "f", "{}")), chunk(call("call_2", "g", "{}")), chunk({"content": ""}, "stop")],
        DONE,
        [("call", "call_1", "f", "{}"), ("call", "call_2", "g", "{}"), ("calls", "stop", Usage())],
    ),
    "vllm counts in every chunk when told to, and names a call once": (
        [
            chunk({"role": "assistant", "content": ""}, usage=counts(8, 0)),
            chunk({"reasoning_content": "hm"}, usage=counts(8, 1)),
            chunk(call("chatcmpl-tool-1", "f", "", index=0), usage=counts(8, 3)),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}, usage=counts(8, 4)),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}, usage=counts(8, 6)),
            chunk({"content": ""}, "tool_calls", usage=counts(8, 7), stop_reason=None),
        ],
        DONE,
        [
            ("thinking", "hm"),
            ("call", "chatcmpl-tool-1", "f", '{"a": 1}'),
            ("calls", "tool_calls", Usage(8, 7)),
        ],
    ),
    "vllm may send the same reasoning under both names": (
        [chunk({"reasoning": "a", "reasoning_content": "a"}), chunk({"content": "b"}, "stop")],
        DONE,
        [("thinking", "a"), ("text", "b"), ("normal", "stop", Usage())],
    ),
    "llama.cpp breaks off with an error for a chunk and no end mark": (
        [
            chunk({"role": "assistant", "content": None}),
            chunk({"content": "half"}),
            {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}},
        ],
        "",
        [("context_overflow", False)],
    ),
    "llama.cpp has timings beside its counts, in a chunk without choices": (
        [
            chunk({"content": "hi"}),
            chunk({}, "stop"),
            {"choices": [], "usage": counts(30, 2), "timings": {"cache_n": 20, "prompt_n": 10}},
        ],
        DONE,
        [("text", "hi"), ("normal", "stop", Usage(30, 2))],
    ),
    "lm studio has an event of the name error": (
        [chunk({"content": "x"}), 'event: error\ndata: {"error":{"message":"The model has crashed"}}\n\n'],
        "",
        [("server", True)],
    ),
    "lm studio sends a name in pieces": (
        [
            chunk(call("1", "get_", "", index=0)),
            chunk(call(None, "weather", "", index=0)),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"q":"x"}'}}]}),
            chunk({}, "tool_calls"),
        ],
        DONE,
        [("call", "1", "get_weather", '{"q":"x"}'), ("calls", "tool_calls", Usage())],
    ),
    "openrouter keeps the line open with comments, finishes twice and tells the cost": (
        [
            ": OPENROUTER PROCESSING\n\n",
            chunk({"role": "assistant", "content": "ok"}, provider="X"),
            chunk({"content": ""}, "stop", native_finish_reason="STOP"),
            chunk({"content": ""}, "stop", usage=counts(5, 1, cost=0.0001)),
        ],
        DONE,
        [("text", "ok"), ("normal", "stop", Usage(5, 1))],
    ),
    "openrouter tells of a failure behind it inside a chunk": (
        [
            chunk({"content": "half"}),
            {
                "error": {"code": 502, "message": "Provider disconnected"},
                "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
            },
        ],
        DONE,
        [("server", True)],
    ),
    "deepseek has keep-alive comments and counts of its own for its cache": (
        [
            ": keep-alive\n\n",
            chunk({"role": "assistant", "content": None, "reasoning_content": "think"}),
            chunk({"content": "done", "reasoning_content": None}),
            chunk({"content": ""}, "stop", usage=counts(100, 7, prompt_cache_hit_tokens=64)),
        ],
        DONE,
        [("thinking", "think"), ("text", "done"), ("normal", "stop", Usage(36, 7, 64))],
    ),
    "deepseek gives up under load by a finish reason": (
        [chunk({"content": "half"}), chunk({"content": ""}, "insufficient_system_resource")],
        DONE,
        [("cut", True)],
    ),
    "groq counts in a field of its own, and its reasoning is called so": (
        [
            chunk({"role": "assistant", "reasoning": "r", "channel": "analysis"}),
            chunk({"content": "a"}),
            chunk({}, "stop", x_groq={"id": "req", "usage": counts(4, 2)}),
        ],
        DONE,
        [("thinking", "r"), ("thinking", ""), ("text", "a"), ("normal", "stop", Usage(4, 2))],
    ),
    "groq takes a call back that its model wrote wrong": (
        [
            chunk({"content": "x"}),
            {
                "error": {
                    "message": "Failed to call a function.",
                    "type": "invalid_request_error",
                    "code": "tool_use_failed",
                }
            },
        ],
        "",
        [("model_bad_call", True)],
    ),
    "mistral thinks in parts of the content, gives calls whole and without an index, and counts at the end": (
        [
            chunk(
                {
                    "role": "assistant",
                    "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}],
                }
            ),
            chunk({"content": [{"type": "text", "text": "b"}]}),
            chunk(
                {
                    "tool_calls": [
                        {"id": "abcdefghi", "function": {"name": "f", "arguments": "{}"}},
                        {"id": "bcdefghij", "function": {"name": "g", "arguments": '{"x": 1}'}},
                    ]
                },
                "tool_calls",
                usage=counts(3, 2),
            ),
        ],
        DONE,
        [
            ("thinking", "a"),
            ("text", "b"),
            ("call", "abcdefghi", "f", "{}"),
            ("call", "bcdefghij", "g", '{"x": 1}'),
            ("calls", "tool_calls", Usage(3, 2)),
        ],
    ),
    "xai counts reasoning apart and sends each call whole": (
        [
            chunk({"role": "assistant", "reasoning_content": "r"}),
            chunk(call("call_1", "f", "{}", index=0)),
            chunk(call("call_2", "f", "{}", index=1)),
            chunk(
                {},
                "tool_calls",
                usage={
                    "prompt_tokens": 10,
                    "completion_tokens": 3,
                    "total_tokens": 20,
                    "prompt_tokens_details": {"cached_tokens": 4},
                    "completion_tokens_details": {"reasoning_tokens": 7},
                },
            ),
        ],
        DONE,
        [
            ("thinking", "r"),
            ("call", "call_1", "f", "{}"),
            ("call", "call_2", "f", "{}"),
            ("calls", "tool_calls", Usage(6, 10, 4)),
        ],
    ),
    "azure begins with a chunk about filters, and a filter may end the answer": (
        [
            {"choices": [], "prompt_filter_results": [{"prompt_index": 0}], "id": "", "model": ""},
            chunk({"role": "assistant", "content": "half", "refusal": None}),
            chunk({}, "content_filter"),
            {"choices": [], "usage": counts(2, 1)},
        ],
        DONE,
        [("text", "half"), ("filter", "content_filter", Usage(2, 1))],
    ),
    "together ends with eos, and its counts are null until the last chunk": (
        [
            chunk({"role": "assistant", "content": "hi"}, usage=None),
            chunk({"content": "", "token_id": 2}, "eos", usage=counts(1, 1)),
        ],
        DONE,
        [("text", "hi"), ("thinking", ""), ("normal", "eos", Usage(1, 1))],
    ),
    "a server may have reasoning in parts": (
        [
            chunk({"reasoning": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            chunk({"reasoning": {"content": "c"}}),
            chunk({"reasoning": {"effort": 3}}),
            chunk({"content": "d"}, "stop"),
        ],
        DONE,
        [("thinking", "abc"), ("text", "d"), ("normal", "stop", Usage())],
    ),
    "a server may never count, finish or end": (
        [chunk({"content": "all of it"})],
        "",
        [("cut", True)],
    ),
    "a server may finish and never end": (
        [chunk({"content": "all of it"}), chunk({}, "stop")],
        "",
        [("text", "all of it"), ("normal", "stop", Usage())],
    ),
    "a call may have no id at all, nor arguments": (
        [chunk({"tool_calls": [{"function": {"name": "f"}}]}), chunk({}, "tool_calls")],
        DONE,
        [("call", "", "f", ""), ("calls", "tool_calls", Usage())],
    ),
}


@pytest.mark.parametrize(("chunks", "end", "wanted"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_read_as_its_server_writes_it(chunks: list[Any], end: str, wanted: list[Any]) -> None:
    found = decoded(*chunks, end=end)
    errors = [told for told in wanted if isinstance(told[1], bool)]
    assert (found[-1:] if errors else found) == wanted


# What they take.


def sent(provider: OpenAIChat, params: dict[str, Any] | None = None, turn: Turn | None = None) -> Request:
    query = Query(Model("m"), context(turn or user("x")), (TOOL,), params or {}, "session-1")
    request = provider.compile(query, Wire())
    assert provider.problems(request) == []
    return request


def fields(request: Request) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.json.decode(request.body)
    return read


@pytest.mark.parametrize(
    ("url", "fields_", "left_out"),
    [
        ("http://127.0.0.1:11434/v1", {"stream_options", "messages", "tools"}, {"prompt_cache_key"}),
        ("https://api.openai.com/v1", {"stream_options", "prompt_cache_key"}, set()),
        ("https://api.mistral.ai/v1", {"messages"}, {"stream_options", "prompt_cache_key"}),
        ("https://openrouter.ai/api/v1", {"stream_options"}, {"prompt_cache_key"}),
        (AZURE, {"stream_options"}, {"prompt_cache_key"}),
    ],
)
def test_no_server_gets_a_field_that_it_refuses(url: str, fields_: set[str], left_out: set[str]) -> None:
    found = fields(sent(OpenAIChat(url=url))).keys()
    assert fields_ <= found
    assert not (left_out | {"tool_choice", "max_tokens", "max_completion_tokens", "store"}) & found


@pytest.mark.parametrize(
    ("url", "given", "wanted"),
    [
        ("https://api.openai.com/v1", {"max_tokens": 9}, {"max_completion_tokens": 9}),
        ("https://api.openai.com/v1", {"max_completion_tokens": 9}, {"max_completion_tokens": 9}),
        ("https://api.mistral.ai/v1", {"max_completion_tokens": 9}, {"max_tokens": 9}),
        ("http://127.0.0.1:8000/v1", {"max_tokens": 9}, {"max_tokens": 9}),
        ("http://127.0.0.1:8000/v1", {"max_completion_tokens": 9}, {"max_completion_tokens": 9}),
        ("https://api.openai.com/v1", {}, {}),
    ],
)
def test_the_limit_of_an_answer_has_the_name_that_the_server_takes(
    url: str, given: dict[str, Any], wanted: dict[str, Any]
) -> None:
    found = fields(sent(OpenAIChat(url=url), given))
    assert {name: value for name, value in found.items() if name.startswith("max_")} == wanted


def test_azure_gets_its_key_in_a_header_of_its_own_at_the_deployments_address() -> None:
    request = sent(OpenAIChat(url=AZURE, key="k-12345678"))
    assert request.url == (
        "https://mine.openai.azure.com/openai/deployments/gpt-x/chat/completions?api-version=2024-10-21"
    )
    assert request.headers["api-key"] == "k-12345678"
    assert "authorization" not in request.headers


def test_azures_deployment_is_the_model_and_its_list_is_not_asked_for() -> None:
    entries = {
        "azure": ProviderEntry("openai-chat", AZURE, "k"),
        "next": ProviderEntry("openai-chat", "https://mine.openai.azure.com/openai/v1", "k"),
        "local": ProviderEntry("openai-chat", "http://127.0.0.1:1/openai/deployments/x"),
    }
    registry = Registry(entries, env={})
    assert [model.name for model in registry.models("azure")] == ["gpt-x"]
    assert not registry.models("next")
    assert not registry.models("local")
    asked = [name for name, provider in registry.providers.items() if getattr(provider, "lists", False)]
    assert asked == ["local"]


def test_xai_gets_the_session_in_a_header_so_that_its_cache_is_met() -> None:
    assert sent(OpenAIChat(url="https://api.x.ai/v1")).headers["x-grok-conv-id"] == "session-1"
    mine = OpenAIChat(url="https://api.x.ai/v1", headers={"X-Grok-Conv-Id": "mine"})
    assert sent(mine).headers["x-grok-conv-id"] == "mine", "a header of the config goes first"
    assert "x-grok-conv-id" not in sent(OpenAIChat(url="https://api.groq.com/openai/v1")).headers


def test_the_system_text_can_be_the_developers() -> None:
    query = Query(Model("m"), context(user("x"), system="You are."), (), {}, "s")
    provider = OpenAIChat(url="http://127.0.0.1:1", quirks=Quirks(system="developer"))
    request = provider.compile(query, Wire())
    assert fields(request)["messages"][0] == {"role": "developer", "content": "You are."}
    assert provider.problems(request) == []


@pytest.mark.parametrize(
    ("host", "quirks"),
    [
        ("https://api.groq.com/openai/v1", Quirks(thinking="none")),
        ("https://mine.services.ai.azure.com/openai/v1", Quirks(thinking="none", auth="api-key")),
        ("https://api.together.xyz/v1", Quirks()),
        ("https://openrouter.ai/api/v1", Quirks()),
        ("http://localhost:1234/v1", Quirks()),
    ],
)
def test_each_known_server_has_its_quirks(host: str, quirks: Quirks) -> None:
    assert of_host(host) == quirks


@pytest.mark.parametrize(
    "given",
    [{"auth": "basic"}, {"limit": "none"}, {"session_header": "a b"}, {"system": "root"}, {"colour": True}],
)
def test_a_quirk_that_there_is_none_of_is_refused_by_name(given: dict[str, Any], tmp_path: Path) -> None:
    entries = {"mine": ProviderEntry("openai-chat", "http://127.0.0.1:1", quirks=given)}
    with pytest.raises(
        ConfigError, match=rf"^providers.mine.quirks: .*{next(iter(given))}.*there are usage, "
    ):
        Registry(entries, env={})
