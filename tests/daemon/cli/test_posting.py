import json
import struct
import subprocess
import zlib
from pathlib import Path

import pytest
from hypothesis import given, strategies

from daemon.client import Client
from daemon.protocol import api
from daemon.verbs import posting
from daemon.verbs.reach import VerbError
from tests.daemon.cli.saying import Said
from tests.running import OUTRIDER, Place


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = b"\x89PNG\r\n\x1a\n" + b"".join(
    (
        chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
        chunk(b"IDAT", zlib.compress(b"\0\0")),
        chunk(b"IEND", b""),
    )
)
GIF = b"GIF89a" + struct.pack("<HH", 1, 1) + b"\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"


def types(there: Place, id: str) -> list[tuple[str, str]]:
    """(kind, media type) of what was posted."""
    return [(row["kind"], row["type"]) for row in there.records(id) if row["kind"] == "message"]


@pytest.fixture
def files(there: Place) -> Path:
    for name, data in {
        "a.png": PNG,
        "really.jpg": GIF,
        "notes.md": b"# Notes\n",
        "plain": "grüße\n".encode(),
        "big.txt": b"x" * (api.MAX_POST + 1),
    }.items():
        (there.work / name).write_bytes(data)
    return there.work


def test_files_are_posted_together_behind_the_text_in_the_order_given(
    said: Said, there: Place, files: Path
) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    order = ("--file", "notes.md", "--file", "a.png", "--file", "really.jpg", "--file", "plain")
    shown = said("post", "-f", id, *order, "look")
    assert types(there, id) == [
        ("message", "text/plain; charset=utf-8"),
        ("message", "text/markdown; charset=utf-8"),
        ("message", "image/png"),
        ("message", "image/gif"),
        ("message", "text/plain; charset=utf-8"),
    ]
    assert "(image/png, " in shown
    assert "  grüße\n" in shown
    assert shown.count(" step ") == 1


def test_a_file_may_be_posted_without_a_text_and_run_takes_files_too(
    said: Said, there: Place, files: Path
) -> None:
    said("run", "--model", "rehearsal/echo", "--file", "a.png", "--file", "plain")
    id = json.loads(said("ls", "--limit", "1", "--json"))[0]["id"]
    assert types(there, id) == [("message", "image/png"), ("message", "text/plain; charset=utf-8")]


def test_a_picture_may_come_from_stdin(said: Said, there: Place, files: Path) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    command = [*OUTRIDER, "post", id, "see", "--file", "-"]
    done = subprocess.run(command, env=there.environ, input=PNG, capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
    assert types(there, id)[1] == ("message", "image/png")


def test_the_same_post_under_the_same_key_is_taken_once(said: Said, files: Path) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    first = said("post", "-f", "--key", "k 1", id, "once", "--file", "a.png")
    assert "answer\n  once\n" in first
    n = json.loads(said("post", "--key", "k 1", id, "once", "--file", "a.png", "--json"))["n"]
    assert n == 5
    assert "answer\n  once\n" in said("post", "-f", "--key", "k 1", id, "once", "--file", "a.png")
    assert "used for another post" in said("post", "--key", "k 1", id, "twice", code=3)


@pytest.mark.parametrize("key", ["", "ü", "a\nb", " ", "x" * 201])
def test_a_key_that_no_header_can_hold_is_wrong_usage(said: Said, key: str) -> None:
    assert "printable ASCII" in said("post", "--key", key, "abc", "x", code=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to post"),
        (["--file", "nowhere"], "--file nowhere: No such file"),
        (["--file", "."], "Is a directory"),
        (["-", "--file", "-"], "stdin can be read once"),
        (["--file", "big.txt"], "big.txt has 8.0 MiB; at most 8 MiB"),
        (["x"] + ["--file", "plain"] * api.MAX_PARTS, "at most 100"),
    ],
)
def test_what_cannot_be_posted_is_told_before_anything_is_asked(
    said: Said, files: Path, arguments: list[str], words: str
) -> None:
    assert words in said("--socket", "/nowhere/s", "post", "0123456789abcdef", *arguments, code=2)
    assert words in said("--socket", "/nowhere/s", "run", *arguments, code=2)


def test_parts_that_are_too_large_together_are_told(said: Said, there: Place) -> None:
    (there.work / "half").write_bytes(b"x" * (api.MAX_POST // 2 + 1))
    assert "the post has 8.0 MiB" in said("post", "ab", "--file", "half", "--file", "half", code=2)


def test_a_model_that_takes_no_pictures_is_told_of(
    said: Said, there: Place, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import asyncio

    async def make() -> str:
        async with Client(there.socket) as client:
            return await client.create(api.Create(model="rehearsal/echo", input=("text/plain",)))

    done = there.outrider("post", asyncio.run(make()), "see", "--file", "a.png")
    assert done.returncode == 0
    assert "rehearsal/echo takes no pictures" in done.stderr


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.pdf", b"%PDF-1.7", "is a PDF"),
        ("a.docx", b"PK\x03\x04....", "office document"),
        ("a.gz", b"\x1f\x8b\x08", "compressed"),
        ("a.heic", b"\0\0\0\x18ftypheic", "HEIC or AVIF picture; texts and PNG"),
        ("a.bmp", b"BM\x3a\0\0\0\0\0\0\0", "BMP picture"),
        ("a.mp4", b"\0\0\0\x18ftypmp42", "a video or a sound"),
        ("a.wav", b"RIFF\0\0\0\0WAVEfmt ", "a sound"),
        ("a.txt", "hello".encode("utf-16"), "iconv"),
        ("a.txt", b"caf\xe9 au lait", "byte 3"),
        ("a.txt", b"a\0b", "byte 1"),
        ("a.png", PNG[:40], "is cut off"),
        ("a.png", b"<html>no</html>", "is named as a picture, and its bytes are none: text"),
        ("a.jpeg", b"%PDF-1.7", "its bytes are none: a PDF"),
        ("a.webp", b"\xfe\xed\0", "its bytes are none: something unknown"),
        ("a.txt", b" \n", "is empty"),
    ],
)
def test_a_file_that_cannot_be_posted_gets_a_clear_word(name: str, data: bytes, words: str) -> None:
    with pytest.raises(VerbError, match=words) as caught:
        posting.kind("--file x", name, data)
    assert caught.value.code == 2


@given(strategies.binary(max_size=64) | strategies.sampled_from([PNG, GIF]))
def test_any_bytes_are_a_picture_or_a_text_or_refused(data: bytes) -> None:
    try:
        type = posting.kind("--file x", "x", data)
    except VerbError:
        return
    if type.startswith("image/"):
        return
    assert type == "text/plain; charset=utf-8"
    data.decode()
    assert data.strip()
