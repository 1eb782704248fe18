"""Decide whether a request is tried again, and when."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from daemon.provider.base import ProviderError
from daemon.provider.errors import ONCE

LATEST: Final = 253402300799.0  # the last second that a date has a name for
LEAST: Final = 0.1  # seconds: full jitter may come out at nothing, and a tight loop helps nobody


class RetryPolicy(Struct, frozen=True):
    """How long a request is tried. Times in seconds; clock, sleep and chance can be put in by a test.

    tries: in all. total: from the first failure to the last try. first, most: the wait doubles from one to the
    other and is drawn evenly from nothing up to it. longest: what a provider may ask to wait. stall: without an
    event in a stream. connect: to reach the provider.
    """

    tries: int = 6
    total: float = 600.0
    first: float = 1.0
    most: float = 30.0
    longest: float = 300.0
    stall: float = 300.0
    connect: float = 10.0
    random: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    now: Callable[[], float] = time.time

    def wait(self, error: ProviderError, tried: int, elapsed: float) -> float:
        """Seconds until the next try, after `tried` of them and `elapsed` seconds since the first failure.

        Raises ProviderError, in the words of `error` and why nothing more is tried.
        """
        if not error.retryable or (error.code in ONCE and tried > 1):
            raise error
        asked = error.retry_after or 0.0
        if asked > self.longest:
            when = datetime.fromtimestamp(min(self.now() + asked, LATEST), UTC)
            raise final(
                error,
                f"the provider asks to wait {asked:.0f} s, until {when:%Y-%m-%d %H:%M:%S} UTC; retry then",
            )
        if tried >= self.tries:
            raise final(error, f"tried {tried} times")
        jitter = self.random() * min(self.most, self.first * 2.0 ** (tried - 1))
        wait = max(LEAST, asked, jitter)
        if elapsed + wait > self.total:
            raise final(error, f"tried {tried} times in {elapsed:.0f} s")
        return wait


def final(error: ProviderError, why: str) -> ProviderError:
    """`error` as the last word: its message says why nothing more is tried."""
    return ProviderError(
        f"{error.message}; {why}",
        code=error.code,
        status=error.status,
        retryable=error.retryable,
        retry_after=error.retry_after,
        request_id=error.request_id,
    )
