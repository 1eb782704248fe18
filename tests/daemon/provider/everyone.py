"""Every wire there is, and an author whose sessions go from one to another."""

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from daemon.chain import Context
from daemon.provider import models
from daemon.provider.anthropic import Anthropic
from daemon.provider.base import Model, Provider, Query
from daemon.provider.bedrock import Bedrock
from daemon.provider.converse_models import find
from daemon.provider.google import Google
from daemon.provider.models import TEXT_AND_IMAGES
from daemon.provider.openai import OpenAI
from daemon.provider.openai_chat import OpenAIChat
from daemon.provider.rehearsal import Rehearsal
from tests.daemon.provider.authoring import Author
from tests.daemon.provider.contexts import TOOL
from tests.daemon.provider.test_converse_property import Answers
from tests.daemon.provider.test_gemini_property import GeminiAuthor
from tests.daemon.provider.test_responses_property import Items

LOCAL = "http://127.0.0.1:1"
WIRES: list[tuple[Provider, str]] = [
    (Anthropic(), "claude-x"),
    (Anthropic(), "claude-y"),
    (Rehearsal(), "tour"),
    (OpenAIChat("chat", url=LOCAL), "claude-x"),
    (OpenAIChat("chat", url="https://api.deepseek.com"), "claude-y"),
    (OpenAIChat("chat", url="https://api.mistral.ai/v1"), "claude-x"),
    (OpenAIChat("chat", url="https://api.openai.com/v1"), "claude-y"),
    (OpenAI("openai"), "claude-x"),
    (OpenAI("openai"), "claude-y"),
    (Google(), "gemini-3.8-flash"),
    (Google(), "gemini-2.5-pro"),
    (Bedrock("bedrock", url=LOCAL), "us.anthropic.claude-sonnet-4-6"),
    (Bedrock("bedrock", url=LOCAL), "us.amazon.nova-2-lite-v1:0"),
    (Bedrock("bedrock", url=LOCAL), "meta.llama3-3-70b-instruct-v1:0"),
]
SECRETS = frozenset({"signature", "thoughtSignature", "encrypted_content", "redactedContent", "data"})
TURNS = ("messages", "input", "contents")  # where a body has its turns


class Everyone(Items, Answers, GeminiAuthor):
    """Writes answers of every wire into one session, of each as many."""

    def answer(self, *, closed: bool) -> None:
        kind = self.one_of(Author, Author, Items, Answers, GeminiAuthor)
        kind.answer(self, closed=closed)


wires = st.sampled_from(WIRES)


def query(provider: Provider, model: str, context: Context, *, sees: bool = True) -> Query:
    """A query for a model as its provider knows it."""
    known = Model(model, input=TEXT_AND_IMAGES if sees else ())
    if isinstance(provider, Bedrock):
        known = find(model)
    elif isinstance(provider, Google):
        known = models.find(model, models.GOOGLE)
    return Query(known, context, [TOOL], {}, "id")


def parts(body: bytes) -> tuple[dict[str, Any], list[list[Any]]]:
    """A body without its turns, and the pieces of each message or item in it, without cache marks."""
    head = unmarked(json.loads(body))
    (name,) = [name for name in TURNS if name in head]
    return head, [list(_pieces(message)) for message in head.pop(name)]


def _pieces(message: dict[str, Any]) -> Iterator[Any]:
    content = message.get("content", message.get("parts"))
    if not isinstance(content, list):
        yield message
        return
    for piece in content:
        yield message.get("role"), piece


def unmarked(value: Any) -> Any:
    """The same without cache marks."""
    if isinstance(value, dict):
        return {name: unmarked(item) for name, item in value.items() if name != "cache_control"}
    if isinstance(value, list):
        return [unmarked(item) for item in value if not (isinstance(item, dict) and "cachePoint" in item)]
    return value


def secrets(value: Any) -> Iterator[str]:
    """Every signature and every encrypted text in a JSON value, in order."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name in SECRETS and isinstance(item, str):
                yield item
            else:
                yield from secrets(item)
    elif isinstance(value, list):
        for item in value:
            yield from secrets(item)
