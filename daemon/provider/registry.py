"""Build the providers that are configured, and find who serves a `provider/model`."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import structs

from daemon.config import ConfigError, ProviderEntry
from daemon.protocol.api import Price
from daemon.provider import (
    anthropic,
    aws,
    converse_models,
    google,
    models,
    openai_chat,
    prices,
    quirks,
    script,
)
from daemon.provider.anthropic import Anthropic
from daemon.provider.base import Answer, Lister, Model, Provider, ProviderError, Request
from daemon.provider.bedrock import Bedrock, endpoint
from daemon.provider.entries import (
    CHAT,
    MODEL,
    OPENAI,
    REHEARSAL,
    address,
    can_answer,
    check_fields,
    is_openais,
    sendable,
    with_environment,
)
from daemon.provider.google import Google
from daemon.provider.openai import OpenAI
from daemon.provider.openai_chat import OpenAIChat
from daemon.provider.rehearsal import Rehearsal

TOUR: Final = "tour"
SPEED: Final = "OUTRIDER_REHEARSAL_SPEED"  # 2 is twice as fast, 0 without pauses


def build(
    entries: Mapping[str, ProviderEntry],
    folder: Path | None,
    env: Mapping[str, str],
    missing: Mapping[str, str] | None = None,
) -> dict[str, Provider]:
    """The configured providers by name, in their order, then the chat server that the environment names, the
    rehearsal last; those of a kind that this release has no wire for are left out. `folder`: the user's rehearsals; it
    is listed, so this is for start-up, not for the loop. `missing`: why the key of one cannot be had; its requests end
    in that. Raises ConfigError.
    """
    built: dict[str, Provider] = {}
    missing = missing or {}
    named = env.get(MODEL, "").strip()
    for name, entry in with_environment(entries, env).items():
        check_fields(name, entry)
        match entry.kind or name:
            case "anthropic":
                built[name] = _anthropic(name, entry)
            case "openai":
                built[name] = _responses(name, entry, named if name == OPENAI else "")
            case "openai-chat":
                built[name] = _chat(name, entry, named if name == CHAT else "")
            case "google":
                built[name] = _google(name, entry)
            case "bedrock":
                built[name] = _bedrock(name, entry)
            case "rehearsal":
                built[name] = Rehearsal(script.names(folder), folder=folder, speed=_speed(env), name=name)
            case _:
                continue
        if why := missing.get(name):
            setattr(built[name], "transport", _Refusing(why))  # noqa: B010 - a property to all but who builds them
    if REHEARSAL not in built:
        built[REHEARSAL] = Rehearsal(script.names(folder), folder=folder, speed=_speed(env))
    return built


def resolve(name: str, providers: Mapping[str, Provider]) -> tuple[Provider, Model]:
    """Who serves `provider/model`, and what is known of the model. A real provider may serve models that nobody knows
    here. Raises ProviderError that says what there is.
    """
    wanted, slash, model = name.partition("/")
    provider = providers.get(wanted)
    if not slash or not model or provider is None:
        why = f"there is no provider {wanted!r}" if slash and model else "a model is named provider/model"
        raise ProviderError(f"model {name!r}: {why}; {_there(providers)}", code="model")
    known = provider.models()
    if isinstance(provider, Rehearsal) and all(model != script.name for script in known):
        there = ", ".join(f"{wanted}/{script.name}" for script in known)
        why = f"there is no such rehearsal; there are {there} (new files are found when the daemon starts)"
        raise ProviderError(f"model {name!r}: {why}", code="model")
    if isinstance(provider, Bedrock):
        return provider, provider.find(model)
    facts = provider.facts if isinstance(provider, Lister) else ()
    return provider, models.known_as(model, known, facts)


def _there(providers: Mapping[str, Provider]) -> str:
    """What there is, in a sentence: of providers there are few, of their models hundreds."""
    return f"there are {', '.join(providers)}, and `outrider models` shows what they serve"


def served(providers: Mapping[str, Provider]) -> list[str]:
    """The names, `provider/model`, of all models known to be served, the best of each provider first."""
    return [f"{name}/{model.name}" for name, provider in providers.items() for model in provider.models()]


def default_model(providers: Mapping[str, Provider], unable: Collection[str] = ()) -> str:
    """The model of a session when nobody names one: the best of the first provider that knows any, else the tour.

    `unable`: names of providers that cannot answer as they are, which are passed over.
    """
    for name, provider in providers.items():
        if name in unable or isinstance(provider, Rehearsal):
            continue
        if known := provider.models():
            return f"{name}/{known[0].name}"
    return f"{REHEARSAL}/{TOUR}"


class Registry:
    """The providers of one daemon; see `build` for the arguments. `env`: the process's own when left out.

    `entries`: what they were made of, with what the environment names.
    """

    def __init__(
        self,
        entries: Mapping[str, ProviderEntry],
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        missing: Mapping[str, str] | None = None,
    ) -> None:
        environ = os.environ if env is None else env
        self.entries = with_environment(entries, environ)
        self.providers = build(entries, folder, environ, missing)
        self._unable = frozenset(missing or ()) | {
            name for name, entry in self.entries.items() if not can_answer(name, entry)
        }
        self._unserved = {
            name: entry.kind or name for name, entry in self.entries.items() if name not in self.providers
        }

    def resolve(self, name: str) -> tuple[Provider, Model]:
        """See `resolve`; the model has its price, where that is known."""
        provider = name.partition("/")[0]
        if kind := self._unserved.get(provider):
            what = f"model {name!r}: this release has no wire of kind {kind!r}"
            raise ProviderError(f"{what}; {_there(self.providers)}", code="model")
        found, model = resolve(name, self.providers)
        return found, structs.replace(model, price=self._price(provider, model))

    def check(self, provider: str) -> None:
        """Raises ProviderError where there is no provider of this name."""
        if provider not in self.providers and provider not in self._unserved:
            raise ProviderError(f"there is no provider {provider!r}; {_there(self.providers)}", code="model")

    def models(self, provider: str) -> list[Model]:
        """The models that a provider is known to serve, best first, with their prices."""
        known = self.providers[provider].models() if provider in self.providers else ()
        return [structs.replace(model, price=self._price(provider, model)) for model in known]

    def price(self, provider: str, model: str) -> Price | None:
        """What a model costs, None where that is not known, or where it is not served any more."""
        try:
            return self.resolve(f"{provider}/{model}")[1].price
        except ProviderError:
            return None

    def _price(self, provider: str, model: Model) -> Price | None:
        entry = self.entries.get(provider)
        return prices.of(entry, (entry.kind if entry else "") or provider, model)

    def served(self) -> Sequence[str]:
        """See `served`."""
        return served(self.providers)

    def default(self) -> str:
        """See `default_model`."""
        return default_model(self.providers, self._unable)

    def keep(self, before: "Registry") -> None:
        """Go on with the providers of `before` that are the same here: they know which models their servers have."""
        for name in self.providers.keys() & before.providers.keys():
            if self.entries.get(name) == before.entries.get(name):
                self.providers[name] = before.providers[name]


class _Refusing:
    """Stands for the way to a provider whose key cannot be had."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __call__(self, request: Request) -> "_Refusing":
        return self

    async def __aenter__(self) -> Answer:
        raise ProviderError(self._why, code="auth")

    async def __aexit__(self, *_: object) -> None:
        pass


