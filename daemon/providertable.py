"""Read `[providers.NAME]`: what it may say, checked by field, its variables and keys looked up in the environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from daemon import keyplace, strict
from daemon.strict import ConfigError

KINDS: Final = ("anthropic", "openai", "openai-chat", "google", "bedrock", "rehearsal")
KEYS: Final[Mapping[str, str]] = {  # a provider whose key stands in the environment needs no table
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "google": "GEMINI_API_KEY",
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
}
ALSO: Final = {"GEMINI_API_KEY": "GOOGLE_API_KEY"}  # the vendor's own client takes either
KEY_FIELDS: Final = frozenset({"key", "key_from"})  # either says where the key is
URLS: Final[Mapping[str, str]] = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "openai": "OPENAI_BASE_URL",
    "google": "GOOGLE_GEMINI_BASE_URL",
    "bedrock": "AWS_ENDPOINT_URL_BEDROCK_RUNTIME",
}


Dollars = Annotated[float, Meta(ge=0, le=1_000_000)]


class PriceEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`price` of a model: US dollars for a million tokens. A cache's prices are `input`'s where they are left out."""

    input: Dollars
    output: Dollars
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None


class ModelEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[providers.NAME.models.MODEL]`: limits in tokens (0: not known), media types of input it takes, its price."""

    context: Annotated[int, Meta(ge=0)] = 0
    output: Annotated[int, Meta(ge=0)] = 0
    input: tuple[str, ...] = ()
    price: PriceEntry | None = None


class ProviderEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[providers.NAME]`, with `$VAR` expanded. `kind` is never empty here, the other texts may be.

    `key_from`: where the key is that is not written here, see keyplace; one in the environment is in `key` by now.
    `quirks`: what a server of this kind takes or refuses, by the kind's own names.
    """

    kind: str = ""
    url: str = ""
    key: str = ""
    key_from: str = ""
    region: str = ""
    headers: Mapping[str, str] = {}
    models: Mapping[str, ModelEntry] = {}
    quirks: Mapping[str, bool | str] = {}


def check(value: Any, file: Path) -> None:
    """Every provider's table of the file is of the right shape; ConfigError names what is not."""
    for provider, entry in strict.table(value, "providers", file).items():
        path = f"providers.{provider}"
        if not provider or "/" in provider:
            raise ConfigError(f"{file}: [{path}]: a provider's name has no slash and is not empty")
        entry = strict.table(entry, path, file)
        for model, limits in strict.table(entry.get("models", {}), f"{path}.models", file).items():
            where = f"{path}.models.{model}"
            limits = strict.table(limits, where, file)
            if "price" in limits:
                strict.convert(
                    _price(limits["price"], f"{where}.price", file), PriceEntry, f"{where}.price", file
                )
            strict.convert(limits, ModelEntry, where, file)
        checked = strict.convert(entry, ProviderEntry, path, file)
        if checked.kind and checked.kind not in KINDS:
            raise ConfigError(
                f"{file}: {path}.kind is {checked.kind!r}{strict.nearest(checked.kind, KINDS)}; "
                f"kinds are {', '.join(KINDS)}"
            )


def _price(value: Any, path: str, file: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(
            f"{file}: {path} has two prices at least, US dollars for a million tokens: write "
            "price = { input = 3, output = 15 }"
        )
    return value


def providers(
    stored: Mapping[str, Any], written: Mapping[str, Any], environ: Mapping[str, str], warnings: list[str]
) -> Mapping[str, ProviderEntry]:
    """Each provider's entry: `written` tables, their variables expanded, over `stored` ones, whose texts are taken as
    they stand; and one for each provider whose key is in the environment. Raises ConfigError.
    """
    tables = {name: _expanded(name, table, environ, warnings) for name, table in written.items()}
    found: dict[str, ProviderEntry] = {}
    for name in [*tables, *(name for name in stored if name not in tables)]:
        entry = _merged(name, stored.get(name, {}), tables.get(name, {}))
        kind = entry.kind or name
        if entry.kind and kind not in KINDS:
            near = strict.nearest(kind, KINDS)
            raise ConfigError(
                f"providers.{name}.kind: there is no {kind!r}{near}; kinds are {', '.join(KINDS)}"
            )
        if kind not in KINDS:
            raise ConfigError(f"providers.{name} needs a kind: one of {', '.join(KINDS)}")
        found[name] = msgspec.structs.replace(
            entry,
            kind=kind,
            url=entry.url or environ.get(URLS.get(name, ""), ""),
            key=entry.key or _named(entry.key_from, environ) or _key(name, environ),
        )
    for name in KEYS:
        if name not in found and (key := _key(name, environ)):
            found[name] = ProviderEntry(name, environ.get(URLS.get(name, ""), ""), key)
    return found


def _merged(name: str, stored: Mapping[str, Any], written: Mapping[str, Any]) -> ProviderEntry:
    """A provider's tables as one; what is written of its key goes before all that is stored of it."""
    if KEY_FIELDS & written.keys():
        stored = {field: value for field, value in stored.items() if field not in KEY_FIELDS}
    entry = msgspec.convert(strict.merge(stored, written), ProviderEntry)
    if entry.key and entry.key_from:
        raise ConfigError(f"providers.{name}.key_from: it has a key too; leave one of the two out")
    if entry.key_from:
        try:
            keyplace.checked(entry.key_from)
        except ValueError as error:
            raise ConfigError(f"providers.{name}.key_from: {error}") from None
    return entry


def _named(place: str, environ: Mapping[str, str]) -> str:
    """The key in the variable that a place names, empty where it is none or not there."""
    return environ.get(place.removeprefix(keyplace.ENV), "") if place.startswith(keyplace.ENV) else ""


def _key(name: str, environ: Mapping[str, str]) -> str:
    """A provider's key in the environment, empty where there is none."""
    variable = KEYS.get(name, "")
    return environ.get(variable, "") or environ.get(ALSO.get(variable, ""), "")


def _expanded(
    name: str, table: Mapping[str, Any], environ: Mapping[str, str], warnings: list[str]
) -> dict[str, Any]:
    """A provider's table with the variables in its texts and headers expanded."""
    made = dict(table)
    if place := keyplace.of_key(made.get("key", "")):
        made |= {"key": "", "key_from": place}
    if made.get("key_from", "").startswith(keyplace.ENV):
        _expand(f"${made['key_from'].removeprefix(keyplace.ENV)}", name, environ, warnings)
    for field in ("url", "key"):
        if field in made:
            made[field] = _expand(made[field], name, environ, warnings)
    if "headers" in made:
        made["headers"] = {
            header: _expand(text, name, environ, warnings) for header, text in made["headers"].items()
        }
    return made


def _expand(text: str, provider: str, environ: Mapping[str, str], warnings: list[str]) -> str:
    warnings += (
        f"providers.{provider} names ${match[1]}, which is not in the environment"
        for match in strict.VARIABLE.finditer(text)
        if match[1] not in environ
    )
    return strict.VARIABLE.sub(lambda match: environ.get(match[1], ""), text)
