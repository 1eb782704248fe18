"""Where machines join: the join listener and the relay on it, kept open, with what is installed from there kept new."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

import structlog
from msgspec import Struct

from mesh import keys, listener, reachable, script
from mesh.address import Place
from mesh.join import Offer, Reply
from mesh.listener import ListenError, Offered
from mesh.parts import Daemon, Options
from mesh.relay import Counts, Relay
from mesh.script import ScriptError
from mesh.store import Store

FIRST_WAIT: Final = 1.0  # seconds before a port that could not be had is tried again; doubled each time
LONGEST_WAIT: Final = 60.0
LOOPBACK: Final = "127.0.0.1"  # where the relay reaches our own WireGuard

log = structlog.get_logger("mesh.entrance")


class _Open(Struct, frozen=True):
    """The listener, while it is open."""

    stack: AsyncExitStack
    addresses: tuple[str, ...]
    relay: Relay | None


class Entrance:
    """One hub's. `hosts`: this machine's own, blocks for a moment; `now` in seconds.

    `joined` is awaited before who joined is answered.
    """

    def __init__(
        self,
        options: Options,
        daemon: Daemon,
        hosts: Callable[[], Sequence[str]],
        now: Callable[[], float],
        joined: Callable[[Reply], Awaitable[None]],
    ) -> None:
        self._options = options
        self._daemon = daemon
        self._hosts = hosts
        self._now = now
        self._joined = joined
        self._here: tuple[str, ...] = ()
        self._open: _Open | None = None
        self._offered: Offered | None = None
        self._wait, self._again = FIRST_WAIT, 0.0
        self.tries = 0  # that failed
        self.why = ""  # it is not open
        self.lacks = ""  # why what is installed from there is not there

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens, with the ports that were picked; none while it is not open."""
        return () if self._open is None else self._open.addresses

    @property
    def relay(self) -> Relay | None:
        """The relay, while it is open."""
        return None if self._open is None else self._open.relay

    @property
    def counts(self) -> Counts | None:
        """What went through the relay."""
        return None if self.relay is None else self.relay.counts()

    def offer(self) -> Offer:
        """What every machine that joins is told. May be called in any thread."""
        options = self._options
        return Offer(
            harness=options.name,
            endpoints=reachable.places(options.endpoints or self._here, options.port),
            control=options.control,
            mtu=options.mtu,
            relay=options.relay,
        )

    def places(self) -> tuple[Place, ...]:
        """What tokens name."""
        options = self._options
        hosts = options.join_endpoints or [place.host for place in self.offer().endpoints]
        # Without a port of its own yet, nobody asks for these; it only has to be one.
        port = _port(self.addresses[0] if self.addresses else options.join_listen[0]) or 1
        return tuple(dict.fromkeys(reachable.places(hosts, port)))

    async def keep(self, store: Store, at_once: bool) -> None:
        """Open it where it is not, `at_once` or when it is time to try again; keep new what it offers."""
        try:
            self._here = tuple(await asyncio.to_thread(self._hosts))
            if self._open is None and not at_once and self._now() < self._again:
                return
            await self.renew(store)
            if self._open is None:
                self._open = await self._listen(store)
                await self.renew(store)  # with the port that was picked
                self.why, self._wait = "", FIRST_WAIT
                log.info("machines can join", at=list(self.addresses))
        except (ListenError, ScriptError) as error:
            self.tries += 1
            self._again = self._now() + self._wait
            self._wait = min(2 * self._wait, LONGEST_WAIT)
            if str(error) != self.why:
                log.warning("no machine can join", why=str(error))
            self.why = str(error)

    async def renew(self, store: Store) -> bytes:
        """Have what is offered be what there is now; the script. Raises ScriptError."""
        goods = await self._daemon.goods()
        trusted = keys.fingerprint(store.keys.join.public)
        text = await asyncio.to_thread(script.read)
        made = script.filled(text, trusted, self.places(), goods.wheel, goods.wheelhouse, goods.why)
        self.lacks = goods.why
        self._offered = Offered(script=made, wheel=goods.wheel, wheelhouse=goods.wheelhouse)
        return made

    async def close(self) -> None:
        """Close it; it may be opened again."""
        opened, self._open = self._open, None
        self.why = self.lacks = ""
        self._wait, self._again = FIRST_WAIT, 0.0
        if opened is not None:
            await opened.stack.aclose()

    async def _listen(self, store: Store) -> _Open:
        options = self._options
        relay = Relay((LOOPBACK, options.port)) if options.relay else None
        stack = AsyncExitStack()
        addresses = await stack.enter_async_context(
            listener.listening(
                options.join_listen, store.hub, self._now_offered, relay=relay, joined=self._joined
            )
        )
        return _Open(stack, addresses, relay)

    def _now_offered(self) -> Offered:
        assert self._offered is not None, "it is there before the listener is"
        return self._offered


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
