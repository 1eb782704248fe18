"""An agent's definition, read from its YAML whole or refused with every fault and its line.

The format is ADL, `apiVersion: agent-controller.dev/v1alpha1`, `kind: Agent`, of which every field is accepted;
`inputs` is an addition. What this harness does not act on is warned about by name.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import Meta, Struct

from daemon.definition import inputs
from daemon.definition.document import BadDocument, Document
from daemon.definition.document import Path as Place
from daemon.definition.inputs import Input
from daemon.plain import wanted

API: Final = "agent-controller.dev/v1alpha1"
MAX_TEMPERATURE: Final = 2
TOOLS: Final[Mapping[str, str]] = {"bash": "run"}  # ADL's names of ours; every other one is the same
OURS: Final = ("run", "read", "write", "edit", "patch")
IDLE: Final[Mapping[str, str]] = {  # what is not acted on, and what that means
    "mcpServers": "their tools are not offered to the model",
    "skills": "they are not loaded",
    "extensions": "they are not loaded, and restrict nothing",
    "subagents": "there are none",
    "installs": "nothing is installed",
    "outputSchema": "the answer is not checked against it",
    "guardrails": "answers are not searched for made-up calls",
    "observability": "set up tracing and metrics in outrider.toml",
    "runtime": "there is one, so every agent runs in it",
}
AS_IN: Final[Mapping[str, str]] = {  # how it is written, for who wrote a name alone
    "model": "; write {provider: anthropic, name: claude-sonnet-5}",
    "tools": "; write {name: bash}",
}
_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<key>key in )?\$(?P<path>.*)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")

SLUG: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
MAX_SLUG: Final = 63

Word = Annotated[str, Meta(min_length=1)]


class Metadata(Struct, frozen=True, forbid_unknown_fields=True):
    name: Word
    description: str = ""
    owner: str = ""


class ModelSpec(Struct, frozen=True, forbid_unknown_fields=True):
    provider: Word
    name: Word
    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] | None = None


class Persona(Struct, frozen=True, forbid_unknown_fields=True):
    role: str = ""
    instructions: str = ""


class ToolSpec(Struct, frozen=True, forbid_unknown_fields=True):
    name: Word
    config: dict[str, Any] | None = None


class Spec(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    task: Word
    model: ModelSpec | None = None
    persona: Persona = Persona()
    tools: tuple[ToolSpec, ...] | None = None
    inputs: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = None
    skills: list[Any] | None = None
    extensions: list[Any] | None = None
    subagents: list[Any] | None = None
    installs: list[Any] | None = None
    output_schema: dict[str, Any] | None = None
    guardrails: dict[str, Any] | None = None
    observability: dict[str, Any] | None = None
    runtime: dict[str, Any] | None = None


class File(Struct, frozen=True, forbid_unknown_fields=True, rename={"api_version": "apiVersion"}):
    api_version: str
    kind: str
    metadata: Metadata
    spec: Spec


class Agent(Struct, frozen=True):
    """A definition that can be used. `model`: provider/model, empty for the daemon's own; `tools`: names, None for the
    model's usual set; `warnings`: what of it is not acted on, a sentence each.
    """

    name: str
    description: str
    model: str
    temperature: float | None
    task: str
    persona: Persona
    tools: tuple[str, ...] | None
    inputs: dict[str, Input]
    warnings: tuple[str, ...]

    def text(self, given: Mapping[str, Any]) -> str:
        """What a session of this agent is told at its start, with these inputs. Raises BadInputs."""
        values = inputs.filled(self.inputs, given)
        parts = (
            ("Your role: ", self.persona.role),
            ("", self.persona.instructions),
            ("Your task:\n", self.task),
        )
        said = ((head, inputs.put(part, values).strip()) for head, part in parts)
        return "\n\n".join(head + part for head, part in said if part)


class BadAgent(Exception):
    """A definition that cannot be used; the message has a line for each fault, with file, line and field."""


def load(path: Path) -> Agent:
    """The definition in a file. Blocks. Raises BadAgent."""
    try:
        with path.open("rb") as opened:
            text = opened.read(2 << 20)
    except OSError as error:
        raise BadAgent(f"{path}: {error.strerror}") from error
    return parse(text, str(path))


def parse(text: bytes, source: str) -> Agent:
    """The definition in `text`; `source` is what errors and warnings call it. Raises BadAgent."""
    try:
        document = Document(text)
    except BadDocument as error:
        raise BadAgent(f"{source}: {error}") from error
    value = document.value
    if not isinstance(value, dict) or value.get("apiVersion") != API or value.get("kind") != "Agent":
        raise BadAgent(f"{source}: an agent's definition begins with apiVersion: {API} and kind: Agent")
    try:
        file = msgspec.convert(value, File)
    except msgspec.ValidationError as error:
        raise BadAgent(_refused(source, document, str(error))) from error
    spec = file.spec
    used = [
        name
        for part in (spec.task, spec.persona.role, spec.persona.instructions)
        for name in inputs.names(part)
    ]
    declared, faults = _declared(spec, used)
    if not spec.task.strip():
        faults.insert(0, (("spec", "task"), "spec.task: it is blank; say what the agent is to do"))
    if faults := [*_name_faults(file.metadata.name), *_tool_faults(spec), *faults]:
        lines = (f"{source}:{document.line(place)}: {what}" for place, what in faults)
        raise BadAgent("\n".join(lines))
    return Agent(
        name=file.metadata.name,
        description=file.metadata.description,
        model=f"{spec.model.provider}/{spec.model.name}" if spec.model else "",
        temperature=spec.model.temperature if spec.model else None,
        task=spec.task,
        persona=spec.persona,
        tools=None if spec.tools is None else tuple(TOOLS.get(tool.name, tool.name) for tool in spec.tools),
        inputs=declared,
        warnings=tuple(
            f"spec.{name} (line {document.line(('spec', name))}) is not acted on: {IDLE[name]}"
            for name in value["spec"]
            if name in IDLE
        ),
    )


def _tool_faults(spec: Spec) -> list[tuple[Place, str]]:
    faults: list[tuple[Place, str]] = []
    first: dict[str, int] = {}
    for at, tool in enumerate(spec.tools or ()):
        place: Place = ("spec", "tools", at)
        if (before := first.setdefault(TOOLS.get(tool.name, tool.name), at)) != at:
            faults.append((place, f"spec.tools[{at}].name: {tool.name} is spec.tools[{before}] already"))
        elif TOOLS.get(tool.name, tool.name) not in OURS:
            there = ", ".join([*TOOLS, *OURS])
            faults.append(
                (place, f"spec.tools[{at}].name: there is no tool {tool.name!r}; there are {there}")
            )
        if tool.config is not None:
            # A rule that somebody relies on and that nobody keeps is worse than an agent that does not start.
            what = (
                f"spec.tools[{at}].config: nothing here keeps such a rule, so the tool would be unrestricted"
            )
            faults.append(
                ((*place, "config"), f"{what}; leave it out and restrict the worker instead ([worker])")
            )
    return faults


def _name_faults(name: str) -> list[tuple[Place, str]]:
    if SLUG.fullmatch(name) and len(name) <= MAX_SLUG:
        return []
    what = f"small letters, digits and - between them, at most {MAX_SLUG} characters, as in log-reader"
    return [(("metadata", "name"), f"metadata.name: {name[:80]!r} is no name; write {what}")]


def _declared(spec: Spec, used: list[str]) -> tuple[dict[str, Input], list[tuple[Place, str]]]:
    """The declared inputs, and what is wrong with them."""
    if spec.inputs is None:
        implied = inputs.undeclared(used)
        bad = (
            (("spec",), f"spec.{why}") for name, one in implied.items() if (why := inputs.check(name, one))
        )
        return implied, [*bad]
    declared: dict[str, Input] = {}
    faults: list[tuple[Place, str]] = []
    for name, written in spec.inputs.items():
        place: Place = ("spec", "inputs", name)
        try:
            declared[name] = msgspec.convert({} if written is None else written, Input)
            why = inputs.check(name, declared[name])
        except msgspec.ValidationError as error:
            declared[name] = Input()  # so that it does not count as undeclared too
            what, _, field = str(error).partition(" - at `$")
            quoted = (
                inputs.QUOTED
                if field.startswith((".values", ".description")) and "got `bool`" in what
                else ""
            )
            why = f"inputs.{name}{field.rstrip('`')}: {_said(what)}{quoted}"
        if why:
            faults.append((place, f"spec.{why}"))
    for name in used:
        if name not in declared:
            what = f"${{inputs.{name}}} is used in the text; declare it in spec.inputs, or correct the name"
            faults.append((("spec", "inputs"), what))
    return declared, faults


def _said(what: str) -> str:
    """msgspec's complaint in words."""
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        return f"there is no field {found[1]}"
    if found := re.fullmatch(r"Object missing required field `(.*)`", what):
        return f"{found[1]} is missing"
    if found := re.fullmatch(r"Invalid enum value (.*)", what):
        return f"{found[1]} is none of {', '.join(get_args(inputs.Type))}"
    return wanted(what, "a mapping")


def _refused(source: str, document: Document, error: str) -> str:
    """msgspec's sentence with the line and the field in front."""
    found = _AT.match(error)
    what, written = (found["what"], found["path"] or "") if found else (error, "")
    place: list[str | int] = []
    for name, index in _STEP.findall(written):
        if index == "...":  # of some key of a mapping, which is not said: its line is the mapping's
            break
        place.append(name or int(index))
    field = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")
    if unknown := re.search(r"unknown field `(.*)`", what):
        place.append(unknown[1])
    said = _said(what)
    if said.endswith("not text") and len(place) > 1 and place[0] == "spec":
        said += AS_IN.get(str(place[1]), "")
    return f"{source}:{document.line(tuple(place))}: {field + ': ' if field else ''}{said}"
