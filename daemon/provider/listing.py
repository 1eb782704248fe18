"""Ask a server for its models: one GET with a time limit, for servers that are configured by their address alone."""

import asyncio
from typing import Final

import aiohttp
import msgspec

from daemon.provider.base import Lister, Model, ProviderError
from daemon.provider.http import MAX_ERROR, hide, translated

LIMIT: Final = 5.0  # seconds: a list is for somebody who waits
MAX_ANSWER: Final = 8 << 20  # bytes; the longest lists there are have about one


async def list_models(
    provider: Lister, http: aiohttp.ClientSession, limit: float = LIMIT
) -> tuple[Model, ...]:
    """The models of `provider` after it was asked, best first; it remembers them.

    Raises ProviderError where it does not answer within `limit` seconds, or not with a list; what was known stays.
    """
    request = provider.listing
    try:
        async with (
            asyncio.timeout(limit),
            http.get(request.url, headers=request.headers, allow_redirects=False) as response,
        ):
            body = await _read(response, MAX_ANSWER if response.status == 200 else MAX_ERROR)
            if response.status != 200:
                headers = {name.lower(): value for name, value in response.headers.items()}
                raise provider.error(response.status, headers, body)
        provider.learn(msgspec.json.decode(body))
    except TimeoutError:
        what = f"no list of models from {provider.name} within {limit:g} s"
        raise ProviderError(what, code="timeout", retryable=True) from None
    except (aiohttp.ClientError, OSError) as error:
        raise hide(translated(error), request) from None
    except ProviderError as error:
        raise hide(error, request) from None
    except (ValueError, RecursionError):
        what = f"{provider.name} answered GET /models with something that lists no models"
        raise ProviderError(what, code="not_a_list") from None
    return tuple(provider.models())


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > most:
            break
    return bytes(body[:most])
