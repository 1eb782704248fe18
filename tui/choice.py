"""What a new session is to be: texts that a person wrote, checked field by field into the API's Create. Pure."""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from daemon.plain import line, tokens, wanted
from daemon.protocol import api
from daemon.protocol.records import Limits, WorkerRef

FIELDS: Final = ("model", "workers", "context", "limits", "tools", "params", "instructions", "message")
TOOLS: Final = ("default", "patch")  # sets that the daemon knows; a list of names does too
UNITS: Final = {"k": 1000, "m": 1_000_000}
TIMES: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
MOST: Final = 16  # digits of a number: more are a mistake
_TIME: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|min|h|d)?")
_MONEY: Final = re.compile(r"\$?\s*([0-9]+(?:\.[0-9]+)?)")


class Choice(Struct, frozen=True, omit_defaults=True):
    """A form as it is written. `workers`: those ticked, with the folder of each. Kept as the last choice."""

    model: str = ""
    workers: tuple[WorkerRef, ...] = ()
    context: str = ""
    tools: str = ""
    params: str = ""
    steps: str = ""
    tokens: str = ""
    seconds: str = ""
    cost: str = ""
    instructions: str = ""


class Wrong(Exception):
    """Fields that cannot be, each with what would be right."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {why}" for name, why in fields.items()))
        self.fields = fields


def create(choice: Choice) -> api.Create:
    """What the API is asked for. Raises Wrong, with every field that is."""
    wrong: dict[str, str] = {}
    made: dict[str, Any] = {"model": choice.model.strip()}
    for name, read in (("context", context), ("tools", tools), ("params", params)):
        try:
            made[name] = read(getattr(choice, name))
        except ValueError as error:
            wrong[name] = str(error)
    bounds: dict[str, Any] = {}
    errors = []
    for name, bound in LIMITS.items():
        try:
            bounds[name] = bound(getattr(choice, name))
        except ValueError as error:
            errors.append(f"{name}: {error}")
    if errors:
        wrong["limits"] = "\n".join(errors)
    for ref in choice.workers:
        if ref.cwd and not ref.cwd.startswith(("/", "~")):
            wrong["workers"] = f"{ref.name}: a folder begins with / or ~, not {line(ref.cwd, 60)!r}"
    if wrong:
        raise Wrong(wrong)
    return api.Create(
        workers=choice.workers, limits=Limits(**bounds), instructions=choice.instructions.strip(), **made
    )


def context(text: str) -> int:
    """Tokens of `100000`, `100k` or `1.5M`; 0 for nothing: the model's own limit, or none. Raises ValueError."""
    plain = text.strip().lower().replace(",", "").replace("_", "")
    unit = UNITS.get(plain[-1:], 1)
    number = plain[:-1] if unit > 1 else plain
    if not plain:
        return 0
    try:
        found = float(number) * unit
        whole = int(found)
    except (ValueError, OverflowError):
        raise ValueError(f"{line(text, 40)!r} is not a number of tokens: write 200000 or 200k") from None
    if whole != found or whole < 0 or not number[-1:].isdigit():
        raise ValueError(f"{line(text, 40)!r} is not a number of tokens: write 200000 or 200k")
    return whole


def steps(text: str) -> int:
    """A whole number, 0 for nothing: no limit. Raises ValueError."""
    plain = text.strip()
    if not plain:
        return 0
    if not (plain.isascii() and plain.isdecimal() and len(plain) < MOST):
        raise ValueError(f"{line(text, 40)!r} is not a number of steps: write 50")
    return int(plain)


def seconds(text: str) -> float:
    """Seconds of `90`, `90s`, `30m` or `2h`, 0 for nothing: no limit. Raises ValueError."""
    if not text.strip():
        return 0
    found = _TIME.fullmatch(text.strip().lower())
    if found is None or len(found[1]) >= MOST:
        raise ValueError(f"{line(text, 40)!r} is not a time: write 90, 30m or 2h")
    return float(found[1]) * TIMES[found[2] or "s"]


def cost(text: str) -> float:
    """US dollars of `2`, `0.50` or `$5`, 0 for nothing: no limit. Raises ValueError."""
    if not text.strip():
        return 0
    found = _MONEY.fullmatch(text.strip())
    if found is None or len(found[1]) >= MOST:
        raise ValueError(f"{line(text, 40)!r} is not an amount of US dollars: write 2 or 0.50")
    return float(found[1])


LIMITS: Final[Mapping[str, Callable[[str], float]]] = {
    "steps": steps,
    "tokens": context,
    "seconds": seconds,
    "cost": cost,
}


def tools(text: str) -> str | tuple[str, ...]:
    """A set's name, or a list of tools. Raises ValueError."""
    names = tuple(name for name in text.replace(",", " ").split() if name)
    if not names:
        return ""
    return names[0] if len(names) == 1 and names[0] in TOOLS else names


def params(text: str) -> dict[str, Any]:
    """A table written as JSON (it begins with a brace) or as TOML. Raises ValueError."""
    if not text.strip():
        return {}
    try:
        if text.lstrip().startswith("{"):
            found = msgspec.json.decode(text)
        else:
            found = tomllib.loads(text)
        msgspec.json.encode(found)
    except msgspec.DecodeError as error:
        raise ValueError(f"not valid JSON: {wanted(str(error))}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not valid TOML: {error}; write temperature = 0.2, or JSON") from error
    except (UnicodeError, RecursionError) as error:
        raise ValueError("too deeply nested, or not Unicode") from error
    if not isinstance(found, dict):
        raise ValueError("write a table: temperature = 0.2, or JSON in braces")
    return found


def field_of(message: str) -> tuple[str, str]:
    """(field of the form, what is wrong with it) of a 422's message; the field is empty where the form has none."""
    name, colon, why = message.partition(":")
    head = name.split(".")[0].split("[")[0].strip()
    if colon and head in FIELDS:
        rest = name[len(head) :].lstrip(".")
        return head, f"{rest}: {why.strip()}" if rest else why.strip()
    return "", message


def grouped(providers: api.Providers, words: str = "") -> list[tuple[str, list[api.ModelInfo]]]:
    """(provider, its models) of those whose name has every word; who is not served or has none is left out."""
    asked = words.lower().split()
    found = []
    seen: set[str] = set()  # a server may list one twice
    for provider in providers.providers:
        models = []
        for one in provider.models:
            if one.name not in seen and all(word in one.name.lower() for word in asked):
                seen.add(one.name)
                models.append(one)
        if provider.served and models:
            found.append((provider.name, models))
    return found


def model_line(model: api.ModelInfo, default: str) -> str:
    """A model with what is known of it."""
    notes = [model.name]
    notes += [f"context {tokens(model.context)}"] if model.context else []
    notes += ["images"] if any(type.startswith("image/") for type in model.input) else []
    notes += ["default"] if model.name == default else []
    return line(" · ".join(notes))


def offered(workers: Iterable[api.WorkerInfo], last: Sequence[WorkerRef]) -> list[tuple[str, str, bool]]:
    """(name, folder, ticked) of each worker: as the last choice had it; without one, `local` is ticked."""
    cwds = {ref.name: ref.cwd for ref in last}
    names = [one.name for one in workers]
    ticked = set(cwds) if cwds else {"local"}
    return [
        (name, cwds.get(name, ""), name in ticked) for name in [*names, *(n for n in cwds if n not in names)]
    ]
