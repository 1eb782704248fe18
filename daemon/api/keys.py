"""The API's keys: made, listed, found and revoked; the file holds their names, roles and hashes alone."""

import asyncio
import hmac
import secrets
from base64 import b32encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from daemon import ownfile
from daemon.harness.errors import Conflict, Invalid, NoSpace, NotFound
from daemon.ownfile import OwnFileError
from daemon.protocol import api

LENT: Final = "serve"  # what a key is called that holds for one run; no other key is made of this name
FILE: Final = "keys.toml"
BITS: Final = 160  # random ones of a key: nobody finds one by trying, so a fast hash is enough
HEAD: Final = "API keys: GET, POST and DELETE /keys. The daemon reads this at its start and replaces it."


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    role: api.Role
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    created: str = ""


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    keys: dict[Annotated[str, Meta(pattern=api.NAME)], _Entry] = {}


def _now() -> datetime:
    return datetime.now(UTC)


class Keys:
    """The keys of one daemon, in a file at `path`. Reads it: blocks, make it before the loop runs.

    `lent`: one more, of operator's role, that is in no file. Raises OwnFileError.
    """

    def __init__(self, path: Path, now: Callable[[], datetime] = _now, lent: str = "") -> None:
        self._path = path
        self._now = now
        self._lent = digest(lent) if lent else ""
        try:
            self._entries: Mapping[str, _Entry] = msgspec.convert(ownfile.read(path), _File).keys
        except msgspec.ValidationError as error:
            raise OwnFileError(f"{path}: {error}; correct it or move it away") from error
        self._changing = asyncio.Lock()

    def list(self) -> tuple[api.KeyInfo, ...]:
        """Every key, by name."""
        return tuple(
            api.KeyInfo(name, entry.role, entry.created) for name, entry in sorted(self._entries.items())
        )

    def find(self, secret: str) -> api.KeyInfo | None:
        """The key that this is. How long it takes tells nothing of how near a wrong one comes."""
        given = digest(secret)
        found = None
        if self._lent and hmac.compare_digest(self._lent, given):
            found = api.KeyInfo(LENT, "operator", "")
        for name, entry in self._entries.items():
            if hmac.compare_digest(entry.sha256, given):
                found = api.KeyInfo(name, entry.role, entry.created)
        return found

    async def add(self, new: api.NewKey) -> api.KeyMade:
        """Make a key; it holds from when this returns, on disk. Raises Invalid, Conflict, NoSpace."""
        if new.name == LENT:
            raise Invalid(f"name: {LENT} is what the key of an `outrider serve` is called; take another name")
        async with self._changing:
            if new.name in self._entries:
                raise Conflict(
                    f"name: there is a key {new.name} already; revoke it first, or take another name"
                )
            secret = fresh()
            created = self._now().isoformat(timespec="seconds").replace("+00:00", "Z")
            await self._keep({**self._entries, new.name: _Entry(new.role, digest(secret), created)})
        return api.KeyMade(new.name, new.role, created, secret)

    async def remove(self, name: str) -> str:
        """Revoke a key; it is refused from when this returns, which is its digest. Raises NotFound, NoSpace."""
        async with self._changing:
            if (gone := self._entries.get(name)) is None:
                raise NotFound(f"there is no key {name}")
            await self._keep({other: entry for other, entry in self._entries.items() if other != name})
        return gone.sha256

    async def _keep(self, entries: Mapping[str, _Entry]) -> None:
        tables: dict[str, Any] = {"keys": msgspec.to_builtins(entries)}
        try:
            await asyncio.to_thread(ownfile.write, self._path, tables, HEAD)
        except OwnFileError as error:
            raise NoSpace(f"nothing was changed: {error}") from error
        self._entries = entries


def fresh() -> str:
    """A new key's text."""
    return api.KEY_PREFIX + b32encode(secrets.token_bytes(BITS // 8)).decode().lower()


def digest(secret: str) -> str:
    """What a key is kept as, and told from every other by."""
    return sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
