"""Say what stands about a session: from its chain in memory, or from its file alone."""

import logging
import os
import stat
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from daemon.chain import Chain
from daemon.protocol import api
from daemon.protocol.records import BadRecord, Config, Record, Status
from daemon.provider import prices
from daemon.statefile import blocks
from daemon.statefile.descriptors import FLAGS
from daemon.statefile.errors import Damage
from daemon.statefile.index import Row
from daemon.statefile.scan import Scan, irregular, scan_fd, unreadable
from daemon.statefile.store import PASSING, Store

SLICE: Final = 4 << 20  # bytes of records that are in memory at once, or one record

log = logging.getLogger(__name__)


def describe(
    id: str,
    chain: Chain,
    damage: Damage | None,
    origin: api.Origin | None,
    *,
    stepping: bool = False,
    readable: int | None = None,
    cost: prices.Costs = prices.unknown,
) -> api.Info:
    """What the API says about a session of these records, of which `readable` may be read by now."""
    status: Status = "stepping" if stepping else chain.status
    if damage is not None:
        status = "damaged"
    return api.Info(
        id=id,
        status=status,
        config=chain.config or Config(model=""),
        created=chain.created,
        updated=chain.updated,
        n=chain.n if readable is None else min(chain.n, readable),
        prompt=chain.prompt,
        usage=chain.usage,
        title=chain.title,
        from_=origin,
        cost=cost(chain.spent) if chain.spent else None,
        damage="" if damage is None else f"record {damage.n} at byte {damage.offset}: {damage.reason}",
    )


def read(store: Store, ids: Iterable[str], cost: prices.Costs = prices.unknown) -> dict[str, Row | None]:
    """What these sessions' files say, None for one that is not there. Blocks.

    One that cannot be read for now, because the process has run out of descriptors or memory, is left out.
    """
    rows: dict[str, Row | None] = {}
    for id in ids:
        try:
            rows[id] = _read(store, id, cost)
        except FileNotFoundError:
            rows[id] = None
        except OSError as error:
            log.error("session %s: its file cannot be read now: %s", id, error.strerror)
    return rows


def fold(chain: Chain, records: Iterable[Record]) -> BadRecord | None:
    """Add records up to one whose body does not parse, and say what is wrong with that."""
    try:
        for record in records:
            chain.add(record)
    except BadRecord as error:
        return error
    return None


def _read(store: Store, id: str, cost: prices.Costs) -> Row:
    """Raises FileNotFoundError; OSError of PASSING."""
    path = store.path(id)
    try:
        fd = os.open(path, os.O_RDONLY | FLAGS)
    except OSError as error:
        if error.errno in PASSING:
            raise
        there = os.stat(path)
        return _row(store, id, there, Chain(), unreadable(error).damage, cost)
    try:
        there = os.fstat(fd)
        found = scan_fd(fd) if stat.S_ISREG(there.st_mode) else irregular()
        chain = Chain()
        return _row(store, id, there, chain, _fold(chain, fd, found) or found.damage, cost)
    finally:
        os.close(fd)


def _row(
    store: Store, id: str, there: os.stat_result, chain: Chain, damage: Damage | None, cost: prices.Costs
) -> Row:
    info = describe(id, chain, damage, store.origin(id), cost=cost)
    return Row(there.st_size, there.st_mtime_ns, info, chain.spent)


def _fold(chain: Chain, fd: int, found: Scan) -> Damage | None:
    """Add what the scan found; where that is no longer, or no session, the damage."""
    offsets = found.offsets
    try:
        while chain.n < len(offsets):
            start = offsets[chain.n]
            last = max(bisect_right(offsets, start + SLICE), chain.n + 1)
            end = offsets[last] if last < len(offsets) else found.end
            if (bad := fold(chain, blocks.read_records(fd, start, end, chain.n + 1))) is not None:
                return Damage(chain.n + 1, offsets[chain.n], str(bad))
    except blocks.Unread as error:
        return Damage(bisect_right(offsets, error.offset), error.offset, error.reason)
    return None
