"""Say why a session may send no further request: its context, or a limit that its config sets."""

from datetime import datetime

from daemon.chain import Chain
from daemon.protocol import records
from daemon.protocol.records import Config
from daemon.provider.base import Model


def reached(chain: Chain, config: Config, model: Model, now: datetime) -> str:
    """The sentence that names the limit, empty when a request may be sent."""
    limits = config.limits
    context = config.context or model.context
    need = chain.prompt + chain.answer + chain.pending_tokens
    if context and need > context:
        return f"past the context limit: the next request would hold about {need} tokens of {context}"
    if limits.steps and chain.steps >= limits.steps:
        return f"limits.steps is reached: {chain.steps} of {limits.steps} steps"
    used = chain.usage.prompt + chain.usage.output
    if limits.tokens and used >= limits.tokens:
        return f"limits.tokens is reached: {used} of {limits.tokens} tokens"
    created = records.instant(chain.created) if limits.seconds else None
    seconds = (now - created).total_seconds() if created else 0.0
    if limits.seconds and seconds >= limits.seconds:
        return f"limits.seconds is reached: {seconds:.0f} of {limits.seconds:g} s"
    return ""
