"""What every persistent interpreter does alike: takes runs, says how they end, is stopped rung by rung."""

import abc
import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

from daemon.protocol import frames
from daemon.worker import journal, output
from daemon.worker.environment import AT_ONCE, Ending, Spawn, Stop, drained, exit_of, first_of
from daemon.worker.program import Program
from daemon.worker.reaping import Ended, Process, ReaperGone
from daemon.worker.refusal import Refusal

ASK_EVERY: Final = (0.02, 0.2)  # seconds between two questions whether it is back: first, longest
TERM_AFTER: Final = 2.0  # seconds from SIGINT to SIGTERM
KILL_AFTER: Final = 4.0  # seconds from SIGINT to SIGKILL
KILL_EVERY: Final = 0.1
LAST_AFTER: Final = 5.0  # seconds from SIGINT to the end of the interpreter itself
GONE_WAIT: Final = 2.0  # seconds for what a stopped run leaves to go at SIGTERM
ANEW_WAIT: Final = 0.3  # seconds for what was ended to be there anew; pools of processes look each 0.1 s
ANEW: Final = 2  # times that an interpreter may start anew what was ended, before it is ended itself
INTERRUPTED: Final = 130  # what a shell reports for a command that SIGINT ended
GATE: Final = (
    signal.SIGURG
)  # ignored by what does not know it: it can never end an interpreter or what one became
NAMED: Final = 8  # processes that a note names
LINES: Final = range(3)  # times that the status pipe is looked at for an end that comes at once


