"""The providers of a running daemon: what serves now, what is said of it, and setting one up while it runs."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec
import structlog

from daemon import config, keyplace, ownfile
from daemon.config import KEY_FIELDS, ConfigError, ProviderEntry
from daemon.keyplace import KeyPlaceError
from daemon.protocol import api
from daemon.provider import probing, scanning
from daemon.provider.asking import Asking
from daemon.provider.base import Model, Provider, ProviderError
from daemon.provider.entries import ASKS
from daemon.provider.listing import LIMIT
from daemon.provider.registry import Registry

HEAD: Final = "Providers set with PUT /providers/NAME. What outrider.toml says of one goes before this."

log = structlog.get_logger()


class BadSetting(Exception):
    """A provider cannot be set up so; the message begins with the field."""


class FixedSetting(Exception):
    """The operator's own file says something else, which goes first; the message names the field and the file."""


class Providers:
    """The providers as the configuration has them, over those that were set while a daemon ran.

    `stored`: the tables of the file at `path`, `written`: those of outrider.toml; `model`: the configured default,
    empty where none is. Lists the rehearsals' folder: blocks, make it before the loop runs. Raises ConfigError.
    """

    def __init__(
        self,
        path: Path,
        stored: Mapping[str, Any],
        written: Mapping[str, Any],
        environ: Mapping[str, str],
        rehearsal: Path | None,
        model: str = "",
    ) -> None:
        self._path = path
        self._stored = stored
        self._written = written
        self._environ = environ
        self._rehearsal = rehearsal
        self._model = model
        self._setting = asyncio.Lock()
        self._http: aiohttp.ClientSession | None = None
        self._asking: Asking | None = None
        self._entries, self._registry, self._missing = self._built(stored)
        for name, why in self._missing.items():
            log.warning("a provider's key cannot be had", provider=name, why=why)

    def resolve(self, name: str) -> tuple[Provider, Model]:
        """See registry.resolve."""
        return self._registry.resolve(name)

    def served(self) -> list[str]:
        """See registry.served."""
        return list(self._registry.served())

    def default(self) -> str:
        """The model of a session for which none is named."""
        return self._model or self._registry.default()

    @asynccontextmanager
    async def using(self, http: aiohttp.ClientSession) -> AsyncIterator[None]:
        """Ask servers with this client, for as long as the context is open."""
        async with Asking(http) as asking:
            self._http, self._asking = http, asking
            yield

    async def begin(self, limit: float) -> None:
        """Ask the servers of which no model is known, and wait for them; at most `limit` seconds. The others can wait
        for `refresh`.
        """
        if self._asking is not None:
            known = self._registry.providers
            self._asking.ask({name: provider for name, provider in known.items() if not provider.models()})
            await self._asking.wait(limit)

    async def refresh(self, wait: float = 0.0) -> None:
        """Have the servers that list their models asked, unless they were a moment ago; wait for them for at most
        `wait` seconds.

        Without a client nobody is asked. A server that gives no list is in the log and keeps the models it had.
        """
        if self._asking is not None:
            self._asking.ask(self._registry.providers)
            await self._asking.wait(wait)

    def describe(self) -> api.Providers:
        """All that is to be known of them, and who could be set up beside them; no key."""
        names = dict.fromkeys([*self._registry.providers, *self._entries])
        offered = (api.Offer(kind, asks) for kind, asks in ASKS.items() if kind not in names)
        return api.Providers(self.default(), tuple(map(self._info, names)), tuple(offered))

    async def set(self, name: str, setting: api.ProviderSetting) -> api.ProviderInfo:
        """Set one up, on disk and for requests that begin from now on.

        Raises BadSetting, FixedSetting, and OwnFileError where it cannot be written.
        """
        given = msgspec.to_builtins(setting)
        async with self._setting:
            written = self._written.get(name, {})
            for field in given:
                fixed = {field} | (KEY_FIELDS if field in KEY_FIELDS else set())
                for there in sorted(fixed & written.keys()):
                    where = f"{there} in [providers.{name}], which goes first; change it there"
                    raise FixedSetting(f"{field}: outrider.toml has {where}")
            await self._keep(name, given)
            table = {
                field: value for field, value in (self._stored.get(name, {}) | given).items() if value != ""
            }
            stored = {other: kept for other, kept in self._stored.items() if other != name}
            if table:
                stored[name] = table
            try:
                entries, registry, missing = await asyncio.to_thread(self._built, stored)
            except ConfigError as error:
                raise BadSetting(_about_field(str(error), name)) from error
            if given.get("key_from") and name in missing:
                raise BadSetting(f"key_from: {missing[name]}")
            if name in entries and name not in registry.providers:
                raise BadSetting(f"kind: this release has no wire of kind {entries[name].kind!r}")
            registry.keep(self._registry)
            await asyncio.to_thread(ownfile.write, self._path, {"providers": stored}, HEAD)
            self._stored, self._entries, self._registry, self._missing = stored, entries, registry, missing
            return self._info(name)

    async def test(self, name: str, model: str) -> api.Tested:
        """What comes of one small request to a provider; `model` empty is its first. See probing.probe.

        Raises ProviderError where there is no such provider, or it has no model.
        """
        if not model:
            await self.refresh(LIMIT)
        registry = self._registry
        first = next((known.name for known in registry.models(name)), "")
        registry.check(name)
        if not (model or first) and name in registry.providers:
            what = f"{name} lists no model; name one: `outrider providers test {name}/MODEL`"
            raise ProviderError(what, code="model")
        provider, known = registry.resolve(f"{name}/{model or first or '-'}")
        entry = registry.entries.get(name)
        return await probing.probe(provider, known, self._http, vendors=entry is None or not entry.url)

    async def scan(self, ports: Sequence[int]) -> list[api.Found]:
        """The servers of models at these ports of this machine; none are the usual ones."""
        return await scanning.scan(self._registry.entries, ports or scanning.PORTS)

    async def _keep(self, name: str, given: dict[str, Any]) -> None:
        """Have a key and the place for it mean one thing: one goes into the keyring, or takes the other's place."""
        key, place = given.get("key", ""), given.get("key_from", "")
        if key and place:
            if not place.startswith(keyplace.KEYRING):
                raise BadSetting("key_from: it contradicts key; give one of them, or a place in the keyring")
            if not _sendable(key):
                raise BadSetting("key: it holds characters that no HTTP header can; copy it anew")
            try:
                await asyncio.to_thread(keyplace.keep, keyplace.checked(place), key)
            except ValueError as error:
                raise BadSetting(f"key_from: {error}") from None
            except KeyPlaceError as error:
                raise BadSetting(f"key_from: {error}") from error
            del given["key"]
            key = ""
        if key or "key" in given:
            given.setdefault("key_from", "")
        if place:
            given["key"] = ""

    def _built(
        self, stored: Mapping[str, Any]
    ) -> tuple[Mapping[str, ProviderEntry], Registry, Mapping[str, str]]:
        """The entries with all keys that can be had, their registry, and why others cannot be. Blocks."""
        entries = dict(config.providers(stored, self._written, self._environ, []))
        missing: dict[str, str] = {}
        for name, entry in entries.items():
            if entry.key_from and not entry.key:
                written = bool(KEY_FIELDS & self._written.get(name, {}).keys())
                try:
                    key = keyplace.find(entry.key_from, self._environ, written=written)
                except KeyPlaceError as error:
                    missing[name] = str(error).replace("NAME", name)
                else:
                    entries[name] = msgspec.structs.replace(entry, key=key)
        registry = Registry(entries, self._rehearsal, self._environ, missing)
        return registry.entries, registry, missing

    def _info(self, name: str) -> api.ProviderInfo:
        entry = self._entries.get(name, ProviderEntry())
        provider = self._registry.providers.get(name)
        kind = entry.kind or name
        return api.ProviderInfo(
            name=name,
            kind=kind,
            url=_shown(entry.url),
            has_key=bool(entry.key),
            served=provider is not None,
            models=tuple(
                api.ModelInfo(f"{name}/{model.name}", model.context, model.output, model.input, model.price)
                for model in self._registry.models(name)
            ),
            key_from=entry.key_from,
            problem=self._missing.get(name, ""),
            asking=self._asking is not None and self._asking.pending(name),
            unlisted="" if self._asking is None else self._asking.why(name),
            region=entry.region,
            asks=ASKS.get(kind, ("key",)),
        )


def _sendable(key: str) -> bool:
    return key.isascii() and key.isprintable()


def _about_field(message: str, provider: str) -> str:
    """A config error about one provider, beginning with its field."""
    if message == (short := message.removeprefix(f"providers.{provider}.")):
        short = f"kind: {message.removeprefix(f'providers.{provider} ')}"
    return short


def _shown(url: str) -> str:
    """An address without a name and password in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
