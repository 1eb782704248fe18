"""The command line: each verb parses, calls one function of daemon.verbs and returns its code."""

import asyncio
import functools
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, get_args

import click

from daemon.protocol.records import Status

if TYPE_CHECKING:
    from daemon.verbs.reach import Where
    from daemon.verbs.service import Options

INTERRUPTED: Final = 130
ORDER: Final = (
    "up",
    "down",
    "daemon",
    "run",
    "new",
    "post",
    "tail",
    "ls",
    "info",
    "stop",
    "retry",
    "workers",
    "models",
)

Verb = Callable[..., Any]


class Place(click.Group):
    """The verbs in the order of ORDER."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)


@click.group(cls=Place, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--socket", default="", metavar="PATH", help="The daemon's Unix socket.")
@click.option(
    "--url", default="", metavar="URL", help="The daemon's URL; also OUTRIDER_URL (key: OUTRIDER_KEY)."
)
@click.version_option(package_name="outrider", message="outrider %(version)s")
@click.pass_context
def outrider(ctx: click.Context, socket: str, url: str) -> None:
    """Outrider: durable agent sessions that run code on your machines.

    A daemon keeps the sessions; the verbs here start it and talk to it. An ID is a session's id or as much of
    its beginning as is unique.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by the daemon, 4 daemon not reachable, 130 interrupted.
    """
    ctx.obj = (socket, url)


json_option = click.option("--json", "json", is_flag=True, help="Print JSON.")
full_option = click.option(
    "--full", is_flag=True, help="Show everything whole: long outputs, thinking, system text."
)
id_argument = click.argument("id", metavar="ID")


def serving(verb: Verb) -> Verb:
    """The options of a verb that starts or ends a daemon, given to it as `options`."""

    @click.option("--data", default="", metavar="FOLDER", help="Data folder; also OUTRIDER_DATA.")
    @click.option("--socket", "own_socket", default="", metavar="PATH", help="Unix socket of the API.")
    @click.option(
        "--listen",
        multiple=True,
        metavar="HOST:PORT",
        help="TCP address of the API; `none` for none. Repeatable.",
    )
    @click.option(
        "--insecure", is_flag=True, help="Listen on addresses that are not loopback without TLS too."
    )
    @json_option
    @functools.wraps(verb)
    def with_options(data: str, own_socket: str, listen: tuple[str, ...], insecure: bool, json: bool) -> Any:
        from daemon.verbs.service import Options

        socket, url = click.get_current_context().obj
        if url:
            raise click.UsageError("--url names a daemon elsewhere; this verb is for one on this machine")
        addresses = tuple(address for address in listen if address != "none") if listen else None
        return verb(Options(data, own_socket or socket, addresses, insecure), json)

    return with_options


def creating(verb: Verb) -> Verb:
    """The options of a verb that makes a session, given to it as one api.Create."""

    @click.option(
        "--model", default="", metavar="PROVIDER/MODEL", help="The model; else the daemon's default."
    )
    @click.option(
        "--worker",
        "workers",
        multiple=True,
        metavar="NAME[:FOLDER]",
        help="A worker the session may use, and where it starts there. Repeatable; else `local` in this folder.",
    )
    @click.option(
        "--context", type=click.IntRange(0), default=0, metavar="TOKENS", help="Limit of the context."
    )
    @click.option("--tools", default="", metavar="SET|NAME,…", help="A set of tools, or a list of them.")
    @click.option("--instructions", default="", metavar="TEXT|@FILE", help="System text for this session.")
    @click.option(
        "--param", "params", multiple=True, metavar="KEY=VALUE", help="A provider's setting. Repeatable."
    )
    @functools.wraps(verb)
    def with_create(
        model: str,
        workers: tuple[str, ...],
        context: int,
        tools: str,
        instructions: str,
        params: tuple[str, ...],
        **rest: Any,
    ) -> Any:
        from daemon.protocol import api
        from daemon.verbs import sessions

        create = api.Create(
            model=model,
            context=context,
            workers=sessions.worker_refs(workers, where().here),
            params=sessions.params(params),
            tools=tuple(tools.split(",")) if "," in tools else tools,
            instructions=sessions.text_of(instructions, "--instructions") if instructions else "",
        )
        return verb(create, **rest)

    return with_create


def where() -> "Where":
    """The daemon that the options and the environment name."""
    from daemon.verbs import reach

    socket, url = click.get_current_context().obj
    return reach.where(socket, url, os.environ)


@outrider.command()
@serving
def daemon(options: "Options", json: bool) -> int:
    """Be the daemon, in the foreground, until SIGTERM or Ctrl-C.

    One line on stdout says where it listens, as soon as it is ready; the log goes to stderr.
    """
    from daemon.verbs import service

    return service.daemon(options, os.environ, json)


@outrider.command()
@serving
def up(options: "Options", json: bool) -> int:
    """Start the daemon in the background and wait until it is ready."""
    from daemon.verbs import service

    return service.up(options, os.environ, json)


@outrider.command()
@serving
def down(options: "Options", json: bool) -> int:
    """End the daemon and its local worker. Sessions in work go on after the next `up`."""
    from daemon.verbs import service

    return service.down(options, os.environ, json)


@outrider.command()
@creating
@json_option
def new(create: Any, json: bool) -> int:
    """Make a session and print its id."""
    from daemon.verbs import sessions

    return asyncio.run(sessions.new(where(), create, json))


@outrider.command()
@click.argument("prompt")
@full_option
@creating
@json_option
def run(create: Any, prompt: str, full: bool, json: bool) -> int:
    """Make a session, post PROMPT (`-`: stdin) and show what comes of it, to the end.

    The code is 0 when the session closes and 1 when it fails. Ctrl-C leaves the session running.
    """
    from daemon.verbs import follow, sessions

    parts, look = sessions.message(prompt), follow.Look(full=full, json=json)
    return following(lambda place, shown: follow.run(place, create, parts, look, shown))


@outrider.command()
@id_argument
@click.argument("text")
@click.option(
    "-f", "--follow", "to_the_end", is_flag=True, help="Show what comes of it, to the end of the answer."
)
@full_option
@json_option
def post(id: str, text: str, to_the_end: bool, full: bool, json: bool) -> int:
    """Post TEXT (`-`: stdin) to a session. It is on disk when this returns."""
    from daemon.verbs import follow, sessions

    parts = sessions.message(text)
    if to_the_end:
        look = follow.Look(full=full, json=json)
        return following(lambda place, shown: follow.post(place, id, parts, look, shown))
    return asyncio.run(sessions.post(where(), id, parts, json))


@outrider.command()
@id_argument
@click.option("-f", "--follow", "keep_on", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "-n", "last", type=click.IntRange(0), default=None, metavar="N", help="Only the last N records."
)
@full_option
@json_option
def tail(id: str, keep_on: bool, last: int | None, full: bool, json: bool) -> int:
    """Show the records of a session."""
    from daemon.verbs import follow

    look = follow.Look(full=full, json=json, last=last)
    if keep_on:
        return following(lambda place, shown: follow.tail(place, id, look, True, shown), leave_quietly=True)
    return asyncio.run(follow.tail(where(), id, look, False, follow.Shown()))


@outrider.command()
@click.option("--status", type=click.Choice(get_args(Status)), default=None, help="Only those.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="At most N."
)
@json_option
def ls(status: Status | None, limit: int, json: bool) -> int:
    """List the sessions, newest updated first."""
    from daemon.verbs import sessions

    return asyncio.run(sessions.ls(where(), status, limit, json))


@outrider.command()
@id_argument
@json_option
def info(id: str, json: bool) -> int:
    """Show what stands about a session."""
    from daemon.verbs import sessions

    return asyncio.run(sessions.info(where(), id, json))


@outrider.command()
@id_argument
@json_option
def stop(id: str, json: bool) -> int:
    """Stop what a session does now; it can go on after a post or a retry."""
    from daemon.verbs import sessions

    return asyncio.run(sessions.stop(where(), id, json))


@outrider.command()
@id_argument
@json_option
def retry(id: str, json: bool) -> int:
    """Let a failed or stopped session go on."""
    from daemon.verbs import sessions

    return asyncio.run(sessions.retry(where(), id, json))


@outrider.command()
@json_option
def workers(json: bool) -> int:
    """List the workers."""
    from daemon.verbs import sessions

    return asyncio.run(sessions.workers(where(), json))


@outrider.command()
@json_option
def models(json: bool) -> int:
    """List the models that sessions can have."""
    from daemon.verbs import sessions

    return asyncio.run(sessions.models(where(), json))


def following(verb: Callable[["Where", Any], Coroutine[Any, Any, int]], leave_quietly: bool = False) -> int:
    """Run a verb that follows a session; after Ctrl-C say how to go on with it."""
    from daemon.verbs.follow import Shown

    shown, place = Shown(), where()
    try:
        return asyncio.run(verb(place, shown))
    except KeyboardInterrupt:
        if shown.id and not leave_quietly:
            click.echo(
                f"\nSession {shown.id} goes on. Follow it: {place.command} tail -f {shown.id}"
                f"\nStop it: {place.command} stop {shown.id}",
                err=True,
            )
        return INTERRUPTED


def invoke(arguments: Sequence[str]) -> int:
    """Run a command line and return its code. The one funnel for errors: no traceback reaches a user."""
    try:
        code = outrider.main(args=list(arguments), prog_name="outrider", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered has nowhere to go
        return 1
    except Exception as error:  # noqa: BLE001 - the user gets a sentence and a code
        from daemon.verbs.explain import explain

        message, failed = explain(error)
        click.echo(message, err=True)
        return failed
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a locale without these characters still gets the rest
    sys.exit(invoke(sys.argv[1:]))


if __name__ == "__main__":
    main()
