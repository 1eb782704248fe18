"""Keys and what they do: every binding has an id by which `[tui.keys]` changes or removes it, checked strictly."""

import difflib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, Keys

MODIFIERS: Final = ("ctrl", "shift", "alt", "super", "hyper", "meta")
REMOVED: Final = "<removed>"  # a key that nothing sends: what a binding without one is bound to
NAMED: Final = {key.value for key in Keys} | set(KEY_NAME_REPLACEMENTS.values())
SHOWN: Final[Mapping[str, str]] = {  # how keys are written for people
    "question_mark": "?",
    "exclamation_mark": "!",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "slash": "/",
    "backslash": "\\",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "escape": "esc",
    "circumflex_accent": "^",
}

Keymap = Mapping[str, str | tuple[str, ...]]


class BadKeys(Exception):
    """`[tui.keys]` cannot be used; the message names the id, and what there is."""


class Place(Struct, frozen=True):
    """Where keys hold, by the name that help has for it, and the bindings there."""

    name: str
    bindings: tuple[Binding, ...]


class Shown(Struct, frozen=True):
    """A binding as help shows it: its keys for people, empty where it was removed."""

    id: str
    keys: str
    action: str
    description: str


def key(
    id: str, keys: str, action: str, description: str, *, show: bool = False, first: bool = False
) -> Binding:
    """A binding with an id. `show`: in the line at the bottom. `first`: it goes before what the focused widget does."""
    first_key = display(keys.split(",")[0])
    return Binding(keys, action, description, show=show, key_display=first_key, priority=first, id=id)


def of(bindings: Iterable[object]) -> tuple[Binding, ...]:
    """Those of a class's BINDINGS that have an id."""
    return tuple(binding for binding in bindings if isinstance(binding, Binding) and binding.id)


def checked(given: Keymap, places: Sequence[Place]) -> dict[str, str]:
    """What Textual takes as a keymap: id to keys. Raises BadKeys for an id or a key that there is not, or a clash."""
    known = {binding.id: binding for place in places for binding in place.bindings if binding.id}
    made: dict[str, str] = {}
    for id, keys in given.items():
        if id not in known:
            near = difflib.get_close_matches(id, known, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            group = id.partition(".")[0] + "."
            there = sorted(name for name in known if name.startswith(group)) or sorted(known)
            raise BadKeys(f"tui.keys: there is no {id!r}{hint}; there are {', '.join(there)}")
        wanted = [text.strip() for text in ([keys] if isinstance(keys, str) else keys)]
        wanted = [text for text in wanted if text]
        for text in wanted:
            _check(id, text)
        made[id] = ",".join(map(_normal, wanted)) or REMOVED
    for place in places:
        _clashes(place, made)
    return made


def shown(place: Place, keymap: Mapping[str, str]) -> list[Shown]:
    """The bindings of a place with the keys that they have now, one entry for each id."""
    found: dict[str, Shown] = {}
    for binding in place.bindings:
        assert binding.id
        keys = keymap.get(binding.id, binding.key)
        words = "" if keys == REMOVED else " ".join(map(display, keys.split(",")))
        found[binding.id] = Shown(binding.id, words, binding.action, binding.description)
    return list(found.values())


def display(key: str) -> str:
    """A key as people write it."""
    *modifiers, last = key.strip().split("+") if len(key.strip()) > 1 else [key.strip()]
    return "+".join([*modifiers, SHOWN.get(last, last)])


def _normal(text: str) -> str:
    """A key by Textual's name for it."""
    *modifiers, last = text.split("+") if len(text) > 1 else [text]
    if len(last) == 1 and not last.isalnum():
        last = unicodedata.name(last).lower().replace("-", "_").replace(" ", "_")
        last = KEY_NAME_REPLACEMENTS.get(last, last)
    return "+".join([*modifiers, last])


def _check(id: str, text: str) -> None:
    *modifiers, last = text.split("+") if len(text) > 1 else [text]
    good = all(word in MODIFIERS for word in modifiers) and (
        len(last) == 1 or last in NAMED or _is_name(last)
    )
    if not good or not text.isprintable():
        raise BadKeys(
            f"tui.keys.{id}: {text!r} is not a key; write one as in 'x', 'f5', 'ctrl+t' or 'shift+tab', "
            "or '' for none"
        )


def _is_name(word: str) -> bool:
    try:
        unicodedata.lookup(word.replace("_", " "))
    except KeyError:
        return False
    return True


def _clashes(place: Place, keymap: Mapping[str, str]) -> None:
    """Raises BadKeys where a key that was given does two things in one place."""
    owners: dict[str, str] = {}
    for binding in place.bindings:
        assert binding.id
        for one in {_normal(text.strip()) for text in keymap.get(binding.id, binding.key).split(",")} - {
            REMOVED
        }:
            other = owners.setdefault(one, binding.id)
            if other != binding.id and keymap.keys() & {other, binding.id}:
                raise BadKeys(
                    f"tui.keys: {display(one)!r} would be both {other} and {binding.id} in {place.name}: "
                    "give one of them another key"
                )
