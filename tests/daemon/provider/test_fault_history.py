"""Histories that other harnesses were refused for (faults A1 to A13), as each wire sends them."""

import base64
import binascii
import io
import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from msgspec import structs
from PIL import Image, UnidentifiedImageError

from daemon.chain import NO_RESULT, fold
from daemon.protocol.records import CallBody, Record, draft, json_draft
from daemon.provider.anthropic import Anthropic
from daemon.provider.base import Block, Provider, Wire
from daemon.provider.bedrock import Bedrock
from daemon.provider.fitting import MAX_BASE64, MAX_SIDE
from daemon.provider.google import Google
from daemon.provider.messages import BLOCK
from daemon.provider.openai import OpenAI
from daemon.provider.openai_chat import OpenAIChat
from daemon.statefile.store import Store
from tests.daemon.book import Book
from tests.daemon.provider import everyone
from tests.daemon.provider.contexts import picture
from tests.daemon.provider.everyone import LOCAL, WIRES, query
from tests.daemon.provider.recorded import blocks, decode

Made = tuple[Provider, str]
EACH = pytest.mark.parametrize(
    "wire", WIRES, ids=[f"{provider.name}-{at}" for at, (provider, _) in enumerate(WIRES)]
)


def sent(book: Book, wire: Made) -> str:
    """The body of the next request, which its wire's rules take; so they do once a plain message has followed."""
    provider, model = wire
    for records in (book.records, [*book.records, _plain(book)]):
        request = provider.compile(query(provider, model, fold(records, "id").context()), Wire())
        assert provider.problems(request) == []
    first = provider.compile(query(provider, model, fold(book.records, "id").context()), Wire())
    return json.dumps(json.loads(first.body), ensure_ascii=False)


def _plain(book: Book) -> Record:
    """What is posted next, which the session takes."""
    found = book.message("and now?")
    book.records.pop()
    return found


def asked(wire: Made, *calls: str, arguments: str = '{"code":"ls"}', text: str = "") -> Book:
    """A session whose model has called."""
    book = Book()
    book.message("go")
    if text:
        book.text("s1", text)
    for call in calls:
        book.call("s1", call, arguments)
    book.step("s1", 4, provider=wire[0].name, model=wire[1])
    return book


@EACH
def test_a1_of_three_calls_each_has_one_result_though_one_alone_had_come_back(wire: Made) -> None:
    book = asked(wire, "c1aaaaaaa", "c2aaaaaaa", "c3aaaaaaa")
    book.result("c2aaaaaaa", "what it said")
    found = sent(book, wire)
    assert found.count(NO_RESULT) == 2
    assert found.count("what it said") == 1
    book.result("c1aaaaaaa", "late one")
    book.result("c3aaaaaaa", "late three")
    assert NO_RESULT not in sent(book, wire)


@EACH
def test_a2_half_a_call_leaves_neither_a_call_nor_a_result(wire: Made) -> None:
    book = Book()
    book.message("go")
    book.text("broken", "Hello wor")
    book.call("broken", "half", '{"code":"ec')
    book.error("the answer broke off")
    book.result("half", "of nothing")
    found = sent(book, wire)
    assert not any(word in found for word in ("half", "of nothing", "Hello wor"))


@EACH
def test_a3_a_summary_at_any_place_and_a_second_one_part_no_call_from_its_result(wire: Made) -> None:
    book = Book()
    for turn in range(5):
        book.message(f"message {turn}")
        upto = book.n
        for call in range(3):
            book.call(f"s{turn}", f"c{turn}{call}aaaaaa")
        book.step(f"s{turn}", upto, provider=wire[0].name, model=wire[1])
        if turn == 4:
            break  # these calls still run
        for call in (2, 0, 1):
            book.result(f"c{turn}{call}aaaaaa", "x" * 50)
    for upto in range(3, book.n + 1):
        cut = Book()
        cut.records = list(book.records)
        cut.summary(upto, "what was")
        sent(cut, wire)
        cut.summary(min(upto + 7, cut.n), "what was, again")
        sent(cut, wire)
        for call in range(3):
            cut.result(f"c4{call}aaaaaa", "after all")
        assert sent(cut, wire).count("after all") == 3


@EACH
def test_a4_what_is_posted_while_calls_run_stands_behind_all_results(wire: Made) -> None:
    book = asked(wire, "c1aaaaaaa", "c2aaaaaaa")
    book.result("c2aaaaaaa", "second")
    book.message("also do Y")
    book.add("result", picture(), "image/png", for_="c1aaaaaaa", worker="w")
    found = sent(book, wire)
    assert found.index("second") < found.index("also do Y")


