from typing import Any

import pytest

from daemon.chain import fold
from daemon.config import ModelEntry, PriceEntry, ProviderEntry
from daemon.protocol import records
from daemon.protocol.api import Price, Rates
from daemon.protocol.records import UNCOUNTED, Header, Record, Spent, Usage
from daemon.provider import listed, prices
from daemon.provider.base import Model
from daemon.provider.registry import Registry

OWN = PriceEntry(1, 2)


def priced(name: str, price: PriceEntry | None = OWN) -> dict[str, ModelEntry]:
    return {name: ModelEntry(price=price)}


PLAIN = Price(1, 2, 0.1, 1.25)


def cost(*spent: Spent, price: Price | None = PLAIN) -> float | None:
    return prices.cost(spent, lambda provider, model: price)


def step(n: int, usage: Usage | None, model: str = "m", broken: int = 0) -> Record:
    header = Header(
        n, "step", f"s{n}", "", 0, records.TEXT, provider="p", model=model, usage=usage, broken=broken
    )
    return Record(header)


# Whose price counts.


@pytest.mark.parametrize(
    ("entry", "kind", "model", "dollars"),
    [
        (None, "anthropic", "claude-sonnet-4-5-20250929", 3),
        (ProviderEntry("anthropic", "http://proxy.example"), "anthropic", "claude-opus-5", 5),
        (
            ProviderEntry("openai-chat", "https://api.openai.com/v1"),
            "openai-chat",
            "gpt-5.2-2025-12-11",
            1.75,
        ),
        (ProviderEntry("openai"), "openai", "gpt-5-mini", 0.25),
        (ProviderEntry("openai-chat", "https://api.x.ai/v1"), "openai-chat", "grok-4.7", 2),
        (ProviderEntry("openai-chat", "http://127.0.0.1:1/v1"), "openai-chat", "gpt-5.2", None),
        (ProviderEntry("openai-chat", "https://api.openai.com/v1"), "openai-chat", "claude-opus-5", None),
        (None, "anthropic", "claude-of-tomorrow", None),
        (None, "rehearsal", "tour", 0),
        (ProviderEntry("rehearsal", models=priced("tour")), "rehearsal", "tour", 1),
        (
            ProviderEntry("anthropic", models=priced("claude-opus-5")),
            "anthropic",
            "claude-opus-5-20260724",
            1,
        ),
        (ProviderEntry("anthropic", models=priced("claude-opus-5", None)), "anthropic", "claude-opus-5", 5),
    ],
)
def test_the_config_goes_before_the_list_price_of_the_vendors_own_address(
    entry: ProviderEntry | None, kind: str, model: str, dollars: float | None
) -> None:
    found = prices.of(entry, kind, Model(model))
    assert (None if found is None else found.input) == dollars


def test_a_price_that_a_server_lists_goes_before_ours_and_after_the_configs() -> None:
    model = Model("gpt-5.2", price=Price(9, 9, 9, 9))
    entry = ProviderEntry("openai-chat", "https://api.openai.com/v1")
    assert prices.of(entry, "openai-chat", model) == Price(9, 9, 9, 9)
    entry = ProviderEntry("openai-chat", "https://api.openai.com/v1", models=priced("gpt-5.2"))
    assert prices.of(entry, "openai-chat", model) == Price(1, 2, 1, 1), "a cache's prices are the input's"


def test_every_price_in_the_table_has_a_cache_that_costs_no_more_to_read_than_to_fill() -> None:
    for table in prices.HOSTS.values():
        for name, price in table.items():
            rates: list[Rates] = [price, *([price.above] if price.above else [])]
            for rate in rates:
                assert 0 < rate.cache_read < rate.input <= rate.cache_write < rate.output, name
            assert price.above is None or price.over in records.BANDS, name


def test_a_registry_gives_models_with_their_prices() -> None:
    entries = {"mine": ProviderEntry("anthropic", key="k", models=priced("claude-mine"))}
    registry = Registry(entries, env={})
    assert registry.resolve("mine/claude-mine")[1].price == Price(1, 2, 1, 1)
    assert registry.resolve("mine/claude-opus-5")[1].price == prices.ANTHROPIC["claude-opus-5"]
    assert registry.resolve("rehearsal/tour")[1].price == prices.FREE
    assert {model.price is not None for model in registry.models("rehearsal")} == {True}
    assert registry.price("mine", "claude-of-tomorrow") is None
    assert registry.price("gone", "x") is None


# What servers list.


@pytest.mark.parametrize(
    ("told", "price"),
    [
        ({"prompt": "0.000003", "completion": "0.000015"}, Price(3, 15, 3, 3)),
        (
            {
                "prompt": "0.000003",
                "completion": "0.000015",
                "input_cache_read": "0.0000003",
                "input_cache_write": "0.00000375",
            },
            Price(3, 15, 0.3, 3.75),
        ),
        ({"prompt": "0", "completion": "0"}, Price(0, 0, 0, 0)),
        ({"prompt": "-1", "completion": "-1"}, None),
        ({"prompt": "much", "completion": "0"}, None),
        ({"prompt": "nan", "completion": "0"}, None),
        ({"prompt": "0.000003"}, None),
        ({"hourly": 0, "input": 0.3, "output": 0.9, "base": 0}, Price(0.3, 0.9, 0.3, 0.3)),
        ({"hourly": 0, "input": 0, "output": 0}, None),
        ({"input": "0.3", "output": 0.9}, None),
        ("0.1", None),
        (None, None),
    ],
)
def test_a_price_is_read_as_each_server_writes_it(told: Any, price: Price | None) -> None:
    (model,) = listed.parse({"data": [{"id": "m", "pricing": told}]})
    assert model.price == price


# What steps cost.


def test_a_cost_counts_what_is_new_what_was_cached_and_what_was_written() -> None:
    used = Usage(1_000_000, 1_000_000, 1_000_000, 1_000_000)
    assert cost(Spent("p", "m", 0, used)) == 1 + 2 + 0.1 + 1.25
    assert cost() == 0


def test_a_cost_is_not_known_where_a_part_of_it_is_not() -> None:
    known, other = Spent("p", "m", 0, Usage(10)), Spent("p", "other", 0, Usage(10))
    price_of = {"m": Price(1, 1, 1, 1)}
    assert prices.cost([known, other], lambda provider, model: price_of.get(model)) is None
    uncounted = Spent("p", "m", UNCOUNTED, Usage())
    assert cost(known, uncounted) is None
    assert cost(known, uncounted, price=prices.FREE) == 0


def test_a_long_prompt_costs_what_the_vendor_asks_for_long_ones() -> None:
    price = Price(1, 1, 1, 1, 200_000, Rates(2, 2, 2, 2))
    chain = fold(step(n, Usage(size)) for n, size in enumerate((100_000, 200_000, 200_001, 300_000), 1))
    assert cost(*chain.spent, price=price) == pytest.approx(0.1 + 0.2 + 0.400002 + 0.6)


def test_a_chain_says_what_each_model_used_and_counts_the_prompts_of_answers_that_broke_off() -> None:
    chain = fold(
        [step(1, Usage(10, 5, 3)), step(2, Usage(20, 1), broken=2), step(3, Usage(7), "other"), step(4, None)]
    )
    assert chain.spent == (
        Spent("p", "m", 0, Usage(10 + 3 * 20, 6, 3)),
        Spent("p", "other", 0, Usage(7)),
        Spent("p", "m", UNCOUNTED, Usage()),
    )
    assert chain.usage == Usage(37, 6, 3), "what was used for nothing is no part of the session"
