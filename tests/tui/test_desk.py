import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from daemon.protocol.api import Part
from tui.desk import HISTORY, NEW, Chip, Desk, Draft, Prefs, both
from tui.writers import BESIDE, LOCK

CHIP = Chip("a.png · 3 B", "image/png", path="/a.png")
PARTS = (Part("text/plain", b"\xff\x00 bytes"),)


def files(folder: Path) -> list[str]:
    """What is kept, without the lock of who keeps it."""
    return sorted(
        str(path.relative_to(folder)).split("/", 1)[1]
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOCK
    )


def test_a_draft_comes_back_after_a_restart_with_what_is_attached(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "d")
    desk.write("s1", "half a thought", (CHIP,))
    desk.save()
    assert not desk.dirty
    assert Desk(tmp_path, "d").draft("s1") == Draft("half a thought", (CHIP,))
    assert Desk(tmp_path, "another daemon").draft("s1") == Draft()


def test_files_and_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "t", "d")
    desk.write("s1", "secret")
    desk.prefer(Prefs("now"))
    desk.save()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "t").glob("*/*/")} == {0o700}


def test_a_post_leaves_the_draft_joins_the_history_and_stays_until_it_has_arrived(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "d")
    desk.write("s1", "hello")
    first = desk.post("s1", "hello", PARTS, (), 1)
    second = desk.post("s1", "hello", PARTS, (), 2)
    assert first.key != second.key
    assert desk.draft("s1") == Draft(history=("hello",))
    desk.save()
    again = Desk(tmp_path, "d")
    assert [post.key for post in again.unsent("s1")] == [first.key, second.key]
    assert again.unsent()[0].parts == PARTS
    again.sent(first.key)
    again.sent(second.key)
    again.save()
    assert Desk(tmp_path, "d").unsent() == []
    assert files(tmp_path) == ["drafts/s1.json"]


def test_the_history_has_an_end(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "d")
    for n in range(HISTORY + 5):
        desk.sent(desk.post("s1", f"post {n}", PARTS, (), n).key)
    assert len(desk.draft("s1").history) == HISTORY
    assert desk.draft("s1").history[-1] == f"post {HISTORY + 4}"


def test_an_empty_draft_leaves_no_file(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "d")
    desk.write("s1", "x")
    desk.save()
    desk.write("s1", "")
    desk.save()
    assert files(tmp_path) == []


def test_a_file_that_does_not_read_is_passed_over(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "d")
    desk.write("s1", "kept")
    desk.prefer(Prefs(theme="nord"))
    desk.save()
    (desk.folder / "drafts" / "s2.json").write_bytes(b'{"text": 5}')
    (desk.folder / "drafts" / "s3.json").write_bytes(b"\xff")
    again = Desk(tmp_path, "d")
    assert again.draft("s1").text == "kept"
    assert again.draft("s2") == Draft()
    assert again.prefs.theme == "nord"


def test_a_folder_that_takes_nothing_is_told_and_tried_again(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    desk = Desk(blocked, "d")
    desk.write("s1", "x")
    desk.save()
    assert str(blocked) in desk.complaint
    assert desk.dirty
    blocked.unlink()
    desk.save()
    assert desk.complaint == ""
    assert Desk(blocked, "d").draft("s1").text == "x"


def test_what_is_kept_reads_as_json(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "d")
    desk.write("s1", "é\n")
    desk.save()
    assert msgspec.json.decode((desk.folder / "drafts" / "s1.json").read_bytes())["text"] == "é\n"


def test_a_file_without_an_end_and_a_post_to_no_session_are_passed_over(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "d")
    desk.write("s1", "kept")
    post = desk.post("s1", "x", PARTS, (), 1)
    desk.prefer(Prefs(theme="nord"))
    desk.save()
    (desk.folder / "prefs.json").write_text('{"x":' + "[" * 100_000)
    path = desk.folder / "unsent" / f"{post.key}.json"
    path.write_text(path.read_text().replace('"s1"', '"../../s1"'))
    again = Desk(tmp_path, "d")
    assert again.prefs == Prefs()
    assert again.draft("s1").history == ("x",)
    assert again.unsent() == []


def test_one_file_that_cannot_be_written_keeps_no_other_back(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "d")
    for name in ("s1", "s2", "s3"):
        desk.write(name, name)
    (desk.folder / "drafts" / "s2.json").mkdir(parents=True)
    desk.save()
    assert str(desk.folder) in desk.complaint
    assert desk.dirty
    again = Desk(tmp_path, "d")
    assert [again.draft(name).text for name in ("s1", "s2", "s3")] == ["s1", "", "s3"]
    (desk.folder / "drafts" / "s2.json").rmdir()
    desk.save()
    assert (desk.complaint, desk.dirty) == ("", False)
    assert files(tmp_path) == ["drafts/s1.json", "drafts/s2.json", "drafts/s3.json"]


def test_a_pipe_among_the_files_is_not_waited_for(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "d")
    desk.write("s1", "kept")
    desk.post("s2", "x", PARTS, (), 1)
    desk.save()
    for name in ("prefs.json", "drafts/s3.json", f"unsent/{'0' * 32}.json"):
        os.mkfifo(desk.folder / name)
    again = Desk(tmp_path, "d")
    assert again.draft("s1").text == "kept"
    assert again.draft("s3") == Draft()
    assert [post.text for post in again.unsent()] == ["x"]


def test_what_a_killed_writer_left_is_taken_away_and_what_another_writes_now_is_not(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "d")
    desk.write("s1", "kept")
    desk.save()
    left = [desk.folder / f"prefs.1{NEW}", desk.folder / "drafts" / f"s1.2{NEW}"]
    now = desk.folder / "drafts" / f"s1.3{NEW}"
    for path in (*left, now):
        path.write_text("{")
    for path in left:
        os.utime(path, (1, 1))
    Desk(tmp_path, "d")
    assert files(tmp_path) == ["drafts/s1.3.new", "drafts/s1.json"]


def test_a_save_waits_for_the_one_before_it_and_writes_what_is_newest(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "d")
    desk.write("s1", "old")
    with ThreadPoolExecutor() as pool:
        with desk._writing:
            saving = pool.submit(desk.save)
            desk.write("s1", "new")
            assert not saving.done()
        saving.result()
    assert Desk(tmp_path, "d").draft("s1").text == "new"


def test_saves_in_threads_lose_and_mix_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "d")
    with ThreadPoolExecutor(4) as pool:
        saves = []
        for n in range(200):
            desk.write(f"s{n % 7}", f"{n}")
            desk.sent(desk.post("s9", f"{n}", PARTS, (), n).key)
            saves.append(pool.submit(desk.save))
        for save in saves:
            save.result()
    desk.save()
    again = Desk(tmp_path, "d")
    assert [again.draft(f"s{n}").text for n in range(7)] == [desk.draft(f"s{n}").text for n in range(7)]
    assert again.unsent() == []
    assert not desk.dirty


