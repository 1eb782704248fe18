"""Have a session's calls carried out side by side, each result appended as it comes."""

import asyncio
import codecs
from collections.abc import Callable, Sequence
from datetime import datetime

import structlog

from daemon.harness.calls import Calls
from daemon.harness.counts import Counts
from daemon.harness.environments import Environments
from daemon.harness.session import Session
from daemon.pool import Pool
from daemon.protocol import api, records
from daemon.protocol.records import Record

log = structlog.get_logger()


class Carrier:
    """Keeps the tasks of calls with their session, so that whoever waits for them can be cancelled and they go on."""

    def __init__(
        self,
        pool: Pool,
        group: asyncio.TaskGroup,
        clock: Callable[[], datetime],
        counts: Counts,
        environments: Environments,
    ) -> None:
        self._pool = pool
        self._group = group
        self._clock = clock
        self._counts = counts
        self._calls = Calls(pool, environments)

    async def run(self, session: Session, calls: Sequence[Record]) -> None:
        """Carry out calls that nobody has begun. Raises what kept a result from being recorded."""
        await self._carry_out(session, calls, begun=False)

    async def settle(self, session: Session, calls: Sequence[Record]) -> None:
        """The same for calls that may have been begun before: each worker is asked first, nothing is done twice."""
        await self._carry_out(session, calls, begun=True)

    async def _carry_out(self, session: Session, calls: Sequence[Record], *, begun: bool) -> None:
        for call in calls:
            if call.id not in session.calls:
                session.calls[call.id] = self._group.create_task(
                    self._one(session, call, begun), name=f"call {session.id} {call.id}"
                )
        going = {session.calls[call.id] for call in calls}
        done, _ = await asyncio.wait(going)  # all, also where one fails: nothing goes on unwatched
        for task in done:
            if not task.cancelled() and (error := task.result()) is not None:
                raise error

    async def _one(self, session: Session, call: Record, begun: bool) -> Exception | None:
        """Carry out one call and append its result. An error is returned: raised, it would end the daemon's group."""
        characters = codecs.getincrementaldecoder("utf-8")("replace")

        def show(chunk: bytes) -> None:
            if chunk:
                session.live.put(api.Delta("output", characters.decode(chunk), call=call.id))
            else:  # the newest follows, also what came before
                characters.reset()
                session.live.again(call.id)

        try:
            age = self._age(call) if begun else None
            try:
                images: list[Record] = []
                result = await self._calls.perform(
                    session.id,
                    session.config,
                    call,
                    age=age,
                    had=session.chain.workers_had,
                    on_output=show,
                    images=images,
                )
            except asyncio.CancelledError:
                if call.id not in session.instead:
                    raise
                result, images = session.instead[call.id], []
            await session.append(result, *images)
        except Exception as error:  # noqa: BLE001 - see the docstring
            log.error("a result could not be recorded", session=session.id, call=call.id, why=str(error))
            session.unwritten.add(call.id)
            return error
        finally:
            session.calls.pop(call.id, None)
            session.instead.pop(call.id, None)
        session.unwritten.discard(call.id)
        self._counts.calls[result.header.failed] += 1
        if result.header.worker:
            self._pool.ack(result.header.worker, session.id, call.id)
        return None

    def _age(self, call: Record) -> float:
        """Seconds since a call was recorded; a clock that was set back since makes it as old as can be."""
        recorded = records.instant(call.header.time)
        age = (self._clock() - recorded).total_seconds() if recorded else -1.0
        return age if age >= 0 else float("inf")