@EACH
@pytest.mark.parametrize("said", ["", " \n", "thinking"])
def test_a7_an_empty_answer_leaves_no_empty_message_and_no_two_of_a_persons(wire: Made, said: str) -> None:
    book = asked(wire, "c1aaaaaaa")
    book.result("c1aaaaaaa")
    upto = book.n
    if said == "thinking":
        block = json.dumps({"type": "thinking", "thinking": "hm", "signature": "sig"}).encode()
        book.keep(draft("thinking", block, BLOCK, step="s2", provider="anthropic"))
    elif said:
        book.text("s2", said)
    book.step("s2", upto, provider=wire[0].name, model=wire[1])
    book.error("the model answered with nothing", code="normal")
    assert "answered with nothing" in sent(book, wire)


@EACH
@pytest.mark.parametrize(
    "arguments",
    ['{"path": "a.txt", "text": "unfinish', "", "null", "[1]", r'"{\"a\":1}"', "NaN", '{"a":NaN}', "{}{}"],
)
def test_a11_arguments_that_are_no_object_are_sent_as_one(wire: Made, arguments: str) -> None:
    book = asked(wire, "c1aaaaaaa", "c2aaaaaaa", arguments=arguments)
    book.result("c1aaaaaaa", f"not run: {arguments}", failed=True)
    sent(book, wire)
    kept = [json.loads(record.body)["arguments"] for record in book.records if record.kind == "call"]
    assert kept == [arguments, arguments], "the record keeps the truth"


@cache
def noise() -> bytes:
    """A PNG that is within 5 MiB as it is and over it in base64."""
    chance = random.Random(7)
    file = io.BytesIO()
    Image.frombytes("RGB", (1250, 1100), chance.randbytes(1250 * 1100 * 3)).save(
        file, "PNG", compress_level=0
    )
    data = file.getvalue()
    assert len(data) < MAX_BASE64 < len(data) * 4 / 3
    return data


IMAGES: dict[str, tuple[Callable[[], bytes], str]] = {
    "large": (noise, "image/png"),
    "named jpeg": (picture, "image/jpeg"),
    "named jpg": (picture, "image/jpg"),
    "bmp": (lambda: picture("BMP"), "image/bmp"),
    "cut": (lambda: picture()[:40], "image/png"),
    "wide": (lambda: picture(size=(3000, 10)), "image/png"),
    "nothing": (bytes, "image/png"),
    "text": (lambda: b"<svg/>", "image/svg+xml"),
}


UNREADABLE = {"bmp", "cut", "nothing", "text"}


