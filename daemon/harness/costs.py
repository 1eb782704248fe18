"""Say what a session's steps cost, from what its records say and the prices as they are now."""

from daemon.harness.step import Models
from daemon.protocol.api import Price
from daemon.provider import prices
from daemon.provider.base import ProviderError


def of(models: Models) -> prices.Costs:
    """What gives US dollars for steps, None where the price of one is not known. It may be called in any thread."""

    def price_of(provider: str, model: str) -> Price | None:
        try:
            return models.resolve(f"{provider}/{model}")[1].price
        except ProviderError:
            return None  # it is not served any more

    return lambda spent: prices.cost(spent, price_of)
