"""All verbs, and the page of help that groups them by what one wants to do."""

import os
from typing import Final

import click

from daemon.verbs.commands import daemons, sessions, setup, talking, working

GROUPS: Final = {
    "Run the daemon": ("up", "down", "daemon", "serve", "agent", "doctor"),
    "Talk to an agent": ("run", "new", "post", "tail"),
    "Manage sessions": ("ls", "info", "check", "config", "fork", "stop", "retry", "end"),
    "Be a worker": ("worker",),
    "Set up": ("workers", "token", "models", "providers", "key", "wheelhouse", "completion"),
}
WIDTH: Final = 100  # columns of help: longer lines are hard to read


class Tree(click.Group):
    """The verbs under the headings of GROUPS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in GROUPS.values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, self.commands))
        limit = formatter.width - 6 - longest
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{name:<{longest}}", self.commands[name].get_short_help_str(limit)) for name in names]
                )


def _release(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    if given:
        from daemon import release

        click.echo(f"outrider {release.own()}")
        ctx.exit()


@click.group(
    cls=Tree,
    invoke_without_command=True,
    subcommand_metavar="VERB …",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
)
@click.option("--socket", default="", metavar="PATH", help="The daemon's Unix socket.")
@click.option(
    "--url",
    default="",
    metavar="URL",
    help="Its URL, https:// or ssh://; also OUTRIDER_URL (key: OUTRIDER_KEY).",
)
@click.option(
    "--web",
    type=click.IntRange(0, 65535),
    is_flag=False,
    flag_value=0,
    default=None,
    metavar="[PORT]",
    help="Show the sessions in a browser of this machine instead.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_release,
    help="Show the release and exit.",
)
@click.pass_context
def outrider(ctx: click.Context, socket: str, url: str, web: int | None) -> int | None:
    """Outrider: durable agent sessions that run code on your machines.

    Without a verb, on a terminal, the sessions are shown full-screen. A daemon keeps them; the verbs here start it and
    talk to it. An ID is a session's id, or as much of
    its beginning as is unique. `outrider VERB -h` says more about a verb.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by the daemon, 4 daemon not reachable, 130 interrupted.
    """
    ctx.obj = (socket, url)
    if ctx.invoked_subcommand is not None:
        if web is not None:
            raise click.UsageError(f"--web goes without a verb, not with `{ctx.invoked_subcommand}`")
        return None
    from daemon.verbs import screen

    if web is not None:
        return screen.serve(socket, url, web, os.environ)
    if screen.wanted(os.environ):
        return screen.show(socket, url, os.environ)
    click.echo(ctx.get_help())
    return None


for module in (daemons, talking, sessions, setup, working):
    for command in module.COMMANDS:
        outrider.add_command(command)
