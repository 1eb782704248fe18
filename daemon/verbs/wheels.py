"""Fill the folder of wheels that machines install from when they join: this release and all that it needs."""

import errno
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from daemon import config, release
from daemon.plain import count, line, size
from daemon.verbs.reach import OK, USAGE, VerbError, note, say, say_json

FOLDER: Final = "wheelhouse"  # in the data folder, where the daemon looks for it
# The glibc of the wheels that are taken for another architecture, the newest first: Debian 12 has 2.36.
GLIBC: Final = (34, 31, 28, 17)
SHOWN: Final = 12  # lines of pip's last words
_PYTHON: Final = re.compile(r"3\.(1[1-9]|[2-9][0-9])")
# What `uname -m` says where there are wheels with glibc (PEP 600), which are what is asked for.
ARCHS: Final = ("aarch64", "armv7l", "i686", "loongarch64", "ppc64le", "riscv64", "s390x", "x86_64")
# Of what pip finds none that fits, in either of its ways to say so.
_NONE: Final = re.compile(
    r"^(?:ERROR: No matching distribution found for| +The user requested \(constraint\)) ([A-Za-z0-9._-]+)",
    re.MULTILINE,
)


def fill(
    into: str, pythons: Sequence[str], archs: Sequence[str], environ: Mapping[str, str], json: bool
) -> int:
    """Put wheels for each Python and architecture into a folder; none named: those of here.

    In the daemon's own folder, which is meant where none is named, they replace those of before.
    """
    for version in pythons:
        if not _PYTHON.fullmatch(version):
            raise VerbError(f"--python {line(version)}: write a version from 3.11 on, such as 3.12", USAGE)
    for arch in archs:
        if arch not in ARCHS:
            raise VerbError(
                f"--arch {line(arch)}: write what `uname -m` says there, one of {', '.join(ARCHS)}", USAGE
            )
    folder = Path(into).expanduser() if into else config.load(environ).data / FOLDER
    _check_folder(folder, "--into " if into else "the data folder's ")
    try:
        with tempfile.TemporaryDirectory(prefix="outrider-wheels-") as work:
            made = Path(work) / "made"
            made.mkdir()
            own = release.wheel(Path(work) / "own").path
            with _pip(Path(work)) as pip:
                for options in _targets(pythons, archs):
                    _download(pip, own, made, options, Path(work))
            shutil.copy(own, made)
            files = _placed(made, folder)
            if not into:
                _clear(folder, files)
    except release.WheelError as error:
        raise VerbError(str(error)) from error
    except OSError as error:
        raise VerbError(f"{line(str(error.filename or folder))}: {error.strerror}") from error
    total = sum(path.stat().st_size for path in files)
    if json:
        say_json({"folder": str(folder), "wheels": [path.name for path in files], "bytes": total})
        return OK
    say(f"{count(len(files), 'wheel')}, {size(total)}, in {line(str(folder), 1000)}")
    if not into:
        note(
            "machines that join install from here from now on; make new tokens: lines of before do not know of it"
        )
    return OK


def _check_folder(folder: Path, what: str) -> None:
    """See that wheels can be put there, before they are fetched; nothing is left of it. Raises VerbError."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{there} is no folder")
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise VerbError(f"{what}{line(str(folder))} cannot be written: {error.strerror}", USAGE) from None


def _targets(pythons: Sequence[str], archs: Sequence[str]) -> Iterator[list[str]]:
    """What pip is told for each of them."""
    own = platform.machine()
    for version in pythons or [""]:
        for arch in archs or [""]:
            options = ["--python-version", version, "--implementation", "cp"] if version else []
            if arch and arch != own:
                tags = [*(f"manylinux_2_{minor}_{arch}" for minor in GLIBC), f"manylinux2014_{arch}"]
                options += [part for tag in tags for part in ("--platform", tag)]
            yield options


@contextmanager
def _pip(work: Path) -> Iterator[list[str]]:
    """A command that is pip: this installation's own, or one of an environment that is made for it."""
    if find_spec("pip") is not None:
        yield [sys.executable, "-m", "pip"]
        return
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(work / "pip")], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise VerbError(
            f"there is no pip here, and none can be made ({_last(made.stdout + made.stderr, 1)}): install the "
            "package python3-venv, or pip beside outrider"
        )
    yield [str(work / "pip/bin/python"), "-m", "pip"]


def _download(pip: Sequence[str], own: Path, into: Path, options: Sequence[str], work: Path) -> None:
    """What our own wheel needs, in the versions that run here. Raises VerbError."""
    constraints = work / "constraints"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in _installed()))
    target = f" ({' '.join(options)})" if options else ""
    note(f"fetching wheels{target} …")
    done = subprocess.run(
        [
            *pip,
            "download",
            "--disable-pip-version-check",
            "--no-input",
            "--only-binary=:all:",
            *("--dest", str(into)),
            *("--constraint", str(constraints)),
            *options,
            str(own),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    if done.returncode:
        what = f"there is no wheel of {none[1]}{target}, or" if (none := _NONE.search(done.stdout)) else ""
        why = f"{what} no index is reached" if what else "pip could not fetch them"
        raise VerbError(f"{why}; pip's own words:\n{_last(done.stdout, SHOWN)}")


def _installed() -> list[tuple[str, str]]:
    """What is installed here, in versions that an index can have."""
    found = {}
    for distribution in importlib.metadata.distributions():
        name, version = distribution.metadata["Name"], distribution.version
        if name and name.lower() != release.NAME and "+" not in version:
            found[name] = version
    return sorted(found.items())


def _placed(made: Path, folder: Path) -> list[Path]:
    """The wheels of `made` in `folder`; each is there whole or not at all."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = []
    for path in sorted(made.iterdir()):
        fresh, placed = folder / f".{path.name}.new", folder / path.name
        try:
            shutil.copyfile(path, fresh)
            fresh.replace(placed)
        finally:
            fresh.unlink(missing_ok=True)
        files.append(placed)
    return files


def _clear(folder: Path, files: Sequence[Path]) -> None:
    """Remove the wheels of before from the daemon's own folder."""
    for path in folder.glob("*.whl"):
        if path not in files:
            path.unlink()


def _last(text: str, lines: int) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
