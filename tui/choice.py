"""What a new session is to be: texts that a person wrote, checked field by field into the API's Create. Pure."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from daemon.plain import line, tokens, wanted
from daemon.protocol import api
from daemon.protocol.records import WorkerRef

FIELDS: Final = ("model", "workers", "context", "tools", "params", "instructions", "message")
TOOLS: Final = ("default", "patch")  # sets that the daemon knows; a list of names does too
UNITS: Final = {"k": 1000, "m": 1_000_000}


class Choice(Struct, frozen=True, omit_defaults=True):
    """A form as it is written. `workers`: those ticked, with the folder of each. Kept as the last choice."""

    model: str = ""
    workers: tuple[WorkerRef, ...] = ()
    context: str = ""
    tools: str = ""
    params: str = ""


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
    for ref in choice.workers:
        if ref.cwd and not ref.cwd.startswith(("/", "~")):
            wrong["workers"] = f"{ref.name}: a folder begins with / or ~, not {line(ref.cwd, 60)!r}"
    if wrong:
        raise Wrong(wrong)
    return api.Create(workers=choice.workers, **made)


def context(text: str) -> int:
    """Tokens of `100000`, `100k` or `1.5M`; 0 for nothing, the model's own limit. Raises ValueError."""
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
        return head, f"{name[len(head) :].lstrip('.')} {why.strip()}".strip()
    return "", message


def grouped(providers: api.Providers, words: str = "") -> list[tuple[str, list[api.ModelInfo]]]:
    """(provider, its models) of those whose name has every word; who is not served or has none is left out."""
    asked = words.lower().split()
    found = []
    for provider in providers.providers:
        models = [one for one in provider.models if all(word in one.name.lower() for word in asked)]
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
