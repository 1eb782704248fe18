"""Which workers take nothing new, by their operator's word: kept in a file, so that it holds over restarts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from daemon import ownfile
from daemon.ownfile import OwnFileError

FILE: Final = "cordons.toml"
HEAD: Final = "Workers that take no new calls: outrider worker cordon. The daemon reads this at its start."


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    workers: tuple[Annotated[str, Meta(min_length=1)], ...] = ()


class Cordons:
    """The names of those workers. `path` is read: blocks, make it before the loop runs. Raises OwnFileError.

    Without a path they are kept in memory alone.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._changing = asyncio.Lock()
        try:
            found = msgspec.convert(ownfile.read(path) if path else {}, _File)
        except msgspec.ValidationError as error:
            raise OwnFileError(f"{path}: {error}; correct it or move it away") from error
        self._names = frozenset(found.workers)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    async def put(self, name: str, cordoned: bool) -> bool:
        """Cordon a worker, or no more; False where that was so. It is on disk when this returns.

        Raises OwnFileError; then nothing has changed.
        """
        async with self._changing:
            names = self._names | {name} if cordoned else self._names - {name}
            if names == self._names:
                return False
            if self._path is not None:
                tables = {"workers": sorted(names)}
                await asyncio.to_thread(ownfile.write, self._path, tables, HEAD)
            self._names = names
            return True
