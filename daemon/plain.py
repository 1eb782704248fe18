"""Make any text safe to draw on a terminal, and numbers and complaints easy to read there."""

import re
from typing import Final

MAX_LINES: Final = 400  # of a body that a screen shows; a pager has all
MAX_CHARS: Final = 64 << 10
TITLE: Final = 200  # characters of a title line
UNITS: Final = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))

# C0 and C1 controls, DEL, line and paragraph separators, direction overrides, spaces and operators of no width,
# interlinear marks, tag characters, lone surrogates: all that moves the cursor, hides text or is hidden, cannot be
# encoded. Tab and newline stay, and joiners and marks that scripts are written with.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u180e\u200b\u2028\u2029\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)
_LINE: Final = {ord("\t"): None, ord("\n"): None}
# What msgspec says of a value of another type, and what its types are called by people.
_WANTED = re.compile(r"Expected `([a-z |]+)`(.*?)(?:, got `([a-z]+)`)?", re.DOTALL)
_BOUND = re.compile(r" (of length )?([<>]=?) (\S+)")
_BOUNDS: Final = {">=": "at least", "<=": "at most", ">": "over", "<": "under"}
_TYPES: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor movements
    r"|[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)"  # strings for the terminal: titles, links, clipboard
    r"|[ -/]+[0-~]|[0-OQ-WYZ\\`-~=>])"  # the short ones
)


def safe(text: str) -> str:
    """`text` with every character that a terminal would act on made visible; nothing is left out."""
    return _UNSAFE.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def bare(text: str) -> str:
    """`text` without what `safe` would show, tabs and line ends too: for what is laid out already, in as many cells."""
    return _UNSAFE.sub(lambda match: "\ufffd" if "\ud800" <= match[0] <= "\udfff" else "", text).translate(
        _LINE
    )


def safe_json(text: str) -> str:
    """JSON with what a terminal would act on escaped, as JSON has it; the value stays the same."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    if match[0] < " ":
        return match[0]  # between values alone: JSON has none within
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def printed(text: str) -> str:
    """A program's output as a terminal leaves it: no escape sequences, no overwritten text; and safe."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if "\x08" in text:
        text = _struck(text)
    if "\r" in text:
        text = "\n".join(_overwritten(line) for line in text.split("\n"))
    return safe(text)


def _struck(text: str) -> str:
    kept: list[str] = []
    for char in text:
        if char != "\x08":
            kept.append(char)
        elif kept and kept[-1] != "\n":
            kept.pop()
    return "".join(kept)


def _overwritten(line: str) -> str:
    return next((piece for piece in reversed(line.split("\r")) if piece), "")


def line(text: str, limit: int = TITLE) -> str:
    """`text` as one safe line of at most `limit` characters."""
    text = safe(" ".join(text[: 4 * limit].split()))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def clip(text: str, lines: int = MAX_LINES, chars: int = MAX_CHARS) -> tuple[str, str, str]:
    """(start, note, end) of a text over `lines` or `chars`; (text, "", "") of one within.

    The end gets most of the room, since what a program says last matters most. The note says what is cut.
    """
    rows = text.split("\n")
    if len(rows) <= lines and len(text) <= chars:
        return text, "", ""
    first, last = (
        _rows(rows, lines // 4, chars // 4),
        _rows(rows[::-1], lines - lines // 4, chars - chars // 4),
    )
    left = len(rows) - first - last
    if left > 0 and last:
        start, end = "\n".join(rows[:first]), "\n".join(rows[len(rows) - last :])
        return start, f"{count(left, 'line')} not shown", end
    room = chars // 4
    start, end = text[:room], text[len(text) - (chars - room) :]
    return start, f"{count(len(text) - chars, 'character')} not shown", end


def _rows(rows: list[str], lines: int, chars: int) -> int:
    """How many of the first `rows` fit."""
    for fit, row in enumerate(rows[:lines]):
        chars -= len(row) + 1
        if chars < 0:
            return fit
    return min(lines, len(rows))


def size(bytes: int) -> str:
    """A number of bytes for people."""
    if bytes < 1000:
        return f"{bytes} B"
    unit, word = next((unit, word) for unit, word in UNITS if bytes >= unit)
    return f"{bytes / unit:.1f} {word}"


def tokens(number: int) -> str:
    """A number of tokens for people."""
    if number < 10_000:
        return str(number)
    return f"{number / 1000:.0f}k" if number < 1_000_000 else f"{number / 1_000_000:.1f}M"


def dollars(amount: float | None) -> str:
    """An estimate of a cost, `~$0.42`; empty where it is not known, or nothing."""
    if not amount:
        return ""
    return f"~${amount:,.2f}" if amount >= 0.1 else f"~${amount:.4f}" if amount >= 0.0001 else "<$0.0001"


def seconds(time: float) -> str:
    """A duration for people."""
    if time < 60:
        return f"{time:.1f} s"
    minutes, rest = divmod(round(time), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def wanted(complaint: str, table: str = "a table") -> str:
    """What msgspec says of a value of another type, in words; anything else as it stands. `table`: what an object is
    called where the value comes from.
    """
    found = _WANTED.fullmatch(complaint)
    if found is None:
        return complaint
    words = _TYPES | {"object": table}
    types = " or ".join(words.get(type, type) for type in found[1].split(" | "))
    words["float"] = "a fraction"
    got = f", not {words.get(found[3], found[3])}" if found[3] else ""
    return f"expected {types}{_bound(found[1], found[2])}{got}"


def _bound(type: str, said: str) -> str:
    """A bound of msgspec's in words, ` of at least 1`; anything else as it stands."""
    found = _BOUND.fullmatch(said)
    if found is None:
        return said
    unit = (" characters" if "str" in type else " items") if found[1] else ""
    return f" of {_BOUNDS[found[2]]} {found[3].removesuffix('.0')}{unit}"


def count(number: int, word: str) -> str:
    """`3 lines`, `1 line`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
