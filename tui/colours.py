"""Colours that can be read: of a theme on its own grounds, and in terminals that have few of them or none."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from rich.color import Color as Terminal
from rich.color import ColorType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color, ColorParseError
from textual.filter import LineFilter, Monochrome, NoColor

READABLE: Final = 4.5  # contrast of small text, by WCAG 2
STEPS: Final = 20  # in which a colour goes to black or white
DISABLED: Final = (
    "auto 38%",
    "auto 50%",
)  # Textual's own, too pale for placeholders on light grounds, and ours
# What is written on what, by the names of a theme's variables. The first ground lies on the screen's.
PAIRS: Final = (
    ("footer-foreground", "footer-background"),
    ("footer-key-foreground", "footer-background"),
    ("footer-description-foreground", "footer-background"),
    ("block-cursor-foreground", "block-cursor-background"),
    ("block-cursor-blurred-foreground", "block-cursor-blurred-background"),
    ("input-selection-foreground", "input-selection-background"),
    ("screen-selection-foreground", "screen-selection-background"),
    *((f"text-{role}", "background") for role in ("primary", "secondary", "accent")),
    *((f"text-{role}", "background") for role in ("success", "warning", "error")),
)
BLUE: Final = ("primary", "text-primary", "border")  # many terminals' blue can hardly be read on their black
LEVELS: Final = (0, 95, 135, 175, 215, 255)  # of red, green and blue in the 256 colours
GREY: Final = 40  # between the parts of a colour, above which a grey would not be told from another role's
PLAIN: Final = Style(color=Terminal.default(), bgcolor=Terminal.default())


def readable(variables: Mapping[str, str], keep: frozenset[str]) -> dict[str, str]:
    """A theme's variables, where what is written differs enough from what it is written on; `keep` stay as they are."""
    made = dict(variables)
    if made.get("text-disabled") == DISABLED[0] and "text-disabled" not in keep:
        made["text-disabled"] = DISABLED[1]
    if made.get("screen-selection-foreground") == "transparent":  # drawn so, text is of its ground's colour
        made["screen-selection-foreground"] = made["foreground"]
    if made.get("ansi-background") == "ansi_black":
        made |= {
            name: "ansi_bright_blue" for name in BLUE if made.get(name) == "ansi_blue" and name not in keep
        }
    ground = colour(made.get("background", ""), None)
    for name, under in PAIRS:
        text, on = colour(made.get(name, ""), None), colour(made.get(under, ""), ground)
        if text is not None and on is not None and name not in keep:
            made[name] = lifted(text, on).hex
    return made


def colour(text: str, ground: Color | None) -> Color | None:
    """A variable's colour, `#81a1c1 35%` on `ground`; None for the terminal's own and `auto`."""
    name, _, part = text.partition(" ")
    try:
        found = Color.parse(name)
        found = found.multiply_alpha(float(part.rstrip("%")) / 100) if part else found
    except (ColorParseError, ValueError):
        return None
    if found.ansi is not None or found.auto:
        return None
    if found.a < 1:
        return None if ground is None else ground + found
    return found


def lifted(text: Color, on: Color) -> Color:
    """`text`, as much nearer to black or white as it takes to be read on `on`."""
    ends = (Color(0, 0, 0), Color(255, 255, 255))
    end = max(ends, key=lambda one: contrast(one, on))
    for step in range(STEPS):
        found = text.blend(end, step / STEPS)
        if contrast(found, on) >= READABLE:
            return found
    return end


def contrast(one: Color, other: Color) -> float:
    """Of two colours, 1 to 21, by WCAG 2."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(one: Color) -> float:
    parts = (part / 255 for part in one.rgb)
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# ---- terminals


def filters(found: Sequence[LineFilter], ansi: bool, system: str) -> list[LineFilter]:
    """Textual's filters of what is drawn, with ours. `ansi`: the theme has the terminal's own colours.

    `system`: which colours the terminal has, as Rich calls it. Textual decides about NO_COLOR before there is a theme.
    """
    made = [_NONE if ansi and isinstance(one, Monochrome | NoColor) else one for one in found]
    return [*made, _NEAREST] if system == "256" and not ansi else made


class Nearest(LineFilter):
    """For 256 colours: the nearest of them. Rich, which would choose else, makes navy of a dark grey."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text, style and _nearest(style), control) for text, style, control in segments]


class Plain(LineFilter):
    """For no colours: what has a ground of its own is told by being reversed."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text, style and _plain(style), control) for text, style, control in segments]


_NEAREST: Final = Nearest()
_NONE: Final = Plain()


@lru_cache(4096)
def _nearest(style: Style) -> Style:
    return style + Style(color=_of_256(style.color), bgcolor=_of_256(style.bgcolor))


@lru_cache(4096)
def _of_256(colour: Terminal | None) -> Terminal | None:
    if colour is None or colour.type is not ColorType.TRUECOLOR or colour.triplet is None:
        return colour
    parts = tuple(colour.triplet)
    cube = [min(range(6), key=lambda at: abs(LEVELS[at] - part)) for part in parts]
    grey = min(max(round((sum(parts) / 3 - 8) / 10), 0), 23)
    shade = 8 + 10 * grey
    off_cube = sum((LEVELS[at] - part) ** 2 for at, part in zip(cube, parts, strict=True))
    off_grey = sum((shade - part) ** 2 for part in parts)
    is_grey = max(parts) - min(parts) <= GREY and off_grey < off_cube
    number = 232 + grey if is_grey else 16 + 36 * cube[0] + 6 * cube[1] + cube[2]
    return Terminal.from_ansi(number)


@lru_cache(4096)
def _plain(style: Style) -> Style:
    ground = style.bgcolor is not None and not style.bgcolor.is_default
    return style + PLAIN + Style(reverse=True) if ground else style + PLAIN
