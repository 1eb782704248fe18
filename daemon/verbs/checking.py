"""The verb `check`: whether a session's next request would be accepted, with what is repaired in it."""

from collections.abc import Iterable, Iterator
from typing import Final

from daemon.client import Client
from daemon.plain import count, line, size, tokens
from daemon.protocol import api
from daemon.verbs.reach import FAILED, OK, USAGE, VerbError, Where, connect, say, say_json, session_id
from daemon.verbs.tables import facts

NUMBERS: Final = 5  # records that a repair of many names


async def check(place: Where, prefix: str, provider: str, model: str, json: bool) -> int:
    """Ask the daemon to look at the next request, and say what it found. OK where it would be accepted, else FAILED."""
    if provider and model:
        raise VerbError("--provider and --model both say which model: give one of them", USAGE)
    async with connect(place) as client:
        id = await session_id(client, prefix)
        found = await client.check(id, await _of(client, id, provider) if provider else model)
    if json:
        say_json(found)
    else:
        _show(found)
    return OK if found.accepted else FAILED


async def _of(client: Client, id: str, provider: str) -> str:
    """The session's own model where `provider` serves it, else the first that it does. Raises VerbError."""
    own = (await client.info(id)).config.model
    if own.partition("/")[0] == provider:
        return own
    served = (await client.providers()).providers
    names = [info.name for info in served if info.served]
    if provider not in names:
        raise VerbError(f"there is no provider {line(provider)}; there are {', '.join(names)}", USAGE)
    models = next(info.models for info in served if info.name == provider)
    if not models:
        raise VerbError(f"no model of {provider} is known; name one, as in --model {provider}/MODEL", USAGE)
    return models[0].name


def _show(found: api.Check) -> None:
    by = line(found.model) or "no model"
    say(f"{by} would accept the next request" if found.accepted else f"{by}: no request would be accepted")
    limit = f" of {tokens(found.context)}" if found.context else ""
    holds = [size(found.bytes)]
    holds += [count(found.images, "image")] if found.images else []
    holds += [count(found.marks, "cache mark")] if found.marks else []
    rows = [
        ("turns", f"{found.turns}, from records 1 to {found.n}" if found.turns else "", ""),
        ("tokens", f"about {tokens(found.tokens)}{limit}" if found.turns else "", ""),
        ("size", ", ".join(holds) if found.bytes else "", ""),
        *(("why", why, "failed") for why in found.why),
        *(("problem", problem, "failed") for problem in found.problems),
        *(("repair", repair, "note") for repair in _grouped(found.repairs)),
        *(("note", note, "") for note in found.notes),
    ]
    facts(rows)


def _grouped(repairs: Iterable[api.Repair]) -> Iterator[str]:
    """Each kind of repair once, with the records that it is made at."""
    places: dict[str, list[str]] = {}
    for repair in repairs:
        where = f"#{repair.n} to #{repair.last}" if repair.last else f"#{repair.n}" if repair.n else ""
        places.setdefault(repair.what, []).append(where)
    for what, all_places in places.items():
        named = [place for place in all_places if place]
        more = f" and {len(named) - NUMBERS} more" if len(named) > NUMBERS else ""
        yield f"{what} ({', '.join(named[:NUMBERS])}{more})" if named else what
