"""The relay's end at the harness: WebSockets that carry packets to and from the hub's own WireGuard, nothing else.

Anybody can reach it, so it holds nothing for anybody: what is not shaped like WireGuard ends the connection, and one
through which WireGuard answers nothing ends soon, as WireGuard answers only who knows its key. No worker's packets
wait for another's.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

import structlog
from aiohttp import WSCloseCode, WSMsgType, web
from msgspec import Struct

from mesh import datagrams
from mesh.datagrams import Address, Allowance, Port, Waiting

PATH: Final = "/mesh/relay"
SERVER: Final = "outrider"  # without a version: what listens to anybody does not say how old it is
BUFFER: Final = 16 << 10  # bytes on their way to the system before packets wait, where the oldest are dropped
CLOSING: Final = 2.0  # seconds a peer has to say that it closes too
TURN: Final = 64  # messages of one connection that are taken up before others have their turn
SMALL: Final = 64  # bytes that any message counts as: reading one costs so much, however little is in it
QUIET: Final = 60.0  # seconds between two lines in the log that say the same

log = structlog.get_logger("mesh.relay")


class Limits(Struct, frozen=True, kw_only=True):
    """What connections to the relay may take up; times in seconds, `rate` in bytes a second, each way."""

    most: int = 512
    each: int = 64  # of one address: a site's workers may all come from one
    rate: float = 8 << 20
    initiations: float = 1.0  # handshakes begun a second, five at once; a worker begins one in five seconds
    prove: float = 15.0  # until WireGuard has to have answered something: three tries of a handshake
    idle: float = (
        300.0  # without an answer: a session's key is changed every two minutes, and that is answered
    )
    stall: float = 20.0  # that a peer may take nothing up
    ping: float = 20.0  # between two; proxies forget a connection after 60


class Counts(Struct, frozen=True, kw_only=True):
    """What went through since the start. `up`: to the harness. `dropped`: packets over a limit, or behind a stall."""

    connections: int
    opened: int
    refused: int
    hostile: int  # connections ended for what no WireGuard sends
    up_packets: int
    up_bytes: int
    down_packets: int
    down_bytes: int
    dropped: int


class Relay:
    """The connections of one hub, whose WireGuard listens on UDP at `hub`."""

    def __init__(
        self, hub: Address, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hub = hub
        self._limits = limits or Limits()
        self._clock = clock
        self._links: OrderedDict[int, _Link] = OrderedDict()  # the oldest first
        self._sums: Counter[str] = Counter()
        self._said = -QUIET

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Carry packets over this request's WebSocket until it ends, or refuse it."""
        if "Origin" in request.headers:  # a page in somebody's browser
            return _refusal(403, "the relay is not for browsers")
        ws = web.WebSocketResponse(
            timeout=CLOSING,
            autoping=False,
            heartbeat=self._limits.ping,
            compress=False,
            max_msg_size=datagrams.MAX + 1,
            writer_limit=BUFFER,
        )
        ws.headers["Server"] = SERVER
        if not ws.can_prepare(request):
            return _refusal(426, "the relay speaks WebSocket", Upgrade="websocket")
        where = source(request.remote or "")
        if (why := self._crowded(where)) is not None:
            return self._refuse(why)
        try:
            link = _Link(self._hub, where, self._limits, self._clock)
        except OSError as error:
            return self._refuse(f"no UDP socket could be made: {error.strerror}")
        self._links[id(link)] = link
        self._sums["opened"] += 1
        try:
            await ws.prepare(request)
            reason = await link.carry(ws)
            self._sums["hostile"] += reason.hostile
            log.info("relay connection ended", address=where, reason=reason.text)
            await ws.close(code=reason.code, message=reason.text.encode()[:120], drain=False)
        finally:
            link.close()
            del self._links[id(link)]
            self._sums.update(link.sums())
            if request.transport is not None and request.transport.get_write_buffer_size():
                request.transport.abort()  # closing would wait for a peer that does not read
        return ws

    def end(self) -> None:
        """End all connections: the harness is going down. Workers dial again."""
        for link in self._links.values():
            link.end(_Reason("the harness is going down", WSCloseCode.GOING_AWAY))

    def via(self, endpoint: Address) -> str | None:
        """The address of the worker whose packets reach WireGuard from this endpoint; None: not by the relay."""
        return next((link.where for link in self._links.values() if link.address == endpoint), None)

    def counts(self) -> Counts:
        """What went through, the open connections included."""
        sums = self._sums.copy()
        for link in self._links.values():
            sums.update(link.sums())
        names = [name for name in Counts.__struct_fields__ if name != "connections"]
        return Counts(connections=len(self._links), **{name: sums[name] for name in names})

    def _crowded(self, where: str) -> str | None:
        """Why there is no room for one more from there; makes some by ending whoever has shown nothing for longest."""
        links = [link for link in self._links.values() if not link.ended]
        own = [link for link in links if link.where == where]
        for there, most in ((own, self._limits.each), (links, self._limits.most)):
            if len(there) >= most:
                stranger = next((link for link in there if not link.answered), None)
                if stranger is None:
                    return f"the relay has {most} connections{' from this address' if there is own else ''}"
                stranger.end(_Reason("others want the place", WSCloseCode.TRY_AGAIN_LATER))
        return None

    def _refuse(self, why: str) -> web.Response:
        self._sums["refused"] += 1
        if (now := self._clock()) - self._said >= QUIET:
            self._said = now
            log.warning("relay connections are refused", why=why)
        return _refusal(503, why, **{"Retry-After": "10"})


