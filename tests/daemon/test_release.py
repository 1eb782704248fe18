"""What release this is, and the wheel that is made of it: also of what that wheel installs."""

import hashlib
import importlib.metadata
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon import release
from daemon.release import Wheel, WheelError


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small checkout in place of this one."""
    root = tmp_path / "tree"
    for name, text in {
        "daemon/__init__.py": "",
        "daemon/release.py": "this one",
        "daemon/data.toml": "a = 1",
        "daemon/__pycache__/release.cpython-311.pyc": "of no use",
        "daemon/.hidden": "of an editor",
        "mesh/__init__.py": "",
        "tui/app.tcss": "Screen {}",
        "tests/x.py": "not installed",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(release, "__file__", str(root / "daemon/release.py"))
    monkeypatch.delenv(release.PINNED, raising=False)
    release.own.cache_clear()
    yield root
    release.own.cache_clear()


def names(made: Wheel) -> list[str]:
    with zipfile.ZipFile(made.path) as archive:
        return archive.namelist()


def test_a_checkouts_release_is_its_version_and_a_mark_of_its_content(tree: Path) -> None:
    first = release.own()
    version = importlib.metadata.version("outrider")
    assert first.startswith(f"{version}+src")
    assert len(first) == len(f"{version}+src") + release.MARK
    (tree / "daemon/data.toml").write_text("a = 2")
    assert release.own() == first, "what runs is what was there when it began"
    release.own.cache_clear()
    second = release.own()
    assert second != first
    (tree / "daemon/__pycache__/release.cpython-311.pyc").write_text("compiled anew")
    (tree / "tests/x.py").write_text("another test")
    release.own.cache_clear()
    assert release.own() == second


def test_a_checkout_that_is_edited_can_be_called_what_its_owner_says(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(release.PINNED, "0.2.0+mine")
    assert release.own() == "0.2.0+mine"
    assert release.wheel(tree / "out").name == "outrider-0.2.0+mine-py3-none-any.whl"
    monkeypatch.setenv(release.PINNED, "../mine")
    release.own.cache_clear()
    with pytest.raises(
        release.ReleaseError, match=r"OUTRIDER_RELEASE is '../mine', and a release looks like"
    ):
        release.own()


def test_a_wheel_has_the_packages_files_and_no_word_of_how_they_were_installed(tree: Path) -> None:
    made = release.wheel(tree / "out")
    info = f"outrider-{release.own()}.dist-info"
    assert names(made) == [
        "daemon/__init__.py",
        "daemon/data.toml",
        "daemon/release.py",
        "mesh/__init__.py",
        "tui/app.tcss",
        *(
            f"{info}/{name}"
            for name in ("METADATA", "WHEEL", "entry_points.txt", "licenses/LICENSE", "RECORD")
        ),
    ]
    with zipfile.ZipFile(made.path) as archive:
        metadata = archive.read(f"{info}/METADATA").decode()
        assert f"\nVersion: {release.own()}\n" in metadata
        assert "\nRequires-Dist: msgspec" in metadata
        assert archive.testzip() is None


def test_the_same_files_give_the_same_bytes_and_others_do_not(tree: Path) -> None:
    first = release.wheel(tree / "a")
    data = first.path.read_bytes()
    assert (first.sha256, first.size) == (hashlib.sha256(data).hexdigest(), len(data))
    for path in tree.rglob("*.py"):
        path.touch()
    second = release.wheel(tree / "b")
    assert second.path.read_bytes() == data
    assert (second.sha256, second.name) == (first.sha256, first.name)


def test_the_folder_holds_the_one_wheel_which_is_written_once(tree: Path) -> None:
    folder = tree / "out"
    first = release.wheel(folder)
    before = first.path.stat()
    (folder / "outrider-0.0.1-py3-none-any.whl").write_text("an older release's")
    assert release.wheel(folder) == first
    assert list(folder.iterdir()) == [first.path]
    assert first.path.stat().st_ino == before.st_ino
    first.path.write_bytes(b"damaged")
    assert release.wheel(folder) == first
    assert hashlib.sha256(first.path.read_bytes()).hexdigest() == first.sha256


def test_a_checkout_that_was_changed_while_this_ran_gives_no_wheel(tree: Path) -> None:
    release.own()
    (tree / "daemon/data.toml").write_text("a = 2")
    with pytest.raises(WheelError, match=r"was changed from release .* while this ran: start it again"):
        release.wheel(tree / "out")


def test_a_folder_that_cannot_be_written_is_told(tree: Path) -> None:
    (tree / "out").write_text("a file")
    with pytest.raises(WheelError, match=r"out/outrider-.* cannot be written: File exists"):
        release.wheel(tree / "out")


def test_pip_installs_the_wheel_and_what_it_installs_makes_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(release.PINNED, "0.1.0+pinned")  # the checkout may be edited meanwhile
    release.own.cache_clear()
    made = release.wheel(tmp_path / "out")
    venv.EnvBuilder(symlinks=True).create(tmp_path / "env")
    python = str(tmp_path / "env/bin/python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", str(made.path)], check=True)
    (site,) = (tmp_path / "env/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    said = subprocess.run(
        [str(tmp_path / "env/bin/outrider"), "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"outrider {made.release}\n"
    code = (
        "from pathlib import Path; from daemon import release; "
        f"print(release.wheel(Path({str(tmp_path / 'again')!r})).sha256)"
    )
    again = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == made.sha256
    release.own.cache_clear()
