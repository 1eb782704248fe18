import base64
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh import keys, private
from mesh.keys import BadKeyError, PrivateFileError
from tests.needed import missing

Maker = Callable[[Path], keys.Pair | keys.JoinKey]
MAKERS: list[Maker] = [keys.wireguard, keys.join_key]

# RFC 7748, section 6.1: Bob's.
PRIVATE = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")


def test_a_pair_is_that_of_the_standard() -> None:
    assert keys.pair(PRIVATE) == keys.Pair(PRIVATE, PUBLIC)


def test_wg_reads_the_file_and_finds_the_same_public_key(tmp_path: Path) -> None:
    wg = shutil.which("wg")
    if wg is None:
        missing("wg is not installed: install wireguard-tools to compare keys with it")
    pair = keys.wireguard(tmp_path / "key")
    printed = subprocess.run(
        [wg, "pubkey"], input=(tmp_path / "key").read_bytes(), check=True, capture_output=True
    )
    assert printed.stdout.decode().strip() == keys.encode(pair.public)


@pytest.mark.parametrize("make", MAKERS)
def test_a_key_is_made_once_and_is_its_owners_alone(tmp_path: Path, make: Maker) -> None:
    file = tmp_path / "key"
    made = make(file)
    content = file.read_bytes()
    assert make(file) == made
    assert file.read_bytes() == content
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("make", MAKERS)
def test_all_who_make_it_at_once_get_the_same_key(tmp_path: Path, make: Maker) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, [tmp_path / "key"] * 16))
    assert made == made[:1] * 16
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_the_harness_has_both_keys_in_a_folder_of_its_own(tmp_path: Path) -> None:
    made = keys.hub(tmp_path / "data" / keys.FOLDER)
    assert keys.hub(tmp_path / "data" / keys.FOLDER) == made
    assert stat.S_IMODE((tmp_path / "data" / keys.FOLDER).stat().st_mode) == 0o700
    assert len(made.join.private) == keys.JOIN_PRIVATE
    assert len(made.join.public) == keys.JOIN_PUBLIC


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("content", [b"", b"\n", b"key", b"AAAA\n", b"\xff" * 50, b"A" * 20_000])
def test_a_damaged_file_is_named_with_the_fix_and_left(tmp_path: Path, make: Maker, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(PrivateFileError, match=r"key is damaged, .* put a copy of it back, or move it away"):
        make(file)
    assert file.read_bytes() == content


def test_a_file_cut_at_any_byte_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "key"
    keys.wireguard(file)
    content = file.read_bytes()
    for end in range(len(content) - 1):  # without its newline it is whole
        file.write_bytes(content[:end])
        with pytest.raises(PrivateFileError, match="damaged"):
            keys.wireguard(file)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o700 | 0o010])
def test_a_key_that_others_can_read_is_refused_with_the_fix(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key"
    keys.wireguard(file)
    file.chmod(mode)
    with pytest.raises(PrivateFileError, match=rf"{file} has mode {mode:04o} .*: chmod 600 {file}"):
        keys.wireguard(file)


def test_a_read_only_key_is_as_good(tmp_path: Path) -> None:
    made = keys.wireguard(tmp_path / "key")
    (tmp_path / "key").chmod(0o400)
    assert keys.wireguard(tmp_path / "key") == made


def test_a_folder_in_which_others_write_is_refused_with_the_fix(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(PrivateFileError, match=f"chmod 700 {tmp_path}"):
        keys.hub(tmp_path)


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("fifo", "folder", "loop"):
        with pytest.raises(PrivateFileError, match=rf"{name} (is not a file|cannot be read)"):
            keys.wireguard(tmp_path / name)


def test_a_key_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(PrivateFileError, match=r"missing/key cannot be written: No such file"):
        keys.wireguard(tmp_path / "missing" / "key")
    (tmp_path / "file").write_text("")
    with pytest.raises(PrivateFileError, match="file cannot be made: "):
        private.folder(tmp_path / "file")


def test_a_file_whose_making_fails_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), private.making(tmp_path / "file"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(FileExistsError), private.making(tmp_path / "file") as fresh:
        fresh.write_text("new")
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@given(st.binary(min_size=32, max_size=32))
def test_a_key_comes_back_from_its_text(key: bytes) -> None:
    assert keys.decode(keys.encode(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "ü" * 44,
        base64.b64encode(bytes(31)).decode(),
        base64.b64encode(bytes(33)).decode(),
        "A" * 42 + "B=",
    ],
)
def test_what_is_no_key_in_text_is_refused(text: str) -> None:
    with pytest.raises(BadKeyError, match="44 characters"):
        keys.decode(text)


def test_no_private_key_is_printed() -> None:
    pair, join = keys.pair(PRIVATE), keys.join_pair(bytes(range(96)))
    assert repr(pair) == f"Pair(public='{keys.encode(PUBLIC)}')"
    assert repr(join) == f"JoinKey(fingerprint='{keys.fingerprint(join.public).hex()}')"
    assert repr(keys.HubKeys(pair, join)) == f"HubKeys(wireguard={pair!r}, join={join!r})"


def test_a_usable_public_key_is_taken() -> None:
    assert keys.check_public(PUBLIC) == PUBLIC


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (bytes(31), "32 bytes"),
        (bytes(32), "no usable"),
        (b"\x01" + bytes(31), "no usable"),  # of order 4
        (PUBLIC[:31] + bytes([PUBLIC[31] | 0x80]), "one valid way"),  # curves ignore the last bit
        ((2**255 - 19 + 9).to_bytes(32, "little"), "one valid way"),  # the base point again
    ],
)
def test_a_key_that_is_none_or_another_spelling_of_one_is_refused(key: bytes, why: str) -> None:
    with pytest.raises(BadKeyError, match=why):
        keys.check_public(key)
