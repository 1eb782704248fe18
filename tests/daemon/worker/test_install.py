"""Releases installed beside the one that runs: from its own files, whole or not at all."""

import base64
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from daemon import release
from daemon.worker import install, requirements
from daemon.worker.install import InstallError, Job

NEW = "9.9.9"


@pytest.fixture(autouse=True)
def one_release(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The checkout is one release, though it may be edited meanwhile."""
    monkeypatch.setenv(release.PINNED, "0.1.0")
    release.own.cache_clear()
    yield
    release.own.cache_clear()


@pytest.fixture
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="or-"))
    yield folder
    shutil.rmtree(folder)


def wheel(
    folder: Path,
    version: str = NEW,
    *,
    requires: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    without: str = "-",
) -> Path:
    """This tree's wheel as another version, with more requirements, and files that are other or missing."""
    made = release.wheel(folder / "out")
    before, after = f"outrider-{made.release}.dist-info/", f"outrider-{version}.dist-info/"
    path = folder / f"outrider-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made.path) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name == f"{before}METADATA":
                text = re.sub(r"^Version:.*$", f"Version: {version}", data.decode(), flags=re.MULTILINE)
                more = "".join(f"Requires-Dist: {one}\n" for one in requires)
                data = text.replace("Requires-Dist:", f"{more}Requires-Dist:", 1).encode()
            if not name.startswith(without):
                target.writestr(name.replace(before, after), (files or {}).get(name, data))
    return path


def job(scratch: Path, path: Path, version: str = NEW, *keep: str) -> Job:
    return Job(wheel=str(path), release=version, scratch=str(scratch), keep=(version, *keep))


def left(scratch: Path) -> list[str]:
    """Folders among the releases."""
    return sorted(path.name for path in (scratch / install.FOLDER).iterdir() if path.is_dir())


@pytest.mark.timeout(180)  # four times a release shows that it works, each with a keeper of its own
def test_a_release_is_installed_from_the_files_of_the_one_that_runs(scratch: Path) -> None:
    for other in ("1.0", "1.1", ".new-1"):
        (scratch / install.FOLDER / other / "bin").mkdir(parents=True)
    (scratch / install.FOLDER / ".1.whl").touch()
    given = job(scratch, wheel(scratch), NEW, "1.1")
    python = install.install(given)
    assert python == install.python_of(scratch, NEW)
    assert left(scratch) == ["1.1", NEW], "what is in use stays"
    assert not (scratch / install.FOLDER / ".1.whl").exists()
    said = subprocess.run(
        install.command(python, "--version"),
        env={"PYTHONPATH": str(Path(release.__file__).parents[1]), "OUTRIDER_RELEASE": "1.0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"outrider {NEW}\n", "whatever its variables say"
    (site,) = (scratch / install.FOLDER / NEW / "lib").glob("python*/site-packages")
    assert (site / "msgspec/__init__.py").is_file()
    assert not (site / "_editable_impl_outrider.pth").exists()
    # Once more: it is there, whole, and shows that it works.
    (site / "mark").touch()
    assert install.install(given) == python
    assert (site / "mark").exists()
    # Damaged: it is made anew.
    (site / "daemon/verbs/worker.py").write_text("raise ImportError('damaged')")
    assert install.install(given) == python
    assert not (site / "mark").exists()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"files": {"daemon/worker/keeper.py": "import no_such_module"}},
            f"release {NEW} does not work here: ",
        ),
        ({"version": "1.2.3"}, f"what the daemon sent as release {NEW} is release 1.2.3"),
        ({"without": "outrider-"}, "what the daemon sent is no wheel of Outrider"),
    ],
)
def test_a_release_that_does_not_work_leaves_all_as_it_was(
    scratch: Path, more: dict[str, object], why: str
) -> None:
    (scratch / install.FOLDER / "1.1").mkdir(parents=True)
    with pytest.raises(InstallError, match=re.escape(why)):
        install.install(job(scratch, wheel(scratch, **more), NEW, "1.1"))  # type: ignore[arg-type]
    assert left(scratch) == ["1.1"]


