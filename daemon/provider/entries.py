"""What providers' tables say together with the environment: whose are made of it, and which of them can answer."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from msgspec import structs

from daemon.config import ConfigError, ProviderEntry
from daemon.protocol import api
from daemon.provider import anthropic, aws, google, openai_chat

OPENAI: Final = "openai"
CHAT: Final = "openai-chat"
BASE_URL: Final = "OPENAI_BASE_URL"  # as clients of the wire have it: any server's address
API_KEY: Final = "OPENAI_API_KEY"
MODEL: Final = "OPENAI_MODEL"  # the one to begin with, of those that this server has
BEDROCK: Final = "bedrock"
REHEARSAL: Final = "rehearsal"
_ALL: Final = frozenset({"url", "key", "key_from", "headers"})
MEANS: Final[Mapping[str, frozenset[str]]] = {  # the fields that say something to a provider of a kind
    "anthropic": _ALL,
    "openai": _ALL,
    "openai-chat": _ALL | {"quirks"},
    "google": _ALL,
    "bedrock": _ALL | {"region", "quirks"},
    "rehearsal": frozenset(),
}
ASKS: Final[Mapping[str, tuple[api.Asked, ...]]] = {  # what sets a provider of a kind up, in a form's order
    "anthropic": ("key",),
    "openai": ("key",),
    "openai-chat": ("url", "key"),
    "google": ("key",),
    "bedrock": ("region", "key"),
    "rehearsal": (),
}
OWN: Final[Mapping[str, str]] = {"anthropic": anthropic.URL, "google": google.URL, OPENAI: openai_chat.URL}
CARRIERS: Final = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key"})  # headers with a key


def with_environment(
    entries: Mapping[str, ProviderEntry], env: Mapping[str, str]
) -> Mapping[str, ProviderEntry]:
    """The entries, and those that the environment's address and key make: OpenAI with its two wires, or where the
    address is another server's, which mostly has but the older one, that alone.

    Its key goes nowhere but to its own address: an entry with an address has its own key, or none. An entry of Bedrock
    gets the region of the environment, or of the profile's file, which is read: not for the loop.
    """
    entries = {name: _with_region(name, entry, env) for name, entry in entries.items()}
    url, key = env.get(BASE_URL, "").strip(), sendable(API_KEY, env.get(API_KEY, ""))
    url = address(BASE_URL, url) if url else ""
    entries = _with_openai(entries, url, key)
    entry = entries.get(CHAT, ProviderEntry(kind=CHAT))
    if entry.url or (entry.kind or CHAT) != CHAT or (CHAT not in entries and not url and not key):
        return entries
    filled = structs.replace(entry, url=url or openai_chat.URL, key=entry.key or key)
    return {**entries, CHAT: filled}


def _with_region(name: str, entry: ProviderEntry, env: Mapping[str, str]) -> ProviderEntry:
    if (entry.kind or name) != BEDROCK:
        return entry
    return structs.replace(entry, region=entry.region.strip() or aws.region(env))


def _with_openai(entries: Mapping[str, ProviderEntry], url: str, key: str) -> Mapping[str, ProviderEntry]:
    """The entries with one of OpenAI's newer wire where the environment means OpenAI, and else without one that only
    the environment made.
    """
    entry = entries.get(OPENAI)
    if entry is None:
        means = bool(key) and (not url or is_openais(url))
        return {**entries, OPENAI: ProviderEntry(OPENAI, url, key)} if means else entries
    bare = structs.replace(entry, kind=OPENAI, url=entry.url.strip(), key=entry.key.strip())
    if url and not is_openais(url) and bare == ProviderEntry(OPENAI, url, key):
        return {name: other for name, other in entries.items() if name != OPENAI}
    return entries


def is_openais(url: str) -> bool:
    """Whether an address is OpenAI's own, of any region."""
    return _vendors(openai_chat.URL, url)


def _vendors(own: str, url: str) -> bool:
    """Whether an address is on the host that `own` is on, or on one under it."""
    host, vendor = urlsplit(url).hostname or "", urlsplit(own).hostname or ""
    return host == vendor or host.endswith(f".{vendor}")


def can_answer(name: str, entry: ProviderEntry) -> bool:
    """Whether a request may be answered, as far as can be told without one: at its vendor's own address it needs a
    key, or what signs for it and a region; a server of one's own may need nothing.
    """
    kind, url, keyed = entry.kind or name, entry.url.strip(), bool(entry.key.strip())
    if kind == BEDROCK:
        return bool(entry.region or (keyed and url)) and (keyed or find_spec("botocore") is not None)
    carried = any(entry.headers[header].strip() for header in entry.headers if header.lower() in CARRIERS)
    return keyed or carried or bool(url and not _vendors(OWN.get(kind, openai_chat.URL), url))


def check_fields(name: str, entry: ProviderEntry) -> None:
    """Raises ConfigError for a field that means nothing to a provider of its kind."""
    kind = entry.kind or name
    for field in ("url", "key", "key_from", "region", "headers", "quirks"):
        if getattr(entry, field) and field not in MEANS.get(kind, {field}):
            raise ConfigError(f"providers.{name}.{field}: a provider of kind {kind} has none; leave it out")
    for model, told in entry.models.items() if kind == REHEARSAL else ():
        for field in ("context", "output", "input"):
            if getattr(told, field):
                where = f"providers.{name}.models.{model}.{field}"
                raise ConfigError(
                    f"{where}: a rehearsal's is its own; leave it out, its price alone can be set"
                )


def sendable(where: str, text: str) -> str:
    """A text that a header can hold, without spaces around it. Raises ConfigError."""
    text = text.strip()
    if not text.isascii() or not text.isprintable():
        raise ConfigError(f"{where}: it holds characters that no HTTP header can; copy it anew")
    return text


def address(where: str, url: str) -> str:
    """An address of HTTP, without spaces around it. Raises ConfigError, which has no password."""
    url = url.strip()
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url):
        shown = re.sub(r"//.*@", "//***@", url)
        raise ConfigError(f"{where}: {shown!r} is no address; write it as https://host or http://host:port")
    return url
