"""Ask a harness's join listener over HTTP: to join, how this machine stands there, or to leave.

By the proxy that the environment names, as the relay goes; what answers without being the harness is not believed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, assert_never

import aiohttp
import msgspec
from msgspec import Struct

from mesh import standing, tunnel
from mesh.address import Place
from mesh.identity import Membership
from mesh.join import KEY_PATH, SHOWN, Failed, Get, Joined, Joining, Post
from mesh.keys import JOIN_PUBLIC, Pair, fingerprint
from mesh.messages import Answer, MessageError
from mesh.nodes import Facts
from mesh.relay import SERVER
from mesh.sealed import SealError
from mesh.token import Token

CONNECT: Final = 5.0  # seconds for one address to take a connection
ANSWER: Final = 30.0  # seconds for a whole request: the harness may have many joins to work on
PATIENCE: Final = 40.0  # seconds after which no other attempt to join begins: a machine's network may be late
AGAIN: Final = 2.0  # seconds between two attempts
LONGEST_RETRY: Final = 120.0  # seconds that a harness may have us wait once
MOST_RETRIES: Final = 10  # times that it may


class AskError(Exception):
    """It came to nothing; the message says why."""


class Refused(AskError):
    """The harness said no; the message has its reason."""


class NotReached(AskError):
    """No place of the join listener gave an answer of the harness's; the message says why of each."""


class _Lost(Exception):
    """No answer came from this place."""


class _Got(Struct, frozen=True):
    status: int
    body: bytes
    retry_after: float


async def join(
    token: Token,
    facts: Facts,
    pair: Pair,
    environ: Mapping[str, str],
    *,
    tell: Callable[[str], None],
    patience: float = PATIENCE,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Membership:
    """Join with this key, which is on disk by now: an attempt whose answer was lost is repeated, and takes no more.

    `tell` is called with why it is tried again. Raises Refused and NotReached.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + patience
    retries = 0
    while True:
        ended, place = await _attempt(token, facts, pair, environ)
        if isinstance(ended, Joined):
            places = dict.fromkeys((place, *token.places))
            return Membership(fingerprint=token.fingerprint, places=tuple(places), answer=ended.answer)
        if not ended.again or retries >= MOST_RETRIES:
            raise Refused(ended.reason)
        if ended.retry_after:
            retries += 1
            wait = min(ended.retry_after, LONGEST_RETRY)
            give_up = max(give_up, loop.time() + wait + AGAIN)
        else:
            wait = AGAIN
            if loop.time() >= give_up:
                raise NotReached(ended.reason)
        tell(ended.reason)
        await sleep(wait)


async def _attempt(
    token: Token, facts: Facts, pair: Pair, environ: Mapping[str, str]
) -> tuple[Joined | Failed, Place]:
    """One attempt by all places; how it ended, and the place that was asked last."""
    joining = Joining(token, facts, pair)
    place = token.places[0]
    while True:
        step = joining.next()
        match step:
            case Joined() | Failed():
                return step, place
            case Get(place=place) | Post(place=place):
                body = step.body if isinstance(step, Post) else None
                try:
                    got = await _request(place, step.path, body, step.limit, environ)
                except _Lost as lost:
                    joining.lost(str(lost))
                else:
                    joining.feed(got.status, got.body, got.retry_after)
            case _:
                assert_never(step)


async def stand(
    membership: Membership, pair: Pair, environ: Mapping[str, str], *, leave: bool = False
) -> tuple[standing.Told, Answer | None, Place]:
    """What became of this machine in the mesh, what a member is told now, and which place said so. Or leave it.

    Raises Refused and NotReached.
    """
    why: list[str] = []
    for place in membership.places:
        try:
            told, answer = await _stand(place, membership.fingerprint, pair, environ, leave)
        except _Lost as lost:
            why.append(f"{place}: {lost}")
        else:
            return told, answer, place
    raise NotReached("; ".join(why))


async def _stand(
    place: Place, trusted: bytes, pair: Pair, environ: Mapping[str, str], leave: bool
) -> tuple[standing.Told, Answer | None]:
    got = await _request(place, KEY_PATH, None, JOIN_PUBLIC, environ)
    if got.status != 200:
        raise _Lost(f"no harness lets machines join there (HTTP status {got.status})")
    if fingerprint(got.body) != trusted:
        raise _Lost("another harness answers there")
    try:
        box, reply = standing.ask(pair, got.body, time.time(), leave)
        got = await _request(place, standing.PATH, box, standing.MAX_TOLD, environ)
        if got.status == 200:
            return standing.told(got.body, reply, box)
    except (SealError, MessageError) as error:
        raise _Lost(str(error)) from None
    text = " ".join(got.body.decode("utf-8", "replace").split())
    said = "".join(filter(str.isprintable, text))[:SHOWN]
    if got.status == 404:
        raise _Lost("this harness is of a release that does not say how machines stand")
    if 400 <= got.status < 500 and got.status != 429:
        raise Refused(f"the harness refused: {said}")
    raise _Lost(f"{said} (HTTP status {got.status})")


async def _request(
    place: Place, path: str, body: bytes | None, limit: int, environ: Mapping[str, str]
) -> _Got:
    """One request. Raises _Lost."""
    try:
        proxy = tunnel.proxy_for(place.host, place.port, environ)
    except tunnel.TunnelError as error:
        raise _Lost(str(error)) from None
    headers = {"User-Agent": "outrider"}
    if body is not None:
        headers["Content-Type"] = "application/octet-stream"
    if proxy is not None and proxy.authorization:
        headers["Proxy-Authorization"] = proxy.authorization
    by = f" by the proxy {proxy}" if proxy is not None else ""
    timeout = aiohttp.ClientTimeout(total=ANSWER, sock_connect=CONNECT)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as client,
            client.request(
                "GET" if body is None else "POST",
                f"http://{place}{path}",
                data=body,
                headers=headers,
                proxy=f"http://{proxy}" if proxy is not None else None,
                allow_redirects=False,
            ) as answer,
        ):
            if proxy is not None and answer.headers.get("Server") != SERVER:
                raise _Lost(f"the proxy {proxy} does not let through to it (HTTP status {answer.status})")
            content = await _read(answer.content, limit)
            return _Got(answer.status, content, _seconds(answer.headers.get("Retry-After", "")))
    except aiohttp.ConnectionTimeoutError:
        raise _Lost(f"no answer within {CONNECT:g} s{by}") from None
    except TimeoutError:
        raise _Lost(f"no answer within {ANSWER:g} s{by}") from None
    except (aiohttp.ClientError, OSError) as error:
        inner = getattr(error, "os_error", None) or error
        said = tunnel.said(inner) if isinstance(inner, OSError) else str(inner) or type(inner).__name__
        raise _Lost(f"{said}{by}") from None


async def _read(content: aiohttp.StreamReader, limit: int) -> bytes:
    """What there is up to `limit` bytes, and one more where there is more."""
    found = bytearray()
    while len(found) <= limit and (piece := await content.read(limit + 1 - len(found))):
        found += piece
    return bytes(found)


def _seconds(text: str) -> float:
    """Of a Retry-After; 0 where it has none, or a date."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0.0


def renewed(membership: Membership, answer: Answer, place: Place) -> Membership:
    """What is to be kept after the harness said this at that place."""
    places = tuple(dict.fromkeys((place, *membership.places)))
    return msgspec.structs.replace(membership, answer=answer, places=places, removed=False)
