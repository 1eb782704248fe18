"""How many connections the API has room for, by the descriptors that the process may open."""

import asyncio
import resource
import time
from typing import Any, Final

import structlog

SHARE: Final = 0.6  # of the descriptors: the rest is for sessions' files, providers and workers
LOCAL: Final = (
    0.25  # of the connections are kept for the Unix socket: nobody on the network shuts the owner out
)
QUIET: Final = 60.0  # seconds between two lines in the log that say the same

log = structlog.get_logger("daemon.api")


def room() -> int:
    """Connections that this process has room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else int(soft * SHARE)


class Crowd:
    """Counts connections. `most`: all there may be."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0
        self._said = -QUIET

    def enter(self, remote: bool) -> bool:
        """One more connection; false when it is one too many. `leave` for each, also for those."""
        self._open += 1
        most = int(self._most * (1 - LOCAL)) if remote else self._most
        if self._open <= most:
            return True
        if (now := time.monotonic()) - self._said >= QUIET:
            self._said = now
            log.error("connections are refused: there are too many", open=self._open - 1, most=most)
        return False

    def leave(self) -> None:
        """A connection has ended."""
        self._open -= 1


class Complaints:
    """A loop's exception handler that says once in a while that no connection can be accepted, as asyncio says it
    thousands of times a second.
    """

    def __init__(self) -> None:
        self._said = -QUIET

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "accept() out of system resource" not in context.get("message", ""):
            loop.default_exception_handler(context)
        elif (now := time.monotonic()) - self._said >= QUIET:
            self._said = now
            why = context.get("exception")
            log.error(
                "no connection can be accepted; raise the limit of open files (ulimit -n)", why=str(why)
            )
