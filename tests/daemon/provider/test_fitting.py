import io
import random

import pytest
from PIL import Image as Pillow

from daemon.provider import fitting
from daemon.provider.fitting import MAX_SIDE, fits, fitted, note
from daemon.provider.images import BadImage, Image, inspect


def encoded(picture: Pillow.Image, format: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


def noise(size: tuple[int, int]) -> Pillow.Image:
    return Pillow.frombytes("RGB", size, random.Random(0).randbytes(size[0] * size[1] * 3))


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP"])
def test_an_image_that_fits_goes_as_it_is(format: str) -> None:
    data = encoded(Pillow.new("RGB", (30, 10), "red"), format)
    assert fitted(data).data is data


@pytest.mark.parametrize(
    ("format", "mode"),
    [
        *(("PNG", mode) for mode in ("RGB", "L", "LA", "RGBA", "P", "1", "I;16")),
        *(("JPEG", mode) for mode in ("RGB", "L", "CMYK")),
        *(("GIF", mode) for mode in ("RGB", "L", "P")),
        *(("WEBP", mode) for mode in ("RGB", "RGBA")),
    ],
)
def test_one_with_too_many_pixels_becomes_smaller(format: str, mode: str) -> None:
    found = fitted(encoded(Pillow.new("RGB", (MAX_SIDE + 400, 12), "red").convert(mode), format))
    assert found.image == inspect(found.data)
    assert (found.image.width, found.image.height) == (MAX_SIDE, 10)


def test_one_with_too_many_bytes_becomes_smaller() -> None:
    data = encoded(noise((1500, 1500)), "PNG")
    assert not fits(data, inspect(data))
    found = fitted(data)
    assert fits(found.data, found.image)
    assert found.image.type == "image/jpeg"


def test_what_a_camera_says_of_its_side_up_is_heeded() -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6  # on its side
    data = encoded(Pillow.new("RGB", (MAX_SIDE * 2, 40), "red"), "JPEG", exif=exif)
    assert fitted(data).image == Image("image/jpeg", 20, MAX_SIDE)


def test_clear_parts_stay_clear_or_become_white() -> None:
    clear = Pillow.new("RGBA", (MAX_SIDE * 2, 10), (0, 0, 0, 0))
    with Pillow.open(io.BytesIO(fitted(encoded(clear, "PNG")).data)) as small:
        assert small.getpixel((3, 3)) == (0, 0, 0, 0)
    found = fitting._saved(clear, "JPEG")
    with Pillow.open(io.BytesIO(found.data)) as flat:
        assert flat.getpixel((3, 3)) == (255, 255, 255)


def test_one_that_is_made_smaller_once_is_remembered() -> None:
    data = encoded(Pillow.new("RGB", (MAX_SIDE + 1, 3), "red"), "PNG")
    assert fitted(data).data is fitted(data).data


def test_one_that_would_fill_the_memory_is_refused_before_it_is_decoded() -> None:
    data = bytearray(encoded(Pillow.new("RGB", (4, 4), "red"), "PNG"))
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    with pytest.raises(BadImage, match="60000 by 60000"):
        fitted(bytes(data))


def test_one_that_is_damaged_inside_is_refused_where_it_has_to_be_decoded() -> None:
    data = bytearray(encoded(noise((MAX_SIDE + 8, 40)), "PNG"))
    data[90:2000] = bytes(1910)
    with pytest.raises(BadImage, match="does not decode"):
        fitted(bytes(data))


def test_a_note_says_what_is_not_shown_and_why() -> None:
    assert note("image/png", b"abc", BadImage("it is cut off")) == (
        "[an image (image/png, 3 bytes) that cannot be shown: it is cut off]"
    )
