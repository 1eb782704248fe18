"""Try a provider with one small request, by the way that every step goes, and say what came of it in words."""

import asyncio
import time
from contextlib import aclosing
from typing import Final

import aiohttp
from msgspec import structs

from daemon import fixes
from daemon.chain import Context, Text, Turn
from daemon.plain import line
from daemon.protocol import api, records
from daemon.protocol.records import Usage
from daemon.provider.base import Block, Delta, Model, Outcome, Provider, ProviderError, Query, Wire
from daemon.provider.compiling import compiled
from daemon.provider.http import stream
from daemon.provider.retry import RetryPolicy

ASKED: Final = "Answer with the one word: ready"
SAID: Final = 200  # characters of the answer that are shown
SESSION: Final = "test"

OURS: Final = "look at the network of the daemon's machine: its DNS, its firewall, the proxy that it needs"


async def probe(
    provider: Provider,
    model: Model,
    http: aiohttp.ClientSession | None,
    limit: float = api.TEST_LIMIT,
    *,
    vendors: bool = False,
) -> api.Tested:
    """What came of one request to `model`, tried once; within `limit` seconds. Never raises ProviderError.

    `vendors`: it is asked at its vendor's own address, which is there, and is none that anybody wrote down wrong.
    """
    name = f"{provider.name}/{model.name}"
    start = time.monotonic()
    first: float | None = None
    words: list[str] = []
    outcome: Outcome | None = None
    try:
        async with asyncio.timeout(limit):
            context = Context("", (), Turn("user", (Text(ASKED),)), 1, 0)
            request = await compiled(provider, Query(model, context, (), {}, SESSION), Wire())
            policy = RetryPolicy(tries=1)
            async with aclosing(stream(provider, request, session=http, policy=policy)) as events:
                async for event in events:
                    if first is None and isinstance(event, Delta | Block):
                        first = time.monotonic() - start
                    if isinstance(event, Block) and event.kind == "text":
                        words.append(records.readable(event.type, event.body))
                    elif isinstance(event, Outcome):
                        outcome = event
    except TimeoutError:
        return _failed(name, start, "timeout", f"no whole answer within {limit:g} s")
    except ProviderError as error:
        got = _failed(name, start, error.code, error.message.removesuffix("; tried 1 times"))
        return structs.replace(got, fix=OURS) if vendors and error.code == "connection" else got
    seconds = time.monotonic() - start
    if outcome is None:
        return _failed(name, start, "provider", "the provider's answer had no end")
    return api.Tested(
        True,
        name,
        round(seconds, 3),
        served_by=outcome.model,
        said=line("".join(words), SAID),
        first=None if first is None else round(first, 3),
        usage=outcome.usage,
        stop=outcome.stop,
    )


def _failed(name: str, start: float, code: str, message: str) -> api.Tested:
    provider = name.partition("/")[0]
    fix = fixes.after_test(code, provider)
    return api.Tested(
        False, name, round(time.monotonic() - start, 3), usage=Usage(), code=code, message=message, fix=fix
    )
