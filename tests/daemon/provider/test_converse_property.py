"""Whatever a session's file holds, the request made of it keeps Converse's rules, for every family of models."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.chain import Call, fold
from daemon.protocol.records import Kind, draft
from daemon.provider.base import Query, Wire
from daemon.provider.bedrock import Bedrock
from daemon.provider.converse import BLOCK, REASONING, Decoder
from daemon.provider.converse_models import Quirks, find
from tests.daemon.book import Book
from tests.daemon.provider import aws_oracle
from tests.daemon.provider.authoring import ARGUMENTS, TEXTS, Author
from tests.daemon.provider.contexts import TOOL
from tests.daemon.provider.recorded import blocks, decode
from tests.daemon.provider.test_converse import call as called
from tests.daemon.provider.test_converse import counts, over, piece, start, stop

NAME = "bedrock"
MODELS = ["us.anthropic.claude-sonnet-4-6", "us.amazon.nova-2-lite-v1:0", "meta.llama3-3-70b-instruct-v1:0"]
THOUGHTS = [
    [{"text": "hm"}, {"signature": "sig"}],
    [{"signature": "sig"}],
    [{"text": "hm"}],
    [{"redactedContent": "QUI="}],
    [{"redactedContent": "QUI="}, {"redactedContent": "Qw=="}],
    [{"text": "hm"}, {"signature": "sig"}, {"redactedContent": "QUI="}],
]
BROKEN = [
    b"{",
    b"[]",
    b"{}",
    b'{"text":7,"signature":"sig"}',
    b'{"signature":"sig"}',
    b'{"text":"hm","signature":""}',
]


class Answers(Author):
    """Also writes answers of this wire: blocks as they come in frames, decoded."""

    def answer(self, *, closed: bool) -> None:
        if self.one_of("mine", "mine", "others") == "others":
            super().answer(closed=closed)
            return
        self.serial += 1
        step, upto, calls = f"s{self.serial}", self.book.n, []
        frames = [self.block(number) for number in range(self.data.draw(st.integers(0, 5)))]
        for block in blocks(decode([start(), *frames, stop(), counts()], Decoder)):
            id = block.id if block.kind == "call" else ""
            self.book.keep(draft(block.kind, block.body, block.type, id=id, step=step, provider=NAME))
            calls += [id] if id else []
        if self.one_of("whole", "whole", "whole", "broken") == "broken":
            kind: Kind = self.one_of("thinking", "text")
            type = self.one_of(REASONING, BLOCK)
            self.book.keep(draft(kind, self.one_of(*BROKEN), type, step=step, provider=NAME))
        if closed:
            self.book.step(step, upto, provider=NAME, model=self.one_of(*MODELS))
            for call in self.data.draw(st.permutations(calls)):
                self.book.result(call, self.data.draw(TEXTS), failed=self.one_of(True, False))

    def block(self, index: int) -> bytes:
        """One block's frames."""
        match self.one_of("text", "text", "thought", "thought", "call", "call", "cited", "other"):
            case "text":
                return piece({"text": self.data.draw(TEXTS)}, index) + over(index)
            case "cited":
                cited = piece({"text": self.data.draw(TEXTS)}, index)
                return cited + piece({"citation": {"title": "t"}}, index) + over(index)
            case "thought":
                deltas = self.one_of(*THOUGHTS)
                return b"".join(piece({"reasoningContent": delta}, index) for delta in deltas) + over(index)
            case "call":
                id = self.one_of(f"tooluse_{self.serial}_{index}", f"run:{self.serial}.{index}")
                return called(
                    self.data.draw(ARGUMENTS), index=index, id=id, name=self.one_of("run", "a.b", "")
                )
            case _:
                return piece({"image": {"source": {}}}, index) + over(index)


PROVIDERS = [
    Bedrock(NAME, url="http://127.0.0.1:1"),
    Bedrock(NAME, url="http://127.0.0.1:1", quirks=Quirks(cache=True, apart=True)),
]


def kept(data: st.DataObject) -> None:
    """Every request keeps the rules and is one that botocore would send, also of a session that goes on with another
    provider or model at any step, with and without tools.
    """
    author = Answers(data)
    provider = data.draw(st.sampled_from(PROVIDERS))
    tools = data.draw(st.sampled_from([[TOOL], []]))
    wires = {model: Wire() for model in MODELS}
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
        found = fold(author.book.records, "id").context()
        for model in MODELS:
            query = Query(find(model), found, tools, {}, "id")
            request = provider.compile(query, wires[model])
            assert provider.problems(request) == []
            assert aws_oracle.refused(request) == ""
            assert request.body == provider.compile(query, Wire()).body, "the kept form is the one made anew"
            assert "llama" not in model or b'{"image"' not in request.body


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_request_of_any_session_keeps_the_rules_and_is_one_that_botocore_would_send(
    data: st.DataObject,
) -> None:
    kept(data)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_every_request_of_many_sessions_keeps_the_rules_and_is_one_that_botocore_would_send(
    data: st.DataObject,
) -> None:
    kept(data)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_copy_under_another_name_has_all_the_calls_and_none_of_the_thinking(data: st.DataObject) -> None:
    author = Answers(data)
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
    found = fold(author.book.records, "id").context()
    calls = sum(isinstance(part, Call) for turn in found.settled for part in turn.parts)
    request = Bedrock("new", url="http://127.0.0.1:1").compile(
        Query(find(MODELS[0]), found, [TOOL], {}, "id"), Wire()
    )
    sent: list[dict[str, Any]] = msgspec.json.decode(request.body)["messages"]
    kinds = [next(iter(block)) for message in sent for block in message["content"]]
    assert kinds.count("toolUse") == kinds.count("toolResult") == calls
    assert "reasoningContent" not in kinds


def test_a_session_as_it_is_lived_keeps_the_rules() -> None:
    """By hand, where the strategies may not come by: results late, a call twice, nothing but thinking."""
    book = Book()
    book.message("go")
    book.keep(draft("thinking", b'{"text":"hm","signature":"sig"}', REASONING, step="s1", provider=NAME))
    book.step("s1", book.n, provider=NAME, model=MODELS[0])
    book.error("nothing but thinking")
    book.message("again")
    found = fold(book.records, "id").context()
    for model in MODELS:
        request = PROVIDERS[0].compile(Query(find(model), found, [TOOL], {}, "id"), Wire())
        assert PROVIDERS[0].problems(request) == []
        assert aws_oracle.refused(request) == ""
