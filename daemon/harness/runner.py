"""Run a session: step it while there is something to do, cut its pass when it is stopped, write down how that ended."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from daemon.harness.errors import Conflict, NoSpace
from daemon.harness.queue import Queue
from daemon.harness.session import Session
from daemon.harness.step import Stepper
from daemon.harness.stopping import end_calls
from daemon.pool import Pool
from daemon.protocol.records import Status, error_draft
from daemon.statefile.errors import NoSpaceError, StateFileError

NEEDS_STEP: Final[frozenset[Status]] = frozenset({"open", "interrupted"})

log = structlog.get_logger()


class Runner:
    """Runs all sessions, each in a task of `group` while it is in work, which steps it in passes.

    A kick during a pass makes its session be looked at once more; a stop ends one pass, and not the next. `began` is
    called with the id of a session that is run from now on, `paused` when there is no more to do for it, and `rested`
    when its task ends, also where it is cancelled. `started`: when the daemon did.
    """

    def __init__(
        self,
        *,
        stepper: Stepper,
        queue: Queue,
        pool: Pool,
        group: asyncio.TaskGroup,
        started: datetime,
        began: Callable[[str], None],
        paused: Callable[[Session], None],
        rested: Callable[[Session], None],
    ) -> None:
        self._stepper = stepper
        self._queue = queue
        self._pool = pool
        self._group = group
        self._started = started
        self._began = began
        self._paused = paused
        self._rested = rested
        self.held = False  # what nobody runs waits for the next start

    def kick(self, session: Session, turn: bool = False) -> None:
        """Step the session until nothing is open; during a pass: look once more before its task ends.

        One whose end is being written is not stepped: `kicked` says that it was wanted. While `held` none is begun
        with, but for a `turn`, which was let in before that.
        """
        if session.ending:
            session.kicked = True
            return
        if self.held and session.runner is None and not turn:
            return
        session.again = True
        if session.runner is None:
            session.runner = self._group.create_task(self._run(session), name=f"session {session.id}")
            self._began(session.id)

    async def stop(self, session: Session, via: str) -> None:
        """Cut the pass; returns when every call has a result and an error record names `via`.

        Raises Conflict when the session is not stepping, and NoSpace when it was stopped and the file did not take the
        records that say so.
        """
        if not session.stepping:
            raise Conflict(f"session {session.id} is not stepping: it is {session.chain.status}")
        if session.stop_by is None:
            session.stop_by = via
            session.permit = False
            session.stopped.clear()
            if session.one_pass is not None:
                session.one_pass.cancel()
        await session.stopped.wait()
        if (error := session.stop_lost) is not None:
            raise NoSpace(
                f"session {session.id} was stopped, and that could not be recorded ({error}): make room, then retry"
            )

    async def _run(self, session: Session) -> None:
        try:
            while session.again:
                session.again = False
                if session.ending and session.stop_by is None:
                    session.kicked = True  # by what was posted before
                elif session.stop_by is None:
                    session.one_pass = self._group.create_task(self._pass(session), name=f"pass {session.id}")
                    await asyncio.wait({session.one_pass})
                    session.one_pass = None
                if session.stop_by is not None:
                    await self._write_stop(session, session.stop_by)
                    session.stop_by = None
                    session.stopped.set()  # who asked for it waits for no later pass
            self._paused(session)
        finally:
            session.runner = None
            session.stopped.set()
            self._rested(session)

    async def _pass(self, session: Session) -> None:
        """Step until the session is closed, failed or ended. The broad `except` around a step stands here."""
        try:
            while session.chain.status in NEEDS_STEP or (session.permit and session.chain.status == "failed"):
                session.permit = False
                async with self._queue.place(session):
                    await self._stepper.step(session)
            session.permit = False
        except NoSpaceError as error:
            why = f"the data folder cannot be written ({error}): make room, then retry"
            await self._fail(session, "no_space", why)
        except Exception as error:
            log.exception("step failed", session=session.id)
            why = f"this step failed inside the harness ({type(error).__name__}); its log says more"
            await self._fail(session, "internal", why)

    async def _fail(self, session: Session, code: str, why: str) -> None:
        log.error("session failed", session=session.id, code=code, why=why)
        try:
            await session.append(error_draft(code, why, sent=session.take_sent()))
        except StateFileError as error:
            log.error("the error could not be recorded", session=session.id, why=str(error))

    async def _write_stop(self, session: Session, via: str) -> None:
        drafts = await end_calls(session, self._pool, self._started)
        session.stop_lost = None
        stopped = error_draft("stopped", f"stopped by {via}", via=via, sent=session.take_sent())
        try:
            await session.append(*drafts, stopped)
        except StateFileError as error:
            session.stop_lost = error
            log.error("the stop could not be recorded", session=session.id, why=str(error))
