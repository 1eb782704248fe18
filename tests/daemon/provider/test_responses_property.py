"""Whatever a session's file holds, the request made of it keeps the Responses API's rules."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.chain import Call, fold
from daemon.protocol.records import CallBody, Kind, draft, readable
from daemon.provider.base import Model, Query, Wire
from daemon.provider.models import TEXT_AND_IMAGES
from daemon.provider.openai import OpenAI
from daemon.provider.responses import Decoder
from daemon.provider.responses_pieces import ITEM
from tests.daemon.book import Book
from tests.daemon.provider.authoring import ARGUMENTS, MODELS, TEXTS, Author
from tests.daemon.provider.contexts import TOOL
from tests.daemon.provider.recorded import blocks, decode

NAME = "openai"
REASONING = [
    {"summary": [], "encrypted_content": "sealed"},
    {"summary": [{"type": "summary_text", "text": "short"}], "encrypted_content": "sealed", "content": []},
    {"summary": [{"type": "summary_text", "text": "short"}], "encrypted_content": None},
    {"summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"summary": [], "content": [{"type": "reasoning_text", "text": " "}]},
    {"summary": []},
]
OTHERS = ["web_search_call", "compaction", "computer_call", "novel"]
BROKEN = [
    b"{",
    b"[]",
    b"{}",
    b'{"text":"","item":3}',
    b'{"text":"","item":{}}',
    b'{"text":7,"item":{"type":"novel"}}',
]


class Items(Author):
    """Also writes answers of this wire: items as they come, decoded."""

    def answer(self, *, closed: bool) -> None:
        if self.one_of("mine", "mine", "others") == "others":
            super().answer(closed=closed)
            return
        self.serial += 1
        step, upto, calls = f"s{self.serial}", self.book.n, []
        items = [self.item(number) for number in range(self.data.draw(st.integers(0, 5)))]
        for block in blocks(decode([stream(items)], Decoder)):
            id = block.id if block.kind == "call" else ""
            found = draft(block.kind, block.body, block.type, id=id, step=step, provider=NAME)
            self.book.keep(found)
            calls += [id] if id else []
        if self.one_of("whole", "whole", "whole", "broken") == "broken":
            body = self.one_of(*BROKEN)
            kind: Kind = self.one_of("thinking", "text")
            self.book.keep(draft(kind, body, ITEM, step=step, provider=NAME))
        if closed:
            self.book.step(step, upto, provider=NAME, model=self.one_of(*MODELS))
            for call in self.data.draw(st.permutations(calls)):
                self.book.result(call, self.data.draw(TEXTS), failed=self.one_of(True, False))

    def item(self, number: int) -> dict[str, Any]:
        id = f"{self.serial}_{number}"
        named = {"id": f"x_{id}"} if self.one_of("named", "named", "named", "") else {}
        match self.one_of("reasoning", "reasoning", "message", "call", "custom", "other"):
            case "reasoning":
                return {"type": "reasoning", **named, **self.one_of(*REASONING)}
            case "message":
                part = {"type": "output_text", "text": self.data.draw(TEXTS), "annotations": []}
                more = self.one_of(
                    {}, {"phase": "commentary"}, {"content": [{"type": "refusal", "refusal": "no"}]}
                )
                return {
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    **named,
                    "content": [part],
                    **more,
                }
            case "call":
                made = {"call_id": f"call:{id}", "name": self.one_of("run", "functions.run", "")}
                return {"type": "function_call", **named, **made, "arguments": self.data.draw(ARGUMENTS)}
            case "custom":
                made = {"call_id": f"call_{id}" + "x" * self.one_of(0, 80), "name": "sql"}
                return {"type": "custom_tool_call", **named, **made, "input": self.data.draw(TEXTS)}
            case _:
                return {"type": self.one_of(*OTHERS), **named}


def stream(items: list[dict[str, Any]]) -> bytes:
    """An answer of these items."""
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {}}]
    for place, item in enumerate(items):
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    events.append({"type": "response.completed", "response": {"status": "completed"}})
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_every_request_of_any_session_keeps_the_rules(data: st.DataObject) -> None:
    """Also of one that goes on with another provider or model at any step."""
    author, provider = Items(data), OpenAI(NAME)
    sees = data.draw(st.booleans())
    wires = {model: Wire() for model in MODELS}
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
        found = fold(author.book.records, "id").context()
        for model in MODELS:
            query = Query(Model(model, input=TEXT_AND_IMAGES if sees else ()), found, [TOOL], {}, "id")
            request = provider.compile(query, wires[model])
            assert provider.problems(request) == []
            assert request.body == provider.compile(query, Wire()).body, "the kept form is the one made anew"
            assert sees or b"input_image" not in request.body


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_of_anothers_items_the_texts_and_all_calls_are_sent_and_nothing_else(data: st.DataObject) -> None:
    author = Items(data)
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
    found = fold(author.book.records, "id").context()
    query = Query(Model(MODELS[0]), found, [TOOL], {}, "id")
    request = OpenAI("new").compile(query, Wire())
    assert OpenAI().problems(request) == []
    items = msgspec.json.decode(request.body)["input"]
    kinds = {"message", "function_call", "function_call_output"}
    assert {item["type"] for item in items} <= kinds
    assert not any("id" in item for item in items)
    calls = sum(isinstance(part, Call) for turn in found.settled for part in turn.parts)
    assert sum(item["type"] == "function_call" for item in items) == calls


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=6), st.randoms(use_true_random=False))
def test_pieces_of_items_that_come_mixed_are_each_items_own(places: list[int], chance: Any) -> None:
    """Three calls at once, whose pieces come in any order."""
    texts = {place: [f"{place}{n}" for n in range(places.count(place))] for place in range(3)}
    events: list[dict[str, Any]] = []
    for place in range(3):
        item = {"type": "function_call", "call_id": f"c{place}", "name": f"n{place}", "arguments": ""}
        events.append({"type": "response.output_item.added", "output_index": place, "item": item})
    given = {place: iter(pieces) for place, pieces in texts.items()}
    for place in places:
        piece = {"output_index": place, "item_id": str(chance.random()), "delta": next(given[place])}
        events.append({"type": "response.function_call_arguments.delta", **piece})
    order = [0, 1, 2]
    chance.shuffle(order)
    for place in order:
        item = {"type": "function_call", "call_id": f"c{place}", "name": f"n{place}", "arguments": ""}
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    events.append({"type": "response.completed", "response": {}})
    data = b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events)
    for place, block in enumerate(blocks(decode([data], Decoder))):
        call = msgspec.json.decode(block.body, type=CallBody)
        assert (block.id, call.arguments) == (f"c{place}", "".join(texts[place]))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=60).map(str.encode))
def test_garbage_raises_one_error_and_breaks_nothing(garbage: bytes) -> None:
    decode([b"data: ", garbage, b"\n\n"], Decoder)
    decode([b'data: {"type":"response.output_item.done","item":', garbage, b"}\n\n"], Decoder)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["", "x", "message", "output_text", "reasoning"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "content", "summary", "text", "id", "arguments", "name", "call_id", "status"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("kind", ["message", "reasoning", "function_call", "custom_tool_call", "x"])
@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_an_item_of_any_form_is_taken_and_can_go_back(kind: str, fields: Any) -> None:
    given = {**(fields if isinstance(fields, dict) else {"content": fields}), "type": kind}
    found = blocks(decode([stream([given])], Decoder))
    book = Book()
    book.message("x")
    for block in found:
        assert block.kind == "call" or readable(block.type, block.body) is not None
        book.keep(draft(block.kind, block.body, block.type, id=block.id, step="s", provider=NAME))
    book.step("s", book.n, provider=NAME, model="m")
    query = Query(Model("m"), fold(book.records, "id").context(), [TOOL], {}, "id")
    request = OpenAI(NAME).compile(query, Wire())
    assert OpenAI(NAME).problems(request) == []
