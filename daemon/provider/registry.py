"""Build the providers that are configured, and find who serves a `provider/model`."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from daemon.config import ConfigError, ProviderEntry
from daemon.provider import models, script
from daemon.provider.anthropic import URL, Anthropic
from daemon.provider.base import Model, Provider, ProviderError
from daemon.provider.rehearsal import Rehearsal

KINDS: Final = ("anthropic", "rehearsal")  # that this release has a wire for
REHEARSAL: Final = "rehearsal"
TOUR: Final = "tour"
SPEED: Final = "OUTRIDER_REHEARSAL_SPEED"  # 2 is twice as fast, 0 without pauses


def build(
    entries: Mapping[str, ProviderEntry], folder: Path | None, env: Mapping[str, str]
) -> dict[str, Provider]:
    """The configured providers by name, in their order, the rehearsal last; those of a kind that this release has no
    wire for are left out. `folder`: the user's rehearsals; it is listed, so this is for start-up, not for the loop.
    Raises ConfigError.
    """
    built: dict[str, Provider] = {}
    for name, entry in entries.items():
        match entry.kind or name:
            case "anthropic":
                built[name] = _anthropic(name, entry)
            case "rehearsal":
                built[name] = Rehearsal(script.names(folder), folder=folder, speed=_speed(env), name=name)
            case _:
                continue
    if REHEARSAL not in built:
        built[REHEARSAL] = Rehearsal(script.names(folder), folder=folder, speed=_speed(env))
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


def default_model(providers: Mapping[str, Provider]) -> str:
    """The model of a session when nobody names one: the first provider's best, else the tour."""
    for name, provider in providers.items():
        if not isinstance(provider, Rehearsal) and (known := provider.models()):
            return f"{name}/{known[0].name}"
    return f"{REHEARSAL}/{TOUR}"


class Registry:
    """The providers of one daemon; see `build` for the arguments. `env`: the process's own when left out."""

    def __init__(
        self,
        entries: Mapping[str, ProviderEntry],
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.providers = build(entries, folder, os.environ if env is None else env)
        self._unserved = {
            name: entry.kind or name for name, entry in entries.items() if name not in self.providers
        }

    def resolve(self, name: str) -> tuple[Provider, Model]:
        """See `resolve`."""
        provider = name.partition("/")[0]
        if kind := self._unserved.get(provider):
            what = f"model {name!r}: this release has no wire of kind {kind!r}"
            raise ProviderError(f"{what}; served are {', '.join(self.served())}", code="model")
        return resolve(name, self.providers)

    def served(self) -> Sequence[str]:
        """See `served`."""
        return served(self.providers)

    def default(self) -> str:
        """See `default_model`."""
        return default_model(self.providers)


def _anthropic(name: str, entry: ProviderEntry) -> Provider:
    where = f"providers.{name}"
    table = {model: msgspec.to_builtins(limits) for model, limits in entry.models.items()}
    try:
        known = models.overridden(models.ANTHROPIC, table)
    except ValueError as error:
        raise ConfigError(f"{where}.{error}") from None
    headers = {
        header: _sendable(f"{where}.headers.{header}", value) for header, value in entry.headers.items()
    }
    url, key = _address(f"{where}.url", entry.url or URL), _sendable(f"{where}.key", entry.key)
    return Anthropic(name, url=url, key=key, headers=headers, known=known)


def _sendable(where: str, text: str) -> str:
    text = text.strip()
    if not text.isascii() or not text.isprintable():
        raise ConfigError(f"{where}: it holds characters that no HTTP header can; copy it anew")
    return text


def _address(where: str, url: str) -> str:
    url = url.strip()
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url):
        raise ConfigError(f"{where}: {url!r} is no address; write it as https://host or http://host:port")
    return url


def _speed(env: Mapping[str, str]) -> float:
    text = env.get(SPEED, "").strip() or "1"
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ConfigError(
            f"{SPEED}: {text!r} is no speed; 1 is as written, 2 twice as fast, 0 without pauses"
        )
    return float(text)
