"""This installation's release, and its own wheel: the same bytes for the same files, made from what is installed.

What was installed from a folder or a repository, editable or not, is no published version: there are as many of
"0.1.0" as there are states of that folder. Its release is the version and a mark of the content, `0.1.0+src` and 12 hex
digits, and its wheel has that as its version, so that who installs it says the same of itself. While somebody edits it,
OUTRIDER_RELEASE can say what it is to be called instead.
"""

import base64
import contextlib
import csv
import functools
import hashlib
import importlib.metadata
import io
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

NAME: Final = "outrider"
PACKAGES: Final = ("daemon", "mesh", "tui")
EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file knows: no clock in the bytes
MODE: Final = 0o100644 << 16  # a regular file that all may read
WHEEL_FILE: Final = b"Wheel-Version: 1.0\nGenerator: outrider\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
COPIED: Final = (
    "entry_points.txt",
    "licenses/LICENSE",
)  # of the metadata; the rest says how it was installed here
PINNED: Final = "OUTRIDER_RELEASE"  # in the environment: the release of a checkout, whatever is in it
_VERSION: Final = re.compile(r"[0-9]+(\.[0-9]+)*(\+[a-z0-9]+(\.[a-z0-9]+)*)?")
MARK: Final = 12  # hex digits of the content's SHA-256 in a release


class WheelError(Exception):
    """No wheel can be made of this installation; the message says why and what would do."""


class ReleaseError(Exception):
    """This installation cannot say what release it is; the message says why and what would do."""


class Wheel(Struct, frozen=True, kw_only=True):
    """A wheel on disk: `size` bytes at `path` with this SHA-256 (hex); `name` is the file's, as pip wants it."""

    release: str
    name: str
    sha256: str
    size: int
    path: Path


class _Origin(Struct, frozen=True):
    """Where this installation's files are: path in the wheel -> file; `marked`: its version alone does not name it."""

    distribution: Distribution
    files: Mapping[str, Path]
    marked: bool


@functools.cache
def own() -> str:
    """This installation's release, as it was when this was first asked: later changes are not seen. Blocks.

    Raises ReleaseError.
    """
    try:
        origin = _origin()
        return _release(origin, _contents(origin) if origin.marked else {})
    except (OSError, importlib.metadata.PackageNotFoundError) as error:
        raise ReleaseError(f"this installation does not read: {error}; install it anew") from error


def wheel(folder: Path) -> Wheel:
    """Have this installation's wheel in a folder, which is made where it is missing and holds nothing else. Blocks.

    Raises WheelError, also where the installation has been changed since this process began.
    """
    try:
        origin = _origin()
        contents = _contents(origin)
        release = _release(origin, contents)
    except (OSError, importlib.metadata.PackageNotFoundError) as error:
        raise WheelError(f"this installation's files do not read: {error}") from error
    if release != own():
        raise WheelError(
            f"the installation was changed from release {own()} to {release} while this ran: start it again"
        )
    data = _packed(origin.distribution, release, contents)
    name = f"{NAME}-{release}-py3-none-any.whl"
    try:
        path = _kept(folder, name, data)
    except OSError as error:
        raise WheelError(f"{folder / name} cannot be written: {error.strerror or error}") from error
    return Wheel(
        release=release, name=name, sha256=hashlib.sha256(data).hexdigest(), size=len(data), path=path
    )


def _origin() -> _Origin:
    """The distribution that this very file belongs to; or the folder it is in, with that distribution's metadata."""
    found = importlib.metadata.distribution(NAME)
    here = Path(__file__).resolve()
    listed = {str(path): Path(str(found.locate_file(path))) for path in found.files or ()}
    mine = listed.get("daemon/release.py")
    if mine is not None and mine.resolve() == here:
        return _Origin(found, {name: path for name, path in listed.items() if _ours(name)}, _is_source(found))
    return _Origin(found, dict(_walked(here.parents[1])), True)


def _is_source(distribution: Distribution) -> bool:
    """Whether it was installed from a folder or a repository (direct_url.json, PEP 610)."""
    try:
        url = msgspec.json.decode(distribution.read_text("direct_url.json") or "{}", type=dict[str, object])
    except msgspec.MsgspecError:
        return False
    return "dir_info" in url or "vcs_info" in url


def _ours(name: str) -> bool:
    parts = name.split("/")
    return (
        parts[0] in PACKAGES
        and "__pycache__" not in parts
        and not any(part.startswith(".") for part in parts)
        and not name.endswith((".pyc", "~"))
    )


def _walked(root: Path) -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for folder, _, names in os.walk(root / package):
            for name in names:
                path = Path(folder, name)
                if _ours(inside := path.relative_to(root).as_posix()) and path.is_file():
                    yield inside, path


def _contents(origin: _Origin) -> dict[str, bytes]:
    return {name: origin.files[name].read_bytes() for name in sorted(origin.files)}


def _release(origin: _Origin, contents: Mapping[str, bytes]) -> str:
    version = origin.distribution.version
    if not origin.marked:
        return version
    if pinned := os.environ.get(PINNED):
        if not _VERSION.fullmatch(pinned):
            raise ReleaseError(f"{PINNED} is {pinned!r}, and a release looks like 0.1.0 or 0.1.0+mine")
        return pinned
    digest = hashlib.sha256()
    for name, data in contents.items():
        digest.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    # `src` before it: a local version's segment of digits alone would lose its leading zeros
    return f"{version}{'.' if '+' in version else '+'}src{digest.hexdigest()[:MARK]}"


def _packed(distribution: Distribution, release: str, contents: Mapping[str, bytes]) -> bytes:
    """The wheel's bytes, by the specification of binary distributions: RECORD last, everything in order."""
    info = f"{NAME}-{release}.dist-info"
    metadata = distribution.read_text("METADATA") or ""
    versioned = re.sub(r"^Version:.*$", f"Version: {release}", metadata, count=1, flags=re.MULTILINE)
    members = {**contents, f"{info}/METADATA": versioned.encode(), f"{info}/WHEEL": WHEEL_FILE}
    for name in COPIED:
        if (text := distribution.read_text(name)) is not None:
            members[f"{info}/{name}"] = text.encode()
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow((name, f"sha256={digest}", len(data)))
    rows.writerow((f"{info}/RECORD", "", ""))
    members[f"{info}/RECORD"] = record.getvalue().encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, wherever it is made
            entry.external_attr = MODE
            archive.writestr(entry, data, compresslevel=9)
    return made.getvalue()


def _kept(folder: Path, name: str, data: bytes) -> Path:
    """The file with these bytes, written whole where it is not there yet; other files of the folder go."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    if not path.is_file() or path.read_bytes() != data:
        temporary = folder / f".{os.getpid()}.new"
        temporary.write_bytes(data)
        temporary.replace(path)
    for other in folder.iterdir():
        if other != path:
            with contextlib.suppress(OSError):
                other.unlink()
    return path
