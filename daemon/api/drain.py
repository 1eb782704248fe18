"""How a daemon leaves: told to go, it says so, takes what still comes for a while, lets turns end, and goes."""

import asyncio
from collections.abc import Callable

import structlog

from daemon.api.turning import Turns
from daemon.harness.errors import Unready

log = structlog.get_logger("daemon.api")


class Drain:
    """The state. `leaving`: /readyz says 503. `closed`: no new session and no new turn is taken.

    `hold` is called when it closes: what is posted from then on is kept for the next start.
    """

    def __init__(self, turns: Turns, hold: Callable[[], None]) -> None:
        self.turns = turns
        self._hold = hold
        self.leaving = False
        self.closed = False

    def check(self) -> None:
        """Raises Unready where nothing new is taken."""
        if self.closed:
            raise Unready(
                "the daemon is draining, and begins nothing new: no session, turn or retry; it does after its restart"
            )

    async def leave(self, delay: float, grace: float) -> None:
        """Go through it: `delay` seconds in which requests are still taken, then `grace` for turns to end."""
        self.leaving = True
        if delay:
            log.info("draining", still_taking=delay)
            await asyncio.sleep(delay)
        self.closed = True
        self._hold()
        if not self.turns.running:
            return
        log.info("draining", turns=self.turns.running, grace=grace)
        try:
            async with asyncio.timeout(grace):
                await self.turns.over()
        except TimeoutError:
            log.warning("turns are cut; they go on at the next start", turns=self.turns.running)
