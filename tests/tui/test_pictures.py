"""A picture of a session is opened outside, by a program that stands in for the system's."""

import asyncio
import os
import stat
from pathlib import Path

import pytest
from textual.geometry import Offset

from tests.tui.daemonfake import FakeClient, info, stored
from tests.tui.driving import Driver, running
from tui import pictures
from tui.log.logview import LogView
from tui.pictures import Pictures

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(20))


def opener(folder: Path, then: str = "", name: str = "xdg-open") -> dict[str, str]:
    """An environment whose opener keeps what it was given, and then does `then`."""
    program = folder / name
    program.write_text(f'#!/bin/sh\ncp "$1" {folder}/given\necho "$#" "$1" >>{folder}/asked\n{then}\n')
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "DISPLAY": ":0"}


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().split() if (folder / "asked").exists() else []


async def test_its_bytes_go_to_the_opener_in_a_file_of_the_owners_alone(tmp_path: Path) -> None:
    shown = Pictures(opener(tmp_path), "linux")
    said = await shown.show("0123456789abcdef", 7, "image/png", PNG)
    count, name = asked(tmp_path)
    path = Path(name)
    assert said == f"xdg-open opens it; saved as {path}"
    assert (count, path.name, path.read_bytes(), (tmp_path / "given").read_bytes()) == (
        "1",
        "01234567-7.png",
        PNG,
        PNG,
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await shown.show("0123456789abcdef", 7, "image/png", PNG)
    assert list(path.parent.iterdir()) == [path]  # the same one again


@pytest.mark.parametrize(
    ("change", "platform", "why"),
    [
        ({"SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22"}, "linux", "this terminal is on another machine"),
        ({"SSH_TTY": "/dev/pts/1"}, "darwin", "this terminal is on another machine"),
        ({"DISPLAY": ""}, "linux", "there is no desktop to open it on"),
        ({"PATH": "/nowhere"}, "linux", "xdg-open is not installed"),
        ({"DISPLAY": ""}, "darwin", "open is not installed"),
    ],
)
async def test_where_nothing_can_open_it_it_says_where_it_was_saved(
    tmp_path: Path, change: dict[str, str], platform: str, why: str
) -> None:
    shown = Pictures(
        opener(tmp_path) | change | ({"PATH": "/nowhere"} if platform == "darwin" else {}), platform
    )
    said = await shown.show("a1", 7, "image/png", PNG)
    assert said.startswith(f"{why}; saved as ")
    assert Path(said.partition("saved as ")[2]).read_bytes() == PNG
    assert asked(tmp_path) == []


async def test_an_opener_that_fails_is_told(tmp_path: Path) -> None:
    shown = Pictures(opener(tmp_path, "exit 3"), "linux")
    assert (await shown.show("a1", 7, "image/png", PNG)).startswith(
        "xdg-open could not open it (exit 3); saved"
    )
    program = tmp_path / "xdg-open"
    program.write_bytes(b"#!/nowhere/at-all\n")
    said = await shown.show("a1", 7, "image/png", PNG)
    assert said.startswith("xdg-open does not start: No such file or directory; saved as")


async def test_an_opener_that_is_the_viewer_itself_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "FAILS", 0.0)
    shown = Pictures(opener(tmp_path, f"read line <{tmp_path}/end"), "linux")
    await asyncio.to_thread(os.mkfifo, tmp_path / "end")
    assert (await shown.show("a1", 7, "image/png", PNG)).startswith("xdg-open opens it")
    (viewer,) = shown._viewers
    await asyncio.to_thread((tmp_path / "end").write_text, "end\n")
    assert await asyncio.to_thread(viewer.wait) == 0


@pytest.mark.parametrize(
    ("media", "data"), [("image/png", b"<script>"), ("image/svg+xml", b"<svg/>"), ("a/b", PNG)]
)
async def test_what_is_no_picture_by_its_bytes_is_saved_and_not_opened(
    tmp_path: Path, media: str, data: bytes
) -> None:
    said = await Pictures(opener(tmp_path), "linux").show("a1", 7, media, data)
    assert said.startswith(f"{media} is not opened; saved as ")
    assert said.endswith("/a1-7.bin")
    assert asked(tmp_path) == []


async def opened(on: Driver) -> LogView:
    await on.until(lambda: "a1" in on.app.roster.infos)
    on.app.open_session("a1")
    await on.until(lambda: on.app.shown == "a1" and on.client.following("a1"))
    await on.sees("▣ image/png, 28 B · enter opens it outside")
    log: LogView = on.one(LogView)
    return log


@pytest.mark.parametrize("how", ["enter", "v", "click"])
async def test_a_key_or_a_click_opens_the_picture_of_a_record(tmp_path: Path, how: str) -> None:
    client = FakeClient()
    client.add(
        info("a1", n=3),
        stored(1, "start"),
        stored(2, "message", "look at this", via="x"),
        stored(3, "message", PNG, type="image/png", via="x"),
    )
    async with running(client, tmp_path) as on:
        on.app.pictures = Pictures(opener(tmp_path), "linux")
        log = await opened(on)
        if how == "click":
            at = next(y for y, text in enumerate(on.text().split("\n")) if "▣" in text)
            await on.pilot.click(log._rows, offset=Offset(10, at - log._rows.region.y))
        else:
            await on.press("escape", how)
        await on.until(lambda: any(text.startswith("xdg-open opens it; saved as ") for text in on.said()))
        assert (tmp_path / "given").read_bytes() == PNG


async def test_the_second_picture_of_a_call_says_of_which_it_is_and_leaves_what_came_of_the_call(
    tmp_path: Path,
) -> None:
    client = FakeClient()
    client.add(
        info("a1", n=5),
        stored(1, "start"),
        stored(2, "call", "{}", type="application/json", id="c1", step="s1"),
        stored(3, "result", "it drew two", for_="c1", exit=1),
        stored(4, "result", PNG, type="image/png", for_="c1"),
        stored(5, "result", PNG + b"2", type="image/png", for_="c1"),
    )
    async with running(client, tmp_path) as on:
        log = await opened(on)
        text = on.text()
        assert text.count("result of #2") == 3
        assert log.pane.ledger.state(2) == "nonzero"
