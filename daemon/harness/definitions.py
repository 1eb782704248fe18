"""Sessions of declared agents: what a create that names one asks for, with the definition's own words filled in."""

from collections.abc import Collection, Mapping

from msgspec import structs

from daemon.definition.agent import Agent
from daemon.definition.inputs import BadInputs
from daemon.harness.errors import Invalid
from daemon.harness.step import Models
from daemon.protocol import api
from daemon.protocol.dialing import LOCAL
from daemon.protocol.records import WorkerRef
from daemon.provider import settings
from daemon.provider.base import ProviderError
from daemon.provider.patch import merge

HERE = (WorkerRef(LOCAL),)  # of an agent with tools for which nobody names workers


def found(name: str, agents: Mapping[str, Agent]) -> Agent:
    """The definition of that name; the only one there is where none is named. Raises Invalid."""
    if not agents:
        raise Invalid("agent: this daemon has no agent definitions; start it with --agent FILE")
    if not name and len(agents) == 1:
        return next(iter(agents.values()))
    if name in agents:
        return agents[name]
    why = f"there is no agent {name!r}" if name else "name one"
    raise Invalid(f"agent: {why}; there are {', '.join(agents)}")


def applied(
    create: api.Create, agent: Agent, models: Models, named: Collection[str] = ()
) -> tuple[api.Create, str]:
    """(`create` with what the definition says where it says nothing itself, the text of the agent's system record).

    `named`: fields that a request has; no workers, where it says so, are none.

    Raises Invalid, which names every input that is wrong.
    """
    try:
        text = agent.text(create.inputs)
    except BadInputs as error:
        raise Invalid(str(error)) from error
    tools: str | tuple[str, ...] = create.tools
    if create.tools == "" and agent.tools is not None:
        tools = agent.tools
    model = create.model or agent.model or models.default()
    workers = create.workers or (HERE if tools != () and "workers" not in named else ())
    params = create.params
    if agent.temperature is not None:
        params = merge(_temperature(model, agent.temperature, models), params)
    return structs.replace(
        create, agent=agent.name, model=model, tools=tools, workers=workers, params=params
    ), text


def _temperature(model: str, temperature: float, models: Models) -> dict[str, object]:
    """The params of the vendor's own names that set it."""
    try:
        provider, _ = models.resolve(model)
    except ProviderError as error:
        raise Invalid(str(error)) from error
    return dict(settings.temperature(provider, temperature))
