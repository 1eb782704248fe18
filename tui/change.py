"""A session's configuration as the texts of a form, and what was written there as what the API is to change. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from daemon.plain import line, safe_json
from daemon.protocol import api
from daemon.protocol.records import Config, WorkerRef
from tui import choice
from tui.choice import LIMITS, Choice

LONGEST: Final = 10_000  # characters of a name or folder: it is to be written back as it was


class Change(Struct, frozen=True):
    """What differs. `workers`: all that the session has from now on, None where they stay."""

    patch: api.ConfigPatch
    workers: tuple[WorkerRef, ...] | None

    def __bool__(self) -> bool:
        return self.patch != api.ConfigPatch() or self.workers is not None


def written(config: Config) -> Choice:
    """A configuration as it would be written, safe for any terminal; what the model decides is left empty."""
    return Choice(
        line(config.model, LONGEST),
        tuple(WorkerRef(ref.name, line(ref.cwd, LONGEST)) for ref in config.workers),
        _number(config.context),
        _tools(config),
        _json(config.params) if config.params else "",
        **{name: _number(getattr(config.limits, name)) for name in LIMITS},
    )


def offered(workers: Iterable[api.WorkerInfo], config: Config) -> list[tuple[str, str, bool]]:
    """(name, folder, ticked) of each worker that is there, and of each that the session has."""
    has = {ref.name: ref.cwd for ref in written(config).workers}
    names = dict.fromkeys([*(one.name for one in workers), *has])
    return [(name, has.get(name, ""), name in has) for name in names]


def change(config: Config, form: Choice) -> Change:
    """What makes `config` what was written. Raises choice.Wrong."""
    made, fields, before = choice.create(form), dict[str, Any](), written(config)
    if form.model != before.model:
        fields["model"] = made.model or None
    if made.context != config.context:
        fields["context"] = made.context
    if form.tools.split() != before.tools.split():
        fields["tools"] = made.tools or None
    limits = {
        name: getattr(made.limits, name) or None
        for name in LIMITS
        if getattr(made.limits, name) != getattr(config.limits, name)
    }
    if limits:
        fields["limits"] = limits
    if form.params != before.params and (params := _merge_patch(config.params, made.params)):
        fields["params"] = params
    folders = dict(zip(before.workers, config.workers, strict=True))
    workers = tuple(folders.get(ref, ref) for ref in made.workers)
    same = sorted(workers, key=_name) == sorted(config.workers, key=_name)
    return Change(msgspec.convert(fields, api.ConfigPatch), None if same else workers)


def _name(ref: WorkerRef) -> str:
    return ref.name


def _tools(config: Config) -> str:
    """The tools that somebody named."""
    if "tools" in config.derived:
        return ""
    return line(config.tools if isinstance(config.tools, str) else " ".join(config.tools), LONGEST)


def _json(table: Mapping[str, Any]) -> str:
    return safe_json(msgspec.json.format(msgspec.json.encode(table), indent=2).decode())


def _number(value: float) -> str:
    """A number as short as it can be written without a loss, empty for 0."""
    return "" if not value else str(int(value)) if value == int(value) else repr(value)


def _merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What a merge patch (RFC 7396) needs to make one table of the other."""
    found: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if inner := _merge_patch(old, value):
                found[name] = inner
        elif name not in before or old != value:
            found[name] = value
    return found
