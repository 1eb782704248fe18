"""`read`, `write`, `edit` and `patch` as the model uses them, on files of every odd kind, through a real daemon."""

import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from daemon.protocol.records import Record
from tests.e2e.driving import Driver, Stage, driver, judge, stage
from tests.e2e.rehearsing import lives, results, script, uses

ROOT: Final = os.geteuid() == 0
USER: Final = pwd.getpwuid(os.geteuid()).pw_name
BEFORE: Final = {  # the files that are there
    "crlf": b"a\r\nb\r\nc",
    "mixed": b"a\r\nb\nc\r\nd\n",
    "mark": b"\xef\xbb\xbffirst\r\nsecond\r\n",
    "lone": b"a\rb\nTARGET\rx\nc",
    "last": b"one\ntwo",
    "latin": b"caf\xe9\nTARGET\n",
    "separators": "a\u2028b\u0085c\x0bd\nTARGET\n".encode(),
    "utf16": "hello\r\n".encode("utf-16"),
    "binary": bytes(range(256)),
    "empty": b"",
    "windows": b"@echo off\r\necho one\r\n",
    "long": b"x" * 200_000 + b"\nsecond\n",
    "longest": b"x" * 3_000_000,
    "wide": b"".join(b"%05d %s\n" % (n, b"y" * 93) for n in range(1, 3001)),
    "same": b"same\n",
    "script": b"#!/bin/sh\necho old\n",
}
EDITS: Final = (  # file, old, new: bytes afterwards, None where it is refused with the word
    ("crlf", "b", "B\nB2", b"a\r\nB\r\nB2\r\nc", ""),
    ("mixed", "b\nc\n", "B\nc\n", b"a\r\nB\nc\r\nd\n", ""),
    ("mark", "first\nsecond", "1st\nsecond", b"\xef\xbb\xbf1st\r\nsecond\r\n", ""),
    ("lone", "TARGET", "T\nU", b"a\rb\nT\nU\rx\nc", ""),
    ("last", "two", "two\nthree", b"one\ntwo\nthree", ""),
    ("latin", "TARGET", "T", b"caf\xe9\nT\n", ""),
    ("separators", "TARGET", "T", "a\u2028b\u0085c\x0bd\nT\n".encode(), ""),
    ("latin", "caf\ufffd", "coffee", None, "bytes that are not UTF-8"),
    ("windows", "one\r\n", "one\n", None, "nothing but line ends"),
    ("same", "other", "x", None, "occurs 0 times"),
    ("binary", "abc", "ABC", bytes(range(256)).replace(b"abc", b"ABC"), ""),
    ("none", "a", "b", None, "there is no"),
    ("folder", "a", "b", None, "is a folder"),
    ("fifo", "a", "b", None, "is a FIFO"),
    ("huge", "a", "b", None, "over 33554432 bytes"),
    ("loop", "a", "b", None, "leads back to itself"),
)
READS: Final = (  # arguments, and what the text is, begins with, or ends with
    ({"path": "crlf"}, "a\r\nb\r\nc", "", ""),
    ({"path": "empty"}, "[the file is empty]", "", ""),
    ({"path": "last", "offset": 2}, "two", "", ""),
    ({"path": "last", "offset": 9}, "[the file has fewer than 9 lines]", "", ""),
    ({"path": "mixed", "offset": 2, "limit": 2}, "b\nc\r\n[lines 2 to 3; more from offset 4]", "", ""),
    ({"path": "latin"}, "", "caf\ufffd\n", ""),
    ({"path": "separators", "offset": 2}, "", "T", ""),
    ({"path": "utf16"}, "", "utf16 is text in UTF-16", ""),
    ({"path": "binary"}, "", "binary is binary", ""),
    ({"path": "wide"}, "", "00001 y", "\n[lines 1 to 512; more from offset 513]"),
    ({"path": "wide", "offset": 2999}, "", "02999 y", "y\n"),
    ({"path": "long"}, "", "xxx", "to see more of it]"),
    ({"path": "long", "offset": 2}, "second\n", "", ""),
    ({"path": "longest"}, "", "xxx", "to see more of it]"),
    ({"path": "huge", "offset": 2}, "[the file has fewer than 2 lines]", "", ""),
    ({"path": "fifo"}, "", "", "is a FIFO, not a regular file"),
    ({"path": "loop"}, "", "", "leads back to itself"),
    ({"path": "folder"}, "", "", "is a folder: name a file in it"),
    ({"path": "/dev/zero"}, "", "", "is a character device, not a regular file"),
    ({"path": "/proc/self/mem"}, "", "", "Input/output error"),
    ({"path": "folder/../last"}, "one\ntwo", "", ""),
    ({"path": "~/last"}, "one\ntwo", "", ""),
    ({"path": "name\nwith lines"}, "odd", "", ""),
    ({"path": "link/inner"}, "inner", "", ""),
)
WRITES: Final = (  # path, content, bytes afterwards, and the end of what is said
    (
        "windows",
        "@echo off\necho two\n",
        b"@echo off\r\necho two\r\n",
        ", with the line ends \\r\\n that it had.",
    ),
    ("crlf", "a\r\nb\n", b"a\r\nb\n", "Wrote 5 bytes to crlf."),
    ("mixed", "plain\n", b"plain\n", "Wrote 6 bytes to mixed."),
    ("new/deep/er", "made\n", b"made\n", "Wrote 5 bytes to new/deep/er."),
    ("to-last", "through a link\n", b"through a link\n", "Wrote 15 bytes to to-last."),
    ("script", "#!/bin/sh\necho new\n", b"#!/bin/sh\necho new\n", "Wrote 19 bytes to script."),
    ("empty", "", b"", "Wrote 0 bytes to empty."),
    ("folder", "x", None, "is a folder: name a file in it"),
    ("last/", "x", None, "ends in a slash: name a file"),
    ("fifo", "x", None, "is a FIFO, not a regular file"),
    ("loop", "x", None, "leads back to itself"),
    ("/dev/full", "x", None, "is a character device, not a regular file"),
    ("/proc/nothing", "x", None, "(the folder /proc is there)" if ROOT else f"; the worker runs as {USER}"),
    ("last/below", "x", None, "a part of the path is a file, not a folder"),
    ("n" * 256, "x", None, "…"),
)
SCRIPTS: Final = {
    "edits": script(
        *(uses("edit", {"path": path, "old": old, "new": new}) for path, old, new, *_ in EDITS),
        {"text": "Done."},
    ),
    "reads": script(*(uses("read", given) for given, *_ in READS), {"text": "Done."}),
    "writes": script(
        *(uses("write", {"path": path, "content": content}) for path, content, *_ in WRITES),
        {"text": "Done."},
    ),
    "at-once": script(
        uses("edit", *({"path": "shared", "old": f"line {n}\n", "new": f"changed {n}\n"} for n in range(8))),
        {"text": "Done."},
    ),
    "rooms": script(
        *(
            uses("run", {"code": code}) if code else uses("write", {"path": "sub/f", "content": "x"})
            for code in (
                "mkdir sub; cd sub; rm -r ../sub; pwd; ls; echo x >f",
                "",
                "cd ..; cat sub/f",
                "cd /; pwd",
            )
        ),
        {"text": "Done."},
    ),
}


