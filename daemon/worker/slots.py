"""The environments of all sessions, one for each session and interpreter: brought up, replaced, ended."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from daemon.worker import interpreters, surroundings
from daemon.worker.environment import Environment, Spawn
from daemon.worker.going import Run
from daemon.worker.journal import Journal, environment_path
from daemon.worker.patience import limited
from daemon.worker.reaping import Ended
from daemon.worker.refusal import Refusal

FAULT: Final = "the worker had a fault"

Place = tuple[str, str]  # session, interpreter


class Slot:
    """One environment's place: what runs there, what waits, why the next interpreter will be new."""

    def __init__(self) -> None:
        self.environment: Environment | None = None
        self.retired: list[Environment] = []  # interpreters that ended and may have left processes
        self.reset = ""
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether nobody is in the line."""
        return not self._line

    def join(self) -> asyncio.Future[None]:
        """A place at the end of the line, done when it is the first."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        self._call()
        return place

    def leave(self, place: asyncio.Future[None]) -> None:
        """Give a place back, the first or another."""
        self._line.remove(place)
        self._call()

    def _call(self) -> None:
        if self._line and not self._line[0].done():
            self._line[0].set_result(None)


class Slots:
    """One slot for each session and interpreter that had a run here; `environ`: what an environment begins with."""

    def __init__(self, journal: Journal, spawn: Spawn, environ: Callable[[], Mapping[str, str]]) -> None:
        self._journal = journal
        self._spawn = spawn
        self._environ = environ
        self._slots: dict[Place, Slot] = {}

    @property
    def alive(self) -> int:
        """How many interpreters are alive."""
        return sum(bool(slot.environment and not slot.environment.died) for slot in self._slots.values())

    def at(self, session: str, interpreter: str) -> Slot:
        """The slot of a session's interpreter."""
        return self._slots.setdefault((session, interpreter), Slot())

    async def bring_up(self, run: Run, slot: Slot) -> tuple[str, ...]:
        """See to it that the run's slot has a living interpreter; notes for the model. Raises Refusal."""
        if slot.environment and not slot.environment.died:
            return ()
        session = run.frame.session
        if slot.environment:
            slot.reset = slot.reset or slot.environment.died
            slot.retired.append(slot.environment)
            slot.environment = None
        else:
            known = await asyncio.to_thread(self._journal.environments, session)
            if run.interpreter in known:
                slot.reset = (
                    slot.reset or known[run.interpreter] or "the worker's keeper ended and was started again"
                )
        cwd = await limited(start_folder, run.frame.cwd)
        own = environment_path(self._journal.folder, session, run.interpreter)
        environment = interpreters.make(run.interpreter, cwd, self._environ(), self._spawn, own)
        slot.environment = environment
        for old in [one for one in slot.retired if one.gone]:
            await old.kill("")
            slot.retired.remove(old)

        def give_up(_: object) -> None:
            self.abandon(environment, "it was stopped while it started")

        run.stop.wanted.add_done_callback(give_up)
        try:
            notes = await environment.start()
        except BaseException as error:
            slot.environment = None
            if isinstance(error, OSError):
                raise Refusal("failed", f"no environment could be started: {error.strerror}") from error
            if not isinstance(error, Refusal):
                self.abandon(environment, FAULT)
            raise
        finally:
            run.stop.wanted.remove_done_callback(give_up)
        await asyncio.to_thread(self._journal.set_environment, session, run.interpreter, "")
        return notes

    def abandon(self, environment: Environment, why: str) -> None:
        """Have this environment go; the next run starts another."""
        self._spawn(self._abandon(environment, why), f"end an environment: {why}")

    @staticmethod
    async def _abandon(environment: Environment, why: str) -> None:
        await environment.kill(why)

    async def end(self, session: str | None, reason: str) -> Ended:
        """End every environment of a session (None: of all) with everything they started."""
        places = [place for place in self._slots if session in (None, place[0])]
        async with asyncio.TaskGroup() as group:
            work = [
                group.create_task(self._end(place, self._slots.pop(place), reason), name=f"end {place}")
                for place in places
            ]
        found = [one for task in work for one in task.result()]
        return Ended(
            tuple(process for one in found for process in one.ended),
            tuple(process for one in found for process in one.left),
        )

    async def _end(self, place: Place, slot: Slot, reason: str) -> list[Ended]:
        now = slot.environment
        tell = now is not None and not now.died  # one that died before has its own reason, which is kept
        ended = [await one.kill(reason) for one in (*slot.retired, *([now] if now else []))]
        if tell:
            await asyncio.to_thread(self._journal.set_environment, *place, reason)
        return ended


def start_folder(cwd: str) -> str:
    """Where an environment starts: `cwd`, from the operator's home on. Raises Refusal when it is not a folder."""
    if "\0" in cwd:
        raise Refusal("bad_request", "`cwd` holds a NUL character")
    folder = Path(surroundings.home(), os.path.expanduser(cwd))
    if not folder.is_dir():
        raise Refusal(
            "not_found", f"`cwd` {folder} is not a folder on this worker: make it first, or name another"
        )
    return str(folder)
