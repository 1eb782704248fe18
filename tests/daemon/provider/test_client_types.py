"""The types of the vendors' clients take what follows each recorded answer; and none of them is there at run time."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.chain import fold
from daemon.protocol.records import draft
from daemon.provider import chat, messages
from daemon.provider.anthropic import Anthropic
from daemon.provider.base import Decoder, Model, Outcome, Provider, Query, Wire
from daemon.provider.openai_chat import OpenAIChat
from tests.daemon.book import Book
from tests.daemon.provider import recorded
from tests.daemon.provider.contexts import TOOL
from tests.daemon.provider.recorded import CHAT_NAMES, NAMES, Recording, blocks

WIRES: dict[str, tuple[Provider, Callable[[], Decoder]]] = {
    "anthropic": (Anthropic(), messages.Decoder),
    "chat": (OpenAIChat("chat", url="http://127.0.0.1:1"), chat.Decoder),
}
BETA = ("compaction", "omitted-thinking")  # with blocks that the vendor's types know as beta alone
VENDORS = ("anthropic", "boto3", "botocore", "google.genai", "httpx", "keyring", "openai")


@pytest.fixture(scope="module")
def takes() -> Callable[[str, bytes], None]:
    """Reads a request's body by the types of a wire's vendor. Raises ValueError."""
    from anthropic.types.beta.message_create_params import MessageCreateParamsStreaming as Beta
    from anthropic.types.message_create_params import MessageCreateParamsStreaming
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
    from pydantic import TypeAdapter

    adapters: dict[str, TypeAdapter[Any]] = {
        "anthropic": TypeAdapter(MessageCreateParamsStreaming),
        "beta": TypeAdapter(Beta),
        "chat": TypeAdapter(CompletionCreateParamsStreaming),
    }

    def take(wire: str, body: bytes) -> None:
        walk(adapters[wire].validate_json(body), msgspec.json.decode(body))

    return take


def walk(value: Any, given: Any) -> None:
    """Take every part of a value, which was made of `given`: those types that are iterables are read no sooner."""
    if isinstance(given, dict) and isinstance(value, dict):  # some types take the answer's own class
        for name, inner in value.items():
            walk(inner, given[name])
    elif isinstance(given, list):
        for inner, part in zip(value, given, strict=True):
            walk(inner, part)


@pytest.mark.parametrize("wire", WIRES)
def test_the_types_refuse_what_is_none(takes: Callable[[str, bytes], None], wire: str) -> None:
    """So that the test below can fail."""
    sound = b'{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"x"}]}'
    takes(wire, sound)
    for bad in (sound.replace(b'"user"', b'"me"'), sound.replace(b'"x"', b'[{"type":"text"}]')):
        with pytest.raises(ValueError, match="validation error"):
            takes(wire, bad)


@pytest.mark.parametrize(
    ("wire", "name"),
    [*(("anthropic", name) for name in NAMES), *(("chat", name) for name in CHAT_NAMES)],
)
def test_what_follows_a_recorded_answer_is_a_request_by_the_vendors_types(
    takes: Callable[[str, bytes], None], streams_dir: Path, wire: str, name: str
) -> None:
    """An answer that is an error or breaks off has no step, and leaves nothing."""
    provider, decoder = WIRES[wire]
    book = Book()
    book.message("x")
    upto, found = book.n, recorded.decode([Recording(streams_dir, name, wire).answer], decoder)
    for block in blocks(found):
        book.keep(draft(block.kind, block.body, block.type, id=block.id, step="s", provider=provider.name))
    if isinstance(found[-1], Outcome):
        book.step("s", upto, provider=provider.name, model="m")
        for block in blocks(found):
            if block.kind == "call":
                book.result(block.id)
    book.message("and now?")
    request = provider.compile(Query(Model("m"), fold(book.records).context(), [TOOL], {}, "id"), Wire())
    assert provider.problems(request) == []
    takes("beta" if name in BETA else wire, request.body)


def test_a_daemon_brings_in_no_vendors_client() -> None:
    """They are slow, and tests' alone or extras."""
    asked = f"import sys, daemon.compose; print([name for name in {VENDORS!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
