"""What a run has shown comes with its result, or the result says where it is."""

from typing import Any

from daemon.harness import pictures
from daemon.pool import Output
from daemon.protocol import frames
from daemon.protocol.records import Record
from tests.daemon.harness.doubles import FakePool
from tests.daemon.provider.contexts import picture

TAKES = ("text/plain", "image/png", "image/jpeg")


async def fetch(
    files: dict[str, bytes], *shown: frames.Image, takes: tuple[str, ...] = TAKES
) -> tuple[Output, list[Record]]:
    pool: Any = FakePool("w")
    pool.files = files
    return await pictures.fetch(pool, "c", "w", Output(b"text", 0, notes=("a note",), images=shown), takes)


def shown(path: str, data: bytes, type: str = "image/png") -> frames.Image:
    return frames.Image(path, type, len(data))


async def test_images_become_records_of_the_same_call_in_order() -> None:
    one, two = picture("PNG"), picture("JPEG")
    output, found = await fetch({"1": one, "2": two}, shown("1", one), shown("2", two, "image/jpeg"))
    assert output.notes == ("a note",)
    assert [(r.kind, r.header.for_, r.header.type, r.header.worker, r.body) for r in found] == [
        ("result", "c", "image/png", "w", one),
        ("result", "c", "image/jpeg", "w", two),
    ]


async def test_a_session_that_takes_no_images_is_told_where_they_are() -> None:
    data = picture("PNG")
    output, found = await fetch({"/runs/1.png": data}, shown("/runs/1.png", data), takes=("text/plain",))
    assert found == []
    (_, said) = output.notes
    assert said.startswith(f"shown, but not to you: image/png, {len(data)} bytes, in /runs/1.png (")
    assert "this session takes no images" in said


async def test_what_does_not_come_is_said_and_the_others_come() -> None:
    data = picture("PNG")
    files = {"text": b"no image", "there": data, "broken": data[:-12]}
    output, found = await fetch(
        files, shown("gone", data), shown("text", b""), shown("broken", data), shown("there", data)
    )
    assert [record.body for record in found] == [data]
    gone, text, broken = output.notes[1:]
    assert "in gone (there is no file gone)" in gone
    assert "in text (it is no image)" in text
    assert "it is cut off" in broken


async def test_only_so_many_and_so_large_images_come() -> None:
    data = picture("PNG")
    many = [shown("1", data)] * (pictures.MAX_SHOWN + 2)
    output, found = await fetch({"1": data}, *many)
    assert (len(found), len(output.notes)) == (pictures.MAX_SHOWN, 3)
    output, found = await fetch({"1": data}, frames.Image("1", "image/png", pictures.MAX_BYTES + 1))
    assert (found, "at most" in output.notes[1]) == ([], True)


async def test_an_image_over_the_providers_limits_is_made_smaller() -> None:
    data = picture("PNG", (5000, 1000))
    _, (record,) = await fetch({"1": data}, shown("1", data))
    assert len(record.body) != len(data)
