"""Send a request to its provider and stream what comes back, tried again where that helps."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Final, Protocol, runtime_checkable

import aiohttp

from daemon.provider import errors, hiding, repair
from daemon.provider.base import (
    Answer,
    Block,
    Decoder,
    Delta,
    Outcome,
    Provider,
    ProviderError,
    Request,
    Retry,
    Streamed,
    Transport,
    Unmarked,
)
from daemon.provider.retry import RetryPolicy

PIECE: Final = 256 << 10  # bytes of a body sent at once: the loop gets its turn between two
TAKEN: Final = 16 << 10  # bytes of an answer taken at once, for the same: a small one may unpack to gigabytes
MAX_ERROR: Final = 64 << 10  # bytes read of an answer that is an error
HEAD: Final = 4 << 10  # bytes kept of an answer in which no event was yet: they may say what it is instead
ERROR_TIME: Final = 10.0  # seconds to read it in
LINGER: Final = 0.2  # seconds that a finished answer has to close, so that its connection can be used again
GRACE: Final = 10.0  # seconds for the end mark of an answer that is complete without it
NOT_STREAMS: Final = (
    "application/json",
    "text/html",
)  # a proxy's page or a plain answer, where a stream was asked for
SHOWN: Final = 200  # characters of what came instead of HTTP
POLICY: Final = RetryPolicy()


@runtime_checkable
class Signs(Protocol):
    """A provider whose requests need something before each try that is good for a while only."""

    async def sign(self, request: Request) -> Request:
        """The request as it can be sent now. Raises ProviderError."""
        ...


def open_session() -> aiohttp.ClientSession:
    """A client for all providers: no limit on connections (each session has one at a time), no cookies; proxies as the
    environment names them.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=True,
        auto_decompress=True,
    )


async def stream(
    provider: Provider,
    request: Request,
    *,
    session: aiohttp.ClientSession | None = None,
    policy: RetryPolicy = POLICY,
    sending: Callable[[int], None] = lambda tried: None,
) -> AsyncGenerator[Streamed, None]:
    """What the provider answers: deltas, blocks as they complete, retries, and last an Outcome.

    `sending` is called with the number of each try, from 1, when it goes out.

    `session` may be None for a provider with its own transport. Raises ProviderError when it is over; no key stands
    in its message. Cancelled, or closed with `aclose`, it closes the connection at once.
    """
    transport = provider.transport or _http(session, policy)
    tried = 0
    since: float | None = None  # the first failure
    while True:
        tried += 1
        given = False
        ready = request
        try:
            if isinstance(provider, Signs):
                ready = await provider.sign(request)
            sending(tried)
            async with aclosing(_once(provider, transport, ready, policy)) as events:
                async for event in events:
                    yield event
                    given = True
            return
        except ProviderError as error:
            hidden = hide(error, ready)
        now = policy.clock()
        since = now if since is None else since
        wait = policy.wait(hidden, tried, now - since)
        yield Retry(hidden.message, wait, tried + 1, given)
        await policy.sleep(wait)


async def _once(
    provider: Provider, transport: Transport, request: Request, policy: RetryPolicy
) -> AsyncGenerator[Block | Delta | Outcome, None]:
    """One try. The stall clock runs only while the provider is waited for, and only a real event sets it back."""
    left = policy.stall
    request_id = kind = ""
    decoder = provider.decoder()
    head = bytearray()
    async with AsyncExitStack() as stack:
        try:
            start = policy.clock()
            async with asyncio.timeout(left):
                answer = await _sent(stack, transport, request)
            request_id = errors.request_id(answer.headers)
            kind = _kind(answer)
            if answer.status != 200 or kind.startswith(NOT_STREAMS):
                raise await _refusal(provider, answer)
            left -= policy.clock() - start
            while left > 0:
                start, seen = policy.clock(), decoder.events
                piece = await _piece(answer, decoder, left)
                if not decoder.events and len(head) < HEAD:
                    head += (piece or b"")[:HEAD]
                for event in _decoded(decoder, piece):
                    yield event
                    if isinstance(event, Outcome):
                        await _linger(answer)
                        return
                if piece is None:
                    raise errors.cut("the stream ended before its last event")
                left = policy.stall if decoder.events > seen else left - (policy.clock() - start)
            raise TimeoutError
        except aiohttp.ClientError as error:  # some of its time-outs are TimeoutErrors too
            raise errors.with_request(translated(error), request_id) from None
        except TimeoutError:
            stalled = ProviderError(f"no event for {policy.stall:g} s", code="stalled", retryable=True)
            raise errors.with_request(stalled, request_id) from None
        except OSError as error:
            raise errors.with_request(translated(error), request_id) from None
        except ProviderError as error:
            if error.code in ("cut", "malformed") and not decoder.events:
                error = errors.without_events(error, kind, bytes(head))
            raise errors.with_request(error, request_id) from None


def _kind(answer: Answer) -> str:
    return answer.headers.get("content-type", "").lower()


