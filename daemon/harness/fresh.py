"""The first records of a new session: its config, the harness's own words, an agent's task, what its maker says."""

from collections.abc import Mapping, Sequence

from daemon.definition.agent import Agent
from daemon.harness import configs, definitions, prompt
from daemon.harness.errors import Invalid
from daemon.harness.step import Models
from daemon.protocol import api
from daemon.protocol.records import Config, Record, draft, json_draft

COPIED = ("model", "context", "workers", "input", "params", "tools", "instructions", "agent", "inputs")


def session(
    create: api.Create, surface: str, agents: Mapping[str, Agent], models: Models
) -> tuple[Config, Sequence[Record]]:
    """(config, drafts of its first records) of a session made on that surface. Raises Invalid."""
    task = ""
    if create.agent or surface:
        agent = definitions.found(create.agent, agents)
        create, task = definitions.applied(create, agent, models)
    elif create.inputs:
        raise Invalid("inputs: they are an agent's; name it in `agent`, or leave them out")
    config = configs.made(create, models, surface)
    drafts = [draft("start"), json_draft("config", config), draft("system", prompt.SYSTEM, source="harness")]
    if task:
        drafts.append(draft("system", task, source="agent"))
    if create.instructions.strip():
        drafts.append(draft("system", create.instructions, source="session"))
    return config, drafts


def check_copy(create: api.Create) -> None:
    """Raises Invalid where a copy is given what it takes from its source."""
    for name in COPIED:
        if getattr(create, name):
            raise Invalid(f"{name}: a copy takes it from its source; leave it out")
