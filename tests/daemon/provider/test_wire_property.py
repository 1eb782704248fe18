"""Whatever a session's file holds, each wire takes the request that is built from it."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.chain import Call, fold
from daemon.protocol.records import NO_EXTRA, CallBody, Kind, draft
from daemon.provider.anthropic import Anthropic
from daemon.provider.base import Model, Query, Wire
from daemon.provider.chat import FIELDS, REASONING
from daemon.provider.messages import BLOCK
from daemon.provider.models import TEXT_AND_IMAGES
from daemon.provider.openai_chat import OpenAIChat
from tests.daemon.book import Book
from tests.daemon.provider.contexts import TOOL, picture

ANTHROPIC = Anthropic()
PNG = picture()
TEXTS = st.sampled_from(["words", "", " \n", "ü\u2028😀", "Go on.", "\0"])
ARGUMENTS = st.sampled_from(["", "{}", '{"a": 1}', '{"a', "[1]", "null", '{"a":"\\ud83d"}', "[" * 3000])
MODELS = ["claude-x", "claude-y"]
PROVIDERS = st.sampled_from(["anthropic", "chat", "chat", "anthropic", "other"])
RAWS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "thinking", "thinking": "", "signature": "sig"},
        {"type": "thinking", "thinking": "unsigned"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []},
        {"type": "text", "text": "cited", "citations": [{"type": "char_location"}]},
        {"type": "text", "text": " ", "citations": [{"type": "char_location"}]},
        {"type": "novel", "x": 1},
    ]
)
DETAIL = {"type": "reasoning.text", "text": "hm", "signature": "sig"}
KEPT: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"text": "hm", "field": "reasoning_content"},
        {"text": "hm", "field": "reasoning"},
        {"text": "hm", "field": "reasoning", "details": [DETAIL]},
        {"text": "hm"},
        {"text": 7},
        {},
    ]
)


class Author:
    """Writes a session as the harness would, step by step, as the data says."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.book = Book()
        self.serial = 0

    def one_of(self, *choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    def act(self) -> None:
        match self.one_of(
            "message", "image", "answer", "answer", "answer", "broken try", "error", "summary", "note"
        ):
            case "message":
                self.book.message(self.data.draw(TEXTS))
            case "image":
                image = self.one_of(PNG, PNG[:30], b"BM" + bytes(50), b"")
                self.book.add("message", image, "image/png", via="me")
            case "answer":
                self.answer(closed=True)
            case "broken try":
                self.answer(closed=False)
            case "error":
                self.book.error(self.data.draw(TEXTS))
            case "summary":
                self.book.summary(self.data.draw(st.integers(3, self.book.n)), self.data.draw(TEXTS) or "-")
            case _:
                self.book.add("system", self.data.draw(TEXTS), source="workers")

    def answer(self, *, closed: bool) -> None:
        self.serial += 1
        step, upto, calls = f"s{self.serial}", self.book.n, []
        provider, model = self.data.draw(PROVIDERS), self.one_of(*MODELS)
        for number in range(self.data.draw(st.integers(0, 5))):
            match self.one_of("text", "call", "raw"):
                case "text":
                    self.book.text(step, self.data.draw(TEXTS))
                case "call":
                    id = self.one_of(
                        f"toolu_{step}_{number}",
                        f"functions.run:{self.serial}.{number}",
                        "x" * 70 + str(number) + step,
                    )
                    extra = self.one_of(NO_EXTRA, NO_EXTRA, msgspec.Raw(b'{"extra_content":{"s":1}}'))
                    body = CallBody(self.one_of("run", "functions.run", ""), self.data.draw(ARGUMENTS), extra)
                    encoded = msgspec.json.encode(body)
                    self.book.keep(draft("call", encoded, "application/json", id=id, step=step))
                    calls.append(id)
                case _ if provider == "chat":
                    encoded = msgspec.json.encode(self.data.draw(KEPT))
                    type = self.one_of(REASONING, REASONING, FIELDS)
                    self.book.keep(draft("thinking", encoded, type, step=step, provider=provider))
                case _:
                    block = self.data.draw(RAWS)
                    kind: Kind = "text" if block["type"] == "text" else "thinking"
                    encoded = msgspec.json.encode(block)
                    self.book.keep(draft(kind, encoded, BLOCK, step=step, provider=provider))
        if not closed:
            return
        self.book.step(step, upto, provider=provider, model=model)
        for call in self.data.draw(st.permutations(calls)):
            if self.one_of("message", "", "", ""):
                self.book.message(self.data.draw(TEXTS))
            match self.one_of("text", "text", "image", "blank", "none"):
                case "text":
                    self.book.result(call, "done", failed=self.one_of(True, False))
                case "image":
                    image = self.one_of(PNG, PNG[:30])
                    self.book.keep(draft("result", image, "image/png", for_=call, worker="w"))
                case "blank":
                    self.book.result(call, " ")
                case _:
                    continue


CHATS = [
    OpenAIChat("chat", url="http://127.0.0.1:1"),
    OpenAIChat("chat", url="https://api.deepseek.com"),
    OpenAIChat("chat", url="https://api.mistral.ai/v1"),
    OpenAIChat("chat", url="https://api.openai.com/v1"),
]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_request_of_any_session_keeps_the_rules_of_its_wire(data: st.DataObject) -> None:
    """Also of one that goes on with another provider at any step."""
    author = Author(data)
    chat = data.draw(st.sampled_from(CHATS))
    sees = data.draw(st.booleans())
    wires = {(wire, model): Wire() for model in MODELS for wire in ("anthropic", "chat")}
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
        found = fold(author.book.records, "id").context()
        for model in MODELS:
            query = Query(Model(model), found, [TOOL], {}, "id")
            request = ANTHROPIC.compile(query, wires["anthropic", model])
            assert ANTHROPIC.problems(request) == []
            assert request.body == ANTHROPIC.compile(query, Wire()).body, "the kept form is the one made anew"
            query = Query(Model(model, input=TEXT_AND_IMAGES if sees else ()), found, [TOOL], {}, "id")
            request = chat.compile(query, wires["chat", model])
            assert chat.problems(request) == []
            assert request.body == chat.compile(query, Wire()).body, "the kept form is the one made anew"
            assert sees or b"image_url" not in request.body


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_of_anothers_thinking_nothing_is_sent_and_of_its_calls_all(data: st.DataObject) -> None:
    author = Author(data)
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
    found = fold(author.book.records, "id").context()
    calls = sum(isinstance(part, Call) for turn in found.settled for part in turn.parts)
    for provider in (Anthropic("new"), OpenAIChat("new", url="http://127.0.0.1:1")):
        query = Query(Model(MODELS[0]), found, [TOOL], {}, "id")
        sent = msgspec.json.decode(provider.compile(query, Wire()).body)["messages"]
        text = msgspec.json.encode(sent)
        assert not any(word in text for word in (b'"sig"', b"reasoning", b"extra_content", b'"thinking"'))
        blocks = [block for m in sent for block in m["content"] if isinstance(m["content"], list)]
        uses = [block for block in blocks if block["type"] == "tool_use"]
        assert len(uses) + sum(len(message.get("tool_calls", ())) for message in sent) == calls
