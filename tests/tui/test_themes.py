"""Themes of one's own: read strictly, shown beside the others."""

from pathlib import Path

import pytest
from textual.theme import BUILTIN_THEMES

from tests.tui.daemonfake import FakeClient, info
from tests.tui.driving import running
from tui import themes
from tui.themes import BadTheme

SEA = b"""
base = "nord"
[colours]
primary = "#0088ff"
footer-background = "rgb(0, 20, 40)"
"""


def test_a_theme_is_its_base_with_the_colours_that_its_file_names(tmp_path: Path) -> None:
    assert themes.read(tmp_path / "none") == ()
    (tmp_path / "sea.toml").write_bytes(SEA)
    (tmp_path / "plain.toml").write_bytes(b"dark = false")
    (tmp_path / "notes.txt").write_bytes(b"not a theme")
    plain, sea = themes.read(tmp_path)
    nord = BUILTIN_THEMES["nord"]
    assert (sea.name, sea.primary, sea.secondary, sea.dark) == ("sea", "#0088ff", nord.secondary, nord.dark)
    assert sea.to_color_system().generate()["footer-background"] == "rgb(0, 20, 40)"
    assert (plain.name, plain.primary, plain.dark) == ("plain", BUILTIN_THEMES["textual-dark"].primary, False)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("sea", b"bse = 'nord'", r"bse: there is no such field \(did you mean 'base'\?\)"),
        ("sea", b"base = 'mauve'", "base: there is no theme 'mauve'; there are .*nord"),
        ("sea", b"base = 3", "base: there is no theme 3"),
        ("sea", b"dark = 'yes'", "dark: write true or false"),
        ("sea", b"colours = 'blue'", "colours: write a table"),
        (
            "sea",
            b"[colours]\nprimry = 'blue'",
            r"colours\.primry: there is no such colour \(did you mean 'primary'",
        ),
        (
            "sea",
            b"[colours]\nprimary = 'bluish'",
            r"colours\.primary: 'bluish' is no colour; write '#ff8800'",
        ),
        ("sea", b"[colours]\nprimary = 7", r"colours\.primary: 7 is no colour"),
        ("sea", b"[colours]\nlink-style = 'bold'", r"colours\.link-style: there is no such colour"),
        ("sea", b"base =", "not valid TOML"),
        ("sea", b"\xff", "not valid TOML"),
        ("sea", b"#" * 70_000, "has 70,000 bytes"),
        ("nord", b"", "there is a theme 'nord' already"),
        ("My Sea", b"", "a theme has its file's name"),
    ],
)
def test_what_cannot_be_is_told_with_file_and_field(
    tmp_path: Path, name: str, text: bytes, said: str
) -> None:
    (tmp_path / f"{name}.toml").write_bytes(text)
    with pytest.raises(BadTheme, match=rf"/{name}\.toml: {said}"):
        themes.read(tmp_path)


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "sea.toml").mkdir()
    with pytest.raises(BadTheme, match=r"sea\.toml: Is a directory"):
        themes.read(tmp_path)


@pytest.mark.parametrize("base", list(BUILTIN_THEMES))
def test_every_theme_of_textual_can_be_a_base(base: str) -> None:
    made = themes.made("sea", f"base = '{base}'".encode())
    assert made.to_color_system().generate() == BUILTIN_THEMES[base].to_color_system().generate()


async def test_ones_own_theme_is_offered_picked_and_remembered(tmp_path: Path) -> None:
    client = FakeClient()
    client.add(info("a1", title="Mend the fence"))
    own = (themes.made("harbour", SEA),)
    async with running(client, tmp_path, themes=own) as on:
        await on.sees("Mend the fence")
        await on.press("ctrl+p")
        await on.write("theme harbour")
        await on.sees("theme harbour")
        await on.press("down", "enter")
        await on.until(lambda: on.app.theme == "harbour")
        await on.press("f9")
        await on.sees("Colours")
        await on.sees("harbour")
    async with running(client, tmp_path, themes=own) as on:
        assert on.app.theme == "harbour"
    async with running(client, tmp_path) as on:  # its file is gone
        assert on.app.theme == "textual-dark"
