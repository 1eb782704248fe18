import os
from pathlib import Path

from daemon.worker import pasts


def made(folder: Path, name: str, size: int, age: float) -> None:
    path = folder / name
    path.write_bytes(bytes(size))
    os.utime(path, (1000 - age, 1000 - age))


def there(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_files_that_were_written_longest_ago_go_first(tmp_path: Path) -> None:
    for name, age in (("a", 30), ("b", 10), ("c", 20)):
        made(tmp_path, name, 100, age)
    pasts.clean(tmp_path, 1000, keep=300)
    assert there(tmp_path) == {"a", "b", "c"}
    pasts.clean(tmp_path, 1000, keep=299)
    assert there(tmp_path) == {"b", "c"}
    pasts.clean(tmp_path, 1000, keep=50)
    assert there(tmp_path) == set()


def test_what_a_killed_write_left_goes_after_a_day_and_one_that_goes_on_stays(tmp_path: Path) -> None:
    made(tmp_path, ".outrider-1.tmp", 10, pasts.LEFT_OVER + 1)
    made(tmp_path, ".outrider-2.tmp", 10, 60)
    pasts.clean(tmp_path, 1000)
    assert there(tmp_path) == {".outrider-2.tmp"}


def test_folders_and_links_are_left_alone_and_no_folder_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    pasts.clean(tmp_path, 1000, keep=0)
    assert there(tmp_path) == {"folder", "link"}
    pasts.clean(tmp_path / "none", 1000)
