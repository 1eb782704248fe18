"""What is known of models: their limits in tokens and the media they take. A config's table wins over it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from daemon.provider.base import Model

TEXT_AND_IMAGES: Final = ("text/plain", "image/png", "image/jpeg", "image/gif", "image/webp")


def _claude(name: str, context: int, output: int) -> Model:
    return Model(name, context, output, TEXT_AND_IMAGES)


# Best first: the first one is the default. Dated names of a model are found by their beginning.
ANTHROPIC: Final = (
    _claude("claude-sonnet-5", 1_000_000, 128_000),
    _claude("claude-fable-5-1", 1_000_000, 128_000),
    _claude("claude-opus-5", 1_000_000, 128_000),
    _claude("claude-opus-4-8", 1_000_000, 128_000),
    _claude("claude-opus-4-7", 1_000_000, 128_000),
    _claude("claude-opus-4-6", 1_000_000, 128_000),
    _claude("claude-sonnet-4-6", 1_000_000, 128_000),
    _claude("claude-haiku-4-5", 200_000, 64_000),
    _claude("claude-sonnet-4-5", 200_000, 64_000),
    _claude("claude-opus-4-5", 200_000, 64_000),
    _claude("claude-opus-4-1", 200_000, 32_000),
    _claude("claude-sonnet-4", 200_000, 64_000),
    _claude("claude-opus-4", 200_000, 32_000),
    _claude("claude-3-haiku", 200_000, 4_096),
)


def find(name: str, known: Iterable[Model]) -> Model:
    """What is known of `name`: its own entry, that of the longest name it extends by a date, or nothing at all."""
    best = Model(name, input=TEXT_AND_IMAGES[:1])
    found = ""
    for model in known:
        if name == model.name:
            return model
        rest = name.removeprefix(model.name)
        if rest != name and _dated(rest) and len(model.name) > len(found):
            best, found = msgspec.structs.replace(model, name=name), model.name
    return best


def overridden(known: Sequence[Model], table: Mapping[str, Any]) -> tuple[Model, ...]:
    """`known` with a config's table over it: a name's `context`, `output`, `input`. Its names come first.

    Raises ValueError that names the field and what it should be.
    """
    named = []
    for name, fields in table.items():
        old = find(name, known)
        try:
            new = msgspec.convert(fields, _Fields)
        except msgspec.ValidationError as error:
            what = "context and output (tokens) and input (media types)"
            raise ValueError(f"models.{name}: {error}; its fields are {what}") from None
        named.append(
            Model(name, new.context or old.context, new.output or old.output, new.input or old.input)
        )
    return (*named, *(model for model in known if model.name not in table))


class _Fields(Struct, frozen=True, forbid_unknown_fields=True):
    context: Annotated[int, Meta(ge=0)] = 0
    output: Annotated[int, Meta(ge=0)] = 0
    input: tuple[str, ...] = ()


def _dated(rest: str) -> bool:
    return rest in ("-latest", "-0") or (len(rest) == 9 and rest[0] == "-" and rest[1:].isdigit())
