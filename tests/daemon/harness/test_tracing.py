"""Of any session, each part of a context has its record, and a check of it says that every wire takes the request."""

from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.chain import Call, Raw, Result, Text, fold
from daemon.harness.tracing import Traced
from daemon.provider import differences
from daemon.provider.base import Wire
from daemon.provider.repair import identifier
from tests.daemon.provider import everyone
from tests.daemon.provider.everyone import WIRES, Everyone, query


@settings(max_examples=60)
@given(data=st.data())
def test_every_part_of_a_context_is_traced_to_the_record_that_says_it(data: st.DataObject) -> None:
    author = Everyone(data)
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
    records = author.book.records
    plain, traced = fold(records, "id"), Traced.of(records, fold((), "id"))
    context = traced.context()
    assert context == plain.context(), "it folds as the one that steps does"
    turns = [*context.settled, *([context.last] if context.last else [])]
    sources = traced.sources()
    parts = [(at, part) for at, turn in enumerate(turns) for part in turn.parts]
    if len(sources) == len(parts) - 1:
        parts.pop()  # nothing to read in what was posted: the model is told to go on
    assert [(source.turn, source.part) for source in sources] == parts
    for source in sources:
        if not source.n:
            assert isinstance(source.part, Result | Text)
            continue
        record = records[source.n - 1]
        match source.part:
            case Call(id):
                assert (record.kind, record.id) == ("call", id)
            case Raw():
                assert record.body == source.part.body
            case Result(call):
                assert (record.kind, record.header.for_) == ("result", call)
            case _:
                assert record.kind in ("message", "text", "system", "error", "summary")
    named = {record.n for record in (*traced.blank, *traced.dropped, *traced.broken)}
    assert not named & {source.n for source in sources}, "what is left out is not in it"


@settings(max_examples=40)
@given(data=st.data())
def test_what_differs_is_found_for_every_wire_and_what_does_not_is_not(data: st.DataObject) -> None:
    author = Everyone(data)
    for _ in range(data.draw(st.integers(1, 6))):
        author.act()
    context = fold(author.book.records, "id").context()
    turns = [*context.settled, *([context.last] if context.last else [])]
    parts = [(at, part) for at, turn in enumerate(turns) for part in turn.parts]
    provider, model = data.draw(everyone.wires)
    asked, wire = query(provider, model, context), Wire()
    request = provider.compile(asked, wire)
    found = differences.find(provider, asked, request, parts, wire.left_out)
    told = {at for at, what in found.differences if what.startswith(("thinking", "text"))}
    for at, (_, part) in enumerate(parts):
        if isinstance(part, Raw) and part.provider != provider.name:
            assert at in told, "another's block is never sent as it is"
    ids = [at for at, what in found.differences if what.startswith("a call's id")]
    if provider.name in ("anthropic", "rehearsal"):
        changed = [
            at
            for at, (_, part) in enumerate(parts)
            if isinstance(part, Call) and identifier(part.id) != part.id
        ]
        assert ids == changed


def test_every_wire_is_looked_at() -> None:
    assert {provider.name for provider, _ in WIRES} >= {
        "anthropic",
        "chat",
        "openai",
        "google",
        "bedrock",
        "rehearsal",
    }
