"""How the verb that makes this machine a worker is written."""

import asyncio
import os
from typing import Any, Final

import click

from daemon.verbs import complete
from daemon.verbs.options import Verb, json_option, where, yes_option


def which(verb: Verb) -> Verb:
    """The options that name a worker of this machine, given to the verb."""
    verb = click.option("--name", default="", metavar="NAME", help="The worker's name.")(verb)
    return click.option(
        "--scratch", default="", metavar="FOLDER", help="Its folder; else one of its own for each name."
    )(verb)


@click.group(
    invoke_without_command=True,
    subcommand_metavar="[status | down | cordon NAME | uncordon NAME | remove NAME]",
    short_help="Be a worker of a daemon; see how it stands; have one take no new calls.",
)
@click.option(
    "--connect", default="", metavar="SOCKET", help="The socket at which the daemon's workers dial."
)
@which
@click.option(
    "--config",
    "file",
    default="",
    metavar="FILE",
    help="Configuration whose [worker] says what is allowed here; else the usual outrider.toml.",
)
@click.option("--as-root", is_flag=True, help="Run agents' code as root, where root starts this.")
@click.pass_context
def worker(ctx: click.Context, connect: str, name: str, scratch: str, file: str, as_root: bool) -> Any:
    """Be a worker of a daemon, in the foreground, until SIGTERM or Ctrl-C.

    \b
    outrider worker --connect ~/.local/share/outrider/workers.sock --name build

    What runs is kept by a process of its own, the keeper, which stays when this one ends: started again, it goes on
    as if nothing had been. `outrider worker down` ends both.
    """
    if ctx.invoked_subcommand is not None:
        if connect or file or as_root:
            raise click.UsageError(
                f"--connect, --config and --as-root do not go with `{ctx.invoked_subcommand}`"
            )
        ctx.obj = (scratch, name)
        return None
    if not connect or not name:
        raise click.UsageError("--connect SOCKET and --name NAME say whose worker this is, and its name")
    from daemon.verbs import worker as verbs

    return verbs.work(connect, name, scratch, file, as_root, os.environ)


@worker.command("status", short_help="Say how the worker of this machine stands.")
@which
@json_option
@click.pass_obj
def worker_status(above: tuple[str, str], name: str, scratch: str, json: bool) -> int:
    """Say how the worker of this machine stands: whether it is connected, what runs there.

    The code is 1 when it is not connected.
    """
    from daemon.verbs import worker as verbs

    return verbs.status(scratch or above[0], name or above[1], os.environ, json)


@worker.command("down", short_help="End the worker of this machine.")
@which
@json_option
@click.pass_obj
def worker_down(above: tuple[str, str], name: str, scratch: str, json: bool) -> int:
    """End the worker of this machine, and all that runs there."""
    from daemon.verbs import worker as verbs

    return verbs.down(scratch or above[0], name or above[1], os.environ, json)


@worker.command("cordon", short_help="Have a worker take no new calls.")
@click.argument("name", shell_complete=complete.workers)
@json_option
def worker_cordon(name: str, json: bool) -> int:
    """Have a worker of the daemon take no new calls, also after a restart.

    What runs there goes on, and its results are taken. A call for it gets an error that the model reads; no other
    worker does it instead.
    """
    from daemon.verbs import setup

    return asyncio.run(setup.cordon(where(), name, True, json))


@worker.command("uncordon", short_help="Let a worker take calls again.")
@click.argument("name", shell_complete=complete.workers)
@json_option
def worker_uncordon(name: str, json: bool) -> int:
    """Let a worker of the daemon take calls again."""
    from daemon.verbs import setup

    return asyncio.run(setup.cordon(where(), name, False, json))


@worker.command("remove", short_help="Put a worker out of the mesh for good.")
@click.argument("name", shell_complete=complete.workers)
@yes_option
@json_option
def worker_remove(name: str, yes: bool, json: bool) -> int:
    """Put a worker out of the mesh for good, at once: its connection ends, and its key is refused from now on.

    On a terminal this asks first, elsewhere it takes --yes. Calls that run there get an error that the model reads.
    """
    from daemon.verbs import joining

    return asyncio.run(joining.remove(where(), name, yes, json))


@worker.command("check", short_help="Say whether this installation can be a worker here.")
@json_option
def worker_check(json: bool) -> int:
    """Say whether this installation can be a worker here: start a keeper in a folder of its own, ask it, end it.

    Prints the release. An update does this before it goes on as the new one.
    """
    from daemon.verbs import worker as verbs

    return verbs.check(json)


COMMANDS: Final = (worker,)
