"""Find the daemon that a verb talks to, and the session that it names."""

import os
import re
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
import msgspec
from msgspec import Struct

from daemon import config, tunnel
from daemon.client import Client, Unreachable
from daemon.plain import line, safe, safe_json
from daemon.protocol import api

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
UNREACHABLE: Final = 4
INTERRUPTED: Final = 130

COMPLAINT: Final = "outrider: "  # how the command line begins to say what is wrong
VIA: Final = "cli"  # how records name this client
CANDIDATES: Final = 10  # sessions that are shown when a prefix is not enough
_ID: Final = re.compile(r"[0-9a-f]{16}")
_PREFIX: Final = re.compile(r"[0-9a-f]{1,16}")


class VerbError(Exception):
    """A verb ends with this code and this sentence."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


class Where(Struct, frozen=True):
    """Where the daemon is: a Unix socket, or else a URL with its key and what https trusts. `here`: on this machine.

    `command`: how a command line for the same daemon begins.
    """

    socket: Path | None
    url: str = ""
    key: str = ""
    ca: str = ""
    fingerprint: str = ""
    command: str = "outrider"

    @property
    def here(self) -> bool:
        return self.socket is not None


def where(socket: str, url: str, environ: Mapping[str, str]) -> Where:
    """What the options say, else OUTRIDER_URL, else the configured socket. Raises ConfigError, VerbError."""
    if socket and url:
        raise VerbError("--socket and --url name two daemons: give one of them", USAGE)
    command = "outrider"
    for option, value in (("--socket", socket), ("--url", url)):
        command += f" {option} {shlex.quote(value)}" if value else ""
    url = "" if socket else url or environ.get("OUTRIDER_URL", "")
    if url.startswith("unix:"):
        socket, url = url.removeprefix("unix:").removeprefix("//"), ""
        if not socket:
            raise VerbError("unix: needs the socket's path, as in unix:/run/outrider/api.sock", USAGE)
        command = f"outrider --socket {shlex.quote(socket)}"  # `up` takes no URL
    if url:
        if not _is_address(url):
            raise VerbError(
                f"{line(url)} is not a URL of a daemon: write http://HOST:PORT, ssh://HOST or unix:/PATH",
                USAGE,
            )
        key, ca, fingerprint = (environ.get(f"OUTRIDER_{name}", "") for name in ("KEY", "CA", "FINGERPRINT"))
        if key and not (key.isascii() and key.isprintable() and " " not in key):
            raise VerbError(
                "OUTRIDER_KEY holds no key: one line is wanted, as `outrider key new NAME` prints it", USAGE
            )
        return Where(None, url, key, ca, fingerprint, command)
    path = Path(os.path.abspath(Path(socket).expanduser())) if socket else config.load(environ).socket
    return Where(config.check_socket(path), command=command)


def _is_address(url: str) -> bool:
    try:
        if url.startswith("ssh://"):
            tunnel.parse(url)
            return True
        parts = urlsplit(url)
        plain = url.isprintable() and " " not in url and parts.port != 0
    except ValueError:  # a port that is none, brackets that do not close
        return False
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname)


def client(place: Where) -> Client:
    """A client of the daemon at `place`, which has asked nothing yet. Raises VerbError."""
    try:
        return Client(place.socket or place.url, place.key, ca=place.ca, fingerprint=place.fingerprint)
    except ValueError as error:
        raise VerbError(f"OUTRIDER_CA, OUTRIDER_FINGERPRINT: {error}", USAGE) from error


@asynccontextmanager
async def connect(place: Where) -> AsyncIterator[Client]:
    """A client of the daemon at `place`. Raises VerbError when none answers."""
    made = client(place)
    try:
        async with made:
            yield made
    except Unreachable as error:
        said = safe(str(error))
        if place.here:
            said = f"{said.partition(';')[0]}; `{place.command} up` starts it"
        raise VerbError(said, UNREACHABLE) from error


async def session_id(client: Client, prefix: str) -> str:
    """The whole id of the session whose id begins with `prefix`. Raises VerbError when none or several do."""
    prefix = prefix.strip().lower()
    if _ID.fullmatch(prefix):
        return prefix
    if not _PREFIX.fullmatch(prefix):
        raise VerbError(f"{line(prefix)!r} is not a session's id: hex digits, as `outrider ls` shows", USAGE)
    found = []
    after = ""
    while page := await client.list(limit=api.MAX_LIST, after=after):
        found += [info for info in page if info.id.startswith(prefix)]
        after = page[-1].id
        if len(page) < api.MAX_LIST:
            break
    if not found:
        raise VerbError(f"no session's id begins with {prefix}; `outrider ls` shows the sessions", REFUSED)
    if len(found) > 1:
        shown = [f"  {info.id}  {info.status:<11}  {line(info.title, 60)}" for info in found[:CANDIDATES]]
        if len(found) > CANDIDATES:
            shown.append(f"  … and {len(found) - CANDIDATES} more")
        raise VerbError("\n".join([f"{prefix} begins {len(found)} sessions' ids:", *shown]), USAGE)
    return found[0].id


def say(text: str) -> None:
    """A line on stdout."""
    click.echo(text)


def note(text: str) -> None:
    """A line on stderr that is no complaint."""
    click.echo(text, err=True)


def say_json(value: Any) -> None:
    """A value as one line of JSON on stdout."""
    data = msgspec.json.encode(value)
    click.echo(safe_json(data.decode()) if sys.stdout.isatty() else data)