def house(folder: Path) -> Path:
    """A folder with one wheel, of a distribution that nobody else has."""
    folder.mkdir()
    info = "outrider_test_dependency-1.5.dist-info"
    members = {
        "outrider_test_dependency.py": b"here = True\n",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: outrider-test-dependency\nVersion: 1.5\n",
        f"{info}/WHEEL": release.WHEEL_FILE,
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in members.items()
    )
    with zipfile.ZipFile(folder / "outrider_test_dependency-1.5-py3-none-any.whl", "w") as archive:
        for name, data in {**members, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(name, data)
    return folder


@pytest.mark.campaign
def test_what_is_missing_comes_from_pip_or_the_reason_says_what_pip_said(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = job(scratch, wheel(scratch, requires=["outrider-test-dependency>=1.4"]))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(InstallError) as raised:
        install.install(given)
    assert str(raised.value).startswith("pip cannot install outrider-test-dependency>=1.4: ")
    log = scratch / install.FOLDER / install.LOG
    assert "No matching distribution found for outrider-test-dependency>=1.4" in log.read_text()
    assert f"(log: {log})" in str(raised.value)
    assert left(scratch) == []
    monkeypatch.setenv("PIP_FIND_LINKS", str(house(scratch / "house")))
    python = install.install(given)
    code = "import outrider_test_dependency; print(outrider_test_dependency.here)"
    assert subprocess.run([python, "-I", "-c", code], capture_output=True, check=True).stdout == b"True\n"


def test_what_cannot_be_linked_is_copied(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    one = importlib.metadata.distribution("msgspec")
    monkeypatch.setattr(os, "link", link)
    install._carry(one, scratch)
    copied = scratch / "msgspec/__init__.py"
    assert copied.read_bytes() == Path(str(one.locate_file("msgspec/__init__.py"))).read_bytes()
    assert copied.stat().st_nlink == 1
    assert not list(scratch.glob("**/bin")), "no scripts: they name another interpreter"


def distribution(folder: Path, name: str, version: str, *requires: str) -> PathDistribution:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    return PathDistribution(info)


def test_what_is_needed_is_found_with_all_that_it_needs_in_turn(tmp_path: Path) -> None:
    present = [
        distribution(tmp_path, "Some_Thing", "1", "deep[more, b] (>=2); python_version < '4'", "absent[x]"),
        distribution(
            tmp_path, "deep", "3", "some-thing", "plugin; extra == 'more'", "test; extra == 'tests'"
        ),
        distribution(tmp_path, "plugin", "1"),
        distribution(tmp_path, "test", "1"),
        distribution(tmp_path, "jupyter", "1"),
        distribution(tmp_path, "outrider", "1", "other"),
        distribution(tmp_path, "other", "1"),
    ]
    found = requirements.needed(
        ["some.thing>=1", "jupyter; extra == 'jupyter'", "outrider[x]", "???"], present
    )
    assert sorted(one.name for one in found) == ["Some_Thing", "deep", "jupyter", "plugin"]


@pytest.mark.parametrize(
    ("requirement", "version", "holds"),
    [
        ("a", "1", True),
        ("a>=1.2", "1.2", True),
        ("a>=1.2", "1.10", True),
        ("a>=1.2", "1.1.9", False),
        ("a>=8.2,<9", "8.2.8", True),
        ("a<9,>=8.2", "9.0", False),
        ("a (>=1.2)", "2", True),
        ("a>=1.2; sys_platform == 'linux'", "1.3", True),
        ("a>=1.2; sys_platform == 'linux'", "", False),
        ("a==1.2", "1.2.0", True),
        ("a==1.2", "1.2.1", False),
        ("a!=1.2", "1.2.1", True),
        ("a!=1.2", "1.2", False),
        ("a>1.2", "1.3", True),
        ("a>1.2", "1.2", False),
        ("a<=1.2", "1.2", True),
        ("a<=1.2", "1.3", False),
        ("a~=1.4.2", "1.4.9", True),
        ("a~=1.4.2", "1.5", False),
        ("a~=1.4", "1.5", True),
        ("a>=1", "2026.10.19.post1", True),
        ("a>=1+local", "2", False),
        ("a>=1", "2+cpu", True),
        # What is not sure is pip's to judge.
        ("a<=1", "1.post1", False),
        ("a>=1", "2rc1", False),
        ("a==1.*", "1.2", False),
        ("a===1", "1", False),
        ("a[x]>=1", "2", False),
        ("a @ https://example.org/a.whl", "1", False),
        # An extra's is nobody's need.
        ("a>=5; extra == 'jupyter'", "", True),
    ],
)
def test_a_requirement_holds_or_is_pips_to_judge(
    tmp_path: Path, requirement: str, version: str, holds: bool
) -> None:
    present = [distribution(tmp_path, "a", version)] if version else []
    assert list(requirements.unsatisfied([requirement], present)) == ([] if holds else [requirement])


def test_the_requirements_of_this_installation_hold_in_it() -> None:
    requires = importlib.metadata.requires("outrider")
    assert requires
    assert list(requirements.unsatisfied(requires, importlib.metadata.distributions())) == []


def test_a_program_that_is_not_there_or_says_nothing_is_told(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InstallError, match=r"release 2\.0 does not start: No such file"):
        install.starts(scratch / "none", "2.0")
    monkeypatch.setattr(install, "START_WAIT", 0.05)
    slow = scratch / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o700)
    with pytest.raises(InstallError, match=r"release 2\.0 did not start within 0 s"):
        install.starts(slow, "2.0")


def test_the_installing_process_refuses_to_outlive_its_link(scratch: Path) -> None:
    code = "import sys; from daemon.worker import install; install.main()"
    done = subprocess.run([sys.executable, "-c", code, "{}", "1"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
