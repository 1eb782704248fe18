"""How the verbs on the daemon itself are written."""

import os
from typing import TYPE_CHECKING, Any, Final

import click

from daemon.verbs.options import json_option, placed, serving, whole_number

if TYPE_CHECKING:
    from daemon.verbs.service import Options

SHELLS: Final = ("bash", "zsh", "fish")


@click.command(short_help="Be the daemon, in the foreground.")
@serving
@json_option
def daemon(options: "Options", json: bool) -> int:
    """Be the daemon, in the foreground, until SIGTERM or Ctrl-C.

    One line on stdout says where it listens, as soon as it is ready; the log goes to stderr.
    """
    from daemon.verbs import service

    return service.daemon(options, os.environ, json)


@click.command(short_help="Start the daemon in the background.")
@serving
@json_option
def up(options: "Options", json: bool) -> int:
    """Start the daemon in the background and wait until it is ready."""
    from daemon.verbs import reach, service

    code = service.up(options, os.environ, json)
    if os.environ.get("OUTRIDER_URL"):
        reach.note("OUTRIDER_URL is set: other verbs ask the daemon there, not this one")
    return code


@click.command()
@placed
@json_option
def down(options: "Options", json: bool) -> int:
    """End the daemon and its local worker.

    Sessions in work go on after the next `up`.
    """
    from daemon.verbs import service

    return service.down(options, os.environ, json)


@click.command(short_help="Serve an agent's definition over HTTP.")
@click.argument("file", metavar="FILE", type=click.Path())
@click.option(
    "--host", default="127.0.0.1", metavar="HOST", help="Address to listen on; 127.0.0.1 unless given."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    metavar="PORT",
    help="8080 unless given; 0: a free one.",
)
@click.option("--insecure", is_flag=True, help="Listen on an address that is not loopback without TLS too.")
@click.option("--in-memory", is_flag=True, help="Keep no session on disk: all are gone at the end.")
@click.option("--data", default="", metavar="FOLDER", help="Data folder; also OUTRIDER_DATA.")
@click.option(
    "--max-concurrent-turns", type=whole_number(), metavar="N", help="Turns at once; 0: any number."
)
@click.option(
    "--max-sessions", type=whole_number(), metavar="N", help="Sessions that have not ended; 0: any number."
)
@click.option(
    "--session-ttl", metavar="TIME", help="How long a session may be idle, such as 168h; 0: for ever."
)
@click.option(
    "--shutdown-grace",
    metavar="TIME",
    help="How long turns have to end at the end, such as 25s; 0: they are cut at once.",
)
@click.option(
    "--drain-delay",
    metavar="TIME",
    help="How long before that requests are still taken, such as 5s; 0: not at all.",
)
@json_option
def serve(
    file: str, host: str, port: int, insecure: bool, in_memory: bool, data: str, json: bool, **limits: Any
) -> int:
    """Be a daemon of the agent that FILE declares, in the foreground, until SIGTERM or Ctrl-C.

    The first lines on stdout say where it is, and the key of this run; set OUTRIDER_KEY to choose the key yourself.
    """
    from daemon.verbs import serve

    asked = serve.Limits(**limits)
    return serve.serve(file, host, port, data, in_memory, insecure, asked, os.environ, json)


@click.group(short_help="Check agents' definitions.")
def agent() -> None:
    """Check agents' definitions."""


@agent.command("check")
@click.argument("file", metavar="FILE", type=click.Path())
@json_option
def agent_check(file: str, json: bool) -> int:
    """Say whether the agent that FILE declares can be used, what inputs it takes, and what of it is not acted on."""
    from daemon.verbs import serve

    return serve.check(file, json)


@click.command(short_help="Check everything, and say what to do.")
@json_option
def doctor(json: bool) -> int:
    """Check the installation, the daemon and its worker, and say what to do.

    Nothing is changed, and no provider is asked. The code is 1 when a check is failing.
    """
    from daemon.verbs import doctor

    socket, url = click.get_current_context().obj
    return doctor.doctor(socket, url, os.environ, json)


@click.command(short_help="Fetch the wheels that joining machines install from here.")
@click.option("--into", default="", metavar="FOLDER", help="Another folder than the daemon's own.")
@click.option(
    "--python", "pythons", multiple=True, metavar="VERSION", help="For this Python, such as 3.12. Repeatable."
)
@click.option(
    "--arch",
    "archs",
    multiple=True,
    metavar="ARCH",
    help="For these machines, as `uname -m` says. Repeatable.",
)
@json_option
def wheelhouse(into: str, pythons: tuple[str, ...], archs: tuple[str, ...], json: bool) -> int:
    """Fetch the wheels of this release and all that it needs, for machines that join and reach no package index.

    They come from where pip takes packages here, in the versions that are installed here, and go into the daemon's
    data folder, in place of those of before. Without options they are for this Python and this kind of
    machine.
    """
    from daemon.verbs import wheels

    return wheels.fill(into, pythons, archs, os.environ, json)


@click.command(short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    """Print the script that lets a shell complete verbs, options, and the ids of sessions.

    \b
    bash, in ~/.bashrc:  eval "$(outrider completion bash)"
    zsh, in ~/.zshrc:    eval "$(outrider completion zsh)"
    fish, once:
      outrider completion fish >~/.config/fish/completions/outrider.fish
    """
    from click.shell_completion import BashComplete, get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    script = found(click.get_current_context().find_root().command, {}, "outrider", "_OUTRIDER_COMPLETE")
    # BashComplete.source looks at the bash on the PATH and complains on stderr; the shell that reads this is another
    text = (
        script.source_template % script.source_vars() if isinstance(script, BashComplete) else script.source()
    )
    click.echo(text.strip())
    return 0


COMMANDS: Final = (daemon, up, down, serve, agent, doctor, wheelhouse, completion)
