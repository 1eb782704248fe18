"""Whatever the theme and the terminal, what is written can be read."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from rich.color import Color as Terminal
from rich.color import ColorType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import Monochrome
from textual.theme import BUILTIN_THEMES

from daemon.protocol import api
from daemon.protocol.records import JSON, Usage
from tests.tui.daemonfake import info, stored
from tests.tui.driving import Driver, running
from tests.tui.snapshots import rendered
from tests.tui.test_looks import Fake, many, tokens
from tui import colours, themes
from tui.log.rows import Rows

COLOURED = [name for name, theme in BUILTIN_THEMES.items() if not theme.ansi]
SOME = ("textual-dark", "textual-light", "nord", "solarized-light")
FAINT = 3.0  # contrast of large text, by WCAG 2: what is beside the point has no less
BLACK = Color(0, 0, 0)


def faint(on: Driver) -> list[tuple[str, float]]:
    """What stands on the screen and can hardly be read."""
    found = []
    for strip in rendered(on.app):
        for text, style, _ in strip:
            if style is None or style.color is None or style.bgcolor is None:
                continue
            if any(char.isalnum() for char in text):
                ratio = colours.contrast(
                    *(Color.from_rich_color(colour) for colour in (style.color, style.bgcolor))
                )
                if ratio < FAINT:
                    found.append((text, ratio))
    return found


def selected(on: Driver) -> bool:
    """Whether something on the screen is marked as selected."""
    ground = on.app.screen.get_component_rich_style("screen--selection").bgcolor
    return any(
        style is not None and style.bgcolor == ground for strip in rendered(on.app) for _, style, _ in strip
    )


def drawn_on(on: Driver, ground: Color) -> bool:
    """Whether the screen's ground is that of the theme already."""
    return on.app.screen.styles.background == ground


@pytest.mark.parametrize("name", COLOURED)
def test_what_a_theme_writes_on_its_own_grounds_can_be_read(name: str) -> None:
    theme = BUILTIN_THEMES[name]
    made = colours.readable(
        theme.to_color_system().generate() | theme.variables, frozenset(themes.chosen(theme))
    )
    assert made["text-disabled"] == "auto 50%"
    ground = Color.parse(made["background"])
    for text, under in colours.PAIRS:
        written, on = colours.colour(made[text], None), colours.colour(made[under], ground)
        if not made[text].startswith("auto"):
            assert written is not None
            assert on is not None
            assert colours.contrast(written, on) >= 4.5, text


def test_a_colour_that_a_person_wrote_down_stays_as_it_is() -> None:
    theme = themes.made("pale", b"base = 'textual-light'\n[colours]\nfooter-key-foreground = '#c8c8c8'")
    variables = theme.to_color_system().generate() | theme.variables
    assert colours.readable(variables, themes.chosen(theme))["footer-key-foreground"] == "#c8c8c8"
    assert colours.readable(variables, frozenset())["footer-key-foreground"] != "#c8c8c8"


@pytest.mark.parametrize(
    "names", [SOME, pytest.param(COLOURED, marks=pytest.mark.campaign)], ids=["some", "all"]
)
async def test_every_theme_can_be_read_on_the_screens_that_it_is_changed_on(
    tmp_path: Path, names: Sequence[str]
) -> None:
    client = Fake()
    many(client)
    tokens(client)
    client.add(
        info("a1", "stepping", "What is this machine?", n=6, prompt=2085, usage=Usage(7600, 402)),
        stored(1, "start"),
        stored(2, "message", "Look", via="tui"),
        stored(3, "text", "# Head\n\n**two** `commands`\n\n> a quote [x](https://x.example)", step="s1"),
        stored(4, "text", "```diff\n-old\n+new\n```\n\n```python\nx = 'a' + 1  # z\n```", step="s1"),
        stored(5, "step", id="s1", model="m-1", usage=Usage(1200, 340), stop="end_turn"),
        stored(6, "error", b'{"code": "auth", "message": "wrong"}', type=JSON),
    )
    async with running(client, tmp_path, (120, 40)) as on:
        on.app.animation_level = "none"
        await on.sees("Port the parser")

        async def all_themes() -> None:
            for name in names:
                on.app.theme = name
                ground = Color.parse(on.app.theme_variables["background"])
                await on.until(partial(drawn_on, on, ground))
                await on.until(lambda: not faint(on))

        await all_themes()
        for key, shown in (("f4", "mesh up"), ("f9", "new sessions have"), ("ctrl+n", "local · connected")):
            await on.press(key)
            await on.sees(shown)
            await all_themes()
            await on.press("escape")
            await on.sees("Port the parser")
        on.app.open_session("a1")
        await on.sees("error: auth")
        on.one(Rows).text_select_all()
        await on.until(lambda: selected(on))
        await all_themes()


