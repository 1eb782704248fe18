"""What a machine keeps of the mesh that it joined."""

from pathlib import Path

import msgspec
import pytest

from mesh import identity, keys
from mesh.address import Place
from mesh.identity import Membership, PrivateFileError
from mesh.join import Joined
from tests.mesh.joining import harness


def membership(folder: Path) -> Membership:
    with harness(folder) as hub:
        joined = hub.join(hub.token())
        assert isinstance(joined, Joined)
        return Membership(
            fingerprint=keys.fingerprint(hub.keys.join.public),
            places=(Place("hub.example", 4601), Place("2001:db8::1", 4601)),
            answer=joined.answer,
        )


def test_what_is_kept_is_found_again_and_is_the_owners_alone(tmp_path: Path) -> None:
    made, folder = membership(tmp_path), tmp_path / "mesh"
    assert identity.load(folder) is None
    identity.save(folder, made)
    assert identity.load(folder) == made
    gone = msgspec.structs.replace(made, removed=True)
    identity.save(folder, gone)
    assert identity.load(folder) == gone
    assert [path.name for path in folder.iterdir()] == [identity.FILE]
    assert (folder / identity.FILE).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_key_is_made_once_and_after_forgetting_another(tmp_path: Path) -> None:
    made, folder = membership(tmp_path), tmp_path / "mesh"
    first = identity.pair(folder)
    identity.save(folder, made)
    assert identity.pair(folder) == first
    identity.forget(folder)
    assert list(folder.iterdir()) == []
    assert identity.pair(folder) != first
    identity.forget(folder)
    identity.forget(folder)


@pytest.mark.parametrize("content", ["", "{", '{"v": 1}', "null"])
def test_what_is_damaged_is_told_with_the_fix(tmp_path: Path, content: str) -> None:
    identity.save(tmp_path / "mesh", membership(tmp_path))
    (tmp_path / "mesh" / identity.FILE).write_text(content)
    with pytest.raises(PrivateFileError, match=r"is damaged .*move it away, and join again"):
        identity.load(tmp_path / "mesh")


def test_what_another_version_wrote_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "mesh"
    identity.save(folder, membership(tmp_path))
    file = folder / identity.FILE
    file.write_text(file.read_text().replace('"removed":false,"v":1', '"removed":false,"v":2'))
    with pytest.raises(PrivateFileError, match="written by another Outrider"):
        identity.load(folder)


def test_an_answer_of_another_mesh_is_not_taken(tmp_path: Path) -> None:
    folder = tmp_path / "mesh"
    made = membership(tmp_path)
    identity.save(folder, made)
    file = folder / identity.FILE
    file.write_text(file.read_text().replace(str(made.answer.address), "fd00::2"))
    with pytest.raises(PrivateFileError, match="its address is not one of this harness's mesh"):
        identity.load(folder)


def test_a_file_that_others_read_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "mesh"
    identity.save(folder, membership(tmp_path))
    (folder / identity.FILE).chmod(0o644)
    with pytest.raises(PrivateFileError, match="chmod 600"):
        identity.load(folder)


def test_a_folder_that_cannot_be_written_keeps_what_was(tmp_path: Path) -> None:
    folder = tmp_path / "mesh"
    identity.save(folder, membership(tmp_path))
    kept = (folder / identity.FILE).read_bytes()
    (folder / identity.FILE).rename(folder / "aside")
    (folder / identity.FILE).mkdir()
    with pytest.raises(PrivateFileError, match="cannot be written"):
        identity.save(folder, membership(tmp_path))
    assert (folder / "aside").read_bytes() == kept
    assert sorted(path.name for path in folder.iterdir()) == ["aside", identity.FILE]
