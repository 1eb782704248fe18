"""The verbs on what lets machines join: tokens; and on putting a worker out for good."""

import asyncio
import re
import sys
from collections.abc import Mapping
from typing import Final

import click

from daemon.plain import count, line
from daemon.protocol import api
from daemon.verbs.reach import OK, USAGE, VerbError, Where, connect, note, say, say_json
from daemon.verbs.tables import ago, local, table

LONGEST: Final = 100_000  # characters of a shell line; one with a token of eight long names has 3,000
STATES: Final[Mapping[str, str]] = {"good": "good", "used": "dim", "expired": "dim", "revoked": "dim"}
_LIFETIME: Final = re.compile(r"([0-9]{1,9})(s|m|min|h|d|w)?")
_UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def lifetime(text: str) -> float:
    """Seconds of `90s`, `30m`, `12h`, `7d`, `2w`; a number alone could be any of these. Raises VerbError."""
    found = _LIFETIME.fullmatch(text.strip())
    if found and not found[2]:
        raise VerbError(
            f"--expires {found[1]}: say of what, as in {found[1]}m, {found[1]}h or {found[1]}d", USAGE
        )
    length = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < length <= api.MAX_LIFETIME:
        most = f"at most {api.MAX_LIFETIME / 86400:.0f}d"
        raise VerbError(f"--expires {line(text)}: write a time such as 30m, 24h or 7d, {most}", USAGE)
    return length


async def new_token(place: Where, new: api.NewToken, only_line: bool, json: bool) -> int:
    """Make a join token; stdout has it alone, or the shell line alone."""
    async with connect(place) as client:
        made = await client.make_token(new)
        mesh = await client.mesh()
    if mesh.why:
        note(f"warning: {line(mesh.why, 500)}")
    if json:
        say_json(made)
        return OK
    what = f"token {made.id} ({line(made.name)})" if made.name else f"token {made.id}"
    gone = "; who joined leaves by itself when it is gone for long" if made.ephemeral else ""
    note(
        f"{what} lets {count(made.uses, 'machine')} join until {local(made.expires)}{gone}. It is shown this once:"
    )
    if only_line:
        say(line(made.line, LONGEST))
        return OK
    say(line(made.token, LONGEST))
    note("\nThis line, on a machine, makes it a worker:\n")
    note(line(made.line, LONGEST))
    return OK


async def tokens(place: Where, json: bool) -> int:
    """The join tokens."""
    async with connect(place) as client:
        found = await client.tokens()
    if json:
        say_json(found)
    elif found:
        rows = [
            (
                str(token.id),
                token.name,
                token.state,
                str(token.uses),
                local(token.expires),
                "yes" if token.ephemeral else "",
                ago(token.created),
                ", ".join(token.joined),
            )
            for token in found
        ]
        head = ("ID", "NAME", "STATE", "LEFT", "UNTIL", "EPHEMERAL", "MADE", "WORKERS")
        table(head, rows, {2: STATES})
    elif sys.stdout.isatty():
        say("No tokens: `outrider token new` makes one, with which a machine joins as a worker.")
    return OK


async def revoke_token(place: Where, id: int, json: bool) -> int:
    """Revoke a join token."""
    async with connect(place) as client:
        await client.revoke_token(id)
        joined = next((token.joined for token in await client.tokens() if token.id == id), ())
    if json:
        say_json({"id": id, "joined": joined})
        return OK
    say(f"token {id} lets no machine join any more")
    if joined:
        names = line(", ".join(joined), 1000)
        note(f"who has joined by it stays: {names}; `outrider worker remove NAME` puts one out")
    return OK


async def remove(place: Where, name: str, yes: bool, json: bool) -> int:
    """Put a worker out of the mesh for good, once it is confirmed."""
    async with connect(place) as client:
        if not yes:
            found = next((worker for worker in await client.workers() if worker.name == name), None)
            await asyncio.to_thread(_confirm, name, found)
        await client.remove_worker(name)
    if json:
        say_json({"name": name})
    else:
        say(f"{line(name)} is out for good: its key is refused from now on")
    return OK


def _confirm(name: str, found: api.WorkerInfo | None) -> None:
    """Ask on a terminal. Raises VerbError elsewhere, and when the answer is no."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise VerbError("nobody can be asked here: to remove the worker for good, give --yes", USAGE)
    going = f", {count(found.running, 'call')} going" if found is not None and found.running else ""
    state = f" ({found.state}{going})" if found is not None else ""
    asked = f"Remove worker {line(name)}{state} for good? To come back it has to join again, with a new key."
    if not click.confirm(asked, err=True):
        raise VerbError("nothing is removed")
