"""How the verbs on workers, join tokens, models, providers and API keys are written."""

import asyncio
import re
from typing import Final, get_args

import click

from daemon.protocol import api
from daemon.verbs import complete
from daemon.verbs.options import Listing, id_argument, json_option, where, whole_number


@click.group(
    cls=Listing,
    subcommand_metavar="[ID | ls [ID] | set ID …]",
    short_help="List the workers; give a session others.",
)
def workers() -> None:
    """List the workers, or a session's; give a session others."""


@workers.command("ls")
@click.argument("id", metavar="[ID]", required=False, shell_complete=complete.ids)
@json_option
def workers_ls(id: str | None, json: bool) -> int:
    """List the workers, with ID those of that session."""
    from daemon.verbs import setup

    if id is None:
        return asyncio.run(setup.workers(where(), json))
    return asyncio.run(setup.workers_of(where(), id, json))


@workers.command("set")
@id_argument
@click.argument("workers", metavar="NAME[:FOLDER] …", nargs=-1, shell_complete=complete.workers)
@click.option("--none", is_flag=True, help="No workers at all: only answers in words.")
@json_option
def workers_set(id: str, workers: tuple[str, ...], none: bool, json: bool) -> int:
    """Give a session these workers, in place of those it has.

    Without a FOLDER a worker that the session has keeps its own. What a session started on a worker that is dropped is
    ended there.
    """
    from daemon.verbs import given, setup

    if none == bool(workers):
        raise click.UsageError("give the names of the workers that it shall have, or --none")
    place = where()
    refs = given.worker_refs(workers, place.here) if workers else ()
    return asyncio.run(setup.set_workers(place, id, refs, workers, json))


@click.command(short_help="List the models, with their limits.")
@json_option
def models(json: bool) -> int:
    """List the models that sessions can have, with their limits."""
    from daemon.verbs import providing

    return asyncio.run(providing.models(where(), json))


@click.group(
    cls=Listing,
    subcommand_metavar="[ls | set NAME | test NAME | scan]",
    short_help="List, set up, test and find providers.",
)
def providers() -> None:
    """List the providers of models; set one's key or address, try one, find local ones."""


@providers.command("ls", short_help="List the providers, with their keys and addresses.")
@json_option
def providers_ls(json: bool) -> int:
    """List the providers: which have a key, where they are, what they serve."""
    from daemon.verbs import providing

    return asyncio.run(providing.providers(where(), json))


@providers.command("set")
@click.argument("name", shell_complete=complete.providers)
@click.argument("stray", nargs=-1, metavar="")
@click.option("--kind", default=None, metavar="KIND", help="What it speaks: anthropic, openai-chat, …")
@click.option("--url", default=None, metavar="URL", help="Where it is; empty is the vendor's own address.")
@click.option("--region", default=None, metavar="REGION", help="Of Amazon Bedrock, as in eu-west-1.")
@click.option(
    "--key",
    is_flag=False,
    flag_value="-",
    default=None,
    metavar="[-]",
    help="Set its key, from stdin or typed unseen; meant when nothing else is set.",
)
@click.option("--keyring", is_flag=True, help="Keep the key in the system's keyring, not in a file.")
@click.option(
    "--key-env", default=None, metavar="VAR", help="Take the key from $VAR of the daemon's environment."
)
@click.option("--no-key", is_flag=True, help="Take its key out.")
@json_option
def providers_set(
    name: str,
    stray: tuple[str, ...],
    kind: str | None,
    url: str | None,
    region: str | None,
    key: str | None,
    keyring: bool,
    key_env: str | None,
    no_key: bool,
    json: bool,
) -> int:
    """Set a provider's key, kind, address or region.

    It holds at once, for requests that begin from now on, and after a restart. The key is read from stdin, or asked
    for; it is never an argument, which others on the machine could see.
    """
    from daemon.verbs import providing

    if stray or key not in (None, "-"):
        raise click.UsageError(
            "a key is not an argument, others could see it: pipe it in, or type it when asked"
        )
    if (key is not None or keyring) + (key_env is not None) + no_key > 1:
        raise click.UsageError("--key, --key-env and --no-key contradict each other: give one of them")
    about: providing.Key | None = None
    if key_env is not None:
        if not re.fullmatch(r"\$?[A-Za-z_]\w*", key_env):
            raise click.UsageError("--key-env: write a variable's name, as in OPENROUTER_API_KEY")
        about = providing.Key("env", key_env.removeprefix("$"))
    elif no_key:
        about = providing.Key("none")
    elif keyring:
        about = providing.Key("keyring")
    elif key is not None:
        about = providing.Key("read")
    return asyncio.run(providing.set_provider(where(), name, kind, url, region, about, json))


