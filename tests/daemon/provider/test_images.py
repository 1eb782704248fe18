import io

import pytest
from PIL import Image as Pillow

from daemon.provider import images
from daemon.provider.images import BadImage, Image

FORMATS = ["PNG", "JPEG", "GIF", "WEBP"]


def picture(format: str, size: tuple[int, int] = (30, 10), **options: object) -> bytes:
    file = io.BytesIO()
    Pillow.new("RGB", size, "red").save(file, format, **options)
    return file.getvalue()


@pytest.mark.parametrize("format", FORMATS)
def test_type_and_size_are_read_from_the_bytes(format: str) -> None:
    assert images.inspect(picture(format)) == Image(f"image/{format.lower()}", 30, 10)


def test_each_kind_of_webp_and_a_progressive_jpeg_read() -> None:
    assert images.inspect(picture("WEBP", lossless=True)) == Image("image/webp", 30, 10)
    assert images.inspect(picture("WEBP", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0")) == Image("image/webp", 30, 10)
    assert images.inspect(picture("JPEG", progressive=True)) == Image("image/jpeg", 30, 10)


@pytest.mark.parametrize("format", FORMATS)
def test_an_image_cut_anywhere_is_not_one(format: str) -> None:
    data = picture(format, (64, 64))
    for size in (0, 4, 12, 20, len(data) // 2, len(data) - 3):
        with pytest.raises(BadImage):
            images.inspect(data[:size])


@pytest.mark.parametrize("data", [b"", b"plain text", picture("BMP"), picture("TIFF")])
def test_what_models_do_not_take_is_not_an_image(data: bytes) -> None:
    with pytest.raises(BadImage, match="not a PNG"):
        images.inspect(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8\xff\xda\0\x08" + bytes(40) + b"\xff\xd9",
        b"\xff\xd8\xff\xe0\0\x04\0\0\0\0" + bytes(10) + b"\xff\xd9",
        b"GIF89a\0\0\0\0;",
        b"RIFF\x08\0\0\0WEBPXXXX",
    ],
)
def test_an_image_without_a_picture_is_not_one(data: bytes) -> None:
    with pytest.raises(BadImage):
        images.inspect(data)


def test_a_jpeg_may_pad_its_segments() -> None:
    data = picture("JPEG")
    padded = data[:2] + b"\xff\xff" + b"\xff\x01" + data[2:]
    assert images.inspect(padded) == Image("image/jpeg", 30, 10)
