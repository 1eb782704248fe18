"""Pieces put behind a file's content: only where that is the expected one, and not at all when given up."""

import hashlib
import os
from pathlib import Path

import pytest

from daemon.allowance import Allowance
from daemon.protocol import frames
from daemon.worker.access import Access
from daemon.worker.files import Appending
from daemon.worker.refusal import Refusal


def write(path: Path, content: bytes) -> frames.Write:
    """A frame that appends to `path`, which is to hold `content`."""
    return frames.Write(id=1, path=str(path), append=True, expect=hashlib.sha256(content).hexdigest())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_bytes(b"one\n")
    return path


def test_pieces_are_put_behind_and_the_file_stays_the_one_it_was(file: Path) -> None:
    inode = file.stat().st_ino
    one = Appending(write(file, b"one\n"))
    for piece in (b"two\n", b"", b"three\n"):
        one.add(piece)
    one.seal()
    one.check()
    one.commit()
    one.drop()
    assert (file.read_bytes(), file.stat().st_ino, one.size) == (b"one\ntwo\nthree\n", inode, 10)


def test_what_is_given_up_is_cut_off(file: Path) -> None:
    one = Appending(write(file, b"one\n"))
    one.add(b"two\n")
    one.drop()
    one.drop()
    assert file.read_bytes() == b"one\n"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (frames.Write(id=1, path="f", append=True), "bad_request"),
        (frames.Write(id=1, path="f", append=True, expect="00", remove=True), "bad_request"),
        (frames.Write(id=1, path="f", append=True, expect="00", session="s", call="c"), "bad_request"),
        (frames.Write(id=1, path="f", append=True, expect="00"), "changed"),
        (frames.Write(id=1, path="none", append=True, expect="00"), "not_found"),
        (frames.Write(id=1, path="fifo", append=True, expect="00"), "not_regular"),
        (frames.Write(id=1, path=".", append=True, expect="00"), "is_directory"),
    ],
)
def test_what_cannot_be_appended_to_is_refused(file: Path, frame: frames.Write, code: str) -> None:
    os.mkfifo(file.parent / "fifo")
    with pytest.raises(Refusal) as caught:
        Appending(
            frames.Write(
                **{n: getattr(frame, n) for n in frame.__struct_fields__} | {"cwd": str(file.parent)}
            )
        )
    assert caught.value.code == code
    assert file.read_bytes() == b"one\n"


def test_a_file_that_is_being_appended_to_is_busy(file: Path) -> None:
    first = Appending(write(file, b"one\n"))
    with pytest.raises(Refusal) as caught:
        Appending(write(file, b"one\n"))
    assert caught.value.code == "busy"
    first.drop()
    Appending(write(file, b"one\n")).drop()


def test_a_full_disk_is_said_and_leaves_what_was_there(file: Path) -> None:
    one = Appending(write(file, b"one\n"))
    os.close(one._fd)
    one._fd = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(Refusal, match="No space left on device"):
        one.add(b"two\n")
    one.drop()
    assert file.read_bytes() == b"one\n"


def test_what_a_worker_allows_to_be_written_holds_here_too(file: Path) -> None:
    allowed = Access(Allowance(write=("/nowhere",)), file.parent / "scratch")
    with pytest.raises(Refusal) as caught:
        Appending(write(file, b"one\n"), allowed)
    assert caught.value.code == "denied"
    sessions = file.parent / "scratch" / "sessions"
    sessions.mkdir(parents=True)
    (sessions / "f").write_bytes(b"x")
    Appending(write(sessions / "f", b"x"), allowed).drop()
