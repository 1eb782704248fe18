"""Whatever a session's file holds, each wire takes the request that is built from it (faults A1 to A13)."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.chain import Call, Chain, Context, Raw, fold
from daemon.provider.anthropic import Anthropic
from daemon.provider.base import Provider, Wire
from daemon.provider.openai_chat import OpenAIChat
from tests.daemon.provider import everyone
from tests.daemon.provider.authoring import MODELS, Author
from tests.daemon.provider.everyone import WIRES, Everyone, query

LOCAL = "http://127.0.0.1:1"
BEGUN = 3  # records that a new session is made of


def accepted(provider: Provider, model: str, context: Context, wire: Wire, *, sees: bool = True) -> bytes:
    """The body of a request that its wire's rules take, and that is the same made anew."""
    asked = query(provider, model, context, sees=sees)
    request = provider.compile(asked, wire)
    assert provider.problems(request) == [], (provider.name, model)
    assert request.body == provider.compile(asked, Wire()).body, "the kept form is the one made anew"
    return request.body


def every_prefix(data: st.DataObject) -> None:
    """Of one session, by some of the wires, with what each has kept from the prefix before."""
    author = Everyone(data)
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
    chosen = data.draw(st.lists(everyone.wires, min_size=2, max_size=4))
    kept = [Wire() for _ in chosen]
    chain = Chain("id")
    for record in author.book.records:
        chain.add(record)
        if record.n >= BEGUN:
            for (provider, model), wire in zip(chosen, kept, strict=True):
                accepted(provider, model, chain.context(), wire)


def on_after_crashes(data: st.DataObject) -> None:
    """Cut after any record and gone on with, again and again, by any provider; then every wire takes it."""
    author = Everyone(data)
    for _ in range(data.draw(st.integers(1, 3))):
        for _ in range(data.draw(st.integers(1, 4))):
            author.act()
        author.crash()
        if author.one_of(True, True, False):
            author.settle()
    context = fold(author.book.records, "id").context()
    for provider, model in WIRES:
        accepted(provider, model, context, Wire())


def switched(data: st.DataObject) -> None:
    """As a session is stepped: one kept form, and another provider or model at any step."""
    author, wire = Everyone(data), Wire()
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
        provider, model = data.draw(everyone.wires)
        sees = data.draw(st.booleans())
        accepted(provider, model, fold(author.book.records, "id").context(), wire, sees=sees)


def stable(data: st.DataObject) -> None:
    """What a step sent, up to its last cache mark or, without marks, all of it, is how the next request begins."""
    author = Everyone(data)
    provider, model = data.draw(everyone.wires)
    wire = Wire()
    for _ in range(data.draw(st.integers(1, 6))):
        author.act()
        before = fold(author.book.records, "id").context()
        first = provider.compile(query(provider, model, before), wire)
        left_out = wire.left_out
        author.answer(closed=True)
        author.settle()
        after = fold(author.book.records, "id").context()
        second = provider.compile(query(provider, model, after), wire)
        if after.epoch != before.epoch or len(after.settled) == len(before.settled):
            continue  # the answer was empty: the same is asked again, with what came meanwhile
        if wire.left_out != left_out:
            continue
        head, sent = everyone.parts(first.body)
        other, then = everyone.parts(second.body)
        assert head == other
        upto = first.marks[-1] + 1 if first.marks else len(sent)
        flat = [piece for message in sent[:upto] for piece in message]
        assert [piece for message in then for piece in message][: len(flat)] == flat


def signatures(data: st.DataObject) -> None:
    """None of another's, and each of a provider's own that it may have back as it was, in its order."""
    author = Everyone(data)
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
    context = fold(author.book.records, "id").context()
    made = [part for turn in context.settled for part in turn.parts if isinstance(part, Raw | Call)]
    for provider, model in WIRES:
        own = [part for part in made if part.provider == provider.name]
        known = [secret for part in own for secret in everyone.secrets(_read(part))]
        body = json.loads(accepted(provider, model, context, Wire()))
        (name,) = [name for name in everyone.TURNS if name in body]
        answers = [turn for turn in body[name] if turn.get("role") != "user"]
        sent = [secret for secret in everyone.secrets(answers) if secret != _SKIPPED]
        places = iter(known)
        assert all(secret in places for secret in sent), "in the order in which they came, none changed"


_SKIPPED = "skip_thought_signature_validator"  # Google's own word where there is no signature


def _read(part: Raw | Call) -> object:
    try:
        return json.loads(part.body if isinstance(part, Raw) else part.extra or b"null")
    except ValueError:
        return None


PROPERTIES = [every_prefix, on_after_crashes, switched, stable, signatures]


@pytest.mark.parametrize("wanted", PROPERTIES, ids=lambda wanted: wanted.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_every_request_of_any_session_is_accepted(wanted: object, data: st.DataObject) -> None:
    assert callable(wanted)
    wanted(data)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("wanted", PROPERTIES, ids=lambda wanted: wanted.__name__)
@settings(max_examples=1500)
@given(data=st.data())
def test_every_request_of_many_sessions_is_accepted(wanted: object, data: st.DataObject) -> None:
    assert callable(wanted)
    wanted(data)


@settings(max_examples=50)
@given(st.data())
def test_of_anothers_thinking_nothing_is_sent_and_of_its_calls_all(data: st.DataObject) -> None:
    author = Author(data)
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
    found = fold(author.book.records, "id").context()
    calls = sum(isinstance(part, Call) for turn in found.settled for part in turn.parts)
    for provider in (Anthropic("new"), OpenAIChat("new", url=LOCAL)):
        sent = msgspec.json.decode(accepted(provider, MODELS[0], found, Wire()))["messages"]
        text = msgspec.json.encode(sent)
        assert not any(word in text for word in (b'"sig"', b"reasoning", b"extra_content", b'"thinking"'))
        blocks = [block for m in sent for block in m["content"] if isinstance(m["content"], list)]
        uses = [block for block in blocks if block["type"] == "tool_use"]
        assert len(uses) + sum(len(message.get("tool_calls", ())) for message in sent) == calls
