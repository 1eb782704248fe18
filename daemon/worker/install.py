"""Install a release beside the one that runs: a virtual environment of its own, there whole or not at all.

A process of its own, which the link starts and can kill at any moment. What the release needs is taken over from the
environment that runs this, file by file, so that no network is needed; what that has not, or not new enough, comes from
pip, with this machine's configuration (PIP_INDEX_URL, PIP_FIND_LINKS, PIP_NO_INDEX, pip.conf).
"""

import contextlib
import ctypes
import fcntl
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from daemon.worker import smallfiles
from daemon.worker.requirements import needed, unsatisfied

FOLDER: Final = "releases"  # in the scratch folder
LOG: Final = "install.log"  # in FOLDER: what pip said last
NAME: Final = "outrider"
PIP_WAIT: Final = 900.0  # seconds for what is missing to come over a slow network and be installed
CHECK_WAIT: Final = (
    90.0  # seconds for the new release to show that it works: its keeper may wait for a slow profile
)
START_WAIT: Final = 20.0  # seconds for an installed release to say its name
SHOWN: Final = 300  # characters of what a program said that go into a reason
PR_SET_PDEATHSIG: Final = 1


class InstallError(Exception):
    """The release could not be installed; the message says why. What was there before is as it was."""


class Job(Struct, frozen=True):
    """Install `wheel`, which is `release`, for the worker of `scratch`. `keep`: other releases that are in use."""

    wheel: str
    release: str
    scratch: str
    keep: tuple[str, ...] = ()


class Outcome(Struct, frozen=True):
    """`python`: the interpreter of the installed release; empty where it failed, `reason` says why then."""

    python: str = ""
    reason: str = ""


def python_of(scratch: Path, release: str) -> Path:
    """The interpreter of an installed release."""
    return scratch / FOLDER / release / "bin/python"


def command(python: Path, *arguments: str) -> list[str]:
    """A command line of an installed release, whatever the variables and the folder it is run in."""
    return [str(python), "-I", "-m", "daemon.cli", *arguments]


def install(job: Job) -> Path:
    """The interpreter of the installed release, which has shown that it can be a worker here. Raises InstallError."""
    releases = Path(job.scratch) / FOLDER
    made = releases / job.release
    with _alone(releases):
        if made.exists():
            try:
                check(python_of(Path(job.scratch), job.release), job.release)
            except InstallError:
                shutil.rmtree(made)
            else:
                return made / "bin/python"
        new = releases / f".new-{os.getpid()}"
        for old in releases.iterdir():
            if old.is_dir() and old.name not in job.keep:
                shutil.rmtree(old, ignore_errors=True)
            elif old.suffix == ".whl" and old != Path(job.wheel):  # of a link that was killed
                old.unlink(missing_ok=True)
        try:
            _build(new, Path(job.wheel), releases / LOG)
            check(new / "bin/python", job.release)
            os.sync()  # the name must not be on disk before what it names, and that is thousands of files
            new.rename(made)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        smallfiles.sync_folder(releases)
    return made / "bin/python"


@contextlib.contextmanager
def _alone(releases: Path) -> Iterator[None]:
    releases.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(releases / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # whoever holds it dies with its link
        yield
    finally:
        os.close(fd)


def _build(new: Path, wheel: Path, log: Path) -> None:
    """A virtual environment with the wheel and all that it needs."""
    venv.EnvBuilder(symlinks=True).create(new)
    site = new / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)  # of our own daemon, its SHA-256 is checked
    own = _distribution(site)
    (Path(str(own.locate_file(""))) / f"{own.name}-{own.version}.dist-info/INSTALLER").write_text(f"{NAME}\n")
    requires = own.requires or []
    for found in needed([*requires, *_present_requires()], importlib.metadata.distributions()):
        _carry(found, site)
    if missing := list(unsatisfied(requires, importlib.metadata.distributions(path=[str(site)]))):
        _pip(new, missing, log)


