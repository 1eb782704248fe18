"""Take up at a start what was under way before it: every session that needs a step is kicked, once."""

from collections.abc import Callable

import structlog

from daemon.harness.census import Census
from daemon.harness.errors import HarnessError
from daemon.harness.session import Session
from daemon.harness.sessions import Sessions
from daemon.protocol import api
from daemon.protocol.records import Status

log = structlog.get_logger()


async def look(
    sessions: Sessions,
    needs_step: frozenset[Status],
    kick: Callable[[Session], None],
    serving: Callable[[], None],
) -> None:
    """Kick them all; `serving` is called when the first are known. A session that does not load is logged."""
    try:
        async for ids in sessions.look(needs_step):
            serving()
            for id in ids:
                await _go_on(sessions, id, needs_step, kick)
    except HarnessError as error:
        log.error("the sessions' folder cannot be looked at; open sessions wait", why=str(error))
    serving()


async def count(sessions: Sessions, census: Census) -> None:
    """Let the census see every session there is."""
    after = ""
    try:
        while page := await sessions.list(None, api.MAX_LIST, after):
            for info in page:
                census.found(info)
            after = page[-1].id
    except HarnessError as error:
        log.error("the sessions cannot be counted; some are neither capped nor expired", why=str(error))
    census.counted()


async def _go_on(
    sessions: Sessions, id: str, needs_step: frozenset[Status], kick: Callable[[Session], None]
) -> None:
    try:
        session = await sessions.get(id)
    except HarnessError as error:
        log.error("session not resumed", session=id, why=str(error))
        return
    if session.damage is None and session.chain.status in needs_step and not session.untouched:
        kick(session)
