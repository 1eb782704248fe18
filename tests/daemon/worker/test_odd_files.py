"""Files, folders and names of odd kinds: what cannot be written is said in a sentence, and nothing is left of it."""

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daemon.protocol import frames
from daemon.worker import files, reading
from daemon.worker.keeper import Keeper
from tests.daemon.worker.dialing import Dial, Refused

LATIN: bytes = b"caf\xe9"


async def test_a_link_to_a_name_that_is_not_utf8_is_read_and_not_written(dial: Dial, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(LATIN)
    folder.mkdir()
    (folder / "f").write_bytes(b"old")
    (tmp_path / "link").symlink_to(folder)
    assert (await dial.read(tmp_path / "link/f"))[0] == b"old"
    for name in ("f", "new"):
        with pytest.raises(Refused, match=r"leads to .*caf\ufffd/.* not UTF-8: use `run`"):
            await dial.write(tmp_path / "link" / name, b"new", session="s", call=name)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"f": b"old"}
    with pytest.raises(Refused, match=r"there is no .*shows as \ufffd: use `run`"):
        await dial.read(tmp_path / "caf\ufffd/f")


async def test_a_file_named_with_a_slash_behind_it_is_refused(dial: Dial, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    for path in (f"{tmp_path}/f/", f"{tmp_path}/new/"):
        with pytest.raises(Refused, match="ends in a slash: name a file"):
            await dial.write(path, b"new")
        with pytest.raises(Refused):
            await dial.read(path)
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


async def test_names_of_any_characters_are_read_and_written(dial: Dial, tmp_path: Path) -> None:
    for name in (
        "a\nb",
        "-rf",
        " ",
        "*",
        "$(touch x)",
        "caf\u00e9",
        "cafe\u0301",
        "\u202e",
        "a\\b",
        "\x7f",
        "n" * 255,
    ):
        await dial.write(name, name.encode(), cwd=str(tmp_path))
        assert (await dial.read(name, cwd=str(tmp_path)))[0] == name.encode()
    assert len(os.listdir(tmp_path)) == 11


async def test_folders_that_were_made_for_a_write_that_failed_are_gone(dial: Dial, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="changed: "):
        await dial.write(tmp_path / "a/b/c/f", b"new", expect="0" * 64)
    assert os.listdir(tmp_path) == []
    await dial.write(tmp_path / "a/f", b"new")
    with pytest.raises(Refused, match="a part of the path is a file"):
        await dial.write(tmp_path / "a/f/b/c", b"new")
    assert os.listdir(tmp_path / "a") == ["f"]


@pytest.mark.parametrize("nameless", [True, False], ids=["nameless", "named"])
async def test_what_has_not_come_whole_has_the_old_modes_and_no_name_where_that_can_be(
    dial: Dial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool
) -> None:
    if not nameless:
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # what a system says that knows no such files
    file = tmp_path / "f"
    file.write_bytes(b"old")
    file.chmod(0o640)
    dial.send(frames.Write(id=7, path=str(file)), b"x" * frames.PIECE)
    await dial.next(7)
    beside = set(os.listdir(tmp_path)) - {"f"}
    assert len(beside) == (0 if nameless else 1)
    for name in beside:
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, "nobody reads it before its owner may"
    dial.send(frames.Write(id=7, path=str(file), last=True), b"y")
    await dial.next(7)
    assert os.listdir(tmp_path) == ["f"]
    assert file.read_bytes() == b"x" * frames.PIECE + b"y"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    await dial.write(file, b"", remove=True)
    assert os.listdir(tmp_path) == []


async def test_special_bits_go_with_an_owner_that_cannot_be_kept(
    dial: Dial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    file.chmod(0o6755)
    await dial.write(file, b"new")
    assert stat.S_IMODE(file.stat().st_mode) == 0o6755, "it still runs as who it ran as"
    if os.geteuid() != 0:
        pytest.skip("a file of another owner needs root: NOT TESTED that its special bits go")
    os.chown(file, 1234, 2345)
    file.chmod(0o6755)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    await dial.write(file, b"newer")
    assert file.read_bytes() == b"newer"
    assert stat.S_IMODE(file.stat().st_mode) == 0o755


async def test_attributes_stay_with_a_file(dial: Dial, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    try:
        os.setxattr(file, "user.kept", b"value")
    except OSError as error:
        pytest.skip(f"no attributes on the disk of the temporary folder, NOT TESTED: {error}")
    await dial.write(file, b"new")
    assert os.getxattr(file, "user.kept") == b"value"


async def test_a_folder_that_cannot_be_synced_does_not_undo_a_write(
    dial: Dial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.fsync

    def sync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        whole(fd)

    monkeypatch.setattr(os, "fsync", sync)
    assert await dial.write(tmp_path / "f", b"new", session="s", call="w") == 3
    assert (tmp_path / "f").read_bytes() == b"new"
    assert (await dial.attach("w"))[1].exit == 0


async def test_a_fault_in_a_write_is_answered_and_ends_nothing_else(
    dial: Dial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: files.Writing) -> None:
        raise RuntimeError("a fault")

    with monkeypatch.context() as patched:
        patched.setattr(files.Writing, "commit", broken)
        with pytest.raises(Refused, match="the worker has a fault"):
            await dial.write(tmp_path / "f", b"new", session="s", call="w")
    assert os.listdir(tmp_path) == []
    assert await dial.write(tmp_path / "f", b"new", session="s", call="v") == 3


async def test_a_file_whose_folder_takes_nothing_new_is_refused_with_the_way_out(
    dial: Dial, tmp_path: Path
) -> None:
    folder = tmp_path / "shut"
    folder.mkdir()
    (folder / "f").write_bytes(b"old")
    with shut(folder):
        with pytest.raises(
            Refused, match=r"denied: .*its folder .* takes no new file: .*`run` can write into"
        ):
            await dial.write(folder / "f", b"new")
        with pytest.raises(Refused, match=r"denied: "):
            await dial.write(folder / "g", b"new")
        with pytest.raises(Refused, match=r"denied: "):
            await dial.write(folder / "a/b/g", b"new")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"f": b"old"}


@contextmanager
def shut(folder: Path) -> Iterator[None]:
    """A folder in which nothing can be made; root needs chattr for it."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        yield
        folder.chmod(0o755)
        return
    chattr = shutil.which("chattr")
    done = chattr and subprocess.run([chattr, "+i", str(folder)], capture_output=True, text=True)
    if not chattr or not done or done.returncode:
        pytest.skip("a folder that is shut to root needs chattr(1) and a disk that knows it: NOT TESTED")
    try:
        yield
    finally:
        subprocess.run([chattr, "-i", str(folder)], check=True)


async def test_a_file_that_is_a_mount_is_refused_with_the_way_out(dial: Dial, tmp_path: Path) -> None:
    for name in ("outside", "inside"):
        (tmp_path / name).write_text(name)
    with mounted("--bind", str(tmp_path / "outside"), at=tmp_path / "inside"):
        for remove in (False, True):
            with pytest.raises(Refused, match=r"in use as a mount.*`run` can write into it"):
                await dial.write(tmp_path / "inside", b"" if remove else b"new", remove=remove)
        assert (tmp_path / "inside").read_text() == "outside"
        assert sorted(os.listdir(tmp_path)) == ["inside", "outside"]


async def test_a_full_disk_leaves_the_old_content_and_no_folder(dial: Dial, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=64k", "tmpfs", at=disk):
        (disk / "f").write_bytes(b"old")
        for path in ("f", "a/b/new"):
            with pytest.raises(Refused, match="No space left"):
                await dial.write(disk / path, b"x" * 200_000, session="s", call=path)
            assert isinstance((await dial.attach(path))[1], frames.Unknown)
        assert os.listdir(disk) == ["f"]
        assert (disk / "f").read_bytes() == b"old"
        assert await dial.write(disk / "f", b"new") == 3


@contextmanager
def mounted(*arguments: str, at: Path) -> Iterator[None]:
    """Something mounted. Skips, and says why, where that is not allowed."""
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("a mount needs root and mount(8): NOT TESTED HERE")
    done = subprocess.run([mount, *arguments, str(at)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here, so this is NOT TESTED: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


ODDITIES = [
    "/proc/kmsg",
    "/proc/self/mem",
    "/proc/self/pagemap",
    "/proc/self/clear_refs",
    "/proc/sys/kernel/hostname",
    "/proc/self/fd/0",
    "/proc/self/root/proc/cpuinfo",
    "/proc/sysrq-trigger",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/power/state",
    "/dev/stdin",
    "/dev/tty",
    "/dev/full",
    "/dev/random",
]


@pytest.mark.parametrize("path", ODDITIES)
async def test_no_file_of_the_system_hangs_a_read(dial: Dial, path: str) -> None:
    try:
        data, frame = await dial.read(path, limit=100)
    except Refused as refused:
        said = refused.message
    else:
        said = path if frame.last and len(data) <= 100 else f"{len(data)} bytes of 100"
    assert path in said


async def test_a_sparse_file_of_terabytes_is_read_in_part(
    dial: Dial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(1 << 40)
        file.seek((1 << 40) - 4)
        file.write(b"end\n")
    data, frame = await dial.read(tmp_path / "big", offset=(1 << 40) - 4, limit=10)
    assert (data, frame.size, frame.end) == (b"end\n", 1 << 40, True)
    monkeypatch.setattr(reading, "SKIP_WAIT", 0.0)
    with pytest.raises(Refused, match=r"failed: .*the line was not reached .* with `run`"):
        await dial.read(tmp_path / "big", offset=2, limit=1, unit="lines")


async def test_of_a_hard_link_the_other_name_keeps_the_old_content(dial: Dial, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"old")
    os.link(tmp_path / "one", tmp_path / "two")
    await dial.write(tmp_path / "one", b"new")
    assert ((tmp_path / "one").read_bytes(), (tmp_path / "two").read_bytes()) == (b"new", b"old")


async def test_a_write_while_its_folder_is_moved_goes_with_the_folder(
    dial: Dial, keeper: Keeper, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    dial.send(frames.Write(id=7, path=str(folder / "f")), b"x" * frames.PIECE)
    await dial.next(7)
    folder.rename(tmp_path / "moved")
    folder.symlink_to("/nonexistent")
    dial.send(frames.Write(id=7, path=str(folder / "f"), last=True), b"y")
    await dial.next(7)
    assert os.listdir(tmp_path / "moved") == ["f"]
