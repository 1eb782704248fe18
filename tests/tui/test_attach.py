import os
from pathlib import Path

import pytest

from daemon.protocol import api
from daemon.protocol.records import TEXT
from tui import attach
from tui.desk import Chip

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@pytest.mark.parametrize(
    ("pasted", "path"),
    [
        ("/tmp/a.png", "/tmp/a.png"),
        (" '/tmp/my shot.PNG' ", "/tmp/my shot.PNG"),
        ("/tmp/my\\ shot.jpg", "/tmp/my shot.jpg"),
        ("file:///tmp/my%20shot.webp", "/tmp/my shot.webp"),
        ("~/a.gif", "~/a.gif"),
        ("/tmp/a.txt", ""),
        ("look at /tmp/a.png", ""),
        ("a.png", ""),
        ("/tmp/a.png\n/tmp/b.png", ""),
        ("'/tmp/a.png", ""),
        ("", ""),
    ],
)
def test_a_picture_that_is_dropped_on_the_terminal_is_known_by_its_path(pasted: str, path: str) -> None:
    assert attach.pasted_path(pasted) == path


def test_a_picture_is_known_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "b.png").write_text("no picture")
    chip = attach.picture(str(tmp_path / "a.png"))
    assert chip == Chip("a.png · 28 B", "image/png", path=str(tmp_path / "a.png"))
    assert attach.part(chip) == api.Part("image/png", PNG)
    assert attach.picture(str(tmp_path / "b.png")) is None
    assert attach.picture(str(tmp_path / "missing.png")) is None


def test_a_picture_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        file.write(PNG)
        file.truncate(api.MAX_POST + 1)
    with pytest.raises(attach.NotPostable, match="at most"):
        attach.picture(str(tmp_path / "a.png"))


def test_a_post_is_the_text_what_is_attached_and_what_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "notes.md").write_text("notes")
    (tmp_path / "core").write_bytes(b"\x7fELF\0")
    text = f"look at @{tmp_path}/notes.md, @{tmp_path}/a.png. and @{tmp_path}/core, not at bob@{tmp_path}/notes.md"
    made = attach.parts(text, [attach.pasted("long\ntext")])
    assert [part.type for part in made] == [TEXT, TEXT, TEXT, "image/png"]
    assert [part.body for part in made[1:]] == [b"long\ntext", b"notes", PNG]
    assert attach.parts("  ", [attach.pasted("x")])[0].body == b"x"
    assert attach.parts(" \n", []) == ()


def test_a_file_that_went_away_is_told(tmp_path: Path) -> None:
    with pytest.raises(attach.NotPostable, match="put the file back"):
        attach.parts("", [Chip("a.png", "image/png", path=str(tmp_path / "a.png"))])


def test_a_post_that_is_too_large_is_told_before_it_is_sent() -> None:
    with pytest.raises(attach.NotPostable, match="at most"):
        attach.parts("x" * (api.MAX_POST + 1), [])


def test_a_half_written_path_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    for name in ("source/app.py", "source/ask.py", ".hidden", "some file"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    assert attach.completions("so") == ["source/"]
    assert attach.completions("source/a") == ["source/app.py", "source/ask.py"]
    assert attach.completions(f"{tmp_path}/source/ap") == [f"{tmp_path}/source/app.py"]
    assert attach.completions(".h") == [".hidden"]
    assert attach.completions("nowhere/x") == []
    assert attach.common(["source/app.py", "source/ask.py"]) == "source/a"
    assert attach.common(["one", "one two"]) == "one"
    assert attach.common([]) == ""


def test_a_name_that_a_terminal_would_act_on_or_that_is_no_text_is_not_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (b"a-good", b"a-\xff", b"a-\x1b[31m"):
        (tmp_path / os.fsdecode(name)).write_text("")
    monkeypatch.chdir(tmp_path)
    assert attach.completions("a") == ["a-good"]


def test_a_picture_is_no_pipe_and_its_name_is_drawn_as_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    assert attach.picture(str(tmp_path / "pipe.png")) is None
    (tmp_path / "\x1b[2J.png").write_bytes(PNG)
    chip = attach.picture(str(tmp_path / "\x1b[2J.png"))
    assert chip is not None
    assert chip.name.startswith("␛[2J.png")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder of what is named like a picture and is none that could be read to its end."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "tty.png").symlink_to("/dev/tty")
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "broken.png").symlink_to("nowhere")
    return tmp_path


def test_what_is_no_file_is_no_picture_and_waits_for_nothing(odd: Path) -> None:
    for path in odd.iterdir():
        assert attach.picture(str(path)) is None
        assert [part.type for part in attach.parts(f"@{path}", ())] == [TEXT]
        with pytest.raises(attach.NotPostable, match="take it out"):
            attach.part(Chip("x", "image/png", path=str(path)))
    assert attach.picture("~nobody-of-this-name/a.png") is None
    assert attach.picture("/tmp/a\0.png") is None


def test_a_picture_that_grew_after_it_was_attached_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(PNG)
    chip = attach.picture(str(file))
    assert chip is not None
    with file.open("ab") as opened:
        opened.truncate(api.MAX_POST + 1)
    with pytest.raises(attach.NotPostable, match="has grown"):
        attach.part(chip)


def test_a_file_that_says_it_is_empty_is_read_no_further_than_a_named_one_goes() -> None:
    made = attach.parts("@/proc/self/status", ())
    assert made[1].body.startswith(b"Name:")
    assert len(made[1].body) <= attach.MAX_NAMED


def test_one_name_that_cannot_be_looked_at_keeps_no_other_from_being_completed(
    odd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (odd / "shown").mkdir()
    monkeypatch.chdir(odd)
    assert "shown/" in attach.completions("")
    assert "loop.png" in attach.completions("")
