"""What an interpreter's environment is to its runs, and how one of them ends, with its output."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from daemon.protocol import frames
from daemon.worker import output
from daemon.worker import pump as pumping
from daemon.worker.pump import Pump
from daemon.worker.reaping import Ended, Process, Reaper

DRAIN_FOR: Final = (
    0.2  # seconds that output is waited for after the end mark, while something may still write
)
DRAIN_EVERY: Final = 0.02
DRAIN_QUIET: Final = 0.1
AT_ONCE: Final = 1  # milliseconds to wait for a run's end without the loop: enough for what starts no program

Spawn = pumping.Spawn


class Ending(Struct, frozen=True):
    """How a run ended. `exit` None: it was stopped. `died`: why the environment ended with it, empty if it lives."""

    exit: int | None
    died: str = ""
    stopped: Literal["", "interrupt", "timeout"] = ""
    notes: tuple[str, ...] = ()
    images: tuple[frames.Image, ...] = ()


class Stop:
    """Somebody's wish that a run ends; made once, awaited where the run is."""

    def __init__(self) -> None:
        self.wanted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self) -> None:
        if not self.wanted.done():
            self.wanted.set_result(None)


class Environment(Protocol):
    """One interpreter of one session, kept from run to run."""

    died: str  # why it takes no more runs; empty while it does

    @property
    def gone(self) -> bool:
        """Whether no process of it is left."""

    async def start(self) -> tuple[str, ...]:
        """Bring the interpreter up; notes for the model. Raises Refusal when it does not come up."""

    def is_free(self) -> bool:
        """Whether a run can begin without anything to be waited for; then it is to be begun at once."""

    def begin(self, code: Path, sink: output.Sink, on_output: Callable[[], None]) -> None:
        """Begin a run in an environment that is free; `run` waits for its end, where `at_once` does not bring it."""

    def at_once(self, sink: output.Sink) -> Ending | None:
        """How the run that was just begun has ended, if it does at once and leaves nothing to be waited for.

        Blocks for AT_ONCE, and again for each line that the interpreter says meanwhile, few of them.
        """

    async def run(
        self,
        code: Path,
        sink: output.Sink,
        *,
        limit: float,
        stop: Stop,
        on_output: Callable[[], None],
        begun: bool = False,
    ) -> Ending:
        """Run a file of code to its end, the time `limit` (seconds) or the stop; one run at a time.

        Raises Refusal where the interpreter does not accept the code: nothing was run then.
        """

    async def kill(self, reason: str) -> Ended:
        """End the interpreter and every process that came of it; may be called at any time, also during `start`."""


async def first_of(*futures: asyncio.Future[Any], within: float | None = None) -> None:
    """Wait until one of the futures is done or `within` seconds are over; they are left as they are."""
    for future in futures:
        if future.done():
            return
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = None if within is None else loop.call_later(within, wake)
    for future in futures:
        future.add_done_callback(wake)
    try:
        await waiter
    finally:
        if timer:
            timer.cancel()
        for future in futures:
            future.remove_done_callback(wake)


async def drained(pump: Pump, reaper: Reaper) -> tuple[Process, ...]:
    """Wait for output after a run's end, while new processes can print and at most DRAIN_FOR; new ones that live.

    Output that goes through another process (`exec > >(tee log)`) is waited for until there is none for DRAIN_QUIET.
    """
    if reaper.is_alone():
        await pump.flush()
        return ()
    loop = asyncio.get_running_loop()
    give_up = loop.time() + DRAIN_FOR
    copied, quiet_at = pump.copied, loop.time() + DRAIN_QUIET
    while True:
        living = await reaper.new()
        await pump.flush()
        now = loop.time()
        if pump.copied != copied:
            copied, quiet_at = pump.copied, now + DRAIN_QUIET
        if now >= give_up or not (reaper.printing or (reaper.detour and now < quiet_at)):
            return living
        await asyncio.sleep(DRAIN_EVERY)


def how_it_ended(program: str, status: int | None, by: str = "") -> str:
    """A sentence on the end of an interpreter: `status` as waitstatus_to_exitcode has it, None unknown.

    `by` says what makes it end with a status.
    """
    match status:
        case None:
            return f"{program} was killed together with the process that held it"
        case number if number < 0:
            return f"{program} was killed by {signal.Signals(-number).name}"
        case number:
            return f"{program} ended with status {number}" + (f" ({by})" if by else "")


def exit_of(status: int | None) -> int | None:
    """The exit that a shell would report for that status."""
    return 128 - status if status is not None and status < 0 else status


def pipe_pair() -> tuple[int, int]:
    """A pipe, its read end first; both close on exec."""
    return os.pipe2(os.O_CLOEXEC)