class _Reason(Struct, frozen=True):
    """Why a connection ends."""

    text: str
    code: int = WSCloseCode.OK
    hostile: bool = False


_GONE: Final = _Reason("it closed the connection")


class _Link:
    """One connection and the UDP socket that is its own."""

    def __init__(self, hub: Address, where: str, limits: Limits, clock: Callable[[], float]) -> None:
        self.where = where
        self.answered = False
        self._limits = limits
        self._clock = clock
        now = clock()
        self._until = now + limits.prove
        self._sending = 0.0  # since when a packet is being sent
        self._up = Allowance(limits.rate, limits.rate, now)
        self._down = Allowance(limits.rate, limits.rate, now)
        self._begun = Allowance(limits.initiations, 5, now)
        self._waiting = Waiting()
        self._sums: Counter[str] = Counter()
        self._end: asyncio.Future[_Reason] = asyncio.get_running_loop().create_future()
        self._port = Port(datagrams.udp("", hub), self._heard)
        self.address = self._port.address

    async def carry(self, ws: web.WebSocketResponse) -> _Reason:
        """Carry packets both ways until there is a reason to end."""
        return await first(
            {
                "up": self._carry_up(ws),
                "down": self._carry_down(ws),
                "watch": self._watch(),
                "end": self._told(),
            }
        )

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self._end.done()

    def end(self, reason: _Reason) -> None:
        """Have `carry` return soon."""
        if not self._end.done():
            self._end.set_result(reason)

    def close(self) -> None:
        """Close the UDP socket."""
        self._port.close()
        self._end.cancel()

    def sums(self) -> dict[str, int]:
        """What went through it, by the names of Counts."""
        return {**self._sums, "dropped": self._sums["dropped"] + self._waiting.dropped + self._port.unsent}

    async def _told(self) -> _Reason:
        return await asyncio.shield(self._end)

    async def _carry_up(self, ws: web.WebSocketResponse) -> _Reason:
        taken = 0
        while True:
            message = await ws.receive()
            match message.type:
                case WSMsgType.BINARY:
                    packet: bytes = message.data
                    if not (kind := datagrams.kind(packet)):
                        return _hostile(
                            "it sent what is no packet of WireGuard", WSCloseCode.POLICY_VIOLATION
                        )
                    if kind != datagrams.INITIATION or self._begun.take(1, self._clock()):
                        if self._port.send(packet):
                            self._sums.update(up_packets=1, up_bytes=len(packet))
                    else:
                        self._sums["dropped"] += 1
                case WSMsgType.PING:
                    await ws.pong(message.data)
                case WSMsgType.PONG:
                    pass
                case WSMsgType.TEXT:
                    return _hostile("it sent a text", WSCloseCode.UNSUPPORTED_DATA)
                case WSMsgType.ERROR if ws.close_code not in (None, WSCloseCode.ABNORMAL_CLOSURE):
                    return _hostile(f"it broke the protocol: {message.data}", WSCloseCode.PROTOCOL_ERROR)
                case WSMsgType.ERROR:
                    return _Reason(f"the connection broke: {message.data}")
                case _:
                    return _GONE
            taken += 1
            wait = self._up.owe(max(SMALL, len(message.data)), self._clock())
            if wait or taken % TURN == 0:
                await asyncio.sleep(wait)  # what is not read stays with the peer

    def _heard(self, packet: bytes, _: Address) -> None:
        now = self._clock()
        if not datagrams.kind(packet) or not self._down.take(len(packet), now):
            self._sums["dropped"] += 1
            return
        self.answered = True
        self._until = now + self._limits.idle
        self._waiting.put(packet)

    async def _carry_down(self, ws: web.WebSocketResponse) -> _Reason:
        while True:
            packet = await self._waiting.get()
            self._sending = self._clock()
            try:
                await ws.send_bytes(packet)
            except ConnectionError:
                return _GONE
            self._sending = 0.0
            self._sums.update(down_packets=1, down_bytes=len(packet))

    async def _watch(self) -> _Reason:
        """Return when WireGuard has not answered, or the peer not read, for too long."""
        while True:
            now = self._clock()
            if now >= self._until:
                return _Reason("WireGuard answers nothing", WSCloseCode.POLICY_VIOLATION)
            if self._sending and now >= self._sending + self._limits.stall:
                return _Reason("it takes nothing up", WSCloseCode.POLICY_VIOLATION)
            await asyncio.sleep(min(self._until - now, self._limits.stall))


def _hostile(text: str, code: int) -> _Reason:
    return _Reason(text, code, hostile=True)


def _refusal(status: int, why: str, **headers: str) -> web.Response:
    answer = web.Response(status=status, text=f"{why}\n", headers={"Server": SERVER, **headers})
    answer.force_close()
    return answer


def source(address: str) -> str:
    """What connections from one place are counted under: an IPv4 address, or an IPv6 network of 64 bits."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return f"{IPv6Address(int(found) >> 64 << 64)}/64"


async def first(work: dict[str, Coroutine[Any, Any, _Reason]]) -> _Reason:
    """Run all and end the others when one returns; returns what it did."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each, name=f"relay {name}") for name, each in work.items()]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    return next(iter(done)).result()


@asynccontextmanager
async def relaying(hub: Address, limits: Limits | None = None) -> AsyncIterator[Relay]:
    """A relay to the WireGuard at `hub`; its connections end with the context."""
    relay = Relay(hub, limits)
    try:
        yield relay
    finally:
        relay.end()
