import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon import ownfile
from daemon.ownfile import OwnFileError

text = st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(
    st.one_of(text, st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(text, values, max_size=4))
def test_any_tables_come_back_as_they_were_written(tmp_path: Path, tables: dict[str, Any]) -> None:
    ownfile.write(tmp_path / "a.toml", tables, "Made by a test.")
    assert ownfile.read(tmp_path / "a.toml") == tables


def test_a_file_is_its_owners_alone_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("")
    path.chmod(0o644)
    ownfile.write(path, {"a": 1}, "Head.")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "# Head.\na = 1\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.toml").mkdir()
    with pytest.raises(OwnFileError, match=r"a.toml cannot be written: Is a directory"):
        ownfile.write(tmp_path / "a.toml", {}, "")
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


def test_a_file_that_is_not_there_is_empty_and_one_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert ownfile.read(tmp_path / "none.toml") == {}
    with pytest.raises(OwnFileError, match="cannot be read: Is a directory"):
        ownfile.read(tmp_path)
    for content in (b"[", b"a = '\xff'"):
        (tmp_path / "a.toml").write_bytes(content)
        with pytest.raises(OwnFileError, match="not valid TOML"):
            ownfile.read(tmp_path / "a.toml")


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = os.listdir("/proc/self/fd")
    for name in ("fifo", "."):
        with pytest.raises(OwnFileError, match=r"not a file|cannot be read"):
            ownfile.read(tmp_path / name)
    assert len(os.listdir("/proc/self/fd")) == len(before)
