"""Replace text in the bytes of a file, keeping its line endings and every byte not asked for."""

from typing import Final

NAMED: Final = 20  # line numbers listed where a text occurs several times


class EditError(Exception):
    """The edit cannot be made as asked; the message says what would be right."""


def apply(data: bytes, old: str, new: str, every: bool = False) -> tuple[bytes, list[int]]:
    """(the new content, the line numbers where `old` stood). Raises EditError, with nothing changed.

    Line ends given as `\\n` match a file's `\\r\\n`, and what is put in takes the ending used there.
    """
    if not old:
        raise EditError("`old` is empty: give the text to replace, or use `write` for a whole file")
    if old == new:
        raise EditError("`old` and `new` are the same: nothing would change")
    text = data.decode("utf-8", "surrogateescape")
    places, found = _find(text, old), old
    if not places and "\n" in old:
        found = old.replace("\r\n", "\n").replace("\n", "\r\n")
        places = _find(text, found)
    lines = [text.count("\n", 0, place) + 1 for place in places]
    if not places:
        raise EditError(f"`old` occurs 0 times{_hint(text, old)}")
    if len(places) > 1 and not every:
        shown = ", ".join(map(str, lines[:NAMED])) + (", …" if len(lines) > NAMED else "")
        raise EditError(
            f"`old` occurs {len(places)} times, at lines {shown}: give more of the text around the one "
            "you mean, or set `all` to replace each"
        )
    out, at = [], 0
    for place in places:
        out.append(text[at:place])
        out.append(_with_ending(new, _ending_at(text, place, found)))
        at = place + len(found)
    out.append(text[at:])
    return "".join(out).encode("utf-8", "surrogateescape"), lines


def _find(text: str, wanted: str) -> list[int]:
    places, at = [], text.find(wanted)
    while at >= 0:
        places.append(at)
        at = text.find(wanted, at + len(wanted))
    return places


def _ending_at(text: str, place: int, found: str) -> str:
    """The line ending in use where `found` stands: its own, that of its line, or of the line before."""
    if "\n" in found:
        return "\r\n" if "\r\n" in found else "\n"
    end = text.find("\n", place + len(found))
    if end < 0:
        end = text.rfind("\n", 0, place)
    return "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"


def _with_ending(text: str, ending: str) -> str:
    return text if ending == "\n" else text.replace("\r\n", "\n").replace("\n", ending)


def _hint(text: str, old: str) -> str:
    first = next((line.strip() for line in old.split("\n") if line.strip()), "")
    if not first:
        return ""
    for number, line in enumerate(text.split("\n"), 1):
        if first in line:
            return f"; its first line stands at line {number}, so what follows or its indentation differs"
    if first.casefold() in text.casefold():
        return "; it occurs with other capitals"
    return "; read the file again, it may have changed"
