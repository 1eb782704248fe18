"""The verbs on workers and on the keys of the API."""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from daemon.plain import count, line, size
from daemon.protocol import api
from daemon.protocol.records import WorkerRef
from daemon.verbs.absent import warn_of_absent
from daemon.verbs.reach import (
    OK,
    USAGE,
    VIA,
    VerbError,
    Where,
    connect,
    note,
    say,
    say_json,
    session_id,
)
from daemon.verbs.tables import ago, table

STATES: Final[Mapping[str, str]] = {
    "connected": "good",
    "refused": "failed",
    "gone": "dim",
    "not here": "note",
    "connected, cordoned": "note",
    "gone, cordoned": "dim",
    "refused, cordoned": "failed",
}


async def workers(place: Where, json: bool) -> int:
    """The workers the daemon knows."""
    async with connect(place) as client:
        found = await client.workers()
    if json:
        say_json(found)
        return OK
    far = ("PATH", "HANDSHAKE", "IN", "OUT", "ADDRESS") if any(worker.mesh for worker in found) else ()
    table(
        ("NAME", "STATE", "SYSTEM", "INTERPRETERS", "CPUS", "MEMORY", "RUNNING", *far, "HOST"),
        [
            (
                worker.name,
                _state(worker),
                f"{worker.os} {worker.arch}".strip(),
                ", ".join(worker.interpreters),
                str(worker.cpus or ""),
                size(worker.memory) if worker.memory else "",
                str(worker.running),
                *(_in_the_mesh(worker.mesh) if far else ()),
                worker.reason or worker.hostname,
            )
            for worker in found
        ],
        {1: STATES},
    )
    return OK


def _in_the_mesh(mesh: api.Membership | None) -> tuple[str, str, str, str, str]:
    """What the columns of the mesh say."""
    if mesh is None:
        return ("", "", "", "", "")
    return (
        mesh.path,
        ago(mesh.handshake) if mesh.handshake else "never",
        size(mesh.rx),
        size(mesh.tx),
        mesh.address,
    )


def _state(worker: api.WorkerInfo) -> str:
    return f"{worker.state}, cordoned" if worker.cordoned else worker.state


async def cordon(place: Where, name: str, cordoned: bool, json: bool) -> int:
    """Have a worker take no new calls, or take them again."""
    async with connect(place) as client:
        await (client.cordon(name) if cordoned else client.uncordon(name))
        running = next((worker.running for worker in await client.workers() if worker.name == name), 0)
    if json:
        say_json({"name": name, "cordoned": cordoned, "running": running})
    elif cordoned:
        going = f"; what it has ({count(running, 'call')}) goes on" if running else ""
        say(f"{line(name)} takes no new calls{going}")
    else:
        say(f"{line(name)} takes calls again")
    return OK


async def workers_of(place: Where, prefix: str, json: bool) -> int:
    """A session's workers, and whether they are here."""
    async with connect(place) as client:
        refs = (await client.info(await session_id(client, prefix))).config.workers
        known = {worker.name: worker for worker in await client.workers()}
    states = [_state(known[ref.name]) if ref.name in known else "not here" for ref in refs]
    if json:
        say_json(
            [
                {"name": ref.name, "cwd": ref.cwd, "state": state}
                for ref, state in zip(refs, states, strict=True)
            ]
        )
    elif refs:
        rows = [(ref.name, state, _folder(ref, known)) for ref, state in zip(refs, states, strict=True)]
        table(("NAME", "STATE", "FOLDER"), rows, {1: STATES})
    elif sys.stdout.isatty():
        say("No workers: only answers in words are possible.")
    return OK


def _folder(ref: WorkerRef, known: Mapping[str, api.WorkerInfo]) -> str:
    return ref.cwd or (known[ref.name].home if ref.name in known else "") or "its home"


async def set_workers(
    place: Where, prefix: str, refs: Sequence[WorkerRef], keep: Sequence[str], json: bool
) -> int:
    """Give a session other workers. One that it has and that is in `keep` stays in its folder."""
    async with connect(place) as client:
        id = await session_id(client, prefix)
        had = {ref.name: ref for ref in (await client.info(id)).config.workers if ref.name in keep}
        refs = tuple(had.get(ref.name, ref) for ref in refs)
        n = await client.set_workers(id, refs, VIA)
        await warn_of_absent(client, refs)
    if json:
        say_json({"id": id, "n": n, "workers": refs})
    else:
        shown = ", ".join(f"{ref.name}:{ref.cwd}" if ref.cwd else ref.name for ref in refs) or "none"
        say(f"#{n}: workers are {line(shown, 1000)}")
    return OK


async def keys(place: Where, json: bool) -> int:
    """The API's keys."""
    async with connect(place) as client:
        found = await client.keys()
    if json:
        say_json(found)
    elif found:
        table(("NAME", "ROLE", "MADE"), [(key.name, key.role, ago(key.created)) for key in found])
    elif sys.stdout.isatty():
        say("No keys: only the Unix socket is open, to its owner.")
    return OK


async def new_key(place: Where, name: str, role: api.Role, json: bool) -> int:
    """Make a key of the API; stdout has it alone."""
    if not re.fullmatch(api.NAME, name):
        raise VerbError(
            f"{line(name)!r}: a key's name has up to 63 letters, digits, dots, - and _, a letter or digit first",
            USAGE,
        )
    async with connect(place) as client:
        made = await client.make_key(name, role)
    if json:
        say_json(made)
    else:
        note(f"a key for {made.role}, {line(made.name)}; it is shown this once:")
        say(line(made.key))
    return OK


async def revoke_key(place: Where, name: str, json: bool) -> int:
    """Revoke a key of the API."""
    async with connect(place) as client:
        await client.revoke_key(name)
    if json:
        say_json({"name": name})
    else:
        say(f"revoked {line(name)}")
    return OK
