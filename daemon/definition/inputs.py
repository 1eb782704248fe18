"""What an agent's definition asks for at each use: declared inputs, checked all at once and put into its text."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, assert_never

from msgspec import Meta, Struct

NAME: Final = r"[A-Za-z_][A-Za-z0-9_-]{0,62}"
REFERENCE: Final = re.compile(r"\$\{inputs\.([^}\n]*)\}")
QUOTED: Final = "; YAML takes yes, no, on and off for true and false: put it in quotes"
MAX_VALUE: Final = 1 << 20  # bytes of one value: what a create's body takes at most
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)

Value = str | float | bool
Type = Literal["string", "number", "boolean", "enum"]


class Input(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One declared input. `values`: those that an enum takes. One with a default is not required."""

    type: Type = "string"
    required: bool | None = None
    default: Any = None
    description: str = ""
    values: tuple[Annotated[str, Meta(min_length=1)], ...] = ()

    @property
    def needed(self) -> bool:
        """Whether a create has to give it."""
        return self.default is None if self.required is None else self.required and self.default is None


class BadInputs(Exception):
    """Inputs that are missing, unknown or of a wrong type; the message names all of them."""


def names(text: str) -> list[str]:
    """Every name that `text` refers to, in order, once; also what is no name, as it is written."""
    return list(dict.fromkeys(REFERENCE.findall(text)))


def check(name: str, declared: Input) -> str:
    """What is wrong with a declaration, empty when it can be used."""
    where = f"inputs.{name}"
    if not re.fullmatch(NAME, name):
        return f"{where}: a name has letters, digits, _ and -, and begins with a letter or _; at most 63 characters"
    if (declared.type == "enum") != bool(declared.values):
        return (
            f"{where}.values: an enum needs the values that it takes, as in [small, large]"
            if declared.type == "enum"
            else f"{where}.values: only an enum has them; write type: enum, or leave them out"
        )
    if declared.required and declared.default is not None:
        return f"{where}.required: one with a default is never missing; leave one of the two out"
    if declared.default is not None and (why := _wrong(declared, declared.default)):
        return f"{where}.default: {why}{QUOTED if isinstance(declared.default, bool) else ''}"
    return ""


def filled(declared: Mapping[str, Input], given: Mapping[str, Any]) -> dict[str, str]:
    """The text of every declared input: what was given, else its default, else nothing. Raises BadInputs."""
    bad = [
        f"inputs.{name}: it is missing" for name, one in declared.items() if one.needed and name not in given
    ]
    for name, value in given.items():
        if name not in declared:
            there = f"there are {', '.join(declared)}" if declared else "this agent takes none"
            bad.append(f"inputs.{name[:80]}: there is no such input; {there}")
        elif why := _wrong(declared[name], value):
            bad.append(f"inputs.{name}: {why}")
    if bad:
        raise BadInputs("; ".join(bad))
    return {name: _text(given.get(name, one.default)) for name, one in declared.items()}


def put(text: str, values: Mapping[str, str]) -> str:
    """`text` with each reference replaced by its value. One pass: a value that looks like a reference stays."""
    return REFERENCE.sub(lambda found: values[found[1]], text)


def undeclared(used: Iterable[str]) -> dict[str, Input]:
    """The declarations of a definition that has none: each name in its text is a string that has to be given."""
    return {name: Input() for name in used}


def _wrong(declared: Input, value: Any) -> str:
    """Why `value` does not fit. Numbers and booleans are also taken as text, for clients that send text alone."""
    match declared.type:
        case "string":
            fits = isinstance(value, str)
            what = "text"
        case "number":
            fits = not isinstance(value, bool) and (
                isinstance(value, int)
                or (isinstance(value, float) and math.isfinite(value))
                or (isinstance(value, str) and _NUMBER.fullmatch(value) is not None)
            )
            what = "a number"
        case "boolean":
            fits = isinstance(value, bool) or value in ("true", "false")
            what = "true or false"
        case "enum":
            fits = isinstance(value, str) and value in declared.values
            what = f"one of {', '.join(declared.values)}"
        case _:
            assert_never(declared.type)
    if not fits:
        return f"it is {what}, not {_shown(value)}"
    if isinstance(value, str) and len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE:
        return f"at most {MAX_VALUE} bytes"
    return ""


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:60] + "…")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)[:60] if isinstance(value, int | float) else f"a {type(value).__name__}"