class Interpreter(Program):
    """See environment.Environment. A program that is told of runs on its control pipe.

    It says `s` when the code of a run has begun (if it says so), and `N STATUS` when run N has ended. What the code
    reads and prints goes other ways than its pipes, so it can neither take an order nor look like an end.
    """

    STOPS: ClassVar[tuple[int, int, int]]  # signals that have it stop its code, one at each rung; 0 for none
    ACTS_BESIDE: ClassVar = True  # threads or handlers of it act while no code runs
    SAYS_BEGUN: ClassVar = True  # one that does not is sent the signal of a rung until the code is over

    def __init__(self, cwd: str, spawn: Spawn) -> None:
        super().__init__(cwd, spawn)
        loop = asyncio.get_running_loop()
        self._n = 0  # the run that is going, or was last
        self._hit = False  # whether the stop has ended anything that the run had started
        self._begun: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[int | None] = loop.create_future()
        self._settled = asyncio.Event()
        self._later = ""  # the file of what is printed between two runs; empty for none
        self._refused = ""  # why the run's code was not begun
        self._folder = ""  # of the run
        self._images: list[frames.Image] = []  # that the run has shown
        self._wake: asyncio.Future[None] | None = None  # of who waits for a run's end

    async def start(self) -> tuple[str, ...]:
        try:
            return await self._start()
        finally:
            self._settled.set()

    @abc.abstractmethod
    async def _start(self) -> tuple[str, ...]:
        """Come up by `_bring_up`; notes for the model. Raises Refusal."""

    @abc.abstractmethod
    def _order(self, number: int, code: Path) -> bytes:
        """What the control pipe is told to begin run `number`, that file of code."""

    @abc.abstractmethod
    def _heard(self, words: list[bytes]) -> None:
        """Take up a line of the status pipe that means something to this interpreter only."""

    def _halt(self) -> None:
        """Stop the code where a signal does not: one that began is over soon, or the ladder goes on."""

    def _remarks(self) -> tuple[str, ...]:
        """What else the model has to know of the run that has ended."""
        return ()

    def _ask(self) -> asyncio.Future[Any]:
        """A future that is done once a run that was stopped is over, and what stops it can do no harm any more."""
        return self._done

    def _refuse(self, message: bytes) -> None:
        """The driver does not accept the code of this run: hexadecimal UTF-8, why."""
        if not self._done.done():
            said = bytes.fromhex(message.decode()).decode("utf-8", "replace")
            self._refused = f"{self.NAME} does not accept this code, nothing was run: {said.strip()}"
            if not self._begun.done():
                self._begun.set_result(None)
            self._is_over(0)

    def _take_up(self, words: list[bytes]) -> None:
        match words:
            case [b"ready", *more] if not self._ready.done():
                self._ready.set_result(more)
            case [b"s"] if not self._begun.done():
                self._begun.set_result(None)
            case [number, status] if number == b"%d" % self._n and not self._done.done():
                self._is_over(int(status))
            case _:
                self._heard(words)

    def _broken_off(self) -> None:
        if not self._begun.done():
            self._begun.set_result(None)
        self._is_over(None)

    def _is_over(self, status: int | None) -> None:
        """The run has ended: whoever waits goes on at once, without another turn of the loop."""
        if not self._done.done():
            self._done.set_result(status)
        if self._wake and not self._wake.done():
            self._wake.set_result(None)

    async def _until_over(self, limit: float, stop: Stop) -> None:
        if self._done.done() or stop.wanted.done():
            return
        loop = asyncio.get_running_loop()
        wake = self._wake = loop.create_future()

        def give_up(_: object = None) -> None:
            if not wake.done():
                wake.set_result(None)

        timer = loop.call_later(limit, give_up)
        stop.wanted.add_done_callback(give_up)
        try:
            await wake
        finally:
            timer.cancel()
            stop.wanted.remove_done_callback(give_up)

    def begin(self, code: Path, sink: output.Sink, on_output: Callable[[], None]) -> None:
        assert self._pump is not None
        self._pump.switch_now(sink, on_output)
        self._give(code, sink)

    def at_once(self, sink: output.Sink) -> Ending | None:
        for _ in LINES:
            if self._done.done():
                break
            if self._status < 0 or not self._look.poll(AT_ONCE) or not self._read_status():
                return None
        pump = self._pump
        if not self._done.done() or self.died or self._refused or pump is None or not self._reaper.is_alone():
            return None
        if not pump.flush_now() or sink.size > output.RING:
            return None
        self._later = f"{self._folder}/{journal.LATER}"
        pump.switch_now(output.Sink(self._later, output.MAX_LATER))
        return Ending(exit=self._done.result(), notes=self._notes(()), images=tuple(self._images))

    def is_free(self) -> bool:
        return bool(not self.died and self._pump and self._pump.is_idle() and self._reaper.mark_now())

    def _give(self, code: Path, sink: output.Sink) -> None:
        self._n += 1
        self._refused = ""
        self._images = []
        self._folder = os.path.dirname(sink.path)
        if not self.died:
            loop = asyncio.get_running_loop()
            self._begun, self._done = loop.create_future(), loop.create_future()
            if not self.SAYS_BEGUN:
                self._begun.set_result(None)
        self._say(self._order(self._n, code))

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
        assert self._pump is not None
        if not begun:
            with contextlib.suppress(ReaperGone):  # then the interpreter is gone as well, and says so below
                await self._reaper.mark()
            await self._pump.switch(sink, on_output)
            self._give(code, sink)
        await self._until_over(limit, stop)
        notes: list[str] = []
        if self._done.done():
            stopped = False
        else:
            stopped = True
            self._hit = False
            await self._ladder()
            leftovers = await self._end_leftovers()
            if leftovers.ended:
                notes.append(f"ended with it: {listed(leftovers.ended)}")
            if leftovers.left:
                notes.append(f"could not be ended: {listed(leftovers.left)}")
        living = await drained(self._pump, self._reaper)
        if not self._refused:
            self._later = f"{os.path.dirname(sink.path)}/{journal.LATER}"
        await self._pump.switch(output.Sink(self._later, output.MAX_LATER))
        if self._refused:
            raise Refusal("syntax", self._refused)
        notes += self._notes(living)
        if self.died:
            notes.append(f"{self.died}: its variables and working directory are lost")
        exit = None
        if not stopped:
            exit = exit_of(self._reaper.exited.result()) if self.died else self._done.result()
        return Ending(
            exit=exit,
            died=self.died,
            stopped="" if not stopped else "interrupt" if stop.wanted.done() else "timeout",
            notes=tuple(notes),
            images=tuple(self._images),
        )

    def _notes(self, living: tuple[Process, ...]) -> tuple[str, ...]:
        """What the model has to know of a run whose output is in, with what it has left behind."""
        if not (going := self._going_on(living)):
            return self._remarks()
        said = f"still running in the background: {going}; what is printed until the next run goes to {self._later}"
        return (said, *self._remarks())

    def _going_on(self, living: tuple[Process, ...]) -> str:
        """What the run has left behind that goes on, in words; empty for nothing."""
        return listed(living)

    async def _ladder(self) -> None:
        """End the code: what stops it in the interpreter, and SIGINT, SIGTERM, SIGKILL to what it started.

        At last the interpreter itself.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._halt()
        if await self._within(TERM_AFTER, self._begun):
            for stop, number, until in zip(
                self.STOPS,
                (signal.SIGINT, signal.SIGTERM, signal.SIGKILL),
                (TERM_AFTER, KILL_AFTER, LAST_AFTER),
                strict=True,
            ):
                await self._signal(interpreter=stop, others=number)
                if await self._back(began + until, number, 0 if self.SAYS_BEGUN else stop):
                    return
        await self._fall(f"{self.NAME} did not come back from a run that was stopped, and was killed")

    async def _back(self, until: float, number: signal.Signals, stop: int) -> bool:
        """Whether the code is over before the loop's time `until`, and nothing that stops it is under way any more.

        What it starts meanwhile gets the signal `number` as well, the interpreter `stop` again; 0 for none.
        """
        loop = asyncio.get_running_loop()
        pause, longest = ASK_EVERY
        while True:
            answered = self._ask()
            await first_of(answered, self._reaper.exited, within=max(0.0, min(pause, until - loop.time())))
            if answered.done() or self._reaper.exited.done():
                if not self._done.done():
                    self._done.set_result(INTERRUPTED)
                return True
            if loop.time() >= until:
                return False
            await self._signal(interpreter=stop, others=number)
            pause = min(2 * pause, longest)

    async def _within(self, seconds: float, future: asyncio.Future[Any]) -> bool:
        await first_of(future, within=max(0.0, seconds))
        return future.done()

    async def _end_leftovers(self) -> Ended:
        """A stopped run's processes end with it, those that left its group too."""
        loop = asyncio.get_running_loop()
        asked = await self._signal(others=signal.SIGTERM)
        give_up = loop.time() + GONE_WAIT
        while stuck := {one.pid for one in await self._reaper.new()}:
            if loop.time() > give_up:
                break
            await asyncio.sleep(KILL_EVERY)
        swept = await self._reaper.sweep()
        self._hit = self._hit or bool(swept.ended)
        gone = [*asked, *swept.ended]
        times = 0
        while await self._starts_anew(stuck):
            times += 1
            if swept.left or times > ANEW:
                await self._fall(f"{self.NAME} started anew what was ended with its run, and was killed")
            swept = await self._reaper.sweep()
            gone += swept.ended
        left = {one.pid for one in swept.left}
        ended = {one.pid: one for one in gone if one.pid not in left}
        return Ended(tuple(ended.values()), swept.left)

    async def _signal(self, *, interpreter: int = 0, others: int) -> tuple[Process, ...]:
        """Signal the interpreter of a run that is stopped, and what the run has started; who got it of those."""
        found = await self._reaper.signal(interpreter=interpreter, others=others)
        self._hit = self._hit or bool(found)
        return found

    async def _starts_anew(self, stuck: set[int]) -> bool:
        """Whether the interpreter starts processes though its code is over: a thread or a handler does.

        `stuck`: those that were there before, and do not die.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + ANEW_WAIT
        while self.ACTS_BESIDE and self._hit and not self.died:
            await self._reaper.new()
            if not stuck.issuperset(self._reaper.own):
                return True
            if loop.time() > give_up:
                break
            await asyncio.sleep(KILL_EVERY)
        return False

    async def _fall(self, why: str) -> None:
        """Kill the interpreter, with all that it has started since the run began."""
        self.died = why
        await self._reaper.signal(interpreter=signal.SIGKILL, others=signal.SIGKILL)
        await first_of(self._reaper.exited, within=GONE_WAIT)

    async def kill(self, reason: str) -> Ended:
        self.died = self.died or reason
        self._killed()
        await self._settled.wait()
        return await self._end()


def listed(found: tuple[Process, ...]) -> str:
    """Processes in a note."""
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(str(one) for one in found[:NAMED]) + more