def test_a_full_disk_is_told_and_keeps_what_was_there(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "d")
    desk.write("s1", "kept")
    desk.save()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    desk.write("s1", "x" * 5000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        desk.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "cannot be kept" in desk.complaint
    assert Desk(tmp_path, "d").draft("s1").text == "kept"
    assert files(tmp_path) == ["drafts/s1.json"]
    desk.save()
    assert Desk(tmp_path, "d").draft("s1").text == "x" * 5000


ANOTHER = """
import os, sys
from pathlib import Path
from daemon.protocol.api import Part
from tui.desk import Desk
desk = Desk(Path(sys.argv[1]), "d")
print(desk.draft("s1").text.replace("\\n", "|"), flush=True)
for line in sys.stdin:
    exec(line)
    desk.save()
    print("done", flush=True)
"""


class Another:
    """A terminal UI in a process of its own. `begun`: the draft of s1 that it began with, its lines parted by bars."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.begun = self._said()

    def _said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def do(self, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{code}\n")
        self.process.stdin.flush()
        assert self._said() == "done"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def another(folder: Path) -> Iterator[Another]:
    command = [sys.executable, "-c", ANOTHER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Another(process)


def test_of_two_at_once_none_writes_over_the_other_and_the_next_start_has_both(tmp_path: Path) -> None:
    with another(tmp_path) as first:
        first.do("desk.write('s1', 'begun')")
        with another(tmp_path) as second:
            assert second.begun == "begun"
            second.do("desk.write('s1', 'of the second'); desk.write('s2', 'its own')")
            first.do("desk.write('s1', 'of the first')")
            second.kill()
        with another(tmp_path) as third:
            assert third.begun == "of the first|of the second"
    desk = Desk(tmp_path, "d")
    assert desk.draft("s1").text == "of the first\nof the second"
    assert desk.draft("s2").text == "its own"
    assert not list(desk.folder.glob(f"{BESIDE}/*"))


def test_a_post_is_sent_by_who_made_it_and_by_the_next_start_once_that_one_has_ended(tmp_path: Path) -> None:
    post = "desk.post('s1', 'x', (Part('text/plain', b'x'),), (), 1)"
    with another(tmp_path) as first, another(tmp_path) as second:
        first.do(post)
        second.do(post)
        with another(tmp_path) as third:
            third.do("assert desk.unsent() == []")
        first.kill()
        assert len(Desk(tmp_path, "d").unsent()) == 1
        second.kill()
        assert len(Desk(tmp_path, "d").unsent()) == 2


def test_what_was_seen_in_either_was_seen_and_the_later_choice_holds(tmp_path: Path) -> None:
    with another(tmp_path) as first, another(tmp_path) as second:
        take = "from tui.desk import Prefs; desk.prefer"
        first.do(f"{take}(Prefs(seen={{'a': '2', 'b': '1'}}, theme='nord'))")
        second.do(f"{take}(Prefs(seen={{'a': '1', 'b': '2', 'c': '1'}}, theme='gruvbox'))")
    assert Desk(tmp_path, "d").prefs == Prefs(seen={"a": "2", "b": "2", "c": "1"}, theme="gruvbox")


@pytest.mark.parametrize(
    ("ours", "theirs", "made"),
    [
        (Draft(), Draft("a"), Draft("a")),
        (Draft("a"), Draft(), Draft("a")),
        (Draft("a b"), Draft("a b c"), Draft("a b c")),
        (Draft("a b c"), Draft("a b"), Draft("a b c")),
        (Draft("a", (CHIP,)), Draft("b", (CHIP,)), Draft("a\nb", (CHIP,))),
        (Draft("a", (CHIP,)), Draft("", (), ("a",)), Draft("", (), ("a",))),
        (Draft("", (), ("1", "2")), Draft("", (), ("1", "3")), Draft("", (), ("1", "2", "3"))),
    ],
)
def test_two_drafts_are_put_together(ours: Draft, theirs: Draft, made: Draft) -> None:
    assert both(ours, theirs) == made