@pytest.fixture
def here() -> Iterator[Stage]:
    """A daemon whose folder holds the files."""
    with stage() as made:
        for name, data in BEFORE.items():
            (made.folder / name).write_bytes(data)
        (made.folder / "script").chmod(0o750)
        (made.folder / "folder").mkdir()
        (made.folder / "folder/inner").write_text("inner")
        (made.folder / "link").symlink_to("folder")
        (made.folder / "to-last").symlink_to("last")
        (made.folder / "loop").symlink_to("loop")
        (made.folder / "name\nwith lines").write_text("odd")
        os.mkfifo(made.folder / "fifo")
        os.truncate(open_new(made.folder / "huge"), 40 << 20)
        for name, text in SCRIPTS.items():
            made.script(name, text)
        yield made


def open_new(path: Path) -> Path:
    path.touch()
    return path


async def played(on: Driver, name: str) -> tuple[str, list[Record]]:
    """The session of a rehearsal that was played to its end, and its results."""
    session = await on.session("Go.", model=f"rehearsal/{name}")
    found = await on.closes(session)
    judge(found)
    return session, results(found)


async def test_edits_change_what_was_asked_for_and_no_other_byte(here: Stage) -> None:
    async with driver(here) as on:
        session, said = await played(on, "edits")
        now: dict[str, Any] = dict(BEFORE)
        for (path, _, _, after, word), result in zip(EDITS, said, strict=True):
            assert result.header.failed == (after is None), (path, result.text())
            assert word in result.text(), (path, result.text())
            if after is not None:
                now[path] = after
        for path, data in now.items():
            assert (here.folder / path).read_bytes() == data, path
        await lives(on, session)


