"""Build the providers that the configuration and the environment name, and find who serves a `provider/model`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from daemon.provider import models, script
from daemon.provider.anthropic import URL, Anthropic
from daemon.provider.base import Model, Provider, ProviderError
from daemon.provider.rehearsal import Rehearsal

KINDS: Final = ("anthropic", "rehearsal")
KEYS: Final = {"anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")}  # variables of a kind's key and url
REHEARSAL: Final = "rehearsal"
TOUR: Final = "tour"
SPEED: Final = "OUTRIDER_REHEARSAL_SPEED"  # 2 is twice as fast, 0 without pauses

_VARIABLE: Final = re.compile(r"\$(\w+)|\$\{(\w+)\}")


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """One `[providers.NAME]` of the configuration. `kind`: NAME itself when empty. In `key`, `url` and the values of
    `headers` a `$VAR` stands for the environment's. `models`: a name's `context`, `output`, `input`.
    """

    kind: str = ""
    url: str = ""
    key: str = ""
    region: str = ""
    headers: Mapping[str, str] = {}
    models: Mapping[str, Any] = {}


class Settings(Struct, frozen=True):
    """What the configuration says about providers. `model`: `defaults.model`; `rehearsal`: the scripts' folder."""

    providers: Mapping[str, Table] = {}
    model: str = ""
    rehearsal: Path | None = None


class BadProvider(ValueError):
    """A provider's configuration that cannot be used: the message names the field and what would be right."""


def build(settings: Settings, env: Mapping[str, str]) -> dict[str, Provider]:
    """The configured providers by name: tables in their order, then those whose key stands in the environment, last
    the rehearsal. Lists the scripts' folder, so it is for start-up, not for the loop. Raises BadProvider.
    """
    built: dict[str, Provider] = {}
    for name, table in settings.providers.items():
        if "/" in name or not name:
            raise BadProvider(
                f"providers.{name}: a provider's name has no slash, since `provider/model` is cut at one"
            )
        built[name] = _one(name, table, settings, env)
    for kind, (key, _) in KEYS.items():
        if kind not in built and env.get(key, "").strip():
            built[kind] = _one(kind, Table(), settings, env)
    if REHEARSAL not in built:
        built[REHEARSAL] = _one(REHEARSAL, Table(), settings, env)
    return built


def resolve(name: str, providers: Mapping[str, Provider]) -> tuple[Provider, Model]:
    """Who serves `provider/model`, and what is known of the model. A real provider may serve models that nobody knows
    here. Raises ProviderError that lists what is served.
    """
    wanted, slash, model = name.partition("/")
    provider = providers.get(wanted)
    if not slash or not model or provider is None:
        why = (
            "a model is named provider/model"
            if not slash or not model
            else f"there is no provider {wanted!r}"
        )
        raise ProviderError(f"model {name!r}: {why}; served are {', '.join(served(providers))}", code="model")
    known = provider.models()
    if isinstance(provider, Rehearsal) and all(model != script.name for script in known):
        there = ", ".join(f"{wanted}/{script.name}" for script in known)
        raise ProviderError(f"model {name!r}: there is no such rehearsal; there are {there}", code="model")
    return provider, models.find(model, known)


def served(providers: Mapping[str, Provider]) -> list[str]:
    """The names, `provider/model`, of all models known to be served, the best of each provider first."""
    return [f"{name}/{model.name}" for name, provider in providers.items() for model in provider.models()]


def default_model(settings: Settings, providers: Mapping[str, Provider]) -> str:
    """The model of a session that names none: the configured one, else the first provider's best, else the tour."""
    if settings.model:
        return settings.model
    for name, provider in providers.items():
        if not isinstance(provider, Rehearsal) and (known := provider.models()):
            return f"{name}/{known[0].name}"
    return f"{REHEARSAL}/{TOUR}"


class Registry:
    """The providers of one daemon, as the harness sees them."""

    def __init__(self, providers: Mapping[str, Provider], default: str = f"{REHEARSAL}/{TOUR}") -> None:
        self.providers = providers
        self.default = default

    def resolve(self, name: str) -> tuple[Provider, Model]:
        """See `resolve`; an empty name is the default model's."""
        return resolve(name or self.default, self.providers)

    def served(self) -> Sequence[str]:
        """See `served`."""
        return served(self.providers)


def _one(name: str, table: Table, settings: Settings, env: Mapping[str, str]) -> Provider:
    kind = table.kind or name
    where = f"providers.{name}"
    match kind:
        case "anthropic":
            variable, base = KEYS[kind] if name == kind else ("", "")
            key = _expanded(f"{where}.key", table.key, env) or env.get(variable, "")
            url = _expanded(f"{where}.url", table.url, env) or env.get(base, "") or URL
            headers = {
                header: _sendable(
                    f"{where}.headers.{header}", _expanded(f"{where}.headers.{header}", value, env)
                )
                for header, value in table.headers.items()
            }
            return Anthropic(
                name,
                url=_checked(f"{where}.url", url),
                key=_sendable(f"{where}.key", key),
                headers=headers,
                known=_known(where, table, models.ANTHROPIC),
            )
        case "rehearsal":
            scripts = script.names(settings.rehearsal)
            return Rehearsal(scripts, folder=settings.rehearsal, speed=_speed(env), name=name)
        case _:
            raise BadProvider(f"{where}.kind: there is no kind {kind!r}; kinds are {', '.join(KINDS)}")


def _known(where: str, table: Table, known: Sequence[Model]) -> Sequence[Model]:
    try:
        return models.overridden(known, table.models)
    except ValueError as error:
        raise BadProvider(f"{where}.{error}") from None


def _expanded(where: str, text: str, env: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in env:
            raise BadProvider(f"{where}: the environment has no {name}; set it, or write the value itself")
        return env[name]

    return _VARIABLE.sub(value, text)


def _sendable(where: str, text: str) -> str:
    text = text.strip()
    if not text.isascii() or not text.isprintable():
        raise BadProvider(f"{where}: it holds characters that no HTTP header can; copy it anew")
    return text


def _checked(where: str, url: str) -> str:
    url = url.strip()
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url):
        raise BadProvider(f"{where}: {url!r} is no address; write it as https://host or http://host:port")
    return url


def _speed(env: Mapping[str, str]) -> float:
    text = env.get(SPEED, "").strip() or "1"
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise BadProvider(
            f"{SPEED}: {text!r} is no speed; 1 is as written, 2 twice as fast, 0 without pauses"
        )
    return float(text)
