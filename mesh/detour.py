"""The relay's end at a worker: a UDP socket that its WireGuard takes for the harness, and the WebSocket behind it."""

import asyncio
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import aiohttp
import structlog
from aiohttp import WSMsgType
from msgspec import Struct

from mesh import datagrams, tunnel
from mesh.datagrams import Address, Port, Waiting

HEARTBEAT: Final = 20.0  # seconds between pings; proxies forget a connection after 60
HOLD: Final = (
    1.0  # seconds an initiation waits for an answer by the direct way; WireGuard's next try is after 5
)

log = structlog.get_logger("mesh.relay")

State = Literal["dialing", "up", "down"]


class Timing(Struct, frozen=True, kw_only=True):
    """Seconds."""

    dial: float = 10.0
    first: float = 1.0  # until it dials again; twice as long each time
    most: float = 30.0
    steady: float = 30.0  # a connection that held so long was a good one: the next wait is the first
    hold: float = HOLD
    ping: float = HEARTBEAT


class Standing(Struct, frozen=True, kw_only=True):
    """How the relay's connection stands. `reason`: why it is down; `since`: seconds since the epoch.

    `away`: the seconds since a connection failed or ended, 0 while it is up and before anything has failed.
    """

    state: State
    since: float
    away: float = 0.0
    reason: str = ""
    proxy: str = ""
    dialed: int = 0
    up_packets: int = 0
    up_bytes: int = 0
    down_packets: int = 0
    down_bytes: int = 0
    dropped: int = 0


