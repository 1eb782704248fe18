"""Make and change a session's config, and refuse one that could not be stepped, naming the field."""

import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import structs

from daemon.harness import limits, tools
from daemon.harness.errors import Invalid
from daemon.harness.step import Models
from daemon.protocol import api
from daemon.protocol.dialing import LOCAL, BadNameError, check_name
from daemon.protocol.records import Config, Limits, WorkerRef
from daemon.provider import patch as patches
from daemon.provider.base import Model, ProviderError

MAX_CWD: Final = 4095  # bytes: what Linux takes
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")  # no folder's name needs one, and the model is shown lines
MEDIA: Final = re.compile(r"(text|image|audio|video|application)/[a-z0-9.+-]+(; *[!-~]+)?")
DEPTH: Final = 100  # of lists and objects in params: what sends them on goes down by recursion

T = TypeVar("T")


def made(create: api.Create, models: Models, surface: str = "") -> Config:
    """The config of a fresh session, made on that surface of the API. Raises Invalid."""
    check_workers(create.workers)
    check_input(create.input)
    given = {"tools": create.tools != "", "input": bool(create.input)}
    config = Config(
        model=create.model or models.default(),
        tools=create.tools,
        workers=create.workers,
        context=create.context,
        input=create.input,
        params=create.params,
        limits=create.limits,
        agent=create.agent,
        surface=surface,
        derived=tuple(name for name, named in given.items() if not named),
    )
    return _derived(config, check(config, models))


def with_workers(config: Config, workers: Sequence[WorkerRef]) -> Config:
    return structs.replace(config, workers=tuple(workers))


def patched(config: Config, patch: api.ConfigPatch, models: Models) -> Config:
    """`config` under a merge patch. `params` are one themselves, so a null put into them stays there."""
    params = config.params
    if patch.params is not msgspec.UNSET:
        _check_depth(patch.params)
        params = {} if patch.params is None else patches.joined(params, patch.params)
    derived = dict.fromkeys(config.derived)
    for name, given in (("tools", patch.tools), ("input", patch.input)):
        if given is None or given == "" or (name == "input" and given == ()):
            derived[name] = None
        elif given is not msgspec.UNSET:
            derived.pop(name, None)
    made = structs.replace(
        config,
        model=_or(patch.model, config.model, models.default()),
        tools=_or(patch.tools, config.tools, ""),
        input=_or(patch.input, config.input, ()),
        context=_or(patch.context, config.context, 0),
        limits=_limits(patch.limits, config.limits),
        params=params,
        derived=tuple(derived),
    )
    check_input(made.input if patch.input is not msgspec.UNSET else ())
    same = all(
        getattr(made, name) == getattr(config, name) for name in ("model", "tools", "input", "derived")
    )
    return made if same else _derived(made, check(made, models))


def with_model(config: Config, model: str, models: Models) -> Config:
    """`config` by another model, with what that one decides. Raises Invalid where it is not served."""
    try:
        _, known = models.resolve(model)
    except ProviderError as error:
        raise Invalid(error.message) from error
    return _derived(structs.replace(config, model=model), known)


def check(config: Config, models: Models) -> Model:
    """What is known of the config's model. Raises Invalid."""
    if len(config.model) > api.MAX_MODEL:
        raise Invalid(f"model: at most {api.MAX_MODEL} characters")
    _check_depth(config.params)
    try:
        provider, known = models.resolve(config.model)
        tools.names(config.tools)
    except (ProviderError, ValueError) as error:
        raise Invalid(str(error)) from error
    if why := provider.check_params(config.params):
        raise Invalid(f"params: {why}")
    if config.limits.cost and known.price is None:
        raise Invalid(f"limits.cost: it could not be kept: {limits.unpriced(config.model)}, or leave it out")
    return known


def check_workers(workers: Sequence[WorkerRef]) -> None:
    """Raises Invalid for one that cannot be; that it is there is not asked: a session waits for its workers."""
    first: dict[str, int] = {}
    for at, ref in enumerate(workers):
        field = f"workers[{at}]"
        if ref.name != LOCAL:
            try:
                check_name(ref.name)
            except BadNameError as error:
                raise Invalid(f"{field}.name: {error}") from error
        if (before := first.setdefault(ref.name, at)) != at:
            raise Invalid(f"{field}.name: {ref.name} is workers[{before}] already; name each worker once")
        if len(ref.cwd.encode("utf-8", "replace")) > MAX_CWD or CONTROL.search(ref.cwd):
            raise Invalid(f"{field}.cwd: a path of at most {MAX_CWD} bytes without control characters")
        if ref.cwd and not ref.cwd.startswith(("/", "~")):
            raise Invalid(
                f"{field}.cwd: {ref.cwd[:200]!a} begins neither at the root nor at a home; "
                "write /srv/data or ~/data, or leave it out for the home"
            )


def check_input(types: Sequence[str]) -> None:
    """Raises Invalid for what is no media type: nothing would ever be of it."""
    for at, type in enumerate(types):
        if not MEDIA.fullmatch(type):
            raise Invalid(
                f"input[{at}]: {type[:200]!a} is no media type; write image/png for example, or leave input out for "
                "what the model takes"
            )


def _derived(config: Config, known: Model) -> Config:
    """`config` with what its model decides."""
    return structs.replace(
        config,
        tools=tools.default_set(config.model) if "tools" in config.derived else config.tools,
        input=known.input if "input" in config.derived else config.input,
    )


def _check_depth(params: Any) -> None:
    """Raises Invalid where params are nested deeper than DEPTH."""
    level = [params]
    for _ in range(DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise Invalid(f"params: nested deeper than {DEPTH} lists and objects")


def _limits(patch: api.LimitsPatch | msgspec.UnsetType | None, old: Limits) -> Limits:
    if patch is msgspec.UNSET:
        return old
    if patch is None:
        return Limits()
    changed = {
        name: value or 0 for name, value in structs.asdict(patch).items() if value is not msgspec.UNSET
    }
    return structs.replace(old, **changed)


def _or(patch: T | msgspec.UnsetType | None, old: T, default: T) -> T:
    if patch is msgspec.UNSET:
        return old
    return default if patch is None else patch