@pytest.mark.parametrize(
    ("colour", "number"),
    [
        ("#242f38", 236),
        ("#121212", 233),
        ("#0178d4", 32),
        ("#ffffff", 231),
        ("#000000", 16),
        ("#ff0000", 196),
        ("#337e4a", 65),
    ],
)
def test_of_256_colours_the_nearest_is_taken(colour: str, number: int) -> None:
    (segment,) = colours.Nearest().apply([Segment("x", Style.parse(f"bold {colour} on {colour}"))], BLACK)
    style = segment.style
    assert style is not None
    assert style.bold
    assert style.color is not None
    assert style.bgcolor is not None
    assert (style.color.type, style.color.number, style.bgcolor.number) == (
        ColorType.EIGHT_BIT,
        number,
        number,
    )


def test_without_colours_a_ground_of_its_own_is_told_by_reversing() -> None:
    row, usual, none = colours.Plain().apply(
        [Segment("a", Style.parse("bold black on white")), Segment("b", Style.parse("red")), Segment("c")],
        BLACK,
    )
    assert row.style is not None
    assert row.style.reverse
    assert row.style.bold
    assert usual.style is not None
    assert not usual.style.reverse
    for style in (row.style, usual.style):
        assert (style.color, style.bgcolor) == (Terminal.default(), Terminal.default())
    assert none.style is None


def test_filters_are_those_of_the_terminal() -> None:
    grey = Monochrome()
    assert colours.filters([grey], False, "truecolor") == [grey]
    assert [type(one) for one in colours.filters([grey], True, "256")] == [colours.Plain]
    assert [type(one) for one in colours.filters([grey], False, "256")] == [Monochrome, colours.Nearest]


@pytest.mark.parametrize(
    ("has", "theme"), [("standard", "ansi-dark"), ("256", "textual-dark"), ("truecolor", "textual-dark")]
)
async def test_a_terminal_of_16_colours_begins_with_its_own(tmp_path: Path, has: str, theme: str) -> None:
    client = Fake()
    client.worker_infos = (api.WorkerInfo("local", "connected"),)
    async with running(client, tmp_path, colours=has) as on:
        await on.sees("No session yet")
        assert on.app.theme == theme
        assert not on.app.prefs.theme
    async with running(client, tmp_path, colours=has, theme="nord") as on:
        assert on.app.theme == "nord"


def test_the_terminals_own_dark_blue_is_not_written_on_its_black() -> None:
    dark, light = (
        colours.readable(theme.to_color_system().generate() | theme.variables, frozenset())
        for theme in (BUILTIN_THEMES["ansi-dark"], BUILTIN_THEMES["ansi-light"])
    )
    assert (dark["text-primary"], light["text-primary"]) == ("ansi_bright_blue", "ansi_blue")


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark", "ansi-light"])
async def test_the_line_of_the_palette_that_the_cursor_is_on_can_be_read(tmp_path: Path, theme: str) -> None:
    async with running(Fake(), tmp_path, theme=theme) as on:
        await on.sees("No session yet")
        await on.press("ctrl+p")
        await on.sees("n · sessions.new")
        await on.press("down")

        def looks(word: str) -> list[tuple[Terminal | None, Terminal | None]]:
            return [
                (style.color, style.bgcolor)
                for strip in rendered(on.app)
                for text, style, _ in strip
                if style is not None and text.strip() == word
            ]

        def marked() -> list[tuple[Terminal | None, Terminal | None]]:
            return [
                look
                for word in ("New", "Workers")
                for look in looks(word)[:1]
                if look[1] != looks("Up")[0][1]
            ]

        await on.until(marked)
        ((written, ground),) = marked()
        assert written != ground
        if not theme.startswith("ansi"):
            assert not {text.strip() for text, _ in faint(on)} & {"Up", "Down"}
            assert colours.contrast(*(Color.from_rich_color(one) for one in (written, ground) if one)) > FAINT
