"""The options and arguments that several verbs have, and how a verb gets at the daemon that they name."""

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from daemon.verbs import complete

if TYPE_CHECKING:
    from daemon.verbs.reach import Where
    from daemon.verbs.service import Options

Verb = Callable[..., Any]

json_option = click.option("--json", "json", is_flag=True, help="Print JSON.")
full_option = click.option(
    "--full", is_flag=True, help="Show everything whole: long outputs, thinking, system text."
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
id_argument = click.argument("id", metavar="ID", shell_complete=complete.ids)
file_option = click.option(
    "--file",
    "files",
    multiple=True,
    metavar="PATH",
    type=click.Path(),
    help="A picture or a text file to post behind the text; `-` is stdin. Repeatable.",
)
param_option = click.option(
    "--param", "params", multiple=True, metavar="KEY=VALUE", help="A provider's setting. Repeatable."
)
limit_option = click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="KEY=N",
    help="A limit of the session: steps, tokens, seconds at work, cost in dollars, or ttl, seconds of idleness; "
    "0 is none. Repeatable.",
)
model_option = click.option(
    "--model",
    default="",
    metavar="PROVIDER/MODEL",
    shell_complete=complete.models,
    help="The model; else the daemon's default.",
)


def whole_number(least: int = 0) -> Callable[[str | int], int]:
    """What click makes an option's value a whole number with, from `least` on."""

    def convert(value: str | int) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise click.BadParameter(f"{value!r} is not a whole number from {least} on.")
        return number

    return convert


class Listing(click.Group):
    """A group that lists where it is given no verb: `workers ID` is `workers ls ID`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        word = next((arg for arg in args if not arg.startswith("-")), "")
        takes = any(isinstance(param, click.Argument) for param in self.commands["ls"].params)
        asked = {"-h", "--help"} & set(args)
        if not asked and not ctx.resilient_parsing and word not in self.commands and (takes or not word):
            args = ["ls", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        for param in self.commands["ls"].params:
            if isinstance(param, click.Argument):
                found += param.shell_complete(ctx, incomplete)
        return found


def serving(verb: Verb) -> Verb:
    """The options of a verb that starts a daemon, given to it as `options`."""

    @click.option(
        "--listen",
        multiple=True,
        metavar="HOST:PORT",
        help="TCP address of the API; `none` for none. Repeatable.",
    )
    @click.option(
        "--insecure", is_flag=True, help="Listen on addresses that are not loopback without TLS too."
    )
    @click.option(
        "--agent",
        "agents",
        multiple=True,
        metavar="FILE|FOLDER",
        type=click.Path(),
        help="Agents' definitions. Repeatable.",
    )
    @functools.wraps(verb)
    def with_options(
        options: "Options", listen: tuple[str, ...], insecure: bool, agents: tuple[str, ...], **rest: Any
    ) -> Any:
        from msgspec.structs import replace

        addresses = tuple(address for address in listen if address != "none") if listen else None
        return verb(replace(options, listen=addresses, insecure=insecure, agents=agents), **rest)

    return placed(with_options)


def placed(verb: Verb) -> Verb:
    """The options that say which daemon of this machine a verb starts or ends, given to it as `options`."""

    @click.option("--data", default="", metavar="FOLDER", help="Data folder; also OUTRIDER_DATA.")
    @click.option("--socket", "own_socket", default="", metavar="PATH", help="Unix socket of the API.")
    @functools.wraps(verb)
    def with_options(data: str, own_socket: str, **rest: Any) -> Any:
        from daemon.verbs.service import Options

        socket, url = click.get_current_context().obj
        if url:
            raise click.UsageError("--url names a daemon elsewhere; this verb is for one on this machine")
        return verb(Options(data, own_socket or socket), **rest)

    return with_options


def creating(verb: Verb) -> Verb:
    """The options of a verb that makes a session, given to it as one api.Create."""

    @model_option
    @click.option(
        "--worker",
        "workers",
        multiple=True,
        metavar="NAME[:FOLDER]",
        shell_complete=complete.workers,
        help="A worker the session may use, and where it starts there. Repeatable; else `local` in this folder.",
    )
    @click.option("--context", type=whole_number(), default=0, metavar="TOKENS", help="Limit of the context.")
    @click.option("--tools", default="", metavar="SET|NAME,…", help="A set of tools, or a list of them.")
    @click.option("--instructions", default="", metavar="TEXT|@FILE", help="System text for this session.")
    @click.option(
        "--agent", default="", metavar="NAME", help="Of the agents that the daemon has definitions of."
    )
    @click.option(
        "--input", "inputs", multiple=True, metavar="NAME=TEXT", help="An input of that agent. Repeatable."
    )
    @param_option
    @limit_option
    @functools.wraps(verb)
    def with_create(
        model: str,
        workers: tuple[str, ...],
        context: int,
        tools: str,
        instructions: str,
        agent: str,
        inputs: tuple[str, ...],
        params: tuple[str, ...],
        limits: tuple[str, ...],
        **rest: Any,
    ) -> Any:
        from daemon.protocol import api
        from daemon.verbs import given

        create = api.Create(
            model=model,
            context=context,
            workers=given.worker_refs(workers, where().here),
            params=given.params(params),
            tools=tuple(tools.split(",")) if "," in tools else tools,
            limits=given.limits(limits),
            instructions=given.text_of(instructions, "--instructions") if instructions else "",
            agent=agent,
            inputs=given.inputs(inputs),
        )
        return verb(create, **rest)

    return with_create


def where() -> "Where":
    """The daemon that the options and the environment name."""
    from daemon.verbs import reach

    socket, url = click.get_current_context().find_root().obj
    return reach.where(socket, url, os.environ)


def following(verb: Callable[["Where", Any], Coroutine[Any, Any, int]], leave_quietly: bool = False) -> int:
    """Run a verb that follows a session; after Ctrl-C say how to go on with it."""
    from daemon.verbs.follow import Shown
    from daemon.verbs.reach import INTERRUPTED

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