def _distribution(site: Path) -> Distribution:
    try:
        (found,) = importlib.metadata.distributions(name=NAME, path=[str(site)])
    except ValueError:
        raise InstallError("what the daemon sent is no wheel of Outrider") from None
    return found


def _present_requires() -> list[str]:
    """What the present release needs, extras too: who installed them wants them."""
    return importlib.metadata.requires(NAME) or []


def _carry(found: Distribution, site: Path) -> None:
    """Take a distribution over: links to the same files, copies where the file system has none.

    One that is only linked to from elsewhere (an editable one), or has no list of its files, is left to pip.
    """
    if '"editable"' in (found.read_text("direct_url.json") or ""):
        return
    for path in found.files or ():
        if ".." in path.parts or path.is_absolute():  # scripts
            continue
        source, target = Path(str(found.locate_file(path))), site / path
        if not source.is_file() or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)


def _pip(new: Path, missing: Sequence[str], log: Path) -> None:
    """Have pip install what is missing: the one of this environment, else the one that Python brings along."""
    target = str(new / "bin/python")
    quiet = ("--no-input", "--disable-pip-version-check", "--no-warn-script-location")
    if importlib.util.find_spec("pip") is not None:
        pip = [sys.executable, "-I", "-m", "pip", "--python", target]
    else:
        _run(
            [target, "-I", "-m", "ensurepip"],
            log,
            "pip, which the release's dependencies need, cannot be had",
        )
        pip = [target, "-I", "-m", "pip"]
    _run([*pip, "install", *quiet, *missing], log, f"pip cannot install {', '.join(missing)}")


def _run(program: Sequence[str], log: Path, failing: str) -> None:
    with open(log, "wb") as file:
        try:
            done = subprocess.run(
                program, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=PIP_WAIT, check=False
            )
        except subprocess.TimeoutExpired:
            raise InstallError(f"{failing}: not done within {PIP_WAIT:.0f} s (log: {log})") from None
    if done.returncode:
        raise InstallError(f"{failing}: {_told(log.read_bytes()) or f'code {done.returncode}'} (log: {log})")


def check(python: Path, release: str) -> None:
    """Have a release show that it can be a worker here, with a keeper of its own. Raises InstallError."""
    said = _asked(python, release, CHECK_WAIT, "worker", "check")
    if said != release:
        raise InstallError(
            f"what the daemon sent as release {release} is release {said[:SHOWN] or 'unknown'}"
        )


def starts(python: Path, release: str) -> None:
    """Have a release show that it is still there and whole enough to start. Raises InstallError."""
    said = _asked(python, release, START_WAIT, "--version")
    if said != f"{NAME} {release}":
        raise InstallError(f"it is {said[:SHOWN] or 'unknown'} by now")


def _asked(python: Path, release: str, wait: float, *arguments: str) -> str:
    try:
        done = subprocess.run(
            command(python, *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=wait,
            check=False,
        )
    except OSError as error:
        raise InstallError(f"release {release} does not start: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise InstallError(f"release {release} did not start within {wait:.0f} s") from None
    if done.returncode:
        raise InstallError(
            f"release {release} does not work here: {_told(done.stderr) or f'code {done.returncode}'}"
        )
    return done.stdout.decode("utf-8", "replace").strip()


def _told(output: bytes) -> str:
    """What a program said was wrong: its last line of an error, else its last."""
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[-1].removeprefix("ERROR:").strip()[:SHOWN]


def main() -> None:
    """The installing process: its job in JSON on its command line, the outcome in JSON on stdout."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        sys.exit(1)
    try:
        outcome = Outcome(python=str(install(msgspec.json.decode(sys.argv[1], type=Job))))
    except InstallError as error:
        outcome = Outcome(reason=str(error))
    except (OSError, shutil.Error, zipfile.BadZipFile) as error:
        outcome = Outcome(reason=_sentence(error))
    sys.stdout.buffer.write(msgspec.json.encode(outcome))


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)[:SHOWN]
