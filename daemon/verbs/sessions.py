"""The verbs on sessions that ask once and print an answer: ls, info, new, post, stop, retry, end."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

import click

from daemon.plain import dollars, line, tokens
from daemon.protocol import api
from daemon.protocol.records import Status
from daemon.verbs import configure
from daemon.verbs.absent import warn_of_absent
from daemon.verbs.posting import warn_of_pictures
from daemon.verbs.reach import OK, USAGE, VIA, VerbError, Where, connect, say, say_json, session_id
from daemon.verbs.tables import ago, facts, local, table

_STATUS: Final = {
    "stepping": "good",
    "open": "note",
    "interrupted": "note",
    "failed": "failed",
    "damaged": "failed",
    "ended": "dim",
    "expired": "dim",
}


UNKNOWN: Final = "?"
UNPRICED: Final = (
    "a model that it used has no price; `outrider models` shows which, the configuration may give it one"
)


async def ls(place: Where, status: Status | None, limit: int, json: bool) -> int:
    """The sessions, newest updated first, as a table or as one JSON array."""
    async with connect(place) as client:
        found: list[api.Info] = []
        while len(found) < limit:
            want = min(limit - len(found), api.MAX_LIST)
            page = await client.list(status=status, limit=want, after=found[-1].id if found else "")
            found += page
            if len(page) < want:
                break
    if json:
        say_json(found)
    elif found:
        paid = any(info.cost or _unpriced(info) for info in found)
        made = any(info.config.agent for info in found)
        table(
            (
                *("ID", "STATUS", "UPDATED", "CONTEXT"),
                *(("COST",) if paid else ()),
                *(("AGENT",) if made else ()),
                *("MODEL", "TITLE"),
            ),
            [
                (
                    info.id,
                    info.status,
                    ago(info.updated),
                    _context(info),
                    *((UNKNOWN if _unpriced(info) else dollars(info.cost),) if paid else ()),
                    *((info.config.agent,) if made else ()),
                    info.config.model,
                    info.title,
                )
                for info in found
            ],
            {1: _STATUS},
        )
    elif sys.stdout.isatty():
        say("No sessions." if status is None else f"No sessions that are {status}.")
    return OK


async def info(place: Where, prefix: str, json: bool) -> int:
    """All that the daemon says about a session."""
    async with connect(place) as client:
        found = await client.info(await session_id(client, prefix))
    if json:
        say_json(found)
        return OK
    shown = dict(configure.rows(found.config))
    rows = [
        ("id", found.id, ""),
        ("status", found.status, _STATUS.get(found.status, "")),
        ("title", found.title, ""),
        *((name, shown[name], "") for name in ("agent", "model", "workers", "tools", "params", "limits")),
        ("records", str(found.n), ""),
        ("context", _context(found), ""),
        ("tokens", f"{tokens(found.usage.prompt)} in, {tokens(found.usage.output)} out", ""),
        ("cost", f"not known: {UNPRICED}" if _unpriced(found) else dollars(found.cost), ""),
        ("created", local(found.created), ""),
        ("updated", f"{local(found.updated)} ({ago(found.updated)})" if found.updated else "", ""),
        ("copy of", f"{found.from_.session}, records 1 to {found.from_.n - 1}" if found.from_ else "", ""),
        ("damage", found.damage, "failed"),
    ]
    facts(rows)
    return OK


async def new(place: Where, create: api.Create, json: bool) -> int:
    """Make a session and print its id."""
    async with connect(place) as client:
        id = await client.create(create)
        await warn_of_absent(client, create.workers)
    if json:
        say_json(api.Created(id))
    else:
        say(id)
    return OK


async def post(place: Where, prefix: str, parts: Sequence[api.Part], json: bool, key: str = "") -> int:
    """Post to a session; its number is printed when it is durable."""
    async with connect(place) as client:
        id = await session_id(client, prefix)
        await warn_of_pictures(client, id, parts)
        n = await client.post(id, parts, VIA, key)
    if json:
        say_json({"id": id, "n": n})
    else:
        say(f"#{n}")
    return OK


async def stop(place: Where, prefix: str, json: bool) -> int:
    """Stop what a session does; done when it returns."""
    async with connect(place) as client:
        id = await session_id(client, prefix)
        await client.stop(id, VIA)
        found = await client.info(id)
    if json:
        say_json({"id": id, "status": found.status})
    else:
        say(f"stopped {id}")
    return OK


async def retry(place: Where, prefix: str, json: bool) -> int:
    """Let a failed session go on."""
    async with connect(place) as client:
        id = await session_id(client, prefix)
        status = (await client.info(id)).status
        if status != "closed":
            status = await client.retry(id)
    if json:
        say_json({"id": id, "status": status})
    elif status == "closed":
        say(f"{id} is closed: there is nothing to go on with")
    else:
        say(f"{id} is {status}")
    return OK


async def end(place: Where, prefix: str, yes: bool, json: bool) -> int:
    """End a session for good, once it is confirmed."""
    async with connect(place) as client:
        id = await session_id(client, prefix)
        if not yes:
            await asyncio.to_thread(_confirm, await client.info(id))
        await client.end(id, VIA)
        found = await client.info(id)
    if json:
        say_json({"id": id, "status": found.status})
    else:
        say(f"ended {id}")
    return OK


def _confirm(found: api.Info) -> None:
    """Ask on a terminal. Raises VerbError elsewhere, and when the answer is no."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise VerbError("nobody can be asked here: to end the session for good, give --yes", USAGE)
    title = f", {line(found.title, 60)}" if found.title else ""
    asked = f"End session {found.id} ({found.status}{title}) for good? It can be read then, not posted to."
    if not click.confirm(asked, err=True):
        raise VerbError("nothing is ended")


def _unpriced(info: api.Info) -> bool:
    """Its steps used tokens, and what these cost is not known."""
    return info.cost is None and bool(info.usage.prompt or info.usage.output)


def _context(info: api.Info) -> str:
    used = tokens(info.prompt)
    return f"{used}/{tokens(info.config.context)}" if info.config.context else used
