"""How the verbs that post to a session and show its records are written."""

import asyncio
from typing import Any, Final

import click

from daemon.verbs.options import (
    creating,
    file_option,
    following,
    full_option,
    id_argument,
    json_option,
    where,
    whole_number,
)


@click.command()
@creating
@json_option
def new(create: Any, json: bool) -> int:
    """Make a session and print its id."""
    from daemon.verbs import sessions

    return asyncio.run(sessions.new(where(), create, json))


@click.command(short_help="Post to a new session and show what comes of it.")
@click.argument("prompt", required=False)
@file_option
@full_option
@creating
@json_option
def run(create: Any, prompt: str | None, files: tuple[str, ...], full: bool, json: bool) -> int:
    """Make a session, post PROMPT to it and show what comes of it, to the end.

    `-` as PROMPT reads stdin. The code is 0 when the session closes and 1 when it fails. Ctrl-C leaves the session
    running.
    """
    from daemon.verbs import follow, posting

    parts, look = posting.parts(prompt, files), follow.Look(full=full, json=json)
    return following(lambda place, shown: follow.run(place, create, parts, look, shown))


@click.command(short_help="Post a text and files to a session.")
@id_argument
@click.argument("text", required=False)
@file_option
@click.option(
    "-f", "--follow", "to_the_end", is_flag=True, help="Show what comes of it, to the end of the answer."
)
@click.option(
    "--key",
    metavar="KEY",
    help="Idempotency key: the same post under the same key is taken once.",
)
@full_option
@json_option
def post(
    id: str,
    text: str | None,
    files: tuple[str, ...],
    to_the_end: bool,
    key: str | None,
    full: bool,
    json: bool,
) -> int:
    """Post TEXT and files to a session.

    It is on disk when this returns. `-` as TEXT reads stdin. The text comes first, then the files in the order given;
    they are posted together or not at all.
    """
    from daemon.verbs import follow, posting, sessions

    parts = posting.parts(text, files)
    posting.check_key(key)
    key = key or ""
    if to_the_end:
        look = follow.Look(full=full, json=json)
        return following(lambda place, shown: follow.post(place, id, parts, look, shown, key))
    return asyncio.run(sessions.post(where(), id, parts, json, key))


@click.command(short_help="Show a session's records, and those that come.")
@id_argument
@click.option("-f", "--follow", "keep_on", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("-n", "last", type=whole_number(), default=None, metavar="N", help="Only the last N records.")
@full_option
@json_option
def tail(id: str, keep_on: bool, last: int | None, full: bool, json: bool) -> int:
    """Show the records of a session."""
    from daemon.verbs import follow

    look = follow.Look(full=full, json=json, last=last)
    if keep_on:
        return following(lambda place, shown: follow.tail(place, id, look, True, shown), leave_quietly=True)
    return asyncio.run(follow.tail(where(), id, look, False, follow.Shown()))


COMMANDS: Final = (new, run, post, tail)
