"""A folder of wheels as pip may take it from: its files with their hashes, and the pages that list them."""

import hashlib
import html
import re
from pathlib import Path
from typing import Final
from urllib.parse import quote

from msgspec import Struct

PATH: Final = "/wheelhouse/"
MOST: Final = 2000  # files; a worker's wheels for every Python and machine are under a hundred
_NAME: Final = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._]*)-[A-Za-z0-9_.!+]+(-[0-9][A-Za-z0-9_.]*)?(-[A-Za-z0-9_.]+){3}\.whl"
)


class WheelhouseError(Exception):
    """The folder cannot be served; the message names it, and says why."""


class Wheel(Struct, frozen=True):
    """A wheel's file: its name, SHA-256 in hex, size in bytes, and where it is."""

    name: str
    sha256: str
    size: int
    path: Path


class Wheelhouse(Struct, frozen=True):
    """What a folder holds: `files` by name; `index` lists them all; `projects` by normalised name, a page for each."""

    files: dict[str, Wheel]
    index: bytes
    projects: dict[str, bytes]

    @property
    def sha256(self) -> str:
        """The index's, in hex. All the hashes are in the index, so it stands for every file."""
        return hashlib.sha256(self.index).hexdigest()


def wheel(path: Path) -> Wheel:
    """The wheel at `path`, read whole. Blocks. Raises WheelhouseError."""
    if not _NAME.fullmatch(path.name):
        raise WheelhouseError(f"{path} does not have the name of a wheel")
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            return Wheel(path.name, found, file.tell(), path)
    except OSError as error:
        raise WheelhouseError(f"{path}: {error.strerror or error}") from error


def read(folder: Path) -> Wheelhouse:
    """The wheels in `folder`, the same for the same files whatever their age and order. Blocks; reads every byte.

    Raises WheelhouseError.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".whl" and path.is_file())
    except OSError as error:
        raise WheelhouseError(f"{folder}: {error.strerror or error}") from error
    if len(paths) > MOST:
        raise WheelhouseError(f"{folder} holds {len(paths)} wheels, and may hold {MOST}")
    files = {path.name: wheel(path) for path in paths}
    projects: dict[str, list[Wheel]] = {}
    for each in files.values():
        projects.setdefault(project(each.name), []).append(each)
    return Wheelhouse(
        files, _page(list(files.values())), {name: _page(wheels) for name, wheels in projects.items()}
    )


def project(name: str) -> str:
    """The normalised name of the project that a wheel's name says (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name.partition("-")[0]).lower()


def _page(wheels: list[Wheel]) -> bytes:
    """PEP 503's, with absolute paths: it is also read from a copy that names another base."""
    lines = ['<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.0"></head><body>']
    for each in wheels:
        href = html.escape(f"{PATH}{quote(each.name)}#sha256={each.sha256}")
        lines.append(f'<a href="{href}">{html.escape(each.name)}</a><br>')
    return "\n".join([*lines, "</body></html>", ""]).encode()
