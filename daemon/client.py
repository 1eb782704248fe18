"""The API's client: every call, and a session followed record by record through lost connections."""

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from daemon.protocol import api, events, framing, records
from daemon.protocol.records import Record, Status

FIRST_WAIT: Final = 0.1  # seconds before the first try to connect again; doubled each time
LONGEST_WAIT: Final = 5.0  # seconds; a daemon that is back is noticed soon enough
PATIENCE: Final = 30.0  # seconds a post whose connection was lost is tried again
CONNECT: Final = 10.0  # seconds to connect
ANSWER: Final = (
    60.0  # seconds of silence before an answer: a stop takes 10, a durable post on a slow disk some
)
SILENCE: Final = 3 * api.HEARTBEAT  # seconds without a byte, after which an event stream is dead
BASE: Final = "http://outrider"  # of requests over a Unix socket: a name for the Host header, never resolved
PIECE: Final = 256 << 10
MAX_ERROR: Final = 64 << 10  # bytes of a refusal that are read

T = TypeVar("T")


class ApiFailure(Exception):
    """The daemon refused: `status` is HTTP's, the message is the daemon's own sentence."""

    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


class Unreachable(Exception):
    """No daemon answers there; the message says what to do."""


class Lost(Struct, frozen=True):
    """The connection of a followed session is lost: why, and in how many seconds it is tried again."""

    why: str
    wait: float


class Back(Struct, frozen=True):
    """The connection of a followed session is there again."""


Followed = Record | api.Delta | api.RetryEvent | api.Restart | Lost | Back


class _Cut(Unreachable):
    """The connection ended in the middle of a request; what it did is not known."""


