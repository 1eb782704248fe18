"""What is known of models: their limits in tokens and the media they take. A config's table wins over it."""

import re
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
    _claude("claude-opus-5-5", 1_000_000, 128_000),
    _claude("claude-sonnet-5-5", 1_000_000, 128_000),
    _claude("claude-haiku-5-5", 1_000_000, 128_000),
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


def _gpt(name: str, context: int, output: int) -> Model:
    return Model(name, context, output, TEXT_AND_IMAGES)


def _words(name: str, context: int, output: int = 0) -> Model:
    return Model(name, context, output, TEXT_AND_IMAGES[:1])


# Of well-known names that servers of Chat Completions have. Best first.
CHAT: Final = (
    _gpt("gpt-5.2", 400_000, 128_000),
    _gpt("gpt-5.1", 400_000, 128_000),
    _gpt("gpt-5", 400_000, 128_000),
    _gpt("gpt-5-mini", 400_000, 128_000),
    _gpt("gpt-5-nano", 400_000, 128_000),
    _gpt("gpt-5.4", 1_050_000, 128_000),
    _gpt("gpt-5.4-mini", 400_000, 128_000),
    _gpt("gpt-4.1", 1_047_576, 32_768),
    _gpt("gpt-4.1-mini", 1_047_576, 32_768),
    _gpt("gpt-4o", 128_000, 16_384),
    _gpt("gpt-4o-mini", 128_000, 16_384),
    _gpt("o3", 200_000, 100_000),
    _gpt("o4-mini", 200_000, 100_000),
    _words("deepseek-v4-pro", 1_048_576, 393_216),
    _gpt("deepseek-flash", 1_048_576, 393_216),
    _words("deepseek-v4-flash", 1_048_576, 393_216),
    _words("deepseek-chat", 1_048_576, 393_216),
    _words("deepseek-reasoner", 1_048_576, 393_216),
    _gpt("grok-4.7", 500_000, 0),
    _gpt("grok-4", 256_000, 0),
    _words("grok-code-fast-1", 256_000),
)
OPENAI: Final = CHAT[:13]  # that OpenAI itself serves


def gemini(name: str, context: int, output: int) -> Model:
    """One of Google's that see."""
    return Model(name, context, output, TEXT_AND_IMAGES)


# Best first.
GOOGLE: Final = tuple(
    gemini(name, 1_048_576, 65_536)
    for name in (
        "gemini-3.8-flash",
        "gemini-3.1-pro-preview",
        "gemini-3.1-pro-preview-customtools",
        "gemini-3.7-flash",
        "gemini-3.6-flash",
        "gemini-3.5-flash",
        "gemini-3.5-flash-lite",
        "gemini-3.1-flash-lite",
        "gemini-3-pro-preview",
        "gemini-3-flash-preview",
        "gemini-2.5-pro",
        "gemini-2.5-flash",
        "gemini-2.5-flash-lite",
        "gemini-pro-latest",
        "gemini-flash-latest",
        "gemini-flash-lite-latest",
    )
)

_DATE: Final = re.compile(r"-(latest|\d{8}|\d{4}-\d\d-\d\d)")


def find(name: str, known: Iterable[Model]) -> Model:
    """What is known of `name`: its own entry, that of the longest name it extends by a date, or nothing at all."""
    best = max(
        (model for model in known if is_of(name, model)), key=lambda model: len(model.name), default=None
    )
    if best is None:
        return Model(name, input=TEXT_AND_IMAGES[:1])
    return best if best.name == name else msgspec.structs.replace(best, name=name)


def known_as(name: str, known: Iterable[Model], facts: Iterable[Model]) -> Model:
    """What is known of `name`: by `known`, else of that name anywhere, also behind a vendor's (`openai/gpt-5`)."""
    best = find(name, known)
    if best.context or best.output or len(best.input) > 1:
        return best
    for short in (name, name.rpartition("/")[2]):
        fact = find(short, facts)
        if fact.context:
            return msgspec.structs.replace(fact, name=name)
    return best


def is_of(name: str, model: Model) -> bool:
    """Whether `name` is the model's, or one of its dated ones."""
    rest = name.removeprefix(model.name)
    return not rest or (rest != name and (rest == "-0" or _DATE.fullmatch(rest) is not None))


def overridden(known: Sequence[Model], table: Mapping[str, Any]) -> tuple[Model, ...]:
    """`known` with a config's table over it: a name's `context`, `output`, `input`. Its names come first. A `price`
    in it is prices.py's to read.

    Raises ValueError that names the field and what it should be.
    """
    named = []
    for name, fields in table.items():
        old = find(name, known)
        try:
            new = msgspec.convert(fields, _Fields)
        except msgspec.ValidationError as error:
            what = "context and output (tokens), input (media types) and price"
            raise ValueError(f"models.{name}: {error}; its fields are {what}") from None
        named.append(
            msgspec.structs.replace(
                old,
                name=name,
                context=new.context or old.context,
                output=new.output or old.output,
                input=new.input or old.input,
            )
        )
    return (*named, *(model for model in known if model.name not in table))


class _Fields(Struct, frozen=True, forbid_unknown_fields=True):
    context: Annotated[int, Meta(ge=0)] = 0
    output: Annotated[int, Meta(ge=0)] = 0
    input: tuple[str, ...] = ()
    price: Any = None
