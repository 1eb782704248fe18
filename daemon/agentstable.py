"""`[agents]` of outrider.toml: agents' definitions, and the limits of the surface that serves them."""

import re
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])")

Count = Annotated[int, Meta(ge=0)]


class AgentsTableError(Exception):
    """A key of `[agents]` cannot be used; the message names the key and what would be right."""


class AgentsTable(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`files`: definitions, or folders of them (*.yaml, *.yml); none: the folder `agents` beside outrider.toml.

    `max_concurrent_turns`: of the agent-server surface, at once. `max_sessions`: made there, that have neither ended
    nor expired. 0: any number. `session_ttl`: how long one may be idle, such as 168h; 0 for ever. `shutdown_grace`: how
    long turns have to end when the daemon ends; 0 cuts them at once. `drain_delay`: how long, before that, requests are
    still taken while /readyz says that there should be none.
    """

    files: tuple[str, ...] = ()
    max_concurrent_turns: Count = 8
    max_sessions: Count = 1000
    session_ttl: str | float = "168h"
    shutdown_grace: str | float = "25s"
    drain_delay: str | float = "0s"


class Agents(Struct, frozen=True, kw_only=True):
    """The same, checked: times in seconds."""

    files: tuple[Path, ...]
    max_concurrent_turns: int
    max_sessions: int
    session_ttl: float
    shutdown_grace: float
    drain_delay: float


def checked(given: AgentsTable, folder: Path) -> Agents:
    """`given` with its paths from the root on; `folder`: where definitions are when none are named.

    Raises AgentsTableError.
    """
    files = []
    for text in given.files:
        path = Path(text).expanduser()
        if not path.is_absolute():
            raise AgentsTableError(f"agents.files: {text!r} is not a path from the root on, or from ~")
        files.append(path)
    times = {
        name: seconds(f"agents.{name}", getattr(given, name))
        for name in ("session_ttl", "shutdown_grace", "drain_delay")
    }
    return Agents(
        files=tuple(files) if files else (folder,),
        max_concurrent_turns=given.max_concurrent_turns,
        max_sessions=given.max_sessions,
        **times,
    )


def seconds(name: str, given: str | float) -> float:
    """A time such as 30s, 15m, 168h or 7d; a number of a TOML file is in seconds. Raises AgentsTableError."""
    if isinstance(given, int | float) and 0 <= given < 10**9:
        return float(given)
    found = _TIME.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is not None:
        return float(found[1]) * UNITS[found[2]]
    if given == "0":
        return 0.0
    raise AgentsTableError(f"{name}: {given!r} is not a time; write it as 30s, 15m, 168h or 7d, or 0")
