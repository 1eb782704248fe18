"""End what a session has running, all of it or on one worker, within a bounded time; every call gets a result."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import structlog

from daemon.harness import calls
from daemon.harness.session import Session
from daemon.pool import Pool, Refused, WorkerGone
from daemon.protocol import records
from daemon.protocol.records import Record, draft

ASK_TIME: Final = 1.0  # seconds for a worker to take an interrupt or a kill
INTERRUPT_TIME: Final = 4.0  # seconds that interrupted calls have before they are killed
KILL_TIME: Final = 2.0  # seconds that killed calls have before their results are written without them
STOPPED: Final = "the session was stopped"
UNCONFIRMED: Final = "it was stopped, and its end was not confirmed in time"
UNWRITTEN: Final = "it may have been carried out, and its result could not be recorded"

Task = asyncio.Task[Exception | None]

log = structlog.get_logger()


async def end_calls(session: Session, pool: Pool, started: datetime) -> list[Record]:
    """Interrupt the running calls, then kill, then let go; returns results for the calls that still have none.

    `started`: when this daemon began; a call recorded before it may have been begun by an earlier one.
    """
    begun = set(session.calls)
    unsent, left = await _end_tasks(session, pool, dict(session.calls), STOPPED)
    begun -= unsent
    for task in left.values():
        task.cancel()
    if left:
        await asyncio.wait(left.values())
    drafts = []
    for call in session.chain.orphans:
        if call.id in session.unwritten:
            drafts.append(calls.unknown(call.id, calls.worker_of(call), UNWRITTEN))
        elif call.id in begun or _before(call, started):
            drafts.append(calls.unknown(call.id, calls.worker_of(call), UNCONFIRMED))
        else:
            drafts.append(draft("result", "stopped before it began", for_=call.id, failed=True))
    return drafts


async def end_calls_on(session: Session, pool: Pool, name: str, why: str) -> None:
    """Interrupt, then kill, then let go the calls on one worker; each gets its result, the session goes on.

    `why`: what kills are told. A call whose real result does not come in time is said to be unknown.
    """
    mine = {call.id for call in session.chain.orphans if calls.worker_of(call) == name}
    unsent, left = await _end_tasks(
        session, pool, {id: task for id, task in session.calls.items() if id in mine}, why
    )
    for id, task in left.items():
        if id in unsent:
            said = draft("result", f"not begun: {why}", for_=id, failed=True)
        else:
            said = calls.unknown(id, name, f"{why}, and the call's end was not confirmed in time")
        session.instead[id] = said  # its own task appends it: nobody else may take the call up in between
        task.cancel()
    if left:
        await asyncio.wait(left.values())


async def _end_tasks(
    session: Session, pool: Pool, tasks: Mapping[str, Task], why: str
) -> tuple[set[str], dict[str, Task]]:
    """End running calls; the ids of those that no worker was ever sent, and now never will be, and what is left."""
    worker = {call.id: calls.worker_of(call) for call in session.chain.orphans}
    here = {id: task for id, task in tasks.items() if pool.hello(worker.get(id, "")) is not None}
    # A worker that is away is told too, as soon as it is back: its runs would go on otherwise.
    if named := [id for id in tasks if worker.get(id)]:
        # The last first: one that waits for another would else begin in between.
        await _ask([pool.interrupt(worker[id], session.id, id) for id in reversed(named)])
    if here:
        await asyncio.wait(here.values(), timeout=INTERRUPT_TIME)
    if stuck := [id for id, task in here.items() if not task.done()]:
        await _ask([pool.kill(name, session.id, why) for name in {worker[id] for id in stuck}])
        await asyncio.wait([here[id] for id in stuck], timeout=KILL_TIME)
    unsent = {id for id in tasks if worker.get(id) and not pool.asked(worker[id], session.id, id)}
    return unsent, {id: task for id, task in tasks.items() if not task.done()}


async def _ask(requests: Iterable[Coroutine[Any, Any, object]]) -> None:
    async def one(request: Coroutine[Any, Any, object]) -> None:
        try:
            await request
        except (WorkerGone, Refused) as error:
            log.warning("worker did not take a stop", why=str(error))

    try:
        async with asyncio.timeout(ASK_TIME), asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(one(request), name="stop a call")
    except TimeoutError:
        log.warning("worker did not answer a stop in time")


def _before(call: Record, moment: datetime) -> bool:
    recorded = records.instant(call.header.time)
    return recorded is None or recorded < moment