async def _piece(answer: Answer, decoder: Decoder, left: float) -> bytes | None:
    """The next bytes, None for the end. Where nothing but an end mark can come, whatever happens is the end."""
    whole = isinstance(decoder, Unmarked) and decoder.whole
    try:
        async with asyncio.timeout(min(left, GRACE) if whole else left):
            return await anext(answer.chunks, None)
    except (TimeoutError, aiohttp.ClientError, OSError):
        if whole:
            return None
        raise


async def _sent(stack: AsyncExitStack, transport: Transport, request: Request) -> Answer:
    try:
        return await stack.enter_async_context(transport(request))
    except (
        aiohttp.InvalidURL,
        aiohttp.NonHttpUrlClientError,
        ValueError,
    ):  # the client's words may hold the key
        what = "the request cannot be sent: the provider's url, key or headers hold something that no request can"
        raise ProviderError(what, code="url") from None


def _decoded(decoder: Decoder, piece: bytes | None) -> Iterator[Block | Delta | Outcome]:
    """The events in a piece, None being the end; then the error that came after them, where one did."""
    events = decoder.end() if piece is None else decoder.feed(piece)
    yield from events
    if events:
        decoder.feed(b"")


async def _refusal(provider: Provider, answer: Answer) -> ProviderError:
    body = bytearray()
    with suppress(TimeoutError, aiohttp.ClientError, OSError):  # what came of it will do
        async with asyncio.timeout(ERROR_TIME):
            while len(body) < MAX_ERROR and (piece := await anext(answer.chunks, None)) is not None:
                body += piece
    data = bytes(body[:MAX_ERROR])
    if answer.status == 200:
        return errors.not_a_stream(_kind(answer), data)
    if 300 <= answer.status < 400:
        where = answer.headers.get("location", "elsewhere")
        what = f"the provider sends us to {where}; if that is right, put it into its url"
        return ProviderError(what, code="redirect", status=answer.status)
    return provider.error(answer.status, answer.headers, data)


async def _linger(answer: Answer) -> None:
    """Take up the end of a finished body; whatever happens there does not matter any more."""
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(LINGER):
            async for _ in answer.chunks:
                pass


def _http(session: aiohttp.ClientSession | None, policy: RetryPolicy) -> Transport:
    if session is None:
        raise ValueError("a provider without a transport of its own needs a client session")
    timeout = aiohttp.ClientTimeout(total=None, connect=policy.connect, sock_connect=policy.connect)

    @asynccontextmanager
    async def send(request: Request) -> AsyncIterator[Answer]:
        headers = {**request.headers, "content-length": str(len(request.body))}
        data = request.body if len(request.body) <= PIECE else _pieces(request.body)
        async with session.post(
            request.url, data=data, headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            try:
                names = {name.lower(): value for name, value in response.headers.items()}
                yield Answer(response.status, names, _Chunks(response.content))
            finally:
                response.close()  # at once where the answer is not over; nothing where it is

    return send


class _Chunks:
    """A body's bytes as they come, TAKEN at most at once; the loop gets its turn before each."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __aiter__(self) -> "_Chunks":
        return self

    async def __anext__(self) -> bytes:
        await asyncio.sleep(0)
        if piece := await self._content.read(TAKEN):
            return piece
        raise StopAsyncIteration


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE):
        yield body[start : start + PIECE]


def translated(error: Exception) -> ProviderError:
    """An error of the client's as one of ours."""
    said = " ".join(str(error).split()).removeprefix("400, message: ") or type(error).__name__
    match error:
        case aiohttp.ClientResponseError():  # its status is none that anybody sent
            said = " ".join(error.message.split())[:SHOWN]
            return ProviderError(
                f"what answers does not speak HTTP as it should: {said}", code="connection", retryable=True
            )
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return ProviderError(f"no secure connection to the provider: {said}", code="tls")
        case aiohttp.ClientPayloadError():
            return errors.cut(said)
        case aiohttp.ClientConnectorError():
            what = "the proxy" if isinstance(error, aiohttp.ClientProxyConnectionError) else "the provider"
            place = f"{error.host}:{error.port}: {_reason(error.os_error)}"
            return ProviderError(f"{what} cannot be reached: {place}", code="connection", retryable=True)
        case aiohttp.ServerTimeoutError():
            return ProviderError(f"the provider cannot be reached: {said}", code="connection", retryable=True)
        case _:
            return ProviderError(f"the connection broke: {said}", code="connection", retryable=True)


def _reason(error: OSError) -> str:
    """Why there is no connection, in the system's words where it has some."""
    known = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    return " ".join((known or str(error)).split()) or type(error).__name__


def hide(error: ProviderError, request: Request) -> ProviderError:
    """The same error as valid Unicode, without any secret of the request: providers and proxies repeat them."""
    error.message = hiding.hidden(repair.text(error.message), request.url, request.headers)
    error.args = (error.message,)
    error.__cause__ = None
    return error