async def test_reads_show_text_as_far_as_it_fits_and_never_hang(here: Stage) -> None:
    async with driver(here) as on:
        session, said = await played(on, "reads")
        for (given, whole, begins, ends), result in zip(READS, said, strict=True):
            text = result.text()
            assert text == whole or not whole, (given, text[:200])
            assert text.startswith(begins), (given, text[:200])
            assert text.endswith(ends), (given, text[-200:])
            assert len(result.body) < 52_000, given
        await lives(on, session)


async def test_writes_keep_modes_links_and_line_ends_and_leave_nothing_where_they_fail(here: Stage) -> None:
    async with driver(here) as on:
        before = {path.name for path in here.folder.iterdir()}
        session, said = await played(on, "writes")
        for (path, _, after, ends), result in zip(WRITES, said, strict=True):
            assert result.header.failed == (after is None), (path, result.text())
            assert result.text().endswith(ends), (path, result.text())
            if after is not None and path != "to-last":
                assert (here.folder / path).read_bytes() == after, path
        assert (here.folder / "to-last").is_symlink()
        assert (here.folder / "last").read_bytes() == b"through a link\n"
        assert (here.folder / "script").stat().st_mode & 0o777 == 0o750
        made = {path.name for path in here.folder.iterdir()} - before
        assert made <= {"new", "data", ".ipython"}  # the last is of a kernel that was looked at
        await lives(on, session)


async def test_edits_of_one_file_in_one_answer_all_happen_or_say_that_they_did_not(here: Stage) -> None:
    file = here.folder / "shared"
    file.write_text("".join(f"line {n}\n" for n in range(8)))
    async with driver(here) as on:
        session, said = await played(on, "at-once")
        for n, result in enumerate(said):
            assert (f"changed {n}\n" in file.read_text()) == (not result.header.failed), result.text()
            assert (f"line {n}\n" in file.read_text()) == bool(result.header.failed)
            assert not result.header.failed or "was changed since it was read" in result.text()
        assert any(not result.header.failed for result in said)
        await lives(on, session)


async def test_edits_of_one_file_by_several_sessions_never_lose_one(here: Stage) -> None:
    file = here.folder / "shared"
    file.write_text("".join(f"line {n}\n" for n in range(8)))
    async with driver(here) as on:
        made = [await on.session("Go.", model="rehearsal/at-once") for _ in range(4)]
        done: set[int] = set()
        for session in made:
            found = await on.closes(session)
            judge(found)
            done.update(n for n, result in enumerate(results(found)) if not result.header.failed)
        assert file.read_text() == "".join(f"{'changed' if n in done else 'line'} {n}\n" for n in range(8))
        assert done


async def test_a_shell_whose_folder_is_gone_goes_on_and_files_begin_at_the_sessions(here: Stage) -> None:
    async with driver(here) as on:
        session, (gone, written, back, root) = await played(on, "rooms")
        assert gone.header.exit not in (0, None)
        assert gone.text().startswith(f"{here.folder}/sub\n")
        assert not written.header.failed
        assert (here.folder / "sub/f").read_text() == "x"
        assert not back.header.failed
        assert root.text() == "/"
        await lives(on, session)