@providers.command("test", short_help="Try a provider with one small request.")
@click.argument("name", metavar="NAME[/MODEL]", shell_complete=complete.providers)
@json_option
def providers_test(name: str, json: bool) -> int:
    """Have the daemon send a provider one small, real request, and say what came of it.

    It goes the way of every step, to the provider's first model unless one is named, and costs what such a request
    costs. Exits with 1 where there is no answer.
    """
    from daemon.verbs import providing

    return asyncio.run(providing.test_provider(where(), name, json))


@providers.command("scan", short_help="Find model servers on the daemon's machine.")
@click.option("--add", is_flag=True, help="Set up those that are new, without asking.")
@click.option(
    "--port",
    "ports",
    type=click.IntRange(1, 65535),
    multiple=True,
    metavar="N",
    help="Look there instead. Repeatable.",
)
@json_option
def providers_scan(add: bool, ports: tuple[int, ...], json: bool) -> int:
    """Look at the usual ports of the daemon's machine for servers of models: 11434, 1234, 8080, 8000.

    Those of Ollama, LM Studio, llama.cpp and vLLM. On a terminal you are asked whether to set up each that is new.
    """
    from daemon.verbs import providing

    return asyncio.run(providing.scan(where(), ports, add, json))


@click.group(cls=Listing, subcommand_metavar="[ls | new NAME | revoke NAME]")
def key() -> None:
    """Make, list and revoke keys of the HTTP API."""


@key.command("ls")
@json_option
def key_ls(json: bool) -> int:
    """List the keys; none is shown itself."""
    from daemon.verbs import setup

    return asyncio.run(setup.keys(where(), json))


@key.command("new")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(get_args(api.Role)),
    default="operator",
    show_default=True,
    help="viewer looks, operator also acts on sessions, admin also sets up the daemon.",
)
@json_option
def key_new(name: str, role: api.Role, json: bool) -> int:
    """Make a key and print it: it is shown this once.

    stdout has the key alone, as in OUTRIDER_KEY=$(outrider key new laptop).
    """
    from daemon.verbs import setup

    return asyncio.run(setup.new_key(where(), name, role, json))


@key.command("revoke")
@click.argument("name", shell_complete=complete.keys)
@json_option
def key_revoke(name: str, json: bool) -> int:
    """Revoke a key; what is open with it ends."""
    from daemon.verbs import setup

    return asyncio.run(setup.revoke_key(where(), name, json))


@click.group(cls=Listing, subcommand_metavar="[ls | new [NAME] | revoke ID]")
def token() -> None:
    """Make, list and revoke the tokens that machines join with."""


@token.command("ls")
@json_option
def token_ls(json: bool) -> int:
    """List the tokens; none is shown itself."""
    from daemon.verbs import joining

    return asyncio.run(joining.tokens(where(), json))


@token.command("new", short_help="Make a token and the line that joins; shown this once.")
@click.argument("name", default="")
@click.option(
    "--uses", type=whole_number(1), default=1, metavar="N", help="Machines that it lets join; 1 unless given."
)
@click.option(
    "--expires", default="24h", metavar="TIME", help="How long it does: 30m, 12h, 7d; 24h unless given."
)
@click.option(
    "--ephemeral", is_flag=True, help="Who joins by it leaves by itself when it is gone for minutes."
)
@click.option("--line", "only_line", is_flag=True, help="Print the shell line alone, without the token.")
@json_option
def token_new(name: str, uses: int, expires: str, ephemeral: bool, only_line: bool, json: bool) -> int:
    """Make a token and print it, with the line that makes a machine a worker: shown this once.

    NAME is for you, to know the token by. stdout has the token alone, as in TOKEN=$(outrider token new rack-7). The
    first one brings the mesh up, and says why where that cannot be.
    """
    from daemon.verbs import joining

    new = api.NewToken(name, uses, joining.lifetime(expires), ephemeral)
    return asyncio.run(joining.new_token(where(), new, only_line, json))


@token.command("revoke")
@click.argument("id", type=whole_number(1), shell_complete=complete.tokens)
@json_option
def token_revoke(id: int, json: bool) -> int:
    """Revoke a token: it lets no machine join any more. Who has joined by it stays."""
    from daemon.verbs import joining

    return asyncio.run(joining.revoke_token(where(), id, json))


token.add_command(click.Command("list", callback=token_ls.callback, params=token_ls.params, hidden=True))

COMMANDS: Final = (workers, token, models, providers, key)