def _anthropic(name: str, entry: ProviderEntry) -> Provider:
    where = f"providers.{name}"
    url, key = address(f"{where}.url", entry.url or anthropic.URL), sendable(f"{where}.key", entry.key)
    known = _known(where, models.ANTHROPIC, entry)
    return Anthropic(name, url=url, key=key, headers=_headers(where, entry), known=known)


def _google(name: str, entry: ProviderEntry) -> Provider:
    where = f"providers.{name}"
    url, key = address(f"{where}.url", entry.url or google.URL), sendable(f"{where}.key", entry.key)
    known = _known(where, models.GOOGLE, entry)
    headers = _headers(where, entry)
    return Google(name, url=url, key=key, headers=headers, known=known, lists=not entry.models)


def _bedrock(name: str, entry: ProviderEntry) -> Provider:
    where = f"providers.{name}"
    region = entry.region.strip()
    if region and not re.fullmatch(r"[a-z0-9-]+", region):
        raise ConfigError(f"{where}.region: {region!r} is no region; write it as in us-east-1")
    url = entry.url or (endpoint(region) if region else "")
    try:
        takes = msgspec.convert(dict(entry.quirks), converse_models.Quirks)
    except msgspec.ValidationError as error:
        names = ", ".join(converse_models.Quirks.__struct_fields__)
        raise ConfigError(f"{where}.quirks: {error}; there are {names}") from None
    known = _known(where, [converse_models.find(model) for model in entry.models], entry)
    return Bedrock(
        name,
        url=address(f"{where}.url", url) if url else "",
        key=sendable(f"{where}.key", entry.key),
        signer=aws.Signer(region),
        headers=_headers(where, entry),
        known=known,
        quirks=takes,
    )


