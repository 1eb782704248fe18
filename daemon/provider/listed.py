"""Read a server's list of its models, in the forms that servers of Chat Completions have for it."""

import re
from collections.abc import Iterable
from typing import Any, Final

from daemon.protocol.api import Price
from daemon.provider import models
from daemon.provider.base import Model

# Names under which servers tell how much a model reads and writes.
CONTEXT: Final = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx_train")
OUTPUT: Final = ("max_completion_tokens", "max_output_tokens")
OTHER: Final = re.compile(  # models that do not talk
    r"embed|rerank|whisper|tts|dall-e|moderation|transcri|realtime|-audio|-image|sora-", re.IGNORECASE
)
MAX_LISTED: Final = 1000  # models taken of one server's list
DEAREST: Final = 10_000  # dollars for a million tokens; above that it is no price


def parse(answer: Any) -> tuple[Model, ...]:
    """The models in a server's answer to GET /models that talk, those well known first.

    Raises ValueError for an answer of another kind.
    """
    entries = answer.get("data", answer.get("models")) if isinstance(answer, dict) else answer
    if not isinstance(entries, list):
        raise ValueError("it lists no models")
    found = {
        model.name: model
        for entry in entries[:MAX_LISTED]
        if isinstance(entry, dict) and (model := _listed(entry))
    }
    return tuple(sorted(found.values(), key=lambda model: _place(model.name)))


def _listed(entry: dict[str, Any]) -> Model | None:
    """One entry of a list, with what servers of many kinds say of limits and of images."""
    name = entry.get("id") or entry.get("name")
    if not isinstance(name, str) or not name or OTHER.search(name):
        return None
    places = [
        place
        for place in (entry, entry.get("top_provider"), entry.get("meta"), entry.get("capabilities"))
        if isinstance(place, dict)
    ]
    fact = models.known_as(name, (), models.CHAT)
    modes = [entry.get("input_modalities"), *(place.get("input_modalities") for place in _inside(entry))]
    sees = any("image" in mode for mode in modes if isinstance(mode, list)) or any(
        place.get("vision") is True for place in places
    )
    return Model(
        name,
        _limit(places, CONTEXT) or fact.context,
        _limit(places, OUTPUT) or fact.output,
        models.TEXT_AND_IMAGES if sees else fact.input,
        _price(entry.get("pricing")),
    )


def _inside(entry: dict[str, Any]) -> list[dict[str, Any]]:
    return [value for value in entry.values() if isinstance(value, dict)]


def _limit(places: Iterable[dict[str, Any]], names: Iterable[str]) -> int:
    values = [place.get(name) for place in places for name in names]
    return next((value for value in values if isinstance(value, int) and value > 0), 0)


def _price(told: Any) -> Price | None:
    """A model's price, where its server tells one that makes sense: OpenRouter in texts, dollars for one token,
    Together in numbers, for a million.
    """
    if not isinstance(told, dict):
        return None
    input, output = _dollars(told.get("prompt")), _dollars(told.get("completion"))
    if input is not None and output is not None:
        read, write = _dollars(told.get("input_cache_read")), _dollars(told.get("input_cache_write"))
        return Price(input, output, input if read is None else read, input if write is None else write)
    plain = [rate for name in ("input", "output") if isinstance(rate := told.get(name), int | float)]
    if len(plain) == 2 and any(plain) and all(0 <= rate <= DEAREST for rate in plain):
        return Price(plain[0], plain[1], plain[0], plain[0])
    return None


def _dollars(told: Any) -> float | None:
    """A text of dollars for a token, as dollars for a million; OpenRouter has -1 where it depends."""
    try:
        rate = float(told) * 1e6 if isinstance(told, str) else -1.0
    except ValueError:
        return None
    return round(rate, 6) if 0 <= rate <= DEAREST else None


def _place(name: str) -> int:
    """Where a model stands among those well known; the others come after them, as the server lists them."""
    short = name.rpartition("/")[2]
    return next((n for n, known in enumerate(models.CHAT) if models.is_of(short, known)), len(models.CHAT))
