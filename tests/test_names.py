"""The names we take, and the names that must not be in the repository."""

import importlib.metadata
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# In pieces, so that this file passes its own test.
HOSTS = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "deb." + "debian.org",
    "proxy." + "golang.org",
]
MACHINE = [rf"{'/wo' + 'rk'}/(main|shared|\.)", rf"{'/op' + 't'}/(pypi|wheels)", rf"{'/tm' + 'p'}/team"]
OPTIONS = ["--(extra-)?" + "index-url", "--find" + "-links", "--trusted" + "-host"]
FORBIDDEN = re.compile("|".join([*map(re.escape, HOSTS), *MACHINE, *OPTIONS]))


def tracked() -> list[Path]:
    """Files of the repository that are on disk."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the repository's files are not known")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    return [path for name in names.decode().split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize("name", ["daemon", "mesh", "tui", "tests", "scripts"])
def test_no_other_distribution_provides_our_top_level_names(name: str) -> None:
    owners = set(importlib.metadata.packages_distributions().get(name, []))
    assert owners <= {"outrider"}


@pytest.mark.parametrize("name", ["daemon", "mesh", "tui"])
def test_our_packages_are_imported_from_this_tree(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ == str(ROOT / name / "__init__.py")


def test_no_file_names_a_registry_or_a_developers_machine() -> None:
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if match := FORBIDDEN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert found == []


def test_no_tests_folder_is_a_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_every_package_of_ours_is_one_with_an_empty_init() -> None:
    full = [
        str(p.relative_to(ROOT))
        for name in ("daemon", "mesh", "tui")
        if (p := ROOT / name / "__init__.py").read_text()
    ]
    assert full == []
    bare = [
        str(folder.relative_to(ROOT))
        for name in ("daemon", "mesh", "tui")
        for folder in (ROOT / name).rglob("*/")
        if any(folder.glob("*.py")) and not (folder / "__init__.py").exists()
    ]
    assert bare == []