def shown_in(value: object) -> Iterator[Image.Image]:
    """The images in a request, from the base64 of any wire's."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from shown_in(inner)
    elif isinstance(value, str):
        data = value.rpartition(";base64,")[2]
        with suppress(binascii.Error, UnidentifiedImageError):
            yield Image.open(io.BytesIO(base64.b64decode(data, validate=True)))


@pytest.mark.parametrize(
    ("wire", "kind"),
    [
        pytest.param(
            wire,
            kind,
            id=f"{wire[0].name}-{at}-{kind}",
            # Large ones are made smaller by what all share.
            marks=[pytest.mark.campaign] if kind == "large" and at % 4 else [],
        )
        for at, wire in enumerate(WIRES)
        for kind in IMAGES
    ],
)
def test_a12_an_image_is_sent_as_one_that_is_taken_or_a_note_is(wire: Made, kind: str) -> None:
    make, type = IMAGES[kind]
    book = asked(wire, "c1aaaaaaa")
    book.add("result", make(), type, for_="c1aaaaaaa", worker="w")
    book.add("message", make(), type, via="me")
    found = sent(book, wire)
    shown = list(shown_in(json.loads(found)))
    if kind in UNREADABLE or "llama" in wire[1]:  # which takes no images
        assert shown == []
        assert found.count("that cannot be shown") == 2
    else:
        assert len(shown) == 2
        assert "cannot be shown" not in found
        for image in shown:
            assert max(image.size) <= MAX_SIDE, "what any number of images in one request may have"


@EACH
def test_a13_half_characters_nul_and_bytes_that_are_no_text_leave_valid_json(wire: Made) -> None:
    book = asked(wire, "c1aaaaaaa", arguments='{"text":"\\ud83d"}', text="a\0b\u2028")
    book.add("result", b"a\0b\xff and half \xf0\x9f\x98", for_="c1aaaaaaa", worker="w")
    provider, model = wire
    request = provider.compile(query(provider, model, fold(book.records, "id").context()), Wire())
    request.body.decode()
    assert "\ufffd" in sent(book, wire)
    for half in (b"\\ud83d", b"\\uD83D"):
        assert half not in request.body


# Thinking and signatures: what was received goes back as it was, through a file and a restart.

SIGNED: dict[str, tuple[Provider, str, str]] = {
    "anthropic-thinking-then-tool": (Anthropic(), "claude-x", "sse"),
    "anthropic-omitted-thinking": (Anthropic(), "claude-x", "sse"),
    "anthropic-code-execution": (Anthropic(), "claude-x", "sse"),
    "responses-reasoning-summary-encrypted-call": (OpenAI("openai"), "gpt-5", "sse"),
    "responses-xai-tool-call": (OpenAI("openai"), "grok", "sse"),
    "gemini-thinking-call-signature": (Google(), "gemini-2.5-pro", "sse"),
    "gemini-parallel-calls-no-id": (Google(), "gemini-2.5-flash", "sse"),
    "gemini3-signature-on-empty-text": (Google(), "gemini-3-pro-preview", "sse"),
    "bedrock-converse-reasoning-signature": (
        Bedrock("bedrock", url=LOCAL),
        "us.anthropic.claude-sonnet-4",
        "eventstream",
    ),
    "chat-openrouter-reasoning-details-tool": (OpenAIChat("chat", url=LOCAL), "claude-haiku", "sse"),
}


def written(block: Block, provider: str) -> Record:
    return draft(block.kind, block.body, block.type, id=block.id, step="s1", provider=provider)


@pytest.mark.parametrize("name", SIGNED)
async def test_a8_a10_what_was_signed_goes_back_byte_for_byte_after_a_restart(
    name: str, streams_dir: Path, tmp_path: Path
) -> None:
    provider, model, ending = SIGNED[name]
    given = blocks(decode([(streams_dir / f"{name}.{ending}").read_bytes()], provider.decoder))
    book = Book()
    book.message("go")
    for block in given:
        book.keep(written(block, provider.name))
    book.step("s1", 4, provider=provider.name, model=model)
    made = list(everyone.secrets([json.loads(block.body) for block in given if block.body.startswith(b"{")]))
    assert made
    first = Store(tmp_path)
    id, _ = await first.create(*(structs.replace(record, raw=b"") for record in book.records))
    await first.close()
    again = Store(tmp_path)
    records = await (await again.open(id)).read()
    await again.close()
    context = fold(records, id).context()
    request = provider.compile(query(provider, model, context), Wire())
    assert provider.problems(request) == []
    assert list(everyone.secrets(json.loads(request.body))) == made
    for other, its in WIRES:
        moved = other.compile(query(other, its, context), Wire())
        assert other.problems(moved) == []
        if other.name != provider.name:
            assert not set(everyone.secrets(json.loads(moved.body))) & set(made)


def test_a8_three_thinking_blocks_of_one_message_stay_three() -> None:
    texts = ["", " trailing ", "e\u0301 is not é"]
    book = Book()
    book.message("go")
    for at, text in enumerate(texts):
        block = {"type": "thinking", "thinking": text, "signature": f"sig{at}=="}
        book.keep(draft("thinking", json.dumps(block).encode(), BLOCK, step="s1", provider="anthropic"))
    book.keep(json_draft("call", CallBody("run", "{}"), id="c1", step="s1"))
    book.step("s1", 4, provider="anthropic", model="claude-x")
    book.result("c1")
    answer = json.loads(sent(book, (Anthropic(), "claude-x")))["messages"][1]["content"]
    assert [block["thinking"] for block in answer[:3]] == texts
    assert [block["signature"] for block in answer[:3]] == ["sig0==", "sig1==", "sig2=="]


def test_a8_what_was_thought_is_neither_normalised_nor_trimmed_between_its_stream_and_the_next_request() -> (
    None
):
    pieces = [" e", "\u0301 is not é ", "\ufb01 \n"]
    start = {"type": "thinking", "thinking": "", "signature": ""}
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    events = [
        {"type": "message_start", "message": {"model": "claude-x", "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": start},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "signature_delta", "signature": "sig="},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "So."}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    book = Book()
    book.message("go")
    for block in blocks(decode([stream])):
        book.keep(written(block, "anthropic"))
    book.step("s1", 4, provider="anthropic", model="claude-x")
    (thought, _) = json.loads(sent(book, (Anthropic(), "claude-x")))["messages"][1]["content"]
    assert thought == {"type": "thinking", "thinking": "".join(pieces), "signature": "sig="}
