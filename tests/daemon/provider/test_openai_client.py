"""The vendor's own client beside ours: it reads the same answers, and its types take the requests that we build."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from daemon.chain import fold
from daemon.protocol.records import TEXT, CallBody, draft
from daemon.provider.base import Block, Delta, Model, Outcome, ProviderError, Query, Wire
from daemon.provider.models import TEXT_AND_IMAGES
from daemon.provider.openai import OpenAI
from daemon.provider.responses import Decoder
from daemon.provider.responses_pieces import Kept
from tests.daemon.book import Book
from tests.daemon.provider import recorded
from tests.daemon.provider.contexts import TOOL
from tests.daemon.provider.recorded import Recording, blocks
from tests.daemon.provider.test_responses import NAMES
from tests.daemon.provider.test_responses_property import Items

ROTATES = "copilot-id-rotation"


def read(answer: bytes) -> tuple[list[Any], Any]:
    """The events that the vendor's client makes of an answer, and the response in the last; raises what it raises."""
    import httpx2
    import openai

    class Pieces(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            return (answer[at : at + 17] for at in range(0, len(answer), 17))

    def serve(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Pieces())

    with (
        httpx2.Client(transport=httpx2.MockTransport(serve)) as http,
        openai.OpenAI(
            api_key="none", base_url="http://127.0.0.1:1/v1", http_client=http, max_retries=0
        ) as client,
        client.responses.create(model="m", input="x", stream=True) as stream,
    ):
        events: list[Any] = list(stream)
    return events, events[-1].response


def ours(answer: bytes) -> tuple[list[Block], Outcome | ProviderError]:
    found = recorded.decode([answer], Decoder)
    last = found[-1]
    assert isinstance(last, Outcome | ProviderError)
    return blocks(found), last


def item(block: Block) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.decode(block.body, type=Kept).item)
    return found


def without_id(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "id"}


@pytest.mark.parametrize("name", sorted({*NAMES} - {"quota-error-failed"}))
def test_the_vendors_client_reads_the_same_of_an_answer(name: str, streams_dir: Path) -> None:
    answer = Recording(streams_dir, name, "responses").answer
    events, response = read(answer)
    found, last = ours(answer)
    assert isinstance(last, Outcome)
    done = [event for event in events if event.type == "response.output_item.done"]
    items = [event.item for event in sorted(done, key=lambda event: int(event.output_index))]
    assert [one.type for one in items] == [one.type for one in response.output]
    for theirs, block in zip(items, found, strict=True):
        told = theirs.to_dict(exclude_unset=True)
        if block.kind == "call":
            call = msgspec.json.decode(block.body, type=CallBody)
            given = theirs.arguments if theirs.type == "function_call" else theirs.input
            assert (theirs.call_id, theirs.name, given) == (block.id, call.name, call.arguments)
            assert msgspec.json.decode(call.extra)["id"] == theirs.id
        elif block.type == TEXT:
            assert "".join(part.text for part in theirs.content) == block.body.decode()
        elif name == ROTATES:
            assert without_id(told) == item(block)
        else:
            assert told == item(block)
    texts = ("response.output_text.delta", "response.refusal.delta")
    pieces = [event for event in recorded.decode([answer], Decoder) if isinstance(event, Delta)]
    ours_said = "".join(piece.text for piece in pieces if piece.kind == "text")
    assert "".join(event.delta for event in events if event.type in texts) == ours_said
    assert (last.usage.prompt, last.usage.output) == (
        response.usage.input_tokens,
        response.usage.output_tokens,
    )
    assert last.usage.cache_read == response.usage.input_tokens_details.cached_tokens
    assert (last.model, last.stop) == (response.model, response.status)


def test_the_vendors_client_fails_where_ours_does(streams_dir: Path) -> None:
    import openai

    answer = Recording(streams_dir, "quota-error-failed", "responses").answer
    with pytest.raises(openai.APIError) as caught:
        read(answer)
    _, last = ours(answer)
    assert isinstance(last, ProviderError)
    assert last.message == caught.value.message


@pytest.fixture(scope="module")
def takes() -> Any:
    """Reads a request's body by the types of the vendor's client. Raises ValueError."""
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
    from pydantic import TypeAdapter

    adapter = TypeAdapter(ResponseCreateParamsStreaming)

    def take(body: bytes) -> None:
        walk(adapter.validate_json(body), msgspec.json.decode(body))

    return take


def walk(value: Any, given: Any) -> None:
    """Take every part of a value, which was made of `given`: those types that are iterables are read no sooner."""
    if isinstance(given, dict):
        for name, inner in value.items():
            walk(inner, given[name])
    elif isinstance(given, list):
        for inner, part in zip(value, given, strict=True):
            walk(inner, part)


def test_the_types_refuse_what_is_none(takes: Any) -> None:
    """So that the tests below can fail."""
    sound = b'{"model":"m","stream":true,"input":[{"role":"user","content":"x"}]}'
    takes(sound)
    for bad in (
        sound.replace(b'"user"', b'"me"'),
        sound.replace(b"true", b"7"),
        sound.replace(b'"x"', b'[{"type":"input_text"}]'),
        sound.replace(
            b'{"role":"user","content":"x"}', b'{"type":"reasoning","id":"rs_1","summary":[{"text":7}]}'
        ),
    ):
        with pytest.raises(ValueError, match="validation error"):
            takes(bad)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_request_is_one_by_the_vendors_types(takes: Any, data: st.DataObject) -> None:
    """Those types know no reasoning without an id, as servers have it whose ids mean nothing, and no item of later."""
    author = Items(data)
    for _ in range(data.draw(st.integers(1, 6))):
        author.act()
    found = fold(author.book.records, "id").context()
    query = Query(
        Model(author.one_of("claude-x", "claude-y"), input=TEXT_AND_IMAGES), found, [TOOL], {}, "id"
    )
    body = OpenAI("openai").compile(query, Wire()).body
    sent = msgspec.json.decode(body)["input"]
    assume(all("id" in one for one in sent if one["type"] == "reasoning"))
    assume(not any(one["type"] in ("novel", "compaction", "web_search_call") for one in sent))
    takes(body)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"quota-error-failed", ROTATES}))
def test_what_follows_a_recorded_answer_is_a_request_by_the_vendors_types(
    name: str, streams_dir: Path, takes: Any
) -> None:
    book = Book()
    book.message("x")
    upto, (found, _) = book.n, ours(Recording(streams_dir, name, "responses").answer)
    for block in found:
        book.keep(draft(block.kind, block.body, block.type, id=block.id, step="s", provider="openai"))
    book.step("s", upto, provider="openai", model="m")
    for block in found:
        if block.kind == "call":
            book.result(block.id)
    book.message("and now?")
    provider = OpenAI("openai")
    params = {"reasoning": {"effort": "high", "summary": "auto"}, "max_output_tokens": 9}
    request = provider.compile(Query(Model("m"), fold(book.records).context(), [TOOL], params, "id"), Wire())
    assert provider.problems(request) == []
    takes(request.body)
