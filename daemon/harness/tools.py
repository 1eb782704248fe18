"""The tools a model is offered, and its arguments made into values or into a word on what would be right."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from daemon.plain import wanted as in_words
from daemon.protocol.records import CallBody
from daemon.provider.base import Tool

MAX_RUN_TIME: Final = 24 * 3600.0  # seconds; the worker's own limit may be lower
RUN_TIME: Final = 600.0  # seconds, where a call asks for none
QUOTED: Final = 400  # characters of bad arguments that are shown back

# An escaped surrogate without its other half: JSON's grammar allows it, no text can hold it.
_HALF: Final = re.compile(
    r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]..)"
)


class BadCall(Exception):
    """This call cannot be carried out as it stands; the message tells the model what would be right."""


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    worker: Annotated[str, Meta(description="Name of the worker that runs it.")]
    code: Annotated[str, Meta(description="The code, as it would stand in a file.")]
    interpreter: Annotated[
        str, Meta(description="One of the worker's interpreters; left out, its first (bash).")
    ] = ""
    timeout: Annotated[
        float, Meta(gt=0, le=MAX_RUN_TIME, description="Seconds until the run is stopped; 600 when left out.")
    ] = RUN_TIME


class Read(Struct, frozen=True, forbid_unknown_fields=True):
    worker: Annotated[str, Meta(description="Name of the worker the file is on.")]
    path: Annotated[
        str, Meta(min_length=1, description="Path, absolute or relative to the session's folder.")
    ]
    offset: Annotated[int, Meta(ge=1, description="First line to read, from 1.")] = 1
    limit: Annotated[
        int, Meta(ge=0, description="How many lines; 0 or left out is all that fit a result.")
    ] = 0


class Write(Struct, frozen=True, forbid_unknown_fields=True):
    worker: Annotated[str, Meta(description="Name of the worker the file is on.")]
    path: Annotated[str, Meta(min_length=1, description="Path; missing folders are made.")]
    content: Annotated[str, Meta(description="The whole new content.")]


class Edit(Struct, frozen=True, forbid_unknown_fields=True):
    worker: Annotated[str, Meta(description="Name of the worker the file is on.")]
    path: Annotated[str, Meta(min_length=1, description="Path of the file.")]
    old: Annotated[str, Meta(description="The text to replace, exactly as it stands in the file.")]
    new: Annotated[str, Meta(description="The text to put in its place.")]
    all: Annotated[bool, Meta(description="Replace every occurrence; otherwise `old` must occur once.")] = (
        False
    )


class Patch(Struct, frozen=True, forbid_unknown_fields=True):
    worker: Annotated[str, Meta(description="Name of the worker the files are on.")]
    input: Annotated[
        str, Meta(min_length=1, description="The patch, from `*** Begin Patch` to `*** End Patch`.")
    ]


Arguments = Run | Read | Write | Edit | Patch

_TYPES: Final[dict[str, type[Arguments]]] = {
    "run": Run,
    "read": Read,
    "write": Write,
    "edit": Edit,
    "patch": Patch,
}
_WORDS: Final = {
    "run": "Run code on a worker, in an interpreter that keeps its state between calls.",
    "read": "Read a text file, or a part of it by lines. Images come back as images where the model takes them.",
    "write": "Write a file, replacing it as a whole.",
    "edit": "Replace text in a file.",
    "patch": "Add, update, move and delete files by one patch in the apply_patch format: all of it or nothing.",
}
SETS: Final[dict[str, tuple[str, ...]]] = {
    "default": ("run", "read", "write", "edit"),
    "patch": ("run", "read", "patch"),
}
ALL: Final = tuple(_TYPES)
TRAINED_ON_PATCHES: Final = re.compile(
    r"(^|/)(gpt-4\.1|gpt-5|o[34](?![0-9a-z])|codex)"
)  # families of models, by their names


def default_set(model: str) -> str:
    """The set that a model of this name gets when a session names none."""
    return "patch" if TRAINED_ON_PATCHES.search(model) else "default"


def names(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """The names of a config's `tools`; empty is the set `default`. Raises ValueError that says what there is."""
    if isinstance(wanted, str):
        if (wanted or "default") in SETS:
            return SETS[wanted or "default"]
        raise ValueError(
            f"tools: there is no set {wanted!r}; sets are {', '.join(SETS)}, or give a list of names"
        )
    for name in wanted:
        if name not in _TYPES:
            raise ValueError(f"tools: there is no tool {name!r}; tools are {', '.join(_TYPES)}")
    return tuple(dict.fromkeys(wanted))  # providers refuse a tool that is named twice


def offered(wanted: str | Sequence[str]) -> list[Tool]:
    """The tools of a config as a model is told of them."""
    return [_tool(name) for name in names(wanted)]


@cache
def _tool(name: str) -> Tool:
    return Tool(name, _WORDS[name], _schema(_TYPES[name]))


def parse(call: CallBody, wanted: str | Sequence[str]) -> Arguments:
    """The arguments of a call to one of the tools in `wanted`. Raises BadCall."""
    allowed = names(wanted)
    if call.name not in allowed:
        raise BadCall(f"There is no tool {call.name!r} here. Tools: {', '.join(allowed)}.")
    kind = _TYPES[call.name]
    text = call.arguments.strip()
    try:
        value = msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        half = _HALF.search(text)
        why = f"hold half of a character, {half[1]}," if half else f"are not valid JSON ({error}),"
        raise BadCall(
            f"The arguments of `{call.name}` {why} so nothing was done. They were: {_quote(call.arguments)}"
        ) from error
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise BadCall(
            f"The arguments of `{call.name}` must be one JSON object, not {_kind(value)}, so nothing was done. "
            f"They were: {_quote(call.arguments)}"
        )
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        fields = ", ".join(
            f.name if f.required else f"{f.name} (optional)" for f in msgspec.structs.fields(kind)
        )
        what, _, where = str(error).partition(" - at `$.")
        field = f"{where.removesuffix('`')}: " if where else ""
        said = f"{field}{in_words(what, 'an object')}"
        raise BadCall(f"`{call.name}`: {said}. Its fields: {fields}. Nothing was done.") from error


def _quote(text: str) -> str:
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}… ({len(text)} characters)"


def _kind(value: Any) -> str:
    return {str: "a string", list: "a list", bool: "true or false"}.get(type(value), "a number")


def _schema(kind: type[Arguments]) -> dict[str, Any]:
    (_, components) = msgspec.json.schema_components([kind])
    schema = dict(components[kind.__name__])
    schema.pop("title", None)
    for field in schema["properties"].values():
        field.pop("default", None)
    return schema
