"""Say why a session may send no further request: its context, or a limit that its config sets."""

from typing import Literal

from daemon.chain import Chain
from daemon.protocol.records import Config
from daemon.provider import prices
from daemon.provider.base import Model


def reached(
    chain: Chain,
    config: Config,
    model: Model,
    cost: prices.Costs = prices.unknown,
) -> str:
    """The sentence that names the limit, empty when a request may be sent."""
    limits = config.limits
    context = config.context or model.context
    if _overfull(chain, context):
        need = estimated(chain)
        return f"past the context limit: the next request would hold about {need} tokens of {context}"
    if limits.steps and chain.steps >= limits.steps:
        return f"limits.steps is reached: {chain.steps} of {limits.steps} steps"
    used = chain.usage.prompt + chain.usage.output
    if limits.tokens and used >= limits.tokens:
        return f"limits.tokens is reached: {used} of {limits.tokens} tokens"
    if limits.cost and (why := _cost(chain, config, model, cost)):
        return why
    if limits.seconds and chain.worked >= limits.seconds:
        return f"limits.seconds is reached: {chain.worked:.0f} of {limits.seconds:g} s at work"
    return ""


def code(chain: Chain, config: Config, model: Model) -> Literal["context", "limit"]:
    """The code of the error that says what is reached: `context` where it is the model's own window, which no limit
    that is raised makes wider.
    """
    own = not config.context or 0 < model.context <= config.context
    return "context" if own and _overfull(chain, config.context or model.context) else "limit"


def _overfull(chain: Chain, context: int) -> bool:
    return context > 0 and estimated(chain) > context


def estimated(chain: Chain) -> int:
    """About how many tokens the next request would hold."""
    return chain.prompt + chain.answer + chain.pending_tokens


def _cost(chain: Chain, config: Config, model: Model, cost: prices.Costs) -> str:
    """What a limit of cost says: also where it could not be kept, since nobody knows what the steps cost."""
    limit = config.limits.cost
    if model.price is None:
        return f"limits.cost cannot be kept: {unpriced(config.model)}"
    spent = cost(chain.spent)
    if spent is None:
        parts = dict.fromkeys(
            f"{part.provider}/{part.model}" for part in chain.spent if cost((part,)) is None
        )
        return (
            f"limits.cost cannot be kept: what the steps with {', '.join(parts)} cost is not known, for want of a "
            "price or of the server's counts; take the limit out to go on"
        )
    return f"limits.cost is reached: about ${spent:.4f} of ${limit:g}" if spent >= limit else ""


def unpriced(name: str) -> str:
    """Why there is no price of a model, `provider/model`, and what to do."""
    provider, _, model = name.partition("/")
    table = f'[providers.{provider}.models."{model}"]'
    return (
        f"no price of {name} is known; write price = {{ input = …, output = … }}, dollars for a million tokens, "
        f"into {table} of outrider.toml"
    )
