"""The units that the docs give: systemd takes each line of them, and a restart of theirs leaves the keeper alone."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.needed import missing

PAGE = Path(__file__).resolve().parents[3] / "docs" / "install.md"
UNITS = dict(re.findall(r"```ini\n# /etc/systemd/system/(\S+)\n(.+?)```", PAGE.read_text(), re.DOTALL))


def test_the_docs_have_a_unit_for_the_daemon_and_one_for_a_worker() -> None:
    assert sorted(UNITS) == ["outrider-worker.service", "outrider.service"]


@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_each_line_of_a_unit(name: str, tmp_path: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        missing("systemd-analyze is not there: install the package systemd")
    unit = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNITS[name], flags=re.MULTILINE)
    (tmp_path / name).write_text(unit)
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True, check=False
    )
    assert (done.stdout + done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize("name", UNITS)
def test_a_restart_of_a_unit_ends_its_first_process_alone(name: str) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # keys keep their capitals
    unit.read_string(UNITS[name])
    assert unit["Service"]["KillMode"] == "process"
    assert unit["Service"]["Delegate"] == "yes"
    assert unit["Service"]["Restart"] == "always"
