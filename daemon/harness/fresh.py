"""The first records of a new session: its config, the harness's own words, an agent's task, what its maker says."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import structs

from daemon.definition.agent import Agent
from daemon.harness import configs, definitions, prompt
from daemon.harness.errors import Invalid
from daemon.harness.step import Models
from daemon.protocol import api
from daemon.protocol.records import Config, Record, draft, json_draft

COPY = ("from_", "n")  # what a copy is told; all else it takes from its source
BLANK = api.Create()


def session(
    create: api.Create,
    surface: str,
    agents: Mapping[str, Agent],
    models: Models,
    named: Collection[str] = (),
) -> tuple[Config, Sequence[Record]]:
    """(config, drafts of its first records) of a session made on that surface. `named`: see `check`.

    Raises Invalid.
    """
    task = ""
    if create.agent or surface:
        agent = definitions.found(create.agent, agents)
        create, task = definitions.applied(create, agent, models, named)
    elif create.inputs:
        raise Invalid("inputs: they are an agent's; name it in `agent`, or leave them out")
    config = configs.made(create, models, surface)
    drafts = [draft("start"), json_draft("config", config), draft("system", prompt.SYSTEM, source="harness")]
    if task:
        drafts.append(draft("system", task, source="agent"))
    if create.instructions.strip():
        drafts.append(draft("system", create.instructions, source="session"))
    return config, drafts


def check(create: api.Create, named: Collection[str] = ()) -> None:
    """Raises Invalid where a field is given of which nothing would come. `named`: those that a request has, also empty
    ones.
    """
    if not create.from_:
        if "from" in named:
            raise Invalid("from: it is empty; name the session to copy, or leave it out")
        if create.n or "n" in named:
            raise Invalid("n: it says where a copy ends; name its source in `from`, or leave it out")
        return
    for field in structs.fields(create):
        given = getattr(create, field.name) != getattr(BLANK, field.name)
        if field.name not in COPY and (given or field.encode_name in named):
            raise Invalid(
                f"{field.encode_name}: a copy takes it from its source; leave it out, and change the copy then "
                "(PATCH its config, PUT its workers)"
            )
