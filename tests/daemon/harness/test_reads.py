"""The tool `read` on what is no plain text: images that fit, images that do not, and every other kind of file."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemon.harness import reads, sniffing
from daemon.harness.tools import BadCall, Read
from daemon.pool import Content, Refused
from daemon.protocol import frames
from daemon.protocol.records import Record, WorkerRef
from daemon.provider import fitting, images
from daemon.worker.reading import Reading
from daemon.worker.refusal import Refusal
from tests.daemon.harness.doubles import FakePool
from tests.daemon.provider.contexts import picture

TAKES = ("text/plain", "image/png", "image/jpeg")
W = WorkerRef("w")


async def read(files: dict[str, bytes], path: str, takes: tuple[str, ...] = TAKES) -> Record:
    pool: Any = FakePool("w")
    pool.files = files
    return await reads.carry_out(pool, "c", Read("w", path), W, takes)


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
async def test_an_image_that_fits_comes_back_byte_for_byte_whatever_its_name(format: str) -> None:
    data = picture(format)
    got = await read({"x.txt": data}, "x.txt")
    assert (got.header.type, got.body, got.header.for_) == (f"image/{format.lower()}", data, "c")


async def test_an_image_over_the_limits_is_made_smaller_before_it_is_recorded() -> None:
    data = picture("PNG", (5000, 1000))
    got = await read({"big.png": data}, "big.png")
    made = images.inspect(got.body)
    assert (made.type, made.width, made.height) == ("image/png", 2000, 400)
    assert got.header.type == made.type
    assert fitting.fits(got.body, made)


@pytest.mark.parametrize(
    ("data", "takes", "says"),
    [
        (
            picture("GIF"),
            TAKES,
            r"is an image \(image/gif, \d+ bytes\) and this session takes image/png, image/jpeg",
        ),
        (picture("PNG"), ("text/plain",), r"image/png, \d+ bytes\) and this session takes no images"),
        (picture("WEBP"), TAKES, "image/webp"),
        (picture("BMP"), TAKES, "image/bmp"),
        (picture("TIFF"), TAKES, "image/tiff"),
        (picture("ICO", (16, 16)), TAKES, "image/x-icon"),
        (b"\0\0\0\x1cftypavif\0\0\0\0", TAKES, "image/avif"),
        (picture("PNG")[:-12], TAKES, "cannot be shown: it is cut off"),
        (b"\x89PNG\r\n\x1a\n", TAKES, "cannot be shown: it is cut off"),
        (picture("WEBP", (2100, 10)), ("image/webp",), "too large to be shown as it is"),
        (b"%PDF-1.7\nhello\n", TAKES, r"binary \(application/pdf\), 15 bytes"),
        (b"PK\x03\x04abc", TAKES, "application/zip"),
        (b"\x1f\x8b\x08abc", TAKES, "application/gzip"),
        (b"\x7fELF\x02", TAKES, "application/x-elf"),
        (b"BZh91AY&SYabc", TAKES, "application/x-bzip2"),
        (b"RIFF\0\0\0\0WAVEfmt ", TAKES, "audio/wav"),
        (b"\0\0\0\x18ftypmp42", TAKES, "video/mp4"),
        (b"a\0b\n", TAKES, r"binary \(application/octet-stream\), 4 bytes"),
        ("\ufeffhi".encode("utf-16-le"), TAKES, "text in UTF-16, 6 bytes"),
    ],
)
async def test_what_cannot_be_shown_is_refused_with_its_type_and_size(
    data: bytes, takes: tuple[str, ...], says: str
) -> None:
    with pytest.raises(BadCall, match=says):
        await read({"f": data}, "f", takes)


@pytest.mark.parametrize(
    "text", [b"BM is short for benchmark\n", b"BZh is no word\n", b"PK\n", b"", b"II\n", b"%"]
)
async def test_text_that_begins_like_something_else_is_text(text: bytes) -> None:
    got = await read({"f": text}, "f")
    assert got.header.type.startswith("text/plain")
    assert text.decode().strip() in got.text()


def test_no_head_of_any_length_is_too_much_for_sniffing() -> None:
    for format in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"):
        data = picture(format)
        for length in range(sniffing.HEAD + 1):
            sniffing.image(data[:length])
            sniffing.other(data[:length])
        assert sniffing.image(data[: sniffing.HEAD]) == f"image/{format.lower()}"


async def test_an_image_that_is_over_what_is_brought_back_is_not_transferred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "MAX_IMAGE", 100)
    with pytest.raises(BadCall, match=r"over 100 bytes\. Make a smaller copy of it with `run`"):
        await read({"f": picture("PNG", (300, 300)) + bytes(100)}, "f")


async def test_a_picture_is_made_smaller_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    real = fitting.fitted

    def fitted(data: bytes) -> fitting.Fitted:
        threads.append(threading.current_thread())
        return real(data)

    monkeypatch.setattr(fitting, "fitted", fitted)
    await read({"f": picture()}, "f")
    assert threads
    assert threads[0] is not threading.main_thread()


# Odd files, at the worker.


class OnDisk:
    """A pool of one worker, which is this process."""

    async def read(
        self, worker: str, path: str, *, limit: int = 0, offset: int = 0, unit: str = "bytes", **_: Any
    ) -> Content:
        frame = frames.Read(id=1, path=path, limit=limit, offset=offset, unit=unit)  # type: ignore[arg-type]
        return await asyncio.to_thread(self._read, frame)

    @staticmethod
    def _read(frame: frames.Read) -> Content:
        try:
            with contextlib.closing(Reading(frame)) as reading:
                pieces, last = [], False
                while not last:
                    piece, last = reading.piece()
                    pieces.append(piece)
                return Content(b"".join(pieces), reading.size, reading.lines, reading.end)
        except Refusal as refusal:
            raise Refused(refusal.code, refusal.message) from refusal


@pytest.fixture
async def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-fifo").symlink_to("fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as sock:
        monkeypatch.chdir(tmp_path)
        sock.bind("sock")
        yield tmp_path


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("fifo", "a FIFO, not a regular file"),
        ("to-fifo", "a FIFO, not a regular file"),
        ("sock", "a socket, not a regular file"),
        ("loop", "leads back to itself"),
        ("folder", "is a folder"),
        ("none", "there is no"),
        ("/dev/zero", "a character device, not a regular file"),
        ("/dev/tty", "a character device, not a regular file"),
        ("/proc/self/mem", "/proc/self/mem"),
    ],
)
async def test_what_is_no_regular_file_is_refused_by_what_it_is_and_never_waited_for(
    odd: Path, path: str, says: str
) -> None:
    pool: Any = OnDisk()
    with pytest.raises(Refused, match=says):
        await reads.carry_out(pool, "c", Read("w", str(odd / path)), W, TAKES)


async def test_a_file_of_proc_that_says_it_is_empty_is_read_to_its_end(odd: Path) -> None:
    pool: Any = OnDisk()
    got = await reads.carry_out(pool, "c", Read("w", "/proc/self/status"), W, TAKES)
    assert "Name:" in got.text()


async def test_an_image_that_lies_about_its_size_is_refused_before_it_is_decoded(odd: Path) -> None:
    data = bytearray(picture("PNG", (10, 10)))
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    (odd / "bomb.png").write_bytes(data)
    pool: Any = OnDisk()
    with pytest.raises(BadCall, match="60000 by 60000 pixels, too large"):
        await reads.carry_out(pool, "c", Read("w", str(odd / "bomb.png")), W, TAKES)
