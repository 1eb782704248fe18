"""The verb that shows a session's configuration and changes it."""

from collections.abc import Sequence
from typing import Final

import msgspec

from daemon.plain import tokens
from daemon.protocol import api
from daemon.protocol.records import Config
from daemon.verbs import given
from daemon.verbs.reach import OK, USAGE, VIA, VerbError, Where, connect, say, say_json, session_id
from daemon.verbs.tables import facts
from daemon.view import limits_in_words

EXAMPLE: Final = "params.temperature=0.2"


def changes(
    model: str | None,
    context: int | None,
    params: Sequence[str],
    limits: Sequence[str],
    sets: Sequence[str],
) -> api.ConfigPatch:
    """What the options say. Raises VerbError."""
    texts = [text for text in sets if text.startswith("model=")]  # a model's name is never JSON
    made = given.tree([text for text in sets if text not in texts], "--set", EXAMPLE)
    for text in texts:
        made["model"] = None if text == "model=null" else text.removeprefix("model=")
    made |= {} if model is None else {"model": model}
    made |= {} if context is None else {"context": context}
    for name, more, option in (("params", params, "--param"), ("limits", limits, "--limit")):
        if not more:
            continue
        if not isinstance(made.setdefault(name, {}), dict):
            raise VerbError(f"--set {name} and {option} contradict each other: give one of them", USAGE)
        made[name] |= given.tree(more, option, "steps=10" if name == "limits" else "temperature=0.2")
    if not isinstance(made.get("limits", {}), dict | None):
        raise VerbError(
            "--set limits: write one limit, as in limits.steps=10, or limits=null for none", USAGE
        )
    if made.get("limits"):
        given.converted(made["limits"], api.LimitsPatch, "--limit")  # names the limit that is wrong
    return given.converted(made, api.ConfigPatch, "--set")


async def config(place: Where, prefix: str, patch: api.ConfigPatch, json: bool) -> int:
    """Show a session's configuration, or change it; it holds from the session's next step on."""
    async with connect(place) as client:
        id = await session_id(client, prefix)
        n = 0
        if patch != api.ConfigPatch():
            n = await client.patch_config(id, patch, VIA)
        found = await client.info(id)
    if json:
        say_json({"id": id, "n": n, "config": found.config} if n else {"id": id, "config": found.config})
        return OK
    if n:
        say(f"#{n}: it holds from the next step on")
    facts([(name, value, "") for name, value in rows(found.config)])
    return OK


def rows(config: Config) -> list[tuple[str, str]]:
    """A configuration as names and values; what is not set is left out."""
    return [
        ("agent", config.agent),
        ("model", config.model),
        ("context", tokens(config.context) if config.context else ""),
        ("params", msgspec.json.encode(config.params).decode() if config.params else ""),
        ("limits", limits_in_words(config)),
        ("workers", workers(config)),
        ("tools", config.tools if isinstance(config.tools, str) else ", ".join(config.tools)),
        ("takes", ", ".join(config.input)),
    ]


def workers(config: Config) -> str:
    """A session's workers as they are written on a command line."""
    return ", ".join(f"{ref.name}:{ref.cwd}" if ref.cwd else ref.name for ref in config.workers) or "none"
