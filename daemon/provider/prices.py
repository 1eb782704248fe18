"""What models cost: a table of list prices, a config's own over it, and the cost of what a session's steps used.

Prices are US dollars for a million tokens as the vendors list them for their own addresses, without discounts for
batches or at certain hours; who has a contract writes its prices into the config. AS_OF is when they were looked up.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from daemon.config import ProviderEntry
from daemon.protocol.api import Price, Rates
from daemon.protocol.records import BANDS, UNCOUNTED, Spent
from daemon.provider import models
from daemon.provider.base import Model

AS_OF: Final = "2026-11-30"
MILLION: Final = 1_000_000

Table = Mapping[str, Price]
Costs = Callable[[Sequence[Spent]], float | None]
"""What says how many US dollars steps cost, None where it is not known."""


def _claude(input: float, output: float, read: float) -> Price:
    return Price(input, output, read, round(input * 1.25, 6))  # marks that live 5 minutes, as we set them


def _plain(input: float, output: float, read: float) -> Price:
    return Price(input, output, read, input)


def _tiered(over: int, below: Rates, above: Rates) -> Price:
    return Price(below.input, below.output, below.cache_read, below.cache_write, over, above)


ANTHROPIC: Final[Table] = {
    "claude-fable-5-1": _claude(10, 50, 0.25),
    "claude-opus-5-5": _claude(4, 20, 0.2),
    "claude-sonnet-5-5": _claude(2, 10, 0.1),
    "claude-haiku-5-5": _tiered(100_000, _claude(0.1, 0.5, 0.01), _claude(0.5, 2.5, 0.05)),
    "claude-opus-5": _claude(5, 25, 0.5),
    "claude-sonnet-5": _claude(2, 10, 0.2),
    "claude-opus-4-8": _claude(5, 25, 0.5),
    "claude-opus-4-7": _claude(5, 25, 0.5),
    "claude-opus-4-6": _claude(5, 25, 0.5),
    "claude-opus-4-5": _claude(5, 25, 0.5),
    "claude-opus-4-1": _claude(15, 75, 1.5),
    "claude-opus-4": _claude(15, 75, 1.5),
    "claude-sonnet-4-6": _claude(3, 15, 0.3),
    "claude-sonnet-4-5": _claude(3, 15, 0.3),
    "claude-sonnet-4": _claude(3, 15, 0.3),
    "claude-haiku-4-5": _claude(1, 5, 0.1),
}
OPENAI: Final[Table] = {
    "gpt-5.4": _tiered(272_000, _plain(2.5, 15, 0.25), _plain(5, 22.5, 0.5)),
    "gpt-5.4-mini": _plain(0.75, 4.5, 0.075),
    "gpt-5.2": _plain(1.75, 14, 0.175),
    "gpt-5.1": _plain(1.25, 10, 0.125),
    "gpt-5": _plain(1.25, 10, 0.125),
    "gpt-5-mini": _plain(0.25, 2, 0.025),
    "gpt-5-nano": _plain(0.05, 0.4, 0.005),
    "gpt-4.1": _plain(2, 8, 0.5),
    "gpt-4.1-mini": _plain(0.4, 1.6, 0.1),
    "gpt-4o": _plain(2.5, 10, 1.25),
    "gpt-4o-mini": _plain(0.15, 0.6, 0.075),
    "o3": _plain(2, 8, 0.5),
    "o4-mini": _plain(1.1, 4.4, 0.275),
}
GOOGLE: Final[Table] = {
    "gemini-2.5-pro": _tiered(200_000, _plain(1.25, 10, 0.125), _plain(2.5, 15, 0.25)),
}
DEEPSEEK: Final[Table] = {
    "deepseek-v4-pro": _plain(1.32, 3.96, 0.044)
}  # at its peak hours; half of it at others
XAI: Final[Table] = {"grok-4.7": _tiered(200_000, _plain(2, 6, 0.5), _plain(4, 12, 1))}

FREE: Final = Price(0, 0, 0, 0)
OWN: Final[Mapping[str, Table]] = {"anthropic": ANTHROPIC, "openai": OPENAI, "google": GOOGLE}  # by kind
HOSTS: Final[Mapping[str, Table]] = {
    "api.anthropic.com": ANTHROPIC,
    "api.openai.com": OPENAI,
    "generativelanguage.googleapis.com": GOOGLE,
    "api.deepseek.com": DEEPSEEK,
    "api.x.ai": XAI,
}


def of(entry: ProviderEntry | None, kind: str, model: Model) -> Price | None:
    """What a model of a provider costs: by the config, else as its server says, else by the table. None: not known.

    The table counts for a vendor's own address alone, since others ask what they like for the same names; but who
    has Anthropic's models at another address mostly passes them on.
    """
    if (written := _written(entry, model.name)) is not None:
        return written
    if kind == "rehearsal":
        return FREE
    if model.price is not None:
        return model.price
    url = entry.url if entry is not None else ""
    passed_on = kind == "anthropic" or not url
    return _find(model.name, OWN.get(kind, {}) if passed_on else HOSTS.get(urlsplit(url).hostname or "", {}))


def cost(spent: Iterable[Spent], price_of: Callable[[str, str], Price | None]) -> float | None:
    """About how many US dollars were spent, None where it is not known of a part. `price_of` takes provider and model.

    A part that its server did not count is known only where it costs nothing.
    """
    total = 0.0
    for part in spent:
        price = price_of(part.provider, part.model)
        if price is None or (part.band == UNCOUNTED and price != FREE):
            return None
        longer = part.band > 0 and BANDS[part.band - 1] >= price.over
        rates: Rates = price.above if longer and price.above is not None else price
        used = part.usage
        total += (
            used.input * rates.input
            + used.output * rates.output
            + used.cache_read * rates.cache_read
            + used.cache_write * rates.cache_write
        ) / MILLION
    return round(total, 8)


def unknown(spent: Sequence[Spent]) -> float | None:
    """For who knows no prices."""
    return None


def _written(entry: ProviderEntry | None, name: str) -> Price | None:
    """The price that a config has for a model, or for the one that it is a dated name of."""
    if entry is None:
        return None
    known = {
        model: Price(
            price.input,
            price.output,
            price.input if price.cache_read is None else price.cache_read,
            price.input if price.cache_write is None else price.cache_write,
        )
        for model, told in entry.models.items()
        if (price := told.price) is not None
    }
    return _find(name, known)


def _find(name: str, table: Table) -> Price | None:
    if (price := table.get(name)) is not None:
        return price
    return next((price for known, price in table.items() if models.is_of(name, Model(known))), None)
