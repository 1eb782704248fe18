"""Filling the wheelhouse, from a folder of wheels that stands for an index."""

import importlib.metadata
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.verbs import wheels
from tests.mesh.wheels import make_wheel
from tests.running import Place, place


def needed() -> list[str]:
    """The names of what we need."""
    found = []
    for requirement in importlib.metadata.requires("outrider") or ():
        name = re.match(r"[A-Za-z0-9_.-]+", requirement)
        assert name is not None
        if "extra ==" not in requirement:
            found.append(name[0])
    return found


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder with a tiny wheel of everything that we need, in the version that is installed, and a newer one."""
    for name in needed():
        make_wheel(tmp_path, name.replace("-", "_"), importlib.metadata.version(name))
        make_wheel(tmp_path, name.replace("-", "_"), "9999.0")
    return tmp_path


@pytest.fixture
def here(index: Path) -> Iterator[Place]:
    with place() as made:
        made.environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
        yield made


def test_the_wheelhouse_has_this_release_and_what_it_needs_in_the_versions_of_here(here: Place) -> None:
    said = here.json("wheelhouse")
    folder = here.data / "wheelhouse"
    assert said["folder"] == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == said["wheels"]
    assert said["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert "outrider-0.1.0-py3-none-any.whl" in said["wheels"]
    assert f"msgspec-{importlib.metadata.version('msgspec')}-py3-none-any.whl" in said["wheels"]
    assert not [name for name in said["wheels"] if "9999" in name]
    assert len(said["wheels"]) == len(needed()) + 1


def test_filled_again_it_holds_no_wheel_of_before_and_another_folder_keeps_its_own(here: Place) -> None:
    folder, other = here.data / "wheelhouse", here.home / "other"
    for each in (folder, other):
        each.mkdir(parents=True)
        make_wheel(each, "outrider", "0.0.9")
        (each / "notes").write_text("mine")
    done = here.outrider("wheelhouse")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ wheels, .+, in .+/wheelhouse\n", done.stdout)
    assert "make new tokens" in done.stderr
    here.ok("wheelhouse", "--into", str(other))
    assert not (folder / "outrider-0.0.9-py3-none-any.whl").exists()
    assert (other / "outrider-0.0.9-py3-none-any.whl").exists()
    for each in (folder, other):
        assert (each / "notes").exists()
        assert (each / "outrider-0.1.0-py3-none-any.whl").exists()


def test_where_pip_finds_nothing_its_words_are_told_and_nothing_is_changed(here: Place, index: Path) -> None:
    (index / f"msgspec-{importlib.metadata.version('msgspec')}-py3-none-any.whl").unlink()
    done = here.outrider("wheelhouse")
    assert done.returncode == 1
    assert "there is no wheel of msgspec, or no index is reached; pip's own words:" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (here.data / "wheelhouse").exists()


def test_wheels_for_other_pythons_and_machines_are_asked_for_by_their_tags(here: Place) -> None:
    said = json.loads(here.ok("wheelhouse", "--python", "3.12", "--arch", "aarch64", "--json"))
    assert "outrider-0.1.0-py3-none-any.whl" in said["wheels"]
    (options,) = wheels._targets(["3.12"], ["riscv64"])
    assert options[:4] == ["--python-version", "3.12", "--implementation", "cp"]
    assert options[4:6] == ["--platform", "manylinux_2_34_riscv64"]
    assert options[-2:] == ["--platform", "manylinux2014_riscv64"]
    assert len(list(wheels._targets(["3.11", "3.12"], ["a1", "b2"]))) == 4
    assert list(wheels._targets([], [])) == [[]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--python", "3.9"), "--python 3.9: write a version from 3.11 on"),
        (("--python", "py312"), "--python py312: write a version"),
        (("--arch", "ARM; rm"), "--arch ARM; rm: write what `uname -m` says"),
        (("--arch", "foo"), "--arch foo: write what `uname -m` says there, one of aarch64, armv7l"),
        (("--into", "/dev/null/here"), "--into /dev/null/here cannot be written: /dev/null is no folder"),
        (("--into", "/proc/here"), "--into /proc/here cannot be written: "),
    ],
)
def test_what_is_no_python_or_machine_is_wrong_usage(
    here: Place, arguments: tuple[str, ...], words: str
) -> None:
    done = here.outrider("wheelhouse", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "fetching" not in done.stderr, "it is told at once"
