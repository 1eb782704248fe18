"""End what a stopped session has running, within a bounded time, and give every call a result."""

import asyncio
from collections.abc import Coroutine, Iterable
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

log = structlog.get_logger()


async def end_calls(session: Session, pool: Pool, started: datetime) -> list[Record]:
    """Interrupt the running calls, then kill, then let go; returns results for the calls that still have none.

    `started`: when this daemon began; a call recorded before it may have been begun by an earlier one.
    """
    begun = set(session.calls)
    begun -= await _end_tasks(session, pool)
    drafts = []
    for call in session.chain.orphans:
        if call.id in begun or _before(call, started):
            why = "it was stopped, and its end was not confirmed in time"
            drafts.append(calls.unknown(call.id, calls.worker_of(call), why))
        else:
            drafts.append(draft("result", "stopped before it began", for_=call.id, failed=True))
    return drafts


async def _end_tasks(session: Session, pool: Pool) -> set[str]:
    """End the tasks of running calls; the ids of those that no worker was ever sent, and now never will be."""
    tasks = dict(session.calls)
    worker = {call.id: calls.worker_of(call) for call in session.chain.orphans}
    here = {id: task for id, task in tasks.items() if pool.hello(worker.get(id, "")) is not None}
    # A worker that is away is told too, as soon as it is back: its runs would go on otherwise.
    if named := [id for id in tasks if worker.get(id)]:
        await _ask([pool.interrupt(worker[id], session.id, id) for id in named])
    if here:
        await asyncio.wait(here.values(), timeout=INTERRUPT_TIME)
    if stuck := [id for id, task in here.items() if not task.done()]:
        await _ask([pool.kill(name, session.id) for name in {worker[id] for id in stuck}])
        await asyncio.wait([here[id] for id in stuck], timeout=KILL_TIME)
    unsent = {id for id in tasks if worker.get(id) and not pool.asked(worker[id], session.id, id)}
    left = [task for task in tasks.values() if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
    return unsent


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