class Client:
    """One daemon, at a Unix socket's path or an http(s) URL (with a key). A context manager; nothing runs in between.

    Every call raises ApiFailure for a refusal and Unreachable where no daemon answers.
    """

    def __init__(
        self,
        where: str | Path,
        key: str = "",
        *,
        first_wait: float = FIRST_WAIT,
        longest_wait: float = LONGEST_WAIT,
        patience: float = PATIENCE,
        silence: float = SILENCE,
    ) -> None:
        self.where = str(where)
        self._key = key
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        self._patience = patience
        self._silence = silence
        self._http: aiohttp.ClientSession | None = None
        scheme = urlsplit(self.where).scheme
        if scheme in ("http", "https"):
            self._socket, self._base = "", self.where.rstrip("/")
        elif scheme in ("", "unix"):
            self._socket, self._base = self.where.removeprefix("unix://").removeprefix("unix:"), BASE
        else:
            raise ValueError(
                f"{self.where}: give a Unix socket's path, or a URL that begins with http:// or https://"
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    # ---- calls

    async def version(self) -> api.Version:
        """The daemon's release and the API's version."""
        return await self._call(api.Version, "GET", "/")

    async def create(self, create: api.Create) -> str:
        """Make a session; returns its id."""
        json = {"Content-Type": records.JSON}
        return (await self._call(api.Created, "POST", api.SESSIONS, {}, api.encode(create), json)).id

    async def info(self, id: str) -> api.Info:
        """What stands about a session."""
        return await self._call(api.Info, "GET", api.SESSION.format(id=id))

    async def list(
        self, status: Status | None = None, limit: int = 100, after: str = ""
    ) -> Sequence[api.Info]:
        """Sessions, newest updated first; `after` is the last id of the list before."""
        query = (
            {"limit": str(limit)}
            | ({"status": status} if status else {})
            | ({"after": after} if after else {})
        )
        return await self._call(tuple[api.Info, ...], "GET", api.SESSIONS, query)

    async def records(
        self, id: str, after: int = 0, limit: int | None = None, wait: float = 0.0
    ) -> Sequence[Record]:
        """Records after number `after`, checked and whole. `wait`: seconds to wait for one where there is none."""
        return [record async for record in self.stream(id, after, limit, wait)]

    async def stream(
        self, id: str, after: int = 0, limit: int | None = None, wait: float = 0.0
    ) -> AsyncGenerator[Record, None]:
        """As `records`, one by one as they arrive."""
        decoder, n = records.decoder(), after
        query = _range(after, limit) | ({"wait": f"{wait:.3f}"} if wait else {})
        async with self._request("GET", api.RECORDS.format(id=id), query, silence=ANSWER + wait) as answer:
            try:
                async for piece in answer.content.iter_chunked(PIECE):
                    decoder.feed(piece)
                    while (unit := decoder.next()) is not None:
                        header, line, body = unit
                        records.check(line, body)
                        if header.n != (n := n + 1):
                            raise records.BadRecord(f"record {header.n} came where {n} was due")
                        yield Record(header, body, line)
                if decoder.pending:
                    raise records.BadRecord(f"it ends within record {n + 1}")
            except (framing.FramingError, records.BadRecord) as error:
                raise ApiFailure(502, f"the records of session {id} arrived damaged: {error}") from error

    async def headers(self, id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        """The records after `after` without their bodies."""
        query = _range(after, limit) | {"bodies": "0"}
        async with self._request("GET", api.RECORDS.format(id=id), query) as answer:
            data = await answer.read()
        try:
            return [Record(records.parse_header(line), b"", line) for line in data.split(b"\n") if line]
        except records.BadRecord as error:
            raise ApiFailure(502, f"the records of session {id} arrived damaged: {error}") from error

    async def post(self, id: str, parts: Sequence[api.Part], via: str, key: str = "") -> int:
        """Append one message per part; returns the last one's number, durable by then.

        A post whose connection is lost is sent again under the same idempotency key (`key`, or one made here) for up
        to the client's patience, so it lands once.
        """
        type, body = (parts[0].type, parts[0].body) if len(parts) == 1 else _multipart(parts)
        headers = {api.IDEMPOTENCY_HEADER: key or uuid.uuid4().hex, "Content-Type": type}
        path, query = api.RECORDS.format(id=id), {"via": via}
        clock = asyncio.get_running_loop().time
        give_up, tries, sent = clock() + self._patience, 0, False
        while True:
            try:
                return (await self._call(api.Posted, "POST", path, query, body, headers)).n
            except Unreachable as error:
                sent = sent or isinstance(error, _Cut)
                wait = self._back_off(tries)
                if not sent or clock() + wait > give_up:
                    raise
            await asyncio.sleep(wait)
            tries += 1

    async def retry(self, id: str) -> Status:
        """Step a session again; returns its status."""
        return (await self._call(api.Kicked, "POST", api.RETRY.format(id=id))).status

    async def stop(self, id: str, via: str) -> None:
        """Cut the step in work; it is cut when this returns."""
        async with self._request("POST", api.STOP.format(id=id), {"via": via}):
            pass

    async def workers(self) -> Sequence[api.WorkerInfo]:
        """Every worker the daemon knows."""
        return await self._call(tuple[api.WorkerInfo, ...], "GET", api.WORKERS)

    async def providers(self) -> api.Providers:
        """The providers with their models, and the default model."""
        return await self._call(api.Providers, "GET", api.PROVIDERS)

    async def models(self) -> Sequence[str]:
        """Names that sessions can have as their model, the best of each provider first."""
        return [model.name for provider in (await self.providers()).providers for model in provider.models]

    # ---- following

    async def follow(self, id: str, after: int = 0, deltas: bool = False) -> AsyncGenerator[Followed, None]:
        """Records after number `after`, each once and in order, as they come; reconnects by number for ever.

        With `deltas` also live pieces. Lost and Back tell of the connection. A record whose body is neither text
        nor JSON comes without it: `records(id, n - 1, 1)` has it. Raises ApiFailure when the session cannot be
        read. Close it, or cancel who reads it, to end it.
        """
        clock = asyncio.get_running_loop().time
        path, query = api.EVENTS.format(id=id), {"deltas": "1"} if deltas else {}
        tries, lost = 0, False
        while True:
            began, wait = clock(), self._back_off(tries)
            try:
                at = {events.LAST_ID_HEADER: str(after)}
                async with self._request("GET", path, query, headers=at, silence=self._silence) as answer:
                    if lost:
                        yield Back()
                        lost = False
                    decoder = events.Decoder(events.SESSION)
                    async for piece in answer.content.iter_any():
                        decoder.feed(piece)
                        while (event := decoder.next()) is not None:
                            if isinstance(event, api.ApiError):
                                raise ApiFailure(event.error.code, event.error.message)
                            if isinstance(event, Record):
                                if event.n != after + 1:
                                    raise _Cut(f"record {event.n} came where {after + 1} was due")
                                after = event.n
                            tries = 0
                            yield event
                why = f"{self.where} ended the stream"
            except (Unreachable, events.BadEvent) as error:
                why = str(error)
            except ApiFailure as error:
                if error.status < 500 and error.status != 429:
                    raise
                why, wait = error.message, max(wait, error.retry_after)
            tries = 0 if clock() - began > self._longest_wait else tries + 1
            lost = True
            yield Lost(why, wait)
            await asyncio.sleep(wait)

    # ---- one request

    def _back_off(self, tries: int) -> float:
        """Seconds to wait before a try, a little different for each client, so that many do not come at once."""
        most = min(self._longest_wait, self._first_wait * 2.0 ** min(tries, 20))
        return most * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing

    async def _call(
        self,
        type: type[T],
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        async with self._request(method, path, query, body, headers) as answer:
            data = await answer.read()
        try:
            return msgspec.json.decode(data, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiFailure(502, f"{self.where} gave an answer that is not the daemon's: {error}") from error

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float = ANSWER,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer below 300; what fails while it is read is translated too. `silence`: most seconds without bytes."""
        if self._http is None:
            self._http = self._open()
        if body is not None:
            headers = {"Content-Length": str(len(body))} | dict(headers or {})
        try:
            async with self._http.request(
                method,
                self._base + path,
                params=query,
                data=None if body is None else _pieces(body),
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=silence),
            ) as answer:
                if answer.status >= 300:
                    raise await self._failure(answer)
                yield answer
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(self._advice(error)) from error
        except aiohttp.ClientResponseError as error:
            raise ApiFailure(502, f"{self.where} does not speak as a daemon does: {error.message}") from error
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            silent = isinstance(error, TimeoutError)
            why = f"was silent for {silence:g} s" if silent else "was lost in the middle of a request"
            raise _Cut(f"the connection to {self.where} {why}") from error

    def _open(self) -> aiohttp.ClientSession:
        # A connection serves one request: an idle one that the daemon's restart broke would fail the next call.
        connector: aiohttp.BaseConnector
        if self._socket:
            connector = aiohttp.UnixConnector(self._socket, force_close=True, limit=0)
        else:
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Authorization": f"Bearer {self._key}"} if self._key else None,
        )

    def _advice(self, error: aiohttp.ClientError | TimeoutError) -> str:
        """A sentence a person can act on, for a connection that did not come about."""
        cause = getattr(error, "os_error", None) or error
        if not self._socket:
            return f"cannot connect to {self.where}: {getattr(cause, 'strerror', None) or cause}"
        match cause:
            case FileNotFoundError():
                return f"no daemon listens on {self._socket}; start one, or name another socket"
            case ConnectionRefusedError():
                return f"the daemon that listened on {self._socket} has ended; start it again"
            case PermissionError():
                return f"not allowed to open {self._socket}: it belongs to another user"
            case _:
                return f"cannot connect to {self._socket}: {getattr(cause, 'strerror', None) or cause}"

    async def _failure(self, answer: aiohttp.ClientResponse) -> ApiFailure:
        data = await answer.content.read(MAX_ERROR)
        try:
            message = msgspec.json.decode(data, type=api.ApiError).error.message
        except (msgspec.DecodeError, UnicodeDecodeError):
            message = f"{self.where} answered {answer.status} {answer.reason or ''}".rstrip()
        after = answer.headers.get("Retry-After", "")
        return ApiFailure(answer.status, message, float(after) if after.isdecimal() else 0.0)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE):
        yield body[start : start + PIECE]


def _range(after: int, limit: int | None) -> dict[str, str]:
    return {"after": str(after)} | ({} if limit is None else {"limit": str(limit)})


def _multipart(parts: Sequence[api.Part]) -> tuple[str, bytes]:
    """(media type, body) of several parts."""
    boundary = uuid.uuid4().hex
    body = b"".join(
        b"--%b\r\nContent-Type: %b\r\n\r\n%b\r\n" % (boundary.encode(), part.type.encode("ascii"), part.body)
        for part in parts
    )
    return f"multipart/mixed; boundary={boundary}", body + f"--{boundary}--\r\n".encode()
