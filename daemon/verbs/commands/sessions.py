"""How the verbs that look at sessions and change them are written."""

import asyncio
from typing import Final, get_args

import click

from daemon.protocol.records import Status
from daemon.verbs import complete
from daemon.verbs.options import (
    following,
    full_option,
    id_argument,
    json_option,
    limit_option,
    param_option,
    where,
    whole_number,
    yes_option,
)


@click.command()
@click.option("--status", type=click.Choice(get_args(Status)), default=None, help="Only those.")
@click.option("--limit", type=whole_number(1), default=100, show_default=True, metavar="N", help="At most N.")
@json_option
def ls(status: Status | None, limit: int, json: bool) -> int:
    """List the sessions, newest updated first."""
    from daemon.verbs import sessions

    return asyncio.run(sessions.ls(where(), status, limit, json))


@click.command()
@id_argument
@json_option
def info(id: str, json: bool) -> int:
    """Show what stands about a session."""
    from daemon.verbs import sessions

    return asyncio.run(sessions.info(where(), id, json))


@click.command(short_help="Say whether a session's next request would be accepted.")
@id_argument
@click.option(
    "--provider", default="", metavar="NAME", help="As if this provider's first model had the session."
)
@click.option(
    "--model",
    default="",
    metavar="PROVIDER/MODEL",
    shell_complete=complete.models,
    help="As if the session had this model.",
)
@json_option
def check(id: str, provider: str, model: str, json: bool) -> int:
    """Build a session's next request, check it by the provider's rules, and say what is repaired in it.

    Nothing is sent and nothing is written. The exit code is 1 where the request would not be accepted.
    """
    from daemon.verbs import checking

    return asyncio.run(checking.check(where(), id, provider, model, json))


@click.command(short_help="Show or change a session's model, params, limits.")
@id_argument
@click.option(
    "--model", default=None, metavar="PROVIDER/MODEL", shell_complete=complete.models, help="Another model."
)
@click.option(
    "--context",
    type=whole_number(),
    default=None,
    metavar="TOKENS",
    help="Limit of the context; 0 is the model's.",
)
@param_option
@limit_option
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any of these by its name: model, context, params.NAME, limits.NAME; or tools, input. "
    "null takes it out. Repeatable.",
)
@json_option
def config(
    id: str,
    model: str | None,
    context: int | None,
    params: tuple[str, ...],
    limits: tuple[str, ...],
    sets: tuple[str, ...],
    json: bool,
) -> int:
    """Show a session's configuration, or change it from its next step on.

    Its workers are changed with `outrider workers set`.
    """
    from daemon.verbs import configure

    changes = configure.changes(model, context, params, limits, sets)
    return asyncio.run(configure.config(where(), id, changes, json))


@click.command(short_help="Make a copy of a session, or of its beginning.")
@id_argument
@click.argument("n", type=whole_number(1), required=False)
@click.option("--post", "text", default=None, metavar="TEXT", help="Post TEXT (`-`: stdin) to the copy.")
@click.option("-f", "--follow", "to_the_end", is_flag=True, help="With --post: show what comes of it.")
@full_option
@json_option
def fork(id: str, n: int | None, text: str | None, to_the_end: bool, full: bool, json: bool) -> int:
    """Make a copy of a session and print its id.

    With N the copy has the records before number N, so a message at N can be put in other words; where a session
    cannot be cut there, the nearest N that would do is named. The source stays as it is.
    """
    from daemon.verbs import follow, fork, posting

    if to_the_end and text is None:
        raise click.UsageError("--follow shows what comes of a post: give --post TEXT")
    parts = None if text is None else posting.parts(text, ())
    if to_the_end and parts is not None:
        look = follow.Look(full=full, json=json)
        return following(lambda place, shown: fork.followed(place, id, n, parts, look, shown))
    return asyncio.run(fork.fork(where(), id, n, parts, json))


@click.command()
@id_argument
@json_option
def stop(id: str, json: bool) -> int:
    """Stop what a session does now.

    It is stopped when this returns, and can go on after a post or a retry.
    """
    from daemon.verbs import sessions

    return asyncio.run(sessions.stop(where(), id, json))


@click.command()
@id_argument
@json_option
def retry(id: str, json: bool) -> int:
    """Let a failed or stopped session go on."""
    from daemon.verbs import sessions

    return asyncio.run(sessions.retry(where(), id, json))


@click.command()
@id_argument
@yes_option
@json_option
def end(id: str, yes: bool, json: bool) -> int:
    """End a session for good.

    It stays there to be read and copied; nothing can be posted to it. On a terminal this asks first, elsewhere it
    takes --yes.
    """
    from daemon.verbs import sessions

    return asyncio.run(sessions.end(where(), id, yes, json))


COMMANDS: Final = (ls, info, check, config, fork, stop, retry, end)
