"""End for good what has been idle past its `limits.ttl`; never a session that is stepped or was just written to."""

from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from daemon.harness.census import OVER, Census
from daemon.harness.errors import HarnessError, NoSpace, NotFound, translated
from daemon.harness.session import Session
from daemon.harness.sessions import Sessions
from daemon.protocol import records

log = structlog.get_logger()


async def sweep(
    sessions: Sessions,
    census: Census,
    now: datetime,
    check: Callable[[Session], None],
    finish: Callable[[Session, str, str], Awaitable[None]],
    over: Callable[[Session], None],
) -> None:
    """Expire what is idle. `check` raises where a session cannot be written, `finish` writes an end (who, why), `over`
    is called for each that ended.

    Where the disk is full the rest waits for the next time.
    """
    for id in census.idle(now):
        try:
            session = await sessions.get(id)
            if session.damage is None and await _expire(session, now, check, finish):
                log.info("session expired", session=id, idle_for=session.config.limits.ttl)
                over(session)
            census.saw(sessions.describe(session))
        except NotFound:
            census.forget(id)
        except HarnessError as error:
            log.warning("session not expired", session=id, why=str(error))
            if isinstance(error, NoSpace):
                return


async def _expire(
    session: Session,
    now: datetime,
    check: Callable[[Session], None],
    finish: Callable[[Session, str, str], Awaitable[None]],
) -> bool:
    with translated():
        async with session.posting:
            updated, ttl = records.instant(session.chain.updated), session.config.limits.ttl
            if session.stepping or session.untouched or session.chain.status in OVER:
                return False
            if not ttl or updated is None or (now - updated).total_seconds() <= ttl:
                return False
            check(session)
            await finish(session, "limits.ttl", "expired")
            return True