def _responses(name: str, entry: ProviderEntry, model: str) -> Provider:
    """`model`: the one to begin with, which the environment names, empty for none."""
    where = f"providers.{name}"
    url = address(f"{where}.url", entry.url or openai_chat.URL)
    return OpenAI(
        name,
        url=url,
        key=sendable(f"{where}.key", entry.key),
        headers=_headers(where, entry),
        known=_beginning(where, entry, url, model),
        lists=not entry.models and not is_openais(url),
    )


def _chat(name: str, entry: ProviderEntry, model: str) -> Provider:
    """`model`: the one to begin with, which the environment names, empty for none."""
    where = f"providers.{name}"
    if not entry.url:
        raise ConfigError(
            f"{where}.url: it is missing; write the server's address, as in http://127.0.0.1:11434/v1"
        )
    url, key = address(f"{where}.url", entry.url), sendable(f"{where}.key", entry.key)
    return OpenAIChat(
        name,
        url=url,
        key=key,
        headers=_headers(where, entry),
        known=_beginning(where, entry, url, model or quirks.deployment(url)),
        lists=not entry.models and not is_openais(url) and not quirks.is_azure(urlsplit(url).hostname or ""),
        quirks=_quirks(where, url, entry.quirks),
    )


def _beginning(where: str, entry: ProviderEntry, url: str, model: str) -> list[Model]:
    """The models known before a server is asked: those configured, OpenAI's own there; `model`, if named, first."""
    configured = _known(where, models.CHAT, entry)[: len(entry.models)]
    known = [*configured, *(models.OPENAI if is_openais(url) else ())]
    if not model:
        return known
    first = models.known_as(model, known, models.CHAT)
    return [first, *(other for other in known if other.name != model)]


def _quirks(where: str, url: str, given: Mapping[str, bool | str]) -> quirks.Quirks:
    fields = structs.asdict(quirks.of_host(url)) | dict(given)
    try:
        return msgspec.convert(fields, quirks.Quirks)
    except msgspec.ValidationError as error:
        names = ", ".join(quirks.Quirks.__struct_fields__)
        raise ConfigError(f"{where}.quirks: {error}; there are {names}") from None


def _known(where: str, known: Sequence[Model], entry: ProviderEntry) -> tuple[Model, ...]:
    table: dict[str, Any] = {model: msgspec.to_builtins(limits) for model, limits in entry.models.items()}
    try:
        return models.overridden(known, table)
    except ValueError as error:
        raise ConfigError(f"{where}.{error}") from None


def _headers(where: str, entry: ProviderEntry) -> dict[str, str]:
    return {name: sendable(f"{where}.headers.{name}", value) for name, value in entry.headers.items()}


def _speed(env: Mapping[str, str]) -> float:
    text = env.get(SPEED, "").strip() or "1"
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ConfigError(
            f"{SPEED}: {text!r} is no speed; 1 is as written, 2 twice as fast, 0 without pauses"
        )
    return float(text)