class Detour:
    """Use `detour`. Its `address` is the endpoint to give to WireGuard."""

    def __init__(
        self,
        url: str,
        sock: socket.socket,
        *,
        wireguard: int = 0,
        environ: Mapping[str, str],
        context: ssl.SSLContext | None = None,
        timing: Timing,
        changed: Callable[[], None],
    ) -> None:
        self._url = url
        self._environ = environ
        self._context = context
        self._timing = timing
        self._changed = changed
        self._only = wireguard
        self._wireguard: Address | None = None
        self._waiting = Waiting()
        self._probe: _Probe | None = None
        self._state: State = "dialing"
        self._since = time.time()
        self._lost: float | None = None
        self._reason = ""
        self._proxy = ""
        self._dialed = 0
        self._up = [0, 0]
        self._down = [0, 0]
        self._dropped = 0
        self._port = Port(sock, self._heard)
        self.address = self._port.address

    def standing(self) -> Standing:
        """How it stands now."""
        return Standing(
            state=self._state,
            since=self._since,
            away=0.0 if self._lost is None else time.monotonic() - self._lost,
            reason=self._reason,
            proxy=self._proxy,
            dialed=self._dialed,
            up_packets=self._up[0],
            up_bytes=self._up[1],
            down_packets=self._down[0],
            down_bytes=self._down[1],
            dropped=self._dropped + self._waiting.dropped + self._port.unsent,
        )

    async def probe(self, *to: Address) -> Address | None:
        """The first of these by which a handshake with the harness comes about by UDP; waits for WireGuard's next one.

        The initiation goes there alone at first, and the usual way if nothing responded in a second. So nothing that
        is relayed is lost or doubled, and a response is the hub's own. For one caller at a time.
        """
        self._end_probe()
        probe = _Probe(to, self._timing.hold, back=self._to_wireguard, on=self._waiting.put)
        self._probe = probe
        try:
            return await asyncio.shield(probe.answer)
        except asyncio.CancelledError:
            self._end_probe()
            raise

    async def run(self) -> None:
        """Keep a connection up until cancelled."""
        wait = self._timing.first
        while True:
            self._set("dialing", self._reason)
            self._dialed += 1
            begun = time.monotonic()
            reason = await self._once()
            wait = self._timing.first if time.monotonic() - begun >= self._timing.steady else wait
            log.info("relay is down", reason=reason)
            self._set("down", reason)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - so that not all come back at once
            wait = min(2 * wait, self._timing.most)

    def close(self) -> None:
        """Close the sockets."""
        self._end_probe()
        self._port.close()

    def _set(self, state: State, reason: str) -> None:
        self._state, self._reason, self._since = state, reason, time.time()
        if state == "up":
            self._lost = None
        elif state == "down" and self._lost is None:
            self._lost = time.monotonic()
        self._changed()

    async def _once(self) -> str:
        """One connection from its dialing to its end; returns why it ended."""
        url = urlsplit(self._url)
        secure = url.scheme in ("https", "wss")
        host, port = url.hostname or "", url.port or (443 if secure else 80)
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if secure and self._context is None:
                self._context = await asyncio.to_thread(ssl.create_default_context)
            proxy = tunnel.proxy_for(host, port, self._environ)
            self._proxy = str(proxy or "")
            connector: aiohttp.BaseConnector
            if proxy is None:
                connector = aiohttp.TCPConnector(ssl=self._context or True, force_close=True)
            else:
                connector = tunnel.Tunnel(proxy, self._context)
            async with aiohttp.ClientSession(connector=connector) as client:
                async with asyncio.timeout(self._timing.dial):
                    ws = await client.ws_connect(
                        self._url,
                        heartbeat=self._timing.ping,
                        timeout=aiohttp.ClientWSTimeout(ws_close=2.0),
                        max_msg_size=datagrams.MAX + 1,
                        headers={"User-Agent": "outrider"},
                    )
                async with ws:
                    return await self._carry(ws)
        except tunnel.TunnelError as error:
            return str(error)
        except TimeoutError:
            return f"{where} did not answer within {self._timing.dial:g} s"
        except aiohttp.WSServerHandshakeError as error:
            return f"{where} has no relay for us: it answers {error.status}"
        except aiohttp.ClientConnectorCertificateError as error:
            return f"{where} has no certificate that this machine trusts: {error.certificate_error}"
        except (aiohttp.ClientError, OSError) as error:
            return f"{where} cannot be reached: {_why(error)}"

    async def _carry(self, ws: aiohttp.ClientWebSocketResponse) -> str:
        self._set("up", "")
        async with asyncio.TaskGroup() as group:
            sender = group.create_task(self._send(ws), name="relay to the harness")
            try:
                return await self._receive(ws)
            finally:
                sender.cancel()

    async def _receive(self, ws: aiohttp.ClientWebSocketResponse) -> str:
        while True:
            message = await ws.receive()
            match message.type:
                case WSMsgType.BINARY if datagrams.kind(message.data):
                    self._down[0] += 1
                    self._down[1] += len(message.data)
                    self._to_wireguard(message.data)
                case WSMsgType.BINARY | WSMsgType.TEXT:
                    self._dropped += 1
                case WSMsgType.ERROR:
                    return f"the connection broke: {_why(message.data)}"
                case WSMsgType.CLOSE:
                    return f"the harness ended it: {message.extra or message.data}"
                case _:
                    error = ws.exception()
                    return f"the connection broke: {_why(error)}" if error else "the connection was closed"

    async def _send(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        while not ws.closed:
            packet = await self._waiting.get()
            try:
                await ws.send_bytes(packet)
            except ConnectionError:  # told where it is received
                return
            self._up[0] += 1
            self._up[1] += len(packet)

    def _heard(self, packet: bytes, source: Address) -> None:
        kind = datagrams.kind(packet)
        if not kind or (self._only and source[1] != self._only):
            self._dropped += 1
            return
        self._wireguard = source
        if kind != datagrams.INITIATION or self._probe is None or not self._probe.ask(packet):
            self._waiting.put(packet)

    def _to_wireguard(self, packet: bytes) -> None:
        if self._wireguard is not None:  # else it has sent nothing, so this answers nothing
            self._port.send(packet, self._wireguard)

    def _end_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None


class _Probe:
    """One try of direct ways. What comes by them goes `back` to WireGuard; a packet in vain goes `on` as usual."""

    def __init__(
        self,
        to: Sequence[Address],
        hold: float,
        back: Callable[[bytes], None],
        on: Callable[[bytes], None],
    ) -> None:
        self._hold = hold
        self._back = back
        self._on = on
        self._held: bytes | None = None
        self._asked = b""
        self._timer: asyncio.TimerHandle | None = None
        self.answer: asyncio.Future[Address | None] = asyncio.get_running_loop().create_future()
        self._ports: list[Port] = []
        for each in to:
            with suppress(OSError):  # no way there
                self._ports.append(Port(datagrams.udp("", each), partial(self._heard, each)))
        if not self._ports:
            self._in_vain()

    def ask(self, initiation: bytes) -> bool:
        """Send this one everywhere, if none was sent; False when it went nowhere, or was none of ours."""
        if self.answer.done() or self._asked or not [port for port in self._ports if port.send(initiation)]:
            return False
        self._asked = datagrams.sender(initiation)
        self._held = initiation
        self._timer = asyncio.get_running_loop().call_later(self._hold, self._in_vain)
        return True

    def close(self) -> None:
        """End it; what it held goes on."""
        self._in_vain()
        for port in self._ports:
            port.close()

    def _heard(self, to: Address, packet: bytes, _: Address) -> None:
        kind = datagrams.kind(packet)
        if not kind:
            return
        if (
            kind == datagrams.RESPONSE
            and datagrams.receiver(packet) == self._asked
            and not self.answer.done()
        ):
            self._held = None
            self.answer.set_result(to)
        self._back(packet)  # from now on the hub may send everything here

    def _in_vain(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._held is not None:
            self._on(self._held)
            self._held = None
        if not self.answer.done():
            self.answer.set_result(None)


def _why(error: Any) -> str:
    """An error in a few words."""
    inner = getattr(error, "os_error", None) or error
    if isinstance(inner, OSError):
        return tunnel.said(inner)
    return str(inner) or type(inner).__name__


@asynccontextmanager
async def detour(
    url: str,
    *,
    wireguard: int = 0,
    environ: Mapping[str, str],
    sock: socket.socket | None = None,
    context: ssl.SSLContext | None = None,
    timing: Timing | None = None,
    changed: Callable[[], None] = lambda: None,
) -> AsyncIterator[Detour]:
    """A way to the harness through its relay at `url` (ws:// or wss://), kept up for as long as the context is open.

    `wireguard`: the port of this machine's WireGuard, 0 to take whoever speaks last. `sock`: a bound UDP socket that
    it can reach, where loopback is not it. `environ`: HTTPS_PROXY and the like. `changed` is called when the standing
    changes. Raises OSError where no UDP socket can be had.
    """
    made = Detour(
        url,
        sock if sock is not None else datagrams.udp("127.0.0.1"),
        wireguard=wireguard,
        environ=environ,
        context=context,
        timing=timing or Timing(),
        changed=changed,
    )
    running = asyncio.create_task(made.run(), name="relay")  # noqa: TID251 - owned by this context
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.wait([running])
        made.close()
        if not running.cancelled():
            running.result()  # never swallow what ended it
