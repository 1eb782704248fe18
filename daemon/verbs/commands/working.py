"""How the verb that makes this machine a worker is written."""

import asyncio
import os
from typing import Any, Final

import click
from click.core import ParameterSource

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
    subcommand_metavar="[status | down | leave | cordon NAME | uncordon NAME | remove NAME]",
    short_help="Be a worker of a daemon; see how it stands; have one take no new calls.",
)
@click.option(
    "--join",
    default="",
    metavar="TOKEN",
    envvar=["OUTRIDER_JOIN", "OUTRIDER_TOKEN"],
    help="Join the mesh of the harness that made this token; - reads it from standard input.",
)
@click.option(
    "--connect",
    default="",
    metavar="SOCKET",
    help="The socket at which a daemon of this machine has its workers dial.",
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
@click.option(
    "--user",
    default="",
    metavar="NAME",
    help="Where root starts this: be this user's worker; root keeps nothing but the interface of the mesh.",
)
@click.pass_context
def worker(
    ctx: click.Context,
    join: str,
    connect: str,
    name: str,
    scratch: str,
    file: str,
    as_root: bool,
    user: str,
) -> Any:
    """Be a worker of a daemon, in the foreground, until SIGTERM or Ctrl-C.

    \b
    outrider worker --join TOKEN
    outrider worker
    outrider worker --connect ~/.local/share/outrider/workers.sock --name build

    The first joins the mesh of a harness, whose `outrider token new` prints the token; the second goes on after that
    by what is kept of it, after a reboot for one. The third is a worker beside the daemon, on the same machine.

    What runs is kept by a process of its own, the keeper, which stays when this one ends: started again, it goes on
    as if nothing had been. `outrider worker down` ends both.
    """
    if ctx.invoked_subcommand is not None:
        given = join and ctx.get_parameter_source("join") is not ParameterSource.ENVIRONMENT
        if given or connect or file or as_root or user:
            raise click.UsageError(
                f"--join, --connect, --config, --as-root and --user do not go with `{ctx.invoked_subcommand}`"
            )
        ctx.obj = (scratch, name)
        return None
    if connect and (join or user or not name):
        raise click.UsageError(
            "--connect SOCKET takes --name NAME, the worker's name, and neither --join nor --user"
        )
    if user and as_root:
        raise click.UsageError("--user and --as-root: either agents' code is that user's, or root's")
    if connect:
        from daemon.verbs import worker as verbs

        return verbs.work(connect, name, scratch, file, as_root, os.environ)
    from daemon.verbs import member

    if join:
        return member.join(join, name, scratch, file, as_root, user, os.environ)
    return member.resume(scratch, name, file, as_root, user, os.environ)


@worker.command("status", short_help="Say how the worker of this machine stands.")
@which
@json_option
@click.pass_obj
def worker_status(above: tuple[str, str], name: str, scratch: str, json: bool) -> int:
    """Say how the worker of this machine stands: whether it is connected and by which way, what runs there.

    Of several workers all, unless one is named. The code is 1 when one is not connected.
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


@worker.command("leave", short_help="Take this machine out of its harness's mesh.")
@which
@click.option("--force", is_flag=True, help="Leave also where the harness cannot be told.")
@click.option("--purge", is_flag=True, help="Remove the worker's folder too: journals, outputs, releases.")
@json_option
@click.pass_obj
def worker_leave(
    above: tuple[str, str], name: str, scratch: str, force: bool, purge: bool, json: bool
) -> int:
    """Take this machine out of its harness's mesh for good, and end its worker and what runs there.

    The harness forgets it as after `outrider worker remove`. To join again takes another token.
    """
    from daemon.verbs import member

    return member.leave(scratch or above[0], name or above[1], force, purge, os.environ, json)


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
