"""The way out through an HTTP proxy: which one the environment names, and connections through it by CONNECT.

aiohttp's own client takes CONNECT for https only and looks for `ws_proxy`, which nobody sets; plain WebSockets
through a proxy need the same tunnel.
"""

import asyncio
import base64
import os
import re
import socket
import ssl
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import aiohttp
from msgspec import Struct

_NAMES: Final = ("https_proxy", "http_proxy", "all_proxy")  # who proxies https knows CONNECT
_HEAD: Final = 16 << 10  # bytes of a proxy's answer
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})([^\r\n]*)")


class TunnelError(Exception):
    """The proxy is not usable or lets the connection not through; the message says which proxy, and why."""


class Proxy(Struct, frozen=True):
    """An HTTP proxy; `authorization` is the header's value, empty for none."""

    host: str
    port: int
    authorization: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Proxy({str(self)!r})"


def proxy_for(host: str, port: int, environ: Mapping[str, str]) -> Proxy | None:
    """The proxy that `environ` names for connections to there (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY; NO_PROXY).

    Raises TunnelError for one that cannot be used.
    """
    for name in _NAMES:
        said = environ.get(name) or environ.get(name.upper())
        if said:
            break
    else:
        return None
    exempt = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    if any(_matches(entry.strip().lower(), host.lower(), port) for entry in exempt.split(",")):
        return None
    return _parse(said, name.upper())


def _matches(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY means this host: `*`, a name and all below it, an address or network, :PORT."""
    if entry.endswith(f":{port}") and ("." in entry or entry.startswith("[") or entry.count(":") == 1):
        entry = entry.removesuffix(f":{port}")
    entry = entry.strip("[]")
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:  # one of them is a name
        name = entry.lstrip("*.")
        return entry == "*" or (name != "" and (host == name or host.endswith(f".{name}")))


def _parse(said: str, name: str) -> Proxy:
    try:
        url = urlsplit(said if "://" in said else f"http://{said}")
        host, port = url.hostname, url.port or 3128
    except ValueError:
        host, url, port = None, urlsplit(""), 0
    if not host or url.scheme != "http":
        raise TunnelError(f"{name}: the relay goes through http://HOST:PORT proxies only")
    if url.username is None:
        return Proxy(host, port)
    secret = f"{unquote(url.username)}:{unquote(url.password or '')}".encode()
    return Proxy(host, port, f"Basic {base64.b64encode(secret).decode()}")


class Tunnel(aiohttp.BaseConnector):
    """Connections for aiohttp's client that go through a proxy by CONNECT, whatever the URL's scheme.

    `context`: what a connection to https or wss is made with.
    """

    def __init__(self, proxy: Proxy, context: ssl.SSLContext | None) -> None:
        super().__init__(force_close=True)
        self._proxy = proxy
        self._context = context

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own
    ) -> Any:
        host = req.url.raw_host or ""
        sock = await through(self._proxy, host, req.url.port or 80)
        secure = self._context if req.is_ssl() else None
        try:
            _, protocol = await self._loop.create_connection(
                self._factory, sock=sock, ssl=secure, server_hostname=host if secure else None
            )
        except BaseException:
            sock.close()
            raise
        return protocol


async def through(proxy: Proxy, host: str, port: int) -> socket.socket:
    """A socket that is connected to host:port through the proxy. Raises TunnelError."""
    try:
        sock = await _connect(proxy)
    except OSError as error:
        raise TunnelError(f"the proxy {proxy} is not reachable: {said(error)}") from error
    try:
        await _ask(sock, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except OSError as error:
        sock.close()
        raise TunnelError(f"the proxy {proxy} broke the connection: {said(error)}") from error
    except BaseException:
        sock.close()
        raise
    return sock


def said(error: OSError) -> str:
    """An error in the system's words; asyncio's own are long."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


async def _connect(proxy: Proxy) -> socket.socket:
    loop = asyncio.get_running_loop()
    failed: OSError = OSError("it has no address")
    for family, kind, number, _, address in await loop.getaddrinfo(
        proxy.host, proxy.port, type=socket.SOCK_STREAM
    ):
        sock = socket.socket(family, kind, number)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed


async def _ask(sock: socket.socket, proxy: Proxy, target: str) -> None:
    loop = asyncio.get_running_loop()
    authorization = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    await loop.sock_sendall(
        sock, f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n".encode()
    )
    head = b""
    while not (ended := head.find(b"\r\n\r\n") + 1):
        got = await loop.sock_recv(sock, _HEAD - len(head))
        if not got:
            raise TunnelError(f"the proxy {proxy} gives no answer that is HTTP")
        head += got
    status = _STATUS.match(head)
    if status is None or ended + 3 != len(head):
        raise TunnelError(f"the proxy {proxy} gives no answer that is HTTP")
    if status[1][:1] != b"2":
        why = (status[1] + status[2]).decode("ascii", "replace").strip()
        more = "; put NAME:PASSWORD@ into HTTPS_PROXY" if status[1] == b"407" else ""
        raise TunnelError(f"the proxy {proxy} does not let through to {target}: {why}{more}")
