"""The verb serve: one agent's definition on an HTTP address, with a key, until it is told to end."""

import errno
import gc
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from daemon import agentstable, config
from daemon.agentstable import AgentsTableError
from daemon.config import Address, Settings
from daemon.definition.agent import Agent, BadAgent, load
from daemon.plain import safe
from daemon.statefile.errors import LockedError
from daemon.verbs import passing
from daemon.verbs.lean import without
from daemon.verbs.reach import OK, USAGE, VerbError, note, say, say_json

KEY: Final = "OUTRIDER_KEY"
LEAST: Final = 16  # characters of a key that somebody chose: one that is guessed lets anybody run code


class Limits(Struct, frozen=True):
    """What the command line says of the surface's limits; None is as configured. Times as text."""

    max_concurrent_turns: int | None = None
    max_sessions: int | None = None
    session_ttl: str | None = None
    shutdown_grace: str | None = None
    drain_delay: str | None = None


class Serving(Struct, frozen=True):
    """What is served, as `serve` tells it. `key`: empty where the caller chose it."""

    pid: int
    url: str
    agent: str
    data: str
    key: str = ""


def check(file: str, json: bool) -> int:
    """Say whether a definition can be used, and what of it is not acted on."""
    agent = _loaded(file)
    if json:
        say_json(
            {"name": agent.name, "model": agent.model, "inputs": agent.inputs, "warnings": agent.warnings}
        )
        return OK
    for warning in agent.warnings:
        note(safe(f"{file}: {warning}"))
    model = agent.model or "the daemon's own model"
    tools = "the model's usual tools" if agent.tools is None else ", ".join(agent.tools) or "no tools"
    say(f"{safe(file)}: agent {agent.name} can be used: {safe(model)}, {tools}")
    for name, one in agent.inputs.items():
        kind = f"one of {', '.join(one.values)}" if one.type == "enum" else one.type
        rest = (
            "required"
            if one.needed
            else f"default {one.default!r}"
            if one.default is not None
            else "optional"
        )
        say(safe(f"  input {name}: {kind}, {rest}{f'; {one.description}' if one.description else ''}"))
    return OK


def serve(
    file: str, host: str, port: int, data: str, in_memory: bool, insecure: bool, limits: Limits,
    environ: Mapping[str, str], json: bool,
) -> int:  # fmt: skip
    """Be a daemon of this one agent until SIGTERM or Ctrl-C; what it says first is where it listens, and its key."""
    from daemon.api import keys

    agent = _loaded(file)
    chosen = environ.get(KEY, "").strip()
    if chosen and len(chosen) < LEAST:
        raise VerbError(
            f"{KEY} has {len(chosen)} characters, and a key has {LEAST} at least; leave it out to get one",
            USAGE,
        )
    key = chosen or keys.fresh()
    if in_memory and data:
        raise VerbError(
            "--data names a folder that --in-memory does not use: leave one of the two out", USAGE
        )
    with without("rich"):
        from daemon import compose
    gc.freeze()
    compose.log_to(sys.stderr)
    with passing.folder(environ) if in_memory else nullcontext(data) as folder:
        settings = _settings(Path(file), Address(host, port), folder, insecure, limits, environ)

        def announce(ready: compose.Ready) -> None:
            scheme = "https" if settings.tls else "http"
            url = f"{scheme}://{ready.listen[0]}"
            shown = Serving(os.getpid(), url, agent.name, str(settings.data), "" if chosen else key)
            if json:
                say_json(shown)
                return
            kept = "in memory" if in_memory else f"in {safe(shown.data)}"
            say(f"agent {agent.name} at {url}/v1/sessions, sessions {kept}, pid {shown.pid}")
            say(f"key   {shown.key or f'the one in {KEY}'}")

        try:
            compose.run(settings, environ, announce, lent=key, in_memory=in_memory)
        except compose.StartError as error:
            raise VerbError(f"{error}{_way_out(error.__cause__)}") from error
    return OK


def _way_out(error: BaseException | None) -> str:
    """What would do here, for what keeps a daemon from starting."""
    if isinstance(error, LockedError):
        return " with --data FOLDER, or --in-memory for none"
    cause = error.__cause__ if error is not None else None
    if isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
        return "; choose another --port, 0 for a free one"
    return ""


def _loaded(file: str) -> Agent:
    path = Path(file).expanduser()
    if path.is_dir():
        raise VerbError(f"{file} is a folder, and this takes one definition; a daemon takes it, with --agent")
    try:
        return load(path)
    except BadAgent as error:
        raise VerbError(str(error)) from error


def _settings(
    file: Path, address: Address, data: str, insecure: bool, limits: Limits, environ: Mapping[str, str]
) -> Settings:
    read = config.load(environ, data=data, insecure=insecure)
    config.check_socket(read.socket)
    given = {name: value for name, value in structs.asdict(limits).items() if value is not None}
    try:
        for name, value in given.items():
            if isinstance(value, str):
                given[name] = agentstable.seconds(f"--{name.replace('_', '-')}", value)
    except AgentsTableError as error:
        raise VerbError(str(error), USAGE) from error
    agents = structs.replace(read.agents, files=(file.expanduser().absolute(),), **given)
    return structs.replace(read, listen=(address,), listen_given=True, agents=agents, agents_given=True)
