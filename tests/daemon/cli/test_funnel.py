import os
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.verbs.explain import explain
from tests.daemon.cli.saying import CONTROL, Said
from tests.running import OUTRIDER, Place

VERBS = (["ls"], ["up"], ["doctor"], ["new"])


def shell(there: Place, line: str) -> "subprocess.CompletedProcess[str]":
    """`outrider` and a line of redirections, in bash."""
    return subprocess.run(
        ["bash", "-c", f"{' '.join(OUTRIDER)} {line}"],
        env=there.environ,
        cwd=there.work,
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize("package", ["aiohttp", "click", "msgspec", "daemon/plain.py"])
def test_a_module_that_does_not_load_is_one_sentence(there: Place, tmp_path: Path, package: str) -> None:
    module = tmp_path / package.removeprefix("daemon/")
    if package == "daemon/plain.py":
        (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['daemon.plain'] = None\n")
    else:
        module.mkdir()
        (module / "__init__.py").write_text('raise ImportError("no \\x1b[2J such thing")\n')
    for arguments in VERBS:
        done = there.outrider(*arguments, PYTHONPATH=str(tmp_path))
        assert done.returncode == 1
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert "it anew" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not CONTROL.search(done.stderr.rstrip("\n"))


def test_help_is_there_where_a_verbs_library_does_not_load(there: Place, tmp_path: Path) -> None:
    (tmp_path / "aiohttp").mkdir()
    (tmp_path / "aiohttp" / "__init__.py").write_text("raise RuntimeError\n")
    assert there.outrider("--help", PYTHONPATH=str(tmp_path)).returncode == 0


def test_a_full_disk_under_stdout_is_told(there: Place) -> None:
    for verb in ("models", "models --json", "--help", "completion bash"):
        done = shell(there, f"{verb} >/dev/full")
        assert (done.returncode, done.stderr) == (1, "outrider: No space left on device\n")
    assert shell(there, "info 0123456789abcdef 2>/dev/full").returncode == 3


def test_closed_streams_are_no_fault(there: Place) -> None:
    assert shell(there, "ls >&-").returncode == 0
    assert shell(there, "ls >&- 2>&- <&-").returncode == 0
    assert shell(there, "info 0123456789abcdef >&- 2>&-").returncode == 3
    done = shell(there, "new --instructions - <&-")
    assert (done.returncode, done.stderr) == (2, "outrider: --instructions is empty\n")


def test_arguments_that_are_not_utf_8_are_wrong_usage(there: Place) -> None:
    done = shell(there, r"new --model $'rehearsal/\xff'")
    assert done.returncode == 2
    assert "not UTF-8" in done.stderr
    assert shell(there, r"post 0123456789abcdef --file $'\xff'").returncode == 2


def test_a_folder_whose_name_is_not_utf_8_is_told(there: Place) -> None:
    folder = os.fsencode(there.work) + b"/\xff"
    os.mkdir(folder)
    done = subprocess.run([*OUTRIDER, "new"], env=there.environ, cwd=folder, capture_output=True, timeout=30)
    assert done.returncode == 2
    assert b"folder's name is not UTF-8" in done.stderr


def test_complaints_repeat_hostile_words_safely(said: Said) -> None:
    evil = "\x1b]0;x\x07\x1b[2J"
    for arguments, code in (
        ([evil], 2),
        (["ls", f"--{evil}"], 2),
        (["info", evil], 2),
        (["new", "--model", f"{evil}/x"], 3),
        (["new", "--tools", evil], 3),
        (["new", "--instructions", f"@{evil}"], 2),
        (["new", "--param", evil], 2),
        (["new", "--limit", f"{evil}=1"], 2),
        (["post", "ab", "--file", evil], 2),
        (["providers", "set", evil, "--no-key"], 3),
        (["key", "revoke", evil], 3),
        (["completion", evil], 2),
        (["--url", f"http://{evil}", "ls"], 2),
        (["--socket", f"/nowhere/{evil}", "ls"], 4),
    ):
        complaint = said(*arguments, code=code)
        assert not CONTROL.search(complaint.replace("\n", "")), arguments


def test_errors_of_the_operating_system_name_the_file() -> None:
    assert explain(PermissionError(13, "Permission denied", "/x")) == ("outrider: /x: Permission denied", 1)
    assert explain(ModuleNotFoundError("No module named 'x'"))[1] == 1


def test_the_module_that_runs_command_lines_imports_nothing_that_may_fail() -> None:
    code = "import sys, daemon.cli; print(any(m in sys.modules for m in ('click', 'msgspec', 'asyncio')))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
