"""Ask a daemon over HTTP: one request at a time, each failure a sentence that a person can act on."""

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from daemon.protocol import api
from daemon.tunnel import Tunnel, TunnelError

CONNECT: Final = 10.0  # seconds to connect
ANSWER: Final = (
    60.0  # seconds of silence before an answer: a stop takes 10, a durable post on a slow disk some
)
BASE: Final = "http://outrider"  # of requests over a Unix socket: a name for the Host header, never resolved
PIECE: Final = 256 << 10
MAX_ERROR: Final = 64 << 10  # bytes of a refusal that are read


class ApiFailure(Exception):
    """The daemon refused: `status` is HTTP's, the message is the daemon's own sentence."""

    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


class Unreachable(Exception):
    """No daemon answers there; the message says what to do."""


class Cut(Unreachable):
    """The connection ended in the middle of a request; what it did is not known."""


class Asker:
    """A way to one daemon: a Unix socket's path or an http(s) or ssh URL, with a key. Opens nothing before the first
    request.

    `ca`: a PEM file of the only authorities that https is to trust. `fingerprint`: the SHA-256 of the one certificate
    it is to trust, in hex; no name in it is looked at then. Raises ValueError for what cannot be.
    """

    def __init__(self, where: str | Path, key: str = "", ca: str | Path = "", fingerprint: str = "") -> None:
        self.where = str(where)
        self._key = key
        self._ca = str(ca)
        self._fingerprint = _digest(fingerprint) if fingerprint else b""
        self._http: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()
        self._tunnel: Tunnel | None = None
        scheme = urlsplit(self.where).scheme
        if scheme in ("http", "https"):
            self._socket, self._base = "", self.where.rstrip("/")
        elif scheme in ("", "unix"):
            self._socket, self._base = self.where.removeprefix("unix://").removeprefix("unix:"), BASE
        elif scheme == "ssh":
            self._tunnel, self._socket, self._base = Tunnel(self.where), "", BASE
        else:
            raise ValueError(
                f"{self.where}: give a Unix socket's path, or a URL that begins with http://, https:// or ssh://"
            )
        if (ca or fingerprint) and scheme != "https":
            raise ValueError(
                f"{self.where}: a CA file or a fingerprint is for an address that begins with https://"
            )
        if ca and fingerprint:
            raise ValueError("give a CA file or a fingerprint, not both: each says alone what is trusted")

    async def close(self) -> None:
        """Close every connection."""
        if self._http is not None:
            await self._http.close()
            self._http = None
        if self._tunnel is not None:
            await self._tunnel.close()

    async def sign_in(self) -> None:
        """Where ssh leads to the daemon, let it ask the person now, and never again. Raises Unreachable."""
        if self._tunnel is not None:
            await self._through(self._tunnel)
            self._tunnel.quiet = True

    async def _through(self, tunnel: Tunnel) -> str:
        try:
            await tunnel.open()
        except TunnelError as error:
            raise Unreachable(str(error)) from error
        return tunnel.socket

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float = ANSWER,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer below 300; what fails while it is read is translated too. `silence`: most seconds without bytes.

        Raises ApiFailure, Unreachable.
        """
        if body is not None:
            headers = {"Content-Length": str(len(body))} | dict(headers or {})

        async def ask() -> aiohttp.ClientResponse:
            return await (await self._opened()).request(
                method,
                self._base + path,
                params=query,
                data=None if body is None else _pieces(body),
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=silence),
            )

        try:
            try:
                asked = await ask()
            except aiohttp.ClientConnectorError:
                if self._tunnel is None:
                    raise
                await self._tunnel.close()  # its ssh is ending, and nothing was sent through it
                asked = await ask()
            async with asked as answer:
                if answer.status >= 300:
                    raise await self._failure(answer)
                yield answer
        except (
            aiohttp.ClientConnectorError,
            aiohttp.ConnectionTimeoutError,
            aiohttp.ServerFingerprintMismatch,
        ) as error:
            raise Unreachable(self._advice(error)) from error
        except aiohttp.ClientResponseError as error:
            raise ApiFailure(502, f"{self.where} does not speak as a daemon does: {error.message}") from error
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            silent = isinstance(error, TimeoutError)
            if self._tunnel is not None and not silent:
                raise Cut(f"no daemon answers at {self.where}, or the connection was lost") from error
            why = f"was silent for {silence:g} s" if silent else "was lost in the middle of a request"
            raise Cut(f"the connection to {self.where} {why}") from error

    async def _opened(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._tunnel is not None and (there := await self._through(self._tunnel)) != self._socket:
                if self._http is not None:
                    await self._http.close()  # through an ssh that has ended
                self._socket, self._http = there, None
            if self._http is None:
                trust: ssl.SSLContext | aiohttp.Fingerprint | bool = True
                if self._fingerprint:
                    trust = aiohttp.Fingerprint(self._fingerprint)
                elif self._ca:
                    trust = await asyncio.to_thread(_trusting, self._ca)
                # A connection serves one request: an idle one that the daemon's restart broke would fail the next.
                self._http = aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(self._socket, force_close=True, limit=0)
                    if self._socket
                    else aiohttp.TCPConnector(force_close=True, limit=0, ssl=trust),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    headers={"Authorization": f"Bearer {self._key}"} if self._key else None,
                )
            return self._http

    def _advice(self, error: Exception) -> str:
        """A sentence a person can act on, for a connection that did not come about."""
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            why = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
            return (
                f"the certificate of {self.where} is not trusted ({why}); "
                "name its CA file (OUTRIDER_CA) or its fingerprint (OUTRIDER_FINGERPRINT)"
            )
        if isinstance(error, aiohttp.ServerFingerprintMismatch):
            return f"the certificate of {self.where} is another one: its fingerprint is {error.got.hex()}"
        if isinstance(error, aiohttp.ClientConnectorSSLError):
            return f"{self.where} does not answer with TLS; if that is right, write http://"
        cause = getattr(error, "os_error", None) or error
        if not self._socket or self._tunnel is not None:
            return f"cannot connect to {self.where}: {_reason(cause)}"
        match cause:
            case FileNotFoundError():
                return f"no daemon listens on {self._socket}; start one, or name another socket"
            case ConnectionRefusedError():
                return f"the daemon that listened on {self._socket} has ended; start it again"
            case PermissionError():
                return f"not allowed to open {self._socket}: it belongs to another user"
            case _:
                return f"cannot connect to {self._socket}: {_reason(cause)}"

    async def _failure(self, answer: aiohttp.ClientResponse) -> ApiFailure:
        data = await answer.content.read(MAX_ERROR)
        try:
            message = msgspec.json.decode(data, type=api.ApiError).error.message
        except (msgspec.DecodeError, UnicodeDecodeError):
            message = f"{self.where} answered {answer.status} {answer.reason or ''}".rstrip()
        after = answer.headers.get("Retry-After", "")
        return ApiFailure(answer.status, message, float(after) if after.isdecimal() else 0.0)


def _reason(cause: Exception) -> str:
    """Why a connection failed, without the addresses that asyncio names in its own way."""
    number = getattr(cause, "errno", None) or 0
    return os.strerror(number) if number > 0 else str(getattr(cause, "strerror", None) or cause)


def _digest(fingerprint: str) -> bytes:
    plain = re.sub(r"^sha-?256[:=]|[:\s]", "", fingerprint.strip().lower())
    if not re.fullmatch(r"[0-9a-f]{64}", plain):
        raise ValueError("a fingerprint is a certificate's SHA-256: 64 hex digits, with or without colons")
    return bytes.fromhex(plain)


def _trusting(ca: str) -> ssl.SSLContext:
    """Trust in the authorities of a PEM file alone. Blocks. Raises Unreachable."""
    try:
        made = ssl.create_default_context(cafile=ca)
        # Python 3.13 asks of a private authority what few write into it.
        made.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return made
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise Unreachable(f"the CA file {ca} cannot be used: {why}") from error


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE):
        yield body[start : start + PIECE]
