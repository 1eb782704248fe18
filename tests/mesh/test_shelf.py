from pathlib import Path

from mesh.shelf import Shelf
from tests.mesh.wheels import make_wheel


def test_what_is_put_on_the_shelf_is_there_at_the_next_look(tmp_path: Path) -> None:
    folder = tmp_path / "wheelhouse"
    shelf = Shelf(folder)
    assert shelf.read() is None
    folder.mkdir()
    (folder / "README").write_text("no wheel")
    assert shelf.read() is None
    made = make_wheel(folder, "one", "1")
    found = shelf.read()
    assert found is not None
    assert set(found.files) == {made.name}
    assert shelf.read() is found, "the bytes are not read again"
    make_wheel(folder, "two", "1")
    again = shelf.read()
    assert again is not None
    assert len(again.files) == 2
    made.unlink()
    less = shelf.read()
    assert less is not None
    assert list(less.files) == ["two-1-py3-none-any.whl"]


def test_a_folder_that_cannot_be_served_serves_nothing_until_it_is_put_right(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    make_wheel(tmp_path, "one", "1")
    odd = tmp_path / "odd.whl"
    odd.write_bytes(b"")
    assert shelf.read() is None
    odd.unlink()
    assert shelf.read() is not None
