"""Build a request without holding up the loop: images that take long are made smaller in a thread."""

import asyncio
from collections.abc import Sequence

from daemon.chain import Media, Result, Turn
from daemon.provider import fitting
from daemon.provider.base import Provider, Query, Request, Wire


async def compiled(provider: Provider, query: Query, wire: Wire) -> Request:
    """What `provider.compile` gives for `query`. Cancelled, it leaves `wire` as it was."""
    context = query.context
    same = wire.key[:3] == (provider.name, query.model.name, context.epoch)
    fresh: Sequence[Turn] = context.settled[len(wire.turns) :] if same else context.settled
    last = () if context.last is None else (context.last,)
    if not any(map(_heavy, (*fresh, *last))):
        return provider.compile(query, wire)
    apart = wire.copy()  # a thread cannot be cancelled, and the next step may begin before it ends
    request = await asyncio.to_thread(provider.compile, query, apart)
    wire.take(apart)
    return request


def _heavy(turn: Turn) -> bool:
    return any(
        isinstance(item, Media) and fitting.heavy(item.data)
        for part in turn.parts
        for item in (part.content if isinstance(part, Result) else (part,))
    )
