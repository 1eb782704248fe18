"""Say what stands about a session: from its chain in memory, or from its file alone."""

import logging
from collections.abc import Iterable

from daemon.chain import Chain
from daemon.protocol import api
from daemon.protocol.records import BadRecord, Config, Record, Status, instant
from daemon.provider import prices
from daemon.statefile.errors import Damage
from daemon.statefile.index import Row
from daemon.statefile.interface import SessionStore

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
    created, updated = _times(chain, origin)
    return api.Info(
        id=id,
        status=status,
        config=chain.config or Config(model=""),
        created=created,
        updated=updated,
        n=chain.n if readable is None else min(chain.n, readable),
        prompt=chain.prompt,
        usage=chain.usage,
        title=chain.title,
        from_=origin,
        cost=cost(chain.spent) if chain.spent else None,
        damage="" if damage is None else f"record {damage.n} at byte {damage.offset}: {damage.reason}",
    )


def _times(chain: Chain, origin: api.Origin | None) -> tuple[str, str]:
    """When a session was made and when something last came to it: to a copy nothing has before its own first record.

    What a copy's records say is about its source; it counts where nobody knows when the copy was made.
    """
    if origin is None or instant(origin.time) is None:
        return chain.created, chain.updated
    return origin.time, chain.updated if chain.n >= origin.n else origin.time


def read(
    store: SessionStore, ids: Iterable[str], cost: prices.Costs = prices.unknown
) -> dict[str, Row | None]:
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


def _read(store: SessionStore, id: str, cost: prices.Costs) -> Row:
    """Raises FileNotFoundError, and OSError where it cannot be read for now."""
    chain = Chain()
    found = store.survey(id, chain.add)
    info = describe(id, chain, found.damage, store.origin(id), cost=cost)
    return Row(found.size, found.mtime_ns, info, chain.spent)
